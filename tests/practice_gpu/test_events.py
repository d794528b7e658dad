"""The event log: each copy and each wait, with its bytes, at the learner's line."""

import inspect
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import practice_gpu as practice

HERE = str(Path(__file__))


def above() -> int:
    """Return the number of the line above the one that calls this."""
    return inspect.currentframe().f_back.f_lineno - 1


def logged(gpu, kind=None):
    return [
        (event.call, event.line, event.count, event.nbytes, event.waits)
        for event in gpu.events
        if kind in (None, event.kind) and event.filename == HERE
    ]


EVENTS = [
    ("host to device", ".to()", 400, 1, lambda x, host: host.to("cuda")),
    ("host to device", ".cuda()", 400, 1, lambda x, host: host.cuda()),
    ("host to device", "torch.tensor()", 8, 1, lambda x, host: torch.tensor([1.0, 2.0], device="cuda")),
    ("host to device", ".copy_()", 400, 1, lambda x, host: x.copy_(host)),
    ("device to host", ".cpu()", 400, 1, lambda x, host: x.cpu()),
    ("device to host", ".to()", 400, 0, lambda x, host: x.to("cpu", non_blocking=True)),
    ("device to host", ".tolist()", 400, 1, lambda x, host: x.tolist()),
    ("device to host", ".copy_()", 400, 1, lambda x, host: host.copy_(x)),
    ("device to host", ".item()", 4, 1, lambda x, host: x[0].item()),
    ("device to host", "float()", 4, 1, lambda x, host: float(x[0])),
    ("device to host", "int()", 4, 1, lambda x, host: int(x[0])),
    ("device to host", "if tensor", 1, 1, lambda x, host: 1 if x[0] > 1 else 0),
    ("device to host", "format", 4, 1, lambda x, host: f"{x[0]:.3f}"),
    ("device to host", "print", 400, 1, lambda x, host: print(x)),
    ("wait", "torch.cuda.synchronize()", 0, 1, lambda x, host: torch.cuda.synchronize()),
    ("wait", "Stream.synchronize()", 0, 1, lambda x, host: torch.cuda.current_stream().synchronize()),
    ("wait", "Event.synchronize()", 0, 1, lambda x, host: torch.cuda.Event().synchronize()),
    ("wait", "nonzero", 0, 1, lambda x, host: x.nonzero()),
    ("wait", "index", 0, 1, lambda x, host: x[x > 1]),
    ("wait", "equal", 0, 1, lambda x, host: torch.equal(x, x)),
]


@pytest.mark.parametrize(("kind", "call", "nbytes", "waits", "do"), EVENTS)
def test_a_copy_or_wait_is_logged_at_its_line(gpu, kind, call, nbytes, waits, do):
    x, host = torch.ones(100, device="cuda"), torch.ones(100)
    do(x, host)
    (event,) = gpu.events
    assert (event.kind, event.call, event.count, event.nbytes, event.waits) == (kind, call, 1, nbytes, waits)
    assert (event.filename, event.line) == (HERE, do.__code__.co_firstlineno)


def test_making_tensors_on_the_device_copies_nothing(gpu):
    x = torch.rand(100, device="cuda").to("cuda") + 1
    x.sum().neg_()
    assert gpu.events == ()
    assert gpu.report() == "Practice GPU: no copy between host and device, and no wait."


def test_reading_the_host_is_not_logged(gpu):
    x = torch.ones(3)
    print(x, x.sum().item(), x.tolist(), bool(x.sum() > 1), x.numpy(), x.cpu(), x.nonzero())
    assert gpu.events == ()


def test_a_loop_is_one_event_with_its_sums(gpu):
    x = torch.ones(10, device="cuda")
    for _ in range(938):
        x.sum().item()
        where = above()
    (event,) = gpu.events
    assert (event.kind, event.call, event.line, event.count, event.nbytes) == (
        "device to host",
        ".item()",
        where,
        938,
        3752,
    )
    assert event.source.startswith("x.sum().item()")


def test_what_pytorch_does_for_the_learner_counts_at_the_learners_line(gpu):
    layer = torch.nn.Linear(4, 4)
    layer.cuda()
    where = above()
    assert logged(gpu) == [(".cuda()", where, 2, 80, 2)]
    gpu.clear_events()
    y = layer(torch.ones(1, 4, device="cuda")).cpu().sum()
    gpu.clear_events()
    y.backward()
    where = above()
    assert logged(gpu) == [(".to() in backward", where, 1, 16, 1)]


def test_the_scaler_waits_in_step(gpu):
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    gpu.clear_events()
    scaler.step(optimizer)
    where = above()
    assert (".item()", where) in [found[:2] for found in logged(gpu, "device to host")]


def test_work_in_a_thread_of_the_learners(gpu):
    import threading

    lines = []

    def work():
        torch.ones(5).cuda()
        lines.append(above())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert logged(gpu) == [(".cuda()", lines[0], 1, 20, 1)]


def test_the_report(gpu):
    x = torch.ones(1000)
    for _ in range(12):
        x.to("cuda")
        first = above()
    x.cuda().sum().item()
    second = above()
    report = gpu.report().splitlines()
    assert report[0] == "Practice GPU: 14 copies (52,004 bytes), 14 waits"
    assert report[1:4] == [
        "times   bytes  waits  what, and where",
        "   12  48,000     12  .to(), host to device",
        f'{"":22}test_events.py:{first}: x.to("cuda")',
    ]
    assert report[-2:] == [
        "    1       4      1  .item(), device to host",
        f"{'':22}test_events.py:{second}: x.cuda().sum().item()",
    ]


def test_the_report_stays_narrow(gpu):
    fmt = "a text that nobody reads, in a line that is as long as the line length of this project"
    print(torch.ones(3, device="cuda").sum().item() + torch.ones(3, device="cuda").sum().item(), fmt, end="")
    *_, place = gpu.report().splitlines()
    assert len(place) <= 86 and place.endswith(" …") and "print(torch.ones(3" in place


def test_sync_debug_mode(gpu):
    x = torch.ones(3, device="cuda")
    pinned = torch.ones(3).pin_memory()
    torch.cuda.set_sync_debug_mode("error")
    assert torch.cuda.get_sync_debug_mode() == 2
    for attempt in (x.cpu, x.sum().item, torch.ones(3).cuda, lambda: repr(x)):
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            attempt()
    pinned.to("cuda", non_blocking=True)
    torch.ones(3).to("cuda", non_blocking=True)
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        torch.cuda.current_stream().synchronize()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()  # who asks to wait for an event or the device is not told that it waits
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode(1)
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as caught:
        x.sum().item()
    assert caught[0].filename == __file__
    torch.cuda.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.cpu()
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`"):
        torch.cuda.set_sync_debug_mode("loud")


def test_a_listener_hears_of_each_record_before_it_is_summed(gpu):
    x = torch.ones(3)
    heard = []
    gpu.log.listener = lambda kind, call, nbytes, waits: heard.append(
        (kind, call, sum(event.count for event in gpu.events))
    )
    y = x.cuda()
    for _ in range(2):
        y.sum().item()
    print(y)  # one record, although it reads many times
    torch.cuda.synchronize()
    assert heard == [
        ("host to device", ".cuda()", 0),
        ("device to host", ".item()", 1),
        ("device to host", ".item()", 2),
        ("device to host", "print", 3),
        ("wait", "torch.cuda.synchronize()", 4),
    ]
    gpu.log.listener = None
    y.cpu()
    assert len(heard) == 5 and sum(event.count for event in gpu.events) == 6


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_a_listener_hears_of_what_debug_mode_warns_of_or_refuses(gpu, mode):
    x = torch.ones(3, device="cuda")
    heard = []
    gpu.log.listener = lambda kind, call, *_: heard.append(call)
    torch.cuda.set_sync_debug_mode(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeError, UserWarning), match="called a synchronizing CUDA operation"):
            x.cpu()
    assert heard == [".cpu()"] and gpu.events == ()


def test_in_a_notebook_the_cell_is_the_file(tmp_path):
    cell = compile(
        "import torch\nx = torch.ones(2, device='cuda')\nx.sum().item()\n", "/tmp/ipykernel_1/7.py", "exec"
    )
    gpu = practice.start(force=True)
    try:
        exec(cell, {})
        assert [(event.filename, event.line) for event in gpu.events] == [("/tmp/ipykernel_1/7.py", 3)]
    finally:
        practice.stop()


@pytest.mark.slow
def test_scripts_are_named_as_they_were_given(tmp_path):
    script = tmp_path / "lesson.py"
    script.write_text(
        "import torch\nfor i in range(3):\n    torch.ones(2).cuda().sum().item()\n", encoding="utf-8"
    )
    code = f"from practice_gpu import run_script; run_script({str(script)!r}, report=True, force=True)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "6 copies (36 bytes), 6 waits" in output
    assert "lesson.py:3: torch.ones(2).cuda().sum().item()" in output

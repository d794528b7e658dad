"""``python -m gpulesson film``: what each line of a script does, against the practice GPU's own log."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType

import pytest

from gpulesson.__main__ import main
from gpulesson_tools.porting.facts import Run
from gpulesson_tools.porting.film import _shown, part, sentence
from gpulesson_tools.porting.filming import Filming, Stop, Thing
from practice_gpu import practice_gpu
from practice_gpu.device.events import TO_DEVICE, TO_HOST

HEAD = "import torch\nfrom torch import nn\n"
STEP = (
    HEAD
    + """\
x = torch.ones(5, 2)
model = nn.Linear(2, 3).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(4):
    outputs = model(
        x.to("cuda")
    )
    loss = outputs.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
print(torch.stack(losses).sum().item())
"""
)


@pytest.fixture
def film(tmp_path, monkeypatch):
    """Returns the stops of a script, and the events of the practice GPU, or the error that ended it."""

    def film(text: str) -> tuple[list[Stop], object]:
        path = tmp_path / "train.py"
        path.write_text(text)
        main = ModuleType("__main__")
        main.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "__main__", main)
        before, error = sys.gettrace(), None
        with practice_gpu(force=True) as gpu:
            filming = Filming(tmp_path, gpu, Run())
            try:
                with filming:
                    exec(compile(text, str(path), "exec"), main.__dict__)
            except RuntimeError as raised:
                error = raised
            sys.settrace(before)
            return filming.stops, error or gpu.events

    return film


def at(stops: list[Stop], line: int) -> list[Stop]:
    return [stop for stop in stops if stop.line == line]


def held(stop: Stop) -> dict[str, tuple[bool, int, int]]:
    return {each.name: (each.on_gpu, each.nbytes, each.gradients) for each in stop.things}


def test_copies_and_waits_are_those_of_the_log(film):
    stops, events = film(STEP.replace("range(4)", "range(2)"))
    copied = {kind: sum(each.nbytes for each in events if each.kind == kind) for kind in (TO_DEVICE, TO_HOST)}
    assert sum(sum(stop.to_gpu) for stop in stops) == copied[TO_DEVICE] == 4 * (3 * 2 + 3) + 2 * 4 * 5 * 2
    assert sum(sum(stop.to_host) for stop in stops) == copied[TO_HOST] == 4
    assert sum(len(stop.waits) for stop in stops) == sum(each.waits for each in events)


def test_what_a_line_makes_appears_after_it_and_goes_with_its_name(film):
    stops, _ = film(STEP)
    (moved,) = at(stops, 4)
    assert held(moved) == {"x": (False, 40, 0), "model": (True, 36, 0)}
    (first, second), (stepped, _) = at(stops, 13), at(stops, 14)
    assert held(first)["model"] == held(second)["model"] == (True, 36, 36)
    assert "optimizer" not in held(first) and held(stepped)["optimizer"] == (True, 72, 0)
    (zeroed,) = at(stops, 12)  # in the first turn there is nothing to clear
    assert held(zeroed)["model"] == (True, 36, 0)
    outputs, _ = at(stops, 8)
    assert outputs.last == 10 and held(outputs)["outputs"] == (True, 60, 0)


def test_the_queue_grows_until_a_line_waits(film):
    stops, _ = film(STEP)
    forward, after = at(stops, 8)
    assert forward.sent == 1  # the linear layer is one product with an addition
    assert 0 < at(stops, 11)[0].queue < at(stops, 13)[0].queue
    assert at(stops, 14)[0].queue == after.waited > 10  # the next batch's copy waits for all of it
    assert stops[-1].line == 16 and stops[-1].queue == 0 and stops[-1].waits == [".item()"]


def test_a_look_at_the_clock_is_a_stop(film):
    stops, _ = film(
        "import time\nimport torch\nx = torch.ones(3).cuda()\nfor i in range(5):\n    time.perf_counter()\n"
        "y = (\n    x.exp(),\n    time.time_ns(),\n)\ntimer = time.perf_counter\n"
    )
    assert [(stop.line, stop.clock) for stop in stops] == [(3, False), (5, True), (5, True), (6, True)]


def test_a_view_takes_no_memory_in_the_bar():
    whole = Thing("x", "tensor", True, "4 × 2", 32, where=(1,))
    piece = Thing("row", "tensor", True, "2, part of x", 8, where=(1,))
    other = Thing("model", "model", True, "1 tensor", 40, gradients=40, where=(2, 3))
    made = part({"": ([Stop("a.py", 1, 1, things=[whole, piece, other], unnamed=512)], {"a.py": "x"})})
    ((stop,),) = (data["stops"] for data in json.loads(re.search(r"json\">(.*?)</script>", made)[1]))
    assert [thing[3] for thing in stop["gpu"]] == [32, 0, 80, 512] and stop["used"] == [624, "624 bytes"]


def test_two_turns_of_a_loop_are_shown_and_the_rest_is_named(film):
    stops, _ = film(STEP)
    assert {line: len(at(stops, line)) for line in (8, 11, 14, 15)} == {8: 2, 11: 2, 14: 2, 15: 0}
    assert [stop.more for stop in at(stops, 14)] == [False, True]
    assert "was shown before" in sentence(at(stops, 14)[1])


def test_a_function_shows_its_own_names_first_and_the_callers_line_goes_on(film):
    text = HEAD + (
        "def double(inner):\n    result = inner * 2\n    return result\n"
        "outer = torch.ones(3).cuda()\n"
        "total = double(outer).sum()\n"
        "third = [double(outer) for _ in range(100)]\n"
    )
    stops, _ = film(text)
    (inside, _), outside, third = at(stops, 4), at(stops, 7)[-1], at(stops, 8)[-1]
    assert [each.name for each in inside.things] == ["inner, outer", "result"]
    assert inside.sent == outside.sent == 1 and list(held(outside)) == ["outer", "total"]
    assert third.sent == 99, "what is not shown of a function, the line did that called it"


OWN = (
    HEAD
    + """\
class Trainer:
    scale = torch.ones(5).cuda()
    def __init__(self):
        self.model = nn.Linear(2, 3).cuda()
        self._mask = torch.ones(7)
trainer = Trainer()
"""
)


def test_what_an_object_of_the_scripts_own_class_holds_has_names(film):
    stops, _ = film(OWN)
    inside, outside = map(held, stops[-2:])
    assert outside["trainer.model"] == inside["self.model"] == (True, 36, 0)
    assert inside["self._mask"] == (False, 28, 0)
    assert outside["Trainer.scale"] == (True, 20, 0)


def test_a_function_that_does_nothing_with_the_gpu_is_its_callers_line(film):
    stops, _ = film(OWN.replace(".cuda()", ""))
    assert [stop.line for stop in stops] == [3, 8] and held(stops[1])["trainer.model"] == (False, 36, 0)


def test_a_line_does_what_it_calls_for_if_that_is_not_shown(film):
    text = HEAD + (
        "def step(x):\n    y = x.cuda()\n    return y.sum().item()\n"
        "x = torch.ones(4)\nfor _ in range(3):\n    a = step(x)\nb = step(x) + step(x)\n"
    )
    stops, _ = film(text)
    last = stops[-1]
    assert (last.line, last.to_gpu, last.to_host, last.sent) == (9, [16, 16], [4, 4], 2)
    assert last.waits == [".to()", ".item()"] * 2 or last.waits == [".cuda()", ".item()"] * 2


def test_lines_are_shown_once_more_without_gradients(film):
    text = HEAD + (
        "def double(x):\n    return x * 2\nx = torch.ones(3).cuda()\n"
        "for _ in range(5):\n    y = double(x)\n"
        "with torch.no_grad():\n    for _ in range(5):\n        y = double(x)\n"
    )
    stops, _ = film(text)
    assert [stop.sent for stop in at(stops, 4)] == [1, 1, 1]


def test_what_is_left_out_before_a_line_is_said_before_it(film):
    text = HEAD + (
        "def step(x, last):\n    y = x * 2\n    if last:\n        y = y + 1\n    return y\n"
        "x = torch.ones(3).cuda()\nfor i in range(4):\n    y = step(x, i == 3)\n"
    )
    stops, _ = film(text)
    before, added = stops[-2:]
    assert before.more and (added.line, added.sent, added.queue) == (6, 1, 5)


def test_only_what_a_line_makes_or_writes_has_a_mark(film):
    text = HEAD + (
        "def forward(model, x):\n    y = model(x)\n    return y\n"
        "model = nn.Linear(2, 2).cuda()\n"
        'x = torch.ones(3, 2, device="cuda")\nloss = forward(model, x).sum()\n'
        "loss.backward()\ntorch.optim.SGD(model.parameters(), 0.1).step()\n"
    )
    stops, _ = film(text)
    new = {
        stop["line"]: {name for name, _, new, _ in stop["gpu"] if new and name}
        for stop in _shown(stops, several=False)
    }
    assert new[4] == {"y"} and new[10] == {"model"}


def test_names_of_a_caller_that_a_function_has_too_tell_whose_they_are(film):
    text = HEAD + (
        "def forward(x):\n    y = x * 2\n    return y.sum()\n"
        'x = torch.ones(3, device="cuda")\ny = torch.ones(5, device="cuda")\nz = forward(y)\n'
    )
    stops, _ = film(text)
    assert list(held(at(stops, 4)[0])) == ["x", "y", "x in train.py"]


def test_saving_and_copies_between_the_sides_send_no_kernels(film):
    text = HEAD + (
        'import io\nx = torch.ones(3, device="cuda")\ntorch.save(x, io.BytesIO())\n'
        "y = torch.ones(2)\ny[0] = x[0]\n"
    )
    stops, _ = film(text)
    (saved,), copied = at(stops, 5), stops[-1]
    assert (saved.sent, saved.to_host, copied.sent, copied.to_host) == (0, [12], 0, [4])


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.eye(3).to_sparse()",
        "y = torch.func.vmap(torch.sin)(torch.ones(3))",
        "y = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])",
    ],
)
def test_tensors_without_a_storage_do_not_stop_the_script(film, line):
    stops, ended = film(f'{HEAD}{line}\nz = torch.ones(4, device="cuda")\n')
    assert not isinstance(ended, Exception) and held(stops[-1])["z"] == (True, 16, 0)


def test_an_error_that_the_script_catches_is_not_its_end(film):
    text = HEAD + (
        'x = torch.ones(2, device="cuda", requires_grad=True)\ny = x.sum()\ny.backward()\n'
        "try:\n    y.backward()\nexcept RuntimeError:\n    pass\n"
        "z = torch.ones(100).cuda()\nn = z.sum().item()\n"
    )
    stops, _ = film(text)
    assert at(stops, 10)[0].to_gpu == [400] and at(stops, 11)[0].waits == [".item()"]
    assert not any(stop.error for stop in stops)


def test_numbers_on_the_gpu_are_computed_by_kernels_too(film):
    stops, _ = film(HEAD + 'a = torch.tensor(2.0, device="cuda")\nb = a * 2\nc = (a + b).sqrt()\n')
    assert [stop.sent for stop in stops[1:]] == [1, 2]


def test_tensors_in_attributes_and_lists_have_names_and_views_are_parts(film):
    text = HEAD + (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.mask = torch.ones(4)\n        self.layer = nn.Linear(1, 1)\n"
        "net = Net().cuda()\nrows = torch.ones(10, 2)\nfew = rows[:5]\n"
        "pair = [few.cuda(), rows.sum()]\n"
    )
    stops, _ = film(text)
    names = {(each.name, each.on_gpu): each.shape for each in stops[-1].things}
    assert names["net", True] == "2 tensors" and names["net.mask", False] == "4"
    assert names["few", False] == "5 × 2, part of rows"
    assert names["pair", True] == names["pair", False] == "1 tensor"


def test_a_part_of_a_tensor_is_a_stop_on_its_side_and_one_of_a_model_is_none(film):
    text = HEAD + (
        "rows = torch.ones(10, 2)\nmodel = nn.Linear(2, 2).cuda()\nx = rows[:5]\n"
        'for p in model.parameters():\n    pass\ny = torch.ones(6, device="cuda")\nz = y[:3]\n'
    )
    stops, _ = film(text)
    assert [stop.line for stop in stops] == [3, 4, 5, 8, 9]
    says = {stop.line: sentence(stop) for stop in stops}
    assert says[5] == "This happens on the CPU alone."
    assert says[9] == "On the GPU, under a name now: z."


def test_what_has_no_name_is_what_backward_needs(film):
    text = HEAD + (
        'x = torch.ones(1000, 128, device="cuda", requires_grad=True)\ny = x.exp().sum()\ny.backward()\n'
    )
    stops, _ = film(text)
    assert [stop.unnamed for stop in stops] == [0, 4 * 1000 * 128, 0]


def test_what_the_line_of_an_error_needs_is_shown(film):
    stops, _ = film(HEAD + "def f(x):\n    y = torch.ones(2)\n    return x + y\nf(torch.ones(2).cuda())\n")
    assert [stop.line for stop in stops][-2:] == [4, 5] and stops[-1].error


def test_an_error_is_the_last_stop(film):
    stops, error = film(HEAD + 'a = torch.ones(2)\nb = torch.ones(2, device="cuda")\nc = a + b\nd = 1\n')
    assert stops[-1].line == 5 and stops[-1].error == f"RuntimeError: {error}"
    assert "two devices" in sentence(stops[-1]) and "The script ends here" in sentence(stops[-1])


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (Stop("a", 1, 1), "This happens on the CPU alone."),
        (Stop("a", 1, 1, sent=1, queue=4), "Python sends 1 kernel to the GPU and goes on at once."),
        (
            Stop("a", 1, 1, to_gpu=[800, 800], waits=[".to()", ".to()"], waited=23),
            "1,600 bytes go to the GPU, in 2 copies. Python waits for 23 kernels in the queue (.to()).",
        ),
        (
            Stop("a", 1, 1, sent=2, to_host=[4], waits=[".item()"], waited=9),
            "Python sends 2 kernels to the GPU. 4 bytes go back to the host. "
            "Python waits for 9 kernels in the queue (.item()).",
        ),
        (Stop("a", 1, 1, to_gpu=[8], queue=3), "8 bytes go to the GPU. Python goes on at once."),
        (
            Stop("a", 1, 1, to_host=[4], waits=[".item()"]),
            "4 bytes go back to the host. Python waits for the copy (.item()).",
        ),
        (
            Stop("a", 1, 1, waits=["torch.cuda.synchronize()"]),
            "Python waits for the GPU, which has nothing to do (torch.cuda.synchronize()).",
        ),
        (
            Stop("a", 1, 1, clock=True, queue=3),
            "Python looks at the clock, with 3 kernels in the queue.",
        ),
        (
            Stop("a", 1, 1, sent=9, queue=9, things=[Thing("adam", "optimizer", True, "state", 20_480)]),
            "Python sends 9 kernels to the GPU and goes on at once. The state of adam is made: 20.0 KiB.",
        ),
    ],
)
def test_a_stop_is_said_in_words(stop, says):
    assert sentence(stop) == says


def test_of_many_things_the_nearest_are_named_and_what_is_new():
    things = [Thing(f"x{number}", "tensor", True, "2", 8, where=(number,)) for number in range(20)]
    (stop,) = _shown([Stop("a.py", 1, 1, before=things[:-1], things=things)], several=False)
    assert [name for name, *_ in stop["gpu"]] == [*(f"x{number}" for number in range(8)), "x19", "11 more"]
    assert stop["gpu"][-1][3] == 88, "their bytes"


def test_texts_of_a_script_cannot_become_markup():
    made = part({"": ([Stop("a.py", 1, 1, error="<script>")], {"a.py": 'x = "</script><b>"'})})
    assert made.count("</script>") == 1 and "<b>" not in made
    (data,) = json.loads(re.search(r"json\">(.*?)</script>", made)[1])
    assert data["texts"] == {"a.py": 'x = "</script><b>"'}


@pytest.mark.slow
def test_the_command_writes_a_page_and_nothing_over_other_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STEP.replace("range(4)", "range(1000)"))
    assert main(["film", "train.py"]) == 0
    page = (tmp_path / "train.film.html").read_text("utf-8")
    (data,) = json.loads(re.search(r"json\">(.*?)</script>", page)[1])
    stops = [stop for stop in data["stops"] if stop["line"] == 13]
    assert [stop["to"] for stop in stops] == ["", ""], "no copy of ours is in it"
    assert "Long loops were cut short" in page and "src=" not in page and "http" not in page
    assert main(["film", "train.py"]) == 0, "over an older film"
    assert f"shows {len(data['stops'])} stops" in capsys.readouterr().out
    (tmp_path / "notes.html").write_text("mine")
    assert main(["film", "--out", "notes.html", "train.py"]) == 1
    assert "is not a film" in capsys.readouterr().err and (tmp_path / "notes.html").read_text() == "mine"
    (tmp_path / "cpu.py").write_text(HEAD + "print(torch.ones(2))\n")
    assert main(["film", "cpu.py"]) == 1
    assert "did not use the GPU" in capsys.readouterr().err and not (tmp_path / "cpu.film.html").exists()

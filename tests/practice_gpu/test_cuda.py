"""What ``torch.cuda``, ``torch.accelerator``, streams, events and generators answer."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from practice_gpu import PracticeError, practice_gpu


def test_the_device(gpu):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    for device in (None, 0, "cuda", "cuda:0", torch.device("cuda")):
        assert "simulated" in torch.cuda.get_device_name(device)
    assert torch.cuda.get_device_capability() == (8, 0)
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory == 2**30
    assert "simulated" in properties.name
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_name() == gpu.name


@pytest.mark.parametrize(
    ("names", "kind", "text"),
    [
        ("get_device_name get_device_properties get_device_capability", AssertionError, "Invalid device id"),
        ("set_device synchronize mem_get_info Stream", RuntimeError, "CUDA error: invalid device ordinal"),
        (
            "memory_allocated memory_stats max_memory_reserved reset_peak_memory_stats memory_summary",
            RuntimeError,
            "Invalid device argument \t: did you call init?",  # the number, 9, as a character
        ),
        ("get_per_process_memory_fraction", RuntimeError, "Allocator not initialized for device \t: did you"),
        ("current_stream default_stream", RuntimeError, "Device index value 9 is out of index range [0, 1)"),
        ("get_rng_state", IndexError, "tuple index out of range"),
    ],
)
def test_a_device_that_does_not_exist(gpu, names, kind, text):
    torch.cuda.init()
    for name in names.split():
        for device in (9, "cuda:9", torch.device("cuda", 9)):
            with pytest.raises(kind, match=re.escape(text)):
                getattr(torch.cuda, name)(device)
        if name != "get_rng_state":
            with pytest.raises(ValueError, match=r"Expected a (cuda|non cpu) device, but got: ?cpu"):
                getattr(torch.cuda, name)("cpu")


def test_a_device_without_a_number_cannot_be_set(gpu):
    for device in ("cuda", torch.device("cuda"), None):
        with pytest.raises(ValueError, match="with a specified index or an integer"):
            torch.cuda.set_device(device)
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.cuda.device(9):
        pass
    torch.cuda.set_device(-1)  # does nothing
    assert torch.cuda.current_device() == 0


def test_peers(two):
    assert torch.cuda.can_device_access_peer(0, 1) and not torch.cuda.can_device_access_peer(1, 1)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.cuda.can_device_access_peer(0, 2)


def test_questions_before_the_first_use(gpu):
    """PyTorch itself does not ask the allocator then, or asks in vain."""
    assert not torch.cuda.is_initialized()
    assert torch.cuda.memory_allocated(9) == 0 and torch.cuda.memory_stats() == {}
    with pytest.raises(RuntimeError, match=r"^Invalid device argument $"):  # number 0 ends the text
        torch.cuda.reset_peak_memory_stats(0)
    torch.cuda.reset_peak_memory_stats()  # this asks for the current device, which is a use
    assert torch.cuda.is_initialized() and torch.cuda.memory_allocated() == 0


def test_a_build_for_the_cpu_has_less_below(monkeypatch):
    names = [name for name in vars(torch._C) if name.startswith(("_cuda_", "_cudart"))]
    for name in names:
        monkeypatch.delattr(torch._C, name)
    with practice_gpu(count=2, force=True):
        torch.cuda.set_device(1)
        x = torch.ones(3).cuda()
        assert (x.device.index, torch.cuda.current_device(), torch.cuda.memory_allocated()) == (1, 1, 512)
        assert torch.cuda.get_device_name(0) and torch.cuda.get_device_capability(1) == (8, 0)
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_sync_debug_mode() == 1
        torch.cuda.synchronize(0)
        torch.cuda.empty_cache()
        with torch.cuda.device(0):
            assert torch.cuda.current_device() == 0
    assert [name for name in vars(torch._C) if name.startswith("_cuda_")] == []


def test_the_accelerator(gpu):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("cuda")
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    x = torch.ones(1, device=torch.accelerator.current_accelerator())
    assert x.device == torch.device("cuda:0")
    if hasattr(torch.accelerator, "memory_allocated"):
        assert torch.accelerator.memory_allocated() == 512


def test_memory_statistics(gpu):
    torch.cuda.init()
    assert torch.cuda.memory_stats()["allocation.all.current"] == 0
    kept, given_back = torch.ones(1000, device="cuda"), torch.ones(1, device="cuda")
    del given_back
    assert torch.cuda.mem_get_info() == (2**30 - 4096, 2**30)
    assert "4,096" in torch.cuda.memory_summary()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**30, device="cuda")
    stats = torch.cuda.memory_stats()
    names = ("current", "peak", "allocated", "freed")
    for kind, expected in (("allocation", (1, 2, 2, 1)), ("active", (1, 2, 2, 1))):
        assert tuple(stats[f"{kind}.all.{name}"] for name in names) == expected
    for kind in ("allocated_bytes", "active_bytes"):
        assert tuple(stats[f"{kind}.all.{name}"] for name in names) == (4096, 4608, 4608, 512)
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 1
    assert stats["reserved_bytes.all.current"] == 4096  # the cache was given back before it gave up
    assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() == 4608
    torch.cuda.reset_peak_memory_stats()
    stats = torch.cuda.memory_stats()
    assert (stats["allocation.all.peak"], stats["reserved_bytes.all.peak"]) == (1, 4096)
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == kept.nbytes + 96
    assert torch.accelerator.memory.memory_stats()["num_ooms"] == 1


def test_old_methods_and_types_where_the_type_is_right(two):
    c, h = torch.ones(3, device="cuda:1"), torch.ones(3)
    same = torch.cuda.FloatTensor(c)
    assert same.device == c.device and same.data_ptr() == c.data_ptr()
    made = [c.new(c), c.new(2, 3), c.new([1.0]), c.new(), c.new(2, device="cuda:1"), c.new(c.shape)]
    assert {tensor.device for tensor in made} == {c.device}
    with torch.cuda.device(1):
        assert torch.cuda.FloatTensor(2, 3).device == torch.cuda.FloatTensor([1.0]).device == c.device
    assert {h.new(h).device.type, h.new([1]).device.type, h.apply_(abs).device.type} == {"cpu"}
    assert h.map_(h, lambda a, b: a + b).tolist() == [2.0, 2.0, 2.0]


def test_a_stream_brings_its_device_and_is_its_threads_own(two):
    stream = torch.cuda.Stream(device=1)
    for context in (lambda: torch.cuda.stream(stream), lambda: stream):
        with context():
            assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == stream
            with context():
                assert torch.ones(2, device="cuda").device.index == 1
            with ThreadPoolExecutor(1) as thread:
                current = thread.submit(torch.cuda.current_stream, 1).result()
            assert current == torch.cuda.default_stream(1) != stream
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_device_properties_have_cudas_fields(two):
    first, second = (torch.cuda.get_device_properties(index) for index in range(2))
    assert first.uuid != second.uuid
    assert first.max_threads_per_multi_processor == 2048
    cuda = getattr(torch._C, "_CudaDeviceProperties", object)
    fields = [name for name in vars(cuda) if not name.startswith("_")]
    assert [name for name in fields if not hasattr(first, name)] == []


def test_streams_and_events_have_cudas_names():
    places = torch._C, ("_CudaStreamBase", "_CudaEventBase")
    cuda = [torch.cuda.Stream, torch.cuda.Event, *(getattr(places[0], name, object) for name in places[1])]
    public = [[name for name in dir(kind) if not name.startswith("_")] for kind in cuda]
    with practice_gpu(force=True):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with pytest.raises(PracticeError, match="ipc_handle"):
            event.ipc_handle()
        for names, ours in zip(public, (stream, event, stream, event), strict=True):
            assert [name for name in names if name not in dir(ours)] == []
        least, greatest = torch.cuda.Stream.priority_range()
        assert least == 0 > greatest


def test_the_accelerators_devices_and_random_numbers(two):
    with torch.accelerator.device_index(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    if hasattr(torch.accelerator, "random"):
        torch.cuda.manual_seed(7)
        assert torch.accelerator.random.initial_seed() == 7


def test_legacy_sparse_types(gpu):
    x = torch.eye(2, device="cuda").to_sparse()
    assert isinstance(x, torch.cuda.sparse.FloatTensor)
    assert not isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.sparse.DoubleTensor)
    assert isinstance(torch.eye(2).cuda(), torch.cuda.FloatTensor)


def test_two_devices(two):
    assert torch.cuda.device_count() == 2
    x, y = torch.ones(2, device="cuda"), torch.ones(2, device="cuda:1")
    assert (x.device.index, y.device.index, x.to("cuda:1").device.index) == (0, 1, 1)
    assert x.to(y).device.index == 1
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.ones(2, device="cuda").device.index == torch.ones(2).cuda().device.index == 1
    assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(y):
        assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:1")
    assert torch.ones(2, device="cuda").device.index == torch.accelerator.current_device_index() == 1
    assert "device='cuda:0'" in repr(x)
    torch.accelerator.set_device_index(0)
    y.copy_(x)
    assert {event.kind for event in two.events} >= {"device to device"}


def test_each_thread_has_its_own_current_device(two):
    torch.cuda.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert (seen, torch.cuda.current_device()) == ([0], 1)


def test_a_model_over_two_devices_trains(two):
    first, second = torch.nn.Linear(3, 4).to("cuda:0"), torch.nn.Linear(4, 1).to("cuda:1")
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    second(first(torch.rand(5, 3, device="cuda:0")).to("cuda:1")).sum().backward()
    assert first.weight.grad.device.index == 0
    assert second.weight.grad.device.index == 1
    torch.nn.utils.clip_grad_norm_([first.weight, second.weight], 1.0)
    optimizer.step()
    assert {state["exp_avg"].device.index for state in optimizer.state.values()} == {0, 1}


def test_streams_and_events(gpu):
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.cuda.Stream)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    default = torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        start.record()
        x = torch.rand(100, device="cuda") * 2
        x.record_stream(stream)
        end.record(stream)
    assert torch.cuda.current_stream() is default is torch.cuda.default_stream()
    default.wait_stream(stream)
    stream.wait_event(end)
    end.synchronize()
    assert end.query() and stream.query()
    assert start.elapsed_time(end) > 0
    stream.record_event().wait()
    with torch.cuda.stream(None), stream:
        pass
    torch.cuda.set_stream(stream)
    assert torch.accelerator.current_stream() is stream
    assert torch.Event("cuda", enable_timing=True).enable_timing
    assert torch.Stream("cuda").device == torch.device("cuda:0")


def test_elapsed_time_wants_timing_and_records(gpu):
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(torch.cuda.Event())
    with pytest.raises(ValueError, match="recorded before"):
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))


def test_what_is_not_simulated_says_so(gpu):
    for name in ("utilization", "MemPool"):
        with pytest.raises(
            PracticeError, match=f"does not simulate torch.cuda.{name}: run this on a machine with"
        ):
            getattr(torch.cuda, name)()


def test_seeds_repeat_the_random_numbers_of_the_device(gpu):
    def draw():
        x = torch.rand(3, device="cuda")
        return [
            *x.tolist(), *torch.randn_like(x).tolist(), *torch.nn.functional.dropout(x).tolist(),
            *torch.randint(9, (3,), device="cuda").tolist(), *torch.randperm(5, device="cuda").tolist(),
            *x.normal_().tolist(),
        ]  # fmt: skip

    torch.manual_seed(7)
    first = draw()
    assert draw() != first
    torch.manual_seed(7)
    assert draw() == first
    torch.cuda.manual_seed(7)
    assert draw() == first
    state = torch.cuda.get_rng_state()
    second = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == second
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    assert [generator.device.type for generator in torch.cuda.default_generators] == ["cuda"]


def test_the_devices_random_numbers_leave_the_hosts_alone(gpu):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    torch.rand(5, device="cuda")
    torch.nn.functional.dropout(torch.ones(5, device="cuda"))
    torch.randn_like(torch.ones(5, device="cuda"))
    assert torch.rand(2).equal(expected)


def test_generators(gpu):
    generator = torch.Generator(device="cuda").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert generator.device == torch.device("cuda:0")
    first = torch.rand(3, device="cuda", generator=generator)
    again = torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    assert first.equal(again)
    for attempt in (
        lambda: torch.rand(3, generator=generator),
        lambda: torch.ones(3).uniform_(generator=generator),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
            attempt()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.ones(3, device="cuda").uniform_(generator=torch.Generator())


@pytest.mark.parametrize("also", [(), (torch.profiler.ProfilerActivity.CPU,)])
def test_a_profile_shows_the_hosts_side(capfd, also):
    plain = torch.autograd.profiler.profile.__init__
    cuda = torch.profiler.ProfilerActivity.CUDA
    with practice_gpu(force=True):
        x = torch.ones(3, 3, device="cuda")
        with (
            pytest.warns(UserWarning, match="has no kernels to profile"),
            torch.profiler.profile(activities=[cuda, *also]) as recorded,
        ):
            x @ x
    assert "aten::mm" in {entry.key for entry in recorded.key_averages()}
    assert {event.device_type for event in recorded.events()} == {torch.autograd.DeviceType.CPU}
    assert "driver" not in capfd.readouterr().err
    assert torch.autograd.profiler.profile.__init__ is plain


def test_a_device_can_draw_the_numbers_of_the_host(gpu):
    from practice_gpu.device.generators import drawing_from_the_host

    def numbers(device):
        torch.manual_seed(3)
        torch.cuda.manual_seed_all(4)
        drawn = torch.rand(3, device=device), torch.nn.functional.dropout(torch.ones(9, device=device))
        return [each.cpu() for each in (*drawn, torch.rand(2))]

    with drawing_from_the_host(gpu) as draws:
        assert all(map(torch.equal, numbers("cpu"), numbers("cuda")))
        assert draws() == 2
    assert not torch.equal(numbers("cpu")[0], numbers("cuda")[0])


# -- CUDA's runtime and NVTX, as far as programs call them


def test_the_runtime(gpu):
    runtime = torch.cuda.cudart()
    assert runtime.cudaProfilerStart() == runtime.cudaError.success
    assert torch.cuda.check_error(runtime.cudaProfilerStop()) is None
    x = torch.ones(200, device="cuda")
    assert runtime.cudaMemGetInfo(0) == (2**30 - 1024, 2**30)
    assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    with pytest.raises(torch.cuda.CudaError, match=r"\(2\)"):
        torch.cuda.check_error(2)
    with pytest.raises(PracticeError, match="cudaStreamCreate"):
        runtime.cudaStreamCreate(0)


def test_marks_for_a_profiler_do_nothing(gpu):
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("step {}", 1):
        torch.cuda.nvtx.mark("here")
        assert torch.cuda.nvtx.range_push("inside") == torch.cuda.nvtx.range_pop() == -2
        first, second = torch.cuda.nvtx.range_start("a"), torch.cuda.nvtx.range_start("b")
        assert first != second
        torch.cuda.nvtx.range_end(first)

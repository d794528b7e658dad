"""In and out: what the practice GPU changes is there, and nothing of it stays."""

import asyncio
import gc
import importlib
import inspect
import os
import pdb
import pkgutil
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import practice_gpu as practice
from practice_gpu import PracticeError, PracticeWarning, arrival, practice_gpu, requirements
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.patching import keys
from practice_gpu.patching.patches import Patches
from practice_gpu.session import Session

FOLDER = Path(practice.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("[!_]*.py")
    if path.parent.name != "startup"
)

PLACES = """
    torch torch.Tensor torch.UntypedStorage torch.accelerator torch.accelerator.memory torch.autocast
    torch.autograd torch.backends.cuda torch.backends.cudnn torch.cuda torch.cuda.memory torch.cuda.nccl
    torch.cuda.random torch.cuda.streams torch.cuda.tunable torch.distributed.distributed_c10d torch.export
    torch.fft torch.jit torch.jit._builtins torch.jit._recursive torch.jit._script torch.nn.functional
    torch.nn.parallel._functions torch.utils.data.TensorDataset torch._C torch._C.ScriptFunction torch._VF
    bdb.Bdb concurrent.futures.thread._WorkItem multiprocessing.spawn threading.Thread
    traceback.TracebackException
"""


def world() -> dict[str, Any]:
    """Return all that the practice GPU may change, for comparison by identity."""
    state: dict[str, Any] = {}
    for name in PLACES.split():
        attributes = dict(vars(pkgutil.resolve_name(name)))
        attributes.pop("__warningregistry__", None)
        state[name] = {key: id(value) for key, value in attributes.items()}
    state["excepthook"] = sys.excepthook
    state["serialization"] = list(torch.serialization._package_registry)
    state["dispatch modes"] = list(_get_current_dispatch_mode_stack())
    state["function modes"] = torch._C._len_torch_function_stack()
    state["meta_path"] = list(sys.meta_path)
    state["environment"] = dict(os.environ)
    state["random numbers"] = torch.get_rng_state().tolist()
    state["default device"] = torch.get_default_device()
    state["autocast"] = [
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
    ]
    state["gradients"] = torch.is_grad_enabled()
    state["available"] = torch.cuda.is_available(), torch.accelerator.is_available()
    state["factories"] = {id(function) for function in torch.utils._device._device_constructors()}
    return state


def load(name: str) -> types.ModuleType:
    return import_module(f"practice_gpu.{name}")


def use() -> None:
    """Touch as much of the practice GPU as possible."""
    torch.set_default_device("cuda")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.stream(torch.cuda.Stream()):
        loss = model(torch.rand(2, 3, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    assert repr(loss)


@pytest.fixture(autouse=True)
def warm() -> None:
    """Import and fill what PyTorch imports and fills by itself at the first use."""
    import torch._dynamo

    torch.utils._device._device_constructors()


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_leaving_leaves_nothing_behind(ending):
    before = world()
    if ending is None:
        with practice_gpu(force=True):
            use()
    else:
        with pytest.raises(ending), practice_gpu(force=True):
            use()
            raise ending
    after = world()
    del before["random numbers"], after["random numbers"]  # use() draws some, for the weights
    assert after == before


@pytest.mark.parametrize("name", [name for name in MODULES if hasattr(load(name), "add_patches")])
def test_nothing_is_replaced_before_the_patches_are_applied(name):
    """Until the patches are applied, neither PyTorch nor the practice GPU is another than before."""
    gpu = PracticeGPU(capacity=2**20, count=2)
    patches = Patches(gpu)
    add_patches = load(name).add_patches
    before = world(), state(gpu)
    add_patches(*(patches, gpu)[: len(inspect.signature(add_patches).parameters)])
    assert (world(), state(gpu)) == before
    assert patches._planned and not patches._done


def state(gpu: PracticeGPU) -> list[Any]:
    """Return what a practice GPU knows, and the modules that are imported."""
    parts = [repr(vars(part)) for part in (gpu, gpu.ledger, gpu.log, *gpu.ledger.allocators)]
    return [parts, dict(gpu.device_generators), set(sys.modules)]


def test_a_session_that_is_never_opened_changes_nothing():
    tables = torch.utils._device._device_constructors, torch.overrides.get_default_nowrap_functions
    before = world()
    for table in tables:
        table.cache_clear()  # PyTorch fills them at the first use
    session = Session(2**20, 2)
    assert [table.cache_info().currsize for table in tables] == [0, 0]
    assert world() == before  # which fills the first of them
    session.open()
    try:
        assert [table.cache_info().currsize for table in tables] == [1, 1]
        assert torch.ones(2, device="cuda:1").is_cuda
    finally:
        session.close()
    assert world() == before


def test_entering_and_leaving_draws_no_random_number():
    before = torch.get_rng_state()
    with practice_gpu(force=True):
        torch.rand(5, device="cuda")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_autocast_that_is_still_open_does_not_stay_on_the_cpu():
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    with practice_gpu(force=True):
        autocast = torch.autocast("cuda", dtype=torch.float16)
        autocast.__enter__()
    try:
        assert (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == before
    finally:
        autocast.__exit__(None, None, None)


def test_no_module_keeps_one_of_our_functions():
    tests = str(Path(__file__).parents[1])
    with practice_gpu(force=True):
        use()
    kept = [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if not name.startswith("practice_gpu")
        and not (getattr(module, "__file__", None) or "").startswith(tests)
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if isinstance(value, types.FunctionType)
        and "practice_gpu" in value.__code__.co_filename.replace("\\", "/")
    ]
    assert [name for name in kept if not name.startswith(("gpulesson.", "gpulesson_tools."))] == []


def test_what_torchvision_imports_meanwhile_is_pytorchs(monkeypatch):
    name = "torchvision.transforms._functional_tensor"
    pytest.importorskip(name)
    monkeypatch.delitem(sys.modules, name)
    with practice_gpu(force=True):
        import_module(name)
    assert import_module(name).conv2d is torch.nn.functional.conv2d


def test_tensors_that_outlive_it_are_plain_cpu_tensors():
    with practice_gpu(force=True):
        x = torch.ones(3, device="cuda")
    assert x.device.type == "cpu"
    assert (x + torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_it_is_a_decorator_that_can_be_used_again():
    @practice_gpu(memory="1 MiB", force=True)
    def where(number):
        return torch.full((number,), 1.0, device="cuda").device, torch.cuda.mem_get_info()[1]

    assert where(2) == where(3) == (torch.device("cuda:0"), 2**20)
    assert not torch.cuda.is_available() or torch.cuda.mem_get_info()[1] != 2**20


def test_it_decorates_what_is_not_run_at_once():
    """A generator and a coroutine would run when it is closed again."""

    def device():
        return torch.ones(2, device="cuda:1").device.index

    def generator():
        yield device()
        yield device()
        return 3

    async def coroutine():
        await asyncio.sleep(0)
        return device()

    async def asynchronous():
        yield device()
        await asyncio.sleep(0)
        yield device()

    async def all_of(values):
        return [value async for value in values]

    decorated = practice_gpu(count=2, force=True)
    found = []
    rest = decorated(generator)()
    while True:
        try:
            found.append(next(rest))
        except StopIteration as end:
            found.append(end.value)
            break
    assert found == [1, 1, 3]
    with ThreadPoolExecutor(1) as thread:  # a browser's event loop may be running in this one
        assert thread.submit(lambda: asyncio.run(decorated(coroutine)())).result() == 1
        assert thread.submit(lambda: asyncio.run(all_of(decorated(asynchronous)()))).result() == [1, 1]
    assert decorated(coroutine).__name__ == "coroutine"
    assert arrival.running() is None


def test_it_decorates_no_class():
    with pytest.raises(TypeError, match="Tests is a class: decorate its methods"):

        @practice_gpu(force=True)
        class Tests:
            pass


def test_a_debugger_ends_where_the_learners_line_is():
    with practice_gpu(force=True):
        try:
            torch.ones(2, device="cuda") + torch.ones(2)
        except RuntimeError as error:
            stack, _ = pdb.Pdb().get_stack(None, error.__traceback__)
    assert [frame.f_code.co_filename for frame, _ in stack] == [__file__]


LAST = """
import atexit, torch
import practice_gpu as practice
practice.start(force=True)
x = torch.ones(5, device="cuda")
atexit.register(lambda: print("at exit", (x * 2).device))
class Late:
    def __del__(self):
        print("finalised", x.device, (x.cumsum(0).logical_not().any()).item())
late = Late()
late.itself = late
"""


@pytest.mark.slow
def test_objects_may_be_finalised_after_everything(tmp_path):
    """PyTorch could not call the operator mode then: it imports what it calls."""
    script = tmp_path / "script.py"
    script.write_text(LAST, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["at exit cuda:0", "finalised cuda:0 False"], done.stderr
    assert done.stderr == ""


def test_the_inner_one_is_the_outer_one():
    with practice_gpu(force=True) as outer:
        with practice_gpu(memory="1 MiB", count=2, force=True) as inner:
            assert inner is outer
        assert torch.ones(2, device="cuda").is_cuda


def test_start_and_stop():
    gpu = practice.start(memory="2 MiB", force=True)
    try:
        assert torch.ones(2, device="cuda").is_cuda
        assert practice.start(force=True) is gpu
        assert gpu.memory().capacity == 2 * 2**20
    finally:
        practice.stop()
    assert not hasattr(torch.cuda.is_available, "__wrapped__")
    practice.stop()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"memory": ["8 QiB", "lots", "-1 GiB", "", "12 bytes"]}, ValueError, r"memory is .*expected"),
        ({"memory": [100]}, ValueError, "at least one block"),
        ({"memory": [None, 1.5, True, b"8 GiB"]}, TypeError, 'such as "8 GiB"'),
        ({"count": [0, -1, 17, 1.0, "2", True]}, ValueError, r"count is .*from 1 to 16"),
    ],
)
def test_options_that_are_wrong(values, error, message):
    for name, wrong in values.items():
        for value in wrong:
            with pytest.raises(error, match=message):
                practice_gpu(**{name: value})


@pytest.fixture
def real_gpu(monkeypatch):
    """A machine that says it has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    real = types.SimpleNamespace(name="NVIDIA Real")
    monkeypatch.setattr(torch.cuda, "_get_device_properties", lambda index: real, raising=False)
    for name, value in {
        "memory_stats": {"allocation.all.allocated": 3},
        "memory_allocated": 512,
        "max_memory_allocated": 1024,
        "memory_reserved": 2048,
        "mem_get_info": (1, 4096),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device=None, value=value: value)


def test_with_a_real_gpu_it_steps_aside_and_says_so(real_gpu):
    before = world()
    with pytest.warns(PracticeWarning, match="NVIDIA Real is present") as seen:
        with practice_gpu() as gpu:
            assert world() == before
        practice.start()
        practice.stop()
    assert [warning.filename for warning in seen] == [__file__] * 2
    assert not gpu.simulated
    assert gpu.events == ()
    assert "nothing" in gpu.report()
    assert gpu.memory() == practice.Memory(512, 1024, 2048, 4096, 3)
    gpu.clear_events()


def test_force_simulates_although_a_real_gpu_is_present(real_gpu):
    with practice_gpu(force=True) as gpu:
        assert gpu.simulated
        assert torch.cuda.get_device_name() == "Practice GPU (simulated on the CPU)"
        assert torch.ones(2, device="cuda").tolist() == [1.0, 1.0]
    assert torch.cuda.get_device_name() == "NVIDIA Real"


@pytest.mark.gpu(real=True)
def test_on_a_machine_with_a_gpu():
    with pytest.warns(PracticeWarning), practice_gpu() as gpu:
        assert not gpu.simulated
        assert torch.ones(2, device="cuda").untyped_storage().device.type == "cuda"
    with practice_gpu(force=True) as gpu:
        x = torch.ones(2, device="cuda")
        assert gpu.simulated
    assert x.device.type == "cpu"
    assert torch.ones(2, device="cuda").is_cuda


def test_what_a_pytorch_lacks_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "native_functions_path", lambda: tmp_path / "native_functions.yaml")
    monkeypatch.delattr(torch._C, "_group_tensors_by_device_and_dtype")
    monkeypatch.delattr(torch._C, "_has_storage")
    before = world()
    with pytest.raises(PracticeError) as caught, practice_gpu(force=True):
        pytest.fail("it was entered")
    for name in ("_group_tensors_by_device_and_dtype", "_has_storage", "native_functions.yaml"):
        assert name in str(caught.value)
    assert world() == before


def test_every_private_name_that_the_sources_use_is_checked():
    used = set()
    for path in Path(practice.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"(?<![\w.\"])torch(?:\.\w+)*\._[a-zA-Z]\w*(?:\.\w+)*", text))
        for module, names in re.findall(r"^from (torch[\w.]*) import (.*)$", text, flags=re.MULTILINE):
            used |= {f"{module}.{name.split(' as ')[0]}" for name in names.split(", ")}
    private = {name for name in used if re.search(r"\._[a-zA-Z]", name)}
    checked = [f"{name}." for name in requirements.NAMES]
    covered = {
        name
        for name in private
        if any(f"{name}.".startswith(known) or known.startswith(f"{name}.") for known in checked)
    }
    assert len(private) > 15
    assert private == covered


def test_a_name_that_two_handlers_want_is_handled_by_both():
    owner = types.SimpleNamespace(name=lambda: [])
    original = owner.name
    patches = Patches("gpu")
    for handler in (1, 2):
        patches.handle(owner, "name", lambda gpu, inner, number=handler: [number, *inner()])
    patches.apply()
    assert owner.name() == [2, 1]
    patches.undo()
    assert owner.name is original


@pytest.mark.slow
@pytest.mark.thorough
def test_a_name_that_was_never_there_is_noticed_before_it_is_imported(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.utils._device, torch.overrides\n"
        "del torch._C._storage_address, torch.utils._device.DeviceContext\n"
        "from practice_gpu import PracticeError, practice_gpu\n"
        "try:\n"
        "    practice_gpu(force=True).__enter__()\n"
        "except PracticeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert "lacks: torch._C._storage_address (to find" in done.stdout, done.stderr
    assert "torch.utils._device.DeviceContext (to find" in done.stdout


def test_if_one_replacement_fails_none_is_made():
    before = world()
    patches = Patches()
    patches.set(torch.cuda, "is_available", lambda: True)
    patches.set(int, "real", 3)  # a class that cannot be changed
    with pytest.raises(TypeError):
        patches.apply()
    assert world() == before


def test_threads_started_meanwhile_see_the_practice_gpu():
    found = []

    def work():
        x = torch.ones(3, device="cuda")
        found.append((x * 2).device)
        try:
            x + torch.ones(3)
        except RuntimeError as error:
            found.append(str(error))

    with practice_gpu(force=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found[0] == torch.device("cuda:0")
    assert "at least two devices" in found[1]


def products() -> list[str]:
    made = torch.zeros(2, device="cuda").sum()
    x = torch.ones(2, 2).cuda()
    return [made.device.type, (x @ x).device.type]


def test_threads_started_before_see_it_when_they_use_a_device():
    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        assert executor.submit(int).result() == pool.apply(int) == 0  # their threads are there now
        for _ in range(2):
            with practice_gpu(force=True):
                x = torch.ones(2, device="cuda")
                assert executor.submit(lambda x=x: (x * 2).device.type).result() == "cuda"
                assert executor.submit(products).result() == pool.apply(products) == ["cuda", "cuda"]
                assert products() == ["cuda", "cuda"]
            for run in (lambda work: executor.submit(work).result(), pool.apply):
                assert run(lambda: torch.ones(2).sum().device.type) == "cpu"


def test_a_thread_that_outlives_it_goes_on_without():
    ready, go, found = threading.Event(), threading.Event(), []

    def work():
        x, y = torch.ones(3, device="cuda"), torch.ones(3)
        found.append(x.device.type)
        ready.set()
        go.wait(1200)
        found.append((x + y).tolist())
        found.append(x.device.type)

    with practice_gpu(force=True):
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(1200)
    go.set()
    thread.join(60)
    assert found == ["cuda", [2.0, 2.0, 2.0], "cpu"]


def of_this_thread() -> tuple[Any, ...]:
    """Return what a practice GPU may change in one thread only."""
    key = keys.KEY is not None and torch._C._dispatch_tls_is_dispatch_key_included(keys.KEY)
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    return key, modes, torch.is_autocast_enabled("cpu"), torch.get_default_device()


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run functions in a new thread each, all at once; return their results, or raise one's error."""
    with ThreadPoolExecutor(len(works)) as executor:
        return [each.result(60) for each in [executor.submit(work) for work in works]]


def test_threads_that_open_it_at_once_share_it_and_leave_nothing_behind():
    before, interval = world(), sys.getswitchinterval()
    start = threading.Barrier(2)

    def work() -> list[str]:
        found = []
        own = of_this_thread()
        for turn in range(8):
            start.wait(60)
            with practice_gpu(force=True):
                x = torch.ones(3, device="cuda")
                with pytest.raises(RuntimeError, match="at least two devices"):
                    x + torch.ones(3)
                found.append((x * 2).device.type)
                if turn % 2:
                    torch.set_default_device("cuda")
            assert of_this_thread() == own
        return found

    sys.setswitchinterval(1e-5)
    try:
        assert in_threads(work, work) == [["cuda"] * 8] * 2
    finally:
        sys.setswitchinterval(interval)
    assert world() == before


@pytest.mark.parametrize("first_to_close", ["the first", "the second"])
def test_it_goes_away_with_the_last_thread_that_has_opened_it(first_to_close):
    before = world()
    second_is_in, one_is_out = threading.Event(), threading.Event()
    ready, opened = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def first() -> None:
        own = of_this_thread()
        ready.wait(60)
        with practice_gpu(force=True) as found["first"]:
            opened.set()
            (second_is_in if first_to_close == "the first" else one_is_out).wait(60)
            found["devices"] = [products()]
        assert of_this_thread() == own
        one_is_out.set()

    def second() -> None:
        own = of_this_thread()
        ready.set()
        opened.wait(60)
        with practice_gpu(force=True) as found["second"]:
            second_is_in.set()
            if first_to_close == "the first":
                one_is_out.wait(60)
            found["products"] = products()
        assert of_this_thread() == own
        one_is_out.set()

    in_threads(first, second)
    assert found["first"] is found["second"]
    assert found["devices"] == [["cuda", "cuda"]]
    assert found["products"] == ["cuda", "cuda"]
    assert world() == before


def test_another_thread_cannot_ask_for_another_one():
    with practice_gpu(memory="4 MiB", force=True) as gpu:

        def other() -> None:
            with practice_gpu(memory="4096 KiB", force=True) as same:
                assert same is gpu
            with practice_gpu(memory="8 MiB", count=2, force=True):
                pytest.fail("it was entered")

        with pytest.raises(PracticeError) as caught:
            in_threads(other)
        assert torch.ones(2, device="cuda").is_cuda
    assert str(caught.value) == (
        "another thread has opened practice_gpu(memory='4.00 MiB', count=1), and this one asks for "
        "practice_gpu(memory='8 MiB', count=2, force=True): all threads of a process share one practice "
        "GPU. Give both the same memory and count, or open this one after the other has been closed"
    )


def test_the_outer_one_may_be_closed_before_the_inner_one():
    @practice_gpu(force=True)
    def generator():
        while True:
            yield torch.ones(2, device="cuda").sum().device.type

    before = world()
    outer, inner = generator(), generator()
    assert [next(outer), next(inner)] == ["cuda", "cuda"]
    outer.close()
    assert next(inner) == "cuda"
    inner.close()
    assert world() == before


def test_another_thread_may_close_it():
    own, before = of_this_thread(), world()
    context = practice_gpu(force=True)
    context.__enter__()
    in_threads(lambda: context.__exit__(None, None, None))
    assert torch.ones(2).sum().device.type == "cpu"  # with the first operator, the thread has left it, too
    if keys.KEY is None:  # in older PyTorch, its mode stays on the thread's stack, asleep
        (mode,) = _get_current_dispatch_mode_stack()
        assert mode.asleep
        mode.__exit__(None, None, None)
    assert (of_this_thread(), world()) == (own, before)


@pytest.mark.parametrize("name", ["open", "_open_mode"])
def test_what_fails_while_it_is_opened_leaves_nothing_behind(name, monkeypatch):
    before, own, method = world(), of_this_thread(), getattr(Session, name)

    def failing(session: Session) -> None:
        method(session)
        if name == "open":
            session.close()
        raise MemoryError

    monkeypatch.setattr(Session, name, failing)
    with pytest.raises(MemoryError), practice_gpu(force=True):
        pytest.fail("it was entered")
    monkeypatch.undo()
    assert torch.ones(2).sum().device.type == "cpu"
    assert (of_this_thread(), world()) == (own, before)
    with practice_gpu(force=True):
        assert products() == ["cuda", "cuda"]
    assert world() == before


def test_it_may_be_closed_while_another_thread_imports_a_part_of_pytorch(monkeypatch, tmp_path):
    """Meanwhile nothing is replaced: afterwards nothing must be put in place again."""
    before = world()
    (tmp_path / "slowly.py").write_text("import builtins\nbuiltins.go()\n")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    executing, closed = threading.Event(), threading.Event()

    def go() -> None:
        executing.set()
        closed.wait(60)

    monkeypatch.setattr("builtins.go", go, raising=False)
    with ThreadPoolExecutor(1) as executor:
        with practice_gpu(force=True):
            importing = executor.submit(import_module, "torch.slowly")
            assert executing.wait(60)
        closed.set()
        importing.result(60)
    monkeypatch.undo()
    del sys.modules["torch.slowly"], torch.slowly
    assert world() == before


def test_a_library_imported_meanwhile_finds_the_functions_that_it_implements():
    with practice_gpu(force=True):
        implemented = {torch.zeros_like: "zeros"}

        class Many:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return implemented.get(func, NotImplemented)

        assert torch.zeros_like(Many()) == "zeros"
        with pytest.raises(TypeError, match="ones_like"):
            torch.ones_like(Many())


@pytest.mark.slow
def test_closed_practice_gpus_are_forgotten():
    def kept():
        gc.collect()
        return sum(isinstance(each, Session) for each in gc.get_objects())

    before = kept()  # other tests' threads may keep theirs
    for _ in range(4):
        with practice_gpu(force=True):
            torch.ones(2, device="cuda")
    assert kept() <= before + 1  # a thread keeps its latest


def test_names_imported_meanwhile_are_pytorchs_afterwards(tmp_path, monkeypatch):
    (tmp_path / "imported_meanwhile.py").write_text(
        "from torch import zeros\nfrom torch.cuda import Stream\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with practice_gpu(force=True):
        module = importlib.import_module("imported_meanwhile")
        assert module.zeros(2, device="cuda").is_cuda
    assert module.zeros is torch.zeros
    assert module.Stream is torch.cuda.Stream


def test_names_imported_before_are_followed():
    module = type(sys)("somebodys_module")
    exec("from torch import tensor, zeros\nfrom torch.cuda import is_available, device_count", vars(module))
    sys.modules["somebodys_module"] = module
    try:
        before = dict(vars(module))
        with practice_gpu(count=3, force=True):
            assert module.is_available()
            assert module.device_count() == 3
            assert module.tensor([1.0], device="cuda").is_cuda
            assert module.zeros(2, device="cuda:2").device.index == 2
        assert {name: vars(module)[name] for name in before} == before
    finally:
        del sys.modules["somebodys_module"]


def test_tables_that_pytorch_fills_inside_are_filled_with_its_own():
    tables = torch.utils._device._device_constructors, torch.overrides.get_default_nowrap_functions
    for table in tables:
        table.cache_clear()
    with practice_gpu(force=True), torch.device("cuda"):
        torch.zeros(1)
        tables[1]()
    assert torch.zeros in tables[0]()
    assert torch.Tensor.grad.__get__ in tables[1]()
    with torch.device("meta"):
        assert torch.zeros(1).device.type == "meta"


@pytest.mark.slow
@pytest.mark.thorough
def test_an_optimizer_made_first_inside_does_not_teach_the_compiler_our_functions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from practice_gpu import practice_gpu\n"
        "with practice_gpu(force=True):\n"
        "    assert 'torch._dynamo' not in sys.modules\n"
        "    torch.optim.SGD(torch.nn.Linear(2, 2, device='cuda').parameters(), lr=1.0)\n"
        "    assert 'torch._dynamo' in sys.modules\n"
        "from torch._dynamo.device_interface import CudaInterface\n"
        "assert CudaInterface.Event is torch.cuda.Event, CudaInterface.Event\n"
        "assert CudaInterface.device is torch.cuda.device\n"
    )
    subprocess.run([sys.executable, script], check=True)

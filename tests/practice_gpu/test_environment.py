"""Other processes: what a program that is started meanwhile finds, and that nothing of it stays."""

import importlib
import importlib.util
import os
import subprocess
import sys
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from processes import run_script

import practice_gpu as practice
from practice_gpu import PracticeWarning, arrival, practice_gpu
from practice_gpu.processes import environment

STARTUP = str(Path(practice.__file__).parent / "startup")


@pytest.mark.parametrize("before", [None, "", "a", os.pathsep.join(["a", "b"])])
def test_the_environment_is_as_before(monkeypatch, before):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    found = dict(os.environ)
    with practice_gpu(memory="1 MiB", count=2, force=True):
        paths = os.environ["PYTHONPATH"].split(os.pathsep)
        assert paths == [STARTUP, *filter(None, (before or "").split(os.pathsep))]
        assert os.environ[environment.VARIABLE] == environment.settings(2**20, 2, force=True)
        assert environment.without_practice_gpu(os.environ).get("PYTHONPATH") == (before or None)
    assert dict(os.environ) == found


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_program_sets_itself_stays_without_our_folder(monkeypatch, keeps):
    monkeypatch.setenv("PYTHONPATH", "first")
    with practice_gpu(force=True):
        before = os.environ["PYTHONPATH"] if keeps else "mine"
        os.environ["PYTHONPATH"] = os.pathsep.join([before, "second"])
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["first" if keeps else "mine", "second"])
    assert environment.VARIABLE not in os.environ


def test_what_multiprocessing_hands_over_brings_it_along():
    """As in a child: unpickled where there is none. A fork server may be older than the practice GPU."""
    with practice_gpu(memory="1 MiB", count=2, force=True):
        data = spawn.get_preparation_data("child")
        del data["authkey"]  # which multiprocessing pickles for a child alone
        handed_over = bytes(ForkingPickler.dumps(data))
    assert arrival.running() is None
    try:
        assert ForkingPickler.loads(handed_over)["name"] == "child"
        assert torch.cuda.device_count() == 2
        assert torch.cuda.mem_get_info()[1] == 2**20
    finally:
        arrival.end()
    assert arrival.running() is None


CHILD = """
import os, sys
arrival = "practice_gpu.arrival"
print("torch" in sys.modules, "practice_gpu" in sys.modules, arrival in sys.modules)
print(getattr(sys, "theirs", None), any("startup" in path for path in sys.path))
"""


@pytest.mark.parametrize("theirs", [False, True], ids=["no sitecustomize", "their own sitecustomize"])
def test_a_program_without_pytorch_is_left_alone(tmp_path, theirs):
    if theirs:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = 'kept'\n", encoding="utf-8")
    surroundings = environment.with_practice_gpu(
        environment.settings("1 MiB", 1, force=True), {**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    done = subprocess.run([sys.executable, "-c", CHILD], env=surroundings, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False False True", f"{'kept' if theirs else None} False"], (
        done.stderr
    )
    assert done.stderr == ""


def test_a_program_with_a_torch_of_its_own_is_left_alone(tmp_path):
    (tmp_path / "torch.py").write_text("lamp = 'lit'\n", encoding="utf-8")
    (tmp_path / "program.py").write_text("import torch\nprint(torch.lamp)\n", encoding="utf-8")
    surroundings = environment.with_practice_gpu(environment.settings("1 MiB", 1, force=True), os.environ)
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("lit\n", "")


@pytest.mark.slow
def test_every_kind_of_process_has_the_same_gpus(tmp_path):
    """Its own memory, too; and afterwards none of them."""
    (tmp_path / "work.py").write_text(
        "import torch\n"
        "def look(way):\n"
        "    x, memory = torch.ones(3, device='cuda:1'), torch.cuda.mem_get_info()[1]\n"
        "    print(way, x.device, torch.cuda.memory_allocated(1), memory, flush=True)\n",
        encoding="utf-8",
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, subprocess, sys\n"
        "from practice_gpu import practice_gpu  # before PyTorch, with which it comes there\n"
        "import work\n"
        "def ways():\n"
        "    for way in ('spawn', 'forkserver'):\n"
        "        process = multiprocessing.get_context(way).Process(target=work.look, args=(way,))\n"
        "        process.start(), process.join()\n"
        "    subprocess.run([sys.executable, '-c', 'import work; work.look(\"subprocess\")'])\n"
        "if __name__ == '__main__':\n"
        "    with practice_gpu(memory='1 MiB', count=2, force=True):\n"
        "        work.torch.ones(1000, device='cuda:1')\n"
        "        ways()\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    ways = ("spawn", "forkserver", "subprocess")
    assert done.stdout.splitlines() == [f"{way} cuda:1 512 1048576" for way in ways], done.stderr


SENDS = """
import torch, torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.full((2,), float(i * i), device="cuda")

def work(tasks, results):
    x = tasks.get()
    x += 1
    results.put((str(x.device), x, x[1:], torch.zeros(0, device="cuda"), torch.cuda.memory_allocated()))
    tasks.get()

if __name__ == "__main__":
    print([(str(batch.device), batch.sum().item()) for batch in DataLoader(Squares(), 2, num_workers=1)])
    context = torch.multiprocessing.get_context("fork")
    tasks, results = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(tasks, results))
    process.start()
    x = torch.ones(3, device="cuda")
    tasks.put(x)
    device, same, part, empty, allocated = results.get()
    print(device, x.tolist(), allocated)
    same += 1
    print(same.device, x.tolist(), part.tolist(), empty.device)
    tasks.put(None)
    process.join()
    print(process.exitcode)
"""


@pytest.mark.slow
def test_tensors_go_from_process_to_process(warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SENDS.replace("DataLoader(Squares(), 2, num_workers=1)", "()"), encoding="utf-8")
    done = run_script(warm, script, tmp_path, practice=True)
    assert done.stdout.splitlines() == [
        "[]",
        "cuda:0 [2.0, 2.0, 2.0] 512",
        "cuda:0 [3.0, 3.0, 3.0] [3.0, 3.0] cuda:0",
        "0",
    ], done.stderr


@pytest.mark.slow
def test_workers_send_batches_from_the_gpu(warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SENDS.partition("    context =")[0], encoding="utf-8")
    done = run_script(warm, script, tmp_path, practice=True)
    assert done.stdout == "[('cuda:0', 2.0), ('cuda:0', 26.0)]\n", done.stderr


# -- the practice GPU comes with PyTorch: nothing before its import, everything after it

SETTINGS = environment.settings("1 MiB", 2, force=True)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that is not imported yet, and what was called after its import."""
    (tmp_path / "late.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late"
    sys.modules.pop("late", None)


def test_it_waits_for_the_import(module):
    called = []
    waiting = arrival._AfterImport(module, lambda: called.append(sys.modules[module].value))
    sys.meta_path.insert(0, waiting)
    assert importlib.util.find_spec(module) and importlib.util.find_spec(module)  # to look is not to import
    assert called == [] and waiting in sys.meta_path
    importlib.import_module(module)
    assert called == [1] and waiting not in sys.meta_path
    importlib.reload(sys.modules[module])
    assert called == [1]


def test_two_may_wait_and_one_may_give_up(module):
    called = []
    waiting = [arrival._AfterImport(module, lambda name=name: called.append(name)) for name in "abc"]
    sys.meta_path[:0] = waiting
    waiting[1].__exit__()
    importlib.import_module(module)
    assert sorted(called) == ["a", "c"]
    assert not set(waiting) & set(sys.meta_path)


def test_where_pytorch_is_there_it_starts_at_once():
    assert arrival.start_with_torch(SETTINGS)
    try:
        assert torch.cuda.device_count() == 2
        assert not arrival.start_with_torch(environment.settings("8 GiB", 1, force=True))
        assert torch.cuda.device_count() == arrival.running().count == 2
    finally:
        arrival.end()
    assert arrival.running() is None
    arrival.end()


def test_beside_a_real_gpu_it_steps_aside_for_other_processes_too(monkeypatch):
    begun = environment.with_practice_gpu(SETTINGS, {"PYTHONPATH": "theirs"})
    monkeypatch.setenv(environment.VARIABLE, begun[environment.VARIABLE])
    monkeypatch.setenv("PYTHONPATH", begun["PYTHONPATH"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Real")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.warns(PracticeWarning, match="NVIDIA Real is present"):
        arrival.start_with_torch(environment.settings("1 MiB", 1, force=False))
    assert environment.VARIABLE not in os.environ
    assert os.environ["PYTHONPATH"] == "theirs"
    arrival.end()

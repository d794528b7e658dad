"""The practice GPU comes with PyTorch: nothing before its import, everything after it."""

import importlib
import importlib.util
import sys

import pytest
import torch

from practice_gpu import arrival
from practice_gpu.interface import PracticeWarning
from practice_gpu.processes import environment

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
    assert environment.VARIABLE not in environment.os.environ
    assert environment.os.environ["PYTHONPATH"] == "theirs"
    arrival.end()

from __future__ import annotations

import statistics
import time

import pytest
import torch

from gpulesson import timing
from gpulesson.device import DeviceError
from gpulesson.timing import Timing, measure, synchronize


@pytest.fixture
def journal(monkeypatch):
    """The order of waits and clock readings; the clock advances by 1, 2, 3, … s."""
    events: list[str] = []
    ticks = (n * (n + 1) / 2 for n in range(1000))

    def clock() -> float:
        events.append("clock")
        return next(ticks)

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(timing, "synchronize", lambda device: events.append(f"wait for {device}"))
    return events


def test_it_warms_up_and_waits_before_both_clock_readings(journal):
    measure(lambda: journal.append("work"), device="cpu", warmup=2, repeats=3)
    run = ["wait for cpu", "clock", "work", "wait for cpu", "clock"]
    assert journal == ["work", "work"] + run * 3


def test_median_and_quartiles_are_those_of_the_runs(journal):
    result = measure(lambda: None, device="cpu", warmup=0, repeats=9)
    expected = [float(2 * i + 1) for i in range(9)]  # from one reading to the next of the clock above
    assert list(result.times) == expected
    assert result.median == statistics.median(expected)
    assert result.quartiles == (5.0, 13.0)  # of 1, 3, …, 17


def test_a_single_run_is_its_own_spread():
    result = measure(lambda: None, device="cpu", warmup=0, repeats=1)
    assert result.quartiles == (result.median, result.median) == result.times * 2


@pytest.mark.parametrize(("warmup", "repeats"), [(0, 0), (-1, 5)])
def test_impossible_numbers_of_runs_are_refused(warmup, repeats):
    with pytest.raises(ValueError, match=r"repeats=0: need at least 1|warmup=-1: need 0 or more"):
        measure(lambda: None, device="cpu", warmup=warmup, repeats=repeats)


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (2.5e-3, "2.5 ms"), (2.5e-6, "2.5 µs"), (2.5e-8, "0.025 µs")]
)
def test_text_says_time_spread_device_version_and_threads(seconds, text):
    device = torch.device("cuda", 0)
    result = Timing(seconds, (seconds / 2, seconds * 2), (seconds,) * 20, device, "NVIDIA H200", "2.15.0", 8)
    said = str(result)
    assert said.startswith(f"{text} (half of 20 runs took ")
    for fact in ("cuda:0", "NVIDIA H200", "torch 2.15.0", "8 CPU threads"):
        assert fact in said


def test_it_names_what_it_ran_on():
    result = measure(lambda: None, device="cpu")
    assert result.device == torch.device("cpu")
    assert (result.torch_version, result.threads) == (torch.__version__, torch.get_num_threads())
    assert result.device_name


@pytest.mark.parametrize("name", ["cpu", "meta"])
def test_nothing_to_wait_for(name, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: pytest.fail("there is no queue"))
    synchronize(name)


def test_an_accelerator_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    synchronize("cuda:1")
    assert waited == [torch.device("cuda", 1)]


@pytest.mark.parametrize("use", [synchronize, lambda device: measure(lambda: None, device=device)])
def test_a_name_that_means_nothing(use):
    with pytest.raises(
        DeviceError, match=r"'cdua'.* is not the name of a device\. Names are cpu.*On this machine: cpu"
    ):
        use("cdua")


def test_a_device_that_is_not_there_is_found_out_before_the_work():
    with pytest.raises(DeviceError, match=r"'cuda:77'.*is not there"):
        measure(lambda: pytest.fail("there is nothing to time"), device="cuda:77")


@pytest.mark.gpu(real=True)
def test_the_clock_is_never_read_while_a_gpu_is_at_work(monkeypatch):
    a = torch.randn(4096, 4096, device="cuda")
    done = torch.cuda.Event()
    idle = []

    def work() -> None:
        for _ in range(20):
            a @ a
        done.record()

    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: idle.append(done.query()) or clock())
    work()
    assert not done.query(), "the work must last longer than queueing it, or this test shows nothing"
    measure(work, device="cuda", warmup=1, repeats=3)
    assert idle == [True] * 2 * 3

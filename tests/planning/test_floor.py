from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from shapes import published_step

from gpulesson_tools.planning.hardware import gpus
from gpulesson_tools.planning.hardware.gpus import Gpu
from gpulesson_tools.planning.recording.record import Operation, Place, Record
from gpulesson_tools.planning.speed.floor import ARITHMETIC, LAUNCHES, TRAFFIC, floor, rounded_down

GPU = Gpu("Toy", (), 2**30, 1e9, {"float32": 1e9, "float16": 4e9}, 1000)


def operation(name="mm", flop=0, nbytes=0, launches=1, dtype="float32", step=0, least=None):
    least = flop if least is None else least
    return Operation(name, dtype, flop, least, nbytes, launches, step, "forward", Place())


def record(*operations: Operation, steps: int = 1) -> Record:
    return Record(operations=list(operations), ends=[0] * steps)


def test_each_operator_takes_the_longer_of_its_arithmetic_and_its_bytes():
    found = floor(
        record(
            operation(flop=3_000_000, nbytes=1_002_000),  # 3 ms and, without 2 × 1000 in the cache, 1 ms
            operation("add", nbytes=5_002_000),  # 5 ms
            operation("mm", flop=8_000_000, dtype="float16"),  # 2 ms
        ),
        GPU,
    )
    assert found.kernels == pytest.approx(10e-3)
    assert (found.arithmetic, found.traffic) == (pytest.approx(5e-3), pytest.approx(6e-3))
    assert (found.launches, found.launching) == (3, pytest.approx(4.5e-6))
    assert found.seconds == found.kernels


@pytest.mark.parametrize(
    ("operations", "bound", "seconds"),
    [
        ([operation(flop=6_000_000), operation(nbytes=5_002_000)], ARITHMETIC, 11e-3),
        ([operation(flop=6_000_000), operation(nbytes=7_002_000)], TRAFFIC, 13e-3),
        ([operation(flop=6_000), operation(nbytes=9_000)] * 100, TRAFFIC, 100 * 13e-6),
        ([operation(flop=600), operation(nbytes=2_900)] * 100, LAUNCHES, 200 * 1.5e-6),
    ],
)
def test_which_of_the_three_binds(operations, bound, seconds):
    found = floor(record(*operations), GPU)
    assert (found.bound, found.seconds) == (bound, pytest.approx(seconds))


def test_what_quick_algorithms_leave_out_does_not_count():
    assert floor(record(operation(flop=4_000_000, least=1_000_000)), GPU).seconds == pytest.approx(1e-3)


def test_bytes_that_fit_twice_into_the_cache_cost_nothing():
    assert floor(record(operation(nbytes=2_000)), GPU).traffic == 0
    assert floor(record(operation(nbytes=3_000)), GPU).traffic == pytest.approx(1e-6)


def test_the_step_is_the_last_that_the_optimizer_has_ended():
    two = record(operation(flop=1_000_000), operation(flop=2_000_000, step=1), operation(step=2), steps=2)
    assert floor(two, GPU).seconds == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="no step: the optimizer took none"):
        floor(record(operation(), steps=0), GPU)
    with pytest.raises(ValueError, match="no operator ran on the device in step 0"):
        floor(record(), GPU)


def test_the_conditions_of_the_bound():
    text = "\n".join(floor(record(operation()), gpus.find("T4")).conditions)
    for word in "torch.compile", "CUDA graphs", "Winograd", "last-level cache", "1.5 µs", "clock", "waits":
        assert word in text


def test_conditions_name_unchecked_columns_and_types_without_a_rate():
    unseen = replace(GPU, name="New", unseen=("memory_gib", "bandwidth", "cache"))
    found = floor(record(operation(flop=10**9, nbytes=3_000, dtype="complex64")), unseen)
    assert found.arithmetic == 0
    assert any("Of New, bandwidth, cache were not seen in any document" in each for each in found.conditions)
    assert any("complex64 is not counted" in each for each in found.conditions)
    assert not any("any document" in each for each in floor(record(operation()), GPU).conditions)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.999e-3, "1.9 ms"),
        (0.3052, "300 ms"),
        (12.34, "12 s"),
        (4.56e-5, "45 µs"),
        (1e-3, "1 ms"),
        (0, "0 ms"),
    ],
)
def test_times_are_rounded_down(seconds, text):
    assert rounded_down(seconds) == text


# -- published step times: none may be below its floor

_LINES = Path(__file__).with_name("published_times.csv").read_text("utf-8").splitlines()
PUBLISHED = list(csv.DictReader(line for line in _LINES if not line.startswith("#")))
QUICK = {("resnet50", "T4"), ("resnet18", "RTX 3090"), ("vit_b_32", "RTX 5090")}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, marks=() if (row["model"], row["gpu"]) in QUICK else [pytest.mark.slow, pytest.mark.thorough]
        )
        for row in PUBLISHED
    ],
    ids=lambda row: "-".join((row["model"], row["gpu"], row["task"], row["batch"], row["precision"])),
)
def test_no_published_time_is_below_its_floor(row):
    step = published_step(row["model"], int(row["batch"]), row["task"], row["precision"])
    found = floor(step, gpus.find(row["gpu"]))
    ratio = float(row["milliseconds"]) / (found.seconds * 1e3)
    print(f"{ratio:.2f}: {row['milliseconds']} ms, bound by {found.bound}")
    assert ratio >= 1
    if int(row["batch"]) >= 32:
        assert ratio < 5, "a floor so low tells nothing"

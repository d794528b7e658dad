"""Exercise 1: one script for every machine."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.rules.devices import HARD_CODED_CUDA
from gpulesson.exercises.trace import Trace

GPU_LEFT_IDLE = Diagnosis(
    "gpu-left-idle",
    "A program that always takes the CPU runs everywhere, and is slow where it need not be.",
    "Let the program choose: the accelerator where there is one, else the CPU.",
)


def any_machine(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare a run with a GPU and one without."""
    if trace.error is None and not trace.device_memory:
        line = source_text.literal_device(source.lines, "cpu")
        what = f"There was a GPU ({trace.device}), and nothing was ever put into its memory."
        yield source.failure(GPU_LEFT_IDLE, line, what)
    stopped = trace.without_gpu.error if trace.without_gpu is not None else None
    if stopped is not None:
        line = source_text.literal_device(source.lines, "cuda") or stopped.site.line
        message = stopped.message.strip().split("\n")[0]
        what = f"On a machine without a GPU, line {stopped.site.line} stops it: {message[:160]}"
        yield source.failure(HARD_CODED_CUDA, line, what)


EXERCISE = Exercise(
    name="01_any_machine",
    lesson="Is there a GPU?",
    title="One script for every machine",
    difficulty="easy",
    hints=(
        "Only one line decides on the device. Which?",
        "torch.cuda.is_available() answers True or False. An accelerator need not be CUDA, though.",
        "gpulesson.device.choose_device() returns the accelerator if there is one, else the CPU.",
    ),
    rules=(*COMMON, any_machine),
    without_gpu=True,
)

"""Exercise 1: one script for every machine."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import causes, source_text
from gpulesson.exercises.rules.devices import HARD_CODED_CUDA
from gpulesson.exercises.trace import Trace

GPU_LEFT_IDLE = Diagnosis(
    "gpu-left-idle",
    "A program that always takes the CPU runs everywhere, but never uses a GPU.",
    "Let the program choose: from gpulesson.device import choose_device, then device = choose_device().",
)


BRANCHES_SWAPPED = Diagnosis(
    "branches-swapped",
    "The two devices are the wrong way round: with a GPU this takes the CPU, and without one it asks for "
    "a GPU.",
    'Swap the two: "cuda" if torch.cuda.is_available() else "cpu".',
)
WORK_LEFT_OUT = Diagnosis(
    "work-left-out",
    "The script should compute and print on every machine, with or without a GPU.",
    "First choose the device, then compute the scores on it, outside of any if: scores = images @ weights.T.",
)

_SCORES = 64 * 10


def any_machine(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare a run with a GPU and one without."""
    devices = {device for size, device, _ in trace.products if size == _SCORES}
    without = trace.without_gpu
    stopped = without.error if without is not None else None
    swapped = source_text.swapped_branches(source.lines)
    if swapped and (devices == {"cpu"} or stopped is not None):
        what = "There was a GPU, but the scores were computed on the CPU."
        yield source.failure(BRANCHES_SWAPPED, swapped, what)
        return
    for _, _, site in trace.products:
        if site.file and site.file != trace.program:
            yield source.failure(causes.ANOTHER_FILE, 0, "The scores were computed by another file.")
            return
    if not devices:
        yield source.failure(WORK_LEFT_OUT, 0, "The scores, 64 × 10 numbers, were not computed.")
    elif devices == {"cpu"}:
        line = source_text.literal_device(source.lines, "cpu")
        line = line or source_text.first_line(source.lines, r"device\w*\s*(:.*)?=[^=]")
        what = "There was a GPU, but the scores were computed on the CPU."
        yield source.failure(GPU_LEFT_IDLE, line, what)
    if stopped is not None:
        line = source_text.literal_device(source.lines, "cuda") or stopped.site.line
        message = stopped.message.strip().split("\n")[0]
        what = f"Run again without a GPU, it stopped on {source.where(stopped.site.line)}: {message[:160]}"
        yield source.failure(HARD_CODED_CUDA, line, what)
    elif without is None:
        yield source.failure(WORK_LEFT_OUT, 0, "Run again without a GPU, it did not come to its end.")
    elif devices and not any(size == _SCORES for size, _, _ in without.products):
        last = without.prints[-1] if without.prints else None
        said = f"; it ended with “{last.text.strip()[:60]}”" if last is not None else ""
        what = f"Run again without a GPU, it computed no scores{said}."
        yield source.failure(WORK_LEFT_OUT, without.exit_at if last is None else last.site, what)
    elif not trace.prints:
        yield source.failure(WORK_LEFT_OUT, 0, "It printed nothing; expected “done on …” and the device.")


EXERCISE = Exercise(
    name="01_any_machine",
    lesson="Is there a GPU?",
    title="One script for every machine",
    demand="the scores are computed with and without a GPU",
    difficulty="easy",
    hints=(
        "Only one line decides on the device. Which?",
        "torch.cuda.is_available() says whether there is a CUDA GPU. There are other GPUs: Apple's is “mps”.",
        "choose_device() of gpulesson.device returns the GPU if there is one, else the CPU.",
    ),
    rules=(*COMMON, any_machine),
    without_gpu=True,
)

"""Exercise 1: one script for every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import causes, devices, slices, source_text
from gpulesson.exercises.rules.devices import BRANCHES_SWAPPED, HARD_CODED_CUDA
from gpulesson.exercises.trace import ErrorSeen, Trace

GPU_LEFT_IDLE = Diagnosis(
    "gpu-left-idle",
    "A program that always takes the CPU runs everywhere, but never uses a GPU.",
    "Let the program choose: from gpulesson.device import choose_device, then device = choose_device().",
)
NOT_ON_THE_DEVICE = Diagnosis(
    "not-on-the-device",
    "To choose a device moves nothing. A product is computed where its two tensors are.",
    "Make both tensors there: torch.randn(10, 784, device=device), and the images likewise.",
)
CONDITION_FALSE = Diagnosis(
    "condition-false",
    "The condition on this line does not hold here, although there is a GPU.",
    'Ask PyTorch: "cuda" if torch.cuda.is_available() else "cpu". Or write device = choose_device().',
)
CONDITION_TRUE = Diagnosis(
    "condition-true",
    "The condition on this line lets “cuda” through, although there is no GPU.",
    'Ask PyTorch: "cuda" if torch.cuda.is_available() else "cpu". Or write device = choose_device().',
)
NAMING_IS_NO_TEST = Diagnosis(
    "naming-is-no-test",
    "To name a device raises no error where it is missing. So nothing inside this try fails, and the except "
    "is never reached.",
    'Ask PyTorch: "cuda" if torch.cuda.is_available() else "cpu". Or write device = choose_device().',
)
ACCELERATOR_NOT_ASKED = Diagnosis(
    "accelerator-not-asked",
    "current_accelerator() alone names the device that PyTorch was built for, whether or not it is there.",
    "Write torch.accelerator.current_accelerator(check_available=True): where there is no GPU, that is None, "
    "and you take the CPU.",
)
NO_ACCELERATOR = Diagnosis(
    "no-accelerator",
    "Where there is no GPU, current_accelerator(check_available=True) gives None, and None has no type.",
    'Keep what it gives in a variable, and take torch.device("cpu") where that is None.',
)
ONLY_WITH_GPU = Diagnosis(
    "only-with-a-gpu",
    "What is set only in a branch for the GPU does not exist on a machine without one.",
    "Give it a value for the other machines, too: the CPU, in an else.",
)
STOPS_WITHOUT_GPU = Diagnosis(
    "stops-without-gpu",
    "The script should compute and print on every machine, with or without a GPU.",
    "See what this line takes for granted that only a machine with a GPU has.",
)
WORK_LEFT_OUT = Diagnosis(
    "work-left-out",
    "The script should compute and print on every machine, with or without a GPU.",
    "First choose the device, then compute the scores on it, outside of any if: scores = images @ weights.T.",
)

_SCORES = 64 * 10


def any_machine(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare a run with a GPU and one without."""
    used = {device for size, device, _ in trace.products if size == _SCORES}
    without = trace.without_gpu
    stopped = without.error if without is not None else None
    swapped = source_text.swapped_branches(source.lines)
    if stopped is not None and used == {"cpu"}:
        swapped = swapped or source_text.choosing_line(source.lines)
    if swapped and (used == {"cpu"} or stopped is not None):
        what = "There was a GPU, but the scores were computed on the CPU."
        yield source.failure(BRANCHES_SWAPPED, swapped, what)
        return
    for _, _, site in trace.products:
        if site.file and site.file != trace.program:
            yield source.failure(causes.ANOTHER_FILE, 0, "The scores were computed by another file.")
            return
    if not used:
        last = trace.products[-1][2] if trace.products else 0
        other = f"; this line computes {trace.products[-1][0]}" if trace.products else ""
        yield source.failure(WORK_LEFT_OUT, last, f"The scores, 64 × 10 numbers, were not computed{other}.")
    elif used == {"cpu"}:
        yield _on_the_cpu(trace, source)
    if stopped is not None:
        yield _needs_a_gpu(source, stopped)
    elif without is None:
        yield source.failure(WORK_LEFT_OUT, 0, "Run again without a GPU, it did not come to its end.")
    elif used and not any(size == _SCORES for size, _, _ in without.products):
        end = without.prints[-1] if without.prints else None
        said = f"; it ended with “{end.text.strip()[:60]}”" if end is not None else ""
        what = f"Run again without a GPU, it computed no scores{said}."
        yield source.failure(WORK_LEFT_OUT, without.exit_at if end is None else end.site, what)
    elif not trace.prints:
        yield source.failure(WORK_LEFT_OUT, 0, "It printed nothing; expected “done on …” and the device.")


def _on_the_cpu(trace: Trace, source: Source) -> Finding:
    """Say why the scores were computed on the CPU, although there was a GPU."""
    site = next(site for size, _, site in trace.products if size == _SCORES)
    what = "There was a GPU, but the scores were computed on the CPU."
    behind = slices.back(source.lines, site.line)
    lost, call = source_text.thrown_away(
        source.lines, {each for part in behind for each in slices.bound(part)}
    )
    if lost:
        what = f"{what} {call} returns a copy, and nothing keeps it."
        return source.failure(devices.MOVE_THROWN_AWAY, lost, what)
    if not trace.gpu_named:
        if line := source_text.literal_device(source.lines, "cpu"):
            return source.failure(GPU_LEFT_IDLE, line, what)
        if line := source_text.choosing_line(source.lines):
            return source.failure(CONDITION_FALSE, line, what)
        line = source_text.first_line(source.lines, r"device\w*\s*(:.*)?=[^=]")
        return source.failure(GPU_LEFT_IDLE, line or site, what)
    makes = slices.matches(r"\b(rand|randn|ones|zeros|full|tensor|empty|arange|normal)\(")
    made = [each.lineno for each in behind if makes(each) and not slices.matches("device")(each)]
    what = f"{what} “{trace.gpu_named}” is a GPU, but this tensor is not made there, nor moved there in time."
    return source.failure(NOT_ON_THE_DEVICE, min(made, default=site.line), what)


def _needs_a_gpu(source: Source, stopped: ErrorSeen) -> Finding:
    """Say why it stopped where there is no GPU."""
    message = stopped.message.strip().split("\n")[0].split(". ")[0]
    what = f"Run again without a GPU, it stopped on {source.where(stopped.site.line)}: {message[:160]}."
    if "NoneType" in stopped.message:
        asks = slices.find(source.lines, stopped.site.line, slices.matches(r"current_accelerator\("))
        if asks:
            return source.failure(NO_ACCELERATOR, asks, what)
    about_gpu = re.search(r"(?i)nvidia|cuda|gpu|accelerator|driver|hip", stopped.message)
    if stopped.type in ("NameError", "UnboundLocalError"):
        line = source_text.asking_if(source.lines, stopped.site.line)
        return source.failure(ONLY_WITH_GPU, line or stopped.site, what)
    if not about_gpu:
        return source.failure(STOPS_WITHOUT_GPU, stopped.site, what)
    if call := re.search(r"\btorch\.cuda\.\w+\(", source.line(stopped.site.line)):
        remedy = f"Call {call[0]}) only where there is such a GPU: if torch.cuda.is_available():"
        return source.failure(HARD_CODED_CUDA._replace(remedy=remedy), stopped.site, what)
    named = source_text.names_cuda(source.lines, slices.back(source.lines, stopped.site.line))
    ways = {"always": HARD_CODED_CUDA, "tried": NAMING_IS_NO_TEST, "chosen": CONDITION_TRUE}
    if named is not None:
        diagnosis = ways[named.how]
        if diagnosis is HARD_CODED_CUDA:
            diagnosis = devices.hard_coded(source.lines, named.line)
        return source.failure(diagnosis, named.line, what)
    if line := source_text.unasked_accelerator(source.lines):
        return source.failure(ACCELERATOR_NOT_ASKED, line, what)
    if line := source_text.literal_device(source.lines, "cuda"):
        return source.failure(devices.hard_coded(source.lines, line), line, what)
    chosen = source_text.chosen_device(source.lines)
    return source.failure(STOPS_WITHOUT_GPU if chosen else HARD_CODED_CUDA, stopped.site, what)


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

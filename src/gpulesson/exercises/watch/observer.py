"""Watches a learner's program while it runs, and puts everything back afterwards."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils import _device as default_device

from gpulesson.exercises.trace import ErrorSeen, Judged, Site, Trace
from gpulesson.exercises.watch.models import Call
from gpulesson.exercises.watch.tensors import Reader
from gpulesson.exercises.watch.training import Training, parameters_of
from gpulesson.exercises.watch.values import Values, WatchedOutput
from gpulesson.practice.patches import Patches


@dataclass
class Observer:
    """What watches one run; :meth:`trace` says what it has seen."""

    reader: Reader
    training: Training
    values: Values

    def trace(self) -> Trace:
        """Sum up the run so far."""
        self.training.count_kept()
        models = self.training.models
        stepped = {id(p) for opt, seen in self.training.groups if seen.steps for p in parameters_of(opt)}
        for module, model in models.models:
            model.stepped = any(id(parameter) in stepped for parameter in module.parameters())
        called = {id(parameter) for module, _ in models.models for parameter in module.parameters()}
        for optimizer, seen in self.training.groups:
            seen.strange = not any(id(parameter) in called for parameter in parameters_of(optimizer))
        return Trace(
            models=[model for _, model in models.models],
            calls=models.summary(),
            optimizers=[seen for _, seen in self.training.groups],
            losses=list(self.training.losses.values()),
            reads=list(self.values.reads.values()),
            argmaxes=list(self.values.argmaxes.values()),
            saves=self.values.saves,
            made_inside=[site for tensor, site in models.made_inside if tensor.device.type == "cpu"],
            values=self.training.finite_values(),
            backwards=self.training.backwards,
            prints=list(self.values.prints),
        )

    def judge_samples(self, trace: Trace, parts: dict[str, tuple[Any, Any]]) -> None:
        """Compare what the models answered outside training with labels that the checker has loaded itself.

        Parameters
        ----------
        trace : Trace
            Its ``judged``, and the fact ``test_samples``, are set.
        parts : dict
            For ``"train"`` and ``"test"``: the inputs, an array of shape [samples, features], and the labels.
        """
        truth: dict[bytes, tuple[str, int]] = {}
        with self.reader.unnoticed():
            for part, (inputs, targets) in parts.items():
                for row, label in zip(inputs, targets, strict=True):
                    truth[row.astype("float32").tobytes()] = (part, int(label))
        classes = len({label for _, label in truth.values()})  # other outputs are features
        calls = [call for call in self.training.models.calls if call.width == classes]
        trace.judged = [self._judged(call, truth) for call in calls if call.samples is not None]
        trace.facts["test_samples"] = len(parts["test"][1])

    def _judged(self, call: Call, truth: dict[bytes, tuple[str, int]]) -> Judged:
        assert call.samples is not None and call.predictions is not None
        with self.reader.unnoticed():
            rows = call.samples.float().flatten(1).contiguous().numpy()
            answers = call.predictions.tolist()
        known = [truth.get(row.tobytes(), ("", -1)) for row in rows]
        test = [
            (label, answer) for (part, label), answer in zip(known, answers, strict=True) if part == "test"
        ]
        return Judged(
            test=len(test),
            right=sum(label == answer for label, answer in test),
            train=sum(part == "train" for part, _ in known),
            step=call.step,
        )


@contextmanager
def observed() -> Iterator[Observer]:
    """Watch everything that runs inside.

    The GPU is given later, by :func:`attach`, when the practice GPU opens inside: what is replaced here must
    be replaced before, so that the practice GPU's replacements lie on top and may come and go.
    """
    default_device._device_constructors()
    torch.overrides.get_default_nowrap_functions()  # tables that must not hold our replacements
    reader = Reader()
    training = Training(reader)
    values = Values(training)
    patches = Patches()
    training.plan(patches)
    values.plan(patches)
    if torch.cuda.is_available():
        values.plan_readings(patches)
    output, sys.stdout = sys.stdout, WatchedOutput(sys.stdout, values)
    patches.apply()
    training.start()
    try:
        yield Observer(reader, training, values)
    finally:
        training.stop()
        patches.undo()
        sys.stdout = output


def attach(observer: Observer, gpu: Any) -> None:
    """Tell an observer of the GPU that the program will compute on."""
    observer.reader.gpu = gpu
    if gpu.simulated:
        observer.values.follow_log(gpu.log)


def error_seen(error: BaseException, file: str) -> ErrorSeen:
    """Describe an exception by the learner's lines that it passed through.

    Parameters
    ----------
    error : BaseException
    file : str
        The learner's file.
    """
    if isinstance(error, SyntaxError) and error.filename == file:
        site = Site(file, error.lineno or 1)
        return ErrorSeen(type(error).__name__, error.msg or "", site, [site], {})
    entries = []
    entry: TracebackType | None = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == file:
            entries.append(entry)
        entry = entry.tb_next
    lines = [Site(file, entry.tb_lineno) for entry in entries]
    tensors = _tensors_on_line(entries[-1]) if entries else {}
    return ErrorSeen(type(error).__name__, str(error)[:2000], lines[-1] if lines else Site(), lines, tensors)


def _tensors_on_line(entry: TracebackType) -> dict[str, list[Any]]:
    from linecache import getline

    frame = entry.tb_frame
    text = getline(frame.f_code.co_filename, entry.tb_lineno)
    found = {}
    for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)):
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        if isinstance(value, torch.Tensor):
            found[name] = [value.device.type, str(value.dtype), list(value.shape)]
    return found

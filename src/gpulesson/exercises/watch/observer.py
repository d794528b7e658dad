"""Watches a learner's program while it runs, and puts everything back afterwards."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from types import TracebackType
from typing import Any

import torch
from torch.utils import _device as default_device

from gpulesson.exercises.trace import ErrorSeen, Evaluated, Site, Trace, TrainedOn
from gpulesson.exercises.watch.groups import Groups
from gpulesson.exercises.watch.models import Call
from gpulesson.exercises.watch.rows import Part, Scaling, difference
from gpulesson.exercises.watch.tensors import Reader
from gpulesson.exercises.watch.training import Training, parameters_of
from gpulesson.exercises.watch.values import Values, WatchedOutput
from gpulesson.practice.patches import Patches

_FROM_A_WORKER = re.compile(
    r"Caught (?P<type>\w+) in .+\nOriginal Traceback.+\n(?P<way>(?: .*\n)+)[\w.]+: (?P<message>(?s:.*))"
)
"""What a loader says of an error in one of its workers."""
_STARTS = 64
"""How many calls are tried as the first of a pass."""


@dataclass
class Observer:
    """What watches one run; :meth:`trace` says what it has seen."""

    reader: Reader
    training: Training
    values: Values
    groups: Groups

    def trace(self) -> Trace:
        """Sum up the run so far; what comes later does not change it."""
        self.training.note_moves()
        if isinstance(sys.stdout, WatchedOutput):
            sys.stdout.end_line()
        if isinstance(sys.stderr, WatchedOutput):
            sys.stderr.end_line()
        models = self.training.models
        stepped = {id(p) for opt, seen in self.training.groups if seen.steps for p in parameters_of(opt)}
        for module, model in models.models:
            model.stepped = any(id(parameter) in stepped for parameter in module.parameters())
        called = {id(parameter) for module, _ in models.models for parameter in module.parameters()}
        for optimizer, seen in self.training.groups:
            seen.strange = not any(id(parameter) in called for parameter in parameters_of(optimizer))
        trace = Trace(
            models=[model for _, model in models.models],
            calls=models.summary(),
            optimizers=[seen for _, seen in self.training.groups],
            losses=list(self.training.losses.values()),
            reads=list(self.values.reads.values()),
            argmaxes=list(self.values.argmaxes.values()),
            saves=self.values.saves,
            loads=self.values.loads,
            products=list(self.values.products),
            gpu_named=self.values.gpu_named,
            made_inside=[site for tensor, site in models.made_inside if tensor.device.type == "cpu"],
            values=self.training.finite_values(),
            backwards=self.training.backwards,
            wasted=self.training.wasted,
            in_steps=self.training.in_steps,
            backward_at=self.training.backward_at,
            prints=list(self.values.prints),
        )
        return copy.deepcopy(trace)

    def compare_samples(
        self, trace: Trace, parts: dict[str, tuple[Any, Any]], *, passes: int, accuracy: float
    ) -> None:
        """Compare what the models were trained on, and what they answered, with the checker's own data.

        Samples are known by their numbers; where none is, by their numbers after a scaling of each column, as
        a StandardScaler's. A program that changes them in another way trains on rows that are not known: if
        test rows are among them, nobody sees it.

        Parameters
        ----------
        trace : Trace
            Its ``evaluated`` and ``trained_on``, and three facts, are set.
        parts : dict
            For ``"train"`` and ``"test"``: the inputs, an array of shape [samples, features], and the labels.
        passes : int
            Fewer backward passes are no training.
        accuracy : float
            Less of the test part is not learned.
        """
        with self.reader.unnoticed():
            train, test = (Part.of(*parts[name]) for name in ("train", "test"))
            classes = len(torch.unique(test.labels))  # other outputs are features
            calls = [call for call in self.training.models.calls if call.width == classes]
            calls = [call for call in calls if call.marks is not None and call.seen.finished]
            trained = [call for call in calls if call.seen.trained]
            evaluated = [call for call in calls if not call.seen.trained]
            here, there = (
                _scaling(trained, train, (train, test)),
                _scaling(evaluated[::-1], test, (train, test)),
            )
            how = [
                _known(calls, train, test) or scaling is not None
                for calls, scaling in ((trained, here), (evaluated, there))
            ]
            if all(how) and (different := difference(here, there, test.rows)):
                trace.facts["prepared"] = different
            if not how[1]:
                there = here
            if not how[0]:
                here = there
            trace.trained_on, learned = _trained_on(*_scaled(here, trained, train, test))
            evaluated, train, test = _scaled(there, evaluated, train, test)
            trace.evaluated = _evaluated(evaluated, train, test, learned)
            if split := _other_split(trace.trained_on, trace.evaluated):
                trace.facts["other_split"] = split
            trace.facts["confusion"] = _confusion(evaluated, test, classes)
        trace.facts |= {"test_samples": len(test.labels), "passes": passes, "learned": accuracy}


def _known(calls: list[Call], *parts: Part) -> bool:
    """Tell whether calls saw samples as they are."""
    return any(bool((part.find(call.marks) >= 0).any()) for call in calls for part in parts)  # type: ignore[arg-type]


def _scaling(calls: list[Call], part: Part, parts: tuple[Part, Part]) -> Scaling | None:
    """Return how a program has scaled its samples; None if it has not, or nobody can tell.

    Mostly some calls after each other are one pass of a part; else each of their rows has to be one of its.
    """
    if _known(calls, *parts):
        return None
    kept = [call.rows for call in calls if call.rows is not None and call.rows.shape[1] == part.rows.shape[1]]
    for start in range(min(len(kept), _STARTS)):
        sizes = list(accumulate(map(len, kept[start:])))
        if len(part.rows) in sizes:
            end = start + sizes.index(len(part.rows)) + 1
            if found := Scaling.fit(part.rows, torch.cat(kept[start:end])):
                return found
    end = sum(size <= len(part.rows) for size in accumulate(map(len, kept)))
    return Scaling.fit_some(part.rows, torch.cat(kept[:end])) if end else None


def _scaled(
    scaling: Scaling | None, calls: list[Call], train: Part, test: Part
) -> tuple[list[Call], Part, Part]:
    """Return calls and parts as they are after a scaling."""
    if scaling is None:
        return calls, train, test
    width = train.rows.shape[1]
    fit = [call.rows if call.rows is not None and call.rows.shape[1] == width else None for call in calls]
    again = [
        call if rows is None else replace(call, marks=scaling.marks(rows))
        for call, rows in zip(calls, fit, strict=True)
    ]
    return again, scaling.applied(train.rows, train.labels), scaling.applied(test.rows, test.labels)


def _other_split(seen: TrainedOn, evaluated: list[Evaluated]) -> str:
    """Say that the rows were split otherwise: the test has training rows that nobody trained on."""
    final = [batch for batch in evaluated if batch.step == evaluated[-1].step]
    strange, known = sum(batch.untrained for batch in final), sum(batch.test for batch in final)
    mixed = any(batch.untrained and batch.test for batch in final)
    if not strange or seen.unknown or not (seen.test or mixed):
        return ""
    return (
        f"The model was evaluated on {known + strange} samples; {strange} of them are not in the starter's "
        f"test part. It trained on {seen.known + seen.test} samples, {seen.test} of them of the test part."
    )


def _evaluated(calls: list[Call], train: Part, test: Part, learned: torch.Tensor) -> list[Evaluated]:
    evaluated, end, model = [], len(test.labels), -1
    for call in reversed(calls):  # a pass is known by its end
        assert call.marks is not None and call.predictions is not None
        answers, found = call.predictions, test.find(call.marks)
        among = found >= 0
        if end < len(answers) or call.seen.model != model:
            end, model = len(test.labels), call.seen.model
        labels = test.labels[max(0, end - len(answers)) : end]
        end -= len(labels)
        place = train.find(call.marks)
        place = place[(place >= 0) & ~among]
        evaluated.append(
            Evaluated(
                test=int(among.sum()),
                right=int((answers[among] == test.labels[found[among]]).sum()),
                train=len(place),
                untrained=int((~torch.isin(place, learned)).sum()),
                step=call.step,
                model=call.seen.model,
                site=call.seen.site,
                in_order=int((answers[: len(labels)] == labels).sum()),
                samples=len(answers),
            )
        )
    return evaluated[::-1]


def _confusion(calls: list[Call], test: Part, classes: int) -> list[list[int]]:
    """Count the last answers for the test samples: a row for each true class, a column for each answer.

    Samples that were changed are known by their order.
    """
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    found = [(call, test.find(call.marks)) for call in calls if call.marks is not None]
    in_order = not any(bool((place >= 0).any()) for _, place in found)
    left = len(test.labels)
    for call, place in reversed(found):
        assert call.predictions is not None
        if in_order:
            place = torch.arange(left - len(place), left)
        among = place >= 0
        left -= len(place[among])
        if left < 0 or (in_order and not bool(among.all())):  # the pass before
            break
        pairs = test.labels[place[among]] * classes + call.predictions[among]
        counts += torch.bincount(pairs, minlength=classes * classes)
    return counts.view(classes, classes).tolist()


def _trained_on(calls: list[Call], train: Part, test: Part) -> tuple[TrainedOn, torch.Tensor]:
    """Return what is to be said of the samples, and which of the training part they are."""
    seen = TrainedOn(of=len(train.labels))
    if not calls:
        return seen, torch.zeros(0, dtype=torch.int64)
    places = []
    only_test = set()
    for call in calls:
        assert call.marks is not None
        place, other = train.find(call.marks), test.find(call.marks)
        leaked = (place < 0) & (other >= 0)
        seen.unknown += int(((place < 0) & (other < 0)).sum())
        if bool(leaked.any()):
            only_test.update(other[leaked].tolist())
            seen.test_at = call.seen.site
        places.append(place[place >= 0])
        if call.targets is not None and len(call.targets) == len(place):
            inside = place >= 0
            wrong = int((call.targets[inside] != train.labels[place[inside]]).sum())
            seen.labelled += int(inside.sum())
            seen.mislabelled += wrong
            if wrong:
                seen.mislabelled_at = call.loss_at
    order = torch.cat(places)
    seen.known, seen.test, seen.site = len(torch.unique(order)), len(only_test), calls[-1].seen.site
    once = seen.known
    in_batches = len(calls[0].marks) < once  # type: ignore[arg-type]
    again = order[once : 2 * once]
    seen.same_order = in_batches and len(again) == once and bool((order[:once] == again).all())
    return seen, order


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
    values, groups = Values(training), Groups()
    patches = Patches()
    training.plan(patches)
    values.plan(patches)
    groups.plan(patches)
    if torch.cuda.is_available():
        values.plan_readings(patches)
    output, errors = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = WatchedOutput(output, values), WatchedOutput(errors, values)
    patches.apply()
    training.start()
    try:
        yield Observer(reader, training, values, groups)
    finally:
        training.stop()
        patches.undo()
        sys.stdout, sys.stderr = output, errors


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
    if sent := _FROM_A_WORKER.search(str(error)):
        there = re.findall(rf'File "{re.escape(file)}", line (\d+)', sent["way"])
        lines += [Site(file, int(line)) for line in there]
        return ErrorSeen(sent["type"], sent["message"][:2000], lines[-1] if lines else Site(), lines, {})
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

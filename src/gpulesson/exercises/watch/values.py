"""Watches where values go: to the host, into ``argmax``, into a file, onto the screen."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import deque
from types import FrameType
from typing import Any

import torch

from gpulesson import data, evaluation
from gpulesson.exercises.trace import ArgmaxSeen, LoadSeen, Printed, ReadSeen, SaveSeen, Site
from gpulesson.exercises.watch import frames
from gpulesson.exercises.watch.training import Training
from gpulesson.practice.events import TO_HOST, WAIT
from gpulesson.practice.patches import Patches

_READINGS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "if tensor",
}
_LINES = 500
_PRODUCTS: dict[Any, str] = {
    torch: "matmul mm einsum addmm",
    torch.Tensor: "__matmul__ matmul mm",
    torch.nn.functional: "linear",
}


class Values:
    """The values that left the device, or the program."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.reads: dict[tuple[str, Site], ReadSeen] = {}
        self._last_step: dict[tuple[str, Site], int] = {}
        self.argmaxes: dict[Site, ArgmaxSeen] = {}
        self.saves: list[SaveSeen] = []
        self.loads: list[LoadSeen] = []
        self._saved: set[int] = set()
        self.rng_read = Site()
        """Where the state of torch's generator was asked for."""
        self.rng_restored = Site()
        """Where it was set, since the last ``torch.load``."""
        self.rng_lost = False
        """A seed was set after that."""
        self.load_way: list[tuple[str, Site]] = []
        """By which lines the program came to the last ``torch.load``."""
        self.seeded_before: set[Site] = set()
        """Where a seed was set before that."""
        self.seeded_since: list[Site] = []
        """Where one was set after it."""
        training.models.when_seeded = self._seeded
        self.returned: dict[str, Any] = {}
        """What functions of this package returned last."""
        self.products: dict[tuple[int, str, Site], None] = {}
        self.gpu_named = ""
        """A variable that held a GPU while matrices were multiplied on the CPU."""
        self.frame: FrameType | None = None
        """Of a function that has the variables of exercise 2; it keeps them after its end."""
        self.prints: deque[Printed] = deque(maxlen=_LINES)

    def plan(self, patches: Patches) -> None:
        """Plan to see ``argmax``, ``max`` and ``torch.save``."""
        for owner in (torch, torch.Tensor):
            patches.wrap(owner, "argmax", functools.partial(self._argmax, None))
            patches.wrap(owner, "max", functools.partial(self._argmax, False))
        for owner, names in _PRODUCTS.items():
            for name in names.split():
                patches.wrap(owner, name, self._product)
        patches.wrap(torch, "from_numpy", self._from_numpy)
        patches.wrap(torch, "save", self._save)
        patches.wrap(torch, "load", self._load)
        for owner in (torch, torch.random):
            patches.wrap(owner, "set_rng_state", self._restoring)
            patches.wrap(owner, "get_rng_state", self._reading_state)
        for owner, name in ((evaluation, "evaluate"), (data, "load_fashion_mnist")):
            patches.wrap(owner, name, self._returning)

    def plan_readings(self, patches: Patches) -> None:
        """Plan to see readings on a real GPU, which keeps no log."""
        for name, call in _READINGS.items():
            patches.wrap(torch.Tensor, name, functools.partial(self._reading, call))

    def follow_log(self, log: Any) -> None:
        """See readings in the practice GPU's log."""

        def noting(kind: str, call: str) -> None:
            if kind == TO_HOST or (kind == WAIT and "synchronize" not in call):
                self._note_reading(call)

        log.listener = noting

    def printed(self, lines: list[str]) -> None:
        """Note lines of output."""
        site, step = frames.here(), self._training.steps
        self.prints.extend(Printed(site, line[:400], step) for line in lines)

    def _reading(self, call: str, original: Any) -> Any:
        @functools.wraps(original)
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.is_cuda and not self._training.reader.silent:
                self._note_reading(call)
            return original(tensor, *args, **kwargs)

        return read

    def _note_reading(self, call: str) -> None:
        if frames.inside_optimizers():
            return  # a gradient scaler must read; no line of the learner's can change that
        key = call, frames.here()
        seen = self.reads.setdefault(key, ReadSeen(call, key[1], 0, 0))
        seen.count += 1
        if self._last_step.get(key) != self._training.steps:
            seen.steps += 1
            seen.in_last_step = 0
            self._last_step[key] = self._training.steps
        seen.in_last_step += 1

    def _argmax(self, flattens: Any, original: Any) -> Any:
        @functools.wraps(original)
        def argmax(tensor: Any, dim: Any = flattens, *args: Any, **kwargs: Any) -> Any:
            given = (tensor,) if dim is flattens else (tensor, dim)
            output = self._training.models.last_shape
            logits = isinstance(tensor, torch.Tensor) and tensor.dim() == 2 and tuple(tensor.shape) == output
            wrong = dim is None or (isinstance(dim, int) and dim is not False and dim in (0, -2))
            if logits and wrong and output[0] > 1:
                site = frames.here()
                if site.line:  # else a library's business
                    seen = self.argmaxes.setdefault(site, ArgmaxSeen(site, dim, list(output), 0))
                    seen.count += 1
            return original(*given, *args, **kwargs)

        return argmax

    def _product(self, original: Any) -> Any:
        @functools.wraps(original)
        def product(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if isinstance(result, torch.Tensor) and len(self.products) < _LINES:
                key = result.numel(), result.device.type, frames.here()
                if key not in self.products and key[1] == "cpu" and not self.gpu_named:
                    self.gpu_named = frames.gpu_named()
                self.products[key] = None
            return result

        return product

    def _from_numpy(self, original: Any) -> Any:
        @functools.wraps(original)
        def from_numpy(*args: Any, **kwargs: Any) -> Any:
            for frame in frames.learners():
                if {*"abcdefgh"} <= {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}:
                    self.frame = frame
            return original(*args, **kwargs)

        return from_numpy

    def _save(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            has_optimizer = bool(_find(obj, lambda part: {"state", "param_groups"} <= part.keys()))
            has_model = bool(_find(obj, lambda part: any(isinstance(v, torch.Tensor) for v in part.values())))
            seen = SaveSeen(frames.here(), has_model, has_optimizer, self._training.steps)
            stepped = self._training.last_stepped
            seen.own_steps = 0 if stepped is None else stepped.steps
            seen.old_random_state = self._holds_old_state(obj)
            seen.random_state = _find_state(obj, torch.default_generator.get_state().numel())
            self.saves.append(seen)
            self._saved.add(self._digest(obj))
            return original(obj, *args, **kwargs)

        return save

    def _load(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            content = original(*args, **kwargs)
            site = frames.here()
            if not (self.saves and self.saves[-1].site == site):  # save_checkpoint looks at what it wrote
                self.rng_restored, self.rng_lost = Site(), False
                self.load_way, self._training.model_loaded = frames.way(), Site()
                self.seeded_before.update(self.seeded_since)
                self.seeded_since.clear()
                seen = LoadSeen(site, self._training.steps, kwargs.get("weights_only") is not False)
                seen.saved_here = self._digest(content) in self._saved
                self.loads.append(seen)
            return content

        return load

    def _digest(self, obj: Any) -> int:
        """Return a number for the tensors in a nest of dicts and lists."""
        with self._training.reader.unnoticed():
            on_host = self._training.reader.on_host
            return hash(tuple(on_host(part).contiguous().numpy().tobytes() for part in _tensors(obj)))

    def _holds_old_state(self, obj: Any) -> bool:
        with self._training.reader.unnoticed():
            now = torch.default_generator.get_state()
            states = [part for part in _tensors(obj) if part.dtype == now.dtype and part.shape == now.shape]
            return bool(states) and not any(torch.equal(part, now) for part in states)

    def _reading_state(self, original: Any) -> Any:
        @functools.wraps(original)
        def get_rng_state(*args: Any, **kwargs: Any) -> Any:
            self.rng_read = frames.here()
            return original(*args, **kwargs)

        return get_rng_state

    def _seeded(self) -> None:
        self.rng_lost = self.rng_restored.line > 0
        self.seeded_since.append(frames.here())

    def _restoring(self, original: Any) -> Any:
        @functools.wraps(original)
        def set_rng_state(*args: Any, **kwargs: Any) -> None:
            self.rng_restored, self.rng_lost = frames.here(), False
            original(*args, **kwargs)

        return set_rng_state

    def _returning(self, original: Any) -> Any:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            result = self.returned[original.__name__] = original(*args, **kwargs)
            return result

        return function


def _find(obj: Any, test: Any, depth: int = 3) -> bool:
    """Tell whether a dict inside `obj` passes the test."""
    if isinstance(obj, dict):
        return test(obj) or (depth > 0 and any(_find(part, test, depth - 1) for part in obj.values()))
    if isinstance(obj, list | tuple):
        return depth > 0 and any(_find(part, test, depth - 1) for part in obj)
    return False


def _find_state(obj: Any, length: int, depth: int = 3) -> bool:
    """Tell whether something as long as a state of torch's generator is in a nest of dicts and lists."""
    if isinstance(obj, list | tuple | bytes | torch.Tensor) or hasattr(obj, "__array__"):
        with contextlib.suppress(TypeError):  # a tensor or an array of one number
            if len(obj) == length:
                return True
    parts = list(obj.values()) if isinstance(obj, dict) else obj
    return (
        isinstance(parts, list | tuple)
        and depth > 0
        and any(_find_state(part, length, depth - 1) for part in parts)
    )


def _tensors(obj: Any, depth: int = 6) -> list[torch.Tensor]:
    """Return the plain tensors in a nest of dicts, lists and tuples."""
    if type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.layout == torch.strided:
        return [obj]
    parts = list(obj.values()) if isinstance(obj, dict) else obj
    if depth and isinstance(parts, list | tuple):
        return [tensor for part in parts for tensor in _tensors(part, depth - 1)]
    return []


class WatchedOutput:
    """Standard output that notes which line printed what.

    Parameters
    ----------
    stream : text stream
        The real one: everything that is not noted goes there.
    values : Values
        Its ``prints`` take the lines.
    """

    def __init__(self, stream: Any, values: Values) -> None:
        self._stream, self._values, self._line = stream, values, ""

    def write(self, text: str) -> int:
        """Write, and note every finished line."""
        self._line = (self._line + text)[-4000:] if "\n" not in text else self._line + text
        *lines, self._line = re.split(r"[\r\n]+", self._line)
        if lines:
            self._values.printed(lines[-_LINES:])
        return int(self._stream.write(text))

    def end_line(self) -> None:
        """Note the last line, which nothing has finished."""
        line, self._line = self._line, ""
        if line:
            self._values.printed([line])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

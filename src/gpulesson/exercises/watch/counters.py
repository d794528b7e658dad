"""Counts what a function of the learner's asks for: operators, bytes, values read, samples of a dataset."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from gpulesson.exercises.trace import Site
from gpulesson.exercises.watch import frames

_PICKING = ("index.", "index_select", "gather", "embedding.", "take.")
_FOR_WORKERS = "num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"
_READING = {
    "item": "item()",
    "tolist": "tolist()",
    "numpy": "numpy()",
    "__array__": "numpy()",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "int()",
    "__bool__": "if",
    "__format__": "print",
    "__repr__": "print",
}


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators (views left out), the bytes that they touch, and the values that are read.

    An operator that picks rows touches the rows, and not all that it picks from.

    Attributes
    ----------
    operators : Counter
        By operator and line.
    nbytes : Counter
        By line.
    reads : Counter
        By line. What the operators show, and what they do not, such as `tolist`.
    ways : dict
        How each line read first: ``"item()"``, ``"if"``, …
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: Counter[tuple[str, Site]] = Counter()
        self.nbytes: Counter[Site] = Counter()
        self.reads: Counter[Site] = Counter()
        self.ways: dict[Site, str] = {}
        self._surface = _Readings(self)

    def __enter__(self) -> Work:
        self._surface.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._surface.__exit__(*error)  # type: ignore[no-untyped-call]

    def __sub__(self, other: Work) -> Work:
        """Return what was counted here and not there."""
        rest = Work()
        rest.operators, rest.nbytes = self.operators - other.operators, self.nbytes - other.nbytes
        rest.reads, rest.ways = self.reads - other.reads, self.ways
        return rest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        site, name = frames.here(), str(func).removeprefix("aten.")
        if name.startswith("_local_scalar_dense") and not self._surface.inside:
            self.reads[site] += 1
        if not func.is_view:
            self.operators[name, site] += 1
            picks = name.startswith(_PICKING)
            tensors = tree_leaves((args[picks:], kwargs, result))
            self.nbytes[site] += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


class _Readings(TorchFunctionMode):
    """Sees the methods that read values, of which some call no operator on the CPU."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work, self.inside = work, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _READING or not (args and isinstance(args[0], torch.Tensor)):
            return func(*args, **(kwargs or {}))
        if not self.inside:
            site = frames.here()
            self._work.reads[site] += 1
            self._work.ways.setdefault(site, _READING[name])
        self.inside += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside -= 1


@contextmanager
def asked(dataset: Any) -> Iterator[SimpleNamespace]:
    """Count how often a dataset is asked, by a program or by its loaders.

    Meanwhile loaders have no workers: what those ask for is asked for here, where it is seen on every system.

    Parameters
    ----------
    dataset : object
        Its class's ``__getitem__`` and ``__getitems__`` are counted while this is open.

    Yields
    ------
    namespace
        Its ``calls``.
    """
    seen = SimpleNamespace(direct=0, fetched=0, calls=0)
    state = SimpleNamespace(depth=0, inner=0)

    def note(direct: int, fetched: int) -> None:
        seen.direct, seen.fetched = seen.direct + direct, seen.fetched + fetched
        seen.calls = max(seen.direct, seen.fetched)

    def counting(original: Any) -> Any:
        @functools.wraps(original)
        def ask(self: Any, index: Any) -> Any:
            state.depth += 1
            state.inner += state.depth > 1
            try:
                return original(self, index)
            finally:
                state.depth -= 1
                if not state.depth:
                    note(max(1, state.inner), 0)  # one that asks itself for each sample counts them
                    state.inner = 0

        return ask

    def fetching(original: Any) -> Any:
        @functools.wraps(original)
        def fetch(self: Any, index: Any) -> Any:
            one = not self.auto_collation or getattr(self.dataset, "__getitems__", None)
            note(0, 1 if one else len(index))
            return original(self, index)

        return fetch

    kind = type(dataset)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(DataLoader, "__init__", _without_workers(DataLoader.__init__)))
        stack.enter_context(_replaced(_MapDatasetFetcher, "fetch", fetching(_MapDatasetFetcher.fetch)))
        for name in ("__getitem__", "__getitems__"):
            original = getattr(kind, name, None)
            if original is not None:
                with contextlib.suppress(TypeError):  # a class written in C: its loaders are counted
                    stack.enter_context(_replaced(kind, name, counting(original)))
        yield seen


@contextmanager
def batches() -> Iterator[list[tuple[Any, Any]]]:
    """Keep what models get, and the labels that their answers are compared with, while this is open.

    Yields
    ------
    list of tuple of Tensor
        Filled in the order of the calls: the inputs, and the labels or None.
    """
    seen: list[tuple[Any, Any]] = []
    depth = 0

    def before(module: Any, args: Any) -> None:
        nonlocal depth
        if (
            not depth
            and args
            and isinstance(args[0], torch.Tensor)
            and next(module.parameters(), None) is not None
        ):
            seen.append((args[0].detach().clone(), None))
        depth += 1

    def after(module: Any, args: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1

    class Labels(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (
                getattr(func, "__name__", "") in ("cross_entropy", "nll_loss")
                and seen
                and seen[-1][1] is None
            ):
                target = args[1] if len(args) > 1 else (kwargs or {}).get("target")
                seen[-1] = seen[-1][0], target
            return func(*args, **(kwargs or {}))

    handles = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]
    try:
        with Labels():
            yield seen
    finally:
        for handle in handles:
            handle.remove()


def _without_workers(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        for name in _FOR_WORKERS:
            bound.arguments.pop(name, None)
        original(*bound.args, **bound.kwargs)

    return __init__


@contextmanager
def _replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

"""What the practice GPU needs to know about an ATen operator, derived once for each."""

import re
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from practice_gpu.operators import cublas, determinism, dtypes

_WAITING = """
    nonzero masked_select _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive equal bincount
    repeat_interleave
"""
"""Operators whose result's size or value the host waits for, besides ``_local_scalar_dense``."""


class Facts:
    """Facts of one operator.

    Attributes
    ----------
    call : callable
        The operator itself, without PyTorch's Python layer.
    name : str
        ``add`` for ``aten::add.Tensor``.
    overload : str
        ``Tensor`` for it.
    tensors, lists : tuple of int
        Positions of the arguments that are tensors, and lists of tensors.
    keywords : tuple of str
        Names of the keyword-only arguments that are tensors or lists of them.
    indifferent : bool
        Its keywords do not affect where tensors are.
    named : tuple of (int, str)
        Position and name of all of these, in the order of the schema.
    fresh : bool
        It returns tensors that are not its arguments or views of them.
    several : bool
        It returns a tuple or a list.
    unary : bool
        Its first argument is a tensor, and the only one.
    plain : bool
        It is not composite, draws no random numbers, does not resize, read, wait or move, and needs none of
        its arguments on the host.
    collective : bool
        It sends tensors between processes.
    composite : bool
        It consists of other operators, and is intercepted as a whole only where autograd is off (in inference
        mode). A few also have a kernel, which rounds differently, such as ``silu_backward``; these are not
        composite.
    resizes : bool
        It may change the size of an argument's storage.
    generator : bool
        It draws random numbers.
    seeded : bool
        It draws random numbers, and takes no generator.
    host : bool
        It needs one of its arguments on the host although the others are on a device.
    reads : bool
        With it the host reads one element.
    waits : bool
        The host waits for its result.
    moves : bool
        It copies between devices: both ``copy_`` operators.
    written : frozenset of str
        Names of the arguments that it writes to.
    checks : tuple of callable
        Functions to call with the arguments before it runs on a device: CUDA may refuse it, or prepare for
        it. Mostly none.
    """

    def __init__(self, func: Any) -> None:
        self.call = func._op
        schema = func._schema
        namespace, _, self.name = schema.name.partition("::")
        self.collective = namespace in ("c10d", "_c10d_functional")
        self.overload = schema.overload_name
        kinds = [(n, str(a.type), a) for n, a in enumerate(schema.arguments)]
        self.tensors = tuple(n for n, kind, a in kinds if kind in _TENSOR and not a.kwarg_only)
        self.lists = tuple(n for n, kind, a in kinds if kind in _LIST and not a.kwarg_only)
        self.keywords = tuple(a.name for _, kind, a in kinds if kind in _TENSOR | _LIST and a.kwarg_only)
        names = {a.name for _, _, a in kinds}
        self.indifferent = not self.keywords and not names & {"device", "generator"}
        self.named = tuple((n, a.name) for n, kind, a in kinds if kind in _TENSOR | _LIST)
        self.fresh = any(str(r.type) in _TENSOR | _LIST and r.alias_info is None for r in schema.returns)
        self.several = len(schema.returns) > 1 or any(str(r.type) in _LIST for r in schema.returns)
        self.resizes = "out" in self.keywords or self.name in ("resize_", "resize_as_")
        self.generator = any(a.name == "generator" for a in schema.arguments)
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags and not self.generator
        self.host = self.name == "_pack_padded_sequence"
        self.reads = self.name == "_local_scalar_dense"
        self.waits = self.name in _WAITING.split() or (self.name, self.overload) == ("index", "Tensor")
        self.moves = self.name in ("copy_", "_foreach_copy_", "_copy_from")
        self.unary = kinds[:1] != [] and self.named == ((0, kinds[0][2].name),) and kinds[0][1] == "Tensor"
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.composite = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(
            func.name(), "CPU"
        )
        self.written = frozenset(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        ) | (names & _WRITTEN_UNSAID)
        checks = (
            dtypes.check_of(func, self.name, self.overload),
            determinism.check_of(self.name, self.overload),
            cublas.make_handle if self.name.removesuffix("_") in cublas.OPERATORS else None,
        )
        self.checks = tuple(check for check in checks if check is not None)
        self.plain = not any(
            (
                self.composite,
                self.generator,
                self.host,
                self.moves,
                self.reads,
                self.resizes,
                self.seeded,
                self.waits,
            )
        )


_WRITTEN_UNSAID = {"running_mean", "running_var"}
"""Arguments that batch normalisation writes to although its schema does not say so."""
_TENSOR = frozenset({"Tensor", "Optional[Tensor]"})
_LIST = frozenset({"List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]"})


@cache
def device_check(name: str, overload: str) -> tuple[str, str]:
    """Return how CUDA checks an operator's devices, and the method's name in its message.

    ``"generated"``: by the check that torchgen generates before the CUDA kernel from
    ``native_functions.yaml``, which every PyTorch wheel contains; ``"iterator"``: there is none, and
    TensorIterator checks; ``"none"``: the operator has no CUDA kernel.
    """
    entry = _native_functions().get(f"{name}.{overload}" if overload else name)
    if entry is None:
        return "none", ""
    if "device_check: NoCheck" in entry:
        return "iterator", ""
    if "structured_delegate:" in entry or "structured: True" in entry:
        parts = [name, overload, "out" if overload.endswith("out") else ""]
        return "generated", "wrapper_CUDA_" + "_".join(part for part in parts if part)
    dispatch = re.search(r"^  dispatch:\n((?:    .*\n?)+)", entry, flags=re.MULTILINE)
    if dispatch and re.search(r"\bCUDA\b", dispatch.group(1)):
        return "generated", f"wrapper_CUDA_{overload}_{name}{'_out' if overload.endswith('out') else ''}"
    return "none", ""


@lru_cache(maxsize=1)
def _native_functions() -> dict[str, str]:
    text = native_functions_path().read_text(encoding="utf-8")
    entries = re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]
    return {entry[: entry.index("(")].strip(): entry for entry in entries}


def native_functions_path() -> Path:
    """Return where torchgen keeps ``native_functions.yaml`` (which may not exist)."""
    spec = find_spec("torchgen")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("torchgen")
    return folder / "packaged" / "ATen" / "native" / "native_functions.yaml"

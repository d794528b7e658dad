"""Ask a CUDA build of PyTorch, without a GPU, which types its operators refuse, and in which words.

    python tests/practice_gpu/stand_in.py [OPERATOR ...]

writes ``src/practice_gpu/operators/dtypes.json``; with names of operators of PyTorch's database it
asks only these, and prints their part. It needs Linux, g++, nm, the headers of the CUDA toolkit in
``$CUDA_HOME/include``, and half an hour. It builds a stand-in for the CUDA runtime, ``stand_in.cpp``, whose
kernels do nothing, and runs every operator of the database on it: what PyTorch refuses before it launches a
kernel, it refuses there, too. Operators that cuFFT, cuSOLVER or cuDNN compute crash without a driver; it
says which gave no answer. The same stand-in answers other questions, such as what
``torch.use_deterministic_algorithms`` refuses:

    python tests/practice_gpu/stand_in.py --run script.py
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import database
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from practice_gpu.errors import scalar_name
from practice_gpu.operators import dtypes

FILE = Path(dtypes.__file__).with_suffix(".json")
TYPES = [
    "bool",
    *("uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128"),
]
BY_NAME = {scalar_name(getattr(torch, name)): name for name in TYPES}
SAMPLES = 8
SECONDS = 30
"""For one operator and type."""

REFUSAL = re.compile(
    r"(\"[^\"]+\" not implemented for '"
    r"|getCudnnDataTypeFromScalarType\(\) not supported for |TensorDescriptor does not support )(\w+)('?)"
)
HALF = "HalfTensor is not supported"
ABSENT = re.compile(r"Could not run 'aten::(_?histogram\w*)")
"""Operators without a kernel for CUDA that a user can call; the others are the CPU's own."""


# -- the stand-in


def build(folder: Path) -> dict[str, str]:
    """Build the libraries that stand in for CUDA's, and return the environment to run Python with."""
    library = Path(torch.__file__).parent / "lib"
    nvrtc = "libcaffe2_nvrtc.so"
    wanted = set(wants(library, "libc10_cuda.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so", nvrtc))
    wanted |= set(wants(library, "libtorch_python.so"))
    source = Path(__file__).with_suffix(".cpp")
    there = set(re.findall(r"\w+", source.read_text(encoding="utf-8")))
    ours = r"(__)?cuda[A-Z]|(cublas|cufft|cusparse|cusolver|cudnn)"
    theirs = r"\w*(Version|Property|ErrorString|StatusString|StatusName)"
    nothing = sorted(n for n in wanted - there if re.match(ours, n) and not re.fullmatch(theirs, n))
    (folder / "nothing.c").write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in nothing))
    driver = sorted(name for name in wanted if re.match(r"cu[A-Z]", name))
    (folder / "driver.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in driver))
    include = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    compile_ = ["gcc", "-fPIC", "-w", "-fno-builtin", "-O1"]
    subprocess.run([*compile_, "-c", "nothing.c"], cwd=folder, check=True)
    subprocess.run([*compile_, "-shared", "driver.c", "-o", "libcuda.so.1"], cwd=folder, check=True)
    runtime = ["g++", "-fPIC", "-shared", "-O1", f"-I{include}", source, "nothing.o", "-o", "libstandin.so"]
    subprocess.run(runtime, cwd=folder, check=True)
    return {
        **os.environ,
        "LD_PRELOAD": str(folder / "libstandin.so"),
        "LD_LIBRARY_PATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def wants(folder: Path, *libraries: str) -> Iterator[str]:
    """Yield the names that libraries take from others."""
    for library in libraries:
        if (folder / library).exists():
            listed = subprocess.run(
                ["nm", "-D", "--undefined-only", folder / library], check=True, capture_output=True, text=True
            )
            for line in listed.stdout.splitlines():
                yield line.split()[-1].partition("@")[0]


# -- the questions


class Refusals(TorchDispatchMode):
    """Notes the operator that fails, with the types of its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failed: tuple[str, list[str]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            self.failed = name, [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
            raise


def refusal(op: Any, sample: Any, device: str) -> tuple[str, list[str], str] | None:
    """Run a sample, forward and backward; return what failed, its types, and the text."""
    values = (sample.input, sample.args, sample.kwargs)
    first, args, kwargs = tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad), values
    )
    try:
        with (mode := Refusals()):
            results = [leaf for leaf in tree_leaves(op(first, *args, **kwargs)) if torch.is_tensor(leaf)]
            ends = [result for result in results if result.requires_grad]
            leaves = [t for t in tree_leaves((first, args, kwargs)) if torch.is_tensor(t) and t.requires_grad]
            if ends and leaves:
                ones = [torch.ones_like(end) for end in ends]
                torch.autograd.grad(ends, leaves, ones, allow_unused=True)
    except Exception as error:
        return (*mode.failed, str(error)) if mode.failed else None
    return None


def ask(op: Any, dtype: torch.dtype) -> list[Any]:
    """Return, for samples of an operator, what the CPU and what CUDA refuses."""
    with_gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    try:
        found = op.sample_inputs("cpu", dtype, requires_grad=with_gradient)
        samples = list(islice((each for each in found if "device" not in each.kwargs), SAMPLES))
    except Exception:
        return []  # it cannot be asked for this type
    return [[refusal(op, sample, device) for device in ("cpu", "cuda")] for sample in samples]


def answers(names: list[str]) -> Iterator[list[Any]]:
    """Ask all; each operator and type in a process of its own, for what reads a result may crash."""
    torch.cuda.init()
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_initialized = lambda: True
    torch.cuda._is_in_bad_fork = lambda: False  # nothing is lost: there is no GPU
    for op in database.operators():
        if names and op.name not in names:
            continue
        for dtype in TYPES:
            reading, writing = os.pipe()
            if (child := os.fork()) == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
                with os.fdopen(writing, "w") as pipe:
                    json.dump(ask(op, getattr(torch, dtype)), pipe)
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                text = pipe.read().decode()
            os.waitpid(child, 0)
            if text.endswith("]"):
                yield from json.loads(text)
            else:
                print(f"no answer: {op.name}, {dtype}", file=sys.stderr)


# -- the table


def table(asked: Iterator[list[Any]]) -> dict[str, Any]:
    """Make the table of the package."""
    texts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    computed, absent, same = set(), set(), set()
    for cpu, cuda in asked:
        if cuda is None:
            continue
        name, types, text = cuda
        if found := ABSENT.match(text):
            absent.add(found[1])
        match = REFUSAL.fullmatch(text)
        if match is None and text != HALF:
            continue
        before, dtype, after = match.groups() if match else (HALF, "Half", "")
        if types[:1] != [BY_NAME.get(dtype)]:  # not by the type of the first tensor: factories
            continue
        key = name, types[0]
        texts[name][types[0]][before + "{}" * (match is not None) + after] += 1
        if cpu is None:
            computed.add(key)
        elif cpu[0] != name or cpu[2] == text:
            same.add(key)
    kinds: dict[str, Any] = {"torch": torch.__version__.split("+")[0], "refused": {}, "reworded": {}}
    for name in sorted(texts):
        for dtype in sorted(texts[name], key=TYPES.index):
            if (name, dtype) in same - computed:
                continue
            (text, _), *_ = texts[name][dtype].most_common(1)
            kind = "refused" if (name, dtype) in computed else "reworded"
            row = kinds[kind].setdefault(name, {})
            row[text] = f"{row[text]} {dtype}" if text in row else dtype
    return {**kinds, "absent": sorted(absent)}


def main(arguments: list[str]) -> None:
    """Do what the module's text says."""
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            environment = build(Path(folder))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            script = arguments[1:] if arguments[:1] == ["--run"] else [__file__, *arguments]
            subprocess.run([sys.executable, *script], env=environment, check=True)
        return
    warnings.simplefilter("ignore")
    made = json.dumps(table(answers(arguments)), indent=1) + "\n"
    if arguments:
        print(made)
    else:
        FILE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Between two lessons, PyTorch is as in a fresh process."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from _ext.torch_state import reset
from projects import CONF, Project
from sampling import some

# what a lesson can change, and how to read it
CHANGES = {
    "default device": ("torch.set_default_device('meta')", "str(torch.get_default_device())"),
    "seed": ("torch.manual_seed(7)", "torch.initial_seed()"),
    "numpy": ("np.random.seed(7)", "np.random.get_state()[1][0].item()"),
    "random": ("random.seed(7)", "random.getstate()[1][1]"),
    "deterministic": (
        "torch.use_deterministic_algorithms(True)",
        "torch.are_deterministic_algorithms_enabled()",
    ),
    "cudnn tf32": ("cudnn.conv.fp32_precision = 'ieee'", "cudnn.conv.fp32_precision"),
    "matmul tf32": ("matmul.fp32_precision = 'tf32'", "matmul.fp32_precision"),
    "threads": ("torch.set_num_threads(torch.get_num_threads() + 1)", "torch.get_num_threads()"),
    "environment": ("os.environ['GPULESSON_DEVICE'] = 'meta'", "os.environ.get('GPULESSON_DEVICE')"),
}
IMPORTS = """
import os, random
import numpy as np
import torch
from torch.backends import cudnn
matmul = torch.backends.cuda.matmul
"""
NAMES: dict[str, object] = {}
exec(IMPORTS, NAMES)


@pytest.fixture(autouse=True)
def afterwards():
    reset({}, "before")
    yield
    reset({}, "after")


@pytest.mark.slow
@pytest.mark.parametrize("name", some(CHANGES, every=3))
def test_a_change_ends_with_its_lesson(name):
    change, reading = CHANGES[name]
    before = eval(reading, NAMES)
    exec(change, NAMES)
    changed = eval(reading, NAMES)
    reset({}, "next lesson")
    assert eval(reading, NAMES) == before != changed


@pytest.mark.slow
def test_random_numbers_are_the_same_at_each_build():
    draws = []
    for _ in range(2):
        reset({}, "lesson")
        draws.append([torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()])
        torch.rand(5)
    assert draws[0] == draws[1]


@pytest.mark.slow
def test_a_build_keeps_lessons_apart(project: Project):
    """A real build: the first lesson changes everything, the second one tells what it found."""
    found = project.folder / "found"
    change = "\n".join(change for change, _ in CHANGES.values())
    texts = " + ".join(f"{name!r} + str({reading})" for name, (_, reading) in CHANGES.items())
    read = f"{IMPORTS}with open({str(found)!r}, 'a') as record: print({texts}, file=record)\n"
    start = '"""\nTitle\n=====\n\nSentence.\n"""\n'
    resets = 'sphinx_gallery_conf["reset_modules"] = ("matplotlib", "_ext.torch_state.reset")\n'
    project.write("conf.py", CONF + resets)
    project.write("examples/01_change.py", f"{start}{read}{change}\n")
    project.write("examples/02_read.py", f"{start}{read}")
    assert project.build().status == 0
    fresh, found_later = found.read_text().splitlines()
    assert fresh == found_later

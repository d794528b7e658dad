"""Between two lessons, PyTorch is as in a fresh process."""

from __future__ import annotations

import pytest
from projects import CONF, Project

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

"""The job scripts of ``examples/distributed``, with the lines changed that their readers are to change."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import torch

from gpulesson.data import excerpt_folder

SCRIPTS = Path(__file__).parents[2] / "examples" / "distributed"


def edited(name: str, folder: Path, training: tuple[str, ...], **lines: str) -> Path:
    """Copy a job script and its training script into a folder, with the excerpt and these options."""
    shutil.copy(SCRIPTS / "train_ddp.py", folder)
    text = (SCRIPTS / name).read_text("utf-8")
    lines = {"data": str(excerpt_folder()), "options": f"({shlex.join(training)})", **lines}
    for variable, value in lines.items():
        text, count = re.subn(
            rf"^{variable}=(\([^)]*\)|\S*)", f"{variable}={value}", text, flags=re.MULTILINE
        )
        assert count == 1, f"{name} has {count} lines {variable}=, expected one"
    copy = folder / name
    copy.write_text(text, "utf-8")
    return copy


def same_weights(file: Path, expected: dict[str, torch.Tensor], rounding: float = 0.0) -> bool:
    """Return whether a file holds these weights, each at most this far from the expected one."""
    found = torch.load(file)
    assert found.keys() == expected.keys()
    return all(torch.allclose(found[name], expected[name], rtol=0, atol=rounding) for name in found)

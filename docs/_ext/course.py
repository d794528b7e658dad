"""Offer the whole course as one file: lessons, exercises, solutions, the package, and what to install.

Unpacked into an empty folder, it runs there. The same content gives the same bytes: members are sorted and
have one date. Pages link to it as ``gpulesson-course.zip``, in the site's first folder.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from string import Template

import tomllib
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from .paths import examples_dir, executed_scripts, gallery_dir
from .wheel import FOLDER

NAME = "gpulesson-course"  # of the file, and of the folder in it
PYTORCH_FOR_CPU = "https://download.pytorch.org/whl/cpu"

README = """\
# gpulesson $version: the course in one folder

Lessons and exercises, each as a script and as a notebook, the solutions, and the package `$wheel`.
You need Python 3.11 or newer. In a terminal, in this folder:

    python3 -m venv gpulesson-env && source gpulesson-env/bin/activate
    pip install -r requirements.txt
    python lessons/01_is_there_a_gpu.py

On Windows, in PowerShell, replace the first line by these three, of which the second lets the window run
scripts:

    py -m venv gpulesson-env
    Set-ExecutionPolicy -Scope Process -Force RemoteSigned
    gpulesson-env\\Scripts\\Activate.ps1

With uv, the second command is `uv pip install -r requirements.txt`.

**Windows with an NVIDIA GPU?** The second command installs PyTorch for CPUs there. For the GPU install
PyTorch before it, as the site's page "Set up" says.

**No NVIDIA GPU?** On Linux the second command fetches PyTorch for CUDA, which is several gigabytes. Without
such a GPU install the same version for CPUs before it, which is far smaller:

    pip install $pytorch --index-url $cpu

With uv one command does all, `UV_TORCH_BACKEND=cpu uv pip install -r requirements.txt`, and
`UV_TORCH_BACKEND=auto` finds the build for the hardware that is there.

**Notebooks:** `pip install jupyterlab`, then `jupyter lab`, and open one of the folders `lessons` and
`exercises`. The first cell installs what is missing, from the file in this folder.

**Exercises:** write the functions of `exercises/exercise_01.py`, then ask what is wrong with them:

    python -m gpulesson check exercises/exercise_01.py

Licence: MIT for the code, CC BY 4.0 for the text, see `LICENSE`.
"""


def course(app: Sphinx) -> dict[str, bytes]:
    """Return the files of the course by their names in the folder."""
    root, examples, generated = Path(app.confdir), examples_dir(app), gallery_dir(app)
    wheel = Path(app.srcdir, FOLDER, app.config.gpulesson_wheel)
    found = {wheel.name: wheel, "LICENSE": root / "LICENSE"}
    for name, script in executed_scripts(app).items():  # guides go among the lessons
        notebook = (generated / name).with_suffix(".ipynb")
        found |= {f"lessons/{path.name}": path for path in (script, notebook)}
    for folder in ("exercises", "solutions", "scripts"):
        found |= {f"{folder}/{path.name}": path for path in (examples / folder).glob("*.py")}
    found |= {f"distributed/{path.name}": path for path in (examples / "distributed").glob("*.*")}
    for starter in (examples / "exercises").glob("*.py"):
        found[f"exercises/{starter.stem}.ipynb"] = generated / "exercises" / f"{starter.stem}.ipynb"
    files = {name: path.read_bytes() for name, path in found.items()}

    pins = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["lessons"]
    pytorch = [pin for pin in pins if pin.startswith(("torch==", "torchvision=="))]
    readme = Template(README).substitute(
        version=app.config.version, wheel=wheel.name, pytorch=" ".join(pytorch), cpu=PYTORCH_FOR_CPU
    )
    requirements = "".join(f"{line}\n" for line in (*pins, f"./{wheel.name}"))
    texts = {"README.md": readme, "requirements.txt": requirements}
    if app.config.gpulesson_course_branch:  # read by Binder, which has no GPU
        texts["binder/requirements.txt"] = f"--extra-index-url {PYTORCH_FOR_CPU}\n{requirements}"
        texts["binder/runtime.txt"] = "python-3.12\n"
    return files | {name: text.encode() for name, text in texts.items()}


def packed(files: dict[str, bytes]) -> bytes:
    """Pack files into a zip file, all of them in one folder."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(f"{NAME}/{name}")  # dated 1980, the first year that a zip file can have
            member.external_attr = 0o100644 << 16
            archive.writestr(member, files[name], zipfile.ZIP_DEFLATED)
    return content.getvalue()


def offer(app: Sphinx) -> None:
    """Write the file into the folder whose content Sphinx copies to the site's first folder."""
    Path(app.srcdir, FOLDER, f"{NAME}.zip").write_bytes(packed(course(app)))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.wheel")
    app.connect("builder-inited", offer, priority=700)  # after the notebooks
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

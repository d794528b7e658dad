"""The code below is the first cell of every notebook, with a call for the wheel and the site's address.

It needs nothing but Python, works in any kernel, and raises an error if the lesson could not run.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path


def install_gpulesson(wheel: str, site: str) -> None:
    """Install the course's package, and the libraries that the lessons use, if something is missing."""
    wanted = wheel.split("-")[1]
    modules = ["gpulesson", "matplotlib", "sklearn", "torch", "torchvision", "tqdm"]

    def is_there(name: str) -> bool:
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None  # a folder without code has no origin

    def version() -> str:
        try:
            return importlib.metadata.version("gpulesson")
        except importlib.metadata.PackageNotFoundError:  # a folder on the PYTHONPATH
            return str(importlib.import_module("gpulesson").__version__)

    def missing() -> list[str]:
        importlib.invalidate_caches()
        names = [name for name in modules if not is_there(name)]
        if "gpulesson" not in names and (found := version()) != wanted:
            names.append(f"gpulesson {wanted} (version {found} is here)")
        return names

    def stop(reason: str, remedy: str) -> None:
        raise RuntimeError(
            f"This notebook cannot run yet. Missing: {', '.join(missing())}.\n{reason}\n{remedy}\n"
            "Then restart the kernel, and begin again with this cell."
        )

    if not missing():
        return
    here = Path.cwd()
    folders = [here, here.parent] if here.name in ("lessons", "exercises") else [here]  # as the course has
    files = [folder / wheel for folder in folders if (folder / wheel).is_file()]
    if not files and not site:
        stop(
            f"Looked for {wheel} in {' and '.join(map(str, folders))}: it is not there.",
            "Download it from the course's page \"Set up\" into this notebook's folder. Or, if you have it "
            f'elsewhere, run:  %pip install "PATH/{wheel}[lessons]"',
        )
    address = files[0].as_uri() if files else site + wheel
    uv = shutil.which("uv")
    if is_there("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    elif uv:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        stop(
            f"The environment of {sys.executable} has no pip, and there is no uv on the PATH.",
            f'Install pip there, or run yourself:  uv pip install "gpulesson[lessons] @ {address}"',
        )
    print(f"Installing from {address} …")
    command.append(f"gpulesson[lessons] @ {address}")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    if done.returncode or missing():
        stop(
            f"{' '.join(command)}\nended with status {done.returncode}, and said:\n{done.stdout.strip()}",
            "Is there a network? (On Kaggle, switch it on in the notebook's settings.) If there is none, "
            'install it beforehand: the course\'s page "Set up" says how.',
        )

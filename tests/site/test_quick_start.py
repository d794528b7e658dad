"""A build without changes loads neither torch nor matplotlib, and changes are still noticed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from projects import CONF, lesson

BUILD = """
import sys
from sphinx.cmd.build import main
status = main(["-q", "-W", "-c", ".", "docs", "out"])
print("status", status, "loaded", *(name for name in ("matplotlib", "torch") if name in sys.modules))
"""


@pytest.fixture
def build(project):
    project.write(
        "conf.py",
        CONF
        + 'extensions += ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "_ext.quick_start"]\n'
        + 'sphinx_gallery_conf["reset_modules"] = ("matplotlib",)\n',
    )
    project.write("package/ours/__init__.py", "")
    project.write("package/ours/tool.py", "import torch\n\ndef one():\n    '''One.'''\n    return 1\n")
    project.write("docs/tables.rst", "Tool\n====\n\n.. automodule:: ours.tool\n   :members:\n")
    project.write(
        "examples/01_first.py",
        lesson(body="import matplotlib.pyplot as plt\n\nprint(plt.get_backend())\n_ = plt.plot([1, 2])"),
    )

    def build() -> str:
        environment = {**os.environ, "PYTHONPATH": str(project.folder / "package")}
        run = subprocess.run(
            [sys.executable, "-c", BUILD],
            cwd=project.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    build.project = project
    return build


@pytest.mark.slow
def test_only_what_changed_is_loaded(build):
    assert "status 0 loaded matplotlib torch" in build()
    first = build.project.page("lessons/01_first")
    assert "agg" in first.get_text() and first.select("img.sphx-glr-single-img")  # drawn without a window
    assert build().split() == ["status", "0", "loaded"]

    tool = build.project.folder / "package" / "ours" / "tool.py"
    tool.write_text(tool.read_text(encoding="utf-8").replace("return 1", "return 2"), encoding="utf-8")
    build()
    assert "return 2" in " ".join(build.project.page("_modules/ours/tool").get_text().split())

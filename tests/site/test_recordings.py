"""Recorded output beside the output of a build, in real projects: recorded by the real recorder.

The GPU alone is pretended: the lesson runs on the CPU, under the name of a GPU that does not exist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from _ext.recorded.files import RecordingError, described, load
from matplotlib.figure import Figure
from PIL import Image
from processes import run_script
from projects import CONF, ROOT, TABLES, Project, lesson
from test_recorded_files import RUN
from warm import WarmProcess

from practice_gpu import practice_gpu

pytestmark = pytest.mark.slow

PRETEND = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "docs")!r})
from _ext.recorded.files import Run
from _ext.recorded.run import record
record(Path("examples/01_first.py"), Path("docs/recordings"), {RUN!r}, Path.cwd())
"""
BODY = r'''
# %%
# What differs from machine to machine.

import os, sys, warnings
import torch

print("computed on", os.environ["MACHINE"])

# %%
# What does not: every way to put out a text.

print("a\ttab,\x1b[31m red\x1b[0m, \u201cquotes\u201d  ")
print("to stderr", file=sys.stderr)
warnings.warn("mind this")
[1, 2]

# %%
# A figure.

import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(4, 3))
axes.plot([1, 2])
axes.set_title("A line")
plt.show()

# %%
# A figure that tells the machine.

# fold: Draw it

plt.plot([2, 1])
plt.title(os.environ["MACHINE"])
print("drawn")

# %%
# What nobody needs.

# fold: Going further: once more

print("again on", os.environ["MACHINE"])

# %%
# HTML.

class Table:
    def _repr_html_(self):
        return "<table><tr><td>" + os.environ["MACHINE"] + "</td></tr></table>"

Table()

# %%
# Nothing.

silent = __name__

# %%
# On a CUDA GPU, as far as torch can tell.

from gpulesson import practice
practice.start(force=True)
print(torch.ones(1000, device="cuda").device)

# %%
# The last one.

practice.stop()
print(silent, sys.argv[1:], os.path.basename(os.getcwd()), round(torch.rand(1).item(), 4))
'''  # fmt: skip


def pretend(project: Project, **environment: str) -> subprocess.CompletedProcess[str]:
    """Record the lesson as on a GPU of that name: the recorder is real, in a separate process."""
    script = project.write("pretend.py", PRETEND)
    return run_script(project.warm, script, project.folder, **{"MACHINE": "the GPU", **environment})


def make(folder: Path, warm: WarmProcess | None) -> Project:
    project = Project(folder, warm)
    project.write(
        "conf.py",
        CONF
        + 'extensions += ["_ext.recorded.pages"]\n'
        + 'html_css_files, html_js_files = ["gpulesson.css"], ["gpulesson.js"]\n'
        + 'html_theme_options = {"top_of_page_buttons": []}\n'
        + f"html_static_path = [{str(ROOT / 'docs' / '_static')!r}]\n"
        + 'sphinx_gallery_conf["image_scrapers"] = ("_ext.figures.scrape", "_ext.recorded.pages.mark_cell")\n'
        + 'sphinx_gallery_conf["reset_modules"] = ("matplotlib", "_ext.torch_state.reset")\n',
    )
    project.write("docs/tables.rst", f"{TABLES}\n.. measured-table::\n\n   What it means.\n")
    project.write("examples/01_first.py", lesson(body=BODY))
    return project


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, sphinx) -> Project:
    """A project whose lesson was recorded on a GPU and built elsewhere; not to be changed."""
    project = make(tmp_path_factory.mktemp("recorded"), sphinx)
    run = pretend(project)
    assert run.returncode == 0, run.stderr
    build = project.build(MACHINE="this machine")
    assert build.status == 0, build.log
    return project


@pytest.fixture(scope="module")
def kept(recorded) -> Path:
    return recorded.keep()


@pytest.fixture
def project(recorded, kept) -> Iterator[Project]:
    """That project, to be changed: afterwards it is as it was."""
    yield recorded
    recorded.restore(kept)


def boxes(project: Project) -> list[str]:
    """The texts of the recorded boxes on the lesson's page."""
    return [" ".join(box.get_text().split()) for box in project.page("lessons/01_first").select(".recorded")]


LABEL = "Recorded: Pretended GPU 9000"


def test_both_outputs_stand_below_their_cell(recorded):
    page = recorded.page("lessons/01_first")
    (live,) = [tag for tag in page.select(".live") if tag.pre and "computed on" in tag.pre.get_text()]
    (said,) = page.select("p.machines")  # once a page, before all outputs
    assert said.find_all_next(class_="live")[0] is page.select_one(".live")
    assert re.fullmatch(
        r"All outputs here were computed on a CPU with PyTorch \d+\.\d+\. Boxes marked Recorded "
        r"show what a real GPU printed or drew: Pretended GPU 9000, PyTorch 9\.8, 2026-01-31\.",
        said.get_text(),
    )
    assert live.pre.get_text() == "computed on this machine\n"
    box = live.find_next_sibling()
    assert "recorded" in box["class"] and box.p.get_text() == LABEL
    assert box.pre.get_text() == "computed on the GPU\n"
    html = [tag.td.get_text() for tag in page.select(".output_html")]
    assert html == ["this machine", "the GPU"]


def test_what_a_gpu_put_out_likewise_is_not_shown_twice(recorded):
    """The recorder's texts are those of sphinx-gallery to the letter: prints, escapes, warnings, values."""
    found = boxes(recorded)
    assert len(found) == 4 and all(box.startswith(LABEL) for box in found)
    for part, box in zip(("computed on the GPU", "drawn", "again on the GPU", "the GPU"), found, strict=True):
        assert part in box
    text = next(cell.stdout for cell in load(recorded.folder / "docs/recordings/01_first.json").cells[2:])
    assert text[:2] == ("a       tab, red, “quotes”", "to stderr") and text[-1] == "[1, 2]"
    assert any("UserWarning: mind this" in line for line in text)


def test_an_aside_folds_its_outputs_away(recorded):
    page = recorded.page("lessons/01_first")
    (aside,) = [fold for fold in page.select("details.code") if "further" in fold.summary.get_text()]
    outputs = [output.get_text() for output in aside.select(".sphx-glr-script-out pre")]
    assert outputs == ["again on this machine\n", "again on the GPU\n"]


def test_what_a_gpu_computed_bears_its_name_and_memory(recorded):
    """A CUDA device names the live output; the memory is 1000 float32, in blocks of 512 bytes."""
    page = recorded.page("lessons/01_first")
    assert len([tag for tag in page.select(".live") if "cuda:0" in tag.get_text()]) == 1
    said = " ".join(label.get_text() for label in page.select(".live > p.machine"))
    assert "Computed on: Practice GPU (simulated on the CPU)" in said
    memory = [cell.peak_memory for cell in load(recorded.folder / "docs/recordings/01_first.json").cells]
    assert memory == [0, 0, 0, 0, 0, 0, 0, 0, 4096, 0]


def test_a_recorded_figure_comes_first_where_it_is_another(recorded):
    page = recorded.page("lessons/01_first")
    (picture,) = page.select(".recorded img")
    assert picture["alt"] == "the GPU" and picture["width"] == "640"
    fold = picture.find_parent(class_="recorded").find_next_sibling("details")
    assert re.fullmatch(
        r"The same on this build['’]s machine: CPU, PyTorch \d+\.\d+", fold.summary.get_text()
    )
    assert {image["alt"] for image in fold.select("img")} == {"this machine"}
    assert fold.pre.get_text() == "drawn\n"
    shown = recorded.folder / "out/lessons" / picture["src"]
    (file,) = (recorded.folder / "docs/recordings/01_first").glob("02-*")
    assert shown.read_bytes() == file.read_bytes() and file.read_bytes()[8:12] == b"WEBP"
    with Image.open(file) as opened:
        assert int(picture["height"]) == round(640 * opened.height / opened.width)


@pytest.mark.parametrize(
    ("labels", "alt"),
    [
        (("setosa", "virginica"), "Speeds, left"),
        (("CPU, 16 cores", "H200"), "Speeds, left, CPU, 16 cores, H200"),
    ],
)
def test_a_figure_is_described_with_the_devices_of_its_legend(labels, alt):
    figure = Figure()
    figure.suptitle("Speeds")
    axes = figure.subplots(1, 2)[0]
    axes.set_title("left")
    for label in labels:
        axes.plot([1], label=label)
    axes.legend()
    assert described(figure) == alt and described(Figure()) == "figure"


def test_every_cell_is_recorded_once_and_in_order(recorded):
    recording = load(recorded.folder / "docs/recordings/01_first.json")
    assert recording.run == RUN and recording.data == ()
    assert [cell.code for cell in recording.cells] == [
        'print("it ran")',
        "import os, sys, warnings",
        'print("a\\ttab,\\x1b[31m red\\x1b[0m, \\u201cquotes\\u201d  ")',
        "import matplotlib.pyplot as plt",
        "# fold: Draw it",
        "# fold: Going further: once more",
        "class Table:",
        "silent = __name__",
        "from gpulesson import practice",
        "practice.stop()",
    ]
    assert recording.cells[7].stdout == recording.cells[7].html == recording.cells[7].figures == ()
    assert recording.cells[9].stdout[0].startswith("__main__ [] examples 0.")


def test_downloads_know_nothing_of_recordings(recorded):
    lessons = recorded.folder / "docs/lessons"
    assert "ran-cell" in (lessons / "01_first.rst").read_text()
    files = [lessons / f"01_first.{kind}" for kind in ("py", "ipynb")]
    traces = (b"Pretended", b"ran-cell", b"the GPU", b"Recorded")
    assert not [(path.name, trace) for path in files for trace in traces if trace in path.read_bytes()]


def test_the_measured_table_says_what_when_and_with_what(recorded):
    page = recorded.page("tables")
    rows = [[cell.get_text() for cell in row.select("td")] for row in page.select("table.measured-table tr")]
    name, machine, data, seconds, current = rows[1]
    assert (name, data) == ("A lesson", "none")
    assert machine.split() == ["Pretended", "GPU", "9000", "2026-01-31"]
    assert seconds.endswith(" s") and current == "10 of 10 cells"
    (run,) = [item.get_text() for item in page.select("li") if "Pretended" in item.get_text()]
    for part in ("2 × ", "9.8.7", "CUDA 99.9", "0.98.7", "999.01", "3.99.1", "gpulesson 0.1.0", "Linux 9.9"):
        assert part in run
    assert "What it means." in page.get_text()


def test_a_page_follows_its_recording_and_no_lesson_runs_again(project):
    shutil.rmtree(project.folder / "docs/recordings")
    build = project.build(MACHINE="this machine")
    assert build.status == 0 and "successfully executed 0 out of 0" in build.log
    page = project.page("tables")
    assert "No GPU run has been recorded yet." in page.get_text()
    assert not page.select("table.measured-table") and "What it means." not in page.get_text()
    assert boxes(project) == []
    assert pretend(project, MACHINE="a faster GPU").returncode == 0
    build = project.build(MACHINE="this machine")
    assert build.status == 0 and "successfully executed 0 out of 0" in build.log
    assert any("computed on a faster GPU" in box for box in boxes(project))
    assert "0 added, 0 changed, 0 removed" in project.build(MACHINE="this machine").log


def test_a_changed_cell_and_those_after_it_are_out_of_date(project):
    """Which a build lists each time, and a build for a release refuses."""
    script = project.folder / "examples/01_first.py"
    script.write_text(script.read_text().replace("figsize=(4, 3)", "figsize=(4, 2)"))
    build = project.build(MACHINE="this machine")
    assert build.status == 0 and build.warnings() == []
    said = "recorded output is out of date for 7 cells of 01_first "
    listed = build.log.split(said)[1].splitlines()[1:8]
    lines = script.read_text().splitlines()
    firsts = [
        "import matplotlib",
        "# fold: Draw",
        "# fold: Going",
        "class Table:",
        "silent = ",
        "from gpulesson",
        "practice.stop()",
    ]
    for text, first in zip(listed, firsts, strict=True):
        line, code = re.fullmatch(r"  line (\d+): (.+)", text).groups()
        assert code.startswith(first)
        assert next(line for line in lines[int(line) - 1 :] if line.strip()) == code
    (found,) = boxes(project)
    assert "computed on the GPU" in found
    assert not project.page("lessons/01_first").select(".recorded img")
    assert "3 of 10 cells" in project.page("tables").get_text()
    build = project.build("-D", "gpulesson_release=1", MACHINE="this machine")
    assert build.status != 0 and build.warnings()[0].startswith(said)


# -- the recorder


def test_a_lesson_that_fails_leaves_the_old_recording(project):
    folder = project.folder / "docs/recordings"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    script = project.folder / "examples/01_first.py"
    script.write_text(script.read_text().replace("class Table:", "1 / 0\nclass Table:"))
    run = pretend(project)
    assert run.returncode != 0
    assert (
        "01_first.py, the cell at line " in run.stderr and "(1 / 0) failed: ZeroDivisionError" in run.stderr
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.fixture
def program(monkeypatch, tmp_path) -> ModuleType:
    """docs/record.py, which sets variables that no other test may see, and writes into another folder."""
    import record

    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setenv("GPULESSON_DEVICE", "cpu")
    return record


@pytest.mark.parametrize("gpu", [nullcontext, partial(practice_gpu, force=True)], ids=["no GPU", "practice"])
def test_nothing_is_recorded_without_a_real_gpu(program, gpu, tmp_path, capsys):
    with gpu():
        if gpu is nullcontext and torch.cuda.is_available():
            pytest.skip("there is a GPU")
        assert program.main(["01", "--into", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "a recording needs a CUDA GPU, and this machine has: " in said
    assert "Nothing was recorded." in said and not [*tmp_path.iterdir()]


def test_an_unknown_lesson_is_named(program, capsys):
    assert program.main(["99"]) == 1
    assert "no lesson begins with 99; there are 01_is_there_a_gpu, " in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="the program beside us is a script of the shell")
def test_nothing_is_recorded_beside_other_programs(program, monkeypatch, tmp_path, capsys):
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(program, "present_gpu", lambda _: RUN)
    monkeypatch.setattr(program, "record", lambda *_: pytest.fail("it was recorded"))
    smi.write_text(f"#!/bin/sh\necho '{os.getpid()}, python'; echo '7, train.py'\n")
    smi.chmod(0o755)
    assert program.main(["01"]) == 1
    assert "other programs use this machine's GPUs: 7, train.py. " in capsys.readouterr().err
    smi.write_text(f"#!/bin/sh\necho '{os.getpid()}, python'\n")
    assert program.other_programs() == []


def test_several_lessons_have_a_process_each(program, monkeypatch, tmp_path):
    """An error of CUDA's ends a process's use of the GPU: the next lesson must not meet it."""
    commands = []

    def run(command):
        commands.append((command[1:], os.environ["GPULESSON_DEVICE"]))
        return subprocess.CompletedProcess(command, -6 if "02" in command[-1] else 0)

    monkeypatch.setattr(program, "present_gpu", lambda _: RUN)
    monkeypatch.setattr(program, "other_programs", list)
    monkeypatch.setattr(program.subprocess, "run", run)
    assert program.main(["01", "02", "03", "--into", "a folder"]) == 6
    names = ["01_is_there_a_gpu", "02_tensors_and_devices", "03_first_model"]
    assert commands == [([program.__file__, "--into", "a folder", name], "cuda") for name in names]


@pytest.mark.thorough
def test_a_rehearsal_is_recorded_elsewhere_and_refused_by_every_reader(tmp_path):
    for missing in ("sphinx", "sphinx_gallery", "docutils"):  # a rented machine has no site builder
        (tmp_path / f"{missing}.py").write_text("raise ImportError(__name__)")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    command = ["-m", "gpulesson", "practice", "docs/record.py", "--rehearse", "--into", str(tmp_path), "02"]
    run = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0 and "02_tensors_and_devices.json (a rehearsal)" in run.stdout, run.stderr
    with pytest.raises(RecordingError, match=r"its gpu is 'Practice GPU.*; expected a real GPU"):
        load(tmp_path / "02_tensors_and_devices.json")


@pytest.mark.gpu(real=True)
def test_a_lesson_is_recorded_on_this_gpu(tmp_path):
    from _ext.recorded.run import present_gpu, record

    run = present_gpu()
    assert run.gpu == torch.cuda.get_device_name(0) and run.torch == torch.__version__
    recording = load(record(ROOT / "examples/02_tensors_and_devices.py", tmp_path, run, ROOT))
    assert recording.run.gpu == run.gpu
    assert max(cell.peak_memory for cell in recording.cells) > 0

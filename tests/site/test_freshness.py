"""Lessons run again when they should, and only then."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from _ext import freshness
from projects import CONF, Project, lesson
from sphinx_gallery import gen_rst

# -- the digest of a lesson


@pytest.fixture
def digest(tmp_path, monkeypatch) -> Callable[[str], str]:
    """Returns the digest of a lesson of a project as it is now: another one, and the lesson runs again."""
    for name in ("package/module.py", "_ext/tables.py", "conf.py", "package/data/labels-ubyte"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    for number in ("01", "02"):
        text = lesson(text=f".. drawing:: {number}.svg\n#\n# .. play:: race").replace(
            "01_task", f"{number}_task"
        )
        for folder in ("docs/lessons", "examples"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / f"{number}_x.py").write_text(text)
        for name in (f"examples/exercises/{number}_task.py", f"examples/solutions/{number}_task.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("before")
    for name in ("GPULESSON_DEVICE", "GPULESSON_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(freshness, "__file__", str(tmp_path / "_ext/freshness.py"))
    monkeypatch.setattr(gen_rst, "get_md5sum", gen_rst.get_md5sum)  # which is replaced
    gallery = {"examples_dirs": "../examples", "gallery_dirs": "lessons"}
    config = SimpleNamespace(gpulesson_packages=["package"], sphinx_gallery_conf=gallery)
    app = SimpleNamespace(confdir=tmp_path, srcdir=tmp_path / "docs", config=config)

    def digest(name: str) -> str:
        freshness.watch_everything(app)
        return gen_rst.get_md5sum(tmp_path / "docs/lessons" / name, "t")

    return digest


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("package/module.py", "both"),
        ("package/deeper/new.py", "both"),
        ("_ext/tables.py", "both"),
        ("_ext/deeper/new.py", "both"),
        ("conf.py", "both"),
        ("package/data/labels-ubyte", "both"),
        ("examples/exercises/02_task.py", "the second"),
        ("examples/solutions/02_task.py", "the second"),
        ("docs/drawings/02.svg", "the second"),
        ("docs/lessons/02_x.py", "the second"),
        ("docs/recordings/02_x.json", "the second"),
        ("docs/recordings/02_x/1.webp", "the second"),
        ("docs/page.rst", "neither"),
    ],
)
def test_a_changed_file_runs_the_lessons_that_depend_on_it(digest, tmp_path, file, changes):
    before = [digest("01_x.py"), digest("02_x.py")]
    assert before == [digest("01_x.py"), digest("02_x.py")] and before[0] != before[1]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("after, and longer")
    after = [digest("01_x.py"), digest("02_x.py")]
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert changed == [changes == "both", changes != "neither"]


@pytest.mark.parametrize("name", ["GPULESSON_DEVICE", "GPULESSON_SITE", "OMP_NUM_THREADS"])
def test_another_setting_runs_every_lesson(digest, monkeypatch, name):
    before = digest("01_x.py")
    monkeypatch.setenv(name, "another")
    assert digest("01_x.py") != before


def test_another_version_of_a_library_runs_every_lesson(digest, monkeypatch):
    before = digest("01_x.py")
    monkeypatch.setattr(freshness, "version", lambda name: importlib.metadata.version(name) + ".1")
    assert digest("01_x.py") != before


# -- builds


@pytest.fixture(scope="module")
def first_build(tmp_path_factory, sphinx) -> tuple[Project, Path]:
    """A project whose lessons and guide leave a line in a file whenever they run, built; and a copy of it."""
    project = Project(tmp_path_factory.mktemp("project"), sphinx)
    conf = CONF.replace(r"/\d\d_\w+\.py$", r"\.py$")
    project.write("conf.py", conf + 'sphinx_gallery_conf["reset_modules"] = ("_ext.freshness.tell_time",)\n')
    run = f'\n# %%\n# A run.\n\nopen({str(project.folder / "runs")!r}, "a").write("{{}} ")\n'
    for name in ("01_first", "02_second"):
        text = lesson(name, body=run.format(name)).replace("01_task", f"{name}_task")
        project.write(f"examples/{name}.py", text)
        for folder in ("exercises", "solutions"):
            project.write(f"examples/{folder}/{name}_task.py", "pass\n")
    project.write("examples/guides/GALLERY_HEADER.rst", "Beside\n------\n\nMore.\n")
    figure = "\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    guide = f'"""\nGuide\n=====\n\nText.\n"""\n{run.format("guide")}{figure}'
    project.write("examples/guides/by_name.py", guide)
    project.write("package/module.py", "one = 1\n")
    assert runs(project) == ["01_first", "02_second", "guide"]
    return project, project.keep()


@pytest.fixture
def project(first_build) -> Project:
    """That project as its first build left it."""
    project, kept = first_build
    project.restore(kept)
    return project


def runs(project: Project) -> list[str]:
    """Build, and return the lessons that ran."""
    record = project.write("runs", "")
    build = project.build()
    assert build.status == 0, build.log
    return record.read_text().split()


@pytest.mark.slow
def test_only_what_changed_runs_and_is_read(project):
    record = project.write("runs", "")
    build = project.build()
    assert record.read_text() == ""
    assert "0 added, 0 changed, 0 removed" in build.log, "a build without changes reads no page"

    solution = project.write("examples/solutions/02_second_task.py", 'print("another way")\n')
    starter = project.write("examples/exercises/02_second_task.py", "another = task\n")
    assert runs(project) == ["02_second"]
    page = project.page("lessons/02_second")
    assert page.select_one("details.solution pre").get_text() == solution.read_text()
    link = page.select_one("details.solution a.download")["href"]
    assert (project.folder / "out/lessons" / link).read_text() == solution.read_text()
    notebook = project.folder / "docs/lessons/exercises/02_second_task.ipynb"
    assert starter.read_text().strip() in notebook.read_text()

    project.write("package/module.py", "one = 2\n")
    record.write_text("")
    assert project.build().log.count(" s after the start)") == 3, "for each script that runs"
    assert record.read_text().split() == ["01_first", "02_second", "guide"]


@pytest.mark.slow
def test_a_renamed_script_leaves_nothing_behind(project):
    assert list(project.folder.glob("docs/lessons/**/*by_name_001.png"))
    guide = project.folder / "examples/guides/by_name.py"
    guide.rename(guide.with_name("renamed.py"))
    for folder in ("exercises", "solutions"):
        task = project.folder / f"examples/{folder}/02_second_task.py"
        task.rename(task.with_name("renamed_task.py"))
    script = project.folder / "examples/02_second.py"
    script.write_text(script.read_text().replace("02_second_task", "renamed_task"))
    assert runs(project) == ["02_second", "guide"]
    assert not list(project.folder.glob("docs/lessons/**/*by_name*"))
    assert not list(project.folder.glob("docs/lessons/**/*02_second_task*"))


@pytest.mark.slow
def test_a_build_fails_until_lesson_and_page_are_fixed(project):
    for made in ("out", "docs/lessons", "cache"):
        shutil.rmtree(project.folder / made, ignore_errors=True)
    script, page = project.folder / "examples/02_second.py", project.folder / "docs/index.rst"
    good, text = script.read_text(), page.read_text()
    script.write_text(good.replace('print("it ran")', 'raise RuntimeError("broken on purpose")'))
    page.write_text(text + "\n.. nonsense::\n")
    for _ in range(2):
        build = project.build()
        assert build.status != 0
        assert "02_second.py" in build.log and "broken on purpose" in build.log
        assert 'Unknown directive type "nonsense"' in build.log
    script.write_text(good)
    page.write_text(text)
    assert runs(project) == ["02_second"], "the others have not changed"
    thumbs = project.folder / "docs/lessons/images/thumb"
    first, second = (thumbs / f"sphx_glr_{name}_thumb.png" for name in ("01_first", "02_second"))
    assert first.read_bytes() == second.read_bytes(), "the thumbnail still says BROKEN"

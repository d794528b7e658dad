"""Lessons run again when they should, and only then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from projects import CONF, ROOT, Project, lesson

pytestmark = pytest.mark.slow  # each builds a project several times


@pytest.fixture(scope="module")
def first_build(tmp_path_factory, sphinx) -> tuple[Project, Path]:
    """A project whose two lessons leave a line in a file whenever they run, built once; and a copy of it."""
    project = Project(tmp_path_factory.mktemp("project"), sphinx)
    project.write("conf.py", CONF + 'sphinx_gallery_conf["reset_modules"] = ("_ext.freshness.tell_time",)\n')
    for name in ("01_first", "02_second"):
        run = f'\n# %%\n# A run.\n\nopen({str(project.folder / "runs")!r}, "a").write("{name} ")\n'
        project.write(f"examples/{name}.py", lesson(name, body=run).replace("01_task", f"{name}_task"))
        for folder in ("exercises", "solutions"):
            project.write(f"examples/{folder}/{name}_task.py", "pass\n")
    project.write("package/module.py", "one = 1\n")
    assert runs(project) == ["01_first", "02_second"]
    return project, project.keep()


@pytest.fixture
def project(first_build) -> Project:
    """That project as its first build left it."""
    project, kept = first_build
    project.restore(kept)
    return project


@pytest.fixture
def unbuilt(project) -> Project:
    """That project before its first build."""
    for made in ("out", "docs/lessons", "cache"):
        shutil.rmtree(project.folder / made, ignore_errors=True)
    return project


def runs(project: Project, *options: str, **environment: str) -> list[str]:
    """Build, and return the lessons that ran."""
    record = project.write("runs", "")
    build = project.build(*options, **environment)
    assert build.status == 0, build.log
    return record.read_text().split()


def test_a_build_says_how_long_it_has_taken(project):
    project.write("package/module.py", "one = 2\n")
    assert project.build().log.count(" s after the start)") == 2  # for each lesson


def test_nothing_changed_nothing_runs_and_nothing_is_read(project):
    record = project.write("runs", "")
    build = project.build()
    assert record.read_text() == ""
    assert "0 added, 0 changed, 0 removed" in build.log, "a build without changes reads no page"


def test_a_changed_package_runs_every_lesson(project):
    project.write("package/module.py", "one = 2\n")
    assert runs(project) == ["01_first", "02_second"]
    project.write("package/deeper/new.py", "")
    assert runs(project) == ["01_first", "02_second"]
    assert runs(project) == []


def test_a_changed_extension_runs_every_lesson(project):
    shutil.copytree(ROOT / "docs/_ext", project.folder / "_ext")
    project.write("conf.py", CONF.replace(str(ROOT / "docs"), str(project.folder), 1))
    runs(project)
    project.write("_ext/deeper/new.py", "")
    assert runs(project) == ["01_first", "02_second"]


def test_a_changed_lesson_runs_alone(project):
    script = project.folder / "examples/02_second.py"
    script.write_text(script.read_text().replace("A run.", "Another."))
    assert runs(project) == ["02_second"]


def test_a_guide_is_a_page_that_ran_too(project):
    project.write("conf.py", CONF.replace(r"/\d\d_\w+\.py$", r"\.py$"))
    project.write("examples/guides/GALLERY_HEADER.rst", "Beside\n------\n\nMore.\n")
    run = f"open({str(project.folder / 'runs')!r}, 'a').write('guide ')"
    guide = project.write("examples/guides/by_name.py", f'"""\nGuide\n=====\n\nText.\n"""\n\n{run}\n')
    assert runs(project) == ["01_first", "02_second", "guide"]
    assert runs(project) == []
    project.write("package/module.py", "one = 3\n")
    assert runs(project) == ["01_first", "02_second", "guide"]
    guide.write_text(guide.read_text().replace("Text.", "Other text."))
    assert runs(project) == ["guide"]
    guide.rename(guide.with_name("renamed.py"))
    assert runs(project) == ["guide"]
    assert not list(project.folder.glob("docs/lessons/**/*by_name*"))


@pytest.mark.parametrize("folder", ["exercises", "solutions"])
def test_a_changed_exercise_makes_its_lesson_anew(project, folder):
    project.write(f"examples/{folder}/02_second_task.py", "print(2)\n")
    assert runs(project) == ["02_second"]


def test_other_data_or_another_device_runs_every_lesson(project, tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    assert runs(project, GPULESSON_DEVICE="cpu") == ["01_first", "02_second"]
    assert runs(project, GPULESSON_DEVICE="cpu", GPULESSON_DATA=str(data)) == ["01_first", "02_second"]
    (data / "images").write_bytes(b"more")
    assert runs(project, GPULESSON_DEVICE="cpu", GPULESSON_DATA=str(data)) == ["01_first", "02_second"]
    assert runs(project, GPULESSON_DEVICE="cpu", GPULESSON_DATA=str(data)) == []


def test_another_address_runs_every_lesson(project):
    """It is in their notebooks."""
    assert runs(project, GPULESSON_SITE="https://example.org/") == ["01_first", "02_second"]


def test_data_in_the_cache_folder_counts_too(project):
    project.write("cache/gpulesson/images", "downloaded meanwhile")
    assert runs(project) == ["01_first", "02_second"]


def test_another_version_of_a_library_runs_every_lesson(project):
    assert runs(project, PYTHONPATH="") == [], "a new interpreter with the same libraries"
    old = 'import importlib.metadata\nimportlib.metadata.version = lambda name: "0.0.0"\n'
    project.write("sitecustomize.py", old)
    assert runs(project, PYTHONPATH=str(project.folder)) == ["01_first", "02_second"]


def test_a_failing_lesson_fails_the_build_until_it_is_mended(unbuilt):
    script = unbuilt.folder / "examples/02_second.py"
    good = script.read_text()
    script.write_text(good.replace('print("it ran")', 'raise RuntimeError("broken on purpose")'))
    for _ in range(2):
        build = unbuilt.build()
        assert build.status != 0
        assert "02_second.py" in build.log and "broken on purpose" in build.log
    script.write_text(good)
    assert runs(unbuilt) == ["02_second"], "the other one has not changed"
    thumbs = unbuilt.folder / "docs/lessons/images/thumb"
    first, second = (thumbs / f"sphx_glr_{name}_thumb.png" for name in ("01_first", "02_second"))
    assert first.read_bytes() == second.read_bytes(), "the thumbnail still says BROKEN"


def test_a_renamed_lesson_leaves_nothing_behind(project):
    figure = "\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])"
    script = project.folder / "examples/02_second.py"
    script.write_text(script.read_text() + figure)
    runs(project)
    assert list(project.folder.rglob("*sphx_glr_02_second_001.png"))
    script.rename(script.with_name("02_renamed.py"))
    assert runs(project) == ["02_second"]
    left = set((project.folder / "docs/lessons").rglob("*02_second*"))
    left -= set((project.folder / "docs/lessons/exercises").iterdir())  # its exercise has not been renamed
    assert not left


def test_a_warning_comes_back_until_it_is_mended(unbuilt):
    page = unbuilt.folder / "docs/index.rst"
    good = page.read_text()
    page.write_text(good + "\n.. nonsense::\n")
    for _ in range(2):
        build = unbuilt.build()
        assert build.status != 0 and 'Unknown directive type "nonsense"' in build.log
    page.write_text(good)
    assert runs(unbuilt) == [], "a warning on another page does not run the lessons again"

"""The wheels that the site offers hold the packages as they are."""

import zipfile
from pathlib import Path

from _ext.wheel import PRACTICE_GPU, build_wheel

ROOT = Path(__file__).parents[2]
OF_THE_PROJECT = {"pyproject.toml", "README.md", "LICENSE"}


def packed(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        return {name: archive.read(name) for name in names if ".dist-info/" not in name}


def sources(*packages: str) -> dict[str, bytes]:
    files = (path for package in packages for path in (ROOT / "src" / package).rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
        for path in files
        if path.suffix != ".pyc" and not (path.parent.name == "practice_gpu" and path.name in OF_THE_PROJECT)
    }


def test_the_wheel_of_the_course_holds_every_file_of_the_packages(tmp_path):
    expected = sources("gpulesson", "gpulesson_tools", "practice_gpu")
    starters = (ROOT / "examples" / "exercises").glob("*.py")
    expected |= {f"gpulesson_tools/exercises/starters/{path.name}": path.read_bytes() for path in starters}
    scripts = ROOT / "examples" / "scripts"
    found = scripts.rglob("*.py")
    expected |= {
        f"gpulesson/scripts/{path.relative_to(scripts).as_posix()}": path.read_bytes() for path in found
    }
    expected["gpulesson_tools/exercises/errors.rst"] = (ROOT / "docs" / "errors.rst").read_bytes()
    assert packed(build_wheel(ROOT, tmp_path)) == expected


def test_the_wheel_of_the_practice_gpu_holds_nothing_else(tmp_path):
    assert packed(build_wheel(ROOT / PRACTICE_GPU, tmp_path)) == sources("practice_gpu")

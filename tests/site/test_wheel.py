"""The wheel that the site offers holds the package as it is."""

import zipfile
from pathlib import Path

from _ext.wheel import build_wheel

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    wheel = build_wheel(ROOT, tmp_path / "wheels")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.startswith("gpulesson/")}
    files = (path for path in (ROOT / "src" / "gpulesson").rglob("*") if path.is_file())
    sources = [path for path in files if path.suffix != ".pyc"]
    expected = {path.relative_to(ROOT / "src").as_posix(): path.read_bytes() for path in sources}
    starters = (ROOT / "examples" / "exercises").glob("*.py")
    expected |= {f"gpulesson/exercises/starters/{path.name}": path.read_bytes() for path in starters}
    scripts = (ROOT / "examples" / "scripts").glob("*.py")
    expected |= {f"gpulesson/scripts/{path.name}": path.read_bytes() for path in scripts}
    expected["gpulesson/exercises/errors.rst"] = (ROOT / "docs" / "errors.rst").read_bytes()
    assert packed == expected

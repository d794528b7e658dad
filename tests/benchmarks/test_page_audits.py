"""The audits of the pages, with two programs that answer as Lighthouse and the validator do."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

import page_audits

# each round is one point worse; every page is opened over http, compressed, and answered with its own text
LIGHTHOUSE = """\
import gzip, json, sys, urllib.request
from pathlib import Path
address, *options = sys.argv[1:]
said = dict(option.split("=", 1) for option in options if "=" in option)
request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
text = gzip.decompress(urllib.request.urlopen(request).read()).decode()
rounds = Path(__file__).with_name("rounds")
rounds.write_text(rounds.read_text() + "." if rounds.exists() else ".")
score = 1 - 0.01 * len(rounds.read_text())
refs = [{"id": "poor", "weight": 1}, {"id": "unweighed", "weight": 0}, {"id": "good", "weight": 3}]
report = {
    "lighthouseVersion": "1.2.3",
    "categories": {name: {"score": score, "auditRefs": refs} for name in CATEGORIES},
    "audits": {
        "poor": {"title": f"{text} is poor", "score": 0.5},
        "unweighed": {"title": "not shown", "score": 0},
        "good": {"title": "not shown", "score": 1},
        "largest-contentful-paint": {"title": "", "score": 1, "numericValue": 500 * len(rounds.read_text())},
        "total-byte-weight": {"title": "", "score": 1, "numericValue": 2048},
    },
}
Path(said["--output-path"]).write_text(json.dumps(report))
"""
VNU = """\
import json, sys
if "--version" in sys.argv:
    sys.exit(print("4.5.6"))
errors = [{"type": "error", "message": "no div here"} for page in sys.argv if "lesson" in page]
errors.append({"type": "info", "subType": "warning", "message": "no matter"})
print("a warning of npm", file=sys.stderr)
print(json.dumps({"messages": errors}), file=sys.stdout if "--stdout" in sys.argv else sys.stderr)
sys.exit(1)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    """A folder on the PATH, with both programs, and a site of three pages."""
    folder, site = tmp_path / "bin", tmp_path / "site"
    for name, code in ("lighthouse", LIGHTHOUSE), ("vnu", VNU):
        install(folder / name, code.replace("CATEGORIES", repr([*page_audits.CATEGORIES])))
    for page in ("index", "lessons/01_one", "lessons/02_two"):
        path = site / f"{page}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(page_audits, "SITE", site)
    monkeypatch.setattr(page_audits, "PAGES", {"index": "landing page", "lessons/01_one": "one"})
    return folder


def install(path: Path, code: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)


def audit(monkeypatch, tmp_path) -> dict:
    file = tmp_path / "page_audits.json"
    monkeypatch.setattr(sys, "argv", ["page_audits.py", "--rounds", "2", "--json", str(file)])
    page_audits.main()
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.skipif(os.name != "posix", reason="the programs are scripts with a first line for Unix")
def test_the_lowest_scores_and_all_errors_are_kept(programs, monkeypatch, tmp_path):
    found = audit(monkeypatch, tmp_path)
    rows = [(row["page"], round(row["performance"]), row["wait"], row["size"]) for row in found["rows"]]
    assert rows == [("landing page", 98, 1.0, 2.0), ("one", 96, 2.0, 2.0)]
    values = {claim["what"]: round(claim["value"]) for claim in found["claims"]}
    assert values.pop("errors that the Nu validator finds in all 3 pages") == 2
    assert len(values) == 4 and {*values.values()} == {96}
    assert found["notes"] == [
        "To improve, landing page: index is poor.",
        "To improve, one: lessons/01_one is poor.",
        "2 times: no div here",
    ]
    assert (found["about"]["lighthouse"], found["about"]["validator"]) == ("1.2.3", "4.5.6")


@pytest.mark.skipif(os.name != "posix", reason="the programs are scripts with a first line for Unix")
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("lighthouse", "import sys; sys.exit('no browser')", r"ended with 1 at http\S+:\nno browser"),
        ("lighthouse", "", "Lighthouse ended with 0"),
        ("vnu", "import sys; sys.exit('no Java')", "The validator gave no answer:\nno Java"),
    ],
)
def test_a_program_that_fails_is_no_good_result(name, code, message, programs, monkeypatch, tmp_path):
    install(programs / name, code)
    before = set(threading.enumerate())
    with pytest.raises(SystemExit, match=message):
        audit(monkeypatch, tmp_path)
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in started), "the server is left behind"


def test_without_a_site_or_programs_it_says_what_to_do(programs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"neither lighthouse nor npx on the PATH: install Node\.js"):
        audit(monkeypatch, tmp_path)
    monkeypatch.setattr(page_audits, "SITE", tmp_path / "nothing")
    with pytest.raises(SystemExit, match="build it first, with `nox -s docs`"):
        audit(monkeypatch, tmp_path)

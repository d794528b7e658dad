"""What counts is what the check has seen itself: exercises 8 to 14, and the result of any."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpulesson.exercises import check, find
from gpulesson.exercises.findings import Source
from gpulesson.exercises.process import run
from gpulesson.exercises.rules import definitions
from gpulesson.exercises.trace import Trace

EXAMPLES = Path(__file__).parents[2] / "examples"
FUNCTIONS = {"08": "stopwatch", "09": "feed", "11": "mine", "12": "RATE"}
NUMBERS = list(FUNCTIONS)


def solution(number: str) -> Path:
    return EXAMPLES / "solutions" / find(number).solution


def answer(number: str, text: str, folder: Path, warm) -> list[tuple[str, int]]:
    """The failures of a program."""
    file = folder / f"{number}_mine.py"
    file.write_text(text)
    report = check(file, warm=warm)
    assert report.passed == (not report.findings), str(report)
    return [(finding.kind, finding.line) for finding in report.findings]


READERS = {
    "exec": "from pathlib import Path\nexec(Path({file!r}).read_text().replace('sys.exit', 'print'))\n",
    "run_path": (
        "import runpy\ntry:\n    {name} = runpy.run_path({file!r})['{name}']\nexcept SystemExit as end:\n"
        "    frame = end.__traceback__\n    while '{name}' not in frame.tb_frame.f_globals:\n"
        "        frame = frame.tb_next\n    {name} = frame.tb_frame.f_globals['{name}']\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("number", ["08", "09", "10", "11", "13"])
def test_a_program_that_reads_the_solution_has_not_passed(number, way, tmp_path, warm):
    text = READERS[way].format(file=str(solution(number)), name=FUNCTIONS.get(number, "train"))
    ((kind, _),) = answer(number, text, tmp_path, warm)
    assert kind in ("not-yours", "no-function")


COPIED = {
    "import": "# a friend's file\nfrom friend import *\n",
    "run_path": "from runpy import run_path\nglobals().update(run_path({file!r}))  # a friend's file\n",
    "call": "import friend\n\n\ndef {name}(*inputs):\n    return friend.{name}(*inputs)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "way", "expected"),
    [
        ("03", "import", ("another-file", 2)),
        ("03", "run_path", ("another-file", 2)),
        ("07", "import", ("another-file", 2)),
        ("08", "import", ("not-yours", 2)),
        ("08", "call", ("not-yours", 4)),
        ("11", "run_path", ("not-yours", 2)),
        ("14", "import", ("another-file", 2)),
    ],
)
def test_a_solution_copied_beside_the_file_does_not_count(number, way, expected, tmp_path, warm):
    friend = tmp_path / "friend.py"
    friend.write_text(re.sub(r"(?m)^sys\.exit\(.*", "", solution(number).read_text()))
    text = COPIED[way].format(file=str(friend), name=FUNCTIONS.get(number))
    assert answer(number, text, tmp_path, warm) == [expected]


@pytest.mark.slow
def test_a_module_of_ones_own_may_have_the_functions_that_train(tmp_path, warm):
    text = solution("03").read_text()
    start, end = text.index("    outputs = model(X_train)"), text.index("    if epoch % 10")
    names = "model, loss_fn, optimizer, X_train, y_train"
    (tmp_path / "helper.py").write_text(f"def step({names}):\n{text[start:end]}    return loss\n")
    text = f"{text[:start]}    loss = helper.step({names})\n{text[end:]}"
    assert (
        answer("03", text.replace("import torch\n", "import helper\nimport torch\n", 1), tmp_path, warm) == []
    )
    (tmp_path / "clock.py").write_text("def decorated(function):\n    return lambda *all: function(*all)\n")
    text = (Path(__file__).parent / "right/08_median_logged.py").read_text()
    text = text.replace("\n\n\ndef stopwatch", "\n\n\n@clock.decorated\ndef stopwatch")
    assert answer("08", text.replace('"""\n', '"""\n\nimport clock\n', 1), tmp_path, warm) == []


@pytest.mark.slow
def test_runs_of_the_solution_do_not_count(tmp_path, warm):
    text = READERS["exec"].format(file=str(solution("12")))
    ((kind, _),) = answer("12", text, tmp_path, warm)
    assert kind == "another-file"


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_a_renamed_function_is_missed(number, tmp_path, warm):
    name = FUNCTIONS[number]
    text = re.sub(rf"\b{name}\b", f"my_{name}", solution(number).read_text())
    expected = [] if number == "12" else [("no-function", 0)]  # there the runs count, not the name
    assert answer(number, text, tmp_path, warm) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_what_the_solution_prints_is_no_evidence(number, tmp_path, warm):
    report = check(solution(number), warm=warm)
    assert report.output
    ((kind, line),) = answer(number, f"print({report.output!r})\n", tmp_path, warm)
    assert kind in ("no-function", "nothing-compared") and line == 0


FORGED = {
    "08": ("found = stopwatch(machine, work)", "found = truth[name]"),
    "09": ("    nbytes = sum(", "    pictures.calls = 0\n    pixels = pixels.double()\n    nbytes = sum("),
    "11": (
        "with Count() as now:\n",
        "before.operators = before.nbytes = before.reads = 10**9\nwith Count() as now:\n",
    ),
    "12": ("needed.append((small, large))", "needed.append((small, small))"),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_counts_that_the_file_forges_change_nothing(number, tmp_path, warm):
    starter = (EXAMPLES / "exercises" / find(number).starter).read_text()
    old, new = FORGED[number]
    assert starter.count(old) == 1
    kinds = {kind for kind, _ in answer(number, starter.replace(old, new), tmp_path, warm)}
    expected = {
        "08": {"not-waited-for"},
        "09": {"called-for-each-sample", "floats-copied"},
        "11": {"bytes-for-nothing", "reads-for-nothing", "operators-for-nothing"},
        "12": {"verdict-changed"},
    }
    assert kinds == expected[number]


@pytest.mark.slow
def test_an_assertion_of_the_file_says_less_than_what_the_check_has_found(tmp_path, warm):
    text = "def stopwatch(machine, work):\n    machine.run(work)\n    return machine.now\n\n\nassert False\n"
    assert answer("08", text, tmp_path, warm) == [("not-waited-for", 3)]
    right = (Path(__file__).parent / "right" / "08_partial.py").read_text() + "\nassert False\n"
    assert answer("08", right, tmp_path, warm) == [("error", right.count("\n"))]
    inside = "def stopwatch(machine, work):\n    return machine.later\n\n\nstopwatch(1, 2)\n"
    assert answer("08", inside, tmp_path, warm) == [("error", 2)]


STRANGE = {
    "raises": ("    raise ValueError('no')\n", [("fails-when-called", 2)]),
    "exits": ("    raise SystemExit(0)\n", [("fails-when-called", 2)]),
    "a generator": ("    yield machine.now\n", [("no-number", 2)]),
    "a tensor": ("    import torch\n    return torch.ones(3)\n", [("no-number", 3)]),
    "not a number": ("    return float('nan')\n", [("nothing-measured", 1)]),
    "infinite": ("    machine.run(work)\n    return machine.now * float('inf')\n", [("not-waited-for", 3)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_function_gets_an_answer(name, tmp_path, warm):
    body, expected = STRANGE[name]
    found = answer("08", f"def stopwatch(machine, work):\n{body}", tmp_path, warm)
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stopwatch = 3\n", ("no-function", 1)),
        ("def stopwatch(machine):\n    return 1\n", ("other-arguments", 1)),
        ("stopwatch: object = lambda: 1\n", ("other-arguments", 1)),
        ("class stopwatch:\n    pass\n", ("other-arguments", 1)),
    ],
)
def test_what_cannot_be_called_so_is_named_with_its_line(text, expected, tmp_path, warm):
    assert answer("08", text, tmp_path, warm) == [expected]


@pytest.mark.slow
def test_a_function_that_never_ends_is_stopped_on_its_line(tmp_path, warm):
    """The program itself ends: it is the check's call that does not."""
    text = "def stopwatch(machine, work):\n    while machine.now < 10**18:\n        machine.run(work)\n"
    file = tmp_path / "08_mine.py"
    file.write_text(text.replace("10**18", "float('inf')") + "print('through')\n")
    report = check(file, warm=warm, time_limit=2)
    (finding,) = report.findings
    assert finding.kind == "time" and finding.line in (2, 3) and report.output == "through\n"


@pytest.mark.slow
def test_the_bound_on_memory_holds_while_the_check_calls(tmp_path, warm):
    text = "import torch\n\n\ndef stopwatch(machine, work):\n    return torch.ones(10**12).sum()\n"
    file = tmp_path / "08_mine.py"
    file.write_text(text)
    (finding,) = check(file, warm=warm).findings
    assert (finding.kind, finding.line) == ("fails-when-called", 5) and "memory" in finding.what


@pytest.mark.slow
def test_what_a_called_function_prints_is_not_the_programs_output(tmp_path, warm):
    text = (Path(__file__).parent / "right" / "08_partial.py").read_text()
    text = text.replace("    times = np", "    print('measuring')\n    times = np") + "print('the end')\n"
    file = tmp_path / "08_mine.py"
    file.write_text(text)
    report = check(file, warm=warm)
    assert report.passed and report.output == "the end\n"


# -- the result


FORGER = """
import json, os
from pathlib import Path
from gpulesson.exercises.trace import Trace

class stopwatch: pass  # the check needs the name in the text

trace = Trace(facts={facts!r})
private = Path(os.environ["GPULESSON_RUN"], "private")
content = json.dumps({{"status": "ran", "trace": trace.to_dict()}}).encode()
for name in ("result.json", "result.part"):
    (private / name).write_bytes({before})
os._exit(0)
"""
RIGHT = {"called": True, "idle": [[410.0, 10, 400, 2, [[1, 0, False], [2, 1, False]]]], "measured": {}}


@pytest.mark.slow
@pytest.mark.parametrize("before", ["content", "b'00' * 32 + b'\\n' + content", "b'\\n' + content"])
@pytest.mark.parametrize("start", ["real", "fork"])
def test_a_result_that_the_program_writes_itself_does_not_count(before, start, tmp_path, warm):
    if start == "real" and before != "content":
        pytest.skip("one real start is enough")
    file = tmp_path / "08_mine.py"
    file.write_text(FORGER.format(facts=RIGHT, before=before))
    report = check(file, warm=warm if start == "fork" else None)
    assert [finding.kind for finding in report.findings] == ["vanished"], str(report)


def test_the_forged_result_would_pass_if_it_were_believed():
    """So the test above tests the seal."""
    rules = find(8).rules
    source = Source("08_mine.py", ["def stopwatch(machine, work): ..."])
    trace = Trace.from_dict(Trace(facts=RIGHT).to_dict())
    assert not [finding for rule in rules for finding in rule(trace, source)]


@pytest.mark.slow
def test_the_key_of_the_seal_is_gone_before_the_program_begins(tmp_path, warm):
    text = (
        "import os\nfrom pathlib import Path\nfolder = Path(os.environ['GPULESSON_RUN'])\n"
        "files = [path for path in folder.rglob('*') if path.is_file()]\n"
        "print(sorted(path.name for path in files), any('key' in path.read_text() for path in files[:9]\n"
        "      if path.name != 'my_loop.py'))\n"
    )
    file = tmp_path / "my_loop.py"
    file.write_text(text)
    assert check(file, warm=warm).output == "['my_loop.py', 'stacks', 'started'] False\n"


def test_a_result_with_another_key_is_none(tmp_path):
    from gpulesson.exercises.process import child

    child._write(tmp_path, b"1" * 32, {"status": "ran"})
    assert run._result(tmp_path, b"1" * 32) == {"status": "ran"}
    assert run._result(tmp_path, b"2" * 32) is None
    assert run._result(tmp_path / "nowhere", b"1" * 32) is None


# -- where a name is defined


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\ndef f():\n    pass\n", 2),
        ("def f():\n    pass\nf = g(f)\n", 3),
        ("@wraps\ndef f(): pass\n", 2),
        ("if True:\n    f: int = 1\n", 2),
        ("try:\n    pass\nexcept E:\n    f = 1\n", 4),
        ("with a as (b, f):\n    pass\n", 1),
        ("from m import g as f\n", 1),
        ("def g():\n    f = 1\n", 0),
        ("def f(:\n", 0),
    ],
)
def test_the_line_that_defines_a_name(text, line):
    assert definitions.line(text.splitlines(), "f") == line

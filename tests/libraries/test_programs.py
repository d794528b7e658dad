"""Programs of public libraries compute on the practice GPU what they compute on the CPU.

Each runs in three processes: on the CPU; on the practice GPU, with the library imported before; and on the
practice GPU with the library imported there, as ``python -m gpulesson practice`` does it.
"""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._pytree import tree_flatten

from programs import FOLDER, PROGRAMS, TABLE, Program, read, run, write_row

RUN = str(FOLDER / "run_program.py")
WAYS = {
    "cpu": [RUN, "{name}", "cpu", "results.pt"],
    "before": [RUN, "{name}", "cuda", "results.pt", "before"],
    "inside": ["-m", "gpulesson", "practice", RUN, "{name}", "cuda", "results.pt"],
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_computes_the_same_on_the_practice_gpu(name, tmp_path, table, installed):
    program = PROGRAMS[name]
    found = installed(program.library)

    def in_a_folder(way):
        folder = tmp_path / way  # what one writes, another must not read
        folder.mkdir()
        return run([part.format(name=name) for part in WAYS[way]], folder)

    with ThreadPoolExecutor() as pool:
        cpu, *practised = pool.map(in_a_folder, WAYS)
    assert cpu.returncode == 0, f"on the CPU:\n{cpu.stdout}{cpu.stderr}"
    expected, _ = torch.load(tmp_path / "cpu" / "results.pt", weights_only=False)
    row = {"library": program.library, "version": found, "what": program.what}
    problems = []
    for way, done in zip(("before", "inside"), practised, strict=True):
        if done.returncode:
            row[way] = "fails"
            problems.append(f"imported {way}:\n{done.stdout}{done.stderr}")
            continue
        results, used = torch.load(tmp_path / way / "results.pt", weights_only=False)
        assert used, "it never used the practice GPU"
        if same(expected, results, 0.0):
            row[way] = "equal"
        elif same(expected, results, program.tolerance):
            row[way] = f"within {program.tolerance:g}"
        else:
            row[way] = "differs"
            problems.append(f"imported {way}:\n{results}\nand on the CPU:\n{expected}")
    if table:
        write_row(table, name, row)
    assert not problems, "\n".join(problems)


def same(first, second, tolerance):
    """Return whether two nests of tensors, numbers and others have the same structure and values."""
    (ones, shape), (others, other_shape) = tree_flatten(first), tree_flatten(second)
    return shape == other_shape and all(map(lambda one, other: alike(one, other, tolerance), ones, others))


def alike(one, other, tolerance):
    if isinstance(one, torch.Tensor):
        options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
        return one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, **options)
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) or (
            math.isnan(one) and math.isnan(other)
        )
    return one == other


@pytest.mark.parametrize(
    "first, second, close, equal",
    [
        ({"a": [1, "x"]}, {"a": [1, "x"]}, True, True),
        ([1], [2], False, False),
        ([1], [1, 1], False, False),
        (1.0, 1.0 + 1e-6, True, False),
        (math.nan, math.nan, True, True),
        (math.nan, 1.0, False, False),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), True, True),
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-6]), True, False),
        (torch.tensor([1.0]), torch.tensor([1]), False, False),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), False, False),
    ],
)
def test_how_results_are_compared(first, second, close, equal):
    assert (same(first, second, 1e-5), same(first, second, 0.0)) == (close, equal)


def test_the_committed_table_has_a_row_for_each_program_as_it_is_now():
    found = json.loads(TABLE.read_text(encoding="utf-8"))
    assert found["rows"].keys() == PROGRAMS.keys(), "run: nox -s libraries"
    pins = (FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    for name, row in found["rows"].items():
        program = PROGRAMS[name]
        assert (row["library"], row["what"]) == (program.library, program.what), name
        assert f'"{row["library"]}=={row["version"]}"' in pins, name
        assert {row["before"], row["inside"]} <= {"equal", f"within {program.tolerance:g}"}, name


def test_a_row_is_written_beside_those_of_the_same_pytorch(tmp_path, monkeypatch):
    file = tmp_path / "table.json"
    first, second = list(PROGRAMS)[:2]
    write_row(file, first, {"before": "equal"})
    write_row(file, "use_nothing", {})
    write_row(file, second, {"before": "fails"})
    assert json.loads(file.read_text())["rows"] == {first: {"before": "equal"}, second: {"before": "fails"}}
    monkeypatch.setattr("programs.version", lambda name: "another")
    write_row(file, second, {"before": "equal"})
    assert json.loads(file.read_text())["rows"] == {second: {"before": "equal"}}


def test_a_program_is_read_without_being_run(tmp_path):
    file = tmp_path / "use_it.py"
    file.write_text('"""It does.\n\nAll of it."""\n\nLIBRARY = "it"\nTOLERANCE = 1e-3\nraise SystemExit\n')
    assert read(file) == Program("use_it", "It does.", "it", 1e-3)

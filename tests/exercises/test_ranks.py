"""One program in two processes that know of one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulesson.exercises import check
from gpulesson.exercises.process import ranks
from gpulesson.exercises.process.run import Outcome
from gpulesson.exercises.trace import ErrorSeen, Site, Trace

NAMES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]


def run(text: str, warm, **options) -> list[Outcome]:
    return ranks.run_ranks(2, text.encode(), "mine.py", seconds=120, warm=warm, **options)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["real", "fork"])
def test_two_processes_find_one_another_and_share_a_folder(start, warm):
    text = f"""
import os, torch
from torch import distributed
print(*[os.environ[name] for name in {NAMES}], torch.cuda.device_count())
distributed.init_process_group("nccl")
rank = distributed.get_rank()
sum = torch.full((1,), rank + 1.0, device=f"cuda:{{rank}}")
open(f"{{rank}}.txt", "w").write("here")
distributed.all_reduce(sum)
print(sum.item(), sorted(os.listdir()))
"""
    outcomes = run(text, warm if start == "fork" else None)
    rest = "3.0 ['0.txt', '1.txt', 'mine.py']\n"
    assert [each.output for each in outcomes] == [
        f"{rank} {rank} 2 2 0 127.0.0.1 2\n{rest}" for rank in range(2)
    ]
    assert {each.status for each in outcomes} == {"ran"}
    assert ranks.joined(outcomes).output.count("rank ") == 2


STEPS = "import torch, os\nfrom torch import distributed\nrank = int(os.environ['RANK'])\n"
JOIN = "torch.cuda.set_device(rank)\ndistributed.init_process_group('nccl')\n"


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_is_told_and_not_that_the_other_was_left_alone(failing, warm, tmp_path):
    file = tmp_path / "14_mine.py"
    file.write_text(f"{STEPS}{JOIN}if rank == {failing}:\n    1 / 0\ndistributed.barrier()\n")
    ((kind, line),) = [(each.kind, each.line) for each in check(file, warm=warm).findings]
    assert (kind, line) == ("divided-by-zero", 7)


@pytest.mark.slow
def test_a_process_that_never_comes(warm, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "WAIT", 3.0)
    file = tmp_path / "14_mine.py"
    file.write_text(f"{STEPS}if rank == 0:\n    distributed.init_process_group('nccl')\n")
    (finding,) = check(file, warm=warm).findings
    assert (finding.kind, finding.line) == ("idle", 5) and "waited for 3 seconds" in finding.what


@pytest.mark.slow
def test_an_endless_loop_in_one_process_is_told_and_not_that_the_other_waits(warm, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "WAIT", 1.0)
    file = tmp_path / "14_mine.py"
    file.write_text(f"{STEPS}{JOIN}while rank:\n    pass\ndistributed.barrier()\n")
    (finding,) = check(file, warm=warm, time_limit=5).findings
    assert finding.kind == "time" and finding.line in (6, 7)


@pytest.mark.slow
def test_a_process_that_vanishes_takes_the_other_along(warm):
    outcomes = ranks.run_ranks(
        2, f"{STEPS}while rank:\n    pass\nos._exit(3)\n".encode(), "mine.py", seconds=60, warm=warm
    )
    assert [each.status for each in outcomes] == ["vanished", "stopped"]
    found = ranks.joined(outcomes)
    assert (found.status, found.returncode) == ("vanished", 3)


@pytest.mark.slow
def test_an_exit_status_of_one_process_counts(warm, tmp_path):
    file = tmp_path / "14_mine.py"
    solution = Path(__file__).parents[2] / "examples" / "solutions" / "solution_14.py"
    text = f"{solution.read_text()}raise SystemExit(rank)\n"
    file.write_text(text)
    (finding,) = check(file, warm=warm).findings
    assert (finding.kind, finding.line) == ("exited", text.count("\n"))


def error(message: str) -> Outcome:
    return Outcome("ran", Trace(error=ErrorSeen("RuntimeError", message, Site("a.py", 1), [], {})))


ALONE = error("[pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (error("shapes"), ALONE),
        (error("shapes"), Outcome("idle")),
        (Outcome("memory"), ALONE),
        (Outcome("time"), Outcome("idle")),
        (Outcome("idle"), ALONE),
        (ALONE, Outcome("ran", Trace())),
        (Outcome("ran", Trace(exit_code=1)), Outcome("ran", Trace())),
        (Outcome("ran", Trace()), Outcome("stopped")),
    ],
)
def test_the_outcome_that_says_more_is_taken(more, less):
    for both in ([more, less], [less, more]):
        found = ranks.joined(both)
        assert (found.status, found.trace) == (more.status, more.trace)


def test_the_trace_has_those_of_all_ranks_in_their_order():
    outcomes = [Outcome("ran", Trace(program=name), output=name) for name in ("first", "second")]
    found = ranks.joined(outcomes)
    assert [trace.program for trace in found.trace.ranks] == ["first", "second"]
    assert found.output == "rank 0:\nfirst\nrank 1:\nsecond"
    lone = ranks.joined([outcomes[0], Outcome("stopped")])
    assert lone.trace.ranks == [] and lone.output == "first"

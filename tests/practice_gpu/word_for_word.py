"""The same programs on a real GPU and on the practice GPU: what each raises, says and gives, side by side.

    python tests/practice_gpu/word_for_word.py FOLDER [--only operator mistake] [--rehearse]

Programs are the operators of ``oracle.py``, the mistakes of ``test_mistakes.py``, causes and fixes of the
page of error messages, and the solutions of the exercises. Each runs in a separate process, with a limit.
``answers.jsonl`` in the folder gets each answer at once, so that a second run asks only what is missing;
``word_for_word.txt`` gets the comparison. A difference is a finding, not a failure. In a rehearsal both sides
are practice GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(folder) for folder in (HERE, ROOT / "tests", ROOT / "tests" / "site", ROOT / "src")]

import oracle  # noqa: E402
import test_mistakes  # noqa: E402
import torch  # noqa: E402
from errors_page import CAUSE, FIX, plain, sections  # noqa: E402
from warm import PRELOADED, WarmProcess  # noqa: E402

from practice_gpu import practice_gpu  # noqa: E402

SIDES = ("real", "practice")
LIMIT = 120  # seconds for one process
RANDOM = {"dropout"}  # results are not compared: CUDA's random numbers are not simulated
ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: ((?:.|\n)*))?\Z", re.M)
Answer = dict[str, Any]
NONE = {"type": "none"}  # a process gave no answer: it is asked again by a second run


@dataclass(frozen=True)
class Program:
    """A name, its group, and what runs: the names of several cases, or a script."""

    group: str
    name: str
    cases: tuple[str, ...] = ()
    script: str = ""

    @property
    def keys(self) -> list[str]:
        """The names of its answers."""
        return [f"{self.group}: {case}" for case in self.cases or (self.name,)]


def programs() -> Iterator[Program]:
    """Yield all programs."""
    mixes: dict[str, list[str]] = {}
    for name, mix in oracle.cases():
        mixes.setdefault(name, []).append(f"{name} | {mix}")
    for name, cases in mixes.items():
        yield Program("operator", name, tuple(cases))
    for mistake in test_mistakes.MISTAKES:
        yield Program("mistake", mistake, (mistake,))
    for section in sections():
        elsewhere = ("without a GPU", "with PyTorch for", "only where it is simulated")
        if not section.cited and not any(map(section.marked, elsewhere)):
            for caption in (CAUSE, FIX):
                yield Program("error page", f"{section.anchor}, {caption}", script=section.program(caption))
    for file in sorted((ROOT / "examples" / "solutions").glob("*.py")):
        yield Program("solution", file.stem, script=file.read_text(encoding="utf-8"))


# -- in a process of its own


def answer(file: str, side: str, simulated: bool, group: str, cases: list[str]) -> None:
    """Run cases one after the other, and append each answer to the file."""
    torch.backends.cudnn.allow_tf32 = False  # so that numbers can be compared
    with practice_gpu(force=True) if simulated else nullcontext():
        for case in cases:
            torch.manual_seed(0)
            found: Answer = {"key": f"{group}: {case}", "side": side, "type": "", "text": "", "value": None}
            try:
                with torch.no_grad() if group == "operator" else nullcontext():
                    value = function_of(group, case)()
                torch.cuda.synchronize()  # an assert on the device is heard of here
                if case.partition(" | ")[0] not in RANDOM:
                    found["value"] = described(value)
            except Exception as error:
                found |= {"type": type(error).__name__, "text": str(error)}
            append(Path(file), found)


def function_of(group: str, case: str) -> Callable[[], Any]:
    if group == "mistake":
        return test_mistakes.MISTAKES[case][0]
    name, mix = case.split(" | ")
    return lambda: oracle.run(name, mix, oracle.on_gpu)


def described(value: Any) -> Any:
    """Say what a result is, as JSON can: of a tensor dtype, shape, device, and the first numbers."""
    if isinstance(value, torch.Tensor):
        numbers = torch.view_as_real(value) if value.is_complex() else value
        first = numbers.detach().cpu().double().flatten()[:8].tolist()
        return [f"{value.dtype} {list(value.shape)} on {value.device}", *first]
    if isinstance(value, tuple | list):
        return [described(part) for part in value]
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def machine(simulated: bool) -> None:
    """Print the name of the GPU, and of torch's version."""
    with practice_gpu(force=True) if simulated else nullcontext():
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))


# -- asking


def append(file: Path, found: Answer) -> None:
    with file.open("ab", buffering=0) as out:  # in one piece, as several processes write
        out.write(f"{json.dumps(found)}\n".encode())


class Asking:
    """Asks both sides; in a rehearsal both are practice GPUs."""

    def __init__(self, warm: WarmProcess, folder: Path, rehearse: bool) -> None:
        self.warm, self.folder, self.simulated = warm, folder, {"practice": True, "real": rehearse}
        self.file = folder / "answers.jsonl"
        self.file.touch()

    def answers(self) -> dict[tuple[str, str], Answer]:
        """Read the answers so far, by key and side."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        whole = [json.loads(line) for line in lines if line.endswith("}")]  # the last may have been cut
        return {(found["key"], found["side"]): found for found in whole}

    def start(self, side: str, function: str, *arguments: Any) -> tuple[int | None, str, str]:
        """Call a function in a fork; return its status, None after the time limit, and what it printed."""
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.simulated[side] else {}
        with tempfile.TemporaryDirectory() as empty:
            fork = self.warm.start(
                function,
                *arguments,
                folder=empty,
                environment={**os.environ, **hidden},
                stderr=subprocess.PIPE,
            )
            try:
                output, errors = fork.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                return None, "", ""
        return fork.returncode, output, errors

    def ask(self, program: Program, side: str) -> None:
        """Get one side's answers, which say so if a process gave none."""
        simulated = self.simulated[side]
        if program.cases:
            arguments = [str(self.file), side, simulated, program.group, list(program.cases)]
            status, _, _ = self.start(side, "word_for_word:answer", *arguments)
        else:
            script = self.folder / "programs" / f"{re.sub(r'[^A-Za-z0-9]+', '_', program.name)}.py"
            script.parent.mkdir(exist_ok=True)
            script.write_text(program.script, encoding="utf-8")
            run = (
                ("practice_gpu.command:main", [str(script)]) if simulated else ("runpy:run_path", str(script))
            )
            status, output, errors = self.start(side, *run, *[] if simulated else [None, "__main__"])
            if status is not None:
                append(self.file, {"key": program.keys[0], "side": side, **of_script(status, output, errors)})
        given = self.answers()
        for key in program.keys:
            if given.get((key, side), NONE)["type"] == "none":
                text = f"no answer within {LIMIT} s" if status is None else f"its process ended with {status}"
                append(self.file, {"key": key, "side": side, "type": "none", "text": text, "value": None})


def of_script(status: int, output: str, errors: str) -> Answer:
    """Read the error that ended a script from its traceback; its value is its status and what it printed."""
    tail = errors.rpartition("Traceback (most recent call last):")[2]
    lines = tail.strip().split("\n")
    first = next((n for n, line in enumerate(lines) if n and not line.startswith((" ", "\t"))), 0)
    found = ERROR.match("\n".join(lines[first:])) if status and "Traceback" in errors else None
    kind, text = found.groups() if found else ("", "")
    return {"type": kind.rpartition(".")[2], "text": (text or "").strip(), "value": [status, output]}


# -- comparing


def verdict(real: Answer, practice: Answer, gpus: dict[str, str]) -> str:
    """Say how far two answers agree; names of GPUs count as the same."""
    if "none" in (real["type"], practice["type"]):
        return "no answer"
    if real["type"] != practice["type"]:
        return "other type"
    one, other = (answer["text"].replace(gpus[answer["side"]], "GPU") for answer in (real, practice))
    if one != other:
        same = plain(one.split("\n")[0]) == plain(other.split("\n")[0])
        return "same first line" if same else "other text"
    if real["key"].startswith(("operator", "mistake")):
        return "agree" if alike(real["value"], practice["value"]) else "other value"
    (status, said), (its_status, its_said) = real["value"], practice["value"]
    said, its_said = said.replace(gpus["real"], "GPU"), its_said.replace(gpus["practice"], "GPU")
    return "agree" if (status, plain(said)) == (its_status, plain(its_said)) else "other value"


def alike(one: Any, other: Any) -> bool:
    """Compare what `described` says: numbers nearly, all else exactly."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-5) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def text_of(rows: list[tuple[str, str, Answer, Answer]], about: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, from rows of group, verdict and the two answers: first the counts."""
    yield f"{about['device']}, torch {about['torch']}, and the practice GPU: {len(rows)} answers"
    for (group, result), count in Counter(row[:2] for row in rows).items():
        yield f"  {group:10}  {result:15}  {count:4}"
    for _, result, *sides in rows:
        if result != "agree":
            yield f"\n{sides[0]['key']}: {result}"
            for side, said in zip(SIDES, sides, strict=True):
                yield f"  {side:8}  {said['type'] or 'no error'}: {said['text']}  {json.dumps(said['value'])}"
    yield "\nThe same on both:"
    yield from (
        f"  {real['key']}: {real['type'] or 'no error'}" for _, result, real, _ in rows if result == "agree"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="groups that begin so")
    parser.add_argument("--rehearse", action="store_true", help="two practice GPUs")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [program for program in programs() if program.group.startswith(tuple(options.only))]
    paths = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
    with WarmProcess((*PRELOADED, "word_for_word"), {**os.environ, "PYTHONPATH": paths}) as warm:
        asking = Asking(warm, folder, options.rehearse)
        about = {}
        for side in SIDES:
            status, output, errors = asking.start(side, "word_for_word:machine", asking.simulated[side])
            if status:
                raise SystemExit(errors or output)
            about[side] = json.loads(output)
        gpus = {side: about[side]["device"] for side in SIDES}
        given = asking.answers()
        todo = [
            (program, side)
            for program in chosen
            for side in SIDES
            if any(given.get((key, side), NONE)["type"] == "none" for key in program.keys)
        ]
        pool = ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2))
        try:
            list(pool.map(lambda one: asking.ask(*one), todo))
        finally:  # also after Ctrl-C: a table of what is there
            pool.shutdown(wait=False, cancel_futures=True)
            found, rows = asking.answers(), []
            for group, key in [(program.group, key) for program in chosen for key in program.keys]:
                pair = [found[key, side] for side in SIDES if (key, side) in found]
                if len(pair) == 2:
                    rows.append((group, verdict(*pair, gpus), *pair))
            table = "\n".join(text_of(rows, about["real"]))
            (folder / "word_for_word.txt").write_text(f"{table}\n", encoding="utf-8")
            counts = Counter(row[1] for row in rows)
            print(", ".join(f"{count} {name}" for name, count in counts.items()), flush=True)


if __name__ == "__main__":
    main()

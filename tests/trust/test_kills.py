"""A run that is killed and started again ends with the bits of one that nothing disturbed."""

import contextlib
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.slow  # each try is a process


@pytest.mark.thorough  # as the next one, but saved by hand
def test_killed_each_epoch(tally, warm, tmp_path):
    stop_and_resume("runs:train_each_epoch", signal.SIGKILL, tally, warm, tmp_path)


def test_killed_each_step(tally, warm, tmp_path):
    stop_and_resume("runs:train_each_step", signal.SIGKILL, tally, warm, tmp_path)


@pytest.mark.thorough
def test_stopped_each_step(tally, warm, tmp_path):
    """AutoSave turns SIGTERM into a save and an end."""
    stop_and_resume("runs:train_each_step", signal.SIGTERM, tally, warm, tmp_path)


def stop_and_resume(program, how, tally, warm, tmp_path):
    expected, seconds = {}, {}
    for workers in (0, 2):
        begin = time.monotonic()
        expected[workers] = state_of(start(warm, program, tmp_path / f"whole {workers}", workers))
        seconds[workers] = time.monotonic() - begin
    assert expected[0] and expected[2]
    ended = -how if how == signal.SIGKILL else 128 + how
    writing = []  # the runs that were stopped while they wrote a file

    def attempt(number):
        """Stop one run, up to three times, and let it end; None: it was too quick to be stopped."""
        workers, chance = number % 2 * 2, random.Random(number)
        folder, stops = tmp_path / str(number), 0
        for _ in range(chance.choice([1, 1, 2, 3])):
            run = start(warm, program, folder, workers)
            assert run.stdout.readline() == "begun\n"
            time.sleep(chance.random() * seconds[workers])
            stop(run, how)
            output = run.communicate()[0]
            stops += run.returncode == ended
            writing.extend(number for path in folder.iterdir() if path.name.endswith(".part"))
            if run.returncode not in (0, ended, -how):
                return f"run {number} was to be stopped: exit {run.returncode}: {output[-600:]}"
        if not stops:
            return None
        run = start(warm, program, folder, workers)
        output = run.communicate()[0]
        left = [path.name for path in folder.iterdir() if path.name.endswith(".part")]
        if f"state {expected[workers]}" not in output:
            return f"run {number}, {workers} workers, {stops} stops: exit {run.returncode}: {output[-600:]}"
        return f"run {number} left {left}" if left else ""

    wanted = tally.some(tally.row.least)
    tried = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while tally.of < wanted:
            assert tried < 4 * wanted + 20, "hardly any run could be stopped"
            more = range(tried, tried + wanted - tally.of)
            tried = more.stop
            for problem in pool.map(attempt, more):
                if problem is not None:
                    tally.count(problem)
    if how == signal.SIGKILL:
        tally.notes.append(f"{len(set(writing))} of them while a file was being written")


def stop(run, how):
    """Send a signal: to a whole process group, as a cluster does, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, how)


def start(warm, program, folder, workers):
    folder.mkdir(exist_ok=True)
    return warm.start(program, str(folder), workers, folder=folder.parent)


def state_of(run):
    output = run.communicate()[0]
    assert run.returncode == 0, output
    return output.split("state ")[1].strip()

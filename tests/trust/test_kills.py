"""A run that is killed and started again ends with the bits of one that nothing disturbed."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.slow


def test_killed_each_epoch(tally, warm, tmp_path):
    kill_and_resume("runs:train_each_epoch", tally, warm, tmp_path)


def test_killed_each_step(tally, warm, tmp_path):
    kill_and_resume("runs:train_each_step", tally, warm, tmp_path)


def kill_and_resume(program, tally, warm, tmp_path):
    expected, seconds = {}, {}
    for workers in (0, 2):
        begin = time.monotonic()
        expected[workers] = state_of(start(warm, program, tmp_path / f"whole {workers}", workers))
        seconds[workers] = time.monotonic() - begin
    assert expected[0] and expected[2]

    def attempt(number):
        """Kill one run, up to three times, and let it end; None: it was too quick to be killed."""
        workers, chance = number % 2 * 2, random.Random(number)
        folder, kills = tmp_path / str(number), 0
        for _ in range(chance.choice([1, 1, 2, 3])):
            run = start(warm, program, folder, workers)
            assert run.stdout.readline() == b"begun\n"
            time.sleep(chance.random() * seconds[workers])
            run.kill()
            kills += run.returncode == -signal.SIGKILL
            run.communicate()
        if not kills:
            return None
        run = start(warm, program, folder, workers)
        output = run.communicate()[0].decode()
        left = [path.name for path in folder.iterdir() if path.name.endswith(".part")]
        if f"state {expected[workers]}" not in output:
            return f"run {number}, {workers} workers, {kills} kills: exit {run.returncode}: {output[-600:]}"
        return f"run {number} left {left}" if left else ""

    wanted = tally.some(tally.row.least)
    tried = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while tally.of < wanted:
            assert tried < 4 * wanted + 20, "hardly any run could be killed"
            more = range(tried, tried + wanted - tally.of)
            tried = more.stop
            for problem in pool.map(attempt, more):
                if problem is not None:
                    tally.count(problem)


def start(warm, program, folder, workers):
    folder.mkdir(exist_ok=True)
    return warm.start(program, str(folder), workers, folder=folder.parent)


def state_of(run):
    output = run.communicate()[0].decode()
    assert run.returncode == 0, output
    return output.split("state ")[1].strip()

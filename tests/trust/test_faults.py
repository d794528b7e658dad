"""A real error or signal at each system call leaves what was there whole, is told, and leaves no litter."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from system_calls import traced

pytestmark = pytest.mark.slow  # each try is a process

ERRORS = ("ENOSPC", "EIO", "EACCES", "EROFS")


def test_signals_in_a_save(tally, warm, tmp_path):
    ways = [("SIGINT", "", "KeyboardInterrupt"), ("SIGTERM", "exit", "SystemExit"), ("SIGTERM", "", None)]
    calls = each_call(warm, tmp_path, "save")

    def attempt(case):
        number, ((call, nth), (signal, how, expected)) = case
        folder = made(tmp_path / f"{number}")
        inject = f"{call}:signal={signal}:when={nth}"
        done = traced(warm, folder, "save", str(folder), inject=inject, how=how)
        found = verdict(done, warm, folder, inject, expected)
        shutil.rmtree(folder)
        return found

    count(tally, attempt, tally.pick(list(enumerate(product(calls, ways)))))
    tally.notes.append(f"{len(calls)} system calls, three ways of being stopped")


def verdict(done, warm, folder, inject, expected):
    """Say what is wrong with how a save met a signal; `expected`: what must come out of it, None: the end."""
    if not done.hit:
        return f"{inject}: never reached"
    if expected is None:
        then = warm.start("runs:after_the_end", str(folder), folder=folder)
        output = then.communicate()[0]
        return "" if done.status == -15 and output == "well\n" else f"{inject}: {done.status}, then {output}"
    if done.told is None:
        return f"{inject}: {done.output[-500:]}"
    if expected not in done.told["error"]:
        return f"{inject}: it became {done.told['error'][:1]} {done.told['message']}"
    return done.told["wrong"] and f"{inject}: {done.told['wrong']}"


def test_faults_in_a_save(tally, warm, tmp_path):
    fault_everywhere(tally, warm, tmp_path, "save", "CheckpointError")


def test_faults_in_latest(tally, warm, tmp_path):
    fault_everywhere(tally, warm, tmp_path, "latest", "CheckpointError")


def test_faults_in_a_resume(tally, warm, tmp_path):
    fault_everywhere(tally, warm, tmp_path, "resume", "CheckpointError")


def fault_everywhere(tally, warm, tmp_path, operation, expected):
    calls = each_call(warm, tmp_path, operation)

    def attempt(case):
        number, ((call, nth), error) = case
        folder = made(tmp_path / f"{number}")
        inject = f"{call}:error={error}:when={nth}"
        done = traced(warm, folder, operation, str(folder), inject=inject)
        shutil.rmtree(folder)
        if not done.hit:
            return f"{inject}: never reached"
        if done.told is None:
            return f"{inject}: {done.output[-500:]}"
        if done.told["error"] and expected not in done.told["error"]:
            return f"{inject}: it became {done.told['error'][:1]} {done.told['message']}"
        return done.told["wrong"] and f"{inject}: {done.told['wrong']}"

    count(tally, attempt, tally.pick(list(enumerate(product(calls, ERRORS)))))
    tally.notes.append(f"{len(calls)} system calls, each of {len(ERRORS)} errors")


def each_call(warm, tmp_path, operation):
    """List the system calls of an operation that meets no fault."""
    folder = made(tmp_path / "no fault")
    done = traced(warm, folder, operation, str(folder))
    assert done.told and not done.told["error"] and not done.told["wrong"], done.output
    return done.calls()


def made(folder):
    folder.mkdir()
    return folder


def count(tally, attempt, cases):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for problem in pool.map(attempt, cases):
            tally.count(problem)

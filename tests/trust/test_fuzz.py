"""Files changed at random are read, or refused in the package's own words; nothing crashes, nothing hangs."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import forged
import pytest
from _ext.recorded import files as recorded
from autosave_run import noisy_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulesson.checkpoint import CheckpointError, load_checkpoint, resume, save_checkpoint
from gpulesson_tools.exercises import catalogue

SECONDS = 5.0  # of the processor's time, for one example: a hang, not a limit of speed

change = st.one_of(
    st.tuples(st.just("set"), st.integers(0), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.integers(0), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("delete"), st.integers(0), st.integers(1, 100)),
    st.tuples(st.just("repeat"), st.integers(0), st.integers(1, 200)),
    st.tuples(st.just("cut"), st.integers(0), st.none()),
)

pytestmark = pytest.mark.slow  # each try is a process
"""A change of some bytes: what, where (modulo the length), and with what."""


def changed(content: bytes, changes) -> bytes:
    for what, where, value in changes:
        at = where % (len(content) + 1)
        if what == "set":
            content = content[:at] + value + content[at + len(value) :]
        elif what == "insert":
            content = content[:at] + value + content[at:]
        elif what == "delete":
            content = content[:at] + content[at + value :]
        elif what == "repeat":
            content = content[:at] + content[max(0, at - value) : at] + content[at:]
        else:
            content = content[:at]
    return content


def fuzz(tally, strategy, read, own_errors):
    """Give examples to `read`; it may return, or raise one of the package's own errors."""
    number = tally.some(tally.row.least)

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def examples(example):
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = read(example)
        except own_errors:
            found = ""
        except Exception as error:
            found = f"{type(error).__name__}: {error} for {example!r:.300}"
        seconds = time.process_time() - begin
        tally.count(found or (f"{seconds:.1f} s for {example!r:.300}" if seconds > SECONDS else ""))

    examples()
    assert tally.of >= number, "there are no more examples"


def test_fuzzed_checkpoints(tally, tmp_path):
    """Bytes of the header, the JSON or the tensors are changed, and the digest put right."""
    path = save_checkpoint(tmp_path / "a.safetensors", epoch=1, **noisy_parts())
    genuine = path.read_bytes()
    header, body = forged.take_apart(genuine)
    text = forged.json_of(genuine)
    path.write_bytes(forged.put_together(header, body))
    load_checkpoint(path)  # so what follows begins with what is accepted

    def read(example):
        place, changes = example
        if place == "json":
            content = forged.with_json(genuine, changed(text, changes))
        elif place == "header":
            raw = json.dumps(header, separators=(",", ":")).encode()
            content = forged.put_together(changed(raw, changes), body)
        else:
            content = forged.put_together(header, changed(body, changes))
        path.write_bytes(content)
        run = noisy_parts()
        before = repr(run["model"].state_dict())
        try:
            found = load_checkpoint(path)
            resume(found, **run)
        except CheckpointError as error:
            after = repr(run["model"].state_dict())
            return "" if before == after else f"refused after the model changed: {error}"
        return ""

    bytes_changed = st.tuples(
        st.sampled_from(["json"] * 3 + ["header"] * 3 + ["body"]), st.lists(change, min_size=1, max_size=4)
    )
    fuzz(tally, bytes_changed, read, CheckpointError)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def put(content, path, value):
    """Put a value into a nest of dicts and lists, where a path of numbers leads."""
    if not path or not isinstance(content, dict | list) or not content:
        return value
    if isinstance(content, dict):
        key = sorted(content)[path[0] % len(content)]
        return {**content, key: put(content[key], path[1:], value)}
    at = path[0] % len(content)
    return [*content[:at], put(content[at], path[1:], value), *content[at + 1 :]]


def json_changes(genuine):
    """Change the bytes of a JSON file, or values in it, or nest a value deeply."""
    paths = st.lists(st.integers(0, 20), max_size=5)
    values = st.tuples(paths, json_values).map(lambda pair: json.dumps(put(genuine, *pair)))
    deep = st.integers(1, 200_000).map(lambda depth: "[" * depth)
    long = st.integers(1, 10_000).map(lambda digits: json.dumps(genuine).replace("0", "9" * digits, 1))
    odd = st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', "null", "[]"])
    odd_values = st.tuples(paths, odd).map(
        lambda pair: json.dumps(put(genuine, pair[0], "@@@")).replace('"@@@"', pair[1])
    )
    texts = st.one_of(values, values, odd_values, deep, long).map(
        lambda text: text.encode("utf-8", "replace")
    )
    whole = json.dumps(genuine).encode()
    return st.one_of(texts, st.lists(change, min_size=1, max_size=4).map(lambda some: changed(whole, some)))


def test_fuzzed_recordings(tally, tmp_path):
    cell = recorded.RecordedCell("0" * 16, "x = 1", ("1", "2"), ("<b>1</b>",), (), 0.5, 100)
    texts = ["a GPU", 1, "1", "CUDA 13.0", "2.9.1", "0.24", "3.11", "0.1", "Linux", "2026-01-31"]
    recording = recorded.Recording("01_a", recorded.Run(*texts), ("iris",), (cell, cell))
    path = tmp_path / "01_a.json"
    content = json.loads(recorded.to_json(recording))
    path.write_text(json.dumps(content))
    recorded.load(path)

    def read(example):
        text, right_digest = example
        if right_digest:
            try:
                whole = json.loads(text)
                whole["digest"] = recorded.content_digest(whole)
                text = json.dumps(whole).encode()
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass
        path.write_bytes(text)
        recorded.load(path)
        return ""

    fuzz(tally, st.tuples(json_changes(content), st.booleans()), read, recorded.RecordingError)


def test_fuzzed_progress(tally, tmp_path, monkeypatch):
    """Nothing in this file may be fatal: there is no error of its own."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("GPULESSON_PROGRESS", str(path))
    genuine = {"exercises": {"01": {"checks": 3, "passed": "2026-01-31", "said": {"scores feed=stays": 1}}}}

    def read(example):
        path.write_bytes(example)
        catalogue.progress()
        if not catalogue.note("01", ["scores feed=stays"], False)[1]:
            return "it could not be written"
        found = json.loads(Path(path).read_text())
        return "" if found["exercises"]["01"]["checks"] else "the check was not counted"

    fuzz(tally, json_changes(genuine), read, ())

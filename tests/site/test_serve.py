"""``nox -s serve``: the pages are built again at a change, and an open one shows it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from browser import opened
from projects import lesson


@pytest.fixture
def command(noxfile, monkeypatch) -> list[str]:
    """What the session runs, but for its installation, on a free port."""
    monkeypatch.setattr(noxfile, "install", lambda *arguments: None)
    commands: list[tuple[str, ...]] = []
    noxfile.serve(SimpleNamespace(posargs=["--port", "0"], run=lambda *words: commands.append(words)))
    ((program, *arguments),) = commands
    assert program == "sphinx-autobuild"
    return [sys.executable, "-m", "sphinx_autobuild", *arguments]


def listens(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_an_open_page_shows_a_change(project, browser, command):
    project.write("examples/01_first.py", lesson("First words"))
    for folder in ("src", "benchmarks/results"):
        (project.folder / folder).mkdir(parents=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    serving = subprocess.Popen(
        command,
        cwd=project.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = []
        for line in serving.stdout:
            said.append(line)
            if "Waiting to detect changes" in line:
                break
        (address,) = set(re.findall(r"Serving on (http://[\w.:]+)", "".join(said)))
        while not listens(address):  # it says so a moment before
            assert serving.poll() is None
            time.sleep(0.1)
        with opened(browser) as window:
            tab = window.new_page()
            tab.goto(f"{address}/lessons/01_first.html")
            tab.get_by_role("heading", name="First words").wait_for()
            project.write("examples/01_first.py", lesson("Second words"))
            tab.get_by_role("heading", name="Second words").wait_for()  # nobody loads the page again
            tab.wait_for_timeout(2000)  # ms: would another build begin, it has begun
    finally:
        os.killpg(serving.pid, signal.SIGINT)
        rest = serving.communicate()[0]
    assert rest.count("Rebuilding...") == 1, "what a build makes began another one"

"""The paths of a machine, and with them the name of its user, stay off the pages and out of recordings."""

import sysconfig
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from _ext.paths import without_paths


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: PurePosixPath("/home/ann"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("saved /home/ann/course/_build/x.pt", "saved ./_build/x.pt"),
        ("in '/home/ann'", "in '~'"),
        ("in /tmp/tmpmcs3ghy9/script.py", "in tmp/script.py"),
        ("in /tmp/tmpmcs3ghy9", "in tmp"),
        ("in /tmp/tmpfile/script.py", "in tmp/tmpfile/script.py"),
        ("/home/ann/.cache:\n/home/anna/.cache", "~/.cache:\n/home/anna/.cache"),
        ("/mnt/home/ann/x", "/mnt/home/ann/x"),
        ("read /srv/fashion, wrote /tmp/a", "read /srv/fashion, wrote tmp/a"),
        (
            f"{sysconfig.get_path('purelib')}/torch/nn.py:3: UserWarning",
            "site-packages/torch/nn.py:3: UserWarning",
        ),
        (
            'File "/srv/.nox/docs/lib/site-packages/torch/nn.py", line 3',
            'File "site-packages/torch/nn.py", line 3',
        ),
    ],
)
def test_paths_are_shortened(text, expected):
    assert without_paths(text, PurePosixPath("/home/ann/course")) == expected


@pytest.mark.parametrize(
    "path", [r"C:\Users\Ann\course\a.py", r"C:\\Users\\Ann\\course\\a.py", "C:/Users/Ann/course/a.py"]
)
def test_paths_of_windows(monkeypatch, path):
    monkeypatch.setattr(Path, "home", lambda: PureWindowsPath(r"C:\Users\Ann"))
    assert "Ann" not in without_paths(f"saved '{path}'", PureWindowsPath(r"C:\Users\Ann\course"))
    assert "Ann" not in without_paths(f"saved '{path}'", PureWindowsPath(r"D:\course"))


def test_a_home_that_is_the_root_changes_nothing(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: PurePosixPath("/"))
    assert without_paths("1/2 and /etc", PurePosixPath("/home/ann/course")) == "1/2 and /etc"

"""The project's tasks: ``nox -l`` lists them, ``nox -s docs`` builds the site, ``nox -s tests`` tests all.

Each session makes its own environment, from the exact versions in ``pyproject.toml``; with uv on the
machine that takes seconds.
"""

from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["docs"]

PROJECT = nox.project.load_toml("pyproject.toml")
SITE = Path("_build", "html")
# Tests start many interpreters. Where Python is told to keep no bytecode, each compiles PyTorch
# and Sphinx again, which takes longer than the tests; the environment is nox's own, and may keep it.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
BENCHMARKS = [
    "counts",
    "overhead",
    "peers",
    "ladder",
    "step_limit",
    "time_to_accuracy",
    "accuracy",
    "import_time",
    "saving",
    "site_build",
]


def install(session: nox.Session, group: str) -> None:
    """Install one dependency group of pyproject.toml, and the package itself, editable."""
    session.install(*nox.project.dependency_groups(PROJECT, group))
    session.install("--no-deps", "-e", ".")


def build(session: nox.Session, *options: str) -> None:
    """Run the lessons whose code, package or data changed, and render the pages."""
    session.run("sphinx-build", "-W", "-n", "--keep-going", "-c", ".", *options, "docs", str(SITE))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into _build/html; the lessons run, so the output on the pages is this machine's."""
    install(session, "docs")
    build(session, *session.posargs)
    session.log(f"open {(SITE / 'index.html').resolve().as_uri()}")


@nox.session
def serve(session: nox.Session) -> None:
    """Build the site and show it on http://127.0.0.1:8000 (another port: nox -s serve -- 9000)."""
    install(session, "docs")
    build(session)
    port = session.posargs[0] if session.posargs else "8000"
    session.run("python", "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", str(SITE))


@nox.session
def record(session: nox.Session) -> None:
    """Run the lessons on this machine's GPU and record their output (some: nox -s record -- 01 05)."""
    install(session, "docs")
    session.run("python", "docs/record.py", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Test, compare, record and measure on this machine's GPU (less time: nox -s gpu -- --minutes 9)."""
    install(session, "test")
    session.run("python", "docs/gpu_day.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, and write benchmarks/results and the README's table (some: nox -s bench -- counts ladder)."""
    install(session, "bench")
    for name in session.posargs or BENCHMARKS:
        session.run("python", f"benchmarks/{name}.py")
    session.run("python", "benchmarks/measuring.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test, the slow ones too, by two workers; the fast ones: nox -s tests -- -m "not slow"."""
    install(session, "test")
    session.run("pytest", "-n", "2", "-m", "slow or not slow", *session.posargs, env=BYTECODE)


@nox.session
@nox.parametrize("torch", ["2.9.1", "2.12.1", "2.15.0"])
def versions(session: nox.Session, torch: str) -> None:
    """Run the package's fast tests on the oldest supported PyTorch, the newest, and one between."""
    torchvision = {"2.9.1": "0.24.1", "2.12.1": "0.27.1", "2.15.0": "0.29.2"}[torch]
    pins = nox.project.dependency_groups(PROJECT, "test")
    others = [pin for pin in pins if not pin.startswith(("torch==", "torchvision=="))]
    session.install(*others, f"torch=={torch}", f"torchvision=={torchvision}")
    session.install("--no-deps", "-e", ".")
    session.run("pytest", "--ignore", "tests/site", *session.posargs, env=BYTECODE)


@nox.session
def libraries(session: nox.Session) -> None:
    """Run programs of public libraries on the practice GPU, and write docs/libraries.json (-- -k timm)."""
    install(session, "libraries")
    command = ["pytest", "tests/libraries", "-m", "slow", "--table", "docs/libraries.json"]
    session.run(*command, *session.posargs, env=BYTECODE)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


if __name__ == "__main__":
    nox.main()

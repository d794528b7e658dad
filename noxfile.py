"""The project's tasks: ``nox -l`` lists them, ``nox -s docs`` builds the site, ``nox -s tests`` tests it.

Each session makes its own environment. ``lock.txt`` names what is in it by version and hash.
"""

import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["docs"]

LOCK = Path("lock.txt")
# its entries that another build of PyTorch brings in other versions, or not at all
PYTORCH = re.compile(
    r"^(torch|torchvision|triton|setuptools|nvidia-[\w-]+|cuda-[\w-]+)==.*\n(?: .*\n)*", re.MULTILINE
)
SITE = Path("_build", "html")
PUBLISHED = Path("_build", "site")
# Tests and lessons start many interpreters. Where Python is told to keep no bytecode, each compiles PyTorch
# and Sphinx again, which takes longer than all else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
BENCHMARKS = ["counts", "overhead", "peers", "ladder", "time_to_accuracy", "accuracy"]
BENCHMARKS += ["import_time", "scaling", "published_scaling"]
SHELL_SCRIPTS = [".ci/run", *map(str, Path("examples", "distributed").glob("*.[sp]b*"))]


def install(session: nox.Session, group: str, *pytorch: str) -> None:
    """Install a dependency group and the packages themselves, editable, with the group's own hatchling."""
    install_group(session, group, *pytorch)
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


def install_group(session: nox.Session, group: str, *pytorch: str) -> None:
    """Install a dependency group of pyproject.toml as lock.txt has it; uv refuses files with other hashes.

    Other builds of PyTorch are installed without hashes: the versions in `pytorch`, or those that uv chooses
    for the variable UV_TORCH_BACKEND, such as ``cpu``.
    """
    options, locked = ["--require-hashes"], LOCK.read_text("utf-8")
    if pytorch or os.environ.get("UV_TORCH_BACKEND"):
        options, locked = ["--verify-hashes"], PYTORCH.sub("", locked)
    for option, text in ("--constraint", locked), ("--override", "\n".join(pytorch)):
        file = Path(session.virtualenv.location, f"{option.strip('-')}.txt")
        file.write_text(text, "utf-8")
        options += [option, str(file)]
    session.install(*options, "--group", group)


def build(session: nox.Session, *options: str, folder: Path = SITE) -> None:
    """Run the lessons whose code, package or data changed, and render the pages."""
    session.run("sphinx-build", "-W", "-n", "--keep-going", "-c", ".", *options, "docs", str(folder))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into _build/html; the lessons run, so the output on the pages is this machine's."""
    install(session, "docs")
    build(session, *session.posargs)
    session.log(f"open {(SITE / 'index.html').resolve().as_uri()}")


@nox.session
def publish(session: nox.Session) -> None:
    """Build the site for a web server into an empty _build/site; GPULESSON_SITE is its address."""
    install(session, "docs")
    unfinished = PUBLISHED.with_suffix(".part")  # an incomplete build cannot be published
    for folder in (PUBLISHED, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    build(session, *session.posargs, folder=unfinished)
    shutil.rmtree(unfinished / ".doctrees")
    (unfinished / ".buildinfo").unlink()
    unfinished.rename(PUBLISHED)


@nox.session
def dist(session: nox.Session) -> None:
    """Make the course's wheel and source distribution, and the practice GPU's wheel, in dist; check them."""
    install_group(session, "dist")
    shutil.rmtree("dist", ignore_errors=True)
    for project, folder, *kinds in ("gpulesson", "."), ("practice-gpu", "src/practice_gpu", "--wheel"):
        session.run("python", "-m", "build", "--no-isolation", f"--outdir=dist/{project}", *kinds, folder)
    session.run("twine", "check", "--strict", *map(str, Path("dist").glob("*/*")))


@nox.session
def serve(session: nox.Session) -> None:
    """Show the site on http://127.0.0.1:8000, built again at every change (another port: -- --port 9000)."""
    install(session, "serve")
    options = [part for folder in ("examples", "src", "benchmarks/results") for part in ("--watch", folder)]
    options += ["--ignore", "docs/lessons", "--ignore", "docs/wheels", "--re-ignore", "__pycache__"]  # made
    # apart from the finished site: the server puts a script into each page, which the policy would block
    options += ["-n", "-c", ".", "-D", "gpulesson_policy=0", *session.posargs]
    session.run("sphinx-autobuild", *options, "docs", "_build/serve")


@nox.session
def pdf(session: nox.Session) -> None:
    """Build the site, and print the whole course into _build/gpulesson.pdf; needs Chromium or Chrome."""
    install(session, "test")
    build(session)
    session.run("python", "docs/course_pdf.py")


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
    """Run the tests, the slow ones too, by two workers; the fast ones: nox -s tests -- -m "not slow"."""
    install(session, "test")
    session.run("pytest", "-n", "2", "-m", "slow or not slow", "--share", "100", *session.posargs)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run all tests of which `tests` runs a share: each operator, notebook and page; it takes an hour."""
    install(session, "test")
    session.run("pytest", "-n", "2", "-m", "thorough", *session.posargs)


@nox.session
@nox.parametrize("torch", ["2.9.1", "2.12.1"])
def versions(session: nox.Session, torch: str) -> None:
    """Run the fast tests and those of process groups with the oldest PyTorch and a newer one."""
    torchvision = {"2.9.1": "0.24.1", "2.12.1": "0.27.1"}[torch]
    install(session, "test", f"torch=={torch}", f"torchvision=={torchvision}")
    session.run("pytest", "--ignore", "tests/site", *session.posargs)
    if not session.posargs:
        groups = ["tests/practice_gpu/test_process_groups.py", "tests/practice_gpu/test_sync_batch_norm.py"]
        session.run("pytest", "-m", "slow", *groups)


@nox.session
def libraries(session: nox.Session) -> None:
    """Run programs of public libraries on the practice GPU, and write docs/libraries.json (-- -k timm)."""
    install(session, "libraries")
    table = ["--table", "docs/libraries.json"]
    session.run("pytest", "tests/libraries", "-m", "slow", *table, *session.posargs)


@nox.session
def trust(session: nox.Session) -> None:
    """Test every promise, for half an hour, and write docs/trust.json (a short run: -- --tries 0.05)."""
    install(session, "test")
    oldest = Path(".nox", "versions-torch-2-9-1", "bin", "python").absolute()
    if not oldest.exists():
        command = ["nox", "-s", "versions(torch='2.9.1')", "--install-only"]
        session.run(*command, external=True, success_codes=[0, 1])
    options = ["--other-python", str(oldest)] if oldest.exists() else []
    if not any(option.startswith("--tries") for option in session.posargs):
        options += ["--figures", "docs/trust.json"]
    session.run("pytest", "tests/trust", "-m", "slow or not slow", *options, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types, which module imports which, and the shell scripts."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "src"})
    session.run("shellcheck", *SHELL_SCRIPTS)


@nox.session
def lock(session: nox.Session) -> None:
    """Update lock.txt from pyproject.toml; with newer versions of the rest: nox -s lock -- --upgrade."""
    groups = nox.project.load_toml("pyproject.toml")["dependency-groups"]
    options = ["--quiet", "--universal", "--python-version=3.11", "--generate-hashes", "--no-annotate"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command=nox -s lock"]
    options += [f"--group={group}" for group in groups] + [f"--output-file={LOCK}"]
    session.run("uv", "pip", "compile", *options, *session.posargs)


@nox.session(reuse_venv=False)
def licences(session: nox.Session) -> None:
    """Write docs/licences.csv, the licences of everything that the docs group installs; on Linux."""
    install_group(session, "docs")
    windows = str(Path(session.virtualenv.location, "windows"))
    target = ["--target", windows, "--python-platform=windows", "--python-version=3.13"]
    session.install("--require-hashes", "--constraint", str(LOCK), "--group", "docs", *target)
    session.run("python", "docs/licences.py", windows)


@nox.session
def audit(session: nox.Session) -> None:
    """Look up known weaknesses of what lock.txt installs here, in PyPI's database; needs a network."""
    install_group(session, "audit")
    session.run("pip-audit", "--strict", "--disable-pip", "--require-hashes", f"--requirement={LOCK}")


if __name__ == "__main__":
    nox.main()

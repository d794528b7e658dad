"""The project's tasks: ``nox -l`` lists them, ``nox -s docs`` builds the site, ``nox -s tests`` tests it.

Each session makes its own environment, from the files that ``lock.txt`` names by version and hash; with uv
on the machine that takes seconds.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["docs"]

PROJECT = nox.project.load_toml("pyproject.toml")
LOCK = Path("lock.txt")
# a distribution in it, with its hashes and, last, the groups that need it
ENTRY = re.compile(r"^(?=([\w.-]+)==)(.*\n(?: .*\n)*? +# for (.+)\n)", re.MULTILINE)
# what another build of PyTorch brings in other versions, or not at all
PYTORCH = re.compile(r"torch|torchvision|triton|nvidia-.*|cuda-.*")
# its weaknesses are published: a database that knows none of them has not been asked
KNOWN_WEAK = "django==2.0"
SITE = Path("_build", "html")
PUBLISHED = Path("_build", "site")
# Tests and lessons start many interpreters. Where Python is told to keep no bytecode, each compiles PyTorch
# and Sphinx again, which takes longer than all else; the environment is nox's own, and may keep it.
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
    "scaling",
    "published_scaling",
]


def locked(group: str) -> dict[str, str]:
    """Return what a dependency group of pyproject.toml needs: names, with their lines of lock.txt."""
    lines: dict[str, str] = {}
    for name, entry, groups in ENTRY.findall(LOCK.read_text("utf-8")):
        if group in groups.split(", "):  # two versions have a name twice, each for some Pythons
            lines[name] = lines.get(name, "") + entry
    return lines


def install(session: nox.Session, group: str, *pytorch: str) -> None:
    """Install a dependency group and the package itself, editable, with the group's own hatchling."""
    install_group(session, group, *pytorch)
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


def install_group(session: nox.Session, group: str, *pytorch: str) -> None:
    """Install a dependency group, each file compared with its hash.

    Another build of PyTorch than the lock's is installed first, without hashes: the one of `pytorch`, or the
    one that uv takes for the variable UV_TORCH_BACKEND, such as ``cpu``.
    """
    lines, options = locked(group), []
    if os.environ.get("UV_TORCH_BACKEND") and not pytorch:
        pins = nox.project.dependency_groups(PROJECT, group)
        pytorch = tuple(pin for pin in pins if pin.startswith(("torch==", "torchvision==")))
    if pytorch:
        session.install(*pytorch)
        lines = {name: line for name, line in lines.items() if not PYTORCH.fullmatch(name)}
        options = ["--no-deps"]  # what needs PyTorch would ask for its hash
    chosen = Path(session.virtualenv.location, LOCK.name)
    chosen.write_text("".join(lines.values()), encoding="utf-8")
    session.install("--require-hashes", *options, "-r", str(chosen))


def build(session: nox.Session, *options: str, folder: Path = SITE) -> None:
    """Run the lessons whose code, package or data changed, and render the pages."""
    command = ["sphinx-build", "-W", "-n", "--keep-going", "-c", ".", *options, "docs", str(folder)]
    session.run(*command, env=BYTECODE)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into _build/html; the lessons run, so the output on the pages is this machine's."""
    install(session, "docs")
    build(session, *session.posargs)
    session.log(f"open {(SITE / 'index.html').resolve().as_uri()}")


@nox.session
def publish(session: nox.Session) -> None:
    """Build what a web server shows, into an empty _build/site; GPULESSON_SITE is the site's address."""
    install(session, "docs")
    unfinished = PUBLISHED.with_suffix(".part")  # nobody publishes what was not built to its end
    for folder in (PUBLISHED, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    build(session, *session.posargs, folder=unfinished)
    shutil.rmtree(unfinished / ".doctrees")
    (unfinished / ".buildinfo").unlink()
    unfinished.rename(PUBLISHED)


@nox.session
def dist(session: nox.Session) -> None:
    """Make the course's wheel and source distribution and the practice GPU's wheel, in dist; check them."""
    install_group(session, "dist")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation")
    session.run("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", "src/practice_gpu")
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))


@nox.session
def serve(session: nox.Session) -> None:
    """Show the site on http://127.0.0.1:8000, built again at every change (another port: -- --port 9000)."""
    install(session, "serve")
    options = [part for folder in ("examples", "src", "benchmarks/results") for part in ("--watch", folder)]
    options += ["--ignore", "docs/lessons", "--ignore", "docs/wheels", "--re-ignore", "__pycache__"]  # made
    # beside the finished site: the server puts a script into each page, which the policy there does not run
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
    session.run("pytest", "-n", "2", "-m", "not thorough", *session.posargs, env=BYTECODE)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run what is left of the tests: each operator, notebook and page; it takes an hour."""
    install(session, "test")
    session.run("pytest", "-n", "2", "-m", "thorough", *session.posargs, env=BYTECODE)


@nox.session
@nox.parametrize("torch", ["2.9.1", "2.12.1", "2.15.0"])
def versions(session: nox.Session, torch: str) -> None:
    """Run the fast tests and those of process groups with the oldest PyTorch, a newer and the newest."""
    torchvision = {"2.9.1": "0.24.1", "2.12.1": "0.27.1", "2.15.0": "0.29.2"}[torch]
    install(session, "test", f"torch=={torch}", f"torchvision=={torchvision}")
    session.run("pytest", "--ignore", "tests/site", *session.posargs, env=BYTECODE)
    groups = ["tests/practice_gpu/test_process_groups.py", "tests/practice_gpu/test_sync_batch_norm.py"]
    none_chosen = [5] if session.posargs else []
    session.run(
        "pytest", "-m", "slow", *groups, *session.posargs, env=BYTECODE, success_codes=[0, *none_chosen]
    )


@nox.session
def libraries(session: nox.Session) -> None:
    """Run programs of public libraries on the practice GPU, and write docs/libraries.json (-- -k timm)."""
    install(session, "libraries")
    command = ["pytest", "tests/libraries", "-m", "slow", "--table", "docs/libraries.json"]
    session.run(*command, *session.posargs, env=BYTECODE)


@nox.session
def trust(session: nox.Session) -> None:
    """Test all that is promised, for half an hour, and write docs/trust.json (a look: -- --tries 0.05)."""
    install(session, "test")
    oldest = Path(".nox", "versions-torch-2-9-1", "bin", "python").absolute()
    if not oldest.exists():
        command = ["nox", "-s", "versions(torch='2.9.1')", "--install-only"]
        session.run(*command, external=True, success_codes=[0, 1])
    options = ["--other-python", str(oldest)] if oldest.exists() else []
    if not any(option.startswith("--tries") for option in session.posargs):
        options += ["--figures", "docs/trust.json"]
    session.run("pytest", "tests/trust", "-m", "slow or not slow", *options, *session.posargs, env=BYTECODE)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types, which module imports which, and the shell scripts."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "src"})
    session.run("shellcheck", *map(str, shell_scripts()))


def shell_scripts() -> list[Path]:
    """Return the shell scripts of the project, a batch system's among them."""
    jobs = Path("examples", "distributed")
    return [Path(".ci", "run"), *sorted(jobs.glob("*.sbatch")), *sorted(jobs.glob("*.pbs"))]


@nox.session(venv_backend="uv")
def lock(session: nox.Session) -> None:
    """Write lock.txt anew from pyproject.toml; with newer versions of all else: nox -s lock -- --upgrade."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "nox -s lock"]
    groups = list(PROJECT["dependency-groups"])
    chosen = [option for group in groups for option in ("--group", group)]
    session.run(*command, *chosen, "--generate-hashes", "--output-file", str(LOCK), *session.posargs)
    users: dict[str, list[str]] = {}
    for group in groups:  # the same versions, so that the group's own are known by name
        found = str(session.run(*command, "--group", group, "--constraint", str(LOCK), silent=True))
        for name in re.findall(r"^[\w.-]+(?===)", found, re.MULTILINE):
            users.setdefault(name, []).append(group)
    entries = re.sub(
        r"^([\w.-]+)==.*\n(?: .*\n)*",
        lambda entry: f"{entry[0]}    # for {', '.join(users[entry[1]])}\n",
        LOCK.read_text("utf-8"),
        flags=re.MULTILINE,
    )
    LOCK.write_text(entries, "utf-8")


@nox.session
def licences(session: nox.Session) -> None:
    """Write docs/licences.csv: the licences of what the site's build and the lessons install; on Linux."""
    install_group(session, "docs")
    absent = [line for line in locked("docs").values() if "sys_platform == 'win32'" in line]
    elsewhere = Path(session.virtualenv.location, "elsewhere.txt")
    elsewhere.write_text(re.sub(r" ; .+ (?=\\$)", " ", "".join(absent), flags=re.MULTILINE), "utf-8")
    session.install("--require-hashes", "--no-deps", "-r", str(elsewhere))
    session.run("python", "docs/licences.py", str(Path(session.virtualenv.location, LOCK.name)))


@nox.session
def audit(session: nox.Session) -> None:
    """Ask the advisory database of PyPI for known weaknesses of what lock.txt has; needs a network."""
    install_group(session, "audit")
    asked = [*re.findall(r"^[\w.-]+==[\w.+]+", LOCK.read_text("utf-8"), re.MULTILINE), KNOWN_WEAK]
    once = {pin.partition("==")[0]: pin for pin in asked}
    answers = []
    for pins in once.values(), [pin for pin in asked if pin not in once.values()]:  # no name twice at a time
        answers += ask(session, "\n".join(pins))
    if problems := weaknesses(answers, asked):
        session.error("\n".join(problems))


def ask(session: nox.Session, pins: str) -> list[dict[str, Any]]:
    """Return what the database answers to the distributions, such as ``furo==2025.12.19``, one a line."""
    question, answers = (Path(session.virtualenv.location, name) for name in ("asked.txt", "answers.json"))
    question.write_text(pins, "utf-8")
    answers.unlink(missing_ok=True)
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", f"--output={answers}"]
    session.run("pip-audit", *options, f"--requirement={question}", success_codes=[0, 1], silent=True)
    if not answers.is_file():
        session.error("The advisory database did not answer, so nothing is known. Is there a network?")
    return list(json.loads(answers.read_text("utf-8"))["dependencies"])


def weaknesses(answers: list[dict[str, Any]], asked: list[str]) -> list[str]:
    """Return what is wrong with the distributions, or with the answers: no answer is no good news."""
    found = {f"{one['name']}=={one['version']}": one["vulns"] for one in answers if "vulns" in one}
    problems = []
    if silent := [pin for pin in asked if pin not in found]:
        problems.append(
            f"The advisory database does not know {len(silent)} of {len(asked)}: {', '.join(silent)}."
        )
    if not found.pop(KNOWN_WEAK, None):
        problems.append(
            f"It reports nothing for {KNOWN_WEAK}, whose weaknesses are public: nothing is known."
        )
    for pin, weak in found.items():
        problems += [
            f"{pin}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'none'}" for one in weak
        ]
    return problems


if __name__ == "__main__":
    nox.main()

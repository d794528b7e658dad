from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit
from xml.etree import ElementTree

import nox
import pytest
from _ext import publishing
from _ext.course import NAME, packed
from bs4 import BeautifulSoup
from pages import BUILD, ROOT, copy_sources, css_addresses, loaded
from projects import CONF, INDEX, Project, lesson
from ruamel.yaml import YAML
from sphinx.errors import ConfigError

PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
WORKFLOWS = {path.stem: YAML(typ="safe").load(path) for path in (ROOT / ".github" / "workflows").iterdir()}
SITE, REPOSITORY = "https://example.org/course", "https://github.com/OWNER/course/"
ADDRESSES = f"html_baseurl, gpulesson_repository = {SITE!r}, {REPOSITORY!r}\nhtml_title = 'The course'\n"
ADDRESSES += "project, ogp_social_cards = 'The course', None\n"

TEXT = """
A & "B"
=======

.. covers:: S0.1

.. code-block:: python

   print("not this.")

.. list-table::

   * - Nor this.

.. note::

   Nor this.

What the page
``is "about"``? One more sentence. And a last one, which is so long that it does not fit behind the others,
since two hundred characters are more than anybody reads, and what follows is cut off by those who show it.

Another paragraph.
"""
FILES = {
    "conf.py": CONF + 'extensions.append("_ext.publishing")\n',
    "docs/index.rst": INDEX + "   text\n\nThe first page.\n",
    "docs/tables.rst": "Tables\n======\n\nTables are here.\n",
    "docs/text.rst": TEXT,
    "docs/404.rst": (ROOT / "docs" / "404.rst").read_text("utf-8"),
    "examples/01_one.py": lesson("One").replace("S0.1", ""),
}


@pytest.fixture(scope="module")
def unpublished(built) -> Project:
    return built(FILES)


@pytest.fixture(scope="module")
def published(built) -> Project:
    return built({**FILES, "conf.py": FILES["conf.py"] + ADDRESSES})


def pages(folder: Path) -> dict[str, BeautifulSoup]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    return {name: BeautifulSoup(path.read_text("utf-8"), "html.parser") for name, path in found.items()}


def about(page: BeautifulSoup) -> dict[str, str]:
    """What the page's head says of it, by name."""
    metas = page.select("meta[name], meta[property]")
    return {meta.get("name") or meta["property"]: meta["content"] for meta in metas}


def canonical(page: BeautifulSoup) -> str | None:
    link = page.find("link", rel="canonical")
    return link and link["href"]


def in_sitemap(folder: Path) -> set[str]:
    found = ElementTree.parse(folder / "sitemap.xml").getroot()
    return {str(url.text) for url in found.iter(f"{{{publishing.SITEMAP}}}loc")}


def check_addresses(folder: Path, address: str) -> None:
    """The canonical links and the sitemap name the pages that are there, each once, and nothing else."""
    names = {name: canonical(page) for name, page in pages(folder).items()}
    assert all(url == address + name for name, url in names.items())
    made = ("404.html", "genindex.html", "search.html", "py-modindex.html", "_modules/")
    assert in_sitemap(folder) == {url for name, url in names.items() if not name.startswith(made)}


@pytest.mark.slow
def test_a_preview_says_what_the_page_says(published):
    found = about(published.page("text"))
    assert published.page("text").title.text == "A & “B” · The course"
    assert (found["og:title"], found["og:site_name"]) == ("A & “B”", "The course")
    assert (published.folder / "out" / found["og:image"].removeprefix(f"{SITE}/")).is_file()
    assert found["og:description"] == found["description"]
    assert 'What the page is "about"? One more sentence. And a last' in found["description"]
    assert found["og:url"] == canonical(published.page("text")) == f"{SITE}/text.html"


@pytest.mark.slow
def test_without_addresses_nothing_that_needs_one(unpublished):
    out = unpublished.folder / "out"
    assert not (out / "sitemap.xml").exists() and not (out / "robots.txt").exists()
    for page in pages(out).values():
        assert not canonical(page) and not page.select(".source-links") and "og:image" not in about(page)
    assert about(unpublished.page("lessons/01_one"))["description"].startswith("Learn one thing with code.")
    assert "without its own address" in unpublished.page("404").text


def test_canonical_links_and_the_sitemap(published):
    out = published.folder / "out"
    check_addresses(out, f"{SITE}/")
    assert f"\nSitemap: {SITE}/sitemap.xml\n" in (out / "robots.txt").read_text()


def test_the_404_page_works_at_any_depth(published):
    page = published.page("404")
    assert about(page)["robots"] == "noindex" and "without its own address" not in page.text
    assert page.html["data-content_root"] == "/course/"
    links = [link["href"] for link in page.find_all("a", href=True)] + loaded(page)
    inside = [link for link in links if not re.match(r"\w+:|#", link)]
    assert len(inside) > 10
    for link in inside:
        assert link.startswith("/course/")
        assert (published.folder / "out" / urlsplit(link).path.removeprefix("/course/")).exists(), link
    index = (published.folder / "out/_static/sections.js").read_text("utf-8")
    assert '["index",' in index and '["404",' not in index


def test_the_links_to_sources(published):
    def links(name: str) -> list[str]:
        return [link["href"] for link in published.page(name).select(".source-links a")]

    repository = REPOSITORY.rstrip("/")
    edit, report = links("lessons/01_one")
    assert edit == f"{repository}/edit/main/examples/01_one.py"
    assert report == f"{repository}/issues/new?title=lessons/01_one:"
    assert links("lessons/index")[0].endswith("/edit/main/examples/GALLERY_HEADER.rst")
    assert links("text")[0].endswith("/edit/main/docs/text.rst")
    assert links("404") == links("search") == []


def test_a_malformed_address_is_refused():
    class Settings(dict):
        html_baseurl = "example.org"

    settings = Settings(html_baseurl="example.org", gpulesson_repository="")
    with pytest.raises(ConfigError, match=r"html_baseurl is 'example\.org', but has to begin with https://"):
        publishing.check_addresses(None, settings)


def test_the_settings_are_two_variables(monkeypatch):
    monkeypatch.setenv("GPULESSON_SITE", SITE)
    monkeypatch.setenv("GPULESSON_REPOSITORY", REPOSITORY)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    found = runpy.run_path(str(ROOT / "conf.py"))
    assert (found["html_baseurl"], found["gpulesson_repository"]) == (SITE, REPOSITORY)
    assert Path(found["html_favicon"]).is_file()


def valid(schema: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_citation():
    path = ROOT / "CITATION.cff"
    assert valid("vendor.citation-file-format", path).returncode == 0
    citation = YAML(typ="safe").load(path)
    assert citation["title"] == PROJECT["name"] and citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"].partition(" AND ")[0]  # its form knows no AND
    assert citation["authors"] == [{"name": "the gpulesson authors"}]


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name} {job}", step)
        for name, workflow in WORKFLOWS.items()
        for job, parts in workflow["jobs"].items()
        for step in parts.get("steps", [])
    ]


def test_the_workflows_have_github_s_form():
    assert set(WORKFLOWS) == {"pages", "release", "test"}
    done = valid("vendor.github-workflows", *(ROOT / ".github" / "workflows").iterdir())
    assert done.returncode == 0, done.stdout


def test_a_job_may_do_no_more_than_it_has_to():
    permissions = {
        f"{name} {job}": parts["permissions"]
        for name, workflow in WORKFLOWS.items()
        for job, parts in workflow["jobs"].items()
    }
    assert permissions == {
        "pages build": {"contents": "read", "pages": "read"},
        "pages test": {"contents": "read"},
        "pages course": {"contents": "write"},
        "pages deploy": {"pages": "write", "id-token": "write"},
        "release build": {"contents": "read"},
        "release test": {"contents": "read"},
        "release publish": {"id-token": "write"},
        "test test": {"contents": "read"},
    }
    assert [workflow["permissions"] for workflow in WORKFLOWS.values()] == [{}, {}, {}]
    for job, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, job
        if permissions[job].get("id-token"):
            assert "run" not in step, f"{job} runs code of the repository"
        if permissions[job].get("contents") == "write":
            assert not re.search("checkout|python|nox", str(step)), f"{job} runs code of the repository"


def test_nothing_is_published_that_was_not_tested():
    """The site waits for its own tests, the package for all of them, which run after each push, too."""
    pages, release = (WORKFLOWS[name]["jobs"] for name in ("pages", "release"))
    assert {"build", "test"} <= set(pages["course"]["needs"]) and {*pages} - {"deploy"} == {
        *pages["deploy"]["needs"]
    }
    assert pages["test"]["timeout-minutes"] <= 30
    assert pages["test"]["steps"][-1]["run"] == "python3 -m nox -s tests -- tests/site"
    assert release["publish"]["needs"] == ["build", "test"]
    assert release["test"]["uses"] == "./.github/workflows/test.yml"
    assert WORKFLOWS["test"]["on"] == {"push": {"branches": ["main"]}, "workflow_call": None}
    assert [step["run"] for job, step in steps() if job == "test test" and "run" in step] == [
        ".ci/run",
        "_build/ci/bin/python -m nox -s thorough",
    ]


def test_the_course_s_branch_is_the_unpacked_course(tmp_path):
    """As the job pushes it, here to a folder; what is the same makes no new commit, and old files go."""
    (push,) = [step for _, step in steps() if "git push" in step.get("run", "")]
    branch = WORKFLOWS["pages"]["jobs"]["build"]["steps"][-3]["env"]["GPULESSON_COURSE_BRANCH"]
    remote, days = tmp_path / "remote", count(1)
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    environment = {
        **os.environ,
        "TOKEN": "SECRET",
        "GITHUB_REPOSITORY": "OWNER/gpulesson",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://x-access-token:SECRET@github.com/OWNER/gpulesson",
    }

    def published(*names: str) -> tuple[str, str]:
        """Publish a course of these files; return the branch's commits, and its files."""
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        environment["GIT_COMMITTER_DATE"] = f"2026-01-0{next(days)}T00:00:00Z"
        (folder / f"{NAME}.zip").write_bytes(packed(dict.fromkeys(names, b"")))
        subprocess.run(["bash", "-e", "-c", push["run"]], cwd=folder, env=environment, check=True)
        git = ["git", "-C", remote]
        log = subprocess.check_output([*git, "log", "--format=%H", branch], text=True)
        files = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", branch], text=True)
        return log, files

    first = published("README.md", "binder/runtime.txt", ".git/config")
    assert first[1] == "README.md\nbinder/runtime.txt\n" and first[0].count("\n") == 1
    assert published("README.md", "binder/runtime.txt") == first
    changed = published("README.md", "lessons/01_one.py")
    assert changed[1] == "README.md\nlessons/01_one.py\n"
    assert changed[0] != first[0] and changed[0].count("\n") == 1


def test_each_action_is_named_by_its_hash():
    named: dict[str, set[str]] = {}
    for path in (ROOT / ".github" / "workflows").iterdir():
        for line in re.findall(r"uses: *([^.\s].*)", path.read_text("utf-8")):
            found = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
            assert found, f"{path.name}: {line}"
            named.setdefault(found[1], set()).add(found[2])
    assert len(named) > 6 and all(len(versions) == 1 for versions in named.values()), named


def test_only_the_tag_of_the_version_is_released(tmp_path):
    (check,) = [step["run"] for _, step in steps() if step.get("name") == "The tag is the version"]
    for tag, status in (f"v{PROJECT['version']}", 0), ("v9.9.9", 1), ("v", 1):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        done = subprocess.run(["bash", "-e", "-c", check], cwd=ROOT, env=environment, capture_output=True)
        assert done.returncode == status, tag


def test_the_session_leaves_neither_old_nor_hidden_files(noxfile, monkeypatch, tmp_path):
    def build(session: Any, folder: Path) -> None:
        (folder / ".doctrees").mkdir(parents=True)
        for name in (".buildinfo", "index.html"):
            (folder / name).touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noxfile, "install", lambda *arguments: None)
    monkeypatch.setattr(noxfile, "build", build)
    (tmp_path / "_build/site/old").mkdir(parents=True)
    noxfile.publish(SimpleNamespace(posargs=[]))
    assert [path.name for path in (tmp_path / "_build/site").iterdir()] == ["index.html"]


# -- the real site, as it is published


class UnderAFolder(SimpleHTTPRequestHandler):
    """Serves a site under /gpulesson/ as GitHub Pages does; for what is missing, its 404 page."""

    folder: Path

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        file = self.folder / path.removeprefix("/gpulesson/")
        file = file / "index.html" if path.endswith("/") else file
        found = path.startswith("/gpulesson/") and file.is_file()
        content = (file if found else self.folder / "404.html").read_bytes()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def real_site(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """A site that knows its address and repository, and the address of its server."""
    copy = tmp_path_factory.mktemp("copy")
    copy_sources(ROOT, copy)
    server = ThreadingHTTPServer(("127.0.0.1", 0), UnderAFolder)
    address = f"http://127.0.0.1:{server.server_port}/gpulesson/"
    settings = {"GPULESSON_SITE": address, "GPULESSON_REPOSITORY": REPOSITORY}
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), **settings}
    subprocess.run(BUILD, cwd=copy, env=environment, check=True)
    UnderAFolder.folder = copy / "_build" / "html"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield UnderAFolder.folder, address
    server.shutdown()
    server.server_close()


def addresses(page: BeautifulSoup, url: str) -> set[str]:
    links = [link["href"] for link in page.find_all("a", href=True)] + loaded(page)
    return {urldefrag(urljoin(url, link)).url for link in links if not link.startswith("data:")}


def answer(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.slow
@pytest.mark.thorough
def test_pages_of_the_site_have_descriptions_of_their_own(real_site):
    found = {name: about(page).get("description") for name, page in pages(real_site[0]).items()}
    texts = [text for text in found.values() if text]
    assert len(set(texts)) == len(texts) > 30
    assert all(15 <= len(text) <= 200 and not re.search(">>>|<|\u2060", text) for text in texts), found


@pytest.mark.slow
@pytest.mark.thorough
def test_the_site_works_under_a_folder(real_site):
    folder, address = real_site
    check_addresses(folder, address)
    wanted = in_sitemap(folder)
    for name, page in pages(folder).items():
        wanted |= addresses(page, address + name)
        if image := about(page).get("og:image"):
            wanted.add(image)
    for style in folder.rglob("*.css"):
        url = address + style.relative_to(folder).as_posix()
        wanted |= {urljoin(url, link) for link in css_addresses(style.read_text("utf-8"))}
    server = urljoin(address, "/")
    inside = {url for url in wanted if url.startswith(server)}
    assert len(inside) > 150 and not [url for url in inside if not url.startswith(address)]
    assert not [url for url in sorted(inside) if answer(url)[0] != 200]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("missing", ["nothing", "lessons/99_nothing.html", "a/b/c/"])
def test_what_is_missing_under_a_folder(real_site, missing):
    _, address = real_site
    status, text = answer(address + missing)
    assert status == 404
    links = addresses(BeautifulSoup(text, "html.parser"), address + missing) - {address + missing}
    inside = {url for url in links if url.startswith(urljoin(address, "/"))}
    assert len(inside) > 10 and not [url for url in inside if answer(url)[0] != 200]

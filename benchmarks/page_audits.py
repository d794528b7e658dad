"""What two independent programs say of the built site: Lighthouse, as on a phone, and the Nu validator.

    nox -s docs && python benchmarks/page_audits.py [--rounds 3]

Both are on npm: where no ``lighthouse`` and no ``vnu`` is on the PATH, ``npx`` of Node.js fetches them. The
validator needs Java, Lighthouse a Chromium, which ``CHROME_PATH`` may name. Lighthouse opens each page from
a server on this machine, which compresses texts as web hosts do, and simulates the network and the processor
of a phone. Of several rounds the lowest score counts. The pages that the validator reads are all of the site.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from measuring import Result, about, options

SITE = Path(__file__).parents[1] / "_build" / "html"
PACKAGES = {"lighthouse": "lighthouse@12.8.2", "vnu": "vnu-jar@26.9.27"}
PAGES = {
    "index": "landing page",
    "lessons/01_is_there_a_gpu": "lesson 1",
    "lessons/05_fashion_mnist": "lesson 5",
    "lessons/12_speed_ladder": "lesson 12",
    "errors": "error messages",
    "results": "results",
    "search": "search",
}
CATEGORIES = {
    "performance": ("performance", 95),
    "accessibility": ("accessibility", 98),
    "best-practices": ("best practices", 98),
    "seo": ("search engines", 98),
}
GOOD = 0.9  # an audit's score, of 1, below which Lighthouse shows it as a thing to improve
CHROMIUM = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"


class Server(SimpleHTTPRequestHandler):
    """A server that compresses texts, as those of web hosts do, and writes no log."""

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Send the headers of an answer, and return what follows them."""
        path = Path(self.translate_path(self.path))
        kind = self.guess_type(path)
        asked = "gzip" in self.headers.get("Accept-Encoding", "") and kind.startswith(("text/", "image/svg"))
        if not asked or not path.is_file():
            return super().send_head()
        body = gzip.compress(path.read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:  # else the thread would go round and round with a closed socket
            server.shutdown()


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the two programs, the installed one, or npm's."""
    if shutil.which(name):
        command = [name]
    elif shutil.which("npx"):
        command = ["npx", "--yes", "--package", PACKAGES[name], name]
    else:
        raise SystemExit(f"There is neither {name} nor npx on the PATH: install Node.js, which has npx.")
    browser = os.environ.get("CHROME_PATH") or shutil.which("chromium") or ""
    environment = {**os.environ, **({"CHROME_PATH": browser} if browser else {})}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)


def open_page(address: str, scratch: Path) -> dict[str, Any]:
    """Let Lighthouse open a page, and return its report."""
    file = scratch / "report.json"
    file.unlink(missing_ok=True)
    browser = f"--chrome-flags={CHROMIUM} --user-data-dir={scratch / 'browser'}"
    done = run("lighthouse", address, "--quiet", "--output=json", f"--output-path={file}", browser)
    if done.returncode or not file.is_file():
        raise SystemExit(f"Lighthouse ended with {done.returncode} at {address}:\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    if "runtimeError" in report:
        raise SystemExit(f"Lighthouse could not open {address}: {report['runtimeError']['message']}")
    return report


def row(title: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what counts of a page: the lowest score of each kind, the longest wait, and the size."""
    audits = [report["audits"] for report in reports]
    lowest = {name: min(100 * one["categories"][name]["score"] for one in reports) for name in CATEGORIES}
    wait = max(one["largest-contentful-paint"]["numericValue"] for one in audits) / 1000
    size = max(one["total-byte-weight"]["numericValue"] for one in audits) / 1024
    return {"page": title, **lowest, "wait": wait, "size": size}


def poor(report: dict[str, Any]) -> list[str]:
    """Return the titles of the audits that lower a score, and are not good."""
    weighed = [
        one["id"] for kind in CATEGORIES for one in report["categories"][kind]["auditRefs"] if one["weight"]
    ]
    found = [report["audits"][name] for name in weighed]
    return [one["title"] for one in found if one["score"] is not None and one["score"] < GOOD]


def errors(folder: Path) -> tuple[int, Counter[str]]:
    """Let the validator read all pages; return their number, and its errors, each with how often."""
    pages = sorted(str(page) for page in folder.rglob("*.html"))
    done = run("vnu", "--stdout", "--format", "json", *pages)
    try:
        messages = json.loads(done.stdout)["messages"]
    except (ValueError, KeyError) as error:
        raise SystemExit(f"The validator gave no answer:\n{(done.stdout + done.stderr)[-2000:]}") from error
    return len(pages), Counter(one["message"] for one in messages if one["type"] != "info")


def main() -> None:
    """Audit, print, write."""
    chosen = options(__doc__, "page_audits", rounds=3)
    if not (SITE / "index.html").is_file():
        raise SystemExit(f"There is no site in {SITE}: build it first, with `nox -s docs`.")
    rows, notes, versions = [], [], set()
    with tempfile.TemporaryDirectory() as folder, served(SITE) as address:
        for page, title in PAGES.items():
            reports = [open_page(f"{address}/{page}.html", Path(folder)) for _ in range(chosen.rounds)]
            versions |= {report["lighthouseVersion"] for report in reports}
            rows.append(row(title, reports))
            failed = sorted({one for report in reports for one in poor(report)})
            notes += [f"To improve, {title}: {', '.join(failed)}."] if failed else []
            print(rows[-1], file=sys.stderr)
    pages, wrong = errors(SITE)
    result = Result(
        "page_audits",
        "The pages of this site, audited: Lighthouse's scores of 100, as on a phone",
        about(
            None,
            rounds=chosen.rounds,
            lighthouse=", ".join(versions),
            validator=run("vnu", "--version").stdout.strip(),
        ),
        [
            ("page", "page", ""),
            *((name, title, ".0f") for name, (title, _) in CATEGORIES.items()),
            ("wait", "seconds to the largest part", ".1f"),
            ("size", "KiB", ".0f"),
        ],
        rows,
    )
    for name, (title, target) in CATEGORIES.items():
        some = [
            one for one in rows if (name, one["page"]) != ("seo", "search")
        ]  # search engines leave a search out
        lowest = min(float(one[name]) for one in some)
        names = ", ".join(str(one["page"]) for one in some)
        result.claim(f"Lighthouse, {title}, the lowest of: {names}", lowest, ".0f", ">=", target)
    result.claim(f"errors that the Nu validator finds in all {pages} pages", wrong.total(), ".0f", "<=", 0)
    result.notes += notes + [f"{count} times: {message}" for message, count in wrong.most_common()]
    result.finish(chosen.json)


if __name__ == "__main__":
    main()

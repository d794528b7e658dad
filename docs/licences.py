"""Writes docs/licences.csv: the licences of what a reader installs, as the distributions state them.

``nox -s licences`` runs it in an environment that has what Linux needs, and names a folder with what another
system or Python needs:  python docs/licences.py FOLDER
"""

from __future__ import annotations

import csv
import re
import sys
from importlib import metadata
from pathlib import Path

FILE = Path(__file__).with_suffix(".csv")
LOCK = Path(__file__).parents[1] / "lock.txt"
# words of distributions that state no expression of SPDX -> the licence's short name there
NAMES = {
    "3-clause BSD": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",  # of an unstated version
    "GNU General Public License (GPL)": "GPL",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Public Domain": "public domain",
    "Python Software Foundation License": "PSF-2.0",
}
# states nothing, and only depends on NVIDIA's libraries
SILENT = {"cuda-toolkit": "LicenseRef-NVIDIA-Proprietary"}


def licence(name: str) -> str:
    """Return what an installed distribution states: an expression, a short text, or its classifiers."""
    about = metadata.metadata(name).json
    if expression := about.get("license_expression"):
        return str(expression)
    text = str(about.get("license", "")).strip()
    if text and len(text) < 40 and "\n" not in text:
        return NAMES.get(text, text)
    kinds = [kind.split(" :: ")[-1] for kind in about.get("classifier", []) if kind.startswith("License ::")]
    stated = " AND ".join(NAMES.get(kind, kind) for kind in kinds) or SILENT.get(name)
    if not stated:
        raise SystemExit(f"{name} states no licence; read its files, and add it to SILENT of {__file__}")
    return stated


def main(folder: str) -> None:
    sys.path.append(folder)
    installed = {re.sub(r"[-_.]+", "-", found.name).lower() for found in metadata.distributions()}
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", LOCK.read_text("utf-8"), re.MULTILINE):
        if name in installed:
            versions.setdefault(name, []).append(version)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["Distribution", "Version", "Licence"])
        table.writerows([name, " or ".join(found), licence(name)] for name, found in sorted(versions.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])

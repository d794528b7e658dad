"""Pictures of pages for people to look at: light and dark, wide and telephone.

python tests/site/screenshots.py _build/html _build/pictures index lessons/01_is_there_a_gpu
"""

from __future__ import annotations

import argparse
from pathlib import Path

from browser import chromium, served

WIDTHS = (1280, 375)
SCHEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("outdir", type=Path)
    parser.add_argument(
        "pages", nargs="*", help="without .html; all lessons and the landing page if none is given"
    )
    options = parser.parse_args()
    lessons = (path.relative_to(options.site) for path in sorted(options.site.glob("lessons/*.html")))
    pages = options.pages or ["index", *(path.with_suffix("").as_posix() for path in lessons)]
    options.outdir.mkdir(parents=True, exist_ok=True)
    with served(options.site) as address, chromium() as browser:
        for scheme in SCHEMES:
            for width in WIDTHS:
                view = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
                for page in pages:
                    tab = view.new_page()
                    tab.goto(f"{address}{page}.html")
                    name = f"{page.replace('/', '-')}-{scheme}-{width}.png"
                    tab.screenshot(path=options.outdir / name, full_page=True)
                    print(options.outdir / name)
                    tab.close()


if __name__ == "__main__":
    main()

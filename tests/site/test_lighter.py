"""What the finished site leaves out."""

from __future__ import annotations

import re

import pytest
from projects import CONF, lesson

CODE = "value = [1, 2]\nprint(value)\n"


@pytest.mark.slow
def test_a_page_keeps_its_code_and_loses_marks_comments_and_icons(project):
    project.write("conf.py", CONF + 'extensions.append("_ext.lighter")\n')
    project.write("examples/01_first.py", lesson(body=CODE))
    assert project.build().status == 0
    page = project.page("lessons/01_first")
    assert CODE.strip() in [block.get_text().strip() for block in page.select(".highlight pre")]
    assert page.select(".highlight span.nb")
    assert not page.select(".highlight :is(span.n, span.o, span.p, span.w)")
    assert not [link for link in page.select("link") if "extensions" in link["href"]]
    styles = project.folder / "out" / "_static"
    furo, pygments = (styles / "styles/furo.css").read_text(), (styles / "pygments.css").read_text()
    assert "/*" not in furo + pygments and ".highlight .nb" in pygments and ".highlight .gh" not in pygments
    assert ".admonition" in furo and ".announcement" not in furo and "--caution" not in furo
    script = (styles / "doctools.js").read_text()
    assert "const Documentation" in script and "/*" not in script and "\n  " not in script
    assert set(re.findall(r"--icon-([\w-]+):url", furo)) == {"search"}
    again = project.build()  # Sphinx finds its files changed, and goes on
    assert again.status == 0 and (styles / "styles/furo.css").read_text() == furo

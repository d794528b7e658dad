"""Formulas are MathML on the page, and one that cannot be converted is a warning."""

import pytest
from projects import Project

pytestmark = pytest.mark.slow  # each builds a project

FORMULAS = r"""
Formulas
========

Inline :math:`\frac{a}{b}` and

.. math:: \mathrm{loss} = -\sum_{i=1}^{N} \log p_i
   :label: loss

as :eq:`loss` says.
"""


@pytest.fixture
def project(project: Project) -> Project:
    (project.folder / "docs/tables.rst").unlink()
    (project.folder / "conf.py").write_text(
        (project.folder / "conf.py")
        .read_text()
        .replace('"sphinx_gallery.gen_gallery", ', "")
        .split("ours")[0]
        + 'extensions = ["_ext.mathml"]\nhtml_math_renderer = "mathml"\n'
    )
    return project


def test_formulas_are_mathml(project):
    project.write("docs/index.rst", FORMULAS)
    build = project.build()
    assert build.status == 0, build.log
    inline, block = project.page("index").find_all("math")
    assert [inline["display"], block["display"]] == ["inline", "block"]
    assert [part.get_text() for part in inline.mfrac.find_all("mi")] == ["a", "b"]
    assert block.find(["munderover", "msubsup"]).mo.get_text() == "∑"
    assert block.parent.select_one(".eqno").get_text() == "(1)"
    assert "mathjax" not in str(project.page("index")).lower()


@pytest.mark.parametrize(
    "formula", [r"\frac{1}", r"\nosuchcommand{x}", r"\begin{aligned} a &= b \end{aligned}"]
)
def test_a_formula_that_cannot_be_read_is_a_warning(project, formula):
    project.write("docs/index.rst", f"Formulas\n========\n\nThis :math:`{formula}` one.\n")
    build = project.build()
    assert build.status != 0
    assert f"math: cannot read {formula!r}" in build.log

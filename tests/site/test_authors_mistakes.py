"""What an author gets wrong fails the build, and each mistake is named: one build has them all."""

from __future__ import annotations

import re
from textwrap import indent

import pytest
from projects import CONF, INDEX, Project, lesson

pytestmark = pytest.mark.slow

MORE = """
extensions += ["_ext.hardware", "_ext.programs", "_ext.recorded.pages", "_ext.results"]
sphinx_gallery_conf["image_scrapers"] = ("_ext.figures.scrape", "_ext.recorded.pages.mark_cell")
"""
RESULT = '{"columns": [["what", "what", ""], ["x", "x", ".2f"]], "rows": [], "claims": []}'
STEPS = ".. steps-by-ranks:: {}\n   :seconds: 1\n   :gradients: 1000\n   :networks: {}"


def question(text: str) -> str:
    return ".. question:: What?\n\n" + indent(text, "   ")


PAGE = {  # on one page: a directive -> its error
    question("- One.\n\n  Yes. So.\n\n- Two.\n\n  Yes. So."): "one answer must be right",
    question("- One.\n\n  Perhaps."): "about the answer 'One.'",
    question("- Alone."): "about the answer 'Alone.'",
    question("Well?"): "a question holds a list",
    ".. run:: broken.py": "ZeroDivisionError",
    ".. film:: changed.py": "changed.py: the variant 'two' changes '# - y = 1' into '# + y = 2'",
    ".. benchmark:: lost": "there is no benchmark lost.py",
    ".. benchmark:: speed\n   :split: z": "there is no column 'z' to split at; the others are x",
    ".. headline:: speed\n   :claim: C": "speed.json has 0 figures that begin with 'C', not one",
    ".. trust:: files": "files is missing, or not as promised: {'kept': False",
    STEPS.format("P100", "10 GbE"): "no link for 'P100'",
    STEPS.format("A100", "a string"): "unknown network 'a string'",
}
LESSONS = {  # a lesson -> its warnings
    "01_lost": (
        lesson()
        .replace(":file: 01_task", ":file: 01_lost")
        .replace(":starter: 01_task", ":starter: 01_gone"),
        ["exercises/01_gone.py' not found", "solutions/01_lost.py' not found"],
    ),
    "02_facts": (
        lesson(text=".. covers:: S0.4 S7.1 S1 S1.02 S1.1 S1.1"),
        [
            "covers: there is no fact 'S0.4'; tables has S0.1, S0.2, S0.3, S1.1, S1.2",
            "covers: there is no fact 'S7.1'",
            "covers: there is no fact 'S1'",
            "covers: there is no fact 'S1.02'",
            "covers: S1.1 stands on this page more than once",
        ],
    ),
    "03_minutes": (
        lesson().replace(":minutes: 5", ":minutes: 7").replace("easy", "brutal"),
        ['"brutal" unknown'],
    ),
    "04_overview": (
        lesson().replace("   :teaching: 10\n", ""),
        ["overview needs both options, in minutes: ':teaching: 10' and ':exercises: 5'"],
    ),
    "05_sentence": (
        lesson().replace("Learn *one* thing with ``code``.\n", ".. note:: no sentence\n"),
        ["overview: a lesson needs one sentence below its title"],
    ),
    "06_sum": (
        lesson().replace(":minutes: 5", ":minutes: 7"),
        ["overview: announces 5 minutes of exercises, but the exercises say 7"],
    ),
    "07_notebook": (
        lesson(
            "Seventh",  # by its text the notebook finds its script
            body="""
# %%
# -a  an option list
#
# See :ref:`genindex`.
#
# See :doc:`/nowhere`.
#
# See :nonsense:`x`.
#
# .. image:: /lost.png

3
""",
        ),
        [
            "notebook: no Markdown form for option_list",
            "no Markdown form for this reference: give it a text, :ref:`text <genindex>`",
            "no Markdown form for this reference: give it a text, :doc:`text </nowhere>`",
            'Unknown interpreted text role "nonsense"',
            "picture /lost.png, there is no file ",
        ],
    ),
    "08_recorded": (lesson(), ["recording recordings/08_recorded.json: it is not a recording, KeyError"]),
}
FILES = {  # beside the lessons
    "docs/recordings/08_recorded.json": "{}",
    "docs/recordings/99_gone.json": "{}",
    "docs/trust.json": '{"rows": {"files": {"kept": false, "done": 4999, "of": 5000, "least": 5000}}}',
    "benchmarks/speed.py": "",
    "benchmarks/results/speed.json": RESULT,
    "examples/scripts/broken.py": "print(1 / 0)\n",
    "examples/scripts/changed.py": "x = 1\n\n# variant: one\n# variant: two\n# - y = 1\n# + y = 2\n",
}
MESSAGES = [*PAGE.values(), *(message for _, messages in LESSONS.values() for message in messages)]
MESSAGES.append("recording recordings/99_gone.json: there is no lesson 99_gone. Rename it, or remove it.")


@pytest.fixture(scope="module")
def log(tmp_path_factory, sphinx) -> str:
    project = Project(tmp_path_factory.mktemp("mistakes"), sphinx)
    project.write("conf.py", CONF + MORE)
    project.write("docs/index.rst", INDEX + "   mistakes\n")
    project.write("docs/mistakes.rst", "\n\n".join(["Mistakes\n========", *PAGE]) + "\n")
    for name, text in {
        **FILES,
        **{f"examples/{name}.py": text for name, (text, _) in LESSONS.items()},
    }.items():
        project.write(name, text)
    build = project.build()
    assert build.status != 0
    return build.log


@pytest.mark.parametrize("message", MESSAGES)
def test_a_mistake_is_named(log, message):
    assert message in log


def test_a_notebooks_warning_has_the_line_of_the_script(log):
    lines = LESSONS["07_notebook"][0].splitlines()
    found = re.search(r"07_notebook.py:(\d+): WARNING: notebook: no Markdown form for option_list", log)
    assert found and abs(int(found[1]) - 1 - lines.index("# -a  an option list")) <= 3

"""The catalogue of errors fits the words of the PyTorch that is installed, and the page of error messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpulesson.exercises.findings import Source
from gpulesson.exercises.rules import errors
from gpulesson.exercises.trace import ErrorSeen, Site

PAGE = (Path(__file__).parents[2] / "docs/errors.rst").read_text()
LOGITS, LABELS, ROWS = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.ones(4, 5)
LAYER = nn.Linear(5, 3)


def twice():
    loss = LAYER(ROWS).pow(2).sum()
    loss.backward()
    loss.backward()


def changed():
    answers = LAYER(ROWS).exp()
    answers += 1
    answers.sum().backward()


def of_inference():
    with torch.inference_mode():
        rows = ROWS.clone()
    LAYER(rows).sum().backward()


ERRORS = {
    "LOGITS == LABELS": ("logits-compared", lambda: LOGITS == LABELS),
    "LOGITS + LABELS": ("sizes-differ", lambda: LOGITS + LABELS),
    "loss.backward()": ("gradients-off", lambda: F.mse_loss(ROWS, ROWS).backward()),
    "loss.backward() ": ("loss-without-history", lambda: F.mse_loss(ROWS, ROWS).item().backward()),
    "layer(rows)": ("gradients-off", of_inference),
    "loss_fn(a, b)": ("float-labels", lambda: F.cross_entropy(LOGITS, LABELS.float())),
    "loss_fn(b, a)": ("loss-arguments-swapped", lambda: F.cross_entropy(LABELS, LOGITS)),
    "loss_fn(y, a)": ("loss-arguments-swapped", lambda: F.cross_entropy(LOGITS.argmax(1), LABELS)),
    "model(x)": ("double-and-float", lambda: LAYER(ROWS.double())),
    "x.to(device)": ("unknown-device", lambda: ROWS.to("gpu")),
    "model(y)": ("shapes-do-not-fit", lambda: LAYER(LOGITS)),
    "loss_fn(a, b[:3])": ("batch-sizes-differ", lambda: F.cross_entropy(LOGITS, LABELS[:3])),
    "loss_fn(a, b + 7)": ("label-out-of-range", lambda: F.cross_entropy(LOGITS, LABELS + 7)),
    "twice()": ("backward-twice", twice),
    "answers.sum().backward()": ("changed-in-place", changed),
    "model(x).numpy()": ("numpy-needs-detach", lambda: LAYER(ROWS).numpy()),
    "model.load_state_dict(x)": ("state-does-not-fit", lambda: LAYER.load_state_dict({"a": ROWS})),
    "if x:": ("truth-of-many", lambda: bool(ROWS)),
    "float(x)": ("truth-of-many", lambda: float(ROWS)),
    "batch.to(device)": ("only-tensors-move", lambda: [ROWS].to("cpu")),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize(
    ("line", "kind", "fails"), [(line, *case) for line, case in ERRORS.items()], ids=ERRORS
)
def test_an_error_of_pytorch_is_known(line, kind, fails):
    with pytest.raises(Exception) as caught:
        fails()
    seen = ErrorSeen(type(caught.value).__name__, str(caught.value), Site("mine.py", 1), [], {})
    finding = errors.known(seen, Source("mine.py", [line]))
    assert finding is not None and finding.kind == kind and finding.line == 1
    assert str(caught.value).split("\n")[0][:40] in finding.what


def test_a_forward_that_returns_nothing_is_named_with_its_last_line():
    lines = ["class Net:", "    def forward(self, x):", "        self.layer(x)", "loss_fn(model(x), y)"]
    with pytest.raises(TypeError) as caught:
        F.cross_entropy(None, LABELS)  # type: ignore[arg-type]
    seen = ErrorSeen("TypeError", str(caught.value), Site("mine.py", 4), [], {})
    finding = errors.known(seen, Source("mine.py", lines))
    assert finding is not None and (finding.kind, finding.line) == ("nothing-returned", 3)
    assert errors.known(seen, Source("mine.py", lines[3:])) is None, "it is something else that is None"


def test_other_errors_are_not_in_the_catalogue():
    seen = ErrorSeen("NameError", "name 'x' is not defined", Site("mine.py", 1), [], {})
    assert errors.known(seen, Source("mine.py", ["x"])) is None


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z_]{2,}", text.lower()))


# one has too few words of its own for a section that a search could find
@pytest.mark.parametrize("line", sorted(ERRORS.keys() - {"batch.to(device)"}))
def test_the_page_has_a_section_for_what_the_catalogue_knows(line):
    with pytest.raises(Exception) as caught:
        ERRORS[line][1]()
    said = words(str(caught.value))
    headings = [words(heading) for heading in re.findall(r"^``(.+)``\n~+$", PAGE, re.M)]
    assert len(headings) > 40 and any(len(heading & said) >= 0.6 * len(heading) for heading in headings)


def test_there_are_fifteen_and_each_names_the_page():
    assert len({entry.diagnosis.kind for entry in errors.CATALOGUE}) >= 15
    assert all(entry.diagnosis.remedy.endswith(errors.PAGE) for entry in errors.CATALOGUE)

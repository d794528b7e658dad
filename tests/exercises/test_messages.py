"""What an error means: the page's sections, for their own messages and for no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpulesson_tools.exercises.messages import PYTHON, explain, explanations, of_python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errors.rst").read_text(encoding="utf-8")
LABELS = {
    message: label for label, message in re.findall(r"^\.\. _(error-[\w-]+):\n\n``(.+)``\n~", PAGE, re.M)
}
# what readers paste, each after the label of its section
PASTED = [
    tuple(line.split(": ", 1))
    for line in (ROOT / "tests/site/pasted_messages.txt").read_text(encoding="utf-8").splitlines()
]


def label_of(error: str) -> str | None:
    found = explain(error)
    return LABELS.get(found.message) if found else None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("IndexError: Target 12 is out of bounds.", "Target 3 is out of bounds."),
        (
            "RuntimeError: Expected all tensors to be on the same device, but got mat1 is on cuda:0, "
            "different from other tensors on cpu (when checking argument in method wrapper_CUDA_addmm)",
            "Expected all tensors to be on the same device, but got mat1 is on cuda:0, different from "
            "other tensors on cpu",
        ),
        (
            "RuntimeError: mat1 and mat2 must have the same dtype, but got Byte and Float",
            "mat1 and mat2 must have the same dtype, but got Double and Float",
        ),
        (
            "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight: copying a "
            "param with shape torch.Size([2, 8]) from checkpoint, the shape in current model is "
            "torch.Size([3, 8]).",
            "size mismatch for 2.weight: copying a param with shape torch.Size([10, 32]) from checkpoint, "
            "the shape in current model is torch.Size([3, 32]).",
        ),
    ],
)
def test_an_error_is_explained_by_the_page_of_messages(error, message):
    result = explain(error)
    assert result.message == message
    assert len(result.cause) > 20 and "``" not in result.cause and ":ref:" not in result.cause


def test_each_section_of_the_page_is_found_by_its_own_message():
    for each in explanations():
        assert explain(f"RuntimeError: {each.message}").message == each.message


def test_pasted_messages_are_explained_by_their_section_or_not_at_all():
    found = [(label, label_of(text)) for label, text in PASTED if label in LABELS.values()]
    assert all(got in (label, None) for label, got in found)
    # the others are parts of messages, of older versions, or of libraries that no exercise uses
    assert sum(got is not None for _, got in found) >= 50
    assert not [text for label, text in PASTED if label == "none" and explain(text)]


UNRELATED = """
IndexError: index 4 is out of bounds for dimension 0 with size 4
IndexError: index 16 is out of bounds for axis 1 with size 4
IndexError: list index out of range
IndexError: tuple index out of range
IndexError: string index out of range
IndexError: pop from empty list
IndexError: Dimension out of range (expected to be in range of [-2, 1], but got 2)
IndexError: too many indices for tensor of dimension 1
IndexError: invalid index of a 0-dim tensor. Use `tensor.item()`
IndexError: The shape of the mask [3] at index 0 does not match the shape of the indexed tensor [4] at index 0
AttributeError: 'tuple' object has no attribute 'backward'
AttributeError: 'float' object has no attribute 'item'
AttributeError: 'NoneType' object has no attribute 'backward'
AttributeError: 'list' object has no attribute 'to'
AttributeError: 'str' object has no attribute 'type'
AttributeError: module 'torch.optim' has no attribute 'adam'
AttributeError: 'Sequential' object has no attribute 'device'
KeyError: 'epochs'
KeyError: 3
ValueError: not enough values to unpack (expected 3, got 2)
ValueError: too many values to unpack (expected 2)
ValueError: optimizer got an empty parameter list
ValueError: batch_size should be a positive integer value, but got batch_size=0
ValueError: num_samples should be a positive integer value, but got num_samples=0
ValueError: could not convert string to float: 'cuda'
ValueError: only one element tensors can be converted
ValueError: math domain error
TypeError: 'int' object is not callable
TypeError: 'Tensor' object is not callable
TypeError: 'float' object is not iterable
TypeError: 'NoneType' object is not subscriptable
TypeError: only integer tensors of a single element can be converted to an index
TypeError: can only concatenate str (not "int") to str
TypeError: unsupported operand type(s) for /: 'str' and 'int'
TypeError: accuracy() takes 2 positional arguments but 3 were given
TypeError: to() received an invalid combination of arguments - got (NoneType), but expected one of:
TypeError: linear(): argument 'input' (position 1) must be Tensor, not list
TypeError: Adam.__init__() missing 1 required positional argument: 'params'
TypeError: cannot unpack non-iterable NoneType object
RuntimeError: shape '[64, 784]' is invalid for input of size 3136
RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4
RuntimeError: The expanded size of the tensor (3) must match the existing size (4)
RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation.
RuntimeError: grad can be implicitly created only for scalar outputs
RuntimeError: Tensors must have same number of dimensions: got 2 and 1
RuntimeError: result type Float can't be cast to the desired output type Long
RuntimeError: expected self and mat2 to have the same dtype, but got: long int != float
RuntimeError: Expected all tensors to be on the same device, but got weight is on cuda:0, different from cpu
RuntimeError: dictionary changed size during iteration
ZeroDivisionError: division by zero
OverflowError: math range error
AssertionError
NotImplementedError
StopIteration
PermissionError: [Errno 13] Permission denied: '/data/x'
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte
LookupError: a method of this name is missing
RuntimeError: the function of the loss is missing
""".strip().splitlines()


@pytest.mark.parametrize("error", UNRELATED)
def test_what_the_page_does_not_know_is_not_explained(error):
    assert explain(error) is None and not of_python(error)


# those that Python itself raises for programs: test_broken_programs.py
@pytest.mark.parametrize(
    ("error", "line", "says"),
    [
        ("AttributeError: __enter__", "", "as in torch.no_grad()"),  # Python 3.10
        ("AttributeError: 'function' object has no attribute 'item'", "", "A function itself"),
        ("TypeError: float() argument must be a real number, not 'method'", "", "A function itself"),
        ("TypeError: must be Tensor, not builtin_function_or_method", "", "A function itself"),
        ("TypeError: Adam.step() missing 1 required positional argument: 'self'", "", "the class itself"),
        ("SystemExit", "", "ends itself in this line"),
        ("ModuleNotFoundError: No module named 'a.b'", "", "nor is a.py beside this file"),
        ("SyntaxError: invalid syntax", "<<<<<<< HEAD", "Git"),
    ],
)
def test_pythons_own_errors(error, line, says):
    assert says in of_python(error, line)


def test_what_is_said_of_pythons_errors_is_whole_sentences():
    assert all(cause.endswith((".", "?")) for cause in PYTHON.values())

"""PyTorch's own operator database: every operator, the types that it takes, and samples of its input."""

from typing import Any
from unittest import mock

import pytest
import torch


def operators(every: int = 1) -> list[Any]:
    """
    Return the database, or some of it, as on a machine with the GPU that the practice GPU says to be.

    What a GPU can do depends on its capability, 8.0 here; without one the database takes it for none at all.
    """
    # the import would forbid this process to set cuDNN's flags ever again; other tests set them
    with mock.patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal import common_cuda

        capabilities = {name: True for name in vars(common_cuda) if name in _UP_TO_8_0}
        with mock.patch.multiple(common_cuda, **capabilities):
            from torch.testing._internal.common_methods_invocations import op_db
    # these compile for a real GPU
    return [op for op in op_db if not op.name.startswith("jiterator")][::every]


SHARES = pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.thorough)])
"""Every twentieth operator, or each one."""


_UP_TO_8_0 = ("SM53OrLater", "SM60OrLater", "SM70OrLater", "SM75OrLater", "SM80OrLater")


def full_name(op: Any) -> str:
    """Return an operator's name with that of its variant."""
    return f"{op.name}.{op.variant_test_name}".rstrip(".")

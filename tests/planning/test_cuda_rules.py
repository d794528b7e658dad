"""What CUDA's operators keep for backward otherwise than the CPU's, in a program as it is run."""

import importlib
import sys

import torch
from torch.nn import functional as F

from gpulesson_tools.planning.recording.recorded import record_function


def test_attention_with_dropout_keeps_no_weights_also_after_pytorch_has_imported_more(monkeypatch):
    late = "torch.utils.bundled_inputs"  # as the first optimizer imports the compiler
    importlib.import_module(late)
    monkeypatch.delitem(sys.modules, late)

    def program():
        importlib.import_module(late)
        heads = torch.ones(2, 4, 64, 8, device="cuda", requires_grad=True)
        F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).sum().backward()

    made = record_function(program, 1).allocations
    assert late in sys.modules
    assert max(each.nbytes for each in made) == 2 * 4 * 64 * 8 * 4  # and not 64 weights for each of 64 tokens

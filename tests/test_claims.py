"""Sentences of the pages about PyTorch, each beside a program that would fail if it were wrong."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.run import config_from_args, parse_args

import gpulesson
from gpulesson_tools.planning.memory.caching import CachingAllocator

ROOT = Path(__file__).parents[1]
MIB = 2**20


def inference_tensors(monkeypatch):
    weight = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        made = torch.ones(3)
    (made + weight).sum().backward()  # a sum keeps neither of its operands
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        made * weight
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        made.add_(1)
    (made.clone().add_(1) * weight).sum().backward()


def copies_and_single_indices(monkeypatch):
    with gpulesson.practice_gpu(force=True) as gpu:
        on_gpu, on_cpu = torch.zeros(2, 3, device="cuda"), torch.ones(2, 3)
        single, several = torch.tensor(1, device="cuda"), torch.tensor([1], device="cuda")
        gpu.clear_events()
        on_gpu.copy_(on_cpu)
        on_gpu[0:2] = on_cpu
        assert on_cpu[single].tolist() == [1, 1, 1]
        assert sum(event.waits for event in gpu.events) == 3
        with pytest.raises(RuntimeError, match="indices should be either on cpu"):
            on_cpu[several]
        with pytest.raises(RuntimeError, match="found at least two devices"):
            on_gpu[several] = on_cpu[:1]


def compile_modes(monkeypatch):
    options = torch._inductor.list_mode_options()
    assert options["reduce-overhead"]["triton.cudagraphs"] and options["max-autotune"]["triton.cudagraphs"]


def tf32(monkeypatch):
    assert torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32


def threads_of_torchrun(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    config_from_args(parse_args(["--standalone", "--nproc-per-node", "2", "train.py"]))
    assert os.environ["OMP_NUM_THREADS"] == "1"


def emptied_early(monkeypatch):
    for early in (False, True):
        allocator = CachingAllocator(180 * MIB)
        allocator.free(allocator.malloc(100 * MIB))
        if early:
            allocator.empty_cache()
        allocator.malloc(50 * MIB)  # else it lies in the segment of 100 MiB, and keeps it
        if early:
            allocator.malloc(100 * MIB)
        else:
            with pytest.raises(torch.OutOfMemoryError):
                allocator.malloc(100 * MIB)


def old_name_of_reserved_memory(monkeypatch):
    with gpulesson.practice_gpu(force=True):
        kept = torch.ones(3, device="cuda")
        with pytest.warns(FutureWarning, match="renamed"):
            assert torch.cuda.memory_cached() == torch.cuda.memory_reserved() > kept.nbytes


def order_of_unscaling(monkeypatch):
    weights = []
    for unscale_first in (False, True):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        scaler.scale((weight**2).sum()).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        weight.grad /= 7
        scaler.step(optimizer)
        weights.append(weight.detach())
    assert torch.equal(*weights)


class Draws(torch.utils.data.Dataset):
    """NumPy's functions, and a generator that was made before there were workers."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.random.rand(), self.own.random()


def draws_of_workers(monkeypatch):
    shared, own = zip(*torch.utils.data.DataLoader(Draws(), batch_size=None, num_workers=2), strict=True)
    assert shared[0] != shared[1] and own[0] == own[1]


def optimizer_in_a_graph(monkeypatch):
    with gpulesson.practice_gpu(force=True):
        weight = torch.ones(3, device="cuda", requires_grad=True)
        for capturable in (True, False):
            optimizer = torch.optim.Adam([weight], capturable=capturable)
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            refused = pytest.raises(RuntimeError, match="capturable is False")
            with torch.cuda.graph(torch.cuda.CUDAGraph()), nullcontext() if capturable else refused:
                weight.detach().clone()  # so that no graph is empty
                optimizer.step()


LESSON_15 = "examples/15_what_an_operator_costs.py"
CLAIMS = [
    ("docs/glossary.rst", "neither kept for a backward pass nor changed in place, unless", inference_tensors),
    ("docs/errors.rst", "Copies are an exception", copies_and_single_indices),
    ("examples/12_speed_ladder.py", '``mode="max-autotune"`` it does so, too', compile_modes),
    (LESSON_15, "convolutions use TF32 and products do not", tf32),
    (LESSON_15, "Otherwise the capture stops with an error", optimizer_in_a_graph),
    ("examples/09_feeding_the_gpu.py", "is copied into all of them: they draw the same", draws_of_workers),
    ("docs/cluster.rst", "gives each process of several a single CPU thread", threads_of_torchrun),
    ("examples/10_where_did_my_memory_go.py", "can it help to call it early", emptied_early),
    ("examples/02_tensors_and_devices.py", "an old name of ``memory_reserved``", old_name_of_reserved_memory),
    ("examples/13_when_it_does_not_fit.py", "If you clip with a ``GradScaler``", order_of_unscaling),
]


@pytest.mark.parametrize(
    ("page", "words", "program"), CLAIMS, ids=lambda each: getattr(each, "__name__", None)
)
def test_what_a_page_says_of_pytorch_holds(page, words, program, monkeypatch):
    text = re.sub(r"\s+(?:# +)?", " ", (ROOT / page).read_text(encoding="utf-8"))
    assert words in text, f"{page} no longer says this: change or remove the program beside it"
    program(monkeypatch)


def test_the_workflow_on_the_page_uses_the_actions_of_our_own():
    own = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    newest = dict(re.findall(r"uses: (\S+)@\w+ # v(\d+)", own))
    shown = re.findall(r"uses: (\S+)@v(\d+)", (ROOT / "docs/testing.rst").read_text(encoding="utf-8"))
    assert shown and all(newest[action] == version for action, version in shown)

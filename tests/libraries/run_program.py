"""Runs one program of this folder: ``python run_program.py use_timm cuda result.pt [before]``.

With ``before`` the library is imported first and the practice GPU switched on after it. To import it on the
practice GPU, run this file by ``python -m gpulesson practice``.
"""

import sys
from contextlib import nullcontext
from importlib import import_module

import torch
from torch.utils._pytree import tree_map_only

from gpulesson import practice_gpu

name, device, file, *before = sys.argv[1:]
train = import_module(name).train
with practice_gpu(force=True) if before else nullcontext():
    torch.manual_seed(0)
    returned = train(device)
    used = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    torch.save((tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), returned), used), file)

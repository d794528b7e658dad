"""
Learn without a GPU
===================

What the practice GPU simulates, what it does not, and the ways to switch it on.

The practice GPU makes PyTorch believe that CUDA GPUs are present. Tensors stay in the
computer's memory, and the CPU does the computing; but each tensor is labelled with
the device that it pretends to be on, and PyTorch's rules for devices are applied to
the labels. So code for CUDA runs, really trains, and breaks where PyTorch's rules for
devices break it.
"""

# %%
# Five ways in
# ------------
#
# As a block, for a part of a program. When a real GPU is present, the practice GPU
# steps aside and says so; ``force=True`` simulates all the same:

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import gpulesson
from gpulesson import practice

with gpulesson.practice_gpu() as gpu:
    x = torch.ones(3, device="cuda")
    print(x, "·", torch.cuda.get_device_name(), "· simulated:", gpu.simulated)

print("afterwards, is there a GPU?", torch.cuda.is_available())

# %%
# As a decorator, for a function:


@gpulesson.practice_gpu(count=2, force=True)
def on_the_second():
    return torch.ones(3, device="cuda:1").device


print(on_the_second())

# %%
# With ``start`` and ``stop``, for notebooks, whose cells cannot share a block:

practice.start()
print(torch.zeros(2).cuda().device)
practice.stop()

# %%
# From the command line, for a script that knows nothing of it: ``python -m gpulesson
# practice script.py``. We write one and run it:

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
(folder / "script.py").write_text(
    """\
import torch
model = torch.nn.Linear(4, 2).cuda()
print("parameters on", model.weight.device)
print(model(torch.rand(8, 4)).sum())
"""
)


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )
    print(done.stdout + done.stderr, "exit status: ", done.returncode, sep="")


run("-m", "gpulesson", "practice", "script.py")

# %%
# The script forgot to move its inputs, and fails with CUDA's message, at its own line.
# That makes the fifth way useful: the pytest fixture ``practice_gpu``, with which
# *your* project can test its CUDA code on machines that have no GPU. It is there as
# soon as gpulesson is installed:

(folder / "test_mine.py").write_text(
    """\
import torch

def test_the_model_runs_on_cuda(practice_gpu):
    model = torch.nn.Linear(4, 2).cuda()
    outputs = model(torch.rand(8, 4, device="cuda"))
    assert outputs.is_cuda
"""
)
try:
    import pytest  # noqa: F401  # only to see whether it is here

    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
except ImportError:
    print("pytest is not installed here")

# %%
# It trains, and computes what the CPU computes
# ---------------------------------------------
#
# The same training twice, once plainly on the CPU and once on the practice GPU:


def train(device):
    torch.manual_seed(0)
    X, y = torch.randn(256, 8), torch.randint(3, (256,))
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        for i in range(0, 256, 64):
            loss = torch.nn.functional.cross_entropy(
                model(X[i : i + 64].to(device)), y[i : i + 64].to(device)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


plain = train("cpu")
with gpulesson.practice_gpu(force=True) as gpu:
    practised = train("cuda")

print("plain CPU:   ", [f"{loss:.6f}" for loss in plain])
print("practice GPU:", [f"{loss:.6f}" for loss in practised])
print("equal to the last bit:", plain == practised)

# %%
# It keeps a log
# --------------
#
# Copies between the two memories, and moments when the CPU must wait for the GPU, are
# two common reasons why GPU programs are slow. The practice GPU notes each of them,
# with the line that caused it. This is the report of the training above:

print(gpu.report())

# %%
# One line copies every batch, both halves, and waits each time; one waits for the
# loss of each epoch; one moves the model, once. On a data set of 60,000 images the
# first would be the line to change.
#
# .. _memory-full:
#
# Its memory can be full
# ----------------------
#
# Give it the memory of the GPU that you will use, and see whether the tensors fit. The
# error is CUDA's:

with gpulesson.practice_gpu(memory="1 GiB", force=True) as gpu:
    weights = torch.zeros(10_000, 10_000, device="cuda")
    print(
        f"allocated: {torch.cuda.memory_allocated() / 2**20:.0f} MiB of a pretended 1 GiB"
    )
    try:
        more = torch.zeros(20_000, 10_000, device="cuda")
    except torch.OutOfMemoryError as error:
        print(str(error).split(". Including")[0] + ". …")
    del weights

# %%
# .. _not-simulated:
#
# What it does not simulate
# -------------------------
#
# Be clear about what a simulation cannot tell you.
#
# - **Time.** It computes on the CPU, with some work on top. Nothing that it times says
#   anything about a GPU.
# - **Asynchrony.** A real GPU works while Python runs on. Here every call is finished
#   when it returns; streams and events exist and are in order, always.
# - **Random numbers.** A seed gives numbers here, and other numbers on a GPU, as CUDA's
#   generator is another one.
# - **Memory beyond the tensors.** Sizes are rounded to blocks of 512 bytes, as on a
#   GPU. The context, the caches and the workspaces of libraries, which take memory on a
#   real one, do not exist.
# - **Rounding.** Results are the CPU's, to the bit. A GPU's differ in the last digits.
# - **Errors inside a kernel.** A label out of range raises ``CUDA error: device-side
#   assert triggered`` here too, in the line that caused it, and the program can go
#   on. On CUDA the message may come lines later, and the process cannot use the GPU
#   any more.
# - **Hardware.** The name says "simulated", and so does whatever prints it:

with gpulesson.practice_gpu(force=True):
    print(torch.cuda.get_device_name())
    print("compute capability that it claims:", torch.cuda.get_device_capability())
    torch.manual_seed(0)
    print("its first random numbers:", torch.rand(3, device="cuda").tolist())

torch.manual_seed(0)
print("the CPU's, same seed:    ", torch.rand(3).tolist())

# %%
# How it is checked
# -----------------
#
# A PyTorch built for CUDA contains the checks of CUDA's operators also on a machine
# without a GPU. They can be asked, up to the point where a driver is needed, and the
# project's tests ask them: several hundred mixtures of operators and devices, real
# message against simulated message, word for word. Another test takes every operator of
# PyTorch's own test database that knows ``float32``, runs it on the practice GPU and on
# the plain CPU, and compares results, gradients and devices.

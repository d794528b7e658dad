"""
Learn without a GPU
===================

What you can learn on a :term:`practice GPU`, what you cannot, and five ways to begin.
"""

# %%
# .. prereq::
#
#    - a computer with Python, and this course's package (:doc:`/setup`)
#    - for the later sections, :doc:`lesson 4 </lessons/04_training_loop>`
#
# A practice GPU is for you what a flight simulator is for a pilot: the same switches, and
# a mistake has the same consequences, but nothing breaks. You learn what to do. You do
# not get to another city.
#
# It makes PyTorch believe that the computer has a :term:`GPU`. Your :term:`tensors
# <tensor>` stay in the computer's own memory, and its CPU does the computing. But each
# tensor has a label with the :term:`device` that it pretends to be on, and PyTorch's
# rules for devices are applied to these labels.
#
# .. list-table::
#    :header-rows: 1
#
#    * - Good for
#      - Not for
#    * - running most code that says ``"cuda"``
#      - measuring how fast a GPU is
#    * - meeting the errors that mixed devices give, nearly always with the same words
#      - numbers that are equal to a GPU's, to the last digit
#    * - training a small model, with the right results
#      - training a large model: it is as slow as your CPU
#    * - counting copies and waits, line by line
#      - seeing the work of a GPU and of Python overlap
#    * - seeing whether your tensors fit into a memory
#      - knowing the last megabyte that a real GPU would need
#
# Switch it on in a notebook
# --------------------------
#
# ``start`` switches the practice GPU on, for all cells that follow. ``stop`` switches it
# off. Before you run the cell: where will ``x`` be?

import torch
from torch import nn

from gpulesson import practice

practice.start()
x = torch.ones(3, device="cuda")
print(x)
print(torch.cuda.get_device_name())
practice.stop()

# %%
# ``x`` was on ``cuda:0``, the first GPU. Its name says that it is simulated, unless this
# computer has a real :term:`CUDA` GPU. **Where there is one, the practice GPU leaves the
# work to it** and says so in a warning. So these lines may stay in a notebook that others
# run elsewhere.
#
# .. question:: Is ``x`` in the memory of a graphics card now?
#
#    - Yes, because ``x.device`` said ``cuda:0``.
#
#      No. On a computer without a CUDA GPU, ``cuda:0`` was a label, and the three
#      numbers were in the computer's own memory all the time. After ``stop`` the label
#      is gone, and ``x.device`` says ``cpu``.
#
#    - Only where the computer has a real CUDA GPU.
#
#      Yes. Everywhere else, ``cuda:0`` was a label. While the practice GPU is on,
#      ``torch.cuda.get_device_name()`` tells you which of the two it is.
#
#    - No, because ``stop`` brought it back.
#
#      No. ``stop`` ends the simulation, and with it the label. It moves no tensor.
#
# Run a script that knows nothing of it
# -------------------------------------
#
# You have a script for a GPU, perhaps from a book, and want to see whether it runs. You
# do not have to change it:
#
# .. code-block:: bash
#
#    python -m gpulesson practice script.py
#
# Before the script's name there may be ``--nproc 2`` for two processes, each with its own
# GPU, ``--count 2`` for two GPUs in one process, ``--memory "64 MiB"``, and
# ``--report``, which prints a table of copies and waits at the end.
#
# This script has a mistake. Can you see it?

# fold: A helper that runs a command in a folder of its own
import subprocess
import sys
import tempfile
from pathlib import Path

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


def run(*command):
    """Run Python with these arguments, and print what it prints."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )
    print(done.stdout + done.stderr)


# %%

script = """\
import torch
model = torch.nn.Linear(4, 2).cuda()
inputs = torch.rand(8, 4)
print(model(inputs).sum())
"""
(folder / "script.py").write_text(script)
run("-m", "gpulesson", "practice", "script.py")

# %%
# The model is on the GPU, and its inputs are still on the CPU. The message has the words
# that PyTorch uses on a real GPU, and the line is a line of the script.
# :doc:`/lessons/07_common_mistakes` reads such messages word by word.
#
# Use it for a part of a program
# ------------------------------
#
# A ``with`` block says where the simulation begins and ends. A decorator, the line with
# ``@``, does it for a whole function:

import gpulesson

with gpulesson.practice_gpu(force=True) as gpu:
    print(torch.ones(3, device="cuda").device, "simulated:", gpu.simulated)


@gpulesson.practice_gpu(count=2, force=True)
def on_the_second():
    return torch.ones(3, device="cuda:1").device


print(on_the_second())

# %%
# ``count=2`` asks for two GPUs. ``force=True`` simulates also where there is a real CUDA
# GPU.
#
# Test your own project with it
# -----------------------------
#
# Machines that run tests seldom have a GPU. With gpulesson, pytest has a fixture
# ``practice_gpu``, and *your* project can test its code for GPUs there:

test = """\
import torch

def test_the_model_runs_on_cuda(practice_gpu):
    model = torch.nn.Linear(4, 2).cuda()
    outputs = model(torch.rand(8, 4, device="cuda"))
    assert outputs.is_cuda
"""
(folder / "test_mine.py").write_text(test)
run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")

# %%
# :doc:`/testing` has more, for projects that have nothing to do with this course.
#
# It computes what the CPU computes
# ---------------------------------
#
# Does a model really learn on a GPU that is not there? Here is a loop like that of lesson
# 4. It returns the :term:`loss` at the end of each :term:`epoch`:


def train(device):
    torch.manual_seed(0)
    X, y = torch.randn(256, 8), torch.randint(3, (256,))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        for i in range(0, 256, 64):
            inputs, labels = X[i : i + 64].to(device), y[i : i + 64].to(device)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


# %%
# We call it twice, first plainly on the CPU, then on the practice GPU:

plain = train("cpu")
with gpulesson.practice_gpu(force=True) as gpu:
    practised = train("cuda")

print("plain CPU:   ", [f"{loss:.3f}" for loss in plain])
print("practice GPU:", [f"{loss:.3f}" for loss in practised])
print("equal to the last digit:", plain == practised)

# %%
# The loss falls, and the two rows are the same, because the same CPU did the same
# arithmetic. So what you train on a practice GPU is really trained.
#
# Count copies and waits
# ----------------------
#
# Two common reasons make a program slow on a GPU: it copies too often between the two
# memories, and Python waits too often for the GPU. The practice GPU notes both, with the
# line that caused them. (It misses a few, for instance the waits inside
# ``torch.linalg.inv``.) This is its report on the run above. Which line will be the
# first?

print(gpu.report())

# %%
# The line that copies the :term:`batches <batch>`. Each of the five epochs has four
# batches, each batch has inputs and labels: forty copies, and Python waits for every
# one. The line with ``item()`` waits once an epoch. The line that moves the model is
# there four times, once for each of its four tensors.
#
# .. _memory-full:
#
# Its memory can be full
# ----------------------
#
# You can give it the memory of the GPU that you will use later, and see whether your
# tensors fit. Here it has 100 MiB, and we ask for two tensors of 61 MiB each:

with gpulesson.practice_gpu(memory="100 MiB", force=True):
    first = torch.zeros(4000, 4000, device="cuda")
    try:
        second = torch.zeros(4000, 4000, device="cuda")
    except torch.OutOfMemoryError as error:
        print(str(error).split(". Including")[0])

# %%
# The words are PyTorch's own: what was asked for (rounded up to a multiple of 2 MiB),
# what the GPU has, what is free.
# :doc:`/lessons/10_where_did_my_memory_go` is about such errors.
#
# .. _not-simulated:
#
# What it does not simulate
# -------------------------
#
# - **Time.** The CPU computes, with some work on top. No time that you measure here says
#   anything about a GPU.
# - **Working ahead.** A real GPU computes while Python runs on. Here every call is
#   finished when it returns.
# - **Random numbers.** The same :term:`seed` gives other numbers on a GPU, which has
#   another generator.
# - **Rounding.** Results are those of your CPU, nearly always to the last digit. Those of
#   a GPU differ in the last digits, and training makes differences grow.
# - **Memory that no tensor uses.** On a real GPU there is also the memory for the
#   :term:`context`, for the work of libraries, and what PyTorch keeps in larger pieces.
# - **Errors inside a** :term:`kernel`\ **.** A label out of range raises
#   ``CUDA error: device-side assert triggered`` here, too. Here it comes in the line
#   that caused it, and the program can go on. On a real GPU it may come some lines
#   later, and the process cannot use the GPU any more.
# - **Hardware.** There is no model of GPU behind it. It says so in its name, and claims
#   the :term:`compute capability` below, so that code which asks for one gets an answer.

with gpulesson.practice_gpu(force=True):
    print("name:              ", torch.cuda.get_device_name())
    print("compute capability:", torch.cuda.get_device_capability())
    torch.manual_seed(0)
    on_gpu = torch.rand(3, device="cuda").cpu()

torch.manual_seed(0)
print("the CPU's random numbers:", torch.equal(on_gpu, torch.rand(3)))

# %%
# The last line shows that its random numbers are those of the CPU with the same seed.
# **Trust it for what is right or wrong, not for how fast.**
#
# .. fold:: Going further: what else it does not simulate
#
#    - **What makes** :term:`CUDA graphs <CUDA graph>` **fast.** They are recorded and
#      replayed, and most of what a GPU refuses meanwhile is refused. Three mistakes pass
#      here: a side :term:`stream` that is never joined, an :term:`autograd graph` that is
#      kept from before, and a wait inside some functions, such as ``torch.linalg.inv``.
#      Where a graph uses memory that was given back since, there is an error here. A
#      real GPU often says nothing, and computes with whatever is there.
#    - **Compilers.** What you give to ``torch.compile`` runs as it is, with one warning.
#      ``torch.export`` takes models on the CPU only, and some programs that move or make
#      tensors cannot be given to ``torch.jit``. An error says so.
#    - **Messages between GPUs.** ``init_process_group("nccl")``,
#      ``DistributedDataParallel`` and ``fully_shard`` work, but PyTorch's :term:`Gloo`
#      carries the tensors, and not :term:`NCCL`. Where two processes do not send the
#      same, an error says so at once. On GPUs they would wait until a timeout.
#    - **One memory for all programs.** Each process has the whole memory for itself. On a
#      real GPU, processes share it.
#    - **Some tools.** A GPU's meters, such as its temperature, memory pools of your own,
#      and kernels of your own, in CUDA C++ or Triton, stop with an error. A few libraries
#      use such kernels, for instance the trainers of
#      `trl <https://github.com/huggingface/trl>`__.
#    - **Some waits and copies in its report.** It does not see the waits inside
#      ``x[mask] = values``, and the copies of indices that are still on the CPU.
#    - **Some threads.** A thread that was started before the practice GPU computes on the
#      CPU, unseen, until it first makes a tensor on a device or moves one. And while
#      ``torch.jit`` or ``torch.export`` works in one thread, the others see no GPU.
#
# .. question:: Your script ends on the practice GPU without an error. What do you know?
#
#    - It will be faster on a real GPU.
#
#      No. Time is not simulated. A small model can be slower on a GPU than on a CPU.
#
#    - No operation that ran mixed two devices in a way that PyTorch refuses.
#
#      Yes. PyTorch's rules for devices were applied to the operations that ran, within
#      the limits above. All of them may still have run on the CPU: print ``.device`` to
#      know.
#
#    - It will print the same numbers on a real GPU.
#
#      No. Rounding differs, and so do random numbers that are drawn on the GPU.
#
# How we check it
# ---------------
#
# A PyTorch that is built for CUDA has the checks for mixed devices in it, even on a
# machine without a GPU. Our tests give many mixtures of operations and devices to these
# checks and to the practice GPU, and compare the messages word for word. Another test
# runs nearly every operation of PyTorch's own test database on the practice GPU and on
# the CPU, and compares devices, :term:`gradients <gradient>` and results.
#
# We also run small programs of well-known libraries. They move a model to the GPU, train
# it for a moment and use it, on the CPU and on practice GPUs.
#
# .. libraries::

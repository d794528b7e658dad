"""
Tensors and devices
===================

Create tensors on a device, move them, see what they take there, and meet the error
that everyone meets.

.. overview::
   :teaching: 15
   :exercises: 10

   .. questions::

      - Where does a tensor live, and how do I get it elsewhere?
      - What does a *default device* change, and what does it leave alone?
      - Why does PyTorch refuse to add two of my tensors?

   .. objectives::

      - Create tensors on a chosen device, and ask any tensor where it is.
      - Move tensors and models, and know which of the two is copied.
      - Read how much memory the GPU has handed out, and explain the 512.
      - Set a default device, and name what ignores it.
      - Read the error of mixed devices, and mend it.
"""

# %%
# This lesson is about a *second* device, so it needs one. With a CUDA GPU in the
# machine that is the real one; without, we switch on the practice GPU of :doc:`lesson 1
# </lessons/01_is_there_a_gpu>`. From here on the code is the same for both.

import matplotlib.pyplot as plt
import numpy as np
import torch

from gpulesson import practice

practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name(), "· PyTorch", torch.__version__)

# %%
# A tensor knows where it lives
# -----------------------------
#
# .. covers:: S3.5
#
# Every tensor has a ``device``. Without further instructions it is the CPU; with
# ``device=…`` it is made on the GPU from the start, with no detour through the
# computer's main memory.

on_cpu = torch.tensor([1.0, 2.0])
on_gpu = torch.tensor([1.0, 2.0], device=device)

print(on_cpu.device, on_cpu)
print(on_gpu.device, on_gpu)

# %%
# We asked for ``cuda`` and got ``cuda:0``: the number is the index of the GPU, and if
# you give no index, you get the selected GPU. When a tensor on a GPU is printed, it
# says so; a tensor on the CPU says nothing.
#
# A tensor is copied, a model is moved
# ------------------------------------
#
# .. covers:: S1.4
#
# ``tensor.to(device)`` returns a *new* tensor and leaves the old one where it was. The
# classic slip is to call it and throw the result away:

on_cpu.to(device)
print("after on_cpu.to(device):         ", on_cpu.device)

moved = on_cpu.to(device)
print("after moved = on_cpu.to(device): ", moved.device)

moved[0] = 100.0
print("changed the copy; the original is", on_cpu.tolist())
print("no copy if it is there already:  ", moved.to(device) is moved)

# %%
# A model (a :class:`torch.nn.Module`) is different. Its ``to`` goes through the
# parameters and buffers (tensors that it keeps and does not train) that the model
# holds, moves each, and returns *the same* model. Assigning the result gives you a
# second name, not a second model:

model = torch.nn.Linear(2, 1)
print("before:", model.weight.device)

gpu_model = model.to(device)
print("after: ", model.weight.device)
print("same object:", gpu_model is model)

# %%
# So ``x = x.to(device)`` for tensors, and ``model.to(device)`` for models. Writing
# ``model = model.to(device)`` is harmless, and common.
#
# What it takes on the device
# ---------------------------
#
# .. covers:: S3.4
#
# PyTorch keeps its own accounts of the GPU's memory. ``memory_allocated`` counts the
# bytes handed out to live tensors, ``memory_reserved`` what PyTorch has taken from
# the driver and keeps for reuse (older texts call it by its old name,
# ``memory_cached``). The practice GPU keeps nothing for reuse, so its second figure
# is small; a real one reserves 2 MiB at a time for small tensors (`PyTorch's
# allocator
# <https://github.com/pytorch/pytorch/blob/v2.15.0/c10/core/AllocatorConfig.h>`__). We
# delete what we have, and look before and after making two numbers of four bytes
# each.

del on_gpu, moved, model, gpu_model

before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
pair = torch.tensor([1.0, 2.0], device=device)
after = torch.cuda.memory_allocated()

print(f"allocated before: {before} bytes, after: {after} bytes")
print(f"reserved before: {reserved} bytes, after: {torch.cuda.memory_reserved()} bytes")
print(f"two float32 numbers hold {pair.nbytes} bytes and took {after - before}")

# %%
# Eight bytes took 512. The allocator hands out memory in whole blocks, to keep
# tensors aligned and its bookkeeping small. We can draw the rule by asking for more
# and more bytes:

del pair
asked = list(range(0, 2049, 64)) + [1, 511, 513, 1025, 1537]
taken = []
for size in sorted(asked):
    start = torch.cuda.memory_allocated()
    block = torch.empty(size, dtype=torch.uint8, device=device)
    taken.append(torch.cuda.memory_allocated() - start)
    del block

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.step(sorted(asked), taken, where="pre", label="taken on the device")
axes.plot(sorted(asked), sorted(asked), "--", color="gray", label="asked for")
axes.set(
    xlabel="bytes asked for",
    ylabel="bytes taken",
    title="Memory is handed out in blocks",
)
axes.set_xticks(range(0, 2049, 512))
axes.set_yticks(range(0, 2049, 512))
axes.legend()
axes.grid(alpha=0.3)
plt.show()

print("steps at multiples of", np.gcd.reduce(taken), "bytes")

# %%
# For a few tensors the rounding does not matter. For a program that keeps millions of
# tiny tensors, such as the loss of every step of a long training, it does: each takes
# a block of its own.
#
# The default device, and who ignores it
# --------------------------------------
#
# .. covers:: S0.2
#
# You will often read that ``device = torch.device("cuda" …)`` "sets the device". It
# does not; it makes a label. What does change where new tensors are born is a *default
# device*: for a block of code with ``with torch.device(…)``, or for the rest of the
# program with :func:`torch.set_default_device`.


def newborn():
    """The same five lines, each making a tensor; where does each one live?"""
    return {
        "torch.ones(3)": torch.ones(3),
        "torch.tensor([1, 2])": torch.tensor([1, 2]),
        "torch.nn.Linear(2, 1).weight": torch.nn.Linear(2, 1).weight,
        "torch.from_numpy(array)": torch.from_numpy(np.ones(3)),
        "torch.ones(3, device='cpu')": torch.ones(3, device="cpu"),
    }


label = torch.device("cuda")
only_a_label = newborn()

with torch.device("cuda"):
    in_a_block = newborn()

torch.set_default_device("cuda")
as_default = newborn()
torch.set_default_device(None)  # back to PyTorch's own default

print(f"{'':<30} {'only a label':<14} {'with-block':<12} default device")
for line in only_a_label:
    places = [
        str(tensors[line].device) for tensors in (only_a_label, in_a_block, as_default)
    ]
    print(f"{line:<30} {places[0]:<14} {places[1]:<12} {places[2]}")

# %%
# The label alone changed nothing. The other two columns agree with each other, and in
# both one line stayed behind without being told to: :func:`torch.from_numpy` shares
# memory with the NumPy array, and NumPy's memory is the CPU's. Data that comes from
# files arrives in just that way, so a default device does not spare you from moving
# your data. That is why this course passes ``device`` explicitly: it can be read where
# it happens.
#
# .. _two-devices:
#
# Two devices do not mix
# ----------------------
#
# .. covers:: S0.7
#
# An operation runs on one device and needs all its tensors there. PyTorch does not move
# one for you, because a copy you did not write is a cost you cannot see.

inputs = torch.ones(4, 2)
weight = torch.ones(2, 3, device=device)

try:
    inputs @ weight
except RuntimeError as error:
    print(error)

# %%
# Read it from left to right. *Expected all tensors to be on the same device*: the
# rule. Then which argument was found where: ``mat2``, the second of the two matrices,
# is our weight, and the others are compared with the first. Last, in brackets, the
# internal name of the operation. The message cannot know which of the two is in the
# wrong place; you do. Here the weight is on the GPU on purpose, and the inputs never
# got there. The mend:

outputs = inputs.to(device) @ weight
print(outputs.device, outputs.shape)

# %%
# Two exceptions are worth knowing. In arithmetic with a GPU tensor, a tensor with *no
# dimensions*, a single number, may come from the CPU: it travels along with the call,
# as a Python number would. And so may an index in square brackets. (Functions that
# take indices, such as ``gather`` or an embedding, need them on the GPU.)

print((weight * torch.tensor(3.0)).device)
print(weight[torch.tensor([0, 1])].device)

try:
    weight * torch.tensor([3.0])  # one number as well, but with a dimension
except RuntimeError as error:
    print(error)

# %%
# Ask a whole program
# -------------------
#
# With two tensors you can print two devices. For models, batches and optimizers the
# package has a function that looks into all of them, and one that moves a whole batch,
# whatever it is made of:

from gpulesson.device import tensor_devices, to_device

batch = {
    "images": torch.rand(8, 784),
    "labels": torch.arange(8),
    "name": "a batch is often a dictionary",
}
moved_batch = to_device(batch, device)

print("before:", tensor_devices(batch))
print("after: ", tensor_devices(moved_batch))

# %%
# What was switched on by hand is switched off by hand. (With a real GPU this line has
# nothing to do.)

practice.stop()

# %%
# Exercise
# --------
#
# .. exercise:: Where does it live?
#    :minutes: 10
#    :difficulty: easy
#    :starter: 02_where_is_it.py
#
#    The script makes eight tensors. You say where each of them lives.
#
#    1. Open ``02_where_is_it.py`` and read the eight lines under ``# the tensors``.
#    2. **Predict:** write ``"cpu"`` or ``"cuda:0"`` for each name in ``ANSWERS``,
#       before you run anything.
#    3. Run it: ``python 02_where_is_it.py``. It compares, and counts. The check
#       below names those that are wrong.
#    4. For each one that surprised you, find the paragraph above that explains it.
#
#    To check it: ``python -m gpulesson check 02_where_is_it.py``.
#
#    You are done when it says ``8 of 8``.
#
# .. solution::
#    :file: 02_where_is_it.py
#
#    ``d`` is the one most people miss: ``to`` was called, and its result thrown away.
#    ``h`` is the zero-dimensional exception.
#
# .. keypoints::
#
#    - ``device=…`` makes a tensor where you want it; ``.device`` tells where it is.
#    - ``tensor.to(device)`` returns a copy, so assign it; ``model.to(device)`` moves
#      the model itself.
#    - GPU memory is handed out in blocks of 512 bytes; ``memory_allocated`` counts
#      them.
#    - A default device decides where *new* tensors are made; ``from_numpy`` ignores it,
#      so data from files must still be moved.
#    - All tensors of an operation must share a device, except single CPU numbers in
#      arithmetic and indices in square brackets; the error says what was where.
#
# **Next:** :doc:`/lessons/03_first_model` trains a network on either device.

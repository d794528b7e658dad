"""
2 · Tensors and devices
=======================

See where your numbers are, copy them across, and read the error that everyone gets once.

.. overview::
   :teaching: 25
   :exercises: 10

   .. objectives::

      - Say where a tensor is, copy it to the GPU, and move a model there.
      - Read the error of mixed devices, and fix it.
      - Say what a tensor takes of the GPU's memory, and what a default device changes.

   .. prereq::

      - :doc:`/lessons/01_is_there_a_gpu`, with its picture of the two memories
"""

# %%
# You have numbers in the computer's memory, and want a :term:`GPU` to compute with them.
# In this lesson that is a GPU for :term:`CUDA`, so that we may write ``"cuda"`` on every
# machine. (In a program of your own, choose the :term:`device` as in lesson 1.)
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, and your CPU does the arithmetic.

# sphinx_gallery_thumbnail_path = 'drawings/to_copy_move.svg'
import torch

from gpulesson import practice

practice.start()
device = torch.device("cuda")

# %%
# Ask a tensor where it is
# ------------------------
#
# .. covers:: S3.5
#
# Every :term:`tensor` is in one place, and knows it. If you say nothing, it is made on
# the CPU. With ``device=…`` it is made on the GPU at once. What will the two lines print?

on_cpu = torch.tensor([1.0, 2.0])
on_gpu = torch.tensor([1.0, 2.0], device=device)

print(on_cpu.device, on_cpu)
print(on_gpu.device, on_gpu)

# %%
# We asked for ``cuda`` and got ``cuda:0``. The number says which GPU: without one you get
# the GPU that is selected, usually the first. A tensor on a GPU shows its place when it
# is printed; a tensor on the CPU shows nothing. **When in doubt, print** ``.device``.
#
# Copy a tensor, move a model
# ---------------------------
#
# .. covers:: S1.4
#
# To bring an existing tensor to the GPU, call its method ``to``. Before you run the cell:
# which of the three printed lines will say ``cpu``?

on_cpu.to(device)
print("on_cpu:", on_cpu.device)

copied = on_cpu.to(device)
print("copied:", copied.device)
print("on_cpu:", on_cpu.device)

# %%
# Two of them: ``on_cpu`` is where it was, before and after. **A tensor does not move: you
# get a copy, and you must keep it.** The first ``on_cpu.to(device)`` made a copy, too,
# but no name kept it, so Python threw it away. No error tells you.
#
# The copy has numbers of its own, and there is a way back to the CPU:

copied[0] = 100.0
print("on_cpu:     ", on_cpu)
print("copied back:", copied.cpu())
print("same tensor:", copied.to(device) is copied)

# %%
# We changed the copy, and the original still begins with 1. ``cpu()`` is short for
# ``to("cpu")``. The last line is the exception: a tensor that is already where you want
# it is not copied, and ``to`` gives you the same tensor back.
#
# A model is different. In PyTorch a model is a :term:`module`, an object that holds
# tensors: its :term:`parameters <parameter>`, which training changes, and sometimes
# :term:`buffers <buffer>`, which it uses in other ways. ``torch.nn.Linear(2, 1)`` is a
# small one. It makes one number from two: it multiplies them by its parameter
# ``weight``, and adds its parameter ``bias``.

model = torch.nn.Linear(2, 1)
print("before:", model.weight.device)

returned = model.to(device)
print("after: ", model.weight.device)
print("returned is model:", returned is model)

# %%
# ``model.to(device)`` brings each parameter and buffer to the device, and gives the same
# model back, as the last line shows. There is one model, and it has moved.
#
# .. drawing:: to_copy_move.svg
#
#    A tensor is copied, and the original stays where it was. A model is moved.
#
# So write ``x = x.to(device)`` for a tensor, and ``model.to(device)`` for a model. (You
# will often read ``model = model.to(device)``, which does no harm.)
#
# .. question:: ``labels`` is on the CPU. Where is it after ``labels.to(device)``?
#
#    - On the GPU.
#
#      No. That would be so for a model. For a tensor ``to`` returns a new one, and this
#      line did not keep it.
#
#    - On the CPU, as before.
#
#      Yes. The name ``labels`` belongs to the same tensor as before, and that one never
#      moves.
#
#    - On both: a tensor can have two places.
#
#      No. For a moment there were two tensors, each in one place. The second had no name,
#      so Python threw it away.
#
# .. _two-devices:
#
# Two devices do not mix
# ----------------------
#
# .. covers:: S0.7
#
# Now to the error that everyone gets. A GPU computes with what is in its own memory, and
# the CPU with what is in :term:`host memory`. What happens if an operation gets one
# tensor of each?

inputs = torch.ones(4, 2)
weights = torch.ones(2, 3, device=device)

try:
    inputs @ weights
except RuntimeError as error:
    print(error)

# %%
# PyTorch refuses. It could copy one of the two for you, but a copy takes time, and you
# would never learn why your program is slow. Read the message from its end:
#
# - *(when checking argument in method …_mm)*: the operation was ``mm``, a product of two
#   matrices.
# - *got mat2 is on cuda:0, different from other tensors on cpu*: its second matrix is on
#   the GPU, and the rest on the CPU.
# - *Expected all tensors to be on the same device*: the rule that was broken.
#
# The message cannot know which of the two you meant to be where. You do: the
# weights are on the GPU on purpose, and the inputs were forgotten. So the inputs must go:

outputs = inputs.to(device) @ weights
print(outputs.device)

# %%
# The result of an operation is where its tensors were. **All tensors of an operation must
# be on the same device.**
#
# There is one exception, and it works in one direction. In arithmetic, a *single number*
# may come from the CPU, even if it is a tensor: PyTorch sends its value along with the
# order to compute. Which of these three products will fail?

three = torch.tensor(3.0)  # a single number: no dimensions, so shape []
for a, b in [
    (weights, three),
    (weights, torch.tensor([3.0])),
    (torch.ones(2, 3), three.to(device)),
]:
    try:
        print((a * b).device)
    except RuntimeError as error:
        print(error)

# %%
# Only the first one works. ``[3.0]`` is a list with one entry, so its tensor has one
# dimension; a single number has none. In the third product the number is on the GPU, and
# the other tensor on the CPU: **a single number may come from the CPU to the GPU, never
# the other way.** The message is the same error in the words of ``*`` and ``+``, which do
# not say which tensor is where. (Indices in square brackets follow the same direction:
# those on the CPU may pick from a tensor on the GPU, not the reverse.)
#
# Find out which tensor was forgotten
# -----------------------------------
#
# What you train with comes in :term:`batches <batch>`, and a batch is often a dictionary
# of several tensors. One line copies them all:

# eight images, 28 by 28 pixels each, and a label for each
batch = {"images": torch.rand(8, 28, 28), "labels": torch.arange(8)}
moved = {name: t.to(device) for name, t in batch.items()}

for things in (batch, moved, dict(model.named_parameters())):
    for name, t in things.items():
        print(f"{name:<7} {t.device}")

# %%
# The batch is on the CPU. Its copy and the model's two parameters are on the GPU. **When
# you get the error of two devices, print where everything is**, and you see which one
# was forgotten. (This package has both as functions: ``to_device`` copies a batch, and
# ``tensor_devices`` says where the tensors of a batch or a model are.)
#
# Ask how much of the GPU's memory is taken
# -----------------------------------------
#
# .. covers:: S3.4
#
# When the memory of a GPU is full, a program usually stops. So PyTorch counts for you:
# ``memory_allocated`` is what your tensors hold now. We make two numbers of four bytes
# each. By how many bytes will the count grow?

before = torch.cuda.memory_allocated()
pair = torch.tensor([1.0, 2.0], device=device)
print("two numbers hold:", pair.nbytes, "bytes")
print("allocated grew by:", torch.cuda.memory_allocated() - before, "bytes")

# %%
# By 512, for eight bytes of numbers. **PyTorch gives out a GPU's memory in blocks, of 512
# bytes or a multiple of that.** It is like a car park with marked spaces: a motorcycle
# takes a whole one, too. This matters only if you have very many small tensors.
#
# To ask the GPU's :term:`driver` for memory takes time. So PyTorch asks for a large
# piece, and cuts the blocks of many tensors from it. What it has asked for is a second
# count, ``memory_reserved``. Which of the two goes down when we delete ``pair``?

before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
del pair
after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

print("allocated, change:", after[0] - before[0], "bytes")
print("reserved, change: ", after[1] - before[1], "bytes")

# %%
# Only the first: **PyTorch keeps reserved memory for the next tensor.** So
# ``nvidia-smi``, NVIDIA's command that lists what a GPU does, still counts it as used
# (`PyTorch's notes
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management>`__).
# :doc:`Lesson 10 </lessons/10_where_did_my_memory_go>` finds out what fills a memory.
#
# What a default device changes
# -----------------------------
#
# .. covers:: S0.2
#
# You will often read that ``device = torch.device("cuda")`` "sets the device". It does
# not: it makes a label. What you can set is the *default device*, on which new tensors
# are made, with :func:`torch.set_default_device`. This function makes three tensors and a
# model, and prints where they are. Which of them will still be on the CPU?

import numpy as np


def places():
    print("ones:      ", torch.ones(3).device)
    print("model:     ", torch.nn.Linear(2, 1).weight.device)
    print("from_numpy:", torch.from_numpy(np.ones(3)).device)
    print("named cpu: ", torch.ones(3, device="cpu").device)


places()
torch.set_default_device("cuda")
print("now with a default device")
places()

# %%
# A new tensor and a new model are made on the GPU. The last entry names its device, and
# is obeyed. But ``from_numpy`` stays on the CPU: its tensor uses the memory of the NumPy
# array, which is host memory. **A default device decides only where new tensors are
# made.** (``with torch.device("cuda"):`` does the same inside a block.)
#
# A default also reaches code that you did not write, such as PyTorch's :term:`data
# loader`, which fetches samples in a random order and makes batches of them:

from torch.utils.data import DataLoader

try:
    print(next(iter(DataLoader(range(8), batch_size=4, shuffle=True))))
except RuntimeError as error:
    print(error)

torch.set_default_device(None)  # back to the CPU

# %%
# The loader draws the order with a generator of random numbers on the CPU, and because
# of the default it asks for the result on the GPU. Also, every call of PyTorch takes a
# little longer, as the manual of ``set_default_device`` warns. So this course passes
# ``device`` to each call: you see what happens, in the line where it happens.
#
# .. question:: After ``torch.set_default_device("cuda")``: where are older tensors?
#
#    - On the GPU, copied there.
#
#      No. A default is for what is made from now on. It touches no tensor that exists.
#
#    - Where they were.
#
#      Yes. Only a call such as ``to`` brings them to the GPU, and it makes a copy.
#
#    - On the CPU, where they can no longer be used.
#
#      No. They work as before, together with other tensors on the CPU. Mixed with new
#      ones they give the error of two devices.
#
# .. instructor-note::
#
#    ``x.to(device)`` without ``x =`` is the trap of this lesson, and it is silent: the
#    error comes later, in another line. Let the class say what ``on_cpu.device`` will be
#    before you run that cell. Do the exercise after it: the trap is in there, too.
#
# Exercise
# --------
#
# .. exercise:: Say where it is, and bring it elsewhere
#    :minutes: 10
#    :difficulty: easy
#    :starter: exercise_02.py
#
#    First a table of eight tensors, then a function.
#
#    1. Open ``exercise_02.py`` and read the lines of ``make_tensors``.
#    2. **Predict:** write ``"cpu"`` or ``"cuda:0"`` for each name in ``ANSWERS``,
#       before you run anything.
#    3. Run it: ``python exercise_02.py``. It counts your right answers. The check below
#       names the others, and the paragraph above that explains each.
#    4. Write ``bring``. It brings a model and a batch to the device. One of them moves,
#       and of the other you return a copy.
#
#    To check it: ``python -m gpulesson check exercise_02.py``.
#
#    You are done when the table has 8 of 8, and ``bring`` is right, too.
#
# .. solution::
#    :file: solution_02.py
#
#    ``d`` is the trap of the table: ``to`` was called, and its result thrown away. ``f``
#    comes from NumPy and ignores the default device. ``h`` is the exception for a single
#    number. ``bring`` needs no ``model =``, but it must keep each tensor's copy.
#
# .. keypoints::
#
#    - ``x = x.to(device)`` copies a tensor; ``model.to(device)`` moves the model itself.
#      ``.device`` says where a tensor is.
#    - All tensors of an operation must be on the same device; only a single number may
#      come from the CPU. Print where each tensor is, and copy the one that was forgotten.
#    - GPU memory is given out in multiples of 512 bytes, and kept for the next tensor. A
#      default device decides where *new* tensors are made, and ``from_numpy`` ignores it.
#
# **Next:** :doc:`/lessons/03_first_model` trains a network, on the CPU and on a GPU.

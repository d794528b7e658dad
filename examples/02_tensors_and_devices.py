"""
2 · Tensors and devices
=======================

See where your numbers are, copy them across, and read the error that everyone gets once.

.. overview::
   :teaching: 22
   :exercises: 10

   .. objectives::

      - Say where a tensor is, copy it to the GPU, and move a model there.
      - Read the error of mixed devices, and fix it.
      - Say where a new tensor is made, and how much of the GPU's memory it uses.

   .. prereq::

      - :doc:`/lessons/01_is_there_a_gpu`, with its picture of the two memories
"""

# %%
# You have numbers in the computer's memory, and want a :term:`GPU` to compute with them.
# This lesson writes ``"cuda"``, for a GPU with :term:`CUDA`. In your own program, choose
# the :term:`device` as in lesson 1.
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, but your CPU does the arithmetic. That is what ``practice.start()``
# is for. Your own training scripts never need it, and with a real CUDA GPU it does
# nothing.

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
# Every :term:`tensor` is in one place, and knows it. By default it is created on the CPU.
# With ``device=…`` it is created on the GPU. What will the two lines print?

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
# which of the tensors will be on the GPU?

on_cpu.to(device)
print("on_cpu:", on_cpu)

copied = on_cpu.to(device)
copied[0] = 100.0
print("on_cpu:", on_cpu)
print("copied:", copied)
print("back:  ", copied.cpu())
print("same tensor:", copied.to(device) is copied)

# %%
# Only ``copied``. **A tensor does not move: you get a copy, and you must keep it.** The
# first ``on_cpu.to(device)`` also made a copy, but no name kept it, so Python threw it
# away. You get no error.
#
# The copy has its own numbers: we changed it, but ``on_cpu`` still begins with 1. The
# way back is ``cpu()``, short for ``to("cpu")``. And if a tensor is already where you
# want it, ``to`` copies nothing and returns the same tensor, as the last line shows.
#
# A model is different. In PyTorch it is a :term:`module`, an object that holds tensors:
# its :term:`parameters <parameter>`, which training changes. ``torch.nn.Linear(2, 1)`` is
# a small one, with two parameters, ``weight`` and ``bias``. What it computes with them is
# lesson 3; here we only ask where they are.

model = torch.nn.Linear(2, 1)
print("before:", model.weight.device)

returned = model.to(device)
print("after: ", model.weight.device)
print("returned is model:", returned is model)

# %%
# ``model.to(device)`` brings the model's parameters to the device, and returns the same
# model, as the last line shows. There is one model, and it has moved.
#
# .. drawing:: to_copy_move.svg
#
#    A tensor is copied, and the original stays where it was. A model is moved.
#
# So write ``x = x.to(device)`` for a tensor, and ``model.to(device)`` for a model. You
# will often read ``model = model.to(device)``, which does no harm.
#
# .. fold:: Going further: tensors that do not move with their model
#
#    The :term:`buffers <buffer>` of a model, of which lesson 4 has one, move with it. A
#    tensor in a plain attribute, such as ``self.mask = torch.ones(2)``, stays where it
#    was, and :ref:`lesson 7 <made-in-forward>` shows the error.
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
# Now let's break it on purpose. A GPU computes with what is in its own memory, and the
# CPU with what is in :term:`host memory`. What happens if an operation gets one tensor of
# each?

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
# PyTorch cannot know where you meant each of them to be. You do: the weights are on the
# GPU on purpose, but the inputs were forgotten. So the inputs must go:

outputs = inputs.to(device) @ weights
print(outputs.device)

# %%
# The result of an operation is where its tensors were. **All tensors of an operation must
# be on the same device.**
#
# There are two exceptions. In arithmetic, a *single number* may come from the CPU, even
# if it is a tensor: ``torch.tensor(3.0)``, of :term:`shape` ``[]``, but not
# ``torch.tensor([3.0])``, which is a list of one number. (:ref:`Lesson 7
# <single-numbers>` runs both.) So may an *index*, which picks from a tensor in square
# brackets. Does a number on the GPU work with a tensor on the CPU, too?

number = torch.tensor(3.0)
row = torch.tensor([0])  # picks the first row

print("number:", (weights * number).device)
print("index: ", weights[row].device)
try:
    inputs * number.to(device)
except RuntimeError as error:
    print(error)

# %%
# No, as the last line shows. The error is the same as before; for ``*`` and ``+`` it
# names both devices, but no tensor. An index also works only from the CPU to the GPU. We
# did not run that: its error is :ref:`worded differently <error-indices>`.
#
# Find out which tensor was forgotten
# -----------------------------------
#
# What you train with comes in :term:`batches <batch>`, often a pair: some images, and a
# label for each. We bring one of the two to the GPU. Where is everything?

images = torch.rand(8, 28, 28)  # eight images, 28 by 28 pixels each
labels = torch.arange(8)
images = images.to(device)

print("images:", images.device)
print("labels:", labels.device)
for name, parameter in model.named_parameters():
    print(f"{name}: {parameter.device}")

# %%
# The images and the model's two parameters are on the GPU. The labels were forgotten:
# ``labels = labels.to(device)`` is missing. **When you get the error of two devices,
# print where everything is.** (If a batch is a dictionary, copy each of its tensors. This
# package's ``to_device`` copies a batch of any form.)
#
# What a default device changes
# -----------------------------
#
# .. covers:: S0.2
#
# You will read that ``device = torch.device("cuda")`` "sets the device". It only makes a
# label. What you can set is the *default device*, on which new tensors are made, with
# :func:`torch.set_default_device`, or for one block with ``with``. Which of these will be
# on the CPU?

import numpy as np

print("outside:   ", torch.ones(3).device)
with torch.device("cuda"):
    print("ones:      ", torch.ones(3).device)
    print("model:     ", torch.nn.Linear(2, 1).weight.device)
    print("from_numpy:", torch.from_numpy(np.ones(3)).device)

# %%
# Two of them. Outside the block there is no default: that the name ``device`` exists
# changes nothing. In the block, a new tensor and a new model are made on the GPU. But
# ``from_numpy`` stays on the CPU: its tensor uses the memory of the NumPy array, which is
# host memory. **A default device decides only where new tensors are made.** This course
# passes ``device`` to each call instead, so that you see it where it matters.
#
# .. fold:: Going further: a default device in code that you did not write
#
#    There, too, it decides where new tensors are made. After
#    ``torch.set_default_device("cuda")``, PyTorch's :term:`data loader`, which makes
#    batches, stops if it is to shuffle: it draws the order with a generator of random
#    numbers on the CPU, and the default asks for the result on the GPU. Also, every call
#    of PyTorch takes a little longer, as the manual warns.
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
# Ask how much of the GPU's memory is taken
# -----------------------------------------
#
# .. covers:: S3.4
#
# When the memory of a GPU is full, a program usually stops. So PyTorch keeps two counts,
# in bytes. *Allocated* is what your tensors use now. *Reserved* is all that PyTorch has
# got from the GPU's :term:`driver`. We make two numbers of four bytes each, and delete
# them again. How will both counts change?


def counts():
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


before = counts()
pair = torch.tensor([1.0, 2.0], device=device)
made = counts()
del pair
deleted = counts()

print("made:    allocated", made[0] - before[0])
print("deleted: allocated", deleted[0] - made[0])
print("deleted: reserved ", deleted[1] - made[1])

# %%
# Eight bytes of numbers use 512: **PyTorch gives out a GPU's memory in blocks, of 512
# bytes or a multiple of that.** When a tensor is deleted, its block is free again, and
# PyTorch keeps it reserved for the next tensor. :doc:`Lesson 10
# </lessons/10_where_did_my_memory_go>` finds out what fills a memory.
#
# .. instructor-note::
#
#    ``x.to(device)`` without ``x =`` is the trap of this lesson, and it is silent: the
#    error comes later, in another line. Let the class say what ``on_cpu`` will show
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
#    3. Run it: ``python exercise_02.py``. It counts your right answers. For each of the
#       others, the check below names the part of this lesson that explains it.
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
#    number. ``bring`` needs no ``model =``, but it must keep each tensor's copy; here
#    ``{… for name, t in batch.items()}`` makes a dictionary of them.
#
# .. keypoints::
#
#    - ``x = x.to(device)`` copies a tensor; ``model.to(device)`` moves the model itself.
#      ``.device`` says where a tensor is.
#    - All tensors of an operation must be on the same device; only a single number or an
#      index may come from the CPU. Print where each tensor is, and copy the one that was
#      forgotten.
#    - ``device=…`` makes a tensor on the GPU at once. A default device does so for new
#      tensors, but not for ``from_numpy``. GPU memory comes in multiples of 512 bytes.
#
# **Next:** :doc:`/lessons/03_first_model` trains a network, on the CPU and on a GPU.

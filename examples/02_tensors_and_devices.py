"""
2 · Tensors and devices
=======================

Handle :term:`tensors <tensor>`, copy them to a :term:`GPU`, and read the two errors that
everyone gets.

.. overview::
   :teaching: 32
   :exercises: 15

   .. objectives::

      - Read a tensor's shape, pick from it, and multiply two tables.
      - Say where a tensor is, copy it to the GPU, and move a model there.
      - Read the errors of shapes that don't fit and of mixed devices, and fix them.

   .. prereq::

      - :doc:`/lessons/01_is_there_a_gpu`, with its picture of the two memories
      - In Python: lists, slices of them such as ``rows[0:2]``, and dictionaries
"""

# %%
# Pictures, labels, and the numbers that a network learns: PyTorch keeps all of them in
# tensors. You'll first learn to handle them, in about ten minutes, and then to bring them
# to a GPU. Don't learn the calls by heart: they all come back in lessons 3 to 5.
#
# Read the shape and the type of a tensor
# ---------------------------------------
#
# A tensor can be a row of numbers, a table, or a stack of tables. Its :term:`shape` says
# how many numbers it has in each of its dimensions:
#
# .. drawing:: tensor_shapes.svg
#
#    A row, a table and a stack of tables, each with its shape.
#
# In lesson 3 a flower is a row of four lengths, and in lesson 4 a picture is a table of
# 28 by 28 pixels. We make some of each from random numbers, and a label for each flower:
# the number of its species, or *class*. Which shape will ``labels`` have?

# sphinx_gallery_thumbnail_path = 'drawings/to_copy_move.svg'
import torch

flowers = torch.rand(3, 4)  # three flowers, four lengths each
pictures = torch.rand(5, 28, 28)  # five pictures
labels = torch.tensor([0, 2, 1])

print("flowers: ", flowers.shape, flowers.dtype)
print("pictures:", pictures.shape, pictures.dtype)
print("labels:  ", labels.shape, labels.dtype)

# %%
# ``labels`` is a row, so its shape has one entry. PyTorch prints ``torch.Size``; we write
# only the brackets. The :term:`dtype` is the type of the numbers. Those with a decimal
# point are ``float32``, whole numbers are ``int64``. **When a tensor puzzles you, print
# its shape first.**
#
# Pick rows, columns and single numbers
# -------------------------------------
#
# Square brackets pick from a tensor, and counting starts at 0. A colon alone means *all*.
# Which number is ``table[1, 2]``?

table = torch.arange(12).reshape(3, 4)  # the numbers 0 to 11, in 3 rows of 4

print(table)
print("one number: ", table[1, 2])
print("column 2:   ", table[:, 2])
print("table[1]:   ", table[1].shape)
print("table[1:2]: ", table[1:2].shape)

# %%
# It is the number in row 1 and column 2. The last two lines both pick row 1, but
# ``table[1]`` is a row, and ``table[1:2]`` is a table with one row. **An index takes its
# dimension away, but a slice keeps it.** A model usually gets a
# table, with a row for each flower.
#
# Lay each picture out as one row
# -------------------------------
#
# Many networks want a row of numbers for each picture, not a table. ``flatten(1)`` lays
# the rows of each picture end to end. How long will the five new rows be?

rows = pictures.flatten(1)

print("flattened:", rows.shape)
print("and back: ", rows.reshape(5, 28, 28).shape)

# %%
# Each is 28 times 28 numbers long. Dimensions are counted from 0, so the 1 says: keep the
# first, the pictures, and merge the others. ``reshape`` makes any other shape with as
# many numbers. **Both keep the numbers in their order; only the shape is new.**
#
# Ask for a mean, or for the largest number
# -----------------------------------------
#
# A network gives scores: a row for each flower, and in it a number for each class. Below,
# their shape is ``[2, 3]``: dimension 0 is the 2 flowers, and dimension 1 the 3 classes.
# **The dimension that you name disappears.** How many numbers will each line print?

scores = torch.tensor([[1.0, 6.0, 2.0], [9.0, 0.0, 3.0]])  # 2 flowers, 3 classes

print("mean():       ", scores.mean())
print("mean(dim=0):  ", scores.mean(dim=0))
print("mean(dim=1):  ", scores.mean(dim=1))
print("argmax(dim=1):", scores.argmax(dim=1))
print("max(dim=1):   ", *scores.max(dim=1))

# %%
# ``dim=0`` makes ``[3]`` of ``[2, 3]``: the mean of each class, down the columns.
# ``dim=1`` makes ``[2]``: one for each flower, along the rows. ``argmax`` says *where* in
# each row the largest number is. For scores, that is the network's answer. ``max(dim=1)``
# gives both: the largest numbers, and where they are.
#
# Multiply rows by columns
# ------------------------
#
# Lesson 1 multiplied two large tables with ``@``. What happens in such a matrix product?
#
# .. drawing:: row_times_column.svg
#
#    A row times a column gives one number of the result.
#
# Let's compute the number of the drawing by hand, and then with ``@``:

row = torch.tensor([1.0, 2.0, 0.0, 3.0])
column = torch.tensor([4.0, 1.0, 5.0, 2.0])

print("number by number:", row * column)
print("added up:        ", (row * column).sum())
print("with @:          ", row @ column)

# %%
# ``*`` multiplies number by number, and ``@`` also adds up. In a product of two tables,
# each row is multiplied by each column, so a row must be as long as a column. Which shape
# will the product have?

weights = torch.rand(4, 8)

print(flowers.shape, "@", weights.shape)
print("gives", (flowers @ weights).shape)

# %%
# There are eight numbers for each of the three flowers. **The two inner numbers must be
# the same, and the outer two are the shape of the result.** The first layer of lesson 3
# computes such a product.
#
# Read the error of shapes that don't fit
# ---------------------------------------
#
# Now let's break it on purpose, with a table whose rows and columns are swapped:

turned = torch.rand(8, 4)

try:
    flowers @ turned
except RuntimeError as error:
    print(error)

print("with .T:", (flowers @ turned.T).shape)

# %%
# ``mm`` is the matrix product (older versions leave it out), ``mat1`` is the table on its
# left and ``mat2`` the one on its right, and the brackets hold their shapes. The inner
# numbers, 4 and 8, differ. ``turned.T`` swaps rows and columns, so it fits. **Compare the
# inner numbers, and ask which table is the wrong way round.**
#
# .. question:: ``images`` is ``[64, 784]``. Which ``weights`` fit ``images @ weights``?
#
#    - ``[64, 10]``
#
#      No. The inner numbers are 784 and 64. That both begin with 64 does not help.
#
#    - ``[10, 784]``
#
#      No. The inner numbers are 784 and 10. But ``images @ weights.T`` would work.
#
#    - ``[784, 10]``
#
#      Yes. The inner numbers are both 784. The result is ``[64, 10]``: ten scores for
#      each of 64 pictures.
#
# Ask a tensor where it is
# ------------------------
#
# .. covers:: S3.5
#
# Now we use a GPU with :term:`CUDA`, whose :term:`device` is called ``"cuda"``. In your
# own program, choose it as in lesson 1.
#
# On a machine without such a GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, but your CPU does the arithmetic. ``practice.start()`` starts it.
# Your own scripts never need it, and with a real GPU it does nothing.
#
# Every tensor is in one place, and knows it. By default it is created on the CPU. With
# ``device=…`` it is created on the GPU. What will the last two lines print?

from gpulesson import practice

practice.start()
device = torch.device("cuda")

on_cpu = torch.tensor([1.0, 2.0])
on_gpu = torch.tensor([1.0, 2.0], device=device)

print(on_cpu.device, on_cpu)
print(on_gpu.device, on_gpu)

# %%
# We asked for ``cuda`` and got ``cuda:0``, the first GPU. A tensor on a GPU shows its
# place when it is printed; a tensor on the CPU shows nothing. **When in doubt, print**
# ``.device``.
#
# Copy a tensor, move a model
# ---------------------------
#
# .. covers:: S1.4
#
# To bring an existing tensor to the GPU, call its method ``to``. Where is ``on_cpu``
# after this cell?

on_cpu.to(device)
print(on_cpu.device)

# %%
# It is still on the CPU. **A tensor does not move: you get a copy, and you must keep
# it.** Here no name kept the copy, so Python threw it away. You get no error.
#
# This time we keep the copy, and change it. Does ``on_cpu`` change as well?

copied = on_cpu.to(device)
copied[0] = 100.0

print("on_cpu:", on_cpu)
print("copied:", copied)

# %%
# No, the copy has its own numbers. (If a tensor is already where you want it, ``to``
# copies nothing and returns the same tensor.) The way back is ``cpu()``:

back = copied.cpu()

print("back: ", back)
print("NumPy:", back.numpy())

# %%
# ``cpu()`` is short for ``to("cpu")``, and makes a copy as well. NumPy needs it, because
# its arrays are in :term:`host memory`.
#
# A model is different. In PyTorch it is a :term:`module`, an object that holds tensors:
# its :term:`parameters <parameter>`, which training changes. ``torch.nn.Linear(4, 8)`` is
# a small one, with a ``weight`` and a ``bias``. Don't worry about what it computes yet;
# we only ask where they are.

model = torch.nn.Linear(4, 8)
print("before:", model.weight.device)

model.to(device)
print("after: ", model.weight.device)

# %%
# We kept no result, but the parameters are on the GPU. **A model moves.**
#
# .. drawing:: to_copy_move.svg
#
#    A tensor is copied, and the original stays where it was. A model is moved.
#
# So write ``x = x.to(device)`` for a tensor, and ``model.to(device)`` for a model. You
# will often read ``model = model.to(device)``, which does no harm: it returns the model
# itself.
#
# .. fold:: Going further: tensors that don't move with their model
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
# A GPU computes with what is in its own memory, and the CPU with what is in host memory.
# What happens if a product gets one table of each?

weights = weights.to(device)

try:
    flowers @ weights
except RuntimeError as error:
    print(error)

# %%
# PyTorch refuses. It could copy one of the two for you, but a copy takes time, and you
# would never learn why your program is slow. Read the message from its end:
#
# - *(when checking argument in method …_mm)*: the operation was ``mm`` again.
# - *got mat2 is on cuda:0, different from other tensors on cpu*: its second table is on
#   the GPU, and the first on the CPU.
# - *Expected all tensors to be on the same device*: the rule that was broken.
#
# PyTorch cannot know which table is in the wrong place. You do: the flowers were
# forgotten. So let's copy them:

outputs = flowers.to(device) @ weights
print(outputs.device)

# %%
# **All tensors of an operation must be on the same device**, and so is its result.
#
# A *single number* may still come from the CPU, even as a tensor of shape ``[]``,
# such as ``torch.tensor(3.0)``.
#
# .. fold:: Going further: what else may come from the other device
#
#    An index, which picks rows, may come from the CPU, too. The other way round does not
#    work: a number on the GPU with a table on the CPU gives the error again, and a list
#    of indices on the GPU an error with :ref:`other words <error-indices>`. (A single
#    index does work, and Python waits for it.) What also raises no error is a copy into a
#    slice of a tensor, and it costs the time of a copy.

# fold: Going further: a number, an index and a copy from the CPU, a number from the GPU
number = torch.tensor(3.0)
first = torch.tensor([0])  # picks the first row

print("number from the CPU:", (weights * number).device)
print("index from the CPU: ", weights[first].device)
weights[0:2] = torch.ones(2, 8)  # a copy, though you see no "to"
print("copied from the CPU:", weights.device, weights[0, 0].item())
try:
    flowers * number.to(device)
except RuntimeError as error:
    print(error)

# %%
# Find out which tensor was forgotten
# -----------------------------------
#
# You train with :term:`batches <batch>`: some images, and a label for each. We bring one
# of the two to the GPU. Where is everything?

images = torch.rand(8, 28, 28)
labels = torch.arange(8)
images = images.to(device)

print("images:", images.device)
print("labels:", labels.device)
print("model: ", model.weight.device)

# %%
# The labels were forgotten: ``labels = labels.to(device)`` is missing. **When you get the
# error of two devices, print where everything is.**
#
# .. film:: films/to_and_back.py
#
#    Here you see it line by line. Go through the script: what goes to the GPU, and what
#    comes back? Then don't keep the copy. In which line will that become an error? (A
#    :term:`kernel` is a function that runs on the GPU. Python sends it, and goes on.
#    ``.item()`` makes one Python number of a tensor, and ``addmm`` is a product plus a
#    bias.)
#
# What a default device changes
# -----------------------------
#
# .. covers:: S0.2
#
# You will meet code that passes no device, and still computes on a GPU. It has set a
# *default device*, on which new tensors and models are made: with
# :func:`torch.set_default_device` for the whole program, or for the lines of a ``with``
# block. What will each line print? The last one makes a tensor from a NumPy array.

import numpy as np

print("outside:   ", torch.ones(3).device)
with torch.device("cuda"):
    print("ones:      ", torch.ones(3).device)
    print("model:     ", torch.nn.Linear(2, 1).weight.device)
    print("from_numpy:", torch.from_numpy(np.ones(3)).device)

# %%
# **A default device decides where new tensors are made, but moves none that exist.**
# ``from_numpy`` makes no new one: its tensor uses the array's own memory, on the CPU.
# This course passes ``device`` to each call instead, so that you see it.
#
# .. fold:: Going further: a default device in code that you did not write
#
#    There, too, it decides where new tensors are made. After
#    ``torch.set_default_device("cuda")``, PyTorch's :term:`data loader`, which makes
#    batches, stops if it is to shuffle: it draws the order with a generator of random
#    numbers on the CPU, and the default asks for the result on the GPU. Also, every call
#    of PyTorch takes a little longer, as the manual warns.
#
# Ask how much of the GPU's memory is taken
# -----------------------------------------
#
# .. covers:: S3.4
#
# When a GPU's memory is full, a program usually stops. :doc:`Lesson 10
# </lessons/10_where_did_my_memory_go>` finds out what fills it; here is only how PyTorch
# counts. *Allocated* is what your tensors use, and *reserved* is all that it has got from
# the GPU's :term:`driver`. The folded cell tries it with a tensor of two numbers:

# fold: Going further: count the memory of a small tensor


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
# **PyTorch gives out a GPU's memory in blocks, of 512 bytes or a multiple of that.** When
# a tensor is deleted, its block is free again, and PyTorch keeps it reserved for the next
# one. (``memory_cached`` is an old name of ``memory_reserved``.)
#
# .. instructor-note::
#
#    ``x.to(device)`` without ``x =`` is the trap of this lesson, and it is silent: the
#    error comes later, in another line. Let the class say what ``on_cpu`` will show
#    before you run that cell. Do the exercise after it: the trap is in there as well.
#
# Exercise
# --------
#
# .. exercise:: Say where it is, and bring it elsewhere
#    :minutes: 15
#    :difficulty: easy
#    :starter: exercise_02.py
#
#    First a table of eight tensors, then a function.
#
#    1. Open ``exercise_02.py`` and read the lines of ``make_tensors``.
#    2. **Predict:** write ``"cpu"`` or ``"cuda:0"`` for each name in ``ANSWERS``,
#       before you run anything.
#    3. Run it: ``python exercise_02.py``. It counts your right answers. For each of the
#       others, the check below says why.
#    4. Write ``bring``. It brings a model and a batch to the device. One of them moves,
#       and of the other you return a copy.
#
#    To check it: ``python -m gpulesson check exercise_02.py``.
#
#    You are done when the table has 8 of 8, and ``bring`` is right as well.
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
#    - ``.shape`` and ``.dtype`` describe a tensor, and ``dim=1`` asks each row. In ``a @
#      b`` the inner two numbers of the shapes must be the same.
#    - ``x = x.to(device)`` copies a tensor; ``model.to(device)`` moves the model itself.
#      ``.device`` says where a tensor is, and ``device=…`` makes it there at once.
#    - All tensors of an operation must be on the same device. Only a single number, an
#      index, or what is copied into a slice may come from the CPU. Print each shape or
#      each place, and fix the odd one.
#
# **Next:** :doc:`/lessons/03_first_model` trains a network, on the CPU and on a GPU.

"""
2 · Tensors and devices
=======================

See where your numbers are, copy them across, and read the error that everyone gets once.

.. overview::
   :teaching: 20
   :exercises: 10

   .. questions::

      - Where is a tensor, and how do I get it to the GPU?
      - Why does PyTorch refuse to multiply two of my tensors?
      - How much of the GPU's memory does a tensor take?
      - What does a *default device* change, and what does it leave alone?

   .. objectives::

      - Make a tensor on a device, and ask any tensor where it is.
      - Copy tensors and move models, and say which of the two stays where it was.
      - Read the error of mixed devices, and fix it.
      - Read how much memory the GPU has given out, and explain the 512.
      - Set a default device, and name what ignores it.

.. prereq::

   - :doc:`Lesson 1 </lessons/01_is_there_a_gpu>`, with its picture of the two memories.
"""

# %%
# This lesson needs a second :term:`device` beside the CPU. If PyTorch finds a :term:`GPU`
# that it can use through :term:`CUDA`, that is the one. If not, the first cell switches
# on the :term:`practice GPU`, the simulated one of lesson 1, which obeys the same rules.
# ``practice.start()`` does what ``with practice_gpu():`` did there, and it lasts until
# ``practice.stop()``. So here, unlike in your own programs, we may write ``"cuda"`` on
# every machine.

# sphinx_gallery_thumbnail_path = 'drawings/to_copy_move.svg'
import torch

from gpulesson import practice

practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name())

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
# There is an older way to say the same, and you should know it, because error messages
# still use it. Each tensor has a *type*, a name that says where it is and what its
# numbers are like:

whole = torch.tensor([1, 2])

print("on_cpu:", on_cpu.type(), on_cpu.dtype)
print("on_gpu:", on_gpu.type(), on_gpu.dtype)
print("whole: ", whole.type(), whole.dtype)

# %%
# A ``FloatTensor`` holds numbers with a decimal point, of 32 bits each. A ``LongTensor``
# holds whole numbers of 64 bits. PyTorch's newer word for this is :term:`dtype`, and it
# is printed beside the type. If ``cuda`` is in the name, the tensor is on a GPU:
# whole numbers there would be a ``torch.cuda.LongTensor``.
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
# ``to("cpu")``: again a copy, this time on the CPU. The last line is the exception. If a
# tensor is already where you want it, ``to`` has nothing to copy and gives you the same
# tensor back.
#
# A model is different. In PyTorch a model is a :term:`module`, an object that holds
# tensors: its :term:`parameters <parameter>`, which training changes, and sometimes
# :term:`buffers <buffer>`, which training uses in other ways. ``torch.nn.Linear(2, 1)``
# is a small one. It makes one number from two: it multiplies them by its parameter
# ``weight``, and adds its parameter ``bias``. (Lesson 3 builds a model from such
# parts.)

model = torch.nn.Linear(2, 1)
print("before:", model.weight.device)

returned = model.to(device)
print("after: ", model.weight.device)
print("returned is model:", returned is model)

# %%
# We did not need to keep the result. ``model.to(device)`` goes through all parameters
# and buffers, brings each to the device, and gives the same model back, as the last
# line shows. There is one model, and it has moved.
#
# .. drawing:: to_copy_move.svg
#
#    A tensor is copied, and the original stays where it was. A model is moved.
#
# So write ``x = x.to(device)`` for a tensor, and ``model.to(device)`` for a model. You
# will often read ``model = model.to(device)``. It does no harm: both are the same model.
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
#      Yes. The name ``labels`` stands for the same tensor as before, and that one never
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
# the CPU with what is in :term:`host memory` (remember the picture in :doc:`lesson 1
# </lessons/01_is_there_a_gpu>`). What happens if an operation gets one tensor of each?

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
# be on the same device**, and the model and its data are no exception.
#
# Some parts of a model check their tensors themselves, and say the same with the older
# names. ``Conv2d``, which is for images, does. Its weight is on the CPU, and the image on
# the GPU:

layer = torch.nn.Conv2d(1, 2, 3)  # from 1 colour to 2, in squares of 3 by 3 pixels
images = torch.rand(1, 1, 8, 8, device=device)  # one grey image, 8 by 8 pixels

try:
    layer(images)
except RuntimeError as error:
    print(error)

# %%
# You can read this one already: the input is a ``cuda.FloatTensor``, the weight is not.
#
# The rule has exceptions, and you will meet two soon. In arithmetic, a *single number*
# may come from the CPU, even if it is a tensor: PyTorch sends its value along with the
# order to compute. And so may the index in square brackets. But is ``[3.0]`` a single
# number?

print((weights * torch.tensor(3.0)).device)
print(weights[torch.tensor([0, 1])].device)

try:
    weights * torch.tensor([3.0])
except RuntimeError as error:
    print(error)

# %%
# The first two lines worked, the third did not. ``[3.0]`` is a list with one entry, so
# the tensor has one dimension; only a tensor *without dimensions* counts as a single
# number. The message is the one that ``+`` and ``*`` give. It is the same error, but it
# does not say which of the tensors is where.
#
# Copy a whole batch, and find what was forgotten
# -----------------------------------------------
#
# What you train with comes in :term:`batches <batch>`, and a batch is often a dictionary
# of several tensors. One line copies them all:

# eight images, 28 by 28 pixels each, and a label for each
batch = {"images": torch.rand(8, 28, 28), "labels": torch.arange(8)}

moved = {name: t.to(device) for name, t in batch.items()}
print(moved["images"].device, moved["labels"].device)

# %%
# This package keeps it in a function, ``to_device``, which takes tuples, lists and
# dictionaries of tensors. A second function, ``tensor_devices``, gives the device of each
# tensor of a batch, or of each parameter and buffer of a model, by name:

from gpulesson.device import tensor_devices, to_device

moved = to_device(batch, device)
for thing in (batch, moved, model):
    for name, place in tensor_devices(thing).items():
        print(f"{name:<7} {place}")

# %%
# The batch is on the CPU. Its copy and the model's two parameters are on the GPU. **When
# you get the error of two devices, print where everything is**, and you see which one
# was forgotten.
#
# Ask how much of the GPU's memory is taken
# -----------------------------------------
#
# .. covers:: S3.4
#
# When the memory of a GPU is full, a program usually stops. Then you will want to know
# what fills it, and PyTorch has two counts for that. The first, ``memory_allocated``,
# says what your tensors hold now. We delete what this lesson has put on the GPU, and
# make two numbers of four bytes each. By how much will the count grow?

del on_gpu, copied, model, returned, weights, outputs, images, moved, thing

before = torch.cuda.memory_allocated()
pair = torch.tensor([1.0, 2.0], device=device)
after = torch.cuda.memory_allocated()

print("two numbers hold:", pair.nbytes, "bytes")
print("allocated before:", before, "bytes")
print("allocated after: ", after, "bytes")

# %%
# By 512, for eight bytes of numbers. **PyTorch gives out a GPU's memory in blocks, of 512
# bytes or a multiple of that.** It is like a car park with marked spaces: a motorcycle
# takes a whole one, too. This matters only if you have very many small tensors. (In a new
# program the count begins at 0. Here it can begin higher on a real GPU, where memory that
# PyTorch keeps for its own work is counted as well.)
#
# The second count is called *reserved*. To ask the GPU's :term:`driver` for memory takes
# time, so PyTorch asks for a large piece, a *segment*, and cuts the blocks of many
# tensors from it. For small tensors it is a segment of `2 MiB
# <https://github.com/pytorch/pytorch/blob/v2.15.0/c10/core/AllocatorConfig.h>`__:
#
# .. drawing:: blocks.svg
#
#    A real GPU: tensors take whole blocks, and the blocks are cut from reserved segments.
#
# Will the two counts go down when we delete ``pair``?

before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
del pair
after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

print("allocated, change:", after[0] - before[0], "bytes")
print("reserved, change: ", after[1] - before[1], "bytes")

# %%
# The first one does, the second does not: **PyTorch keeps reserved memory for the next
# tensor.** You need to know this when you look at ``nvidia-smi``, NVIDIA's command that
# lists what a GPU does: it counts reserved memory as used, also if your tensors are gone
# (`PyTorch's notes
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management>`__). Older
# texts call it *cached*.
#
# What a default device changes
# -----------------------------
#
# .. covers:: S0.2
#
# You will often read that ``device = torch.device("cuda")`` "sets the device". It does
# not: it makes a label. What you can set is the *default device*, on which new tensors
# are made. Some scripts do, so you need to know what ignores it. This function makes
# four tensors and prints where they are:

import numpy as np


def places():
    print("ones:      ", torch.ones(3).device)
    print("model:     ", torch.nn.Linear(2, 1).weight.device)
    print("from_numpy:", torch.from_numpy(np.ones(3)).device)
    print("named cpu: ", torch.ones(3, device="cpu").device)


label = torch.device("cuda")
places()

# %%
# A label alone changes nothing. The same label after ``with`` is the default device
# inside the block. ``torch.set_default_device`` sets it for all that follows. Which of
# the four will still be on the CPU?

with label:
    places()

print("now with set_default_device")
torch.set_default_device("cuda")
places()

torch.set_default_device(None)  # back to the CPU

# %%
# Both ways do the same. A new tensor and a new model are made on the GPU. The last entry
# names its device, and is obeyed. But ``from_numpy`` was not told anything, and its
# tensor is on the CPU. It does not make a new array: it uses the memory of the NumPy
# array, which is host memory. **It keeps its tensor on the CPU, whatever the
# default device is.** (``torch.tensor(array)`` makes a copy, and obeys.) This is why the
# course passes ``device`` to each call: you see what happens, in the line where it
# happens.
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
# What we have switched on, we switch off again. (With a real GPU this line has nothing to
# do.)

practice.stop()

# %%
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
#    - ``device=…`` makes a tensor where you want it, and ``.device`` says where it is.
#    - ``x = x.to(device)`` copies a tensor; ``model.to(device)`` moves the model itself.
#    - All tensors of an operation must be on the same device, except single numbers and
#      indices. Print where each of them is, and copy the one that was forgotten.
#    - GPU memory is given out in multiples of 512 bytes. ``memory_allocated`` counts what
#      tensors hold, and ``memory_reserved`` what PyTorch keeps.
#    - A default device decides where *new* tensors are made. ``from_numpy`` ignores it,
#      so look where your data is.
#
# **Next:** :doc:`/lessons/03_first_model` trains a network, on the CPU and on a GPU.

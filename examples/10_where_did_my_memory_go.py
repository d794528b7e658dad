"""
10 · Where did my memory go?
============================

Predict the memory that training needs, measure it to the byte, and find what you keep
but do not need.

.. overview::
   :teaching: 30
   :exercises: 15

   .. questions::

      - What fills the GPU's memory while I train?
      - Can I know how much it will be before I run anything?
      - Why does the memory grow from epoch to epoch?
      - Why does ``nvidia-smi`` show more than my tensors need?
      - How can memory be free, and yet not enough?

   .. objectives::

      - Name the five things that live in the GPU's memory during training.
      - Predict the bytes of each by counting, and check them by measuring.
      - Read the peak, and say in which part of a step it is.
      - Say what ``del``, ``empty_cache``, ``inference_mode`` and a kept loss change.
      - Record a memory snapshot on a real GPU.
      - Explain how memory can be free and too scattered to be used.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 2 </lessons/02_tensors_and_devices>`: blocks of 512 bytes, and the
#      counts *allocated* and *reserved*
#    - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training
#      :term:`step`
#    - nothing to download: how much memory a number takes does not depend on its value,
#      so random numbers are enough here
#
# This lesson counts on your :term:`GPU`, if :term:`CUDA` can use it, or else on the
# :term:`practice GPU`, which counts the same blocks:

import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from gpulesson import practice

practice.start()
device = torch.device("cuda")
allocated = torch.cuda.memory_allocated  # a shorter name, used often below
print(torch.cuda.get_device_name())

# %%
# Run out of memory once
# ----------------------
#
# Sooner or later a program of yours will run :term:`out of memory`. So let it happen now.
# Here is a model for pictures of 28 × 28 pixels, 784 numbers each, with three hidden
# layers, and a :term:`batch` of 128 pictures:


def make_model():
    return nn.Sequential(
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


# %%

batch_size = 128
loss_fn = nn.CrossEntropyLoss()
model = make_model().to(device)
pictures = torch.rand(batch_size, 784, device=device)
classes = torch.randint(10, (batch_size,), device=device)
print("a first loss:", loss_fn(model(pictures), classes).item())

# %%
# (In that first call, libraries may have taken memory for themselves.) Now we allow this
# program 32 MiB more than it has, on whatever GPU it runs. (A MiB is 1,048,576 bytes, and
# a KiB is 1,024.) Then we evaluate the model a hundred times, always with the same batch.
# Each turn does the same. Will the loop come to its end?

MIB = 2**20
total = torch.cuda.get_device_properties(device).total_memory


def evaluate_often():
    """Print how many losses there are, and the error, if there was one."""
    allowed = torch.cuda.memory_reserved() + 32 * MIB
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    losses, message = [], "no error"
    try:
        for _ in range(100):
            losses.append(loss_fn(model(pictures), classes))
    except torch.OutOfMemoryError as error:
        message = str(error).split(" If reserved")[0].replace(". ", ".\n")
    torch.cuda.set_per_process_memory_fraction(1.0)
    print(len(losses), "losses")
    print(message)


evaluate_often()

# %%
# It stopped on the way, although each turn needs the same. Something is kept that nobody
# needs. Later in this lesson the loop runs to its end, with two words more. On the way
# there you learn what fills the memory, how large each thing is, and which of them you
# can do without.
#
# Name what lives on the GPU
# --------------------------
#
# While you train, five things are in the :term:`device memory`:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 24 38 38
#
#    * - What
#      - How many numbers
#      - From when until when
#    * - :term:`parameters <parameter>`
#      - count them in the model
#      - from ``model.to(device)`` to the end
#    * - the batch
#      - rows, times the numbers of a row
#      - until you take the next one
#    * - :term:`activations <activation>`
#      - rows, times what ``backward`` needs of each
#      - from the :term:`forward pass` until the :term:`backward pass` has used them
#    * - :term:`gradients <gradient>`
#      - one for each number of a parameter
#      - from ``backward`` to ``zero_grad``
#    * - :term:`optimizer state`
#      - with Adam two for each number of a parameter
#      - from the first ``step`` to the end
#
# It is like a dinner at home. The furniture is there all the time: parameters and
# optimizer state. The activations are the dirty dishes. They pile up while you cook, and
# go one by one while you wash up.
#
# Read the peak, because it decides what fits
# -------------------------------------------
#
# Lesson 2 read two counts. *Allocated* is what your :term:`tensors <tensor>` hold now,
# in blocks of 512 bytes. *Reserved* is all that PyTorch has taken from the GPU, for
# these tensors and the next ones. The part of PyTorch that does this is called the
# :term:`caching allocator`. A third count remembers the most that was ever allocated,
# the :term:`peak memory`.
#
# .. question:: ``x`` takes 1 MiB. How high is the peak in ``y = (x + 1) * 2``?
#
#    - 1 MiB: the result goes where ``x`` was.
#
#      No. ``x`` is still there afterwards, with its old numbers.
#
#    - 2 MiB: one for ``x``, one for ``y``.
#
#      No. That is what remains in the end. On the way there is a tensor without a name.
#
#    - 3 MiB: ``x``, ``x + 1``, and ``y``.
#
#      Yes. ``x + 1`` is a tensor like any other. It goes when ``y`` is finished.
#
# We measure it. The peak is forgotten first, so that it is the peak of these two lines:

del model, pictures, classes
before = allocated()
torch.cuda.reset_peak_memory_stats()

x = torch.rand(512, 512, device=device)  # numbers of 4 bytes
y = (x + 1) * 2

print("now:    ", (allocated() - before) / 2**20, "MiB more")
print("at most:", (torch.cuda.max_memory_allocated() - before) / 2**20, "MiB more")

# %%
# Two tensors remain, and for a moment there were three. **What must fit is the peak, not
# what you see afterwards.** A program that prints ``memory_allocated`` after each step
# can look harmless, and fail in the middle of the next one.
#
# ``nvidia-smi``, NVIDIA's command that lists what a GPU does, shows all that is reserved,
# and also what CUDA takes for itself, its :term:`context`, before your first tensor is
# there. In a report of 2023 that was `about 400 MB
# <https://github.com/pytorch/pytorch/issues/109888>`__.
#
# Predict what the parameters take
# --------------------------------
#
# How many bytes does the model take? Four for each number, and each tensor takes whole
# blocks, so we round up:

del x, y


def in_blocks(tensors):
    return sum(math.ceil(t.nbytes / 512) * 512 for t in tensors)


# %%
# Now the prediction, made while the model is on the CPU. Then the model moves, and we
# look by how much the count has grown:

predicted, measured = {}, {}
model = make_model()
predicted["parameters"] = in_blocks(model.parameters())

before = allocated()
model.to(device)
measured["parameters"] = allocated() - before

print("numbers:  ", sum(p.numel() for p in model.parameters()))
print("predicted:", predicted["parameters"], "bytes")
print("measured: ", measured["parameters"], "bytes")

# %%
# Both are the same, to the byte: four bytes for each number, and a little for blocks that
# are not full, such as that of the ten numbers of the last bias.
#
# Before we go on, one thing has to be out of the way. On a real GPU a library multiplies
# matrices, cuBLAS. It can take memory to work in when it is first used, and keep it. At
# the beginning the forward pass has used it. The backward pass runs in a thread of its
# own, and can do so once more. We let that happen now:

start = allocated()
model(torch.rand(64, 784, device=device)).sum().backward()
model.zero_grad()
print("kept by libraries:", allocated() - start, "bytes")

# %%
# On the practice GPU it is 0. On a real one it depends on the GPU and on PyTorch's
# version: in 2.9 it is 8,519,680 bytes or 32 MiB, once or several times (`its source
# <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/cuda/CublasHandlePool.cpp>`__).
# New versions keep nothing, unless you `ask for it
# <https://docs.pytorch.org/docs/2.15/cuda_environment_variables.html>`__. Either way it
# does not change any more, so the differences below are those of our tensors.
#
# Count what the forward pass keeps
# ---------------------------------
#
# First the batch. A row has 784 numbers of four bytes each, and a label of eight bytes:

predicted["batch"] = batch_size * (784 * 4 + 8)

before = allocated()
inputs = torch.rand(batch_size, 784, device=device)
labels = torch.randint(10, (batch_size,), device=device)
measured["batch"] = allocated() - before

# %%
# Now the activations. A layer gives its result to the next one. Is it needed after
# that? Some results are: ``backward`` computes the gradients from them. Two rules are
# enough for this model:
#
# - A ``Linear`` keeps its *input*. The gradient of its weight is computed from that.
# - A ``ReLU`` keeps its *result*, to know where it was zero.
#
# The result of a ``ReLU`` is the input of the next ``Linear``. That is one tensor, kept
# once. The input of the first layer is the batch, which is there anyway. For the
# :term:`loss` ten numbers a row are kept, one for each class. Also kept is the number by
# which it divides to get the mean, and the loss itself is a number. Each of these two
# takes a block. How much will be kept in all? We count, and then measure:

a_row = 256 + 256 + 256 + 10  # three ReLUs, and the loss
predicted["activations"] = batch_size * a_row * 4 + 2 * 512

before = allocated()
loss = loss_fn(model(inputs), labels)
measured["activations"] = allocated() - before
print("predicted:", predicted["activations"], "bytes")
print("measured: ", measured["activations"], "bytes")

# %%
# Right again. The results of the ``Linear`` layers are not in it. Nothing needs them
# after the ``ReLU``, so they are gone before the forward pass ends. **What counts is not
# what a layer computes, but what backward will need.**
#
# You need not believe the two rules. ``saved_tensors_hooks`` takes two functions. The
# first gets each tensor that :term:`autograd's graph <autograd graph>` keeps. Ours notes
# its :term:`shape`. In the dict ``kept`` the address of the memory is the key, so that
# nothing is there twice. The second function would bring the tensor back for
# ``backward``; ours returns what it gets:

known = {t.untyped_storage().data_ptr() for t in (inputs, labels, *model.parameters())}
kept = {}


def note(tensor):
    kept[tensor.untyped_storage().data_ptr()] = tensor.shape
    return tensor


# %%
# Now the forward pass again, with both functions in place. What will be new?

with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    loss = loss_fn(model(inputs), labels)
for place, shape in kept.items():
    status = "there before" if place in known else "new"
    print(f"{status:<13}{tuple(shape)}")

# %%
# Weights and the batch are needed as well, but they were there before. New are three
# results of ``ReLU``, ten numbers a row for the loss, and the number by which it divides.
# The loss itself is not in the list: ``backward`` does not need its value.
#
# Complete the table of a step
# ----------------------------
#
# Two entries are missing. There is one gradient for each number of a parameter. Adam
# keeps two numbers for each. (It also counts its steps, in a tensor on the CPU.)

predicted["gradients"] = predicted["parameters"]
predicted["optimizer state"] = 2 * predicted["parameters"]

loss.backward()
del loss
measured["gradients"] = allocated() - before  # read before the forward pass

optimizer = torch.optim.Adam(model.parameters())
before = allocated()
optimizer.step()
measured["optimizer state"] = allocated() - before

# %%
# All predictions, and what was measured:

print(f"{'bytes':<16} {'predicted':>10} {'measured':>10}")
for name in predicted:
    print(f"{name:<16} {predicted[name]:>10,} {measured[name]:>10,}")

# %%
# Five predictions, and each was right to the byte. Look at what it means for a large
# model: **with Adam and float32 each number of the model needs sixteen bytes**, four for
# itself, four for its gradient, eight for the :term:`optimizer`. A billion numbers need
# 16 GB. The batch and the activations come on top, and so does, for a moment, what
# ``step`` needs while it computes.
#
# And look at *when* things are there. After ``backward`` we measured the gradients, and
# nothing else had been added: the activations were gone.
#
# See where in a step the peak is
# -------------------------------
#
# The class in this fold notes the count after each operator inside a ``with`` block. (It
# cannot see memory that one operator takes and gives back inside itself.)

# fold: The class Watch, which notes the allocated memory after each operator
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Inside it, `counts` gets the allocated bytes after each operator."""

    def __init__(self):
        super().__init__()
        self.start = allocated()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.counts.append(allocated())
        return result

    def most(self):
        """Bytes at the highest point, above those at the start."""
        return max(self.counts) - self.start


# %%
# A step has three parts that compute. We watch each of them:

optimizer.zero_grad()


def watch_a_step(rows):
    inputs = torch.rand(rows, 784, device=device)
    labels = torch.randint(10, (rows,), device=device)
    with Watch() as forward:
        loss = loss_fn(model(inputs), labels)
    with Watch() as backward:
        loss.backward()
    with Watch() as update:
        optimizer.step()
    optimizer.zero_grad()
    return {"forward": forward, "backward": backward, "optimizer": update}


# %%
# We take a small batch and a large one. In which part do you expect each peak?

# fold: Watch two steps, and draw them
steps = {rows: watch_a_step(rows) for rows in (128, 2048)}
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True, layout="constrained")
for ax, (rows, parts) in zip(axes, steps.items(), strict=True):
    first = 0
    for name, part in parts.items():
        counts = [count / 2**20 for count in part.counts]
        numbers = range(first, first + len(counts))
        (line,) = ax.step(numbers, counts, where="post", lw=2.5, label=name)
        ax.fill_between(numbers, counts, step="post", alpha=0.3, color=line.get_color())
        first += len(counts)
    ax.set(xlabel="operators", title=f"{rows} rows")
    ax.grid(alpha=0.3)
axes[0].set(ylabel="MiB allocated", ylim=(0, None))
axes[0].legend(loc="upper left")
fig.suptitle("The memory during one step, with a small batch and a large one")
plt.show()

for rows, parts in steps.items():
    highest = max(parts, key=lambda name: max(parts[name].counts))
    print(f"{rows:>4} rows: the peak is in the part {highest!r}")

# %%
# In the forward pass the memory rises with each layer. In the backward pass activations
# go and gradients come. The optimizer needs room for its own intermediate results, for
# a moment, as ``y = (x + 1) * 2`` did above. With few rows that is the peak, and a
# smaller batch would hardly lower it. With many rows the activations make it, early in
# the backward pass, while most of them are still there. **First find out in which part
# the peak is: a smaller batch lowers only what belongs to its rows.**
#
# .. question:: A batch gets twice as many rows. Which of the five things double?
#
#    - All of them.
#
#      No. The model has as many parameters as before, and so has all that is kept for
#      each parameter.
#
#    - The batch alone.
#
#      No. Each row passes through all layers, and ``backward`` needs its results.
#
#    - The batch and the activations.
#
#      Yes. Both are so many numbers for each row.
#
# In this model the two are about equal: a row has 784 numbers, and 778 are kept for it.
# That is not always so. A *convolution* makes several pictures from one, here 32. How
# many parameters does it have, and how many numbers does it return for a picture?

layer = nn.Conv2d(1, 32, 3)  # from 1 picture to 32, in squares of 3 by 3 pixels
result = layer(torch.rand(1, 1, 28, 28))
print("parameters:", sum(p.numel() for p in layer.parameters()))
print("results:   ", result.numel(), "for a picture of", 28 * 28, "pixels")

# %%
# Few parameters, and very many results. In a network of such layers, with a batch of a
# usual size, the activations are by far the largest entry.
#
# Give memory back, and see what does not help
# --------------------------------------------
#
# The first idea is ``del``. The second is a function that you will find in many answers
# on the web, ``empty_cache``. Which count does each of them lower?


def show(when):
    mine = (allocated() - start) / MIB
    all_of_it = (torch.cuda.memory_reserved() - reserved) / MIB
    print(f"{when:<18} allocated {mine:+5.1f} MiB, reserved {all_of_it:+5.1f} MiB")


torch.cuda.empty_cache()
start, reserved = allocated(), torch.cuda.memory_reserved()

# %%
# We watch both counts for a tensor of 32 MiB:

big = torch.rand(4096, 2048, device=device)
show("with a tensor:")
del big
show("after del:")
torch.cuda.empty_cache()
show("after empty_cache:")

# %%
# ``del`` lowers what is allocated, and PyTorch keeps the memory for its next tensor.
# ``empty_cache`` gives it back to the GPU, for other programs, and for libraries of yours
# that take memory by themselves. **It makes no more room for PyTorch**, which could have
# used that memory again (`its documentation
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html>`__;
# against gaps, the last topic of this lesson, it can help).
#
# And ``del`` removes a *name*. The memory goes with the last thing that uses it. Here
# only the first row of a large tensor is kept. What does it cost?

big = torch.rand(1024, 1024, device=device)
first_row = big[0]
del big
print("a row needs", first_row.nbytes, "bytes, and holds", allocated() - start)

first_row = first_row.clone()
print("a row needs", first_row.nbytes, "bytes, and holds", allocated() - start)
del first_row

# %%
# A slice is a *view*: it looks into the memory of the whole tensor, and keeps all of it.
# ``clone`` makes a tensor of its own. **If you keep a small part of something large, keep
# a clone.**
#
# The third idea is ``zero_grad``. It has an argument, ``set_to_none``, which is ``True``
# unless you say otherwise. How much do the gradients hold after either?

start = allocated()
for to_none in (False, True):
    loss_fn(model(inputs), labels).backward()
    optimizer.zero_grad(set_to_none=to_none)
    print(f"set_to_none={to_none}: gradients hold {allocated() - start} bytes")

# %%
# Zeros take as much memory as any other numbers. Without gradients, ``None``, nothing is
# held. So the usual order of the five calls, ``zero_grad`` before ``backward``, keeps the
# gradients during the next forward pass, and the peak may be there. Where memory is
# short, call it right after ``step``, as ``watch_a_step`` does.
#
# Evaluate without a history
# --------------------------
#
# In an evaluation nobody calls ``backward``. PyTorch cannot know that, and keeps the
# activations, unless you say so with ``no_grad`` or :term:`inference mode`. By how much
# does each way raise the memory at most?


def evaluate():
    return loss_fn(model(inputs), labels)


modes = {
    "as in training": torch.enable_grad(),  # as it is if you say nothing
    "no_grad": torch.no_grad(),
    "inference_mode": torch.inference_mode(),
}
for name, mode in modes.items():
    with mode, Watch() as watched:
        evaluate()
    print(f"{name:<15} {watched.most():>9,} bytes more, at most")

# %%
# Half, in both ways. Without a history only two results are there at a time, the input
# of a layer and its output. With a history, the results of the three ReLUs stay, and
# while the third ReLU computes, its input is there, too: four. With thirty hidden layers
# it would be thirty-one against two. **Evaluate in** ``inference_mode`` **or**
# ``no_grad``.
#
# It becomes worse if the result is kept, as in the loop at the beginning. By how much
# does each of these ways make the memory grow?

ways = {
    "loss": lambda loss: loss,
    "loss.detach()": lambda loss: loss.detach(),
    "loss.item()": lambda loss: loss.item(),
}
for name, keep in ways.items():
    start = allocated()
    losses = [keep(evaluate()) for _ in range(10)]
    grown = (allocated() - start) // 10
    print(f"{name:<14} {grown:>8,} bytes a loss")
    del losses
print(f"{'predicted':<14} {predicted['activations']:>8,} bytes: the activations")

# %%
# A loss on which nobody has called ``backward`` holds all activations that led to it. (In
# training ``backward`` lets them go, and the loss holds its block, as in :doc:`lesson 7
# </lessons/07_common_mistakes>`.) A detached loss holds only its block.
# ``loss.item()`` is a number of Python, and holds nothing on the GPU. **Memory that grows
# from batch to batch is mostly a tensor with a history, in a list or in a sum.**
#
# Now the loop from the beginning once more, allowed 32 MiB more as before. Two words are
# new, ``with torch.inference_mode()``:

pictures, classes = inputs, labels
with torch.inference_mode():
    evaluate_often()

# %%
# A hundred losses, with a model and a batch of the same size. Now you can do the exercise
# at the end. The two sections before it are for models that are too large to count by
# hand, and for memory that is free and cannot be used.
#
# .. question:: In ``no_grad`` you collect ``losses.append(loss)``. What grows?
#
#    - The memory, by the activations of each batch.
#
#      No. In ``no_grad`` there is no history, so the loss does not hold on to them.
#
#    - Nothing.
#
#      No. Each loss is a tensor on the GPU, if a small one.
#
#    - The memory, by a block of 512 bytes for each loss.
#
#      Yes. Without a history, a kept loss is one number in one block, as if detached.
#
# .. instructor-note::
#
#    Two beliefs cost time here: that ``empty_cache`` makes room for the program that
#    calls it, and that ``del`` frees a tensor. Let the class predict what the cell with
#    ``first_row`` prints before you run it.
#
# Record a snapshot, and look at every block
# ------------------------------------------
#
# Your own models will be too large to count by hand. On a real GPU PyTorch can record
# each block, and the line that asked for it. (The underscore in a name says that PyTorch
# may change the function in a later version.)

import tempfile
from pathlib import Path


def step():
    loss_fn(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def snapshot(path):
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    for _ in range(3):
        step()
    torch.cuda.memory._dump_snapshot(path)
    torch.cuda.memory._record_memory_history(enabled=None)  # stop
    print(f"wrote {path.stat().st_size / 1024:.0f} KiB")


# %%
# The practice GPU cannot do it, and says so:

with tempfile.TemporaryDirectory() as folder:
    try:
        snapshot(Path(folder) / "snapshot.pickle")
    except practice.PracticeError as error:
        print(error)

# %%
# A real GPU writes a file. In your own program choose a place where it stays, and begin
# to record before you make the model: what was there before has no line. Open `the viewer
# <https://pytorch.org/memory_viz>`__ in a browser, and drag the file onto the page. The
# page works on your own computer and uploads nothing (`PyTorch's page on snapshots
# <https://docs.pytorch.org/docs/stable/torch_cuda_memory.html>`__). You see a picture
# like the one of the step above, with one stripe for each tensor. Move the pointer onto
# a stripe, and you read which lines made it: yours in the forward pass, PyTorch's own in
# the backward pass. What to look for:
#
# - a staircase, from step to step: something is kept;
# - the widest stripes at the highest place: they make the peak;
# - *Allocator State History*, a second view: blocks, and the gaps between them.
#
# Those gaps are the last thing in this lesson.
#
# .. _fragmented:
#
# See how memory can be free and too scattered
# --------------------------------------------
#
# A tensor needs its memory in one piece. PyTorch asks for memory in segments, and for
# tensors between 1 and 10 MiB a segment has 20 MiB (`its settings
# <https://github.com/pytorch/pytorch/blob/v2.15.0/c10/core/AllocatorConfig.h>`__). The
# practice GPU counts blocks and knows no places, so its memory is never scattered. But
# gpulesson has a class, ``CachingAllocator``, that follows PyTorch's rules for the place
# of each block, and needs no GPU. Ten tensors of 2 MiB fill a segment. Then we delete
# every second one. How much is free, and does a tensor of 4 MiB fit?

from gpulesson.planning.memory.caching import CachingAllocator

allocator = CachingAllocator()
blocks = [allocator.malloc(2 * MIB) for _ in range(10)]
for block in blocks[1::2]:
    allocator.free(block)

free = allocator.reserved - allocator.allocated
print(f"reserved: {allocator.reserved // MIB} MiB, free: {free // MIB} MiB")
allocator.malloc(4 * MIB)
print(f"reserved: {allocator.reserved // MIB} MiB, after one tensor of 4 MiB more")

# %%
# 10 MiB were free, and 4 MiB did not fit: PyTorch took a second segment. This is
# :term:`fragmentation`.
#
# .. drawing:: fragmentation.svg
#
#    Five gaps of 2 MiB in a segment: a tensor of 4 MiB fits into none of them, and needs
#    a second segment.
#
# If the GPU has no second segment left, you read *out of memory* while a good part of it
# is empty.
#
# Sizes that change from batch to batch make it worse, such as sentences of different
# lengths. Larger tensors get a segment of their own size. Take four batches, one after
# the other, each with a larger tensor than the last one. It does not fit into any of the
# segments before. How much is reserved in the end?


def four_batches(allocator):
    for size in (30, 50, 70, 90):
        block = allocator.malloc(size * MIB)
        allocator.free(block)
    return f"{allocator.reserved // MIB} MiB"


print("reserved:", four_batches(CachingAllocator()))

# %%
# That is 30 + 50 + 70 + 90, and never more than 90 MiB were needed at once. Here all four
# segments are empty in the end, and before PyTorch stops, it gives back such segments.
# But one tensor that lives on in each of them is enough to keep them all. The error has
# the numbers: if what is *reserved by PyTorch but unallocated* is large, this is your
# case. Then start the program like this:
#
# .. code-block:: bash
#
#    PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
#
# PyTorch then has, for large tensors, `one segment, which grows at its end
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf>`__
# when it is too small. What is reserved for the four batches now?

print("reserved:", four_batches(CachingAllocator(expandable_segments=True)))

# %%
# The segment grew with the batches, by 20 MiB at a time, and each batch used the memory
# of the one before. **If an error says that much is reserved but unallocated, try
# expandable segments.** Older versions and some messages call the variable
# ``PYTORCH_CUDA_ALLOC_CONF``, which `still works
# <https://docs.pytorch.org/docs/2.15/cuda_environment_variables.html>`__.
#
# What to try when your own program runs out of memory, the cheapest first:
#
# 1. Evaluate in ``inference_mode``, and keep ``loss.item()`` or ``loss.detach()``.
# 2. Keep clones of small parts, and ``del`` what is large and done.
# 3. Call ``zero_grad`` right after ``step``.
# 4. See in which part of a step the peak is. If it is the activations, take a smaller
#    batch.
# 5. If much is reserved but unallocated, try expandable segments.
#
# :doc:`Lesson 13 </lessons/13_when_it_does_not_fit>` has what to do if it still does not
# fit.
#
# What we have switched on, we switch off again:

practice.stop()

# %%
# Exercise
# --------
#
# .. exercise:: Train and evaluate without a leak
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_10.py
#
#    Two functions are empty: one trains for an :term:`epoch`, the other evaluates. Both
#    return a mean loss, and neither may keep anything else.
#
#    1. **Predict:** think of a ``train`` and an ``evaluate`` that put each loss into a
#       list, as it is. In which of the two would the memory grow by more, and why?
#    2. Write ``train``, so that each loss lets go of its history at once.
#    3. Write ``evaluate``, so that it needs the memory of one batch, and keeps no
#       activations. Its last batch may be shorter, and each row must count the same.
#    4. Run the file. It prints what is allocated after each of three epochs, and what
#       the evaluation needs at most. Is that less than one loss with its history holds?
#
#    To check it: ``python -m gpulesson check exercise_10.py``.
#
#    You are done when the check has a tick for both functions. In the output of the file
#    the memory then grows by no more than the losses that it keeps, 512 bytes each.
#
# .. solution::
#    :file: solution_10.py
#
#    ``evaluate`` would grow by more: nobody calls ``backward`` there, so each loss keeps
#    its activations. Here ``train`` collects detached losses, and ``evaluate`` runs in
#    ``inference_mode`` and adds up. Neither ``del`` nor ``empty_cache`` would help with
#    losses that are kept as they are: they have their history, and the history holds the
#    activations.
#
# .. keypoints::
#
#    - Parameters, the batch, activations, gradients and the optimizer's state fill the
#      GPU's memory.
#    - Count numbers, times four bytes, in blocks of 512: with Adam sixteen bytes for each
#      number of the model, and the activations that ``backward`` needs.
#    - What must fit is the peak. With many rows the activations make it, with few rows
#      the optimizer can.
#    - ``del`` removes a name, ``empty_cache`` serves other programs, ``inference_mode``
#      keeps no activations, and a loss without its ``backward`` keeps all of them.
#    - A snapshot shows each block, and the line that asked for it.
#    - Free memory in many small gaps does not fit a large tensor; segments that can grow
#      help.
#
# **Next:** :doc:`/lessons/11_profile_first` does for the time of a step what this lesson
# did for its memory.

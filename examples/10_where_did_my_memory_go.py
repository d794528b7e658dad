"""
10 · Where did my memory go?
============================

Predict the memory that training needs, measure it to the byte, and find what you keep
but do not need.

.. overview::
   :teaching: 32
   :exercises: 15

   .. objectives::

      - Name the five things that fill the GPU's memory, and predict the bytes of each.
      - Read the peak, and say in which part of a step it is.
      - Find what is kept without need, and memory that is free and cannot be used.

   .. prereq::

      - :doc:`Lesson 2 </lessons/02_tensors_and_devices>`: blocks of 512 bytes, and the
        counts *allocated* and *reserved*
      - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training step
"""

# %%
# Training fills the memory of your :term:`GPU`, and you want to know with what. PyTorch
# counts the bytes that it takes from :term:`CUDA`. In this lesson you read these
# counts. (``gpulesson`` is the package of this course: :doc:`/setup`.)
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, and your CPU does the arithmetic.

import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from gpulesson import practice

practice.start()
device = torch.device("cuda")
allocated = torch.cuda.memory_allocated  # a shorter name, used often below
MIB = 2**20  # a MiB is 1,048,576 bytes

# %%
# Run out of memory once
# ----------------------
#
# Sooner or later a program of yours will run :term:`out of memory`. Let it happen now.
# Here is a model for pictures of 28 × 28 pixels, 784 numbers each. A :term:`batch` has
# 128 of them. Random numbers will do. (A real GPU may show more than you would count: the
# recorded H200 has some 65 MiB more, which PyTorch's libraries keep for matrix products.
# This lesson takes differences, so that they drop out.)


def make_model():
    hidden = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    hidden += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, 10)).to(device)


model = make_model()
loss_fn = nn.CrossEntropyLoss()
pictures = torch.rand(128, 784, device=device)
classes = torch.randint(10, (128,), device=device)

loss = loss_fn(model(pictures), classes)
loss.backward()
model.zero_grad()
print("a first loss:", loss.item())

# %%
# Now we evaluate the model a hundred times, always with the same batch, and keep each
# :term:`loss`. We allow the program 32 MiB more than it has. Will the loop come to its
# end?

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
# It stopped on the way, although each turn needs the same. So something is kept that
# nobody needs. Soon the loop will run through, with two words more. (*Tried to
# allocate* is a whole :ref:`segment <fragmented>`: memory that PyTorch takes from the GPU
# in one piece, and cuts into blocks for several :term:`tensors <tensor>`. The practice
# GPU has none, so in its error *reserved but unallocated* is 0.)
#
# Name what lives on the GPU
# --------------------------
#
# While you train, five things are in the :term:`device memory`, and for moments what an
# operator needs:
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
# Parameters and optimizer state are like furniture, there all the time. Activations are
# the dirty dishes: they pile up while you cook, and go one by one while you wash up.
#
# .. film:: films/memory.py
#
#    Go through two turns of a training loop, and watch the bar: which lines fill the
#    memory, and which one empties most of it? The striped part has no name in the script.
#
# Predict each of them before you measure
# ---------------------------------------
#
# A number of type float32 takes four bytes, and each tensor takes whole blocks of 512
# bytes. A label takes eight bytes. What does the forward pass keep? Two rules are
# enough for this model:
#
# - A ``Linear`` keeps its *input*. The gradient of its weight is computed from that.
# - A ``ReLU`` keeps its *result*, to know where it was zero.
#
# The result of a ``ReLU`` is the input of the next ``Linear``: one tensor, kept once.
# The first input is the batch, which is there anyway. For the loss, ten numbers a row
# are kept, and two single numbers, which take a block each: the loss itself, and the
# number of rows that it divides by.


def in_blocks(tensors):
    return sum(math.ceil(t.nbytes / 512) * 512 for t in tensors)


a_row = 256 + 256 + 256 + 10  # three ReLUs, and the loss
predicted = {
    "parameters": in_blocks(model.parameters()),
    "batch": 128 * (784 * 4 + 8),
    "activations": 128 * a_row * 4 + 2 * 512,
}
predicted["gradients"] = predicted["parameters"]
predicted["optimizer state"] = 2 * predicted["parameters"]

# %%
# Now one training :term:`step`. We read the count *allocated*, the bytes in your tensors'
# blocks, after each thing that should add to it:

del model, pictures, classes, loss
empty = allocated()
model = make_model()
with_model = allocated()
pictures = torch.rand(128, 784, device=device)
classes = torch.randint(10, (128,), device=device)
with_batch = allocated()
loss = loss_fn(model(pictures), classes)
after_forward = allocated()
loss.backward()
del loss
after_backward = allocated()
optimizer = torch.optim.Adam(model.parameters())
optimizer.step()
after_step = allocated()

# %%
# The differences, beside the predictions:

measured = {
    "parameters": with_model - empty,
    "batch": with_batch - with_model,
    "activations": after_forward - with_batch,
    "gradients": after_backward - with_batch,
    "optimizer state": after_step - after_backward,
}
print(torch.cuda.get_device_name())
print(f"{'bytes':<16} {'predicted':>10} {'measured':>10}")
for name in predicted:
    print(f"{name:<16} {predicted[name]:>10,} {measured[name]:>10,}")

# %%
# Five predictions, each right to the byte. The results of the ``Linear`` layers are not
# in it. Nothing needs them after the ``ReLU``, so they are gone before the forward pass
# ends. And after ``backward`` only the gradients had been added. The activations were
# gone.
#
# **With Adam and float32 each number of the model needs sixteen bytes**: four for itself,
# four for its gradient, eight for the :term:`optimizer`. A billion numbers need 16 GB.
# The batch and the activations come on top.
#
# .. fold:: Going further: let PyTorch list what backward keeps
#
#    ``saved_tensors_hooks`` takes two functions. The first gets each tensor that
#    :term:`autograd's graph <autograd graph>` keeps, the second hands it back in
#    ``backward``. This prints every :term:`shape`; weights and the batch are among them,
#    and a tensor that two layers keep comes twice:
#
#    .. code-block:: python
#
#       def note(tensor):
#           print(tuple(tensor.shape), tensor.nbytes)
#           return tensor
#
#       with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
#           loss = loss_fn(model(pictures), classes)
#
# .. fold:: Going further: what the matrix products take for themselves
#
#    On a real GPU the library cuBLAS multiplies matrices, and it needs room to work in:
#    8,519,680 bytes, or 32 MiB on newer GPUs. In PyTorch 2.9 this `stays allocated
#    <https://github.com/pytorch/pytorch/blob/v2.9.1/aten/src/ATen/cuda/CublasHandlePool.cpp>`__
#    from the first product on, once for the forward and once for the backward pass. That
#    is why this page called ``backward`` before it measured anything. PyTorch 2.15 takes
#    it for each product and gives it back at once, so that only the peak has it, unless
#    ``TORCH_CUBLAS_WORKSPACE_CACHE=1`` `asks it to keep it
#    <https://docs.pytorch.org/docs/2.15/cuda_environment_variables.html>`__.
#
# Read the peak, because it decides what fits
# -------------------------------------------
#
# PyTorch also remembers the most that was ever allocated, the :term:`peak memory`.
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

without_xy = allocated()
torch.cuda.reset_peak_memory_stats()

x = torch.rand(512, 512, device=device)
y = (x + 1) * 2

print("now:    ", (allocated() - without_xy) / MIB, "MiB more")
print("at most:", (torch.cuda.max_memory_allocated() - without_xy) / MIB, "MiB more")
del x, y

# %%
# Two tensors remain, and for a moment there were three. **What must fit is the peak,
# not what you see afterwards.**
#
# ``nvidia-smi``, NVIDIA's command that lists what a GPU does, shows more than either
# count: all that PyTorch has reserved, and what :term:`CUDA` takes for itself, its
# :term:`context`. Published reports of the context go from `274 MiB
# <https://github.com/pytorch/pytorch/pull/86509>`__ to `1.31 GiB
# <https://github.com/huggingface/transformers/blob/main/docs/source/en/model_memory_anatomy.md>`__.
#
# .. fold:: Going further: memory that a program holds which you thought had ended
#
#    The table at the end of ``nvidia-smi`` has a line for each process that uses the GPU,
#    with its number, the PID, and its memory. Often one of them is yours: a notebook that
#    is still open, a program that Ctrl-Z has only paused, a :term:`worker` whose main
#    process is gone. End it by its PID, here 12345:
#
#    .. code-block:: bash
#
#       nvidia-smi
#       ps -o pid,user,etime,args -p 12345   # is it yours, and since when does it run?
#       kill 12345
#       kill -9 12345                        # only if it is still there after a while
#
#    Its memory is free as soon as the process has ended. If the table names none of your
#    processes, look for some that are left, with ``ps -elf | grep python``, as `PyTorch's
#    FAQ <https://docs.pytorch.org/docs/stable/notes/faq.html>`__ advises.
#
# See where in a step the peak is
# -------------------------------
#
# This class notes the count after each operator. (It cannot see what one operator takes
# and gives back inside itself.) You need not understand it to use it: write ``with
# Watch() as part:`` above some lines, and ask ``part.most()`` after them.

from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
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
# The picture shows a step with few rows, and one with many: the three parts that compute.
# In which part do you expect each peak?

# fold: Watch two steps, and draw them
optimizer.zero_grad()


def watch_a_step(rows):
    some = torch.rand(rows, 784, device=device)
    targets = torch.randint(10, (rows,), device=device)
    with Watch() as forward:
        loss = loss_fn(model(some), targets)
    with Watch() as backward:
        loss.backward()
    with Watch() as update:
        optimizer.step()
    optimizer.zero_grad()
    return {"forward": forward, "backward": backward, "optimizer": update}


steps = {rows: watch_a_step(rows) for rows in (128, 2048)}
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True, layout="constrained")
for ax, (rows, parts) in zip(axes, steps.items(), strict=True):
    first = 0
    for name, part in parts.items():
        counts = [count / MIB for count in part.counts]
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
# go and gradients come. The optimizer needs room for intermediate results, as ``y = (x
# + 1) * 2`` did. With few rows that is the peak. With many rows the activations make
# it, early in the backward pass. **First find out in which part the peak is: a smaller
# batch lowers only what belongs to its rows.**
#
# .. play:: memory
#
#    Change the network, the batch and the optimizer. The part below adds up the five
#    things, and says in which part of the step the peak is. How many rows move it out of
#    the optimizer's step? It leaves out the :term:`context`, what libraries take, and
#    gaps between blocks. ``python -m gpulesson plan train.py`` does the same for your
#    own script.
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
# If the optimizer makes the peak, ask it to do all in one :term:`kernel`, with
# ``fused=True``. How much more does ``step`` need for a moment, with and without it?

for name, options in {"Adam": {}, "Adam, fused": {"fused": True}}.items():
    optimizer = torch.optim.Adam(model.parameters(), **options)
    loss_fn(model(pictures), classes).backward()
    optimizer.step()  # from now on its state is there
    with Watch() as update:
        optimizer.step()
    print(f"{name:<12} needs {update.most():>9,} bytes for a moment")
optimizer.zero_grad()

# %%
# The usual step makes intermediate tensors for all parameters at once, which takes about
# `as many bytes as the parameters
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html>`__. The
# :term:`fused` one makes none that ``Watch`` can see: it is one operator, and ``Watch``
# counts between operators.
#
# On a real GPU, PyTorch draws such a picture of your own program, with one stripe for
# each tensor and the line that made it (`its page shows one
# <https://docs.pytorch.org/docs/stable/torch_cuda_memory.html>`__). Put this into your
# script, and drag the file onto `the viewer <https://pytorch.org/memory_viz>`__, which
# uploads nothing:
#
# .. code-block:: python
#
#    record = torch.cuda.memory._record_memory_history
#    record(max_entries=100_000)  # before you make the model
#    ...
#    for i, (inputs, labels) in enumerate(loader):
#        ...  # your step, as it is
#        if i == 2:
#            torch.cuda.memory._dump_snapshot("snapshot.pickle")
#            record(enabled=None)  # stop
#
# A staircase from step to step is something that is kept. If the counts are enough, print
# them all: ``print(torch.cuda.memory_summary())``. A log can take single ones from
# `torch.cuda.memory_stats()
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html>`__.
# ``"num_alloc_retries"`` says how often the GPU had no room until PyTorch gave back what
# it had kept.
#
# Give memory back, and see what does not help
# --------------------------------------------
#
# The first idea is ``del``. The second is ``empty_cache``, which you find in many answers
# on the web. Which count does each of them lower?

torch.cuda.empty_cache()
without_big, reserved = allocated(), torch.cuda.memory_reserved()


def show(when):
    mine = (allocated() - without_big) / MIB
    all_of_it = (torch.cuda.memory_reserved() - reserved) / MIB
    print(f"{when:<18} allocated {mine:+5.1f} MiB, reserved {all_of_it:+5.1f} MiB")


big = torch.rand(4096, 2048, device=device)
show("with a tensor:")
del big
show("after del:")
torch.cuda.empty_cache()
show("after empty_cache:")

# %%
# ``del`` lowers what is allocated, and the :term:`caching allocator` keeps the memory
# for PyTorch's next tensor. ``empty_cache`` gives it back to the GPU, for other
# programs. **PyTorch itself seldom gains from it** (`its documentation
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html>`__):
# it could have used that memory again, and does the same by itself before it reports *out
# of memory*. Only where free memory is :ref:`scattered <fragmented>` can it help to call
# it early.
#
# And ``del`` removes a *name*. Here only the first row of a large tensor is kept. What
# does it cost?

without_row = allocated()
matrix = torch.rand(1024, 1024, device=device)
first_row = matrix[0]
del matrix
print("a row needs", first_row.nbytes, "bytes, and holds", allocated() - without_row)

first_row = first_row.clone()
print("a row needs", first_row.nbytes, "bytes, and holds", allocated() - without_row)
del first_row

# %%
# A slice is a *view*: it looks into the memory of the whole tensor, and keeps all of it.
# ``clone`` makes a separate tensor. **If you keep a small part of something large, keep
# a clone.**
#
# .. instructor-note::
#
#    Two beliefs cost time here: that ``empty_cache`` frees what a program still uses, and
#    that ``del`` frees a tensor. Let the class predict what the cell with
#    ``first_row`` prints before you run it.
#
# Evaluate without a history
# --------------------------
#
# In an evaluation nobody calls ``backward``. PyTorch cannot know that, and keeps the
# activations, unless you say so with ``no_grad`` or :term:`inference mode`. By how much
# does each way raise the memory at most?

modes = {
    "as in training": torch.enable_grad(),  # as it is if you say nothing
    "no_grad": torch.no_grad(),
    "inference_mode": torch.inference_mode(),
}
for name, mode in modes.items():
    with mode, Watch() as watched:
        loss_fn(model(pictures), classes)
    print(f"{name:<15} {watched.most():>9,} bytes more, at most")

# %%
# Half, in both ways. Without a history only the input and the output of a layer are
# there at a time. With one, the results of all three ReLUs stay, and for a moment a
# result of a ``Linear``: four times 131,072 bytes. **Evaluate in** ``inference_mode``
# **or** ``no_grad``.
#
# It becomes worse if the result is kept, as in the loop at the beginning. By how much
# does each of these ways make the memory grow?

ways = {
    "loss": lambda loss: loss,
    "loss.detach()": lambda loss: loss.detach(),
    "loss.item()": lambda loss: loss.item(),
}
for name, keep in ways.items():
    without_losses = allocated()
    losses = [keep(loss_fn(model(pictures), classes)) for _ in range(10)]
    grown = (allocated() - without_losses) // 10
    print(f"{name:<14} {grown:>8,} bytes a loss")
    del losses
print(f"{'predicted':<14} {predicted['activations']:>8,} bytes: the activations")

# %%
# A loss on which nobody has called ``backward`` holds all activations that led to it. A
# detached loss holds only its block, and ``loss.item()`` is a number of Python, which
# holds nothing on the GPU. **Memory that grows from batch to batch is mostly a tensor
# with a history, in a list or in a sum.**
#
# Now the loop from the beginning once more, with two words more:

with torch.inference_mode():
    evaluate_often()

# %%
# A hundred losses, within the same 32 MiB.
#
# .. _fragmented:
#
# See how memory can be free and too scattered
# --------------------------------------------
#
# A tensor needs its memory in one piece. PyTorch asks the GPU for memory in *segments*:
# for tensors between 1 and 10 MiB a segment has 20 MiB (`its settings
# <https://github.com/pytorch/pytorch/blob/v2.15.0/c10/core/AllocatorConfig.h>`__). The
# class ``CachingAllocator`` follows PyTorch's rules for the place of each block, and
# needs no GPU. Ten tensors of 2 MiB fill a segment. Then every second one is freed. How
# much is free, and does a tensor of 4 MiB fit?

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
# Larger tensors get a segment of their own size. If sizes change from batch to batch,
# that leaves many gaps. So PyTorch can also have `one segment that grows at its end
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf>`__.
# Here is a GPU of 220 MiB, and four batches, each larger than the last. Of each a
# result of half its size is kept. Never more than 165 MiB are needed at once. Does it
# fit?

for expandable in (False, True):
    allocator = CachingAllocator(220 * MIB, expandable_segments=expandable)
    says = "all four fit"
    try:
        for size in (30, 50, 70, 90):
            batch = allocator.malloc(size * MIB)
            allocator.free(batch)
            allocator.malloc(size // 2 * MIB)  # the result, which is kept
    except torch.OutOfMemoryError as error:
        says = str(error).split(" If reserved")[0].replace(". ", ".\n  ")
    print(f"expandable {expandable}: {says}")
    print(f"  {allocator.reserved // MIB} MiB reserved\n")

# %%
# Without expandable segments, half of each segment is empty, in three pieces. PyTorch
# could only return a segment that is wholly empty. **If an error says that much is
# reserved but unallocated, try expandable segments:**
#
# .. code-block:: bash
#
#    PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
#
# The older name is ``PYTORCH_CUDA_ALLOC_CONF``. PyTorch 2.9.1 `was reported
# <https://github.com/pytorch/pytorch/issues/183387>`__ to listen to the older name only.
# Some builds have no expandable segments.
#
# When your own program runs out of memory, try the cheapest first:
#
# 1. Evaluate in ``inference_mode``, and keep ``loss.item()`` or ``loss.detach()``.
# 2. Keep clones of small parts, and ``del`` what is large and done.
# 3. Move ``zero_grad`` to the line after ``step``. This course mostly has it before
#    ``backward``. Both are right: each step begins without old gradients. But after
#    ``step`` none are there during the forward pass, either.
# 4. See in which part of a step the peak is: a smaller batch for the activations, a fused
#    optimizer for ``step``.
# 5. If much is reserved but unallocated, try expandable segments.
#
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
#    - Parameters, the batch, activations, gradients and the optimizer's state: four bytes
#      a number, in blocks of 512; with Adam sixteen bytes for each number of the model.
#    - What must fit is the peak. With many rows the activations make it, with few rows
#      the optimizer can.
#    - A loss without its ``backward`` keeps all its activations, and a slice its whole
#      tensor. Free memory in many small gaps does not fit a large tensor.
#
# **Next:** :doc:`/lessons/11_profile_first` does for the time of a step what this lesson
# did for its memory. What to do if it still does not fit is in :doc:`lesson 13
# </lessons/13_when_it_does_not_fit>`.

"""
13 · When it does not fit
=========================

Read the out-of-memory error, try the ways to need less memory, and see what each of them
costs.

.. overview::
   :teaching: 31
   :exercises: 15

   .. objectives::

      - Read each number of the error, and catch it without keeping its memory.
      - Train with a large batch in small parts, and say when it is not the same.
      - Choose among recomputing, fewer bits, fewer trained numbers and offloading.

   .. prereq::

      - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training step
      - :doc:`Lesson 10 </lessons/10_where_did_my_memory_go>`: what fills the memory, and
        the peak
"""

# %%
# You want to move house, and the car is small. You can drive several times. You can leave
# at home what you can easily make again. You can pack everything into less space. And
# you can rent a storage room, and drive there whenever you need something. If a
# model does not fit on a :term:`GPU`, these are your ways, too.
#
# We take 128 of the images of :doc:`lesson 5 </lessons/05_fashion_mnist>`, one large
# :term:`batch`, and count the memory that PyTorch gets from :term:`CUDA`.
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, and your CPU does the arithmetic.

import matplotlib.pyplot as plt
import torch
from torch import nn

from gpulesson import practice
from gpulesson.data import load_fashion_mnist

practice.start()
device = torch.device("cuda")
# convolutions with all digits, so that we can compare results
torch.backends.cudnn.conv.fp32_precision = "ieee"

data = load_fashion_mnist()
images = (data.train_images[:128].float() / 255).unsqueeze(1).to(device)
labels = data.train_targets[:128].to(device)
print(tuple(images.shape), "on", images.device)

# %%
# 128 images with one colour, grey, and 28 × 28 pixels. The model has *convolutions*,
# layers that make several pictures from one. Each of the 8 that they return has as many
# numbers as the image, so :term:`activations <activation>` will fill the memory. Two
# convolutions make a block. (``norm`` is for later; ``nn.Identity`` does nothing.)


def make_block(norm):
    layers = []
    for _ in range(2):
        layers += [nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU()]
    return nn.Sequential(*layers)


class Net(nn.Module):
    def __init__(self, depth=8, norm=nn.Identity):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(make_block(norm) for _ in range(depth))
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x.mean(dim=(2, 3)))


# %%
# Read the error before you change anything
# -----------------------------------------
#
# .. _out-of-memory:
#
# PyTorch can be told to use only a part of a GPU. We allow it 50 MiB and train with all
# 128 images at once. That is too much. What will the error tell us?

MIB = 2**20
loss_fn = nn.CrossEntropyLoss()


def allow(mib):
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(mib * MIB / total, 1.0))


torch.manual_seed(0)
model = Net().to(device)
allow(50)
try:
    loss_fn(model(images), labels).backward()
except torch.OutOfMemoryError as error:
    print(str(error).split(" If reserved")[0].replace(". ", ".\n"))

# %%
# Here each sentence of the error has a line, without the advice at its end. Read it so:
#
# - *Tried to allocate* is what PyTorch asked the GPU for, to have room for one more
#   :term:`tensor`. It is a whole :ref:`segment <fragmented>`, not the tensor. And it is
#   not what your program needs: more tensors would have come.
# - *Total capacity* and *free* are about the whole GPU, with other programs on it.
# - *This process has … in use* is your part of it, on a real GPU with CUDA's own memory,
#   the :term:`context`.
# - *Allowed* is there only because we have set a limit.
# - *Allocated by PyTorch* is what your tensors hold.
# - *Reserved by PyTorch but unallocated* is kept for the next tensors. If this is the
#   large number, you have :ref:`fragmentation <fragmented>`. If it is small, look at *in
#   use*: near the capacity, your tensors really need the memory; far below it, another
#   program has the rest.
#
# .. question:: Allowed 50 MiB, allocated 49, tried 20: how much does the program need?
#
#    - 69 MiB.
#
#      No. That would be enough for this tensor. Nobody knows what comes behind it.
#
#    - More than it is allowed, and the error cannot say how much.
#
#      Yes. It ended at the first tensor that did not fit. The peak may be far above.
#
#    - 20 MiB more than it is allowed.
#
#      No. 20 MiB is what PyTorch asked for at once, not what is missing in all.
#
# Suppose that you catch the error, and go on with a smaller batch. How much is allocated
# inside the ``except``, and how much after it?


def show(when):
    print(f"{when:<14} {torch.cuda.memory_allocated() / MIB:6.1f} MiB allocated")


show("before:")
try:
    loss_fn(model(images), labels).backward()
except torch.OutOfMemoryError:
    show("in except:")
show("after except:")

# %%
# While the error is handled, it remembers each function that was running, with its
# variables. So your activations are still there. Only after the ``except`` are they gone.
# **Leave the** ``except`` **first, then try again with less.**
#
# Take several small batches for one step
# ---------------------------------------
#
# .. _accumulate:
#
# Drive four times: 32 images fit. But a batch of 32 is not a batch of 128. Its
# :term:`gradients <gradient>` are noisier, and your :term:`learning rate` was chosen for
# 128. So call ``backward`` for four small batches, and ``optimizer.step`` once, as one
# :term:`step` of training. That works because ``backward`` does not replace gradients.
# It *adds* to them. This is :term:`gradient accumulation`:


def accumulated(model, rows=32):
    model.zero_grad()
    for first in range(0, len(images), rows):
        some = slice(first, first + rows)
        loss = loss_fn(model(images[some]), labels[some])
        # each part has its share in the mean of all
        loss = loss * len(labels[some]) / len(images)
        loss.backward()


# %%
# The :term:`loss` is a mean. Take a *quarter* of each of the four means, and add them:
# that is the mean of all 128. Are the gradients the same? ``look`` gives the gradients
# and how far the memory rises, ``difference`` the largest difference as a part of the
# largest gradient:


# fold: The functions at_once, look and difference
def at_once(model):
    model.zero_grad()
    loss_fn(model(images), labels).backward()


def look(run, model):
    """Return the gradients, and how far the memory rises, in MiB."""
    model.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(model)
    mib = (torch.cuda.max_memory_allocated() - before) / MIB
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    return found, mib


def difference(a, b):
    """The largest difference, as a part of the largest number."""
    return ((a - b).abs().max() / a.abs().max()).item()


# %%
# For the large batch we lift the limit:

small, small_mib = look(accumulated, model)
allow(float("inf"))
large, large_mib = look(at_once, model)

print(f"128 at once: {large_mib:6.1f} MiB")
print(f"4 times 32:  {small_mib:6.1f} MiB")
print(f"difference:  {difference(large, small):.0e} of the largest gradient")

# %%
# The difference is rounding: long sums were added up in another order. **Four quarters
# are the whole: the same gradients, with a fourth of the activations.** The arithmetic is
# the same, too.
#
# .. question:: You forget to divide: each of the losses counts in full. What happens?
#
#    - Nothing, the direction is the same.
#
#      No. The gradient is four times as long, and with SGD so is each step.
#
#    - With SGD each step is four times as long. Adam hides it.
#
#      Yes. Adam divides by the size of past gradients, so its steps hardly change, and
#      you may never see the mistake.
#
#    - PyTorch raises an error.
#
#      No. Any loss is a number, and PyTorch cannot know which one you meant.
#
# Two more mistakes undo all of it. ``zero_grad`` between the small batches throws away
# what was collected. ``step`` between them makes four steps.
#
# Know when small batches are not the large one
# ---------------------------------------------
#
# There are exceptions. :term:`Batch normalisation` shifts and scales by the mean and the
# spread of *its* batch. ``GroupNorm`` does the same for each image by itself. We fill in
# ``norm``, and compute with float64, which has sixteen digits. For which of the three
# will the gradients differ?


def group_norm(width):
    return nn.GroupNorm(2, width)


images = images.double()
for norm in (nn.Identity, nn.BatchNorm2d, group_norm):
    torch.manual_seed(0)
    model = Net(depth=1, norm=norm).to(device, torch.float64)
    large, small = look(at_once, model)[0], look(accumulated, model)[0]
    print(f"{norm.__name__:<12} {difference(large, small):.0e}")
images = images.float()

# %%
# With sixteen digits, rounding is all but gone. With ``BatchNorm2d`` a difference stays:
# the mean of 32 images is not that of 128, and no later division repairs that.
#
# The second exception is a loss that does not count all rows alike. ``CrossEntropyLoss``
# leaves out rows with the label −100, its ``ignore_index``; language models mark padding
# so. Here the first 24 rows are left out. Which shares give the loss of the whole?

scores = torch.randn(128, 10, device=device)
targets = labels.clone()
targets[:24] = -100
parts = list(zip(scores.split(32), targets.split(32), strict=True))
counted = (targets != -100).sum()

by_rows = sum(loss_fn(s, t) * len(t) / 128 for s, t in parts)
by_counted = sum(loss_fn(s, t) * (t != -100).sum() / counted for s, t in parts)
print(f"all rows at once:  {loss_fn(scores, targets).item():.4f}")
print(f"shares of rows:    {by_rows.item():.4f}")
print(f"shares of counted: {by_counted.item():.4f}")

# %%
# The mean is over the rows that count, so each part's share must be that of *its* rows
# that count. :term:`Class weights` need the same care: divide by the sum of the weights.
# **Accumulation is exact if each sample goes through the model by itself, and each part
# has its share of what the loss divides by.** (:term:`Dropout` draws other numbers, too.)
#
# Compute activations again
# -------------------------
#
# .. _recompute:
#
# Leave at home what you can easily make again. With :term:`activation checkpointing` a
# block keeps only its *input*. When ``backward`` comes to it, the block computes its
# results once more. One line changes. (``use_reentrant=False`` chooses the newer of two
# ways, `which PyTorch recommends
# <https://docs.pytorch.org/docs/stable/checkpoint.html>`__.)

from torch.utils.checkpoint import checkpoint


class Recomputing(Net):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x.mean(dim=(2, 3)))


# %%
# How much less memory will it take, and how much more has to be computed?
# ``FlopCounterMode`` counts the :term:`FLOP` of products and convolutions; a GFLOP is a
# billion of them:

from torch.utils.flop_counter import FlopCounterMode

found = {}
for kind in (Net, Recomputing):
    torch.manual_seed(0)
    model = kind().to(device)
    found[kind], mib = look(at_once, model)
    with FlopCounterMode(display=False) as counter:
        at_once(model)
    gflop = counter.get_total_flops() / 1e9
    print(f"{kind.__name__:<12} {mib:6.1f} MiB, {gflop:5.1f} GFLOP")
print(f"difference: {difference(*found.values()):.0e}")

# %%
# The peak is below half, and the arithmetic is about a third more: a :term:`forward pass`
# is about a third of a step, and it is done twice. **You pay with time, and get
# memory.** It helps with a batch of any size, even with one single image that is too
# large. Where would you expect the peak?

# fold: Draw the memory over one step
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Inside it, `counts` gets the allocated MiB after each operator."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.counts.append(torch.cuda.memory_allocated() / MIB)
        return result


fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.4), sharey=True, layout="constrained")
titles = {Net: "as it is", Recomputing: "blocks computed again"}
for ax, (kind, title) in zip(axes, titles.items(), strict=True):
    model = kind().to(device)
    with Watch() as watched:
        at_once(model)
    ax.fill_between(range(len(watched.counts)), watched.counts, step="post", alpha=0.5)
    ax.set(title=title, xlabel="operators")
    ax.grid(alpha=0.3)
axes[0].set_ylabel("MiB allocated")
fig.suptitle("The memory over one forward and backward pass")
plt.show()

# %%
# As it is, the activations rise until the forward pass ends, and fall in the
# :term:`backward pass`. With recomputing only the inputs of the blocks are kept, and in
# the backward pass there is a small hill for each block. So choose blocks of several
# layers. If each layer is a block, every input is kept. If the whole model is one,
# ``backward`` begins by making all activations again, and nothing is saved.
#
# Use fewer bits
# --------------
#
# Pack everything into less space. There are three places for that. The first is the
# activations. With :term:`autocast` the :term:`parameters <parameter>` stay as they are,
# and convolutions are computed, and their results kept, in :term:`bfloat16`, which has
# two bytes instead of four:


def with_autocast(model):
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_fn(model(images), labels)
    loss.backward()


model = Net().to(device)
print(f"float32:  {look(at_once, model)[1]:5.1f} MiB")
print(f"autocast: {look(with_autocast, model)[1]:5.1f} MiB")

# %%
# About half. (Autocast also makes a copy of each weight in bfloat16. Where the parameters
# fill the memory, it saves little.)
#
# The second place is the model itself: ``model.to(torch.bfloat16)``. Then parameters,
# gradients and :term:`optimizer state` are halved, too. But what happens to a weight of 1
# when the :term:`optimizer` adds a thousandth?

for dtype in (torch.float32, torch.bfloat16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(100):
        weight += 0.001
    print(dtype, weight.item())

# %%
# In float32 it grows to 1.1. In bfloat16 nothing happens, a hundred times: it has about
# three digits, and after 1 comes 1.0078.
# **Compute in bfloat16; keep the weights that the optimizer changes in float32.**
#
# The third place is the optimizer. Adam keeps two numbers of four bytes for each number
# of the model. 8-bit optimizers keep each in about one byte (`a paper of 2021
# <https://arxiv.org/abs/2110.02861>`__ has the idea). They are in `bitsandbytes
# <https://huggingface.co/docs/bitsandbytes/reference/optim/optim_overview>`__ and in
# `torchao <https://github.com/pytorch/ao>`__.
#
# Train few numbers beside a frozen model
# ---------------------------------------
#
# You have a large model that others have trained, and want to adapt it: *fine-tuning*.
# Then you need not change all of its numbers. `LoRA <https://arxiv.org/abs/2106.09685>`__
# freezes a layer, and adds a small change: a ``Linear`` to 8 numbers, and one back. Only
# these two are trained.


class LowRank(nn.Module):
    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)  # frozen
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first there is no change

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


# %%
# Four layers of 1,024 × 1,024 numbers, trained as a whole, and frozen with such a change.
# How much do gradients and optimizer state take after a step?

for name, wrap in {"all": nn.Sequential, "low rank": LowRank}.items():
    model = nn.Sequential(*(wrap(nn.Linear(1024, 1024)) for _ in range(4))).to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained)
    before = torch.cuda.memory_allocated()
    model(torch.rand(16, 1024, device=device)).sum().backward()
    optimizer.step()
    added = (torch.cuda.memory_allocated() - before) / MIB
    numbers = sum(p.numel() for p in trained)
    print(f"{name:<8} trains {numbers:>9,} numbers: {added:5.2f} MiB more")

# %%
# **A frozen number needs neither a gradient nor optimizer state.** What stays are the
# layers themselves, and activations, for ``backward`` still passes through them. With
# GPT-3, the authors report, LoRA needed a third of the memory. For real models there are
# libraries such as `PEFT <https://huggingface.co/docs/peft>`__.
#
# Rent a storage room for what is used seldom
# -------------------------------------------
#
# The :term:`host` has memory, too. :term:`Offloading` stores there what is not needed at
# once. PyTorch has a block that does it with activations, ``save_on_cpu``. What do you
# expect of the peak?


def offloaded(model):
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        loss = loss_fn(model(images), labels)
    loss.backward()


model = Net().to(device)
print(f"on the GPU: {look(at_once, model)[1]:6.1f} MiB")
print(f"offloaded:  {look(offloaded, model)[1]:6.1f} MiB")

# %%
# Each tensor that ``backward`` needs goes over the bus, and comes back in ``backward``. A
# usual bus, PCIe 4.0 with 16 lanes, moves `less than 32 billion bytes a second
# <https://en.wikipedia.org/wiki/PCI_Express>`__, and the memory of a T4, no large GPU,
# ten times as many (:doc:`/plan` has a table). **The bus is slow, so offload what is used
# seldom**, such as the optimizer's state, once a step. `ZeRO-Offload
# <https://www.deepspeed.ai/tutorials/zero-offload>`__ does that.
#
# .. question:: The optimizer's state fills most of the memory. What helps?
#
#    - A smaller batch, with accumulated gradients.
#
#      No. The state has two numbers for each parameter, however small the batch.
#
#    - Activation checkpointing.
#
#      No. It saves activations, and they are not the problem here.
#
#    - An 8-bit optimizer, or offloading the state.
#
#      Yes. Look at what fills the memory, then choose.
#
# .. instructor-note::
#
#    Learners take "use a smaller batch" for the answer to everything. Describe two
#    programs, one filled by activations and one by optimizer state, and ask for the
#    remedy before you show the table below.
#
# Look at what fills the memory, then choose
# ------------------------------------------
#
# .. _compare-plans:
#
# How much time do these ways cost? Only a measurement can say. This one is of a language
# model:
#
# .. measured:: on a V100, by Hugging Face
#    :source: https://github.com/huggingface/transformers/blob/0016acf7ef421c7fe8eff7945de52c71896c3b01/docs/source/en/perf_train_gpu_one.mdx
#    :date: 2022
#
#    BERT-large, 512 texts of 512 tokens (words or parts of words). The memory is what
#    ``nvidia-smi`` shows, with CUDA's own.
#
#    .. list-table::
#       :header-rows: 1
#       :widths: 52 24 24
#
#       * - One step learns from four texts
#         - texts a second
#         - memory, MB
#       * - all four at once, float32
#         - 8.86
#         - 14,949
#       * - one by one, accumulated
#         - 7.75
#         - 8,681
#       * - and computed again
#         - 5.99
#         - 6,775
#       * - all four at once, autocast to float16
#         - 18.64
#         - 13,939
#       * - one by one, computed again, float16
#         - 10.09
#         - 7,275
#
# Accumulation and recomputing cost time. Fewer bits brought speed, and saved little
# memory. (Autocast to float16 also needs :term:`gradient scaling`.) How much a way saves
# depends on what fills the memory, so look at that first:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 26 37 37
#
#    * - What fills the memory
#      - What helps
#      - What you pay
#    * - activations
#      - autocast
#      - digits, which training seldom needs
#    * - activations
#      - smaller batches, accumulated
#      - some time; batch normalisation sees small batches
#    * - activations
#      - activation checkpointing
#      - about a third more arithmetic
#    * - optimizer state
#      - an 8-bit optimizer, or one without state
#      - a library more; SGD wants another learning rate
#    * - optimizer state
#      - offloading
#      - a slow step on the CPU, and gradients and parameters over the bus
#    * - gradients and optimizer state, in fine-tuning
#      - LoRA
#      - the change has fewer numbers, and may learn less
#    * - parameters
#      - a smaller model, a larger GPU, several GPUs, or offloading
#      - quality, money, or time
#
# **The cheapest way that fits is the best one: autocast first, if the GPU is fast in
# bfloat16, then smaller batches, then recomputing.**
#
# What fills the memory of your own script? There is a command that needs no GPU:
#
# .. code-block:: bash
#
#    python -m gpulesson plan --gpu T4 train.py
#
# It runs the script's first steps, and prints what fills the memory at the peak, which of
# your lines made it, whether it fits on a T4, and the largest batch. :doc:`Will it fit?
# </plan>` shows a whole answer, and says what a plan cannot know.
#
# Exercise
# --------
#
# .. exercise:: Learn from a large batch in little memory
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_13.py
#
#    The file has two functions without a body: one collects the gradients of a batch in
#    parts, the other trains with it. Its ``main`` trains with batches of 4,096 rows, on a
#    practice GPU of 12 MiB, and lets 4,096, 1,024 or 256 of them through at a time.
#
#    1. **Predict:** for which of the three will the memory be enough? What grows with the
#       rows, and what does not?
#    2. Write ``accumulate``. The last part can be shorter than the others: how much does
#       its mean loss count?
#    3. Write ``train``: one step for each batch, from all of its rows.
#    4. Run the file. Were you right? And does the model learn the same from parts of
#       1,024 rows as from parts of 256?
#
#    To check it: ``python -m gpulesson check exercise_13.py``. You can check after each
#    function.
#
#    You are done when both have a check mark.
#
# .. solution::
#    :file: solution_13.py
#
#    Each part counts by its share of the rows, so a shorter last part is no problem, and
#    there is one ``step`` after all parts of a batch. 4,096 rows at a time do not fit;
#    with parts of 1,024 and of 256 rows the model learns the same, except for rounding.
#
# .. keypoints::
#
#    - The error says what PyTorch asked for at last, not what the program needs. Leave
#      the ``except`` before you try again.
#    - Accumulated gradients of small batches are the large batch's, except for rounding,
#      if each part has its right share. Batch normalisation breaks that.
#    - First see what fills the memory. Activations: autocast, accumulation, recomputing.
#      Optimizer state: 8 bits, LoRA, offloading.
#
# **Next:** :doc:`/lessons/14_many_gpus` divides the work among several GPUs.

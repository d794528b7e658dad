"""
13 · When it does not fit
=========================

Read the out-of-memory error, try four ways to need less memory, and see what each of them
costs.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - What do the numbers in an out-of-memory error mean?
      - The batch does not fit. Can I train as if it did?
      - Which way saves how much memory, and what do I pay for it?
      - How do I find out before I rent a larger GPU?

   .. objectives::

      - Read each number of the error, and catch it without keeping its memory.
      - Accumulate gradients, show that they are the large batch's, and say when not.
      - Compute activations again in the backward pass, and count the extra work.
      - Say what fewer bits save, and what they lose.
      - Count what offloading sends over the bus.
      - Let a plan compare the ways, and choose by what fills the memory.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training
#      :term:`step`
#    - :doc:`Lesson 10 </lessons/10_where_did_my_memory_go>`: what fills the memory, and
#      the peak
#
# You want to move house, and the car is small. You can drive several times. You can leave
# at home what you can easily make again. You can pack everything into less space. And
# you can rent a storage room, and drive there whenever you need something. If a
# model does not fit on a :term:`GPU`, these are your ways, too.
#
# The images are those of :doc:`lesson 5 </lessons/05_fashion_mnist>`. We take 256 of
# them, one large :term:`batch`. Without a GPU for :term:`CUDA`, the :term:`practice GPU`
# counts the memory:

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gpulesson
from gpulesson import practice
from gpulesson.data import Batches, load_fashion_mnist

practice.start()
device = torch.device("cuda")
# convolutions with all digits, so that we can compare results
torch.backends.cudnn.conv.fp32_precision = "ieee"

data = load_fashion_mnist()
images = (data.train_images[:256].float() / 255).unsqueeze(1).to(device)
labels = data.train_targets[:256].to(device)
loss_fn = nn.CrossEntropyLoss()
print(f"{data.source} on {images.device}, {torch.cuda.get_device_name()}")

# %%
# 256 images with one colour, grey, and 28 × 28 pixels. The model has convolutions, which
# return a lot, as lesson 10 has shown. Two of them make a block:


def make_block(width, norm):
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1),
        norm(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        norm(width),
        nn.ReLU(),
    )


# %%
# The model has several such blocks. ``norm`` is for later; ``nn.Identity`` does nothing:


class Net(nn.Module):
    def __init__(self, width, depth, colours=1, norm=nn.Identity):
        super().__init__()
        self.first = nn.Conv2d(colours, width, 3, padding=1)
        self.blocks = nn.ModuleList(make_block(width, norm) for _ in range(depth))
        self.last = nn.Linear(width, 10)

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
# PyTorch can be told to use only a part of a GPU. We allow it 160 MiB, on whatever GPU
# this runs, and train with all 256 images at once. That is too much. What will the error
# tell us?

MIB = 2**20


def allow(mib):
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(mib * MIB / total, 1.0))


def step(model, images, labels):
    loss = loss_fn(model(images), labels)
    loss.backward()


torch.manual_seed(0)
model = Net(width=8, depth=12).to(device)
allow(160)

# %%
# The error is long. Here each of its sentences has a line, without the advice at its end:

try:
    step(model, images, labels)
except torch.OutOfMemoryError as error:
    print(str(error).split(" If reserved")[0].replace(". ", ".\n"))

# %%
# Read it so:
#
# - *Tried to allocate* is what PyTorch asked the GPU for, to have room for one more
#   :term:`tensor`. It is a whole :ref:`segment <fragmented>`, not the tensor: 2 MiB for a
#   tensor up to 1 MiB, and 20 MiB for one up to 10 MiB. It is not what your program
#   needs, either: more tensors would have come.
# - *Total capacity* and *free* are about the whole GPU, with other programs on it.
# - *This process has … in use* is your part of it, on a real GPU with the
#   :term:`context`.
# - *Allowed* is there only because we have set a limit. The rest of this GPU is free, but
#   not for us.
# - *Allocated by PyTorch* is what your tensors hold.
# - *Reserved by PyTorch but unallocated* is kept for the next tensors. If this is the
#   large number, you have :ref:`fragmentation <fragmented>`. If it is small, look at *in
#   use*: near the capacity, your tensors really need the memory; far below it, another
#   program has the rest.
#
# .. question:: Allowed 160 MiB, allocated 154, tried 20: how much does the program need?
#
#    - 174 MiB.
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
    step(model, images, labels)
except torch.OutOfMemoryError:
    show("in except:")
show("after except:")

# %%
# While the error is handled, it remembers each function that was running, with its
# variables: your :term:`activations <activation>` are still there. Only after the
# ``except`` are they gone.
# **Leave the** ``except`` **first, then try again with less.** And do not keep the error
# itself in a variable; that keeps the tensors, too.
#
# Take several small batches for one step
# ---------------------------------------
#
# .. _accumulate:
#
# Drive four times: 64 images fit. But a batch of 64 is not a batch of 256. Its
# :term:`gradients <gradient>` are noisier, and your :term:`learning rate` was chosen for
# 256. So call ``backward`` for four small batches, and ``step`` once. That works because
# ``backward`` does not replace gradients. It *adds* to them. This is
# :term:`gradient accumulation`:


def accumulated(model, rows=64):
    model.zero_grad()
    for first in range(0, len(images), rows):
        some = slice(first, first + rows)
        loss = loss_fn(model(images[some]), labels[some])
        # each part has its share in the mean of all
        loss = loss * len(labels[some]) / len(images)
        loss.backward()


# %%
# The :term:`loss` is a mean. Take a *quarter* of each of the four means, and add them:
# that is the mean of all 256. Are the gradients the same? For the large batch we lift the
# limit:


# fold: The functions at_once, look and difference
def at_once(model):
    model.zero_grad()
    step(model, images, labels)


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
# ``look`` gives the gradients, and how far the memory rises. ``difference`` gives the
# largest difference as a part of the largest gradient:

small, small_mib = look(accumulated, model)
allow(float("inf"))
large, large_mib = look(at_once, model)

print(f"256 at once: {large_mib:6.1f} MiB")
print(f"4 times 64:  {small_mib:6.1f} MiB")
print(f"difference:  {difference(large, small):.0e} of the largest gradient")

# %%
# The difference is rounding: long sums were added up in another order. (The next section
# shows it with numbers of more digits.) **Four quarters are the whole: the same
# gradients, with a fourth of the activations.** The arithmetic is the same, too. But four
# small batches start four times as many :term:`kernels <kernel>`, and small ones use a
# GPU less well.
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
# what was collected. ``step`` between them makes four steps, each with the gradients so
# far.
#
# The package keeps this in an object, a ``Step``. It takes the place of the last three
# calls, and ``fit`` calls it once for each batch. We train once with batches of 256, and
# once with ``accumulate=4`` and batches of 64. How far apart are the weights after it?

from gpulesson.step import Step
from gpulesson.training import fit

weights = []
for rows, parts in ((256, 1), (64, 4)):
    torch.manual_seed(0)
    model = Net(width=8, depth=12).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = Batches(images, labels, batch_size=rows, shuffle=False)
    each = Step(optimizer, accumulate=parts)
    fit(model, batches, loss_fn, optimizer, device, epochs=1, step=each)
    weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
print(f"difference: {difference(*weights):.0e} of the largest weight")

# %%
# Rounding again.
#
# Know when small batches are not the large one
# ---------------------------------------------
#
# There is an exception: :term:`batch normalisation`. It shifts and scales by the mean and
# the spread of *its* batch. Now we fill in ``norm``. ``GroupNorm`` does the same for each
# image by itself. We compute with float64, which has sixteen digits. For which of the
# three will the gradients differ?


def groups(width):
    return nn.GroupNorm(2, width)


images = images.double()
for name, norm in {
    "no norm": nn.Identity,
    "BatchNorm2d": nn.BatchNorm2d,
    "GroupNorm": groups,
}.items():
    torch.manual_seed(0)
    model = Net(8, depth=1, norm=norm).to(device, torch.float64)
    large, small = look(at_once, model)[0], look(accumulated, model)[0]
    print(f"{name:<12} {difference(large, small):.0e}")
images = images.float()

# %%
# With sixteen digits, what was rounding is all but gone, with two of the three models.
# With ``BatchNorm2d`` the difference is there to stay. The mean of 64 images is not the
# mean of 256, and no later division repairs that. **Accumulation is exact if each sample
# goes through the model by itself, and the loss is a plain mean.** With batch
# normalisation the small batch decides how noisy the means are. Batches of 64 are often
# large enough for it; batches of 2 or 4 are not. ``GroupNorm`` has no such problem. (A
# loss with :term:`class weights` is no plain mean: it divides by the weights of its own
# batch. And :term:`dropout` draws other numbers.)
#
# Compute activations again
# -------------------------
#
# .. _recompute:
#
# Leave at home what you can easily make again. Most of the memory holds results that
# ``backward`` will need. With :term:`activation checkpointing` a block keeps only its
# *input*. When ``backward`` comes to it, the block computes its results once more. One
# line changes:


class Recomputing(Net):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x.mean(dim=(2, 3)))


# %%
# (``use_reentrant=False`` chooses the newer of two ways, `which PyTorch recommends
# <https://docs.pytorch.org/docs/stable/checkpoint.html>`__.) How much less memory will it
# take, and how much more has to be computed? ``FlopCounterMode`` counts the :term:`FLOP`
# of products and convolutions, so that no noise disturbs us:

from torch.utils.flop_counter import FlopCounterMode


def gflop(run, model):
    with FlopCounterMode(display=False) as counter:
        run(model)
    return counter.get_total_flops() / 1e9


# %%
# Both models, with the same weights:

found = {}
for kind in (Net, Recomputing):
    torch.manual_seed(0)
    model = kind(width=8, depth=12).to(device)
    found[kind], mib = look(at_once, model)
    print(f"{kind.__name__:<12} {mib:6.1f} MiB, {gflop(at_once, model):5.1f} GFLOP")
print(f"difference: {difference(*found.values()):.0e}")

# %%
# The gradients are the same; on a real GPU, except for rounding. The peak is below half,
# and the arithmetic is about a third more. That is what to expect: a :term:`forward pass`
# is about a third of a step, and it is done twice. **You pay with time, and get memory.**
# It helps with a batch of any size, even with one single image that is too large.
#
# Choose blocks of several layers for it. If each block is a single layer, the input of
# every layer is kept, nearly as much as before. If the whole model is one block,
# ``backward`` begins by making all activations again, and nothing is saved.
#
# Use fewer bits
# --------------
#
# Pack everything into less space: numbers of two bytes, or of one, instead of four. There
# are three places for that. The first is the activations, by :term:`autocast`. The
# :term:`parameters <parameter>` stay as they are. Products and convolutions are computed,
# and kept, in :term:`bfloat16`, which has two bytes:


def with_autocast(model):
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_fn(model(images[:64]), labels[:64])
    loss.backward()


def without(model):
    model.zero_grad()
    step(model, images[:64], labels[:64])


model = Net(width=8, depth=12).to(device)
print(f"float32:  {look(without, model)[1]:5.1f} MiB")
print(f"autocast: {look(with_autocast, model)[1]:5.1f} MiB")

# %%
# About half. What stays in float32 are the parameters, their gradients and the
# :term:`optimizer state`; here they are tiny. (Autocast also makes a copy of each weight
# in bfloat16. Where the parameters fill the memory, it needs more, not less.)
#
# The second place is the model itself: ``model.to(torch.bfloat16)``. Then parameters,
# gradients and optimizer state are halved, too. But what happens to a weight of 1 when
# the :term:`optimizer` adds a thousandth?

for dtype in (torch.float32, torch.bfloat16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(100):
        weight += 0.001
    print(dtype, weight.item())

# %%
# Nothing, a hundred times. bfloat16 has about three digits, and after 1 comes 1.0078. The
# small changes of which training consists are rounded away. **Compute in bfloat16; keep
# the weights that the optimizer changes in float32.**
#
# The third place is the optimizer. Adam keeps two numbers of four bytes for each number
# of the model. 8-bit optimizers keep each in *one* byte, with a scale in float32 for each
# block of 256 numbers (`a paper of 2021 <https://arxiv.org/abs/2110.02861>`__ has the
# idea). They are in `bitsandbytes
# <https://huggingface.co/docs/bitsandbytes/reference/optim/optim_overview>`__ and in
# `torchao <https://github.com/pytorch/ao>`__. What does a model of a billion parameters
# need, without its activations?

numbers = 10**9
ways = {  # bytes for a parameter, its gradient, and the optimizer's state
    "float32, Adam": (4, 4, 4 + 4),
    "float32, 8-bit Adam": (4, 4, 1 + 1 + 2 * 4 / 256),  # with their scales
    "float32, SGD": (4, 4, 0),
    "bfloat16, Adam": (2, 2, 2 + 2),
}
for name, parts in ways.items():
    print(f"{name:<20} {sum(parts) * numbers / 2**30:5.1f} GiB")

# %%
# The 8-bit state takes a quarter of the state in float32. It saves much if the
# optimizer's state fills the memory, and nothing if the activations do.
#
# Rent a storage room, and count the drives
# -----------------------------------------
#
# The :term:`host` has memory, too. :term:`Offloading` stores there what is not needed at
# once: the activations, or the optimizer's state. PyTorch has a block for activations,
# ``save_on_cpu``. What do you expect of the peak?


def offloaded(model):
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        loss = loss_fn(model(images), labels)
    loss.backward()


model = Net(width=8, depth=12).to(device)
kept, moved = look(at_once, model)[1], look(offloaded, model)[1]
print(f"on the GPU: {kept:6.1f} MiB")
print(f"offloaded:  {moved:6.1f} MiB")

# %%
# Each tensor that ``backward`` needs goes over the bus, and in ``backward`` it comes
# back. The hooks of lesson 10 count the bytes. (A result that two layers need is sent
# twice.)

sent = []


def note(tensor):
    sent.append(tensor.nbytes)
    return tensor


with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    loss_fn(model(images), labels)
there_and_back = 2 * sum(sent)
print(f"there and back: {there_and_back / MIB:.1f} MiB")

# %%
# A bus of PCIe 4.0 moves `at most 16 billion bits a second
# <https://en.wikipedia.org/wiki/PCI_Express>`__ on each of its 16 lanes. Of 130 bits, 128
# are data. The GPU's own memory is much faster; here is that of an RTX 3060, from
# gpulesson's table. How long does the trip take, at least?

from gpulesson.planning.hardware.gpus import find

bus = 16e9 * 16 * 128 / 130 / 8  # bytes a second
for name, rate in {"bus": bus, "RTX 3060": find("RTX 3060").bandwidth}.items():
    print(f"{name:<9} {rate / 1e9:4.0f} GB/s: {there_and_back / rate * 1e3:5.1f} ms")

# %%
# **The bus is the slow road. Offload what is used seldom.** The optimizer's state is used
# once a step, however many small batches you accumulate. `ZeRO-Offload
# <https://www.deepspeed.ai/tutorials/zero-offload>`__ in the library DeepSpeed leaves it
# on the host for good: the CPU makes the step, gradients go there, and parameters come
# back. ``CPUOffloadPolicy`` in `PyTorch's FSDP
# <https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html>`__, which is in
# the next lesson, does the same, and keeps the parameters there as well. For activations,
# computing them again is often quicker than fetching them.
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
#    Learners take "use a smaller batch" for the answer to everything. Show two plans side
#    by side, one filled by activations and one by optimizer state, and ask for the remedy
#    before you show the table below.
#
# Let a plan compare the ways, before you rent
# --------------------------------------------
#
# .. _compare-plans:
#
# Now a run of the usual size: photographs of 224 × 224 pixels in three colours, 64
# channels. Will it train on an RTX 3060, with batches of 96? You need none to know.
# ``gpulesson.plan`` runs a few steps of your program on the practice GPU, notes what each
# operation allocates, and works out the rest. With ``dry=True`` it follows only the
# :term:`shapes <shape>`, and computes nothing, so it takes seconds. It wants a function
# that trains, with the batch size as its argument:

practice.stop()


def training(kind=Net, bf16=False, parts=1, width=64):
    def train(batch_size):
        model = kind(width, depth=4, colours=3).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        images = torch.empty(batch_size, 3, 224, 224).to("cuda")
        labels = torch.zeros(batch_size, dtype=torch.int64).to("cuda")
        for _ in range(2):
            for _ in range(parts):
                with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                    loss = loss_fn(model(images), labels) / parts
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


# %%
# First as it is. What fills the memory?

options = {"gpu": "RTX 3060", "steps": 2, "dry": True}
plan = gpulesson.plan(training(), batch_size=96, **options)
on_gpu = plan.gpus[0]
print("RTX 3060:", on_gpu.verdict.answer)
print("largest batch:", on_gpu.largest_batch)
for kind, nbytes in plan.peak.by_kind.items():
    print(f"{kind:<16} {nbytes / 2**30:6.2f} GiB")

# %%
# The activations. (What is *temporary* is there for a moment only.) So an 8-bit optimizer
# would save nothing. A plan for each of the other ways, and for two together:

plans = {"as it is": plan}
for name, batch, way in [
    ("accumulate 4 × 24", 24, {"parts": 4}),
    ("recompute", 96, {"kind": Recomputing}),
    ("autocast", 96, {"bf16": True}),
    ("both", 96, {"kind": Recomputing, "bf16": True}),
]:
    plans[name] = gpulesson.plan(training(**way), batch_size=batch, **options)

# %%
# Peak, answer, largest batch and least time of a step, side by side:

# fold: Print the table
print(f"{'':<18} {'peak':>9}  {'RTX 3060':<12} {'largest batch':>13} {'at least':>9}")
for name, plan in plans.items():
    on_gpu, size = plan.gpus[0], plan.replay.peak_allocated / 2**30
    least = f"{on_gpu.floor.seconds * 1e3:.0f} ms"
    print(
        f"{name:<18} {size:>5.2f} GiB  {on_gpu.verdict.answer:<12} "
        f"{on_gpu.largest_batch:>13} {least:>9}"
    )

# %%
# Compare the rows:
#
# - *Accumulated*, the peak is about a fourth. The largest batch is the limit for *one
#   small batch*; you can add up as many of those as you like. (Each row's time is for 96
#   images.)
# - *Recompute* lowers the peak, and a step takes longer.
# - *Autocast* halves the peak, and here it also shortens the step: this GPU computes
#   faster in bfloat16, and there are half as many bytes to move.
# - *Both* together save more than either of them.
#
# The answer *close* means: it would fit, but less than 15 % of what CUDA's own
# :term:`context` leaves would stay free. The largest batch keeps these 15 % free.
# The times are what a step takes *at least*; a real one takes longer. A plan has a
# picture, too, of the memory over one step. Where would you expect the peak?

# fold: Draw two of the plans
fig, axes = plt.subplots(
    2, sharex=False, sharey=True, figsize=(7, 6.4), layout="constrained"
)
for ax, name in zip(axes, ("as it is", "recompute"), strict=True):
    plans[name].plot(ax)
    ax.set_title(name)
fig.suptitle("The memory over one step: as it is, and with blocks computed again")
plt.show()

# %%
# As it is, the activations rise until the forward pass ends, and fall in the
# :term:`backward pass`. With recomputing only the inputs of the blocks are kept. In the
# backward pass there is a small hill for each block, whose results are made again.
#
# **The cheapest way that fits is the best one: autocast first, if the GPU is fast in
# bfloat16, then smaller batches, then recomputing.**
#
# Now a model whose parameters fill the memory: layers of 8,192 × 8,192 numbers, and few
# rows. Will the same ways help? First with Adam, then with SGD, which keeps no state:


def wide(optimizer):
    def train(batch_size):
        with torch.device("cuda"):
            model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(8)))
            rows = torch.empty(batch_size, 8192)
        updates = optimizer(model.parameters(), lr=0.01)
        for _ in range(2):
            model(rows).sum().backward()
            updates.step()
            updates.zero_grad()

    return train


for optimizer in (torch.optim.Adam, torch.optim.SGD):
    plan = gpulesson.plan(wide(optimizer), batch_size=64, **options)
    kinds = plan.peak.by_kind.items()
    parts = ", ".join(f"{kind} {n / 2**30:.1f}" for kind, n in kinds if n > 2**26)
    print(f"{optimizer.__name__:<5} {parts} GiB")

# %%
# (Adam's *temporary* numbers are there while ``step`` computes.) A smaller batch would
# change nothing here, and another optimizer changes a lot. So this is how to choose:
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
#      - a GPU that is used less well; batch normalisation sees small batches
#    * - activations
#      - activation checkpointing
#      - about a third more arithmetic
#    * - optimizer state
#      - an 8-bit optimizer, or one without state
#      - a library more; SGD wants another learning rate
#    * - optimizer state
#      - offloading
#      - a slow step on the CPU, and gradients and parameters over the bus
#    * - parameters and gradients
#      - a smaller model, a larger GPU, several GPUs, or offloading
#      - quality, money, or time
#
# For a script of your own there is a command. It runs the script's first steps as they
# are, and needs no change in it:
#
# .. code-block:: bash
#
#    python -m gpulesson plan --gpu T4 train.py
#
# It prints the same facts: what fills the memory at the peak and which lines of yours
# made it, whether it fits, the largest batch, and the least time of a step. With
# ``--batch-size 256`` it plans for another batch. :doc:`Will it fit? </plan>` shows a
# whole answer, and says what a plan cannot know.
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
#      if each sample goes through the model by itself. Batch normalisation breaks that.
#    - Activation checkpointing keeps the inputs of blocks, and computes the rest twice.
#    - Autocast saves up to half of the activations. Weights that an optimizer changes
#      stay in float32; its state can have 8 bits.
#    - Offloading trades the GPU's memory for trips over a slow bus.
#    - First see what fills the memory, then choose. A plan compares the ways before there
#      is a GPU.
#
# **Next:** :doc:`/lessons/14_many_gpus` divides the work among several GPUs.

"""
13 · When it does not fit
=========================

Read the out-of-memory error, find what fills the memory, and choose a way to need less.

.. overview::
   :teaching: 38
   :exercises: 15

   .. objectives::

      - Read each number of the error, and catch it without keeping its memory.
      - Train with a large batch in small parts, with clipping and a scheduler, and say
        when it is not the same.
      - Find what fills the memory, and choose the way that helps against it.

   .. prereq::

      - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training step
      - :doc:`Lesson 10 </lessons/10_where_did_my_memory_go>`: what fills the memory, and
        the peak
"""

# %%
# Your model and its :term:`batch` need more memory than your :term:`GPU` has. PyTorch
# gets it from :term:`CUDA`, and counts it. Our large batch has 4,096 images of
# :doc:`lesson 5 </lessons/05_fashion_mnist>`. (``gpulesson`` is the package of this
# course: :doc:`/setup`.)
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
data = load_fashion_mnist()
images = (data.train_images[:4096].float() / 255).flatten(1).to(device)
labels = data.train_targets[:4096].to(device)
print(tuple(images.shape), "on", images.device)

# %%
# Each image is a row of 784 numbers. The model makes 64 of them, and sends them through
# 12 blocks of two layers each. (``norm`` is for later; ``nn.Identity`` does nothing.)


def make_block(width, norm):
    layers = []
    for _ in range(2):
        layers += [nn.Linear(width, width), norm(width), nn.ReLU()]
    return nn.Sequential(*layers)


class Net(nn.Module):
    def __init__(self, depth=12, width=64, norm=nn.Identity):
        super().__init__()
        self.first = nn.Linear(784, width)
        self.blocks = nn.ModuleList(make_block(width, norm) for _ in range(depth))
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


# %%
# Read the error before you change anything
# -----------------------------------------
#
# .. _out-of-memory:
#
# PyTorch can be told to use only a part of a GPU. We begin with 64 images, allow 24 MiB
# more than is reserved then, and take all images at once. That is too much. (The
# recorded H200, with PyTorch 2.11, also kept some 65 MiB for matrix products. PyTorch
# 2.15 gives them back after each product.) What will the error tell us?

MIB = 2**20
loss_fn = nn.CrossEntropyLoss()
torch.manual_seed(0)
model = Net().to(device)
loss_fn(model(images[:64]), labels[:64]).backward()

total = torch.cuda.get_device_properties(device).total_memory
allowed = torch.cuda.memory_reserved() + 24 * MIB
torch.cuda.set_per_process_memory_fraction(allowed / total)
try:
    loss_fn(model(images), labels).backward()
except torch.OutOfMemoryError as error:
    print(str(error).split(" If reserved")[0].replace(". ", ".\n"))

# %%
# Read it line by line:
#
# - *Tried to allocate* is what PyTorch asked the GPU for: a :ref:`segment
#   <fragmented>`, one piece for several :term:`tensors <tensor>`. Here each needs 1
#   MiB, and a segment for such tensors has 2. Your program needs more than that.
# - *Total capacity* and *free* are about the whole GPU, with other programs on it.
# - *This process has … in use* is your part of it, on a real GPU with CUDA's own
#   memory, the :term:`context`.
# - *Allowed* is there only because we have set a limit.
# - *Allocated by PyTorch* is what your tensors hold.
# - *Reserved by PyTorch but unallocated* are the parts of segments without a tensor.
#   (The practice GPU has no segments: in its error this is 0.) If this is the large
#   number, you have :ref:`fragmentation <fragmented>`. If not, look at *in use*: near
#   the capacity, your tensors really need the memory; far below it, another program has
#   the rest.
#
# .. question:: Allowed 50 MiB, allocated 49, tried 2: how much does the program need?
#
#    - 51 MiB.
#
#      No. That would be enough for this tensor. Nobody knows what comes behind it.
#
#    - More than it is allowed, and the error cannot say how much.
#
#      Yes. It ended at the first tensor that did not fit. The peak may be far above.
#
#    - 2 MiB more than it is allowed.
#
#      No. 2 MiB is what PyTorch asked for at once, not what is missing in all.
#
# Suppose that you catch the error, and go on with a smaller batch. How much is
# allocated inside the ``except``, and how much after it?


def show(when):
    print(f"{when:<14} {torch.cuda.memory_allocated() / MIB:6.1f} MiB allocated")


show("before:")
try:
    loss_fn(model(images), labels).backward()
except torch.OutOfMemoryError:
    show("in except:")
show("after except:")
torch.cuda.set_per_process_memory_fraction(1.0)

# %%
# While the error is handled, it remembers each function that was running, with its
# variables. So your :term:`activations <activation>` are still there. Only after the
# ``except`` are they gone. **Leave the** ``except`` **first, then try again with
# less.**
#
# Look at what fills the memory, then choose
# ------------------------------------------
#
# .. _compare-plans:
#
# Which way helps depends on what fills the memory. Call this after a few :term:`steps
# <step>` of your own script, with a batch that fits:


def state_mib(optimizer):
    kept = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.nbytes for t in kept if torch.is_tensor(t)) / MIB


def what_fills(model, optimizer):
    """Print, in MiB, what is in the memory when most of it is used."""
    trained = [p for p in model.parameters() if p.requires_grad]
    mib = {
        "parameters": sum(p.nbytes for p in model.parameters()) / MIB,
        "gradients": sum(p.nbytes for p in trained) / MIB,
        "optimizer state": state_mib(optimizer),
    }
    mib["the rest"] = torch.cuda.max_memory_allocated() / MIB - sum(mib.values())
    print(", ".join(f"{name} {size:.1f}" for name, size in mib.items()))


# %%
# *The rest* are the batch, activations, what a step needs for a moment, and on the
# recorded GPU what PyTorch's libraries kept, the same for each model. We take our
# narrow model with 4,096 rows, and a wide one with 64. What fills the memory of each?
# (``rise`` is for later.)


def rise(run, model):
    """How far the memory rises while it runs, in MiB."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(model)
    return (torch.cuda.max_memory_allocated() - before) / MIB


for name, rows, size in [("narrow", 4096, (12, 64)), ("wide", 64, (2, 1024))]:
    x, y = images[:rows], labels[:rows]
    model = Net(*size).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    print(name, end=": ")
    what_fills(model, optimizer)

# %%
# With many rows it is activations, in *the rest*. In the wide model it is
# :term:`parameters <parameter>`, and what comes with them: :term:`gradients <gradient>`
# and :term:`optimizer state`. Compare their sum with *the rest*, and in the
# recorded run first take from that what the libraries kept, about 65 MiB. **Find
# your own case first: a way that lowers the other share helps little.** The ways, in
# the order of the sections below:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 26 37 37
#
#    * - What fills the memory
#      - What helps
#      - What you pay
#    * - activations
#      - smaller batches, accumulated
#      - some time; :term:`batch normalisation` sees small batches
#    * - activations
#      - :term:`activation checkpointing`
#      - up to a third more arithmetic
#    * - activations
#      - :term:`autocast`
#      - digits, which training seldom needs
#    * - activations
#      - :term:`offloading` them
#      - two copies over the bus, in each step
#    * - optimizer state
#      - another :term:`optimizer`, or one with 8 bits
#      - another :term:`learning rate`, or a library more
#    * - gradients and optimizer state, in fine-tuning
#      - LoRA
#      - the change has fewer numbers, and may learn less
#    * - parameters
#      - a smaller model, a larger GPU, or several GPUs
#      - quality, or money
#
# You have no GPU yet? :doc:`/plan` says what will fill it, from your script alone.
#
# Take several small batches for one step
# ---------------------------------------
#
# .. _accumulate:
#
# 1,024 rows would fit. But a batch of 1,024 is not one of 4,096. Its gradients are
# noisier, and your learning rate was chosen for the large one. So call ``backward`` for
# four small batches, and ``optimizer.step`` once: one step of training. That works
# because ``backward`` does not replace gradients. It *adds* to them. This is
# :term:`gradient accumulation`. How far does the memory rise, both ways?


def at_once(model):
    model.zero_grad()
    loss_fn(model(images), labels).backward()


def accumulated(model):
    model.zero_grad()
    for x, y in zip(images.chunk(4), labels.chunk(4), strict=True):
        loss = loss_fn(model(x), y)
        loss = loss * len(y) / len(labels)  # its share in the mean of all
        loss.backward()


model = Net().to(device)
print(f"4,096 at once: {rise(at_once, model):6.1f} MiB")
print(f"4 times 1,024: {rise(accumulated, model):6.1f} MiB")

# %%
# A fourth of the activations. (A real GPU also needs :doc:`room for a matrix product
# </lessons/10_where_did_my_memory_go>`.)
#
# In your script there is a ``DataLoader``, and perhaps clipping and a
# :term:`scheduler`. The last batch may be shorter, and the last group incomplete. So
# take the *sum* of the :term:`losses <loss>`, count the rows, and divide when the group
# is complete, before you clip:

from torch.nn.utils import clip_grad_norm_

sum_of_losses = nn.CrossEntropyLoss(reduction="sum")


def train_in_groups(model, loader, optimizer, scheduler, group=4):
    rows = 0
    for i, (x, y) in enumerate(loader, start=1):
        sum_of_losses(model(x.to(device)), y.to(device)).backward()
        rows += len(y)
        if i % group == 0 or i == len(loader):  # the group is complete, or the last
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= rows
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()  # once a step of the optimizer
            optimizer.zero_grad()
            rows = 0


# %%
# Is it the large batch? We train for an :term:`epoch` of 2,500 images: in groups of
# four batches of 256, then with batches of 1,024 in a plain loop, both in the same
# order. We compute in float64, with sixteen digits, so that rounding hides nothing:

from torch.utils.data import DataLoader, TensorDataset


def train_plain(model, loader, optimizer, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x.to(device)), y.to(device)).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()


# %%
# Its scheduler halves the learning rate with each step. Which rate is left, both times?

pixels = (data.train_images[:2500].double() / 255).flatten(1)
dataset = TensorDataset(pixels, data.train_targets[:2500])
weights = []
for train, size in [(train_in_groups, 256), (train_plain, 1024)]:
    torch.manual_seed(0)
    model = Net(depth=2).to(device, torch.float64)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, size, shuffle=True, generator=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, loader, optimizer, scheduler)
    print(f"{len(loader):2} batches, learning rate now {scheduler.get_last_lr()[0]}")
    weights.append(nn.utils.parameters_to_vector(model.parameters()))
print(f"largest difference of a weight: {(weights[0] - weights[1]).abs().max():.0e}")

# %%
# That is rounding. **One step for each group, from sums divided by all its rows: that
# is the large batch, with a fourth of the activations.** A scheduler that must know its
# steps has ``math.ceil(len(loader) / group)`` in an epoch. (If you clip with
# a ``GradScaler``, call ``unscale_`` before it.)
#
# .. question:: You add up mean losses of four full batches, and divide by nothing. Then?
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
# Know when small batches are not the large one
# ---------------------------------------------
#
# Batch normalisation shifts and scales by the mean and the spread of *its* batch.
# ``GroupNorm`` does the same for each row by itself. We fill in ``norm``, again with
# float64. For which of the two will the gradients differ?


def group_norm(width):
    return nn.GroupNorm(2, width)


images = images.double()
for norm in (nn.BatchNorm1d, group_norm):
    torch.manual_seed(0)
    model = Net(depth=2, norm=norm).to(device, torch.float64)
    at_once(model)
    large = [p.grad.clone() for p in model.parameters()]
    accumulated(model)
    parts = [p.grad for p in model.parameters()]
    change = max((a - b).abs().max() for a, b in zip(large, parts, strict=True))
    print(f"{norm.__name__:<12} largest difference of a gradient: {change:.0e}")
images = images.float()

# %%
# With ``BatchNorm1d`` it is not rounding: the mean of 1,024 rows is not that of 4,096,
# and no later division repairs that.
#
# Another exception is a loss that leaves out rows. ``CrossEntropyLoss`` does so with
# the label −100, its ``ignore_index``; language models mark padding so. Here it is the
# first 40 of 128 rows, in four parts. Which of the two gives the loss of the whole?

scores = torch.randn(128, 10, device=device)
targets = labels[:128].clone()
targets[:40] = -100
parts = list(zip(scores.chunk(4), targets.chunk(4), strict=True))

means = [loss_fn(s, t).item() for s, t in parts]
sums = [sum_of_losses(s, t).item() for s, t in parts]
counted = (targets != -100).sum().item()
print(f"all rows at once:       {loss_fn(scores, targets).item():.4f}")
print(f"mean of the four means: {sum(means) / 4:.4f}")
print(f"sums, by the counted:   {sum(sums) / counted:.4f}")

# %%
# The first part is all padding. Its mean is zero divided by zero, *nan*. Its sum is 0. So
# count what the loss counts: in the loop above, ``rows += (y != -100).sum()``; with
# :term:`class weights`, ``weights[y].sum()``.
# **Accumulation is exact if each row goes through the model by itself, and you divide by
# what the loss counts.** (:term:`Dropout` draws other numbers, too.)
#
# Compute activations again
# -------------------------
#
# .. _recompute:
#
# With activation checkpointing a block keeps only its *input*. When ``backward`` comes
# to it, the block computes its results once more. One line changes.
# (``use_reentrant=False`` is `what PyTorch recommends
# <https://docs.pytorch.org/docs/stable/checkpoint.html>`__.)

from torch.utils.checkpoint import checkpoint


class Recomputing(Net):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x)


# %%
# How much less memory will it take, and how much more has to be computed?
# ``FlopCounterMode`` counts the :term:`FLOP` of matrix products; a GFLOP is a billion
# of them. And what does a batch normalisation do that is computed twice?

from torch.utils.flop_counter import FlopCounterMode

for kind in (Net, Recomputing):
    model = kind().to(device)
    mib = rise(at_once, model)
    with FlopCounterMode(display=False) as counter:
        at_once(model)
    gflop = counter.get_total_flops() / 1e9
    print(f"{kind.__name__:<12} {mib:5.1f} MiB, {gflop:.2f} GFLOP")

norm = nn.BatchNorm1d(784).to(device)
checkpoint(norm, images, use_reentrant=False).sum().backward()
print("one batch, counted by BatchNorm1d:", norm.num_batches_tracked.item())

# %%
# The peak falls, and the arithmetic is about a quarter more. (If all is computed again,
# it is a third: the :term:`forward pass` is about a third of a step.) **You pay with
# time, and get memory.** It helps with a batch of any size, even of one image. But
# ``BatchNorm`` counts each batch twice in its running averages. Where would you expect
# the peak?

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
# :term:`backward pass`. With recomputing there is a small hill for each block in the
# backward pass. So choose blocks of several layers. If each layer is a block, every input
# is kept. If the whole model is one, all activations are made again at once.
#
# Use fewer bits
# --------------
#
# With autocast the parameters stay in float32. Matrix products and convolutions are
# computed in :term:`bfloat16`, which has two bytes instead of four, and so their
# results are kept. Will the rise be half?


def with_autocast(model):
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_fn(model(images), labels)
    loss.backward()


model = Net().to(device)
print(f"float32:  {rise(at_once, model):5.1f} MiB")
print(f"autocast: {rise(with_autocast, model):5.1f} MiB")

# %%
# Not quite. The results of the layers are half as large. But autocast also makes a copy
# of each weight, and here of the images. It saves half only where results of products
# and convolutions fill the memory; :term:`softmax`, losses and some more `use float32
# <https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32>`__.
#
# Which GPU computes in bfloat16? Those of :term:`compute capability` 8.0 and up: A100,
# A10, L4, H100, and from the RTX 30 series on (`NVIDIA's table
# <https://nvidia.github.io/TransformerEngine/support_matrix.html>`__). A T4 has 7.5:
# use float16, which also needs :term:`gradient scaling`. :doc:`Lesson 12
# </lessons/12_speed_ladder>` has its loop.
#
# Why not the whole model, with ``model.to(torch.bfloat16)``? It has about three digits,
# and after 1 comes 1.0078. An optimizer that adds a thousandth to 1 changes nothing:

# fold: Add a thousandth to 1, a hundred times
for dtype in (torch.float32, torch.bfloat16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(100):
        weight += 0.001
    print(dtype, weight.item())

# %%
# **Compute in bfloat16; keep the weights that the optimizer changes in float32.**
#
# Store activations on the host
# -----------------------------
#
# The :term:`host` has memory, too. Offloading stores there what is not needed at once.
# For activations PyTorch has one line. What do you expect of the peak?


def offloaded(model):
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        loss = loss_fn(model(images), labels)
    loss.backward()


model = Net().to(device)
print(f"on the GPU: {rise(at_once, model):5.1f} MiB")
print(f"offloaded:  {rise(offloaded, model):5.1f} MiB")

# %%
# **Each tensor that** ``backward`` **needs goes over the bus and comes back, in each
# step.** PCIe 4.0 with 16 lanes, a usual bus, moves `less than 32 billion bytes a
# second <https://en.wikipedia.org/wiki/PCI_Express>`__.
#
# Keep less beside each parameter
# -------------------------------
#
# Now a wide model. Adam keeps two numbers for each of its parameters.
# Which optimizers keep less?

for kind in (torch.optim.AdamW, torch.optim.Adafactor, torch.optim.SGD):
    model = Net(depth=2, width=1024).to(device)
    optimizer = kind(model.parameters(), lr=1e-3)
    loss_fn(model(images[:64]), labels[:64]).backward()
    optimizer.step()
    print(f"{kind.__name__:<10} {state_mib(optimizer):5.1f} MiB")

# %%
# SGD without momentum keeps nothing. `Adafactor
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adafactor.html>`__ (from
# PyTorch 2.5 on) keeps a number for each row and each column of a weight. Both want
# another learning rate. To keep Adam's two numbers in about a byte each there is
# `bitsandbytes <https://huggingface.co/docs/bitsandbytes/reference/optim/adamw>`__, and
# to keep them on the CPU, `ZeRO-Offload
# <https://www.deepspeed.ai/tutorials/zero-offload>`__.
#
# And to adapt a model that others have trained, *fine-tuning*, you need not change all
# of its numbers. `LoRA <https://arxiv.org/abs/2106.09685>`__ freezes a layer, and adds
# a small change: a ``Linear`` to 8 numbers, and one back. Only these two are trained.


class LowRank(nn.Module):
    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first there is no change

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


# %%
# Here it replaces each ``Linear`` in the blocks of an existing model. Does that compute
# the same as before, and what do gradients and state take?

model = Net(depth=2, width=1024).to(device)
before = model(images[:64])
model.requires_grad_(False)  # frozen
for name, layer in list(model.blocks.named_modules()):
    if isinstance(layer, nn.Linear):
        # set_submodule: from PyTorch 2.5 on
        model.blocks.set_submodule(name, LowRank(layer).to(device))
print("the same results:", torch.equal(before, model(images[:64])))

optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
loss_fn(model(images[:64]), labels[:64]).backward()
optimizer.step()
gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
print(f"gradients {gradients / MIB:.1f} MiB, state {state_mib(optimizer):.1f} MiB")

# %%
# **A frozen number needs neither a gradient nor optimizer state.** What stays are the
# layers themselves, and activations, for ``backward`` still passes through them. (Leave
# out ``nn.MultiheadAttention``, which reads the weight of its ``Linear`` and does not
# call it. `PEFT <https://huggingface.co/docs/peft>`__ knows what to do.)
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
#    remedy before you show the table.
#
# See what each way costs in time
# -------------------------------
#
# Only a real GPU can say that. We use layers of 1,024 numbers, so that it has work:

from time import perf_counter

ways = {"as it is": (Net, at_once), "accumulated": (Net, accumulated)}
ways |= {"recomputed": (Recomputing, at_once), "autocast": (Net, with_autocast)}
ways |= {"offloaded": (Net, offloaded)}
if "simulated" in torch.cuda.get_device_name():
    print("a practice GPU has no times")
    ways = {}
for name, (kind, run) in ways.items():
    model = kind(width=1024).to(device)
    run(model)  # the first time takes longer
    mib = rise(run, model)
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(20):
        run(model)
    torch.cuda.synchronize()
    print(f"{name:<12} {mib:6.0f} MiB {(perf_counter() - start) / 20:.4f} s a step")

# %%
# In the recorded run recomputing takes more time than its extra arithmetic explains: the
# count is of products alone, and the rest of a block is computed twice as well.
#
# Offloading is by far the slowest. As written here it copies to
# :term:`pageable memory`, and Python waits for each copy.
# ``save_on_cpu(pin_memory=True)`` copies to :term:`pinned memory` (:doc:`lesson 9
# </lessons/09_feeding_the_gpu>`).
#
# And a language model, measured by others:
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
# Accumulation and recomputing cost time. Autocast brought speed, and saved little
# memory. **The cheapest way that fits is the best one. Against activations, begin with
# autocast if the GPU has bfloat16. Then measure both: smaller batches, and recomputing.**
# Which is faster depends on how busy small batches still keep your GPU.
#
# Compute a large loss in parts
# -----------------------------
#
# A language model gives a score for each word that it knows, at each place of a text.
# With 50,000 words these scores are often the largest activation. So take some places
# at a time, and compute their scores again in the backward pass. Then the scores of all
# places are never in memory together:

# fold: Compute the loss of 1,024 places at once, and in eight parts
head = nn.Linear(64, 8192).to(device)  # 8,192 words
places = torch.randn(1024, 64, device=device, requires_grad=True)
words = torch.randint(8192, (1024,), device=device)


def part_of_loss(x, y):
    return sum_of_losses(head(x), y) / len(words)


def whole(head):
    part_of_loss(places, words).backward()


def in_parts(head):
    pairs = zip(places.chunk(8), words.chunk(8), strict=True)
    sum(
        checkpoint(part_of_loss, *pair, use_reentrant=False) for pair in pairs
    ).backward()


for run in (whole, in_parts):
    head.zero_grad()
    print(f"{run.__name__:<8} {rise(run, head):5.1f} MiB", end=", ")
    print(f"length of a gradient {head.bias.grad.norm():.5f}")

# %%
# The gradient is the same. PyTorch 2.15 has this in one call,
# ``torch.nn.functional.linear_cross_entropy``, if you pass it
# ``options=torch.nn.LinearCrossEntropyOptions()``. (`Liger
# <https://github.com/linkedin/Liger-Kernel>`__ has one written for GPUs.)
#
# .. fold:: Going further: what a parameter takes, and what to compute again
#
#    In float32, Adam needs 16 bytes for each parameter: four for itself, four for its
#    gradient, eight of the optimizer. While a step runs under autocast, there may be a
#    copy of two bytes, too: `18 bytes
#    <https://huggingface.co/docs/transformers/v5.14.0/model_memory_anatomy>`__ in all.
#
#    A block may also keep what is expensive, such as matrix products, and compute only
#    the rest again. ``create_selective_checkpoint_contexts`` takes a list of what to
#    keep (`its manual <https://docs.pytorch.org/docs/stable/checkpoint.html>`__).
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
#    Each part counts by its share of the rows, so a shorter last part does no harm, and
#    there is one ``step`` after all parts of a batch. 4,096 rows at a time do not fit;
#    with parts of 1,024 and of 256 rows the model learns the same, except for rounding.
#
# .. keypoints::
#
#    - The error says what PyTorch asked for at last, not what the program needs. Leave
#      the ``except`` before you try again.
#    - Add up sums of losses, divide by all rows of the group, then clip and step: that
#      is the large batch. Batch normalisation breaks it.
#    - First see what fills the memory. Activations: autocast, accumulation, recomputing.
#      Optimizer state: another optimizer, 8 bits, LoRA.
#
# **Next:** :doc:`/lessons/14_many_gpus` divides the work among several GPUs.

"""
12 · The speed ladder
=====================

Start from a script as many people write it, and make its training faster, one measured
change at a time.

.. overview::
   :teaching: 35
   :exercises: 15

   .. objectives::

      - Make one change at a time, and keep it only if it is faster than chance explains.
      - Compare runs whose losses must differ by a fixed accuracy.
      - Train in mixed precision, in float16 with a gradient scaler where it is needed.

   .. prereq::

      - :doc:`Lesson 9 </lessons/09_feeding_the_gpu>`, for the ways to feed a model
      - :doc:`Lesson 11 </lessons/11_profile_first>`, for reads that wait
"""

# %%
# There are many tips for speed. Which of them help *your* training? Here you find out,
# with the network of :doc:`lesson 5 </lessons/05_fashion_mnist>`. We go up as on a
# ladder: each rung is **one** change, and it stays only if it helps on this machine. The
# code decides, and prints why. So your ladder may have other rungs than this page.

import statistics
import sys
import time
import warnings

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms.functional import to_tensor

from gpulesson.capture import captured_step
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import synchronize

# %%
# A :term:`GPU` gets more images, so that its :term:`epochs <epoch>` are long enough to be
# measured. Of the training images, 2,000 are kept back as :term:`held-out data`, to
# choose settings with.

# fold: Choose the device, and load the images
warnings.filterwarnings("ignore", ".*no CUDA graphs")  # the page says it
torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()

count = 1280 if device.type == "cpu" else 20480
count = min(count, len(data.train_images) - 2000) // 256 * 256
images, labels = data.train_images[:count], data.train_targets[:count]
floats = images.float() / 255
some = slice(count, count + 2000)
held_out = data.train_images[some].to(device), data.train_targets[some].to(device)
test = data.test_images[:4000].to(device), data.test_targets[:4000].to(device)

print(f"{count} training images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Write one loop with switches
# ----------------------------
#
# Everything that we change is a switch of one function. The first switch is the feed. The
# slow script makes a :term:`tensor` of each picture when it is asked for it:


class Pictures(Dataset):
    """What torchvision's datasets do."""

    def __len__(self):
        return len(images)

    def __getitem__(self, index):
        return to_tensor(Image.fromarray(images[index].numpy())), int(labels[index])


# %%
# The fast feed, ``Batches``, picks all rows of a :term:`batch` at once, by their indices,
# on the :term:`device`. Both draw their order from one generator, so every rung sees the
# same batches.

order = torch.Generator()


def make_batches(feed, size):
    if feed == "indices":
        here, there = floats.to(device), labels.to(device)
        return Batches(here, there, batch_size=size, shuffle=True, generator=order)
    sampler = RandomSampler(Pictures(), generator=order)
    return DataLoader(Pictures(), batch_size=size, sampler=sampler)


# %%
# One training :term:`step` is the same five calls as ever. It returns its :term:`loss`
# without reading it:

loss_fn = nn.CrossEntropyLoss()


def make_step(model, optimizer, bf16):
    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# %%
# The function ``build`` puts this together. It returns a fresh model, and a function that
# trains it for one epoch. Its defaults *are* the slow script: single pictures, batches of
# 64, Adam, ``loss.item()`` in every step.


# fold: Build a model and an epoch from the switches
def build(
    seed, *, feed="pictures", read=True, fused=None, graph=False, compiled=False,
    batch=64, lr=1e-3, triangle=False, epochs=5, bf16=False, network=None,
):  # fmt: skip
    """A fresh model, and a function that trains it for one epoch."""
    torch.manual_seed(seed)
    model = (network() if network else MLP(784, 128, 64, 10)).to(device)
    rate = torch.tensor(lr, device=device) if graph else lr  # a graph reads a tensor
    optimizer = torch.optim.Adam(
        model.parameters(), lr=rate, fused=fused, capturable=graph
    )
    batches = make_batches(feed, batch)
    forward = torch.compile(model) if compiled else model
    step = make_step(forward, optimizer, bf16)
    if graph:
        example = [part.to(device) for part in next(iter(batches))]
        amp = "bf16" if bf16 else None
        step = captured_step(forward, loss_fn, optimizer, *example, amp=amp)
        if step.why_plain:
            raise NotImplementedError(step.why_plain)
    schedule = None
    if triangle:
        schedule = triangular(optimizer, lr, epochs * len(batches))

    def epoch(number):
        order.manual_seed(1000 * seed + number)
        losses = []
        for inputs, targets in batches:
            loss = step(inputs.to(device), targets.to(device))
            if schedule:
                schedule.step()
            losses.append(loss.item() if read else loss)
        return losses if read else torch.stack(losses).tolist()

    return model, epoch


# %%
# Keep only what beats chance
# ---------------------------
#
# Time the same epoch twice, and you get two numbers. So a change has to gain more than
# they differ. Each rung trains three things in turns, five times over: the ladder so
# far, the ladder so far *again*, and the ladder with the change. The second is the
# *control*: it shows how far two times differ by chance. **A rung stays if it computes
# the same losses, and its ratios lie below all ratios of the control.** (One of the five
# may be an exception.)
#
# On a GPU we read the clock. On a CPU one thread computes, and we count the time that the
# processor worked for it, so that other programs count less.

# fold: Measure a change in turns, and keep it if it beats the control

# Windows counts a thread's time too coarsely
own_time = device.type == "cpu" and sys.platform != "win32"
clock = time.thread_time if own_time else time.perf_counter
ladder = {}  # the switches that stay
record = []  # what was found: name, ratios of the rung, ratios of its control, verdict


def in_turns(old, new, rounds=5, repeat=1):
    """The ratios of new to old, and of old again to old, one of each a round.

    Each time is the fastest of `repeat`, as other programs make times only longer.
    """
    ratios, control = [], []
    calls = [("old", old), ("again", old), ("new", new)]
    for _ in range(rounds):
        took = {name: min(timed(fn)[0] for _ in range(repeat)) for name, fn in calls}
        ratios.append(took["new"] / took["old"])
        control.append(took["again"] / took["old"])
        calls = calls[1:] + calls[:1]  # another one begins
    return ratios, control


def timed(fn, *arguments):
    """Seconds that a call takes, and its result."""
    synchronize(device)
    start = clock()
    result = fn(*arguments)
    synchronize(device)
    return clock() - start, result


def by_chance(ratios, control):
    """Whether more than one ratio is among those of the control, or above."""
    return sorted(ratios)[-2] >= min(control)


def spread(ratios):
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def report(name, ratios, control, more, verdict):
    record.append((name, ratios, control, verdict))
    middle = statistics.median(ratios)
    print(f"{name:<24} {middle:5.2f} × the time ({spread(ratios)}), {more}")
    print(f"{'':<24} control {spread(control)}: {verdict}")


def not_here(name, error):
    reason = (str(error).strip().split("\n")[0] or type(error).__name__)[:60]
    print(f"{name:<24} not here: {reason}")


def rung(name, **change):
    trial = {**ladder, **change}
    try:
        old, new = build(0, **ladder)[1], build(0, **trial)[1]
        once, losses = timed(new, 0)
        usual, expected = timed(old, 0)
    except Exception as error:  # no compiler, no graphs: whatever it is
        return not_here(name, error)
    apart = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    repeat = 2 if "feed" in ladder else 1
    ratios, control = in_turns(lambda: old(1), lambda: new(1), repeat=repeat)
    saved = (1 - statistics.median(ratios)) * usual  # in an epoch
    more = f"losses {apart:.0e} apart" if apart else "losses equal"
    if "compiled" in change:
        more += f", {once - usual:.1f} s once"
    verdict = "kept"
    if apart > 1e-4:
        verdict = "left out, other losses"
    elif by_chance(ratios, control):
        verdict = "left out, no faster than chance"
    elif "compiled" in change and once - usual > 5 * saved:
        verdict = "left out, not earned back in 5 epochs"
    if verdict == "kept":
        ladder.update(change)
    report(name, ratios, control, more, verdict)


# %%
# Feed the model without a call for every picture
# -----------------------------------------------
#
# Here is an epoch of the slow script, and the first rung. Instead of single pictures, the
# model gets rows that are on the device already:

seconds = timed(build(0)[1], 0)[0]
print(f"an epoch of the slow script takes {seconds * 1e3:.0f} ms")
rung("index batching", feed="indices")

# %%
# The last two lines have the median of five ratios, and in brackets the least and the
# largest, then those of the control. The losses are equal to the last digit, and most of
# the time was the feed's: the loop now makes one call for a batch instead of one for
# each picture.
#
# Does our rule also leave something out? We give it a change that changes nothing:

rung("nothing changed")

# %%
# The further the numbers in brackets are apart, the smaller is your trust in the one
# before them.
#
# .. question:: A rung's losses are 2e-07 off the slow script's. Is it the same work?
#
#    - No: the same work has the same losses, to the last digit.
#
#      No. Adding the same numbers in another order rounds differently, in the seventh
#      digit of a float32 number. An operator that does several things at once does that.
#
#    - Yes: the difference is a rounding error.
#
#      Yes. A mistake, such as other batches or a forgotten step, changes the losses by
#      far more.
#
#    - Losses cannot say that; only the share of right answers can.
#
#      No. With the same batches in the same order you can compare losses step by step,
#      which is a much sharper test.
#
# Start fewer operators
# ---------------------
#
# A read of the loss makes Python wait for a queue (:doc:`lesson 11
# </lessons/11_profile_first>`). A :term:`fused` Adam is one operator instead of
# many. A :term:`CUDA graph` records a whole step, and starts it with one call. Which of
# the three can help a CPU, which has no queue?

rung("no read in the loop", read=False)
rung("fused Adam", fused=True)
rung("one CUDA graph a step", graph=True)
if device.type == "cuda":  # a CPU's compiler takes long
    rung("torch.compile", compiled=True)

# %%
# On a CPU, a read is one short call, and there are no CUDA graphs. On a GPU, all three
# are about the time that starting operators takes. A queue hides that time, and a read
# empties the queue. But in steps as small as these the queue is hardly ever full: on the
# recorded H100, leaving out the reads was no faster than chance. (:doc:`Lesson 15
# </lessons/15_what_an_operator_costs>` captures a graph without the package. Without
# ``fused=True``, Adam on a GPU takes its :term:`foreach` way: it handles all
# :term:`parameters <parameter>` together, in a few operators.)
#
# :term:`torch.compile` writes new :term:`kernels <kernel>` for your model. **What costs
# time once has to be earned back: divide it by what an epoch saves.**
#
# .. fold:: Going further: when a model is compiled again, or only in part
#
#    A compiled function is made for the :term:`shapes <shape>` that it has seen. When
#    another size comes, often with the short last batch, it is compiled once more, and
#    then for any size. Where Python does what cannot be compiled, such as ``print`` or
#    ``.item()``, the function falls into parts: a *graph break*. Both cost time, and
#    PyTorch names them with their reasons:
#
#    .. code-block:: bash
#
#       TORCH_LOGS=recompiles,graph_breaks python train.py
#
#    ``torch.compile(model, fullgraph=True)`` stops at the first break. With
#    ``mode="reduce-overhead"`` the compiled part also runs in CUDA graphs. With
#    ``mode="max-autotune"`` it does so, too, and PyTorch first tries several kernels for
#    each product, which takes longer (`all modes
#    <https://docs.pytorch.org/docs/stable/generated/torch.compile.html>`__).
#
#    Four things shorten the wait. What was compiled is kept on the disk, for the next
#    run; ``TORCHINDUCTOR_CACHE_DIR`` says where, if your temporary folder is emptied. A
#    model of many equal blocks needs only one of them compiled: call ``block.compile()``
#    for each (`PyTorch's recipe
#    <https://docs.pytorch.org/tutorials/recipes/regional_compilation.html>`__). If you
#    know that a size will change, say so before the first call, with
#    ``torch._dynamo.mark_dynamic(inputs, 0)``. And compile only what is called often. On
#    a CPU, the compiler needs a C++ compiler.
#
# Give a larger batch a larger learning rate
# ------------------------------------------
#
# The next rungs do other work, so their losses cannot be compared. We compare the
# :term:`accuracy`. **A rung must be as good, in less time.** As good as what? As the slow
# script, with the best :term:`learning rate` of a short list. If you tuned only the new
# rungs, part of their gain would be the tuning. All runs have a fixed length, and we take
# the mean of several :term:`seeds <seed>`: a run that stops when it is good enough stops
# at a lucky moment.

# fold: Runs of a fixed length, their accuracy, and a search for the best rate
seeds, tuning = range(3), range(100, 102)  # others decide on rates


def run(seed, epochs=5, **switches):
    """Seconds of a whole run, and the trained model."""
    model, epoch = build(seed, epochs=epochs, **switches)
    return sum(timed(epoch, number)[0] for number in range(epochs)), model


def accuracy(model, images, targets):
    with torch.inference_mode():
        answers = model(images.float() / 255).argmax(dim=1)
    return (answers == targets).float().mean().item()


def best_rate(rates, switches):
    """The rate with the highest mean accuracy on the held-out images."""
    found = {}
    for rate in rates:
        models = [run(seed, **{**switches, "lr": rate})[1] for seed in tuning]
        found[rate] = statistics.mean(accuracy(model, *held_out) for model in models)
    return max(found, key=found.get)


def other_work(name, epochs, rates, **change):
    """Find a rate, compare epochs in turns, and keep what is as good."""
    try:
        trial = {**ladder, **change, "epochs": epochs}
        trial["lr"] = best_rate(rates, trial)
        models = [run(seed, **trial)[1] for seed in seeds]
    except Exception as error:
        return not_here(name, error)
    reached = [accuracy(model, *held_out) for model in models]
    old, new = (build(0, **{**way, "epochs": 99})[1] for way in (ladder, trial))
    old(0), new(0)  # warm up
    ratios, control = in_turns(lambda: old(1), lambda: new(1))
    ratios = [epochs / ladder["epochs"] * ratio for ratio in ratios]  # of whole runs
    verdict = "kept"
    if statistics.mean(reached) < goal:
        verdict = "left out, less than the goal"
    elif by_chance(ratios, control):
        verdict = "left out, no faster than chance"
    if verdict == "kept":
        ladder.update(trial)
    shown = f"{statistics.mean(reached):.1%}, rate {trial['lr']:g}, {epochs} epochs"
    report(name, ratios, control, shown, verdict)


# %%
# The ladder so far has the slow script's losses, but for rounding, so we may use it to
# find the goal quickly. Seeds differ by chance, too. So the goal is the lowest accuracy
# of three seeds, and the *mean* of a rung has to reach it:

ladder["epochs"] = 5
ladder["lr"] = best_rate((1e-3, 2e-3, 4e-3), ladder)
same_work = dict(ladder)  # for later

reached = [accuracy(run(seed, **ladder)[1], *held_out) for seed in seeds]
goal = min(reached)
print(f"rate {ladder['lr']:g}, 5 epochs of batches of 64, {len(seeds)} seeds:")
print(f"{goal:.1%} to {max(reached):.1%}; the goal is {goal:.1%}")

# %%
# With batches of 256 an epoch has a quarter of the steps. A step moves the weights only
# so far, so fewer steps may learn less. A higher rate makes each step longer, and more
# epochs make more steps. We give the rung eight epochs instead of five. The function
# ``other_work`` chooses among three rates, and compares whole runs:

rates = (4e-3, 8e-3, 1.6e-2)
other_work("batches of 256", 8, rates, batch=256)

# %%
# .. question:: A quarter of the time an epoch, three times the epochs: does it pay?
#
#    - No: three times as many epochs are too many.
#
#      No. The number of epochs alone does not say how long you wait. Multiply it with
#      the time of an epoch.
#
#    - Yes: training is four times as fast.
#
#      No. An epoch is. Compare the times until the same accuracy is reached.
#
#    - Yes: training takes three quarters of the time.
#
#      Yes. Three times a quarter.
#
# The rate can also change in every step. The :term:`scheduler` ``OneCycleLR`` lets it
# rise for three tenths of the run, and then fall to nearly zero, like a triangle. It gets
# a fifth fewer epochs:


def triangular(optimizer, top, steps):
    shape = {"pct_start": 0.3, "anneal_strategy": "linear", "cycle_momentum": False}
    # one more, since it is stepped after the last step, too
    return OneCycleLR(optimizer, top, total_steps=steps + 1, **shape)


other_work("a triangular rate", ladder["epochs"] * 4 // 5, rates, triangle=True)

# %%
# **A run that reaches the goal in fewer epochs saves time on every machine.**
#
# .. instructor-note::
#
#    The lines differ from laptop to laptop: let the class compare them, and find for each
#    rung a machine on which it helps. The trap is the ratio of an epoch: learners quote
#    it as the gain of the whole.
#
# Train in mixed precision
# ------------------------
#
# Numbers of two bytes need half the memory of float32, and a GPU with matrix units
# multiplies them faster. :term:`Mixed precision` uses them where it is safe:
# :term:`autocast` chooses for each operator, and the weights stay in float32. There are
# two formats. :term:`bfloat16` (bf16) has the range of float32 and fewer digits, and
# nothing else changes in your script. It needs a newer GPU, an A100 for example:

if device.type == "cuda":
    print("bf16 in hardware:", torch.cuda.is_bf16_supported(including_emulation=False))
    other_work("bf16 autocast", ladder["epochs"], [ladder["lr"]], bf16=True)
else:
    print(f"the rung for bf16 is for CUDA only; here is {device_name(device)}")

# %%
# Matrix units pay where products take the time. Our products are small, and on the
# recorded H100 bf16 was no faster than chance. For large products there is a rung before
# this one, :term:`TF32`: one line, and no autocast (:doc:`lesson 15
# </lessons/15_what_an_operator_costs>`). A recent CPU may gain as well, with
# ``torch.autocast("cpu", torch.bfloat16)`` and large batches: measure it.
#
# .. fold:: Going further: numbers of one byte
#
#    NVIDIA's GPUs since the H100 and the RTX 40 series also multiply numbers of one byte,
#    FP8. Autocast does not use them. `torchao
#    <https://docs.pytorch.org/ao/stable/workflows/training.html>`__ or NVIDIA's
#    `Transformer Engine <https://nvidia.github.io/TransformerEngine/>`__ replaces the
#    linear layers of a model, and keeps a scale beside each of their tensors or rows. It
#    pays for large products, and torchao's speeds are with ``torch.compile``.
#
# The T4, which Colab lends, has no bf16 in hardware. It has *float16* (fp16), which keeps
# more digits, and a smaller range. What happens to a small :term:`gradient` in it?

gradient = torch.tensor(1e-8)
print("in float16:        ", gradient.half().item())
print("times 65536 before:", (gradient * 65536).half().item())

# %%
# It becomes zero, and its weight learns nothing. The remedy is :term:`gradient scaling`:
# multiply the loss by a large *scale* before the :term:`backward pass`, which makes all
# gradients larger, and divide them before the step. ``torch.amp.GradScaler`` does that.
# **The calls have a fixed order: scale, unscale, clip, step, update.**

model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)  # too large, on purpose


def scaled_step(inputs, targets):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # before you clip, or you clip scaled gradients
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # does nothing where a gradient is inf or nan
    scaler.update()
    return loss.detach(), norm


# %%
# ``clip_grad_norm_`` shortens the gradients where their common length, the *norm*, is
# above 1. Float16 ends at 65,504. With a scale of 16,777,216, what will happen in the
# first steps?

print("   scale  loss  norm  weights changed")
for inputs, targets in zip(floats[:640].split(64), labels[:640].split(64), strict=True):
    scale = scaler.get_scale()
    before = model.layers[0].weight.detach().clone()
    loss, norm = scaled_step(inputs.to(device), targets.to(device))
    changed = not torch.equal(before, model.layers[0].weight)
    print(f"{scale:8.0f} {loss.item():5.2f} {norm.item():5.2f}  {changed}")

# %%
# Some gradients were too large for float16. They became inf, and the norm inf or nan. The
# scaler left these steps out, so no weight was harmed, and halved the scale until the
# gradients fitted. After 2,000 good steps in a row it `tries a larger one
# <https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler>`__. So a skipped
# step now and then is normal. (A :term:`checkpoint` needs the scaler's ``state_dict()``,
# too.)
#
# .. question:: The scale halves in every step, without end, and the loss is nan. Why?
#
#    - The scale was too large at first.
#
#      No. Then a few steps are left out, as above, and the loss itself is a number.
#
#    - The model's outputs hold an inf or nan, which no scale can help.
#
#      Yes. The scale is for gradients only. Look for bad inputs and for the layer whose
#      output leaves float16's range. Compute that layer in float32, inside ``with
#      torch.autocast("cuda", enabled=False):``, or use bf16.
#
#    - The learning rate is too small.
#
#      No. A small rate moves the weights little. It makes no inf. A rate that is too
#      *large* can do that.
#
# .. measured:: on a T4 and a P100, by Ceshine Lee
#    :source: https://blog.ceshine.net/post/apex-t4-p100/
#    :date: 2019
#
#    Ten epochs of a Wide ResNet on CIFAR-10, batches of 128:
#
#    ========  =============  ================
#    GPU       float32        mixed with fp16
#    ========  =============  ================
#    T4        57 min 17 s    31 min 14 s
#    P100      47 min 1 s     47 min 34 s
#    ========  =============  ================
#
#    On the T4 memory fell from 7,657 to 4,433 MB, and accuracy from 86.75 % to 85.25 %,
#    which says little after ten epochs. The P100 has no matrix units: it was no faster,
#    and memory rose from 5,677 to 6,283 MB. The mixing was done by Apex, a forerunner of
#    autocast.
#
# .. fold:: Going further: the format that convolutions like
#
#    In the :term:`memory format` ``channels_last`` the channels of a pixel lie side by
#    side, which matrix units like better. Give it to the model and to each batch of
#    images, and measure it together with mixed precision:
#
#    .. code-block:: python
#
#       model = model.to(memory_format=torch.channels_last)
#       images = images.to(device, memory_format=torch.channels_last)
#
#    After ``torch.backends.cudnn.benchmark = True``, NVIDIA's library `tries its
#    convolutions
#    <https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark>`__
#    for each new shape, and takes the fastest. It pays where shapes stay the same.
#
# Train a transformer, with attention in one call
# -----------------------------------------------
#
# Language models, and many models for pictures, are *transformers*. They cut an input
# into pieces, and let each piece look at all others: this is *attention*. Our pieces are
# the 28 rows of a picture. A row asks with a vector ``q``, is found by its vector ``k``,
# and gives a vector ``v``:


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # of each row for each row
    return scores.softmax(dim=-1) @ v  # shares, then a mean of the rows by shares


# %%
# PyTorch has both lines as one operator, ``scaled_dot_product_attention``. Our model
# calls it once, for four *heads* that look at different things. After that, two linear
# layers treat each row by itself:


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 32)  # a row of pixels becomes a vector of 32
        self.place = nn.Parameter(torch.randn(28, 32) / 10)  # which row it is
        self.qkv = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 96))
        self.each = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.out = nn.Linear(32, 10)

    def forward(self, images):
        x = self.embed(images.reshape(-1, 28, 28)) + self.place  # [N, 28, 32]
        parts = self.qkv(x).unflatten(-1, (3, 4, 8))  # [N, 28, 3, 4, 8]
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [N, 4, 28, 8] each
        seen = F.scaled_dot_product_attention(q, k, v)
        x = x + seen.transpose(1, 2).flatten(2)  # [N, 28, 32]
        x = x + self.each(x)
        return self.out(x.mean(dim=1))


# %%
# We train it for eight epochs. Does it learn?

way = {**same_work, "lr": 4e-3, "epochs": 8, "network": Rows}
seconds, model = run(0, **way)
steps = 8 * len(images) // 64
print(f"{steps} steps in {seconds:.1f} s: {accuracy(model, *held_out):.1%} are right")

# %%
# What does the one call bring, beside the two lines written out? Here is the time of a
# forward and a backward pass, and what is kept in memory between them, for more and more
# pieces:

# fold: Measure both ways


def cost(attend, pieces):
    shape = 1, 4, pieces, 8
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    kept = []
    note = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.nbytes) or tensor, lambda tensor: tensor
    )
    with note:
        attend(q, k, v)
    seconds = min(timed(lambda: attend(q, k, v).sum().backward())[0] for _ in range(4))
    return f"{seconds * 1e3:7.2f} ms {sum(kept) / 1e6:6.2f} MB"


print(f"pieces   {'written out':^20}   {'one call':^20}")
for pieces in (28, 256, 1024):
    both = attention, F.scaled_dot_product_attention
    print(f"{pieces:6}   {'   '.join(cost(attend, pieces) for attend in both)}")

# %%
# The scores written out grow with the *square* of the number of pieces, and the backward
# pass needs them. The one call `need not keep them
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html>`__,
# where PyTorch has a fast kernel for the device and the :term:`dtype`. (On a GPU, the one
# called FlashAttention `takes float16 and bfloat16 only
# <https://github.com/Dao-AILab/flash-attention/issues/732>`__.) **The longer the input,
# the more memory the one call saves.** :doc:`Lesson 15
# </lessons/15_what_an_operator_costs>` counts the bytes that it moves, and asks which
# kernel runs.
#
# See the whole ladder, and stop in time
# --------------------------------------
#
# Here is every rung, with the spread of its five ratios, beside its control:

# fold: Draw the ladder
fig, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
for row, (_, ratios, control, verdict) in enumerate(record):
    stays = verdict == "kept"
    ax.plot([min(control), max(control)], [row - 0.15] * 2, color="gray", lw=6)
    ax.plot([min(ratios), max(ratios)], [row + 0.15] * 2, color="C0", lw=6)
    middle = statistics.median(ratios)
    ax.plot(middle, row + 0.15, "o", ms=11, color="C0", mfc="C0" if stays else "white")
ax.plot([], [], "o-", color="C0", lw=6, ms=11, label="a rung, kept")
ax.plot([], [], "o-", color="C0", lw=6, ms=11, mfc="white", label="left out")
ax.plot([], [], color="gray", lw=6, label="its control")
ax.axvline(1, color="gray", ls=":")
ax.set_yticks(range(len(record)), [name for name, *_ in record])
ax.invert_yaxis()
ax.set(xlabel="time, as a multiple of the ladder before it", xlim=(0, None))
ax.set_title(f"What each rung brought ({device})")
fig.legend(loc="outside lower center", ncols=3)
plt.show()

# %%
# Each rung was compared with the one before. Such ratios may not be multiplied: their
# errors would be, too. So in the end epochs of the first and of the last script take
# turns, five times. Then the test images, which decided nothing so far, say whether the
# last script is as good:

first, last = build(0)[1], build(0, **{**ladder, "epochs": 99})[1]
last(0)  # warm up
pairs = [(timed(first, 1)[0], timed(last, 1)[0]) for _ in range(5)]
before, after = ([1e3 * each for each in column] for column in zip(*pairs, strict=True))
gains = [5 * old / (ladder["epochs"] * new) for old, new in pairs]
print(f"before: {min(before):6.1f} to {max(before):6.1f} ms an epoch, 5 epochs")
print(f"after:  {min(after):6.1f} to {max(after):6.1f} ms, {ladder['epochs']} epochs")
print(f"a run is {min(gains):.1f} to {max(gains):.1f} times as fast")

for name, switches in (("before", same_work), ("after", ladder)):
    found = [accuracy(run(seed, **switches)[1], *test) for seed in seeds]
    shown = f"{statistics.mean(found):.1%} ({min(found):.1%} to {max(found):.1%})"
    print(f"{name:<7} {shown} of {len(test[1])} test images, {len(seeds)} seeds")

# %%
# How far is it to what this machine can do? We count the :term:`FLOP` of a sample, and
# compare the rate of an epoch with that of one large matrix product:

# fold: Compute the share
with FlopCounterMode(display=False) as counter:
    some = floats[:64].to(device), labels[:64].to(device)
    loss_fn(MLP(784, 128, 64, 10).to(device)(some[0]), some[1]).backward()
rate = counter.get_total_flops() / 64 * len(images) / (min(after) / 1e3)

side = 1024 if device.type == "cpu" else 8192
dtype = torch.bfloat16 if ladder.get("bf16") else torch.float32
a = torch.randn(side, side, device=device, dtype=dtype)
peak = 2 * side**3 / min(timed(lambda: a @ a)[0] for _ in range(3))
print(f"{rate / 1e9:.1f} of {peak / 1e9:.0f} GFLOP/s, which is {rate / peak:.2%}")

# %%
# Publications give such a share as :term:`MFU`. They divide by the *theoretical* peak
# from the GPU's data sheet, not by a measured product. So a share like ours comes out
# larger, and may not be compared with theirs. What the rest of the time goes to,
# :doc:`lesson 11 </lessons/11_profile_first>` finds out.
#
# A large model has other rungs than this small one:
#
# .. measured:: on an A100, by NERSC
#    :source: https://github.com/NERSC/sc24-dl-tutorial
#    :date: 2024
#
#    A vision transformer for weather maps, batches of 16, samples a second in the fourth
#    epoch:
#
#    ==========================================  =====
#    the slow script                               8.8
#    4 :term:`workers <worker>` in the loader     12.6
#    a loader that works on the GPU (DALI)        13.2
#    bf16 autocast                                53.2
#    fused Adam                                   53.3
#    ``torch.compile``                            55.0
#    ==========================================  =====
#
#    Compiling made the first epoch 57 s long; without it, it was 12 s.
#
# There mixed precision brings four times as much as the row above it, which uses TF32
# already. (Without TF32, that row is 10.1.) Fewer operators bring nearly nothing. **Stop
# when the next rung costs you more time than it will ever save.**
#
# .. fold:: Going further: the same with the package, or with the same bits
#
#    The package has these rungs ready:
#
#    .. code-block:: python
#
#       step = Step(optimizer, amp="fp16", clip_norm=1.0, scheduler=schedule)
#       history = fit(model, batches, loss_fn, optimizer, device, epochs=3, step=step)
#
#    ``fit`` does not read in its loop, ``Step`` scales, clips and steps in the right
#    order, and :func:`gpulesson.capture.captured_step` is the graph.
#
#    One switch takes speed away. Some GPU kernels add up in an order that changes from
#    run to run. After ``torch.use_deterministic_algorithms(True)`` PyTorch takes others,
#    or stops where it has none (`its page on reproducibility
#    <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__). Old scripts also
#    set ``CUBLAS_WORKSPACE_CONFIG``. `PyTorch no longer asks for it
#    <https://github.com/pytorch/pytorch/pull/161749>`__.
#
# Exercise
# --------
#
# .. exercise:: Make a batch sixteen times as large pay
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_12.py
#
#    The script trains on 1,200 made-up points, in batches of 32 and of 512. It counts
#    epochs until 90 % of the held-out points are right. To stop at the first good epoch
#    favours luck, so take the count as rough.
#
#    1. Fill in ``UPDATES``: how many updates does an epoch have, with either batch?
#    2. **Predict:** with the same learning rate, does the large batch need as many
#       epochs, or sixteen times as many, or something between? Then run it.
#    3. Change ``RATE``, until the large batch needs at most one and a half times the
#       epochs of the small one, the three seeds taken together.
#    4. How far up can you go before it needs more again?
#
#    To check it: ``python -m gpulesson check exercise_12.py``.
#
#    You are done when it prints ``it pays``, and the table is right, too.
#
# .. solution::
#    :file: solution_12.py
#
#    An epoch has 38 updates with the small batch, and 3 with the large one. An update of
#    a large batch is less noisy, and may be longer. Too long, and it oversteps: try
#    twenty times the solution's rate.
#
# .. keypoints::
#
#    - Change one thing, measure it in turns with the ladder and with a control, and keep
#      it only outside the control's spread. The same losses prove the same work.
#    - Where losses must differ, a fixed accuracy, runs of a fixed length and several
#      seeds decide. A larger batch wants a larger learning rate.
#    - Mixed precision uses two bytes where it is safe. With float16: scale, unscale,
#      clip, step, update. A skipped step now and then is normal.
#
# **Next:** :doc:`/lessons/13_when_it_does_not_fit` is about memory again: what to do
# when there is too little of it.

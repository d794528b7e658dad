"""
12 · The speed ladder
=====================

Take one training run from a script that many people write to near what this machine can
do, one measured change at a time.

.. overview::
   :teaching: 30
   :exercises: 15

   .. questions::

      - Which of the many tips for speed make *my* training faster, and by how much?
      - Does it still learn the same, or only faster?
      - When should I stop?

   .. objectives::

      - Make one change at a time, measure it, and check that the work is the same.
      - Tell changes that keep every loss from those for which only the accuracy counts.
      - Retune the learning rate for a larger batch.
      - Try lower precision, compilation, graphs and memory formats, and say why one of
        them brings nothing here.
      - Compare the result with the machine's limit.

.. prereq::

   - :doc:`Lesson 9 </lessons/09_feeding_the_gpu>`: the ways to feed a model.
   - :doc:`Lesson 11 </lessons/11_profile_first>`: reads that wait, and the three limits.
"""

# %%
# The network is that of :doc:`lesson 5 </lessons/05_fashion_mnist>`. We make its
# training faster, as on a ladder: each rung makes **one** change to a rung below. The
# rungs were chosen before they were measured. So a rung stays in the table even if it
# brings nothing on your machine, or cannot run there. Then the table says why.

import logging
import statistics
import time

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import LogLocator
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from torchvision.transforms.functional import to_tensor

from gpulesson.capture import captured_step
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize

# %%
# As in the other lessons, we compute on one thread of the CPU, since it is disturbed
# less by whatever else runs here. The test images are :term:`held-out data`: no rung
# trains on them.

# without a CUDA toolkit, torch.compile would say so; that is no news here
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images, labels = data.train_images[:5120], data.train_targets[:5120]  # 80 × 64
test_images = data.test_images[:4000].to(device).float() / 255
test_labels = data.test_targets[:4000].to(device)
print(
    f"{len(images)} training images of {data.source}; {len(test_labels)} to test with"
)
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Write one training loop with switches
# -------------------------------------
#
# First the ways to feed the loop. The slowest is a dataset that makes a
# :term:`tensor` of each picture when it is asked for it:

order = torch.Generator()
floats = images.float() / 255


class Pictures(Dataset):
    """What torchvision's datasets do: a PIL image, made a tensor when it is asked for."""

    def __len__(self):
        return len(images)

    def __getitem__(self, index):
        return to_tensor(Image.fromarray(images[index].numpy())), int(labels[index])


# %%
# A feed comes either from a :term:`data loader` or from ``Batches``, which picks rows
# by index. All of them draw their order from one generator, so that every rung sees the
# same :term:`batches <batch>`:


def loader(dataset, batch_size):
    sampler = RandomSampler(dataset, generator=order)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


def indexed(inputs, targets, batch_size, transform=None):
    options = {"batch_size": batch_size, "shuffle": True, "generator": order}
    return Batches(inputs, targets, transform=transform, **options)


# %%
# There are four of them, from pictures to bytes that live on the :term:`device`:

feeds = {
    "pictures": lambda n: loader(Pictures(), n),
    "tensors": lambda n: loader(TensorDataset(floats, labels), n),
    "indices": lambda n: indexed(floats, labels, n),
    "resident": lambda n: indexed(
        images.to(device), labels.to(device), n, lambda batch: batch.float() / 255
    ),
}
loss_fn = torch.nn.CrossEntropyLoss()

# %%
# One training :term:`step` is the same five calls as ever, and returns its
# :term:`loss`. Two switches are in it: lower precision (``bf16``) and a compiler
# (``compiled``). The naive script has both off:


def make_step(model, optimizer, bf16=False, compiled=False):
    """A function that trains one step and returns its loss."""
    forward = torch.compile(model, fullgraph=True) if compiled else model

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = loss_fn(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# %%
# The function ``build`` has all switches, and its defaults *are* the naive script: a
# loader, batches of 64, Adam, ``loss.item()`` in every step. It returns a fresh model
# and a function that trains it for one :term:`epoch`:

# fold: Build a model and an epoch from the switches


def build(
    seed, *, feed="pictures", read=True, fused=None, batch_size=64, lr=1e-3,
    matmul="highest", bf16=False, compiled=False, graph=False,
):  # fmt: skip
    """A fresh model, and a function that trains it for one epoch."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision(matmul)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=lr, fused=fused, capturable=graph
    )
    batches = feeds[feed](batch_size)
    step = make_step(model, optimizer, bf16, compiled)

    if graph:
        if device.type != "cuda":
            raise NotImplementedError(f"there are no CUDA graphs on {device.type}")
        amp = "bf16" if bf16 else None
        step = captured_step(model, loss_fn, optimizer, *next(iter(batches)), amp=amp)

    def epoch(number):
        order.manual_seed(1000 * seed + number)
        losses = []
        for inputs, targets in batches:
            loss = step(inputs.to(device), targets.to(device))
            losses.append(loss.item() if read else loss)
        return losses if read else torch.stack(losses).tolist()

    return model, epoch


# %%
# Measure the two numbers to beat
# -------------------------------
#
# Each rung trains three times, from three :term:`seeds <seed>`, after one epoch of
# warm-up with a fourth. After each epoch the clock stops, and we count how many of the
# test images the model gets right:


def accuracy(model):
    with torch.inference_mode():
        return (model(test_images).argmax(dim=1) == test_labels).float().mean().item()


# %%
# The next function does this for a choice of switches. It stops when an
# :term:`accuracy` is reached, the *target*, or after some epochs:

# fold: Train from three seeds; note time, accuracy and losses of each epoch


def train(options, target=1.0, epochs=5):
    """Epochs of (seconds, accuracy, losses) for three seeds, until the target."""
    start = time.perf_counter()
    build(99, **options)[1](0)
    synchronize(device)
    first = time.perf_counter() - start
    runs = []
    for seed in range(3):
        model, epoch = build(seed, **options)
        runs.append([])
        while len(runs[-1]) < epochs and (not runs[-1] or runs[-1][-1][1] < target):
            synchronize(device)
            start = time.perf_counter()
            losses = epoch(len(runs[-1]))
            synchronize(device)
            seconds = time.perf_counter() - start
            runs[-1].append((seconds, accuracy(model), losses))
    return first, runs


# %%
# With no switch set, it trains the naive script, for five epochs:

first, naive = train({})
reached = [run[-1][1] for run in naive]
target = min(reached)
epoch_times = [seconds for run in naive for seconds, _, _ in run]
low, middle, high = (x * 1e3 for x in statistics.quantiles(epoch_times, n=4))
print(f"an epoch: {middle:.1f} ms (half of them: {low:.1f} to {high:.1f})")
print("accuracy after 5 epochs:", ", ".join(f"{x:.2%}" for x in reached))
print(f"target for all rungs: {target:.2%}, the least of these")

# %%
# The two numbers to beat are the time of an epoch, and the time until the target is
# reached. **What you want is a short time to the target.** A shorter epoch alone can be
# had by doing less.
#
# Find the learning rate for a larger batch
# -----------------------------------------
#
# The ladder will go from batches of 64 to 512. An epoch then has an eighth of the
# steps, with more work in each. That has a price: a step moves the weights only so far,
# so fewer steps may learn less. A higher :term:`learning rate` makes each step longer.
# How many epochs does it take to the target, with which rate?

quiet = {"feed": "resident", "read": False, "fused": True}
needed = {}
for lr in (1e-3, 4e-3, 8e-3):
    _, runs = train({**quiet, "batch_size": 512, "lr": lr}, target, epochs=20)
    counts = sorted(len(run) if run[-1][1] >= target else 99 for run in runs)
    needed[lr] = sum(counts)
    shown = ", ".join("more than 20" if n == 99 else str(n) for n in counts)
    print(f"batch 512, learning rate {lr:g}: {shown} epochs to the target (3 seeds)")
best_lr = min(needed, key=needed.get)
print(f"the ladder goes on with {best_lr:g}")

# %%
# The first line keeps the rate of batch 64. Compare it with the other two, and with the
# five epochs of the naive script. (We choose the rate with the images that also measure
# the accuracy. For three rates that is a mild choice. If you try many, use a third set
# of images for it.)
#
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
#      Yes. Three times a quarter. And perhaps another learning rate needs fewer epochs.
#
# Add one change at a time
# ------------------------
#
# Here are the rungs. Each line adds its switches to all lines above it, where those
# could run. The larger batch comes with its learning rate. The last line takes the
# compiler off again, so that the graph is seen alone. The words in it are explained
# below the table:

precision = "medium" if device.type == "cpu" else "high"
changes = {
    "naive script": {},
    "tensors made once": {"feed": "tensors"},
    "index batching": {"feed": "indices"},
    "bytes on the device": {"feed": "resident"},
    "no read in the loop": {"read": False},
    "fused Adam": {"fused": True},
    f"batch 512, rate {best_lr:g}": {"batch_size": 512, "lr": best_lr},
    f"matmul precision {precision}": {"matmul": precision},
    "bf16 autocast": {"bf16": True},
    "torch.compile": {"compiled": True},
    "one CUDA graph a step": {"compiled": False, "graph": True},
}

# %%
# Now run them all. A rung that cannot run here is left out, and its reason is kept:

options, results, reasons = {}, {"naive script": (first, naive)}, {}
for name, change in changes.items():
    trial = {**options, **change}
    if name not in results:
        try:
            results[name] = train(trial, target, epochs=20)
            options = trial
        except Exception as error:  # no compiler, no graphs, no bf16: whatever it is
            first_line = str(error).strip().split("\n")[0]
            reasons[name] = first_line[:60] or type(error).__name__
torch.set_float32_matmul_precision("highest")
print(f"{len(results)} rungs ran, {len(reasons)} could not")

# %%
# Every rung that runs stays on, even one that brings nothing or costs time, and the
# rungs after it carry its cost along. So the table has the same rows on every machine.
# **In a script of your own, keep a change only if it helps.**
#
# What did they bring? The column *losses* compares the losses of the
# first epoch, step by step, with the naive script's. Up to :term:`fused` Adam every
# rung claims to do the same work, so the losses must be equal, or a rounding error
# apart. From the larger batch on there are other steps. Then only the accuracy can say
# whether the model still learns as well:

# fold: Print the table


def until_target(run):
    """Seconds and epochs until the accuracy is reached, or None."""
    passed = [n for n, (_, reached, _) in enumerate(run, start=1) if reached >= target]
    return (sum(run[i][0] for i in range(passed[0])), passed[0]) if passed else None


epoch_time, target_time = {}, {}
print(f"{'':<23}     epoch  times  to the target              losses")
for name in changes:
    if name in reasons:
        print(f"{name:<23} not here: {reasons[name]}")
        continue
    first, runs = results[name]
    epoch_time[name] = statistics.median(s for run in runs for s, _, _ in run)
    gain = epoch_time["naive script"] / epoch_time[name]
    times = [until_target(run) for run in runs]
    if None in times:
        reached = "not reached              "
    else:
        target_time[name] = sorted(seconds for seconds, _ in times)
        epochs = ", ".join(f"{n:>2}" for _, n in times)
        reached = f"{target_time[name][1]:6.3f} s, epochs {epochs}"
    pairs = zip(naive[0][0][2], runs[0][0][2], strict=False)
    apart = max(abs(a - b) for a, b in pairs)
    same = f"{apart:.0e} apart" if apart else "equal"
    if len(runs[0][0][2]) != len(naive[0][0][2]):
        same = "other steps"
    print(
        f"{name:<23} {epoch_time[name] * 1e3:6.1f} ms {gain:5.1f} × {reached}  {same}"
    )
print("the first epoch of all, with what is done once:")
for name in ("naive script", "torch.compile", "one CUDA graph a step"):
    if name in results:
        print(f"{name}: {results[name][0]:.1f} s")

# %%
# Three of the names are about *precision*. A float32 number has 8 bits for its size and
# 23 for its digits, the *mantissa*. :term:`TF32` keeps 10 of those 23 in a product,
# :term:`bfloat16` (bf16) 7. That is less exact, and faster where the hardware
# multiplies such numbers. :term:`Autocast <autocast>` chooses the type operator by
# operator.
#
# Read the table from rung to rung, and for each ask *why*:
#
# - *From pictures to tensors to indices*, Python calls disappear. The exercise of
#   :doc:`lesson 9 </lessons/09_feeding_the_gpu>` counts them.
# - *Bytes on the device* save copies to a :term:`GPU`. Where the device is the CPU
#   there are none to save. Making floats of each batch costs a little there, and
#   reading a quarter of the bytes saves a little: expect no clear difference.
# - *A read* makes Python wait for a queue (:doc:`lesson 11
#   </lessons/11_profile_first>`). A CPU has none.
# - *Fused Adam* is one operator in the place of many.
# - *The larger batch* spreads what a step costs over eight times the samples. It pays
#   if the time of an epoch shrinks by a larger factor than the number of epochs grows.
# - *Matmul precision:* ``set_float32_matmul_precision("high")`` lets :term:`CUDA`
#   multiply in TF32. On a CPU ``"medium"`` permits bf16, where the processor has
#   instructions for it. On hardware without either nothing happens.
# - *bf16 autocast* chooses bf16 for products, and float32 where precision matters.
#   Converting costs as well, and the products must be large enough to earn it back.
# - :term:`torch.compile` fuses what is between the products, and takes its time once:
#   see the last lines. A network of three layers has little between its products, and a
#   run of a second does not earn back a compilation.
# - A :term:`CUDA graph` starts a whole step with one call. It is like ordering "the
#   usual": one word instead of the whole list. It is the answer to :term:`latency`, and
#   exists on CUDA only. (It is recorded anew for each seed, within the first epoch, so
#   its times to the target contain that.)
#
# A rung that brought nothing here can bring much elsewhere. It takes away a cost that
# this machine did not have.
#
# .. question:: A rung's losses are 2e-07 off the naive ones. Is it the same work?
#
#    - No: the same work has the same losses, to the last digit.
#
#      No. Adding the same numbers in another order rounds differently, in the seventh
#      digit of a float32 number. A fused operator does that.
#
#    - Yes: the difference is a rounding error.
#
#      Yes. A mistake, such as other batches or a forgotten step, changes the losses by
#      far more.
#
#    - Losses cannot say that; only the accuracy can.
#
#      No. With the same batches in the same order the losses can be compared step by
#      step, which is a much sharper test than an accuracy. You need the accuracy where
#      the steps are others.
#
# .. instructor-note::
#
#    The table differs from laptop to laptop, and that is the point: let the class
#    compare tables, and find for each rung a machine on which it helps. The trap is the
#    column *times*. It is about the epoch; learners quote it as the gain of the whole.
#
# Try a memory format for convolutions
# ------------------------------------
#
# One tip has no place on this ladder, since it is about convolutions. In the
# :term:`memory format` ``channels_last`` the channels of a pixel lie side by side. The
# convolutions of some libraries and of tensor cores like that better. Here is a small
# network that can use either format:


def convolutional_step(memory_format):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(9216, 10),
    ).to(device, memory_format=memory_format)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    inputs = floats[:64].unsqueeze(1).to(device, memory_format=memory_format)
    targets = labels[:64].to(device)

    def step():
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# %%
# Does the format change the loss? Does it change the time?

for memory_format in (torch.contiguous_format, torch.channels_last):
    step = convolutional_step(memory_format)
    loss = step().item()
    timing = measure(step, device=device, warmup=2, repeats=5)
    low, high = timing.quartiles
    print(f"{memory_format}: first loss {loss:.6f},", end=" ")
    print(f"{timing.median * 1e3:.2f} ms a step ({low * 1e3:.2f} to {high * 1e3:.2f})")

# %%
# The first losses agree, apart from rounding: the format changes where numbers lie, not
# what they are. (On CUDA, convolutions round to TF32 unless told otherwise.) Which of
# the two takes less time depends on the library that computes the convolution. So
# measure this tip, too.
#
# Compare with the machine's limit
# --------------------------------
#
# How far is it still to go? Training must at least do its arithmetic, and read its
# images once. Both can be counted. A weight costs two operations in the :term:`forward
# pass`, two for its own :term:`gradient`, and two for the gradient of its layer's
# inputs, which the first layer does not need:

weights = [784 * 128, 128 * 64, 64 * 10]
operations = 6 * sum(weights) - 2 * weights[0]  # per sample

# %%
# How fast can this machine multiply and read? We measure it with one large product and
# one large copy:

# fold: Measure the rates of this machine

n = 1024 if device.type == "cpu" else 8192  # large, for this device
rates = {}
dtypes = [torch.float32]
if "bf16 autocast" in results:
    dtypes.append(torch.bfloat16)
for dtype in dtypes:
    a = torch.randn(n, n, device=device).to(dtype)
    seconds = measure(lambda a=a: a @ a, device=device, repeats=5).median
    rates[dtype] = 2 * n**3 / seconds
    print(f"{dtype}: {rates[dtype] / 1e9:.0f} GFLOP/s in a product of {n} × {n}")
block = torch.zeros(2**26, dtype=torch.uint8, device=device)
copy = torch.empty_like(block)
copying = measure(lambda: copy.copy_(block), device=device, repeats=5).median

# %%
# The larger of the two times is the limit of an epoch:

arithmetic = operations * len(images) / max(rates.values())
reading = images.nbytes / (2 * block.nbytes / copying)
limit = max(arithmetic, reading)
print(f"{operations:,} operations a sample, {images.nbytes / 1e6:.1f} MB of images")
print("an epoch, at least:", end=" ")
print(f"{arithmetic * 1e3:.3f} ms arithmetic, {reading * 1e3:.3f} ms reading")
fastest = min(epoch_time, key=epoch_time.get)
least = epoch_time[fastest]
print(f"{fastest}: {least * 1e3:.1f} ms, {least / limit:.1f} times that")

# %%
# Here is the picture. Each dot is a rung's time to the accuracy of the naive script,
# the bar its three seeds. The line is the limit, for as few epochs as any rung needed:

# fold: Draw the ladder, and print the rung with the least time

fewest = min(
    passed[1]
    for _, runs in results.values()
    for passed in map(until_target, runs)
    if passed
)

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
for row, name in enumerate(changes):
    if name in target_time:
        low, middle, high = target_time[name]
        axes.plot([low, high], [row, row], color="C0", lw=4, alpha=0.4)
        axes.plot(middle, row, "o", color="C0", ms=8)
    else:
        why = "not here" if name in reasons else "not reached"
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(0.98, row, why, **place)
label = f"limit, {fewest} epochs"
axes.axvline(fewest * limit, color="C1", lw=3, label=label)
axes.set_yticks(range(len(changes)), changes)
axes.set_ylim(len(changes) - 0.5, -0.5)
axes.set(xlabel="seconds", xscale="log", title=f"Time to {target:.1%} ({device})")
axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
axes.xaxis.set_major_formatter("{x:g}")
axes.xaxis.set_minor_formatter("")
figure.legend(loc="outside lower center")
axes.grid(alpha=0.3)
plt.show()

first_time = statistics.median(target_time["naive script"])
best = min(target_time, key=lambda name: target_time[name][1])
gain = first_time / target_time[best][1]
print(f"least time to the target: {best}, {gain:.1f} times as fast, without what is")
print(f"done once: its first epoch took {results[best][0]:.2f} s")
alike = [
    name
    for name, (low, _, _) in target_time.items()
    if name != best and low <= target_time[best][2]
]
print("not told apart from it by three seeds:", ", ".join(alike) or "none")
print(f"on {data.source}, {device}, torch {torch.__version__}, 3 seeds")

# %%
# The line is not the whole truth, because it leaves out the third limit of
# :doc:`lesson 11 </lessons/11_profile_first>`: latency. Each step has operators to
# start. With batches of 64 an epoch here has 80 steps, with batches of 512 it has ten,
# and none of that is in the line. So no rung can reach it, and a rung with more steps
# stays further away.
#
# The distance that is left has a name. If the fastest rung is far from the line, and
# the larger batch brought most, it is mostly latency: the steps are too small for the
# machine. If precision brought most, it is mostly arithmetic.
#
# You find the same ratio on another page, :doc:`how fast, measured </results>`, and it
# can be much smaller there. Two things differ. The fastest rung of that page has
# batches of 1,024, so there are fewer steps to start. And it ran on the machine that is
# named there. A machine that multiplies faster has a lower limit. If it does not also
# start operators faster, it stays *further* from its limit, although it takes less
# time.
#
# **Stop when the next rung costs you more time than it will ever save.** A run of one
# second needs no eleventh rung.
#
# .. question:: ``torch.compile`` did not pay in a run of one second. Is it useless?
#
#    - Yes: what does not help on a small model does not help on a large one.
#
#      No. A large model has more between its products, which a compiler can fuse.
#
#    - No: in a run of hours the compilation is soon earned back.
#
#      Yes. Its price is paid once, and its gain comes with every step. Whether there is
#      a gain at all, you have to measure on that model.
#
#    - No: with more epochs each step gets faster.
#
#      No. The gain of a step stays the same. Only the price of the compilation is
#      spread over more steps.
#
# The package has these rungs ready: :class:`gpulesson.data.Batches` with ``transform``,
# :func:`gpulesson.training.fit`, which does not read in its loop, with ``amp="bf16"``
# and ``compile=True``, and :func:`gpulesson.capture.captured_step`.
#
# Exercise
# --------
#
# .. exercise:: A batch sixteen times as large
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_12.py
#
#    The script trains on scikit-learn's handwritten digits, in batches of 32 and of
#    512, and counts epochs until 95 % of the test digits are read rightly.
#
#    1. **Predict:** with the same learning rate, does the large batch need as many
#       epochs, or sixteen times as many, or something between?
#    2. Run it.
#    3. Change ``RATE``, until the large batch needs at most one and a half times the
#       epochs of the small one. It must hold for all three seeds.
#    4. How far up can you go before it needs more again?
#
#    You are done when it prints ``it pays``.
#
#    To check it: ``python -m gpulesson check exercise_12.py``.
#
# .. solution::
#    :file: solution_12.py
#
#    A step of a large batch is less noisy, and may be longer. Too long, and it
#    oversteps: try ten times the solution's rate.
#
# .. keypoints::
#
#    - One change at a time, each measured, each kept in the table with its reason.
#    - The same losses prove the same work. Where losses must differ, time to a fixed
#      accuracy decides, over several seeds.
#    - A larger batch learns differently, and wants another learning rate.
#    - Precision, compilers, graphs and memory formats take away costs. Measure whether
#      your machine has those costs.
#    - Compute the limit before you start, and stop when you are near it, or near
#      enough.

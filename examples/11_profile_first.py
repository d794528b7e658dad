"""
11 · Profile before you optimise
================================

See where the time of training goes, find what makes the CPU wait, and name the limit
that holds your program back.

.. overview::
   :teaching: 25
   :exercises: 20

   .. questions::

      - My training is slow: where do I look first?
      - Which lines make the CPU wait for the GPU?
      - How fast could this step be, and what holds it back?

   .. objectives::

      - Record a profile, and read its table.
      - Draw a step as a timeline, and export it for a viewer.
      - Find the reads that make the CPU wait, by name and by line.
      - Count a step's operators, bytes and operations.
      - Name the limit: latency, bandwidth or arithmetic.

.. prereq::

   - :doc:`Lesson 5 </lessons/05_fashion_mnist>`: the network and its training loop.
   - :doc:`Lesson 8 </lessons/08_was_it_faster>`: a clock that waits, and comparing
     in turns.
"""

# %%
# Without a profile you fix what is easy to see in the code, and that is seldom what
# costs the time. In this lesson we profile the loop of :doc:`lesson 5
# </lessons/05_fashion_mnist>`, as most scripts have it: with a ``loss.item()`` in every
# :term:`step`. Before you read on: which part of it takes longest? Fetching the
# :term:`batch`, the :term:`forward pass`, the :term:`backward pass`, the
# :term:`optimizer`, or reading the :term:`loss`?

import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's own messages

import matplotlib.pyplot as plt
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import gpulesson
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure

# %%
# One thread is enough: for :term:`tensors <tensor>` this small, more threads only wait
# for each other.

torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images = data.train_images[:8000].float() / 255
labels = data.train_targets[:8000]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Record a profile and read its table
# -----------------------------------
#
# The first function prepares what a training run needs: a fresh model, its optimizer,
# and batches, all on the :term:`device`:

loss_fn = torch.nn.CrossEntropyLoss()


def prepare(device):
    """A fresh model, its optimizer, and batches, all on the device."""
    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    here, there = images.to(device), labels.to(device)
    return model, optimizer, Batches(here, there, batch_size=64, shuffle=True)


# %%
# The second function trains. ``record_function`` gives a part of the program a name of
# its own in the profile:


def train(steps, model, optimizer, batches):
    """Some steps of the loop, each part labelled. Returns the mean loss."""
    feed, total = iter(batches), 0.0
    for _ in range(steps):
        with record_function("# fetch"):
            inputs, targets = next(feed)
        with record_function("# forward"):
            loss = loss_fn(model(inputs), targets)
        with record_function("# backward"):
            optimizer.zero_grad()
            loss.backward()
        with record_function("# optimizer"):
            optimizer.step()
        with record_function("# read the loss"):
            total += loss.item()
    return total / steps


# %%
# We record thirty steps, after a warm-up:

activities = [ProfilerActivity.CPU]
if torch.cuda.is_available():
    activities += [ProfilerActivity.CUDA]  # also what the GPU did, and when

prepared, steps = prepare(device), 30
train(5, *prepared)  # warm up
with profile(activities=activities) as recorded:
    train(steps, *prepared)

# %%
# The profiler notes every operator: when it began, when it ended, and what called it.
# ``key_averages`` adds up the calls of one name. *Self* time is an operator's own time,
# without that of the operators that it calls. Sorted by self time, the table shows
# where the CPU really is:

sums = recorded.key_averages()
everything = sum(entry.self_cpu_time_total for entry in sums)
by_self_time = sorted(sums, key=lambda entry: -entry.self_cpu_time_total)

# %%
# Here are the twelve names with most self time. (The call
# ``recorded.key_averages().table(sort_by="self_cpu_time_total")`` prints the same with
# more columns.)

# fold: Print the table

print(f"{'name':<30} calls/step  self CPU  share   kernels")
for entry in by_self_time[:12]:
    print(
        f"{entry.key[:30]:<30} {entry.count / steps:10.1f}"
        f" {entry.self_cpu_time_total / steps:6.0f} µs"
        f" {entry.self_cpu_time_total / everything:6.1%}"
        f" {entry.self_device_time_total / steps:6.0f} µs"
    )
others = sum(entry.self_cpu_time_total for entry in by_self_time[12:])
print(f"and {len(sums) - 12} more names: {others / everything:.0%}")

# %%
# The names first. ``aten::`` is PyTorch's library of operators: ``addmm`` is the
# product in a linear layer on the way forward, ``mm`` the products on the way back.
# Names that begin with ``#`` are our labels, and their self time is Python and
# book-keeping; so is that of the optimizer's name. Names with ``autograd`` or
# ``Backward`` are PyTorch's engine for the way back, and names with ``cuda`` are calls
# to the :term:`driver`. The last column is the time that :term:`kernels <kernel>` ran
# on a :term:`CUDA` device. It stays zero elsewhere.
#
# Then ask three questions:
#
# 1. Is the time in a *few* names, or spread over many? If it is spread, no single
#    better operator can help.
# 2. How much of it is Python and book-keeping, and not ``aten::``?
# 3. How often is an operator called in one step? Is it more often than you expected?
#
# (On CUDA the backward pass runs in a thread of its own, where its operators are
# counted. ``# backward`` waits for it, and its self time counts the same time again.)
#
# Now our own five parts, each with everything that it calls:

cpu = torch.autograd.DeviceType.CPU
parts = {
    entry.key[2:]: entry.cpu_time_total / steps
    for entry in sums
    if entry.key.startswith("# ") and entry.device_type == cpu
}
whole = sum(parts.values())
for name, microseconds in parts.items():
    print(f"{name:<14} {microseconds:7.0f} µs a step  {microseconds / whole:5.1%}")

# %%
# Was your guess right? One more measurement before we trust the numbers: how much time
# does the profiler itself take?

plain = measure(
    lambda: train(steps, *prepared), device=device, warmup=1, repeats=5
).median


def profiled():
    with profile(activities=activities):
        train(steps, *prepared)


watched = measure(profiled, device=device, warmup=1, repeats=3).median
print(f"profiling takes {watched / plain:.1f} times the time: read shares, not seconds")

# %%
# So **read the shares of a profile, not its seconds.**
#
# With a :term:`GPU` the CPU's times mean something else. They are the time to *hand
# over* the work, except in the part that waits. There the CPU waits for the work of all
# the other parts.
#
# .. question:: On a GPU, "read the loss" takes 80 % of the CPU's time. What is slow?
#
#    - Copying the loss from the GPU.
#
#      No. The loss is one number of four bytes. Its copy takes microseconds.
#
#    - The Python function ``item``.
#
#      No. Without a queue to wait for, the call is short: look at this part in the
#      table of a CPU.
#
#    - Whatever the GPU had still to compute.
#
#      Yes. ``item`` waits until the queue is empty, and is charged for all of that.
#      Look at the column of the kernels to see what took the time.
#
# Draw one step as a timeline
# ---------------------------
#
# The table is like a receipt: it says what each thing cost, and not in which order you
# bought them. The order is in the events behind the table. We draw the events of one
# step: our labels, the operators below them, and what a GPU did, if there was one.

# fold: Pick the events of one step, and draw them

events = recorded.events()
ours = [e for e in events if e.name.startswith("# ") and e.device_type == cpu]
last_step = sorted(ours, key=lambda e: e.time_range.start)[-len(parts) :]
begin, end = last_step[0].time_range.start, last_step[-1].time_range.end


def top_operator(event):
    """An operator that was not called by another one."""
    parent = event.cpu_parent
    is_operator = event.name.startswith("aten::")
    return is_operator and not (parent and parent.name.startswith("aten::"))


rows = {
    "labels": last_step,
    "operators": [e for e in events if e.device_type == cpu and top_operator(e)],
    "device": [e for e in events if e.device_type != cpu and not e.is_user_annotation],
}
rows = {
    name: [e for e in row if begin <= e.time_range.start < end]
    for name, row in rows.items()
}
colors = dict(zip(parts, ("C0", "C1", "C2", "C3", "C4"), strict=True))


def part_of(event):
    """The label whose time the event began in."""
    inside = [
        e.name[2:] for e in last_step if e.time_range.start <= event.time_range.start
    ]
    return inside[-1]


figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
shown = [name for name, row in rows.items() if row]
for height, name in enumerate(shown):
    for event in rows[name]:
        start = event.time_range.start - begin
        bar = [(start, event.time_range.elapsed_us())]
        color = "gray" if name == "device" else colors[part_of(event)]
        axes.broken_barh(bar, (height - 0.4, 0.8), color=color, lw=0)
axes.set_yticks(range(len(shown)), shown)
axes.invert_yaxis()
axes.set(xlabel="microseconds (with profiler)", title=f"One training step on {device}")
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
figure.legend(handles, colors, loc="outside lower center", ncols=3)
plt.show()

busy = sum(e.time_range.elapsed_us() for e in rows["operators"])
print(f"{len(rows['operators'])} operators begun, in {end - begin:.0f} µs")
print(f"inside operators: {busy / (end - begin):.0%} of the time; the rest is between")

# %%
# In the row of the operators each bar is an operator. The gaps between the bars are
# Python, PyTorch's own book-keeping, and the profiler. Many slim bars with gaps say
# that the step is made of *starting* things. A few broad bars say that it is made of
# computing. If there is a row for the device, look at its gaps: there the GPU waits for
# Python.
#
# For larger programs a viewer is better. The profiler writes Chrome's trace format,
# which `Perfetto <https://ui.perfetto.dev>`__ opens in any browser. (The file stays on
# your computer.)

scratch = tempfile.TemporaryDirectory()
trace = Path(scratch.name) / "trace.json"
recorded.export_chrome_trace(str(trace))
print(f"{trace.name}: {trace.stat().st_size / 1e6:.1f} MB for {len(events)} events")

# %%
# Find the lines that make Python wait
# ------------------------------------
#
# On CUDA, each read of a value makes Python wait until the queue is empty: the drawing
# in :doc:`lesson 8 </lessons/08_was_it_faster>` shows it. A read is ``item()``, and so
# is every ``if`` and ``float()`` of a tensor. In a profile all of these appear as
# ``aten::_local_scalar_dense``. (``.cpu()`` and ``.tolist()`` are copies, and appear as
# such.) How many reads do you expect in a step?


def reads_a_step(profiled):
    found = [e.count for e in profiled.key_averages() if "_local_scalar_dense" in e.key]
    return sum(found) / steps


print(f"{reads_a_step(recorded):.1f} reads a step")

# %%
# The profile says how many. Which *line* each of them is in, the :term:`practice GPU`
# can say, on any machine. It logs every copy and every wait:

with gpulesson.practice_gpu(force=True) as gpu:
    gpu.clear_events()  # count from here, also if it was running before
    train(steps, *prepare(torch.device("cuda")))
print(gpu.report())

# %%
# Look for the line that stands there as often as there are steps. It is the one to
# change. The copies from before the loop are made once.
#
# The log has fewer reads than the profile, because it leaves out those that wait for
# nothing. Adam counts its steps in one small tensor for each :term:`parameter`, and
# keeps these on the CPU. The profile contains these reads, too.
#
# On a CUDA GPU PyTorch itself can name the lines. After
# ``torch.cuda.set_sync_debug_mode("warn")`` each line that waits gives a warning, and
# after ``set_sync_debug_mode("error")`` the first one stops the program. It is
# experimental, and does not notice every wait (`PyTorch's page on it
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html>`__).
#
# To get rid of the read, keep the losses on the device, and read them together:


def train_quietly(steps, model, optimizer, batches, read=False):
    """The same steps without labels; the losses are read at the end, or each step."""
    feed, losses = iter(batches), []
    for _ in range(steps):
        inputs, targets = next(feed)
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if read else loss.detach())
    return sum(losses) / steps if read else torch.stack(losses).mean().item()


# %%
# Are the losses still the same, and are there fewer reads?

same = train(steps, *prepare(device)), train_quietly(steps, *prepare(device))
print(f"mean loss of {steps} steps: {same[0]:.6f} and {same[1]:.6f}")

with profile(activities=activities) as quiet:
    train_quietly(steps, *prepared)
print(
    f"reads a step: {reads_a_step(recorded):.1f} before, {reads_a_step(quiet):.1f} now"
)

# %%
# Did it also save time? Labels cost time themselves. For a fair answer we compare the
# second loop with itself, once with ``read=True``, in turns, A B B A, beside a control,
# as in :doc:`lesson 8 </lessons/08_was_it_faster>`:

# fold: Compare in turns, with and without reads


def seconds(read):
    return measure(
        lambda: train_quietly(steps, *prepared, read=read),
        device=device,
        warmup=0,
        repeats=1,
    ).median


for name, read in (("control", True), ("no reads", False)):
    ratios = []
    for _ in range(8):
        a, b, b_again, a_again = (seconds(r) for r in (True, read, read, True))
        ratios.append((b + b_again) / (a + a_again))
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:<8} {middle:.3f} times the time",
        f"(half of the rounds {low:.3f} to {high:.3f})",
    )

# %%
# On a CPU there is no queue to wait for, and a read costs one short call. Expect a
# ratio that the control hardly tells from 1. On a GPU a read costs what the queue would
# have hidden. **Count the reads, even on a machine where they cost nothing.**
#
# .. question:: Without ``loss.item()`` your laptop is no faster. What have you learned?
#
#    - Reads do not matter.
#
#      No. Your laptop computed on its CPU, and there Python has no queue to wait for.
#
#    - Nothing about a GPU; there the same change can save much.
#
#      Yes. Where it will run on a GPU, leave the read out, and measure there.
#
#    - The measurement is wrong: one call less must take less time.
#
#      No. It does take less time, and so little that the noise hides it.
#
# .. instructor-note::
#
#    Let everyone write down a guess before the table of the five parts appears. Many
#    guess the backward pass; on steps this small the optimizer can have the largest
#    share. Those who look for ``item`` in the first table on a CPU do not find it: it
#    is short there. Come back to it at the question about the GPU.
#
# Count the work, and name the limit
# ----------------------------------
#
# A profile does not say how fast this step *could* be. Three things can hold it back:
#
# - :term:`latency`: each operator has to be started;
# - :term:`bandwidth`: what the operators take and give has to travel to and from
#   memory;
# - arithmetic: the numbers have to be multiplied and added.
#
# .. drawing:: three_limits.svg
#
#    What takes longest in a step is its limit.
#
# So we count what the step does: its operators, the bytes of what they take and give,
# and the floating-point operations of its products, each a :term:`FLOP`. (Beside the
# products the other operations are few.) PyTorch can call a class of ours for each
# operator that runs. Ours adds up operators and bytes:


class Count(TorchDispatchMode):
    """Counts operators and the bytes of their arguments and results, views left out."""

    operators = nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators += 1
            tensors = tree_leaves((args, kwargs, result))
            self.nbytes += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


# %%
# The step that we count, for layers and a batch of any size:


def make_step(sizes, batch_size):
    model = MLP(*sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.rand(batch_size, sizes[0], device=device)
    targets = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def step():
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()

    step()  # the optimizer makes its memory
    return step


# %%
# PyTorch counts the FLOP itself. Which of the three numbers will grow with the batch
# size?

sizes = (784, 128, 64, 10)
counted = {}
for batch_size in (64, 512, 4096):
    step = make_step(sizes, batch_size)
    with Count() as count:
        step()
    with FlopCounterMode(display=False) as flops:
        step()
    counted[batch_size] = (count.operators, count.nbytes, flops.get_total_flops())
    print(
        f"batch {batch_size:>4}: {count.operators} operators,"
        f" {count.nbytes / 1e6:6.2f} MB, {flops.get_total_flops() / 1e6:7.1f} MFLOP"
    )

# %%
# The number of operators stays, the bytes grow, and the FLOP grow in proportion. (The
# bytes are an estimate. A cache may spare some, and an operator that picks rows is
# charged with the whole table. Where PyTorch takes other operators, as for Adam on
# CUDA, the counts are others, too.)
#
# Then measure what this machine can do of each:
#
# - the cost of starting things, by the same step of a network with one unit a layer,
#   which has the same operators and nothing to compute;
# - the rate of arithmetic, by one large matrix product;
# - the bandwidth, by copying, at the best of four sizes, so that a cache may help.

# fold: Measure what this machine can do

nothing = measure(make_step((1, 1, 1, 10), 1), device=device).median
n = 1024 if device.type == "cpu" else 4096  # large, for this device
a = torch.randn(n, n, device=device)
product = measure(lambda: a @ a, device=device, repeats=7).median
flop_rate = 2 * n**3 / product
byte_rate = 0.0
for size in (2**20, 2**22, 2**24, 2**26 if device.type == "cpu" else 2**28):
    block = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    copying = measure(lambda t=target, b=block: t.copy_(b), device=device, repeats=9)
    byte_rate = max(byte_rate, 2 * size / copying.median)  # read and written

print(f"on {device}, {torch.get_num_threads()} CPU thread, torch {torch.__version__}:")
print(f"the step with nothing to compute: {nothing * 1e6:8.0f} µs")
print(f"arithmetic:                       {flop_rate / 1e9:8.0f} GFLOP/s")
print(f"memory:                           {byte_rate / 1e9:8.1f} GB/s")

# %%
# Divide each count by its rate: that gives three times for each batch size. **The
# largest of the three times names the limit.** Beside them stands the measured step:

# fold: Compute the three times, measure the step, and draw all four

limits = {"latency": [], "bandwidth": [], "arithmetic": []}
measured = []
for batch_size, (_, nbytes, flops) in counted.items():
    needs = (nothing, nbytes / byte_rate, flops / flop_rate)
    for name, seconds in zip(limits, needs, strict=True):
        limits[name].append(seconds)
    timing = measure(make_step(sizes, batch_size), device=device, repeats=15)
    measured.append(timing.median)
    named = dict(zip(limits, needs, strict=True))
    largest = max(named, key=named.get)
    print(f"batch {batch_size:>4}: measured {timing.median * 1e3:.3f} ms", end="; ")
    print(", ".join(f"{name} {x * 1e3:.3f}" for name, x in named.items()))
    factor = timing.median / named[largest]
    print(f"            limit: {largest}; measured {factor:.1f} times that")

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
styles = {"latency": "--", "bandwidth": ":", "arithmetic": "-."}
axes.loglog(
    list(counted), [x * 1e3 for x in measured], "o-", color="gray", label="measured"
)
for name, seconds in limits.items():
    axes.loglog(
        list(counted), [x * 1e3 for x in seconds], styles[name], lw=2.5, label=name
    )
axes.set(
    xlabel="batch size",
    ylabel="milliseconds a step",
    title=f"A step and its limits ({device})",
)
axes.set_xticks(list(counted), list(counted))
axes.yaxis.set_major_formatter("{x:g}")
axes.minorticks_off()
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %%
# The limit says what is worth changing:
#
# - *Latency.* The step consists of being started. Fewer operators help, or more work
#   for each: a :term:`fused` optimizer, a larger batch, :term:`torch.compile`, a
#   :term:`CUDA graph`. A stronger GPU does not help.
# - *Bandwidth.* The numbers travel too often. Fuse operators, or use smaller types.
# - *Arithmetic.* The machine does what it is there for. A lower precision, a smaller
#   model or better hardware help.
#
# The measured step can take longer than all three. The parts add up, and hardly an
# operator reaches the rates of the large product and of the plain copy.
#
# .. question:: Latency 0.4 ms, bandwidth 0.1 ms, arithmetic 0.02 ms: what helps?
#
#    - A GPU with twice the arithmetic.
#
#      No. Arithmetic is the smallest of the three. Half of very little is saved.
#
#    - Numbers of two bytes instead of four.
#
#      No. That halves the bytes, and the second time of the three. Starting the
#      operators takes as long as before, and the conversions are more operators.
#
#    - A larger batch.
#
#      Yes. A step with a larger batch starts as many operators, and fewer steps go
#      through the data once. How the model then learns is a question for the next
#      lesson.
#
# Exercise
# --------
#
# .. exercise:: Three things that nobody needs
#    :minutes: 20
#    :difficulty: hard
#    :starter: exercise_11.py
#
#    The script contains a training loop that works and is slow. It counts operators,
#    bytes and reads for a step of it, so that no clock is needed.
#
#    1. **Predict:** read ``slow``. What would you change first?
#    2. Profile it: ``python exercise_11.py profile`` prints the table. What is called
#       how often, with which self time? Were you right?
#    3. Change ``mine(pixels, labels, steps)``, which calls ``slow`` to begin with. The
#       losses must stay as they are.
#
#    To check it: ``python -m gpulesson check exercise_11.py``.
#
#    You are done when it prints ``lean``.
#
# .. solution::
#    :file: solution_11.py
#
#    The images were scaled again in every step, all of them; a norm was computed whose
#    value was not used; and the loss was read in every step.
#
# .. keypoints::
#
#    - Profile a few steps after a warm-up; sort by self time, and look at the number of
#      calls.
#    - A timeline shows the gaps, where the GPU or the CPU waits; viewers open the
#      exported trace.
#    - ``_local_scalar_dense`` counts ``item()`` and its kin; the practice GPU's log and
#      ``set_sync_debug_mode`` name the lines that wait.
#    - Operators, their bytes, and the FLOP of products can be counted on any machine,
#      without a clock.
#    - Divide each count by what the machine can do. The largest time names the limit,
#      and the limit says what is worth changing.
#
# **Next:** :doc:`/lessons/12_speed_ladder` takes a run from a naive script towards its
# limit.

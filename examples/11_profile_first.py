"""
Profile before you optimise
===========================

See where the time of a training step goes, find what makes the CPU wait, and name the
limit that the step runs into.

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
"""

# %%
# Whoever optimises without a profile mends what is *visible* in the code. That is
# seldom what costs time. The patient is the loop of :doc:`lesson 5
# </lessons/05_fashion_mnist>`, in the form in which most scripts have it, with a
# ``loss.item()`` in every step. Before you read on: which of its parts takes longest?

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

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images = data.train_images[:8000].float() / 255
labels = data.train_targets[:8000]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# A profile and its table
# -----------------------
#
# ``record_function`` gives a part of the program a name of its own in the profile:

loss_fn = torch.nn.CrossEntropyLoss()


def prepare(device):
    """A fresh model, its optimizer, and batches, all on the device."""
    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    here, there = images.to(device), labels.to(device)
    return model, optimizer, Batches(here, there, batch_size=64, shuffle=True)


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

patient, steps = prepare(device), 30
train(5, *patient)  # warm up
with profile(activities=activities) as recorded:
    train(steps, *patient)

# %%
# The profiler notes every operator: when it began, when it ended, and what called it.
# ``key_averages`` adds up the calls of one name. *Self* time is an operator's own,
# without that of the operators that it calls; sorted by it, the table shows where the
# CPU really is. (``recorded.key_averages().table(sort_by="self_cpu_time_total")``
# prints the same with more columns.)

sums = recorded.key_averages()
everything = sum(entry.self_cpu_time_total for entry in sums)
by_self_time = sorted(sums, key=lambda entry: -entry.self_cpu_time_total)

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
# ``aten::`` is PyTorch's library of operators; ``addmm`` is the product in a linear
# layer on the way forward, ``mm`` the products on the way back. Three things to look
# for. First, is the time in a *few* names, or spread over many? Spread time cannot be
# mended by one better operator. Second, the names that are no ``aten::``. In our labels
# and the optimizer's, self time is Python and book-keeping. Names with ``autograd`` or
# ``Backward`` are PyTorch's engine for the way back, and names with ``cuda`` calls to
# the driver. (On CUDA, backward runs in a thread of its own, where its operators are
# counted; ``# backward`` waits for it, and its self time counts the same time again.)
# Third, how often something is called in a step. The last column is the time that
# kernels ran on a CUDA device, and stays zero elsewhere.
#
# The same for our own parts, with everything that they call:

cpu = torch.autograd.DeviceType.CPU
parts = {
    entry.key[2:]: entry.cpu_time_total / steps
    for entry in sums
    if entry.key.startswith("# ") and entry.device_type == cpu
}
whole = sum(parts.values())
for name, microseconds in parts.items():
    print(f"{name:<14} {microseconds:7.0f} µs a step  {microseconds / whole:5.1%}")

plain = measure(
    lambda: train(steps, *patient), device=device, warmup=1, repeats=5
).median


def profiled():
    with profile(activities=activities):
        train(steps, *patient)


watched = measure(profiled, device=device, warmup=1, repeats=3).median
print(f"profiling takes {watched / plain:.1f} times the time: read shares, not seconds")

# %%
# Compare with your guess. On a GPU, mind what the CPU's times mean: the time to *hand
# over* the work, except in the part that waits, which is charged with the work of all
# others.
#
# The timeline of a step
# ----------------------
#
# A table has forgotten the order. The events behind it have not. Of one step, we draw
# our labels, the operators below them, and what a GPU did, if there was one:

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

# %%

colors = dict(
    zip(parts, ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#000000"), strict=True)
)


def part_of(event):
    """The label whose time the event began in."""
    inside = [
        e.name[2:] for e in last_step if e.time_range.start <= event.time_range.start
    ]
    return inside[-1]


figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
shown = [name for name, row in rows.items() if row]
for height, name in enumerate(shown):
    for event in rows[name]:
        start = event.time_range.start - begin
        bar = [(start, event.time_range.elapsed_us())]
        color = "gray" if name == "device" else colors[part_of(event)]
        axes.broken_barh(bar, (height - 0.4, 0.8), color=color, ec="white", lw=0.3)
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
# Coloured bars are operators; the white between them is Python, PyTorch's own
# book-keeping and the profiler. Many slim bars with white between them say that the
# step is made of *starting* things. A few broad ones say that it is made of computing.
# If there is a row for the device, look at its gaps: there the GPU waits for Python.
#
# For larger programs a viewer is better. The profiler writes Chrome's trace format,
# which `Perfetto <https://ui.perfetto.dev>`__ opens in any browser (the file stays on
# your computer):

scratch = tempfile.TemporaryDirectory()
trace = Path(scratch.name) / "trace.json"
recorded.export_chrome_trace(str(trace))
print(f"{trace.name}: {trace.stat().st_size / 1e6:.1f} MB for {len(events)} events")

# %%
# Find the reads
# --------------
#
# ``item()`` appears in a profile as ``aten::_local_scalar_dense``, and so does every
# ``if`` and ``float()`` of a tensor. (``.cpu()`` and ``.tolist()`` are copies, and appear
# as such.) On CUDA each one makes Python wait until the queue is empty. How many are
# there?


def reads_a_step(profiled):
    found = [e.count for e in profiled.key_averages() if "_local_scalar_dense" in e.key]
    return sum(found) / steps


print(f"{reads_a_step(recorded):.1f} reads a step")

with gpulesson.practice_gpu(force=True) as gpu:  # it logs, on any machine
    train(steps, *prepare(torch.device("cuda")))
print(gpu.report())

# %%
# The profile says how many, the practice GPU's log says *which line*, and leaves out
# those for which nobody waits. (Adam counts its steps in one small tensor for each
# parameter, and keeps it on the CPU: those reads are in the profile, too.) Copies from
# before the loop are made once. The line to look at stands there as often as there are
# steps. Keep the losses on the device, and read them together:


def train_quietly(steps, model, optimizer, batches, read=False):
    """The same steps without labels; the losses are read at the end, or in each step."""
    feed, losses = iter(batches), []
    for _ in range(steps):
        inputs, targets = next(feed)
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if read else loss.detach())
    return sum(losses) / steps if read else torch.stack(losses).mean().item()


same = train(steps, *prepare(device)), train_quietly(steps, *prepare(device))
print(f"mean loss of {steps} steps: {same[0]:.6f} and {same[1]:.6f}")

with profile(activities=activities) as quiet:
    train_quietly(steps, *patient)
print(
    f"reads a step: {reads_a_step(recorded):.1f} before, {reads_a_step(quiet):.1f} now"
)

# %%
# Did it also save time? Labels cost time themselves. For a fair answer we compare the
# second loop with itself, once with ``read=True``, in turns, A B B A, beside a control
# (:doc:`lesson 8 </lessons/08_was_it_faster>`):


def seconds(read):
    return measure(
        lambda: train_quietly(steps, *patient, read=read),
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
# On a CPU nobody waits, and a read costs one short call: expect a ratio that the
# control hardly tells from 1. On a GPU a read costs what the queue would have hidden.
# That is why it is worth counting reads on a machine that cannot time them.
#
# Name the limit
# --------------
#
# Now the question that a profile alone does not answer: how fast *could* this step be?
# Three things can hold it back. So count what it does: its operators (each has to be
# started), the bytes of what they take and give, and the floating-point operations of
# its products, beside which the others are few.


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
# (The bytes are an estimate. A cache may spare some, and an operator that picks rows is
# charged with the whole table. Where PyTorch takes other operators, as for Adam on
# CUDA, the counts are others, too.)
#
# Then measure what this machine can do of each. The cost of starting things comes from
# the same step of a network with one unit a layer: the same operators, with nothing to
# compute. The arithmetic comes from one large matrix product, the bandwidth
# from copying, at the best of four sizes, so that a cache may help:

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
# Three times for each batch size, and beside them the measured step. The largest of the
# three names the limit:

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

figure, axes = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
styles = {"latency": "--", "bandwidth": ":", "arithmetic": "-."}
axes.loglog(list(counted), [x * 1e3 for x in measured], "ko-", label="measured")
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
# Where the measured line runs beside *latency*, the step consists of being started:
# fewer operators help, or more work for each (a fused optimizer, a larger batch,
# ``torch.compile``, a CUDA graph), and a stronger GPU does not. Beside *bandwidth*, the
# numbers travel too often: fuse operators, use smaller types. Beside *arithmetic*, you
# have arrived: a lower precision, a smaller model, or better hardware. A measured point
# can lie above all three, as the parts add up, and hardly an operator reaches the rates
# of the large product and of the plain copy.
#
# Exercise
# --------
#
# .. exercise:: Three things that nobody needs
#    :minutes: 20
#    :difficulty: hard
#    :starter: 11_slow_loop.py
#
#    The script contains a training loop that works and is slow. It counts operators,
#    bytes and reads for a step of it, so that no clock is needed.
#
#    1. **Predict:** read ``slow``. What would you change first?
#    2. Profile it: ``python 11_slow_loop.py profile`` prints the table. What is called
#       how often, with which self time? Were you right?
#    3. Change ``mine``, which is the same to begin with. The losses must stay as they
#       are.
#
#    To check it: ``python -m gpulesson check 11_slow_loop.py``.
#
#    You are done when it prints ``lean``.
#
# .. solution::
#    :file: 11_slow_loop.py
#
#    The images were scaled again in every step, all of them; a norm was computed that
#    nobody looked at; and the loss was read in every step.
#
# .. keypoints::
#
#    - Profile a few steps after a warm-up; sort by self time, and look at the number of
#      calls.
#    - A timeline shows the gaps, where somebody waits; viewers open the exported trace.
#    - ``_local_scalar_dense`` counts ``item()`` and its kin; the practice GPU's log names
#      the lines that wait.
#    - Operators, their bytes, and the FLOPs of products can be counted on any machine,
#      without a clock.
#    - Divide each count by what the machine can do. The largest time names the limit,
#      and the limit says what is worth changing.
#
# **Next:** :doc:`/lessons/12_speed_ladder` takes a training from a naive script towards
# its limit.

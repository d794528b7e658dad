"""
Was it faster?
==============

Measure a training step so that the number means something, and find out when a GPU
pays.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - Why does the same call take another time each time I measure it?
      - What does a clock miss when the work happens on a GPU?
      - Is this change an improvement, or noise?
      - Should this model go on a GPU at all?

   .. objectives::

      - Tell the first calls from the ones that count.
      - Place the waiting, with ``synchronize`` or with events.
      - Decide with paired runs whether two variants differ.
      - Draw the picture of your own machine that shows where arithmetic begins to cost.
      - Compute what a faster device can bring to a whole script.
"""

# %%
# "It is twice as fast now." Said who, measured how, on what? This lesson makes the
# numbers of such a sentence. Whatever it prints is true for the machine that ran it,
# and for no other; so it prints the machine first.

import itertools
import statistics
import time

import matplotlib.pyplot as plt
import torch

from gpulesson import practice
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize
from gpulesson.training import fit

all_threads = torch.get_num_threads()
torch.set_num_threads(1)  # one thread is disturbed less by whatever else runs here
device = choose_device()
print(f"{device}: {device_name(device)}")
print(
    f"PyTorch {torch.__version__}, {torch.get_num_threads()} of {all_threads} threads"
)

# %%
# The first calls are different
# -----------------------------
#
# The work to be timed is one training step: forward, loss, backward, Adam. We take the
# time of each of the first sixty steps of a fresh model, and wait for the device before
# each look at the clock:


def make_step(width=128, batch_size=64, device=device, **adam_options):
    """A function that trains one step of an MLP on random numbers."""
    model = MLP(width, width, width, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **adam_options)
    inputs = torch.randn(batch_size, width, device=device)
    targets = torch.randint(10, (batch_size,), device=device)

    def step():
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


step = make_step()
seconds = []
for _ in range(60):
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    seconds.append(time.perf_counter() - start)

late = seconds[20:]
low, middle, high = (x * 1e3 for x in statistics.quantiles(late, n=4))
print(f"first step: {seconds[0] * 1e3:.2f} ms, second: {seconds[1] * 1e3:.2f} ms")
print(
    f"steps 21 to 60: median {middle:.3f} ms, half of them {low:.3f} to {high:.3f} ms"
)
print(f"slowest of those: {max(late) * 1e3:.3f} ms; mean {1e3 * sum(late) / 40:.3f} ms")

# %%

figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
axes.semilogy(range(1, 61), [x * 1e3 for x in seconds], "o", ms=4, label="one step")
axes.axhline(middle, color="C1", label="median of steps 21 to 60")
axes.axhspan(low, high, color="C1", alpha=0.25, label="half of them")
axes.set(
    xlabel="step", ylabel="milliseconds", title=f"The same step, sixty times ({device})"
)
axes.yaxis.set_major_formatter("{x:g}")
axes.yaxis.set_minor_formatter("{x:g}")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %%
# All sixty steps do the same arithmetic. The first one also does what is done once: the
# optimizer makes its memory, and libraries choose and load the code for each operation,
# on a GPU the kernels. Leave those steps out, as *warm-up*. The others scatter too, and
# the stragglers are all on one side: another program can make a step much slower, and
# nothing makes it much faster. A straggler pulls the mean up, and leaves the median
# where it is. So report the **median**, and beside it how far the runs are apart.
#
# A clock that waits, and one that does not
# -----------------------------------------
#
# In :doc:`lesson 7 </lessons/07_common_mistakes>` a call returned before its product
# was there. The queue can hold many calls. We hand over twenty steps, look at the clock
# without waiting, and look again when the device has finished:

for _ in range(5):
    step()  # warm up
synchronize(device)

start = time.perf_counter()
for _ in range(20):
    step()
handed_over = time.perf_counter() - start
synchronize(device)
done = time.perf_counter() - start

print(f"20 steps on {device}: handed over after {handed_over * 1e3:.2f} ms,")
print(f"computed after {done * 1e3:.2f} ms")
print(f"a clock that does not wait sees {handed_over / done:.0%} of the time")
print("with warm-up, waiting and repeats:", measure(step, device=device))

# %%
# On a CPU there is no queue: it sees all of it, give or take the time to ask. On a GPU
# the share can be anything. A few percent mean that the GPU is busy and Python is far
# ahead; nearly everything means that the GPU waits for Python. That is a finding in
# itself, which the coming lessons use. :func:`gpulesson.timing.measure` does what the
# first cell did: warm-up, ``synchronize`` before *and* after, repeats, median and
# quartiles.
#
# On CUDA there is a second way, which makes nobody wait in between. An *event* is a
# mark in the queue, and the GPU itself notes the time when it passes the mark:


def event_milliseconds(fn, repeats=20):
    """Time from mark to mark, by the GPU's clock; one wait, at the end."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        fn()
        mark.record()
    torch.cuda.synchronize()  # the only wait
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


practice.start()
cuda_step = make_step(device=torch.device("cuda"))
for _ in range(3):
    cuda_step()
times = event_milliseconds(cuda_step)
simulated = "simulated" in torch.cuda.get_device_name()
print(torch.cuda.get_device_name())
print(f"between two marks: {statistics.median(times):.3f} ms (median of {len(times)})")
whose = "the CPU's, simulating" if simulated else "the GPU's, pauses included"
print("whose time is this?", whose)
practice.stop()

# %%
# Between two marks lies all that the GPU did, *and* the pauses in which its queue was
# empty. If the GPU waits for Python, as the share printed above may say, events measure
# Python as well.
#
# The code is right on both. The number is not: the practice GPU simulates what is where
# and what waits, and **no time**. If the name above says *simulated*, you have seen how
# events are used, and measured a simulation. Whoever wants to know about a GPU has to
# ask one.
#
# Is it noise?
# ------------
#
# Two variants of the step: Adam as it is by default, and Adam with ``fused=True``,
# which updates a parameter in one pass over its numbers. To compare them, do not
# measure all of one and then all of the other: a machine that gets warm, or busy,
# would decide. Measure in turn, A B B A, and look at the *ratio* within each round. And
# first compare A **with itself**. That control shows how large a difference is nothing:


def paired_ratios(first, second, rounds=20, steps=5):
    """Time of `second` divided by time of `first`, once per round of A B B A."""

    def block(fn):
        return measure(
            lambda: [fn() for _ in range(steps)], device=device, warmup=0, repeats=1
        )

    ratios = []
    for _ in range(rounds):
        a, b, b_again, a_again = (
            block(f).median for f in (first, second, second, first)
        )
        ratios.append((b + b_again) / (a + a_again))
    return ratios


default, itself = make_step(), make_step()
fused = make_step(fused=True)
paired_ratios(default, fused, rounds=3)  # warm up
results = {
    "control: default / default": paired_ratios(default, itself),
    "fused / default": paired_ratios(default, fused),
}

for name, ratios in results.items():
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name:<27} median {middle:.3f}, half of the rounds {low:.3f} to {high:.3f}")
control, other = (statistics.quantiles(ratios, n=4) for ratios in results.values())
apart = other[2] < control[0] or other[0] > control[2]
print(
    f"verdict on {device}:",
    f"fused takes {other[1]:.2f} times the default's time" if apart
    else "not told apart from the control by this measurement",
)  # fmt: skip

# %%

figure, axes = plt.subplots(figsize=(5.6, 2.8), layout="constrained")
for row, ratios in enumerate(results.values()):
    low, middle, high = statistics.quantiles(ratios, n=4)
    axes.plot(ratios, [row] * len(ratios), "o", color=f"C{row}", alpha=0.5)
    axes.plot([low, high], [row + 0.25] * 2, color=f"C{row}", lw=3)
    axes.plot(middle, row + 0.25, "k|", ms=14)
axes.axvline(1, color="gray", lw=1)
axes.set_yticks([0, 1], results)
axes.set(xlabel="ratio of times (less than 1: less time)", ylim=(-0.4, 1.6))
axes.set_title("One dot a round; the bar holds half of them")
axes.grid(alpha=0.3, axis="x")
plt.show()

# %%
# If the two bars are clear of each other, the variants differ, here, today, at this
# size. If they overlap, this measurement cannot say so: more rounds or a quieter
# machine might. A ratio near 1 in the control is no matter of course. When it strays,
# believe nothing else from that run either.
#
# Where a GPU starts to pay
# -------------------------
#
# Now the question of :doc:`lesson 1 </lessons/01_is_there_a_gpu>`, for training instead
# of one product. Two numbers decide how much work is in a step: the model's *width* and
# the *batch size*. We time a step for each combination, on the CPU with one thread and
# with all, and on the accelerator if there is one. A step takes about six operations per
# weight and sample: a multiplication and an addition on the way forward, and twice that
# on the way back, once for the weights' gradients and once for the inputs'. (The first
# layer leaves out the last part: nobody wants the gradients of the data.)

widths, batch_sizes = [16, 64, 256, 1024], [8, 64, 512, 2048]


def step_seconds(device, threads):
    """Median seconds of a step, one row per width, one column per batch size."""
    torch.set_num_threads(threads)
    return torch.tensor(
        [
            [
                measure(
                    make_step(w, n, device), device=device, warmup=2, repeats=3
                ).median
                for n in batch_sizes
            ]
            for w in widths
        ]
    )


cpu = torch.device("cpu")
seconds = step_seconds(cpu, 1).minimum(step_seconds(cpu, all_threads))  # [4, 4]
operations = torch.tensor(
    [[n * (6 * (2 * w**2 + 10 * w) - 2 * w**2) for n in batch_sizes] for w in widths]
)
rates = operations / seconds / 1e9  # billion operations a second
panels = {"Billion operations a second (CPU)": rates}
if device.type != "cpu":
    gains = seconds / step_seconds(device, all_threads)
    panels[f"CPU time / {device} time"] = gains

print(f"milliseconds a step on the CPU, 1 or {all_threads} threads, whichever is less")
print("      batch " + "".join(f"{n:>9}" for n in batch_sizes))
for w, row in zip(widths, seconds.tolist(), strict=True):
    print(f"width {w:>5} " + "".join(f"{x * 1e3:>9.3f}" for x in row))

# %%
# The brighter a cell, the better the step uses the machine. Where there is an
# accelerator, a second picture compares the two: above 1, the accelerator is ahead.

figure, grid = plt.subplots(
    1, len(panels), figsize=(5 * len(panels), 4), layout="constrained", squeeze=False
)
for axes, (title, values) in zip(grid[0], panels.items(), strict=True):
    picture = axes.imshow(values, cmap="cividis", norm="log", aspect="auto")
    for i, j in itertools.product(range(4), range(4)):
        bright = picture.norm(values[i, j].item()) > 0.5
        color = "black" if bright else "white"
        number = f"{values[i, j]:.3g}"
        axes.text(j, i, number, ha="center", va="center", color=color, fontsize=13)
    axes.set(xlabel="batch size", ylabel="width", title=title)
    axes.set_xticks(range(4), batch_sizes)
    axes.set_yticks(range(4), widths)
plt.show()

for w, times, row in zip(widths, seconds.tolist(), rates.tolist(), strict=True):
    more, best = times[3] / times[2], max(row) / rates.max().item()
    print(
        f"width {w:>4}: batch {batch_sizes[3]} takes {more:.1f} times as long",
        f"as {batch_sizes[2]}; its best rate is {best:4.0%} of the best here",
    )
if device.type != "cpu":
    print(f"{device} at least 20 % ahead in {(gains > 1.2).sum()} of 16 cells")
else:
    print("no accelerator here: the notebook of this page draws its picture on one")

# %%
# Where the rate still grows to the right, the step consists of what does not grow with
# the batch: *starting* operations, and, in a wide model, the optimizer's walk through
# all weights. Then a larger batch takes hardly longer. A GPU has to be told to start
# each operation as well, and has little to win from that part. Where the rate has
# reached its plateau, time grows with the batch: the step consists of arithmetic, or of
# moving numbers to and from memory, and hardware with more of either has something to
# gain. The printed factors tell how far a width has come at the right end of its row,
# where the batch grows by a factor of 4: 1 would be all fixed cost, 4 all work. **If
# your model lives in the dark corner, try a larger batch before you buy a GPU.**
#
# When it is the wrong tool
# -------------------------
#
# A GPU speeds up the part of a script that computes on it. The rest stays as it is, and
# bounds the gain: if the share *p* of the time becomes *s* times as fast, the whole
# becomes 1 / (1 − *p* + *p* / *s*) times as fast (Amdahl's law). Here is a whole small
# script, part by part:

torch.set_num_threads(1)  # as in the other lessons
parts = {}


def timed(name, fn):
    start = time.perf_counter()
    result = fn()
    synchronize(device)
    parts[name] = time.perf_counter() - start
    return result


data = timed("load the images", load_fashion_mnist)
images, labels = timed(
    "convert and move",
    lambda: (data.train_images.to(device).float() / 255, data.train_targets.to(device)),
)
model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()
batches = Batches(images, labels, batch_size=64, shuffle=True)
timed("train one epoch", lambda: fit(model, batches, loss_fn, optimizer, device, 1))
timed("evaluate", lambda: evaluate(model, batches, loss_fn, device))
rows = [(images[i : i + 1].cpu(),) for i in range(200)]
timed(
    "200 single answers",
    lambda: [model(row.to(device)).argmax().item() for (row,) in rows],
)

whole = sum(parts.values())
print(f"{data.source}, on {device}, one run each:")
for name, part in parts.items():
    print(f"{name:<19} {part:7.3f} s  {part / whole:5.1%}")
share = parts["train one epoch"] / whole
for times in (2, 10, 1000):
    gain = 1 / (1 - share + share / times)
    print(f"training {times:>4} times as fast: the whole script {gain:.2f} times")

# %%
# The last line is close to the limit, 1 / (1 − *p*). No faster training, at any price,
# beats it; only work on the other parts does. (Some of those compute on the device as
# well, such as the evaluation; loading does not. And starting Python and importing
# PyTorch takes time that is not even in the table.) More epochs raise the share of the
# training, and with it what a GPU can bring. So a GPU is the wrong tool when
#
# - a step is small, and must be: tiny models, answers for one sample at a time;
# - the time goes elsewhere: reading, decoding, preparing (:doc:`lesson 9
#   </lessons/09_feeding_the_gpu>`);
# - each step must look at the result of the one before, on the CPU;
# - the whole run takes a few seconds anyway.
#
# Exercise
# --------
#
# .. exercise:: Mend a stopwatch
#    :minutes: 15
#    :difficulty: medium
#    :starter: 08_stopwatch.py
#
#    The script has a made-up device with a queue, a slow start and a busy neighbour,
#    and a made-up clock. So its true speed is known, and your measurement can be
#    checked: no noise, the same numbers on every machine.
#
#    1. **Predict:** ``stopwatch`` looks at the clock before and after one call. Is its
#       result too large or too small? By how much?
#    2. Run it, and compare.
#    3. Mend ``stopwatch``: warm up, wait, repeat, take the median.
#    4. Leave out one of the four, each in turn. Which one is missed how?
#
#    To check it: ``python -m gpulesson check 08_stopwatch.py``.
#
#    You are done when it prints ``measured right``.
#
# .. solution::
#    :file: 08_stopwatch.py
#
#    It waits before the clock starts, too. Otherwise the first run counts what was
#    handed over earlier; the median hides that one run here, and a mean would not.
#
# .. keypoints::
#
#    - The first calls pay for what is done once. Warm up, then report median and
#      spread, with the machine that they belong to.
#    - A GPU works through a queue: wait before each look at the clock, or let events in
#      the queue keep the time. A simulated GPU has no speed to measure.
#    - Compare in turn, A B B A, with a control of A against itself; what does not stand
#      out from the control has not been shown.
#    - Width times batch size decides: a small step is all overhead, and there a GPU has
#      nothing to win.
#    - The part that is not sped up bounds the gain of the whole.
#
# **Next:** :doc:`/lessons/09_feeding_the_gpu` looks at what a step waits for before it
# begins.

"""
8 · Was it faster?
==================

Measure how fast training is, decide whether a change helped, and find out when faster
hardware pays.

.. overview::
   :teaching: 27
   :exercises: 15

   .. objectives::

      - Time a training step so that the number means something.
      - Compare two variants in turns, beside a control.
      - Say what a faster device can bring to a step, and to a whole script.

   .. prereq::

      - :doc:`/lessons/04_training_loop`, for the five calls of a training loop
      - :doc:`/lessons/05_fashion_mnist`, for the script that we time at the end
"""

# %%
# "It is twice as fast now." Who measured it, how, and on which machine? Here you learn to
# measure the numbers for such a sentence.

import statistics
import time
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

from gpulesson import practice_gpu
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize

# %%
# A time is true for the machine that needed it, so we print the machine first. We compute
# on one thread of the CPU: other programs disturb it less than all threads.

all_threads = torch.get_num_threads()
torch.set_num_threads(1)
device = choose_device()
print(f"{device}: {device_name(device)}")
print(f"PyTorch {torch.__version__}, 1 of {all_threads} threads")

# %%
# Leave out the first steps
# -------------------------
#
# This function makes a network and a :term:`batch` of random numbers. It returns one
# training :term:`step` as a function, which we can call again and again:


def make_step(width=128, batch_size=64, device=device, **adam_options):
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


# %%
# We time each of the first sixty steps. All of them do the same arithmetic. Do you expect
# sixty equal times? (``synchronize`` waits until the :term:`device` has finished. The
# next section says why.)

step = make_step()
times = []
for _ in range(60):
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    times.append(1e3 * (time.perf_counter() - start))

# %%
# Each dot of the picture is one step. The scale of the times is logarithmic:

# fold: Draw the sixty times, and print a summary
from matplotlib.ticker import LogLocator, NullLocator

late = times[20:]
low, middle, high = statistics.quantiles(late, n=4)
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.semilogy(range(1, 61), times, "o", ms=4, label="one step")
ax.axhline(middle, color="C1", label="median of steps 21 to 60")
ax.axhspan(low, high, color="C1", alpha=0.25, label="half of them")
ax.set(xlabel="step", ylabel="milliseconds")
ax.set_title(f"The same step, sixty times ({device})")
ax.yaxis.set_major_formatter("{x:g}")
ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
ax.yaxis.set_minor_locator(NullLocator())
ax.legend()
ax.grid(alpha=0.3)
plt.show()

print(f"the first step: {times[0]:.2f} ms")
print(
    f"steps 21 to 60: median {middle:.2f} ms, half of them {low:.2f} to {high:.2f} ms"
)
print(f"                slowest {max(late):.2f} ms")

# %%
# The first step also does what is needed only once: the :term:`optimizer` makes its
# memory, and libraries load the code for each operation, on a :term:`GPU` the
# :term:`kernels <kernel>`. Leave such steps out. They are called *warm-up*.
#
# The later steps differ, too. Other programs can make a step much slower, and nothing can
# make it much faster. A few slow steps pull a mean up, and hardly move the median. **Warm
# up, then report the median, and beside it how far the runs are apart.** The median is
# what you will wait for. Lessons 1 and 11 ask what a machine *can* do, and for that the
# quickest run counts, as other programs only make a run slower.
#
# .. question:: One call takes 9 ms, the next five about 1 ms. What do you report?
#
#    - The mean of all six.
#
#      No. The first call did extra work that is done once. The mean charges every call
#      with a part of it, and how large a part depends on how many calls you made.
#
#    - The smallest of the six.
#
#      No. That is the one call with the best luck. It does not say what a usual call
#      takes, and not how far the calls are apart.
#
#    - The median of the last five, and how far they are apart.
#
#      Yes. The first call was warm-up. The median is a usual call, and the spread says
#      how much it can be trusted.
#
# .. fold:: Going further: warm up with every size of images
#
#    Scripts for images often set ``torch.backends.cudnn.benchmark = True``. Then cuDNN,
#    NVIDIA's library for convolutions, tries several algorithms in the first call with
#    each size of batch and image, and keeps the fastest. Another run may keep another
#    one, and round differently (`PyTorch's page on reproducibility
#    <https://docs.pytorch.org/docs/stable/notes/randomness.html#cuda-convolution-benchmarking>`__).
#
# Wait before each look at the clock
# ----------------------------------
#
# With a GPU, Python does not wait for each operation. It hands the operation over and
# goes on at once. The operations wait in a queue, a :term:`stream`, and the GPU works
# through it. Where Python needs a result, as in ``loss.item()``, it has to wait:
#
# .. drawing:: queue.svg
#
#    Python hands the work over and runs ahead; where it reads a result, it waits.
#
# So a clock that does not wait is like timing a letter by your walk to the letterbox: you
# are back soon, and the letter has not arrived.
#
# .. film:: films/clock.py
#
#    Step through a measurement of three products. Then take away one of its waits: how
#    many kernels are in the queue when Python looks at the clock, and does it count too
#    little or too much?
#
# We hand over some steps, and look at the clock at once. We look again when the device
# has finished. Will the two times differ?

for steps in (2, 200):
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    handed_over = 1e3 * (time.perf_counter() - start)
    synchronize(device)
    done = 1e3 * (time.perf_counter() - start)
    print(f"{steps:>3} steps: {handed_over:.2f} ms until handed over,", end=" ")
    print(f"{done:.2f} ms until done")

# %%
# On a CPU there is no queue, and the two times are nearly equal. On a GPU, compare them:
#
# - *Handing over takes much less.* The GPU is busy, and Python is far ahead.
# - *The two are nearly equal.* The GPU waits for Python: it has finished each operation
#   before the next one arrives. Steps as small as ours can do this. You don't know in
#   advance which case is yours, so wait all the same.
# - *They differ for 2 steps, and are nearly equal for 200.* The queue was full. On
#   :term:`CUDA` it holds about a thousand operations (`measured in NVIDIA's forum
#   <https://forums.developer.nvidia.com/t/cuda-stream-are-blocked-when-luanch-lots-of-kernels-1000/68937>`__),
#   and then each call waits for a free place.
#
# **Wait for the device before the first look at the clock and before the last.**
# :func:`gpulesson.timing.measure` does it for you, with warm-up and repeats:

print(measure(step, device=device))

# %%
# You see the median, the range of the middle half of the runs, and the machine.
#
# .. question:: On a GPU your clock shows 0.2 ms around ``model(x)``. What took them?
#
#    - Computing the outputs.
#
#      No. The call returns when its operations are in the queue. At that moment the GPU
#      may not even have begun.
#
#    - Handing the operations over.
#
#      Yes. That is Python's part of the work. For the whole, wait before the first look
#      at the clock and before the second.
#
#    - Computing the outputs, less a small fixed amount that one can add.
#
#      No. What the clock missed is what was still in the queue. That is more for a
#      larger model or batch, so there is no fixed amount.
#
# .. fold:: Going further: let a CUDA GPU keep the time
#
#    An *event* is a mark in the queue. When the GPU passes it, the GPU notes the time. So
#    you wait once, after all steps. The time between two marks also contains the pauses
#    in which the queue was empty.
#
#    .. code-block:: python
#
#       marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
#       marks[0].record()
#       for mark in marks[1:]:
#           step()
#           mark.record()
#       torch.cuda.synchronize()  # the only wait
#       times = [a.elapsed_time(b) for a, b in pairwise(marks)]  # milliseconds
#
#    PyTorch has a stopwatch, too. `torch.utils.benchmark.Timer
#    <https://docs.pytorch.org/docs/stable/benchmark_utils.html>`__ warms up, waits for
#    the GPU, and computes on one thread unless you say otherwise.
#
# See which lines wait for the GPU
# --------------------------------
#
# To measure, you want Python to wait. In a training loop you do not: while Python waits,
# it hands nothing over, and soon the GPU has nothing to do. Which of these lines wait?

lines = [
    "gpu_step()",
    "x.sum()",
    "x.sum().item()",
    "if x.sum() > 0: pass",
    "x[x > 0]",
    "x.unique()",
    "torch.where(x > 0, x, 0)",
    'torch.ones(3).to("cuda")',
    'torch.ones(3, device="cuda")',
]

# %%
# ``set_sync_debug_mode("error")`` makes each line that waits an error. We try the lines
# on the :term:`practice GPU`, with ``exec``, which runs a line of Python that is given as
# text:

with practice_gpu(force=True):
    x = torch.randn(8, device="cuda")
    gpu_step = make_step(device="cuda")
    gpu_step()  # warm up
    torch.cuda.set_sync_debug_mode("error")
    for line in lines:
        try:
            exec(line)
            print(f"{line:<30} does not wait")
        except RuntimeError:
            print(f"{line:<30} waits")
    torch.cuda.set_sync_debug_mode("default")

# %%
# A whole step only hands over work. ``item`` and ``if`` need a number from the GPU.
# ``x[x > 0]`` and ``unique`` need one, too: how many values there will be decides the
# :term:`shape` of the result. (``nonzero`` waits for the same reason.) The result of
# ``where`` has the shape of ``x``, so it does not wait. ``to`` waits for its copy, and
# ``device="cuda"`` copies nothing. **A line waits when Python needs a value or a shape
# that only the GPU knows, and usually when it copies between CPU and GPU.**
#
# In your own script, switch it on after the warm-up. ``"warn"`` prints a warning and goes
# on. `It does not notice every wait
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html>`__.
#
# Read GPU-Util as busy or idle
# -----------------------------
#
# ``nvidia-smi`` shows a percentage, *GPU-Util*. It is the share of the last moments (a
# sixth of a second to a second) in which `at least one kernel was running
# <https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html>`__.
#
# - *20 %* says that the GPU has nothing to do for four fifths of the time. It waits for
#   data (:doc:`lesson 9 </lessons/09_feeding_the_gpu>`), or for Python to hand over many
#   small operations.
# - *100 %* does not say that the GPU is used well. A kernel that keeps a few of its cores
#   busy counts as much as one that uses all of them.
#
# **GPU-Util finds an idle GPU, and says nothing about a busy one.** To compare two
# versions of a script, measure samples a second.
#
# Compare two variants in turns
# -----------------------------
#
# You have now seen three times of the same step: the median below the picture, the time
# of 200 steps divided by 200, and the line from ``measure``. They differ, although the
# code is the same, because they were taken at different moments, beside other programs.
# The same would happen to two variants if you measured all of A and then all of B. So
# measure in turns, A B B A, and look at the *ratio* within each round:


def clock(fn):
    """Seconds of five calls."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(5):
        fn()
    synchronize(device)
    return time.perf_counter() - start


def paired_ratios(a, b, rounds=20):
    """Time of b divided by time of a, once per round of A B B A."""
    ratios = []
    for _ in range(rounds):
        a1, b1, b2, a2 = clock(a), clock(b), clock(b), clock(a)
        ratios.append((b1 + b2) / (a1 + a2))
    return ratios


# %%
# Our variants are Adam as it is by default, and Adam with ``fused=True``, which updates
# the :term:`parameters <parameter>` with fewer operations. First we compare the default
# **with itself**. This *control* shows how large a difference can be that means nothing:

default, itself = make_step(), make_step()
fused = make_step(fused=True)
for fn in (default, itself, fused):
    clock(fn)  # warm up

control = paired_ratios(default, itself)
variant = paired_ratios(default, fused)

# %%
# A dot is the ratio of one round, and a bar holds the middle half of the rounds:

# fold: Draw the ratios, and print the verdict
results = {"control: default / default": control, "fused / default": variant}
fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for row, (name, ratios) in enumerate(results.items()):
    low, middle, high = statistics.quantiles(ratios, n=4)
    ax.plot(ratios, [row] * len(ratios), "o", color=f"C{row}", alpha=0.5)
    ax.plot([low, high], [row + 0.25] * 2, color=f"C{row}", lw=3)
    ax.plot(middle, row + 0.25, "|", color="gray", ms=14, mew=2)
    print(f"{name:<27} median {middle:.2f}, middle half {low:.2f} to {high:.2f}")
ax.axvline(1, color="gray", lw=1)
ax.set_yticks([0, 1], results)
ax.set(xlabel="ratio of times (less than 1: less time)", ylim=(-0.4, 1.6))
ax.set_title("One dot a round; the bar holds half of them")
ax.grid(alpha=0.3, axis="x")
plt.show()

quiet, other = (statistics.quantiles(ratios, n=4) for ratios in results.values())
apart = other[2] < quiet[0] or other[0] > quiet[2]
found = f"fused takes {other[1]:.2f} times the default's time"
print(f"verdict on {device}:", found if apart else "the bars overlap: not told apart")

# %%
# If the two bars are clear of each other, the variants differ. If they overlap, this
# measurement cannot tell. Look at the control, too: both of its sides are the same, so a
# ratio other than 1 is noise. If its bar strays far from 1, do not believe the other bar
# either. **What does not stand out from the control has not been shown.**
#
# The result also belongs to this device. On a CPU, Adam's default updates one parameter
# after the other. On CUDA its default is :term:`foreach`, which updates many with one
# operation (`PyTorch's page on Adam
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html>`__). So a CPU
# cannot say what ``fused=True`` brings on a GPU: measure where you will train.
#
# .. fold:: Going further: the clock of a GPU changes, too
#
#    A GPU sets its clock by itself. It is low while there is nothing to do, and goes up
#    with the work. It goes down again where the GPU would use more power than its limit,
#    or gets too hot (`NVIDIA's page on measuring
#    <https://docs.nvidia.com/deeplearning/tensorrt/10.16.1/performance/hw-sw-environment.html>`__).
#    So the same step may take longer after ten minutes than at first, or on another GPU
#    of the same kind. Let this run next to your measurement; it prints a line a second:
#
#    .. code-block:: bash
#
#       nvidia-smi --loop=1 --format=csv --query-gpu=clocks.sm,temperature.gpu,\
#       power.draw,power.limit,clocks_event_reasons.sw_power_cap,\
#       clocks_event_reasons.sw_thermal_slowdown,clocks_event_reasons.hw_slowdown
#
#    The last three say *Active* where power, temperature or the hardware itself `holds
#    the clock down
#    <https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html>`__.
#    An administrator can ask for one value, as with ``nvidia-smi
#    --lock-gpu-clocks=1410``; power and heat can still lower it. You need no such
#    rights to measure in turns: a slow change then hits both variants alike.
#
# .. question:: Control: 0.95 to 1.06. Variant: 0.93 to 1.02. What do you say?
#
#    - The variant is a little faster.
#
#      No. A function against itself gave ratios like these. What you see can be noise.
#
#    - Both take the same time.
#
#      No. A difference that is smaller than the noise stays hidden. "Not shown" is not
#      "shown to be equal".
#
#    - This measurement cannot tell them apart.
#
#      Yes. The bars overlap. Measure longer rounds, or on a quieter machine, or keep the
#      simpler variant.
#
# .. instructor-note::
#
#    Let the class guess the control's ratio before the cell runs. It looks like a
#    formality, since both sides are the same function. On a shared machine it strays
#    far from 1, and then the comparison is worth nothing, however good it looks.
#
# Find the size at which a GPU pays
# ---------------------------------
#
# Two numbers decide how much arithmetic is in a step: the *width* of the model's layers,
# and the size of the batch. From point to point the batch gets eight times as large. How
# much longer will a step take?

# fold: Time a step for each width and batch size, print the table, and draw it
widths, batch_sizes = [32, 256, 1024], [1, 8, 64, 512]


def step_times(device):
    """Median milliseconds of a step, one row per width, one column per batch size."""
    rows = []
    for width in widths:
        steps = [make_step(width, size, device) for size in batch_sizes]
        timings = [measure(fn, device=device, warmup=1, repeats=3) for fn in steps]
        rows.append([1e3 * timing.median for timing in timings])
    return rows


cpu = torch.device("cpu")
tables = {where: step_times(where) for where in dict.fromkeys([cpu, device])}

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for where, rows in tables.items():
    print(f"milliseconds a step on {device_name(where)}")
    print("      batch " + "".join(f"{size:>9}" for size in batch_sizes))
    for color, (width, row) in enumerate(zip(widths, rows, strict=True)):
        print(f"width {width:>5} " + "".join(f"{x:>9.2f}" for x in row))
        style, name = ("o-" if where == cpu else "s--"), f"width {width}, {where}"
        ax.loglog(batch_sizes, row, style, color=f"C{color}", label=name)
ax.set(xlabel="batch size", ylabel="milliseconds a step")
ax.set_xticks(batch_sizes, batch_sizes)
ax.xaxis.set_minor_locator(NullLocator())
ax.yaxis.set_major_formatter("{x:g}")
ax.set_title("One step, for each width and batch size")
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# Follow a line from left to right:
#
# - *Where it is flat,* a larger batch costs next to nothing. The step consists of what
#   every step has to do: Python starts each operation, and the optimizer changes each
#   parameter. A GPU does not make Python faster. But with a great many parameters, as for
#   width 1024, reading and changing them takes most of the time, and a GPU is faster at
#   that.
# - *Where it rises as much as the batch,* the step consists of arithmetic. Here a GPU has
#   something to win.
#
# With a GPU you see dashed lines, too, and where they are lower the GPU pays. (Compared
# with one thread: all threads of the CPU are faster at the largest steps.) **If your
# model is on the flat part, try a larger batch before you look for a faster GPU.** You
# may read that a batch should be as large as memory allows. But where the time rises as
# much as the batch, you gain nothing more, and a larger batch also changes how the
# model learns.
#
# Know when a GPU is the wrong tool
# ---------------------------------
#
# A GPU can speed up only the part of a script that computes on it. The rest takes as long
# as before. We time a small script, part by part:

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.evaluation import evaluate
from gpulesson.training import fit

laps = []


def lap(name):
    """Note that a part is done, and when."""
    synchronize(device)
    laps.append((name, time.perf_counter()))


# %%
# It loads images, trains for one :term:`epoch`, evaluates, and answers 200 single
# questions. Which part do you expect to take longest?

lap("start")
data = load_fashion_mnist()
images = data.train_images.to(device).float() / 255
lap("load and move the images")
model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()
labels = data.train_targets.to(device)
batches = Batches(images, labels, batch_size=64, shuffle=True)
fit(model, batches, loss_fn, optimizer, device, epochs=1)
lap("train one epoch")
evaluate(model, batches, loss_fn, device)
lap("evaluate")
for image in data.train_images[:200] / 255:
    answer = model(image[None].to(device)).argmax().item()
lap("200 single answers")

# %%
# Now suppose that only the training gets 2, 10 or 1,000 times as fast. How much faster is
# the script?

# fold: Print the parts, and what faster training would bring
parts = {b[0]: b[1] - a[1] for a, b in pairwise(laps)}
whole = sum(parts.values())
print(f"{len(images):,} images of {data.source}, on {device}, one run:")
for name, part in parts.items():
    print(f"{name:<24} {part:7.3f} s  {part / whole:5.1%}")
p = parts["train one epoch"] / whole
for s in (2, 10, 1000):
    print(f"training {s:>4} times as fast: the script {1 / (1 - p + p / s):.2f} times")
print(f"no faster training gets beyond {1 / (1 - p):.2f} times")

# %%
# If a share *p* of the time becomes *s* times as fast, the whole becomes 1 / (1 − *p* +
# *p* / *s*) times as fast. This is Amdahl's law. **The part that does not get faster
# limits the gain of the whole.** More epochs raise the share of the training, and with it
# what a GPU can bring.
#
# So a GPU is the wrong tool when
#
# - a step is small and must stay small: tiny models that answer one sample at a time;
# - the time goes elsewhere: reading, decoding, preparing (:doc:`lesson 9
#   </lessons/09_feeding_the_gpu>`);
# - the whole run takes a few seconds anyway.
#
# Exercise
# --------
#
# .. exercise:: Write a stopwatch
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_08.py
#
#    The script has a made-up device with a queue, a slow start and disturbed runs, and a
#    made-up clock. So its true speed is known, and your measurement can be checked: the
#    same numbers on every computer. Two functions are empty.
#
#    1. **Predict:** you look at the clock before and after ``machine.run(work)``, and do
#       not wait. What does it show of a run that computes for 400 µs?
#    2. Write ``one_run``, which times one run of a warm machine.
#    3. Write ``stopwatch``: warm up, repeat, take the median.
#    4. Leave out the warm-up, each of the two waits, and the median in turn. What does
#       it do to the result?
#
#    To check it: ``python -m gpulesson check exercise_08.py``.
#
#    You are done when both functions measure what is right.
#
# .. solution::
#    :file: solution_08.py
#
#    Without the wait at the end it shows 10 µs, the time of asking. Without the wait
#    before the clock starts, the first run counts what was handed over earlier; a median
#    hides that one run, and a mean would not.
#
# .. keypoints::
#
#    - Warm up, wait for the device before each look at the clock, and report the median
#      and how far the runs are apart.
#    - Compare in turns, A B B A, beside a control of A with itself; what does not stand
#      out from the control has not been shown.
#    - A small step is all overhead, and there a GPU has nothing to win; in a script, the
#      part that does not get faster limits the gain.
#
# **Next:** :doc:`/lessons/09_feeding_the_gpu` looks at what a step waits for before it
# begins.

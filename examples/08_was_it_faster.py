"""
8 · Was it faster?
==================

Measure how fast training is, decide whether a change helped, and find out when faster
hardware pays.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - Why does the same call take a different time each time I measure it?
      - What does a clock miss when the work happens on a GPU?
      - Is this change an improvement, or noise?
      - Should this model go on a GPU at all?

   .. objectives::

      - Leave out the first calls, and report a median and a spread.
      - Wait for the device before each look at the clock, or let events keep the time.
      - Find the lines that make Python wait for the GPU.
      - Decide with paired runs whether two variants differ.
      - Draw the picture of your own machine that shows where arithmetic begins to cost.
      - Compute what a faster device can bring to a whole script.
"""

# %%
# .. prereq::
#
#    - :doc:`/lessons/04_training_loop`, for the five calls of a training loop
#    - :doc:`/lessons/07_common_mistakes`, for a clock that does not wait
#
# "It is twice as fast now." Who measured it, how, and on which machine? Here you learn to
# measure the numbers for such a sentence.

import statistics
import time
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

from gpulesson import practice
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize

# %%
# Such numbers are true for the machine that printed them, so we print the machine first.
# We compute on one thread of the CPU: it is disturbed less by other programs than all
# threads are.

all_threads = torch.get_num_threads()
torch.set_num_threads(1)
device = choose_device()
print(f"{device}: {device_name(device)}")
print(f"PyTorch {torch.__version__}, 1 of {all_threads} threads")

# %%
# Leave out the first steps
# -------------------------
#
# We time one training :term:`step`: the :term:`forward pass`, the :term:`loss`, the
# :term:`backward pass`, and the update by the :term:`optimizer`, which is Adam. The
# function makes a new network and a :term:`batch` of random numbers. It returns the step
# as a function that we can call again and again:


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
        return loss.detach()

    return step


# %%
# Now we take the time of each of the first sixty steps. Before each look at the clock
# we wait until the :term:`device` has finished. All sixty steps do the same arithmetic.
# Do you expect sixty equal times?

step = make_step()
seconds = []
for _ in range(60):
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    seconds.append(time.perf_counter() - start)

# %%
# Each dot of the picture is one step. The scale of the times is logarithmic:

# fold: Draw the sixty times, and print a summary
from matplotlib.ticker import LogLocator, NullLocator

times = [1e3 * x for x in seconds]
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

print(f"the first step:  {times[0]:.2f} ms")
print(
    f"steps 21 to 60:  median {middle:.2f} ms, half of them {low:.2f} to {high:.2f} ms"
)
print(
    f"                 mean {statistics.mean(late):.2f} ms, slowest {max(late):.2f} ms"
)

# %%
# The first step also does what is needed only once: the optimizer makes its memory, and
# libraries choose and load the code for each operation, on a :term:`GPU` the
# :term:`kernels <kernel>`. Leave such steps out. They are called *warm-up*.
#
# The later steps differ, too. Other programs can make a step much slower, and nothing can
# make it much faster. Such slow steps pull the mean up. While they are few, they hardly
# move the median. **Warm up, then report the median, and beside it how far the runs are
# apart.**
#
# Scripts for images often set ``torch.backends.cudnn.benchmark = True``. Then cuDNN,
# NVIDIA's library for convolutions, tries several algorithms in the first call with each
# :term:`shape`, and keeps the fastest. That call takes longer still, so warm up with
# every shape that you will measure. Another run may keep another algorithm, and round
# differently (`PyTorch's page on reproducibility
# <https://docs.pytorch.org/docs/stable/notes/randomness.html#cuda-convolution-benchmarking>`__,
# :doc:`lesson 12 </lessons/12_speed_ladder>`).
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
# A clock that does not wait is like timing a letter by your walk to the letterbox: you
# are back soon, and the letter has not arrived.
#
# We hand over some steps, and look at the clock at once. We look again when the device
# has finished. On which devices will the two times differ?

for steps in (2, 200):
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    handed_over = 1e3 * (time.perf_counter() - start)
    synchronize(device)
    done = 1e3 * (time.perf_counter() - start)
    print(f"{steps} steps: {handed_over:.2f} ms until handed over,", end=" ")
    print(f"{done:.2f} ms until done: {handed_over / done:.0%} seen")

# %%
# On a CPU there is no queue, and the :term:`practice GPU` has none either: it computes
# on the CPU. Both times are the same, apart from the moment that it takes to ask.
#
# On a real GPU the share that the clock sees can be anything:
#
# - *Little of the time.* The GPU is busy, and Python is far ahead.
# - *Nearly all of it, in both lines.* The GPU waits for Python: it has finished each
#   operation before the next one arrives.
# - *Little of two steps, and nearly all of 200.* The queue was full. On :term:`CUDA` it
#   holds about a thousand operations (`measured in NVIDIA's forum
#   <https://forums.developer.nvidia.com/t/cuda-stream-are-blocked-when-luanch-lots-of-kernels-1000/68937>`__),
#   and then each call waits for a free place, although no line of yours asks for it.
#
# **Wait for the device before the first look at the clock and before the last.**
# :func:`gpulesson.timing.measure` does it for you, with warm-up and repeats:

print(measure(step, device=device))

# %%
# You see the median, the range of the middle half of the runs, and the machine.
#
# .. question:: On a GPU your clock shows 0.2 ms around ``model(x)``. What took them?
#
#    - The forward pass.
#
#      No. The call returns when its operations are in the queue. At that moment the GPU
#      may not even have begun.
#
#    - Handing the operations over.
#
#      Yes. That is Python's part of the work. For the whole, wait before the first look
#      at the clock and before the second.
#
#    - The forward pass, less a small fixed amount that one can add.
#
#      No. What the clock missed is what was still in the queue. That is more for a
#      larger model or batch, so there is no fixed amount.
#
# See which lines wait for the GPU
# --------------------------------
#
# To measure, you want Python to wait. In a training loop you do not: while Python waits,
# it hands nothing over, and soon the GPU has nothing to do. PyTorch can stop at lines
# that wait. We try it on your GPU with CUDA if there is one, or else on the
# practice GPU:

practice.start()
gpu = torch.device("cuda")
print(torch.cuda.get_device_name())

cuda_step = make_step(device=gpu)
loss = cuda_step()  # warm up

# %%
# Three of these six lines wait. Which ones?

lines = {
    "cuda_step()": cuda_step,
    "loss.detach()": lambda: loss.detach(),
    "loss.item()": lambda: loss.item(),
    "if loss > 1": lambda: bool(loss > 1),
    "torch.ones(3).to(gpu)": lambda: torch.ones(3).to(gpu),
    "torch.ones(3, device=gpu)": lambda: torch.ones(3, device=gpu),
}

# %%
# ``set_sync_debug_mode("error")`` makes each such line an error, until we switch it off:

torch.cuda.set_sync_debug_mode("error")
for name, line in lines.items():
    try:
        line()
        print(f"{name:<26} does not wait")
    except RuntimeError as error:
        print(f"{name:<26} RuntimeError: {error}")
torch.cuda.set_sync_debug_mode("default")

# %%
# The whole step only hands over work. ``item`` and ``if`` need a number from the GPU, and
# ``to`` waits until its copy is made. ``torch.ones(3, device=gpu)`` copies nothing: the
# numbers are written where they are needed. **A line waits when it moves numbers between
# the CPU and the GPU.** (:doc:`Lesson 9 </lessons/09_feeding_the_gpu>` shows copies that
# do not wait.)
#
# In your own script, switch it on after the warm-up. ``"warn"`` prints a warning and goes
# on. Neither mode notices every wait (`PyTorch's page on it
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html>`__);
# :doc:`lesson 11 </lessons/11_profile_first>` shows other ways to find them.
#
# Let the GPU keep the time
# -------------------------
#
# CUDA has a second clock, without a wait for each run. An *event* is a mark in the queue.
# When the GPU passes the mark, it notes the time. We put a mark between each two steps,
# and wait once, at the end:

marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
marks[0].record()
for mark in marks[1:]:
    cuda_step()
    mark.record()
torch.cuda.synchronize()  # the only wait

times = [a.elapsed_time(b) for a, b in pairwise(marks)]
print(f"between two marks: {statistics.median(times):.3f} ms (median of 20)")
print("whose time is it?", torch.cuda.get_device_name())

# %%
# The time between two marks contains all that the GPU did *and* the pauses in which its
# queue was empty. If the GPU waits for Python, as the shares above may say, events
# measure Python as well.
#
# If you see the word *simulated* above, the number says nothing about any GPU. **The
# practice GPU simulates what is where and what waits, and no time.** We are done with it:

practice.stop()

# %%
# Compare two variants in turns
# -----------------------------
#
# Here are two variants of the step: Adam as it is by default, and Adam with
# ``fused=True``, which updates a :term:`parameter` in one pass over its numbers. Which
# one takes less time?
#
# If you measured all of one and then all of the other, a machine that gets warm, or
# busy, would decide. So measure in turns, A B B A, and look at the *ratio* within each
# round:


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
# Before you compare A with B, compare A **with itself**. This *control* shows how large
# a difference can be that means nothing:

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
# If the two bars are clear of each other, the variants differ: here, today, at this size.
# If they overlap, this measurement cannot tell.
#
# Look at the control, too. Both of its sides are the same function, so a ratio other than
# 1 is noise. If its bar strays far from 1, do not believe the other bar either. **What
# does not stand out from the control has not been shown.**
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
# Now the question of :doc:`lesson 1 </lessons/01_is_there_a_gpu>`, for training instead
# of one product. Two numbers decide how much work is in a step: the *width* of the
# model's layers, and the size of the batch. We time a step for each combination. Will the
# time grow as the arithmetic does?

# fold: Time a step for each width and batch size, and print the table
widths, batch_sizes = [16, 64, 256, 1024], [8, 64, 512, 2048]


def step_seconds(device, threads):
    """Median seconds of a step, one row per width, one column per batch size."""
    torch.set_num_threads(threads)
    rows = []
    for width in widths:
        steps = [make_step(width, size, device) for size in batch_sizes]
        timings = [measure(fn, device=device, warmup=2, repeats=3) for fn in steps]
        rows.append([timing.median for timing in timings])
    torch.set_num_threads(1)
    return torch.tensor(rows)


# Forward: a multiplication and an addition for each weight and sample. Backward: the
# same for the gradients of the weights, and of the inputs of all layers but the first.
operations = torch.tensor(
    [[n * (6 * (2 * w**2 + 10 * w) - 2 * w**2) for n in batch_sizes] for w in widths]
)
cpu = torch.device("cpu")
on_cpu = step_seconds(cpu, 1)
if all_threads > 1:  # a small step is quicker on one thread, a large one on all
    on_cpu = on_cpu.minimum(step_seconds(cpu, all_threads))

print("milliseconds a step on the CPU")
print("      batch " + "".join(f"{size:>9}" for size in batch_sizes))
for width, row in zip(widths, on_cpu.tolist(), strict=True):
    print(f"width {width:>5} " + "".join(f"{1e3 * x:>9.2f}" for x in row))
arithmetic = operations[-1, -1] / operations[0, 0]
longer = on_cpu[-1, -1] / on_cpu[0, 0]
print(f"from the first to the last step: {arithmetic:,.0f} times the arithmetic,")
print(f"{longer:,.0f} times the time")

# %%
# By far not: a large step uses the machine better. The picture shows how well, in
# operations a second: the brighter a field, the better. If there is an
# :term:`accelerator`, a second picture compares the two: above 1, the accelerator takes
# less time.

# fold: Draw the operations a second
panels = {"Billion operations a second (CPU)": operations / on_cpu / 1e9}
if device.type != "cpu":
    gains = on_cpu / step_seconds(device, all_threads)
    panels[f"CPU time / time on\n{device_name(device)}"] = gains

fig, axes = plt.subplots(
    1, len(panels), figsize=(5 * len(panels), 4), layout="constrained", squeeze=False
)
for ax, (title, values) in zip(axes[0], panels.items(), strict=True):
    picture = ax.imshow(values, cmap="cividis", norm="log", aspect="auto")
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            color = "0.05" if picture.norm(value) > 0.5 else "0.95"
            style = {"ha": "center", "va": "center", "color": color, "fontsize": 13}
            ax.text(j, i, f"{value:.3g}", **style)
    ax.set(xlabel="batch size", ylabel="width", title=title)
    ax.set_xticks(range(4), batch_sizes)
    ax.set_yticks(range(4), widths)
plt.show()

# %%
# Read a row of the picture from left to right:
#
# - *The rate still grows.* Part of the step does not grow with the batch, so the time
#   grows less than the batch does. This part is *starting* each operation, and in a wide
#   model also the optimizer's pass through all weights. A GPU has little to win with the
#   first, since each of its operations has to be started as well. Faster memory helps
#   with the second.
# - *The rate has stopped growing.* Now the time grows as much as the batch. The step
#   consists of arithmetic, or of moving numbers to and from memory. Hardware with more of
#   either has something to win.
#
# **If your model lies in the dark corner of the picture, try a larger batch before you
# buy a GPU.**
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
# The script loads images, moves them, trains for one :term:`epoch`, evaluates, and
# answers 200 single questions. Which part do you expect to take longest?

lap("start")
data = load_fashion_mnist()
lap("load the images")
images = data.train_images.to(device).float() / 255
labels = data.train_targets.to(device)
lap("convert and move")
model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()
batches = Batches(images, labels, batch_size=64, shuffle=True)
fit(model, batches, loss_fn, optimizer, device, epochs=1)
lap("train one epoch")
evaluate(model, batches, loss_fn, device)
lap("evaluate")
for image in data.train_images[:200] / 255:
    answer = model(image[None].to(device)).argmax().item()
lap("200 single answers")

# %%
# If a share *p* of the time becomes *s* times as fast, the whole becomes 1 / (1 − *p* +
# *p* / *s*) times as fast. This is Amdahl's law. What would the script gain if only the
# training were 2, 10 or 1,000 times as fast?

# fold: Print the parts, and what faster training would bring
parts = {b[0]: b[1] - a[1] for a, b in pairwise(laps)}
whole = sum(parts.values())
print(f"{data.source}, on {device}, one run:")
for name, part in parts.items():
    print(f"{name:<19} {part:7.3f} s  {part / whole:5.1%}")
p = parts["train one epoch"] / whole
for s in (2, 10, 1000):
    print(f"training {s:>4} times as fast: the script {1 / (1 - p + p / s):.2f} times")

# %%
# The last line is close to the limit, 1 / (1 − *p*): **the part that does not get faster
# limits the gain of the whole.** No faster training gets beyond it, only work on the
# other parts does. More epochs raise the share of the training, and with it what a GPU
# can bring.
#
# So a GPU is the wrong tool when
#
# - a step is small and must stay small: tiny models that answer one sample at a time;
# - the time goes elsewhere: reading, decoding, preparing (:doc:`lesson 9
#   </lessons/09_feeding_the_gpu>`);
# - each step is short, and must look at the result of the one before, on the CPU;
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
#    - The first calls pay for what is done once. Warm up, then report median and
#      spread, with the machine that they belong to.
#    - A GPU works through a queue: wait before each look at the clock, or let events in
#      the queue keep the time. A simulated GPU has no speed to measure.
#    - ``torch.cuda.set_sync_debug_mode("error")`` stops at a line that waits: a read of a
#      number, or a copy between CPU and GPU.
#    - Compare in turns, A B B A, with a control of A against itself; what does not stand
#      out from the control has not been shown.
#    - Width and batch size decide: a small step is all overhead, and there a GPU has
#      nothing to win.
#    - The part that does not get faster limits the gain of the whole.
#
# **Next:** :doc:`/lessons/09_feeding_the_gpu` looks at what a step waits for before it
# begins.

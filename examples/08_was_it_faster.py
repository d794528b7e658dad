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
      - Wait for the device in the right places, with ``synchronize`` or with events.
      - Decide with paired runs whether two variants differ.
      - Draw the picture of your own machine that shows where arithmetic begins to cost.
      - Compute what a faster device can bring to a whole script.

.. prereq::

   - :doc:`Lesson 4 </lessons/04_training_loop>`: the five calls of a training loop.
   - :doc:`Lesson 7 </lessons/07_common_mistakes>`: the mistakes that give no message.
"""

# %%
# "It is twice as fast now." Who measured it, how, and on which machine? In this lesson
# you measure the numbers for such a sentence. What a measurement prints is true for the
# machine that ran it, and for no other. So the lesson prints the machine first.

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

# %%
# We compute on one thread of the CPU. That is slower than on all of them, and steadier:
# one thread is disturbed less by whatever else runs on this machine.

all_threads = torch.get_num_threads()
torch.set_num_threads(1)
device = choose_device()
threads = f"{torch.get_num_threads()} of {all_threads} threads"
print(f"{device}: {device_name(device)}")
print(f"PyTorch {torch.__version__}, {threads}")

# %%
# Leave out the first steps
# -------------------------
#
# We time one training :term:`step`: the :term:`forward pass`, the :term:`loss`, the
# :term:`backward pass`, and the update by the :term:`optimizer`, which is Adam. The
# function makes a fresh network and a :term:`batch` of random numbers, and returns the
# step as a function that we can call again and again:


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
# In numbers:

# fold: Print the first steps, and a summary of the later ones

late = seconds[20:]
low, middle, high = (x * 1e3 for x in statistics.quantiles(late, n=4))
print(f"first step: {seconds[0] * 1e3:.2f} ms, second: {seconds[1] * 1e3:.2f} ms")
print(
    f"steps 21 to 60: median {middle:.3f} ms, half of them {low:.3f} to {high:.3f} ms"
)
print(f"slowest of those: {max(late) * 1e3:.3f} ms; mean {1e3 * sum(late) / 40:.3f} ms")

# %%
# And as a picture. Each dot is one step; the scale of the times is logarithmic:

# fold: Draw the sixty times

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
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
# The first step also does what is needed only once: the optimizer makes its memory, and
# libraries choose and load the code for each operation, on a :term:`GPU` the
# :term:`kernels <kernel>`. Leave such steps out. They are called *warm-up*.
#
# The later steps differ, too, and the outliers lie on one side. Another program can
# make a step much slower, and nothing can make it much faster. An outlier pulls the
# mean up, and leaves the median where it is. So **warm up, then report the median, and
# beside it how far the runs are apart.**
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
# We hand over twenty steps, and look at the clock without waiting. We look again when
# the device has finished. On which device will the two times differ?

for _ in range(5):
    step()  # warm up
synchronize(device)

start = time.perf_counter()
for _ in range(20):
    step()
handed_over = time.perf_counter() - start
synchronize(device)
done = time.perf_counter() - start

# %%
# The last line is the same step, measured by a function of this course:

print(f"20 steps on {device}: handed over after {handed_over * 1e3:.2f} ms,")
print(f"computed after {done * 1e3:.2f} ms")
print(f"a clock that does not wait sees {handed_over / done:.0%} of the time")
print("with warm-up, waiting and repeats:", measure(step, device=device))

# %%
# On a CPU there is no queue. (The :term:`practice GPU` has none either: it computes on
# the CPU.) Both times are the same, apart from the moment that it takes to ask. So the
# clock sees all of the work.
#
# On a real GPU the share can be anything. A few percent mean that the GPU is busy and
# Python is far ahead. Nearly everything can mean two things:
#
# - *The GPU waits for Python.* It finishes each operation before the next one arrives.
# - *The queue is full.* It holds about a thousand operations (`measured in NVIDIA's
#   forum
#   <https://forums.developer.nvidia.com/t/cuda-stream-are-blocked-when-luanch-lots-of-kernels-1000/68937>`__).
#   After that Python waits for a free place at each call, although no line of yours
#   asks it to wait. Twenty steps can be more than a thousand operations.
#
# To tell the two apart, hand over two steps instead of twenty. If the share is much
# smaller then, the queue was full.
#
# From here on we use :func:`gpulesson.timing.measure`. It does what the cells above
# did: warm-up, a wait before *and* after each run, repeats, median and quartiles.
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
# Let the GPU keep the time
# -------------------------
#
# :term:`CUDA` has a second way, without a wait for each run. An *event* is a mark in
# the queue. When the GPU passes the mark, it notes the time. The function puts a mark
# between each two runs, and waits once, at the end:


def event_milliseconds(fn, repeats=20):
    """Time from mark to mark, by the GPU's clock; one wait, at the end."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        fn()
        mark.record()
    torch.cuda.synchronize()  # the only wait
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


# %%
# If this machine has no CUDA GPU, the practice GPU takes its place:

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
# The time between two marks contains all that the GPU did, *and* the pauses in which
# its queue was empty. If the GPU waits for Python, as the share above may say, the
# events measure Python as well.
#
# The code is right on a GPU and on the practice GPU. The number is right on a GPU only.
# The practice GPU simulates what is where and what waits, and **no time**. If the name
# above says *simulated*, you have seen how events are used, and the number says nothing
# about any GPU.
#
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


# %%
# Before you compare A with B, compare A **with itself**. This *control* shows how large
# a difference can be that means nothing:

default, itself = make_step(), make_step()
fused = make_step(fused=True)
paired_ratios(default, fused, rounds=3)  # warm up
results = {
    "control: default / default": paired_ratios(default, itself),
    "fused / default": paired_ratios(default, fused),
}

# %%
# The variants are told apart if the middle halves of their rounds do not overlap:

# fold: Print the medians, the middle halves, and the verdict

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
# The same as a picture, with a dot for each round:

# fold: Draw the ratios

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for row, ratios in enumerate(results.values()):
    low, middle, high = statistics.quantiles(ratios, n=4)
    axes.plot(ratios, [row] * len(ratios), "o", color=f"C{row}", alpha=0.5)
    axes.plot([low, high], [row + 0.25] * 2, color=f"C{row}", lw=3)
    axes.plot(middle, row + 0.25, "|", color="gray", ms=14, mew=2)
axes.axvline(1, color="gray", lw=1)
axes.set_yticks([0, 1], results)
axes.set(xlabel="ratio of times (less than 1: less time)", ylim=(-0.4, 1.6))
axes.set_title("One dot a round; the bar holds half of them")
axes.grid(alpha=0.3, axis="x")
plt.show()

# %%
# If the two bars are clear of each other, the variants differ: here, today, at this
# size. If the bars overlap, this measurement cannot tell. More rounds or a quieter
# machine might.
#
# Look at the control, too. Both of its sides are the same function, and still its ratio
# is not always near 1. If it strays far from 1, do not believe the other line of that
# run either. **What does not stand out from the control has not been shown.**
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
#      Yes. The bars overlap. Measure more rounds, on a quieter machine, or keep the
#      simpler variant.
#
# .. instructor-note::
#
#    Let the class guess the control's ratio before the cell runs. It looks like a
#    formality, since both sides are the same function. On a shared machine it strays
#    far from 1, and then the comparison below it is worth nothing, however good it
#    looks.
#
# Find the size at which a GPU pays
# ---------------------------------
#
# Now the question of :doc:`lesson 1 </lessons/01_is_there_a_gpu>`, for training instead
# of one product. Two numbers decide how much work is in a step: the *width* of the
# model's layers, and the size of the batch. We time a step for each combination, on the
# CPU with one thread and with all, and on the :term:`accelerator` if there is one.
#
# How much arithmetic is in a step? About six operations for each weight and sample: a
# multiplication and an addition in the forward pass, and twice that in the backward
# pass, once for the weights' :term:`gradients <gradient>` and once for
# the inputs'. (The first layer leaves out the last part: the gradients of the data are
# not needed.)

# fold: Time a step for each width and batch size, and print the table

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
# A time alone does not say whether the machine was used well. So the picture shows
# operations a second: the brighter a field, the better the step uses the machine. Where
# there is an accelerator, a second picture compares the two: above 1, the accelerator
# takes less time.

# fold: Draw the rates, and print how far each width has come

figure, grid = plt.subplots(
    1, len(panels), figsize=(5 * len(panels), 4), layout="constrained", squeeze=False
)
for axes, (title, values) in zip(grid[0], panels.items(), strict=True):
    picture = axes.imshow(values, cmap="cividis", norm="log", aspect="auto")
    for i, j in itertools.product(range(4), range(4)):
        bright = picture.norm(values[i, j].item()) > 0.5
        color = "0.05" if bright else "0.95"
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
        f"as {batch_sizes[2]}; its best rate is {best:4.0%} of the best",
    )
if device.type != "cpu":
    print(f"{device} at least 20 % ahead in {(gains > 1.2).sum()} of 16 cells")
else:
    print("no accelerator here: the notebook of this page draws its picture on one")

# %%
# Read a row of the picture from left to right:
#
# - *The rate still grows.* The step consists of what does not grow with the batch:
#   *starting* each operation and, in a wide model, the optimizer's pass through all
#   weights. A larger batch hardly takes longer. A GPU has little to win here, since
#   each of its operations has to be started as well.
# - *The rate has stopped growing.* Now time grows with the batch. The step consists of
#   arithmetic, or of moving numbers to and from memory. Hardware with more of either
#   has something to win.
#
# The printed factors say how far a width has come at the right end of its row, where
# the batch grows by a factor of 4. A factor of 1 would mean that all of the cost is
# fixed, a factor of 4 that all of it is work. **If your model lies in the dark corner
# of the picture, try a larger batch before you buy a GPU.**
#
# Know when a GPU is the wrong tool
# ---------------------------------
#
# A GPU speeds up the part of a script that computes on it. The rest takes as long as
# before, and that limits the gain: if a share *p* of the time becomes *s* times as
# fast, the whole becomes 1 / (1 − *p* + *p* / *s*) times as fast. This is Amdahl's law.
# Let us apply it to a whole small script, and time each part of it with this function:

torch.set_num_threads(1)  # as in the other lessons
parts = {}


def timed(name, fn):
    start = time.perf_counter()
    result = fn()
    synchronize(device)
    parts[name] = time.perf_counter() - start
    return result


# %%
# The script loads images, moves them, trains for one :term:`epoch`, evaluates, and
# answers 200 single questions. Which part do you expect to take longest?

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
answers = timed(
    "200 single answers",
    lambda: [model(row.to(device)).argmax().item() for (row,) in rows],
)

# %%
# The lines below the table apply the law: what would the whole script gain if only the
# training were 2, 10 or 1,000 times as fast?

# fold: Print the parts, and what faster training would bring

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
# gets beyond it. Only work on the other parts does. (Some of those compute on the
# device as well, such as the evaluation. Loading does not. And starting Python and
# importing PyTorch take time that is not even in the table.) More epochs raise the
# share of the training, and with it what a GPU can bring.
#
# So a GPU is the wrong tool when
#
# - a step is small and must stay small: tiny models, answers for one sample at a time;
# - the time goes elsewhere: reading, decoding, preparing (:doc:`lesson 9
#   </lessons/09_feeding_the_gpu>`);
# - each step must look at the result of the one before, on the CPU;
# - the whole run takes a few seconds anyway.
#
# Exercise
# --------
#
# .. exercise:: Fix a stopwatch
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_08.py
#
#    The script has a made-up device with a queue, a slow start and a busy neighbour,
#    and a made-up clock. So its true speed is known, and your measurement can be
#    checked: no noise, the same numbers on every machine.
#
#    1. **Predict:** ``stopwatch`` looks at the clock before and after one call. Is its
#       result too large or too small? By how much?
#    2. Run it, and compare.
#    3. Fix ``stopwatch``: warm up, wait, repeat, take the median.
#    4. Leave out each of the four in turn. What does it do to the result?
#
#    To check it: ``python -m gpulesson check exercise_08.py``.
#
#    You are done when it prints ``measured right``.
#
# .. solution::
#    :file: solution_08.py
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
#    - The part that does not get faster limits the gain of the whole.
#
# **Next:** :doc:`/lessons/09_feeding_the_gpu` looks at what a step waits for before it
# begins.

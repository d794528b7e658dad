"""
11 · Profile before you optimise
================================

See where the time of training goes, find what makes the CPU wait, and name the limit
that holds your program back.

.. overview::
   :teaching: 25
   :exercises: 20

   .. objectives::

      - Record a profile, and read its table and its timeline.
      - Find the reads that make the CPU wait, by name and by line.
      - Name a step's limit: launch overhead, bandwidth or arithmetic.

   .. prereq::

      - :doc:`Lesson 5 </lessons/05_fashion_mnist>`, for the network and its loop
      - :doc:`Lesson 8 </lessons/08_was_it_faster>`, for lines that wait
"""

# %%
# Your training is slow. Which line do you change first? If you guess, you change what
# looks slow in the code. A *profile* measures what costs the time. Here you profile the
# loop of :doc:`lesson 5 </lessons/05_fashion_mnist>`.

import os
import traceback

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
# One thread is enough for :term:`tensors <tensor>` this small, and its times are
# steadier.

torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images = data.train_images[:4096].float() / 255
labels = data.train_targets[:4096]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Record a profile and read its table
# -----------------------------------
#
# This function makes what a run needs on its :term:`device`: a model, an
# :term:`optimizer`, and :term:`batches <batch>`.

loss_fn = torch.nn.CrossEntropyLoss()


def prepare(device):
    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    here, there = images.to(device), labels.to(device)
    return model, optimizer, Batches(here, there, batch_size=64, shuffle=True)


# %%
# This is the loop, as most scripts have it, with a ``loss.item()`` in every
# :term:`step`. ``record_function`` gives a part of it a name in the profile. Ours begin
# with ``#``, to tell them from PyTorch's:


def train(steps, model, optimizer, batches):
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
# We record thirty steps, after a warm-up. Which of the five parts will take longest:
# fetching the batch, the :term:`forward pass`, the :term:`backward pass`, the optimizer,
# or reading the :term:`loss`?

activities = [ProfilerActivity.CPU]
if torch.cuda.is_available():
    activities += [ProfilerActivity.CUDA]  # also what the GPU did, and when

prepared, steps = prepare(device), 30
train(5, *prepared)  # warm up
with profile(activities=activities) as recorded:
    train(steps, *prepared)

# %%
# The profiler noted when each operator began and ended, and what called it. First our
# five names, each with everything that it called:

# fold: Print the five parts

sums = recorded.key_averages()
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
# Was your guess right? Now the names inside. *Self* time is an operator's own time,
# without that of the operators that it calls. Here are the ten names with most of it.
# (``recorded.key_averages().table(sort_by="self_cpu_time_total")`` prints more columns.)

# fold: Print the table

everything = sum(entry.self_cpu_time_total for entry in sums)
by_self_time = sorted(sums, key=lambda entry: -entry.self_cpu_time_total)
on_gpu = any(entry.self_device_time_total for entry in sums)

print(f"{'name':<30} calls/step  self CPU  share" + "   kernels" * on_gpu)
for entry in by_self_time[:10]:
    print(
        f"{entry.key[:30]:<30} {entry.count / steps:10.1f}"
        f" {entry.self_cpu_time_total / steps:6.0f} µs"
        f" {entry.self_cpu_time_total / everything:6.1%}"
        + f" {entry.self_device_time_total / steps:6.0f} µs"
        * on_gpu
    )
others = sum(entry.self_cpu_time_total for entry in by_self_time[10:])
print(f"and {len(sums) - 10} more names: {others / everything:.0%}")

# %%
# ``aten::`` is PyTorch's library of operators. ``addmm`` is the product in a linear layer
# on the way forward, ``mm`` a product on the way back. The self time of a name without
# ``aten::`` is Python and book-keeping. Names with ``cuda``, on a :term:`CUDA` device,
# start work, copy, or wait. There a further column has the time of the :term:`kernels
# <kernel>`, and ``# backward`` contains the wait for the thread that runs it.
#
# Ask three questions of such a table:
#
# 1. Is the time in a *few* names, or spread over many? If it is spread, making one of
#    them faster helps little.
# 2. How much of it is Python and book-keeping?
# 3. Is an operator called more often in a step than you expected?
#
# And how much time does the profiler itself take?

# fold: Time the loop with and without the profiler


def profiled():
    with profile(activities=activities):
        train(steps, *prepared)


options = {"device": device, "warmup": 1}
plain = measure(lambda: train(steps, *prepared), repeats=3, **options).median
watched = measure(profiled, repeats=2, **options).median
print(f"with the profiler, the loop takes {watched / plain:.1f} times as long")

# %%
# So **read the shares of a profile, not its seconds.**
#
# With a :term:`GPU` the CPU's times mean something else: the time to *hand over* the
# work. Only the part that reads waits for the GPU, and it waits for the work of all the
# others.
#
# .. question:: On a GPU, "read the loss" takes 80 % of the CPU's time. What is slow?
#
#    - Copying the loss from the GPU.
#
#      No. The loss is one number of four bytes. Its copy takes microseconds.
#
#    - The Python function ``item``.
#
#      No. Without a queue to wait for, the call is short, as on a CPU.
#
#    - Whatever the GPU had still to compute.
#
#      Yes. ``item`` waits until the queue is empty, and is charged for all of that. On
#      CUDA, the column of the kernels shows what took the time.
#
# Draw one step as a timeline
# ---------------------------
#
# The table is like a receipt: it says what each thing cost, and not when you bought it.
# The profiler knows that, too. We draw the quickest of the thirty steps: our labels,
# PyTorch's operators, and what a GPU did, if there was one.

# fold: Pick the events of one step, and draw them

events = recorded.events()
ours = [e for e in events if e.name.startswith("# ") and e.device_type == cpu]
ours.sort(key=lambda e: e.time_range.start)
all_steps = [ours[i : i + len(parts)] for i in range(0, len(ours), len(parts))]
one_step = min(
    all_steps, key=lambda step: step[-1].time_range.end - step[0].time_range.start
)
begin, end = one_step[0].time_range.start, one_step[-1].time_range.end
inside = sorted(
    (e for e in events if begin <= e.time_range.start < end),
    key=lambda e: (e.time_range.start, -e.time_range.end),
)
operators = []  # not those that another operator called
for e in inside:
    is_operator = e.name.startswith("aten::") and e.device_type == cpu
    last = operators[-1].time_range.end if operators else begin
    if is_operator and e.time_range.start >= last:
        operators.append(e)
kernels = [e for e in inside if e.device_type != cpu and not e.is_user_annotation]
colors = dict(zip(parts, ("C0", "C1", "C2", "C3", "C4"), strict=True))


def part_of(event):
    """The label whose time the event began in."""
    began = [e for e in one_step if e.time_range.start <= event.time_range.start]
    return began[-1].name[2:]


rows = {"labels": one_step, "operators": operators, "device": kernels}
shown = [name for name, row in rows.items() if row]
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for height, name in enumerate(shown):
    for event in rows[name]:
        bar = [(event.time_range.start - begin, event.time_range.elapsed_us())]
        color = "gray" if name == "device" else colors[part_of(event)]
        ax.broken_barh(bar, (height - 0.4, 0.8), color=color, lw=0)
ax.set_yticks(range(len(shown)), shown)
ax.invert_yaxis()
ax.set(xlabel="microseconds (with profiler)", title=f"One training step on {device}")
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
fig.legend(handles, colors, loc="outside lower center", ncols=3)
plt.show()

busy = sum(e.time_range.elapsed_us() for e in operators) / (end - begin)
print(f"{len(operators)} operators; {busy:.0%} of the step's time is inside them")

# %%
# Look at the lowest row, where the computing is done. (Of Apple's GPU this profiler sees
# nothing, and the row shows how work is handed over.) In the gaps between its bars
# nothing is computed: Python and PyTorch prepare the next operator, and the profiler
# takes notes. **Slim bars with gaps: the step is made of starting things. Broad bars: it
# is made of computing.**
#
# The gaps are also what lowers the GPU-Util of ``nvidia-smi``: it is the share of time in
# which at least one kernel ran (:doc:`lesson 8 </lessons/08_was_it_faster>`).
#
# .. fold:: Going further: look at a timeline in a viewer
#
#    The profiler writes Chrome's trace format, which `Perfetto
#    <https://ui.perfetto.dev>`__ opens in any browser. The file stays on your computer.
#
#    .. code-block:: python
#
#       recorded.export_chrome_trace("trace.json")
#
#    If the timeline has gaps that it cannot explain, or if several processes train
#    together, use Nsight Systems, as at the end of this page.
#
# Find the lines that make Python wait
# ------------------------------------
#
# On CUDA, Python runs ahead of the GPU until it reads a value. There it waits until the
# queue is empty, as :doc:`lesson 8 </lessons/08_was_it_faster>` shows. In a profile each
# read of one value, by ``item()``, ``float()`` or ``if``, is
# ``aten::_local_scalar_dense``. How many do you expect in a step of our loop?

reads = [entry.count for entry in sums if "_local_scalar_dense" in entry.key]
print(f"{sum(reads) / steps:.1f} reads a step")

# %%
# One is ``loss.item()``. The others are Adam's: it counts its steps in a tensor for each
# :term:`parameter`, keeps these tensors on the CPU, and reads them there, where no queue
# is.
#
# So the count mixes reads that wait with reads that do not. Which lines *wait*? After
# ``torch.cuda.set_sync_debug_mode("error")``, as in lesson 8, the first of them stops the
# program, and after ``"warn"`` each of them prints a warning. The :term:`practice GPU`
# knows this switch as well, so that the next cell runs on any machine:


def first_wait(loop):
    """The first line of a loop that waits for the (practice) GPU."""
    with gpulesson.practice_gpu(force=True):
        ready = prepare(torch.device("cuda"))
        torch.cuda.set_sync_debug_mode("error")
        try:
            loop(steps, *ready)
        except RuntimeError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{error}\nin line {last.lineno}: {last.line}"
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return "no line waits"


print(first_wait(train))

# %%
# There it is. In your own script you need no ``try``: read the traceback. How often does
# a line wait? The practice GPU keeps a log of every copy and every wait:

with gpulesson.practice_gpu(force=True) as gpu:
    gpu.clear_events()  # count from here, also if it was running before
    train(steps, *prepare(torch.device("cuda")))
print(gpu.report())

# %%
# The line with thirty waits, one a step, is the one to change. The copies from before the
# loop are made once, and do no harm.
#
# To get rid of the read, keep the detached losses on the device, and read them together
# at the end:


def train_quietly(steps, model, optimizer, batches):
    feed, losses = iter(batches), []
    for _ in range(steps):
        inputs, targets = next(feed)
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


# %%
# Does a line still wait, and are the losses still the same?

print(first_wait(train_quietly))

before = train(steps, *prepare(device))
losses = train_quietly(steps, *prepare(device))
after = torch.stack(losses).mean().item()  # one read for all steps
print(f"mean loss of {steps} steps: {before:.6f} before, {after:.6f} now")

# %%
# The loop now waits for nothing, and computes what it computed before. Is it faster, too?
# On a CPU no: there is no queue to wait for, and a read is one short call. On a GPU,
# handing over and computing can now overlap. That saves at most the shorter of the two,
# and our steps compute only for a moment: in the recorded run of :doc:`lesson 12
# </lessons/12_speed_ladder>` it is no faster than chance. **Count the waits, then measure
# what they cost.**
#
# .. instructor-note::
#
#    Let everyone write down a guess before the five parts appear. Many guess the
#    backward pass; on steps this small the optimizer can have the largest share.
#
# Count the work, and name the limit
# ----------------------------------
#
# A profile says where the time goes. It does not say how fast the step *could* be. Three
# things can hold it back:
#
# - :term:`launch overhead`: each operator has to be started, or *launched*;
# - :term:`bandwidth`: what the operators take and give has to travel to and from
#   memory;
# - arithmetic: the numbers have to be multiplied and added.
#
# .. drawing:: three_limits.svg
#
#    What takes longest in a step is its limit.
#
# So we count what a step does: its operators, the bytes that they take and give, and its
# floating-point operations, each a :term:`FLOP`. PyTorch calls this class for each
# operator that runs. Views move nothing, and are left out:


class Count(TorchDispatchMode):
    operators = nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators += 1
            tensors = tree_leaves((args, kwargs, result))
            self.nbytes += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


# %%

# fold: Make a step to count, for layers and a batch of any size


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
# PyTorch has a counter for the FLOP of products; the others are few beside them. Which of
# the three numbers will grow with the batch size?

counted = {}
print("batch  operators      MB    MFLOP")
for batch_size in (64, 512, 4096):
    step = make_step((784, 128, 64, 10), batch_size)
    with Count() as count, FlopCounterMode(display=False) as flops:
        step()
    n, nbytes, flop = count.operators, count.nbytes, flops.get_total_flops()
    counted[batch_size] = nbytes, flop
    print(f"{batch_size:5} {n:10} {nbytes / 1e6:7.1f} {flop / 1e6:8.1f}")

# %%
# The number of operators stays, the bytes grow, and the FLOP grow in proportion to the
# batch. (The bytes are an estimate: a cache may spare some.)
#
# Then we measure what this machine can do: the launch overhead of a step, with a network
# of one unit a layer, which has the same operators and almost nothing to compute; the
# bandwidth, by copying; and the rate of arithmetic, by one large matrix product.

# fold: Measure what this machine can do


def fastest(work):
    """Seconds of the fastest run: other programs only make a run slower."""
    return min(measure(work, device=device, warmup=2, repeats=10).times)


starts = fastest(make_step((1, 1, 1, 10), 1))
byte_rate = 0.0
for size in (2**20, 2**23, 2**25 if device.type == "cpu" else 2**28):
    block = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    copying = fastest(lambda t=target, b=block: t.copy_(b))
    byte_rate = max(byte_rate, 2 * size / copying)  # read and written
n = 512 if device.type == "cpu" else 4096  # large, for this device
a = torch.randn(n, n, device=device)
flop_rate = 2 * n**3 / fastest(lambda: a @ a)

print(f"on {device}: {device_name(device)}, 1 CPU thread")
print(f"launch overhead of a step     {starts * 1e6:8.0f} µs")
print(f"bandwidth, of a cache at best {byte_rate / 1e9:8.1f} GB/s")
print(f"arithmetic                    {flop_rate / 1e9:8.0f} GFLOP/s")

# %%
# Divide the bytes by the bandwidth, and the FLOP by the rate of arithmetic. With the
# launch overhead, you have three times for each batch size. **The largest of the three
# names the limit.** Beside them we put the step itself:

# fold: Compute the three times, measure the step, and draw all four

names = ("launches", "bandwidth", "arithmetic", "measured")
times = {name: [] for name in names}  # milliseconds a step
print("batch " + " ".join(f"{name:>10}" for name in names) + "  limit (ms a step)")
for batch_size, (nbytes, flop) in counted.items():
    step = make_step((784, 128, 64, 10), batch_size)
    measured = fastest(step)
    needs = [starts, nbytes / byte_rate, flop / flop_rate, measured]
    for name, need in zip(names, needs, strict=True):
        times[name].append(need * 1e3)
    limit = names[needs.index(max(needs[:3]))]
    row = " ".join(f"{need * 1e3:10.3f}" for need in needs)
    print(f"{batch_size:5} {row}  {limit}")

fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (name, row), line in zip(times.items(), ("--", ":", "-.", "o-"), strict=True):
    color = {"color": "gray"} if name == "measured" else {}
    ax.loglog(list(counted), row, line, lw=2.5, label=name, **color)
ax.set(xlabel="batch size", ylabel="milliseconds a step")
ax.set_title(f"A step and its limits ({device})")
ax.set_xticks(list(counted), list(counted))
ax.yaxis.set_major_formatter("{x:g}")
ax.minorticks_off()
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# The limit says what is worth changing:
#
# - *Launches.* Use fewer operators, or give each more work: a :term:`fused` optimizer, a
#   larger batch, :term:`torch.compile`, a :term:`CUDA graph`. A stronger GPU does not
#   help.
# - *Bandwidth.* The numbers travel too often. Fuse operators, or use smaller types.
# - *Arithmetic.* The machine does what it is there for. A lower precision, a smaller
#   model or better hardware help.
#
# The step can take longer than all three: hardly an operator reaches the rates of the
# large product and of the plain copy, and on a CPU the three add up. It can also come out
# a little below its limit, as in a line of the recorded run: each number is measured
# separately, and the launches with another network. :doc:`Lesson 15
# </lessons/15_what_an_operator_costs>` finds the limit of a single operator.
#
# .. question:: Launches 0.4 ms, bandwidth 0.1 ms, arithmetic 0.02 ms: what helps?
#
#    - A GPU with twice the arithmetic.
#
#      No. Arithmetic is the smallest of the three. Half of very little is saved.
#
#    - Numbers of two bytes instead of four.
#
#      No. That halves the second time. Starting the operators takes as long as before,
#      and the conversions are more operators.
#
#    - A larger batch.
#
#      Yes. It starts as many operators, and fewer steps go through the data once. How
#      the model then learns is a question for the next lesson.
#
# Profile a long run, by function and shape
# -----------------------------------------
#
# All steps of a long run would be too much to record and to read. With a ``schedule`` the
# profiler lets some steps pass, and records the next ones. (`Its page
# <https://docs.pytorch.org/docs/stable/profiler.html>`__ has all options.) Two options
# say more about each operator: ``with_stack`` the functions that called it, and
# ``record_shapes`` the :term:`shapes <shape>` of its inputs. Which reads are Adam's, and
# which layer's product takes longest?

# fold: Going further: a schedule, functions and shapes

from collections import Counter

from torch.profiler import schedule

prepared = prepare(device)
# four steps pass, two are recorded and forgotten, six are kept; once
plan = schedule(wait=4, warmup=2, active=6, repeat=1)
options = {"with_stack": True, "record_shapes": True}
with profile(activities=activities, schedule=plan, **options) as recorded:
    for _ in range(14):
        train(1, *prepared)
        recorded.step()  # a step is over


def caller(event):
    """The innermost function that led to an operator, and the line where it begins."""
    while event and ".py(" not in event.name:
        event = event.cpu_parent  # what it was called by
    return event.name if event else "unknown"


reads = [e for e in recorded.events() if e.name == "aten::_local_scalar_dense"]
print("reads in 6 steps, by function:")
for place, count in Counter(caller(read) for read in reads).most_common():
    print(f"{count:4}  {place[-70:]}")

print("products, by the shapes of their inputs:")
took = {}
for entry in recorded.key_averages(group_by_input_shape=True):
    if entry.key in ("aten::addmm", "aten::mm"):
        shapes = [shape for shape in entry.input_shapes if len(shape) == 2]
        time = entry.self_device_time_total or entry.self_cpu_time_total
        took[f"{entry.key}  {shapes}"] = time / 6
for product, time in sorted(took.items(), key=lambda item: -item[1]):
    print(f"{time:6.0f} µs a step  {product}")

# %%
# ``train`` reads once a step, with ``loss.item()``, and the other reads are in PyTorch's
# ``optimizer.py``: the count above had mixed them. The products of all layers had one row
# for each name, and are apart now. **Group by function to see who calls, and by shape to
# see which layer.**
#
# Nsight Systems needs names for the parts of a step, too. NVIDIA's way to give them is
# called NVTX. On a CUDA GPU the next cell runs there. Otherwise it runs on the practice
# GPU, which does nothing with the names:

# fold: Going further: name the parts of a step for Nsight Systems

name = torch.cuda.nvtx.range


def train_named(steps, model, optimizer, batches):
    feed = iter(batches)
    for number in range(steps):
        if number == 10:  # after the warm-up
            torch.cuda.profiler.start()  # Nsight Systems records from here
        with name("fetch"):
            inputs, targets = next(feed)
        with name("forward"):
            loss = loss_fn(model(inputs), targets)
        # in this thread, or the name would not count for what backward() launches
        with name("backward"), torch.autograd.set_multithreading_enabled(False):
            optimizer.zero_grad()
            loss.backward()
        with name("optimizer"):
            optimizer.step()
    torch.cuda.profiler.stop()
    return loss.detach()


with gpulesson.practice_gpu():
    print(f"last loss: {train_named(steps, *prepare(torch.device('cuda'))):.4f}")

# %%
# .. fold:: Going further: record it with Nsight Systems, and read it
#
#    The first command runs a script, and writes ``run.nsys-rep``. The second prints two
#    tables:
#
#    .. code-block:: bash
#
#       nsys profile --trace=cuda,nvtx,osrt --capture-range=cudaProfilerApi \
#           --capture-range-end=stop --output=run python train.py
#       nsys stats --report=nvtx_gpu_proj_sum,cuda_gpu_kern_sum run.nsys-rep
#
#    - ``--trace`` says what is recorded: CUDA's calls, copies and kernels; your names;
#      and the calls of the operating system in which a thread waits.
#    - ``--capture-range`` and its ``-end`` leave out what is before ``profiler.start()``
#      and after ``profiler.stop()``, and let the script go on to its end.
#    - ``nvtx_gpu_proj_sum`` has, for each of your names, the time from the first kernel
#      or copy that was launched in it to the end of the last one, gaps included.
#      ``cuda_gpu_kern_sum`` has the time of each kernel.
#
#    Then open the file in Nsight Systems on your own computer. Look for:
#
#    - *Gaps in the GPU's row of kernels.* What does the row of your thread show at that
#      moment? "fetch" means that the data is late, and a call of the operating system
#      that it waits for a file or for a :term:`worker`. Many short calls are launches.
#    - *A long call with "Synchronize" in its name.* A line reads a value, or copies
#      without ``non_blocking``.
#    - *Copies beside a gap.* The GPU waits for them; :doc:`lesson 9
#      </lessons/09_feeding_the_gpu>` lets them overlap.
#
#    NVIDIA has a page on `the options
#    <https://docs.nvidia.com/nsight-systems/UserGuide/index.html>`__ and one on `the
#    tables <https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html>`__.
#
# Exercise
# --------
#
# .. exercise:: Make a slow loop lean
#    :minutes: 20
#    :difficulty: hard
#    :starter: exercise_11.py
#
#    The script contains ``slow``, a training loop that works and does three things that
#    nobody needs. It counts a step's operators, bytes and reads, so that no clock is
#    needed. Two functions are empty.
#
#    1. **Predict:** read ``slow``. What would you change first?
#    2. Profile it: ``python exercise_11.py profile`` prints the table. What is called
#       how often, with which self time? Were you right?
#    3. Write ``batch``: the images and labels of one step, and no others converted.
#    4. Write ``losses``: the same losses as ``slow``, without what nobody needs.
#    5. Run the script again. How many operators, bytes and reads are left?
#
#    To check it: ``python -m gpulesson check exercise_11.py``.
#
#    You are done when both functions are right: the same losses, and one read.
#
# .. solution::
#    :file: solution_11.py
#
#    In every step ``slow`` scaled all images again, computed a norm whose value no loss
#    needs, and read twice: in the ``if``, and for the loss.
#
# .. keypoints::
#
#    - Profile a few steps after a warm-up. Sort by self time, look at the number of
#      calls, and read shares, not seconds. A timeline shows the gaps.
#    - ``_local_scalar_dense`` counts the reads, and ``set_sync_debug_mode`` names the
#      lines that wait.
#    - Divide a step's bytes and FLOP by what the machine can do, and set the launch
#      overhead beside them. The largest of the three times says what is worth changing.
#
# **Next:** :doc:`/lessons/12_speed_ladder` takes a run from a naive script towards its
# limit.

"""
9 · Feeding the GPU
===================

Find out whether the model waits for its data, measure the loader's settings, and leave
the loader out where you do not need it.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - Is my training slow because of the model, or because of what feeds it?
      - Which of the loader's many settings help, and why did more workers make it
        slower?
      - When do I need no loader at all?

   .. objectives::

      - Split the time of an epoch into feeding and computing.
      - Measure batch size, workers, and pinned memory on your own machine.
      - Explain what workers cost, and when they pay.
      - Fetch a batch with one call instead of one call per sample.
      - Keep data on the device, and count what is still copied.

.. prereq::

   - :doc:`Lesson 5 </lessons/05_fashion_mnist>`: the network and the images.
   - :doc:`Lesson 8 </lessons/08_was_it_faster>`: how to measure, and compare in turns.
"""

# %%
# While a :term:`GPU` waits for its next :term:`batch`, it computes nothing. So when
# training is slow, first find out which half is slow: the model, or what feeds it. In
# this lesson you feed the network of :doc:`lesson 5 </lessons/05_fashion_mnist>` in
# every way that there is, and measure each.

import io
import os
import statistics
import sys
import time

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision.transforms.functional import to_tensor

import gpulesson
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure

# %%
# A few images are enough to measure with, and one thread: for
# :term:`tensors <tensor>` this small, more threads only wait for each other.

torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images, labels = data.train_images[:1280], data.train_targets[:1280]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Find out who waits: the model or its feed
# -----------------------------------------
#
# Pictures mostly come as files, and each file has to be decoded. We make such files in
# memory, in the PNG format:


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, format="png")
    return file.getvalue()


# %%
# The :class:`torch.utils.data.Dataset` below holds the files. It decodes one picture
# when it is asked for it:


class Files(Dataset):
    """Images decoded from PNG, one at a time."""

    def __init__(self, images, labels):
        self.files = [png(image) for image in images]
        self.labels = labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(io.BytesIO(self.files[index]))
        return to_tensor(picture), self.labels[index]  # float32 [1, 28, 28]


files = Files(images, labels)
print(f"one image: {len(files.files[0])} bytes as PNG, {images[0].nbytes} as bytes")

# %%
# Here are the model, its :term:`optimizer`, and a loop that trains on any batches. It
# copies each batch to the :term:`device`. (``non_blocking`` is explained below, with
# :term:`pinned memory`.)

model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
loss_fn = torch.nn.CrossEntropyLoss()


def train(batches):
    for inputs, targets in batches:
        pinned = inputs.is_pinned()  # only then may the copy go on by itself
        inputs = inputs.to(device, non_blocking=pinned)
        targets = targets.to(device, non_blocking=pinned)
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()


# %%
# Now time an :term:`epoch` in three ways: the :term:`data loader` without a model, the
# model without a loader (the same batch again and again), and both together. The three
# take turns, as in :doc:`lesson 8 </lessons/08_was_it_faster>`. Which do you expect to
# take longer, feeding or computing?

loader = DataLoader(files, batch_size=64, shuffle=True)
one_batch = [tensor.to(device) for tensor in next(iter(loader))]
epochs = {
    "feed only": lambda: [None for _ in loader],
    "compute only": lambda: train([one_batch] * len(loader)),
    "both": lambda: train(loader),
}
turns = {name: [] for name in epochs}
for _ in range(6):
    for name, epoch in epochs.items():
        timing = measure(epoch, device=device, warmup=0, repeats=1)
        turns[name].append(timing.median)

# %%
# The first turn is warm-up. Of the other five the table shows the median, and between
# which times half of them lie:

# fold: Print the three times

times = {}
for name, (_, *seconds) in turns.items():
    low, times[name], high = statistics.quantiles(seconds, n=4)
    print(
        f"{name:<13} {times[name] * 1e3:7.1f} ms an epoch",
        f"(half of the turns {low * 1e3:.1f} to {high * 1e3:.1f})",
    )
feeding = times["feed only"] / (times["feed only"] + times["compute only"])
print(f"of feeding and computing on {device}, feeding is {feeding:.0%}")

# %%
# **Begin with this measurement, whatever you train.** If feeding is most of the time, a
# faster GPU or a smaller model can save only the rest.
#
# The three numbers also say whether feeding and computing overlap. A loader that works
# in the same process cannot feed while the model computes on a CPU: "both" takes at
# least the sum of the two, as far as the spreads can tell.
#
# .. question:: Feeding takes 90 % of the time. What does a GPU ten times as fast save?
#
#    - About nine tenths of the time.
#
#      No. That would be so if the model's part were all of the time. The new GPU does
#      nothing for the decoding of pictures, which happens on the CPU.
#
#    - About a tenth of the time.
#
#      Yes. A tenth of the time shrinks to a hundredth, and nine tenths stay as they
#      are. First make the feed faster.
#
#    - Nothing: the slower half decides.
#
#      No. In one process the times of the two add up, so most of the computing's tenth
#      is saved. It is little, and not nothing.
#
# Measure the loader's settings
# -----------------------------
#
# The usual advice is: larger batches, more :term:`workers <worker>`, pinned memory.
# What does each of them do?
#
# - ``batch_size`` says how many samples one :term:`step` gets.
# - ``num_workers=2`` starts two processes, the workers, which decode
#   batches ahead. They are ended after each epoch and started again for the next one,
#   unless ``persistent_workers=True`` keeps them.
# - ``pin_memory=True`` puts batches where a :term:`CUDA` GPU can fetch them by itself,
#   and ``non_blocking=True`` lets Python go on meanwhile.
#
# On Linux, workers can be *forked*: they begin as copies of this process, and so know
# the class ``Files``. Other systems start them afresh. There this page measures no
# workers:

can_fork = sys.platform == "linux"
fork = {"multiprocessing_context": "fork"}
settings = [{"batch_size": n} for n in (16, 64, 256)]
if can_fork:
    settings += [{"batch_size": 64, "num_workers": n, **fork} for n in (1, 2)]
    settings += [{**settings[-1], "persistent_workers": True}]
if device.type == "cuda":
    settings += [{"batch_size": 64, "pin_memory": True}]

# %%
# Each setting trains the same epoch four times; the first is warm-up. Which one do you
# expect to take least time?

# fold: Time an epoch with each setting

measured = {}


def describe(options):
    shown = {name: value for name, value in options.items() if name not in fork}
    return ", ".join(f"{name}={value}" for name, value in shown.items())


for options in settings:
    loader = DataLoader(files, shuffle=True, **options)
    timing = measure(
        lambda feed=loader: train(feed), device=device, warmup=1, repeats=3
    )
    measured[describe(options)] = timing.median
    low, high = (x * 1e3 for x in timing.quartiles)
    print(f"{describe(options)}:")
    print(f"    {timing.median * 1e3:6.1f} ms an epoch ({low:.1f} to {high:.1f})")

least = min(measured, key=measured.get)
print(f"least on {device}: {least}")
if not can_fork:
    print("workers: not measured, since this page starts them on Linux only")

# %%
# A larger batch saves what each *batch* costs, and nothing of what each *sample* costs.
# It also changes how the model learns: :doc:`lesson 12 </lessons/12_speed_ladder>`
# measures by how much.
#
# Look at the two rows with two workers. The processes are the same, and so is their
# work. But without ``persistent_workers`` the processes are started and ended in every
# epoch, and with it they stay: their start was in the warm-up. **The difference of the
# two rows is the price of starting and ending processes.** It is paid once an epoch,
# however long the epoch is. Here an epoch is only 1,280 images, so this price can be
# larger than all that two workers save. In an epoch of minutes you would not notice it.
# So before you say that workers make your training slower, set
# ``persistent_workers=True`` and measure again.
#
# In a script of your own, workers that are started afresh, as on Windows and macOS, and
# with Python 3.14 on Linux, need two things: the Dataset at the top level of a file,
# not in a notebook, and the training under ``if __name__ == "__main__":``.
#
# Pin memory for copies to a GPU
# ------------------------------
#
# A GPU cannot copy directly from ordinary :term:`host memory`, because the operating
# system may move what is there: it is :term:`pageable memory`. CUDA first copies such a
# batch to a place of its own that cannot move, and Python has to wait for that. In
# pinned memory the batch itself cannot move, so the GPU fetches it directly:
#
# .. drawing:: pinned_memory.svg
#
#    A batch in pageable memory is copied twice; a batch in pinned memory is copied
#    once, and the GPU can compute meanwhile.
#
# Where there is a CUDA GPU, this cell copies one batch from both kinds of memory:

if torch.cuda.is_available():
    batch = torch.rand(4096, 784)
    for name, source, no_wait in [
        ("ordinary memory", batch, False),
        ("pinned", batch.pin_memory(), False),
        ("pinned, non_blocking", batch.pin_memory(), True),
    ]:
        timing = measure(
            lambda s=source, n=no_wait: s.to("cuda", non_blocking=n), device="cuda"
        )
        rate = batch.nbytes / timing.median / 1e9
        print(f"{name:<21} {timing.median * 1e6:7.1f} µs, {rate:.1f} GB/s")
else:
    print("pin_memory, non_blocking: not measured, there is no CUDA GPU to pin for")

# %%
# Each of these times ends when the *copy* is done. ``non_blocking`` does not shorten
# the copy. It lets Python go on while the copy runs. That helps only if there is
# something else to do, such as preparing the next batch. From ordinary memory Python
# waits although you asked it not to (`PyTorch's page on both
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__). With other
# devices than CUDA's leave ``non_blocking`` off: :func:`gpulesson.device.to_device`
# says why.
#
# .. question:: With ``pin_memory=True`` alone, does Python go on during a copy?
#
#    - Yes: that is what pinned memory is for.
#
#      No. Pinned memory makes it possible. A plain ``to(device)`` still waits for its
#      copy.
#
#    - No: the copy has to be asked for with ``non_blocking=True``, too.
#
#      Yes. The two belong together: pinned memory, so that the GPU can copy by itself,
#      and ``non_blocking=True``, so that Python does not wait for it.
#
#    - No: a GPU cannot copy and compute at the same time.
#
#      No. It can, if the copy is in a :term:`stream` of its own: see the lower half of
#      the drawing.
#
# Know what a worker costs
# ------------------------
#
# A worker is a process. It has to be started, it has to hand each of its batches to the
# training process, and it wants a core of its own. A class that has nothing to decode
# shows these costs alone. Its rows lie in memory as floats:


class Rows(Dataset):
    """Images that are float tensors already."""

    def __init__(self, images, labels):
        self.images, self.labels = images.float() / 255, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):  # a number, or a list of numbers
        return self.images[index], self.labels[index]


rows = Rows(images, labels)

# %%
# We feed without training, with no worker, one and two. The time until the first batch
# is taken apart from the time of the rest. For which of the two datasets do you expect
# workers to pay?

# fold: Time the first batch and the rest of an epoch

affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
print(f"cores that this process may use: {len(affinity(0))}")


def first_and_rest(loader):
    """Seconds until the first batch is there, and from there to the end."""
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    for _ in batches:
        pass
    return first, time.perf_counter() - start - first


counts = (0, 1, 2) if can_fork else (0,)
parts = {}
for name, dataset in (("rows in memory", rows), ("files to decode", files)):
    for workers in counts:
        options = {"num_workers": workers, **fork} if workers else {}
        loader = DataLoader(dataset, batch_size=64, **options)
        runs = torch.tensor([first_and_rest(loader) for _ in range(5)])
        parts[name, workers] = (runs.median(dim=0).values * 1e3).tolist()
        first, rest = parts[name, workers]
        print(
            f"{name:<16} {workers} workers: first {first:6.1f} ms, rest {rest:6.1f} ms"
        )

# %%
# The same as a picture, and the sums compared with feeding without workers:

# fold: Draw the two parts, and print the sums

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
names = [f"{name}\n{workers} workers" for name, workers in parts]
first, rest = (list(column) for column in zip(*parts.values(), strict=True))
axes.barh(names, first, color="C1", label="until the first batch")
axes.barh(names, rest, left=first, color="C0", label="the other batches")
axes.invert_yaxis()
axes.set(xlabel="milliseconds an epoch", title="Feeding only, medians of five")
axes.legend()
axes.grid(alpha=0.3, axis="x")
plt.show()

for name in ("rows in memory", "files to decode"):
    alone, *helped = (sum(parts[name, workers]) for workers in counts)
    for workers, total in enumerate(helped, start=1):
        print(f"{name}, {workers} workers: {total / alone:.2f} times the time of none")
if not can_fork:
    print("workers: not measured, since this page starts them on Linux only")

# %%
# Compare the bars without workers and with them:
#
# - *Until the first batch* is mostly the cost of starting processes. A loader without
#   ``persistent_workers``, as here, pays it in each epoch. It matters in short epochs.
# - *The other batches* are the work itself, the hand-over of each batch and, at the
#   end, stopping the workers.
#
# A single worker can only lose here. It does the same work in another process, and the
# training process does nothing meanwhile. What it can win is time in which the model
# computes, and only the table of the settings contains that. Rows in memory leave next
# to nothing for a worker to do. Files do, and two workers share them.
#
# The cores are the second cost, beside the start. Two workers and the process that
# trains are three processes. On a machine with two cores they take turns; on one with
# sixteen each has a core of its own. So the same setting can help on one machine and
# cost time on another. **Take as many workers as there are idle cores, only for samples
# that take longer than their hand-over, and only if the clock agrees.**
#
# .. instructor-note::
#
#    Many learners believe that more workers are always faster. In a class with
#    different laptops, collect everyone's line ``least on …``: the answers differ, and
#    the workers are missing; pair those learners with others.
#
# Fetch a whole batch with one call
# ---------------------------------
#
# A loader asks its dataset for one sample after the other, and stacks them. That is one
# Python call for each image, and for rows in memory these calls are the cost. PyTorch
# has two ways to ask once per batch. The first: a dataset may have a method
# ``__getitems__``, which gets all indices of a batch:


class BatchedRows(Rows):
    def __getitems__(self, indices):
        return self[indices]  # stacked already


def as_it_is(batch):
    return batch


# %%
# The second: the *sampler* yields whole lists of indices, and ``batch_size=None`` tells
# the loader to leave them as they are. Both are among these five feeds. The last one
# has no loader at all: ``Batches`` cuts a shuffled list of indices into slices, and
# takes the rows from tensors that lie on the device:

sampler = BatchSampler(RandomSampler(rows), batch_size=64, drop_last=False)
resident = Rows(images.to(device), labels.to(device))
feeds = {
    "files, decoded one by one": DataLoader(files, batch_size=64, shuffle=True),
    "rows, one by one": DataLoader(rows, batch_size=64, shuffle=True),
    "rows, __getitems__": DataLoader(
        BatchedRows(images, labels), batch_size=64, shuffle=True, collate_fn=as_it_is
    ),
    "rows, BatchSampler": DataLoader(rows, sampler=sampler, batch_size=None),
    f"Batches on {device}": Batches(
        resident.images, resident.labels, batch_size=64, shuffle=True
    ),
}

# %%
# Each feed brings one epoch to the device, without training:

# fold: Time each feed


def move_all(batches):
    for inputs, targets in batches:
        inputs.to(device), targets.to(device)


rates = {}
for name, feed in feeds.items():
    timing = measure(lambda feed=feed: move_all(feed), device=device, repeats=7)
    rates[name] = len(images) / timing.median
    low, high = timing.quartiles
    print(
        f"{name:<26} {timing.median * 1e3:7.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f})"
    )

# %%
# Now compare with the other half of the first section. How many images a second does
# the model take? This is its appetite, and each feed's :term:`throughput` has to match
# it:

# fold: Draw and print the feeds beside the model's appetite

appetite = len(images) / times["compute only"]

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(list(rates.values()), list(rates), "o", ms=10)
axes.axvline(appetite, color="C1", lw=3, label="what the model takes")
axes.invert_yaxis()
axes.set(
    xlabel="images a second",
    xscale="log",
    title=f"Feeds and the model's appetite ({device})",
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

print(f"the model takes {appetite:,.0f} images a second, on {device}")
for name, rate in rates.items():
    verdict = f"{rate / appetite:.1f} times that"
    verdict += ": starves it" if rate < appetite else ""
    print(f"{name:<26} {rate:10,.0f}  {verdict}")

# %%
# A feed left of the line takes longer than the model does. If workers feed ahead, such
# a feed sets the speed of the whole training. In the same process both times add up, so
# a feed right of the line costs time as well, and less the further right it is.
#
# The line itself moves. A larger model takes fewer images a second, and a slower feed
# is enough for it.
#
# Count what is copied to the GPU
# -------------------------------
#
# On a real GPU there is one more cost, the copy of each batch. How many copies there
# are, and of how many bytes, can be counted without a GPU: the :term:`practice GPU`
# keeps a log of every copy. (``force=True`` has it simulate also where a real GPU is
# present. It counts; it does not time.)


def copies_and_bytes(epoch):
    with gpulesson.practice_gpu(force=True) as gpu:
        gpu.clear_events()  # count from here, also if it was running before
        epoch()
        events = [e for e in gpu.events if e.kind == "host to device"]
    return sum(e.count for e in events), sum(e.nbytes for e in events)


# %%
# Three ways to feed one epoch: floats batch by batch, bytes batch by batch, and all
# bytes at once, before the loop. How many copies does each way need, and which one
# moves the most bytes?


def floats_by_batch():
    for inputs, targets in Batches(images.float() / 255, labels, batch_size=64):
        inputs.to("cuda"), targets.to("cuda")


def bytes_by_batch():
    for inputs, targets in Batches(images, labels, batch_size=64):
        inputs.to("cuda").float() / 255, targets.to("cuda")


def resident_bytes():
    for inputs, _ in Batches(images.to("cuda"), labels.to("cuda"), batch_size=64):
        inputs.float() / 255


# %%
# The last line says how large all the training images and labels are together:

for epoch in (floats_by_batch, bytes_by_batch, resident_bytes):
    count, nbytes = copies_and_bytes(epoch)
    print(f"{epoch.__name__:<16} {count:3} copies, {nbytes / 1e6:5.2f} MB to the GPU")
whole = data.train_images.nbytes + data.train_targets.nbytes
print(f"all {len(data.train_images)} training images and labels: {whole / 1e6:.0f} MB")

# %%
# A batch needs two copies, one of the images and one of the labels. Pixels are bytes.
# If you send bytes and make floats of them on the GPU, the images need a quarter of the
# traffic. The last way copies twice in all, *once* for the whole run: in the second
# epoch, and in all that follow, it copies nothing.
#
# So which feed should you take?
#
# - Your data fit into the :term:`device memory` beside the model: keep them there as
#   bytes, and cut batches by index. The table of the feeds says what that brought here.
# - They do not fit: send bytes, a batch at a time, from pinned memory, decoded by as
#   many workers as there are idle cores.
#
# Exercise
# --------
#
# .. exercise:: Fewer calls, fewer bytes
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_09.py
#
#    The script feeds one epoch to the practice GPU, and counts two things: how often
#    the dataset is called, and how many bytes are copied to the device.
#
#    1. **Predict:** what are the two numbers, for 2,000 images of 784 pixels in batches
#       of 64?
#    2. Change ``Pictures`` and ``feed`` so that one call fetches each batch of 64. Which
#       of the two ways do you prefer?
#    3. Send bytes, and make floats of them on the device.
#    4. The script checks that the same images arrive in the same order.
#
#    To check it: ``python -m gpulesson check exercise_09.py``.
#
#    You are done when it prints ``well fed``.
#
# .. solution::
#    :file: solution_09.py
#
#    A sampler that yields lists, ``batch_size=None``, and the division by 255 moved
#    from the dataset to ``feed``. 32 calls instead of 2,000, and about a quarter of the
#    bytes: the labels keep their size.
#
# .. keypoints::
#
#    - Time an epoch three ways, feeding only, computing only, both: then you know who
#      waits for whom.
#    - Measure a setting before you keep it: what helps depends on the machine.
#    - A worker costs its start, the hand-over of each batch, and a core. It pays when
#      samples are work and cores are idle.
#    - Ask for a whole batch at once, with ``__getitems__``, with a ``BatchSampler``, or
#      by indexing.
#    - Data that fits lives on the device, as bytes; then the loop copies nothing.
#
# **Next:** :doc:`/lessons/11_profile_first` looks inside the step itself.

"""
9 · Feeding the GPU
===================

Find out whether the model waits for its data, choose the loader's settings by
measuring, and leave the loader out where you do not need it.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - Is my training slow because of the model, or because of what feeds it?
      - Which settings of the loader help, and why did more workers make it slower?
      - When do I need no loader at all?

   .. objectives::

      - Split the time of an epoch into feeding and computing.
      - Measure batch size, workers and pinned memory on your own machine.
      - Explain what workers cost, and when they pay.
      - Fetch a batch with one call instead of one call per sample.
      - Keep data on the device as bytes, and count what is still copied.
"""

# %%
# .. prereq::
#
#    - :doc:`/lessons/05_fashion_mnist`, for the network and the images
#    - :doc:`/lessons/08_was_it_faster`, for measuring in turns
#
# A :term:`GPU` that waits for its next :term:`batch` is like a cook who waits for peeled
# potatoes: a hotter stove does not help. So when a training :term:`step` is slow, first
# find out who waits. Here you feed the network of lesson 5 in several ways, and measure
# each.

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

from gpulesson import practice
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure

# %%
# A few images are enough to measure with. With one CPU thread, times vary less.

torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images, labels = data.train_images[:1280], data.train_targets[:1280]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}")

# %%
# If you see the word *simulated*, the times below say nothing about any GPU.
#
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
# A :class:`torch.utils.data.Dataset` holds the files. It decodes a picture when it is
# asked for it:


class Files(Dataset):
    def __init__(self, images, labels):
        self.files = [png(image) for image in images]
        self.labels = labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(io.BytesIO(self.files[index]))
        return to_tensor(picture), self.labels[index]  # floats, [1, 28, 28]


# %%
# The brackets call ``__getitem__``:

files = Files(images, labels)
picture, label = files[5]
print(tuple(picture.shape), "label", label.item())

# %%
# Here are the model, its :term:`optimizer`, and a loop that trains on any batches, and
# moves each to the :term:`device`. (``non_blocking`` is explained below, with
# :term:`pinned memory`.)

model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()
no_wait = device.type == "cuda"


def train(batches):
    for inputs, targets in batches:
        inputs = inputs.to(device, non_blocking=no_wait)
        targets = targets.to(device, non_blocking=no_wait)
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()


# %%
# We measure in turns, as in lesson 8, with a function in this fold:

# fold: The helper in_turns, which measures and prints


def in_turns(works, rounds=4):
    """Median milliseconds of each function; the first turn is warm-up."""
    turns = {name: [] for name in works}
    for _ in range(1 + rounds):
        for name, work in works.items():
            timing = measure(work, device=device, warmup=0, repeats=1)
            turns[name].append(1e3 * timing.median)
    medians = {}
    print(f"{'':<23}       ms   the middle half")
    for name, (_, *times) in turns.items():
        low, medians[name], high = statistics.quantiles(times, n=4)
        print(f"{name:<23} {medians[name]:8.2f}   {low:.2f} to {high:.2f}")
    return medians


# %%
# We time an :term:`epoch` in three ways: the :term:`data loader` without a model, the
# model without a loader (the same batch again and again), and both together.

loader = DataLoader(files, batch_size=64, shuffle=True)
one_batch = [tensor.to(device) for tensor in next(iter(loader))]
ways = {
    "feed only": lambda: list(loader),
    "compute only": lambda: train([one_batch] * len(loader)),
    "both": lambda: train(loader),
}

# %%
# Which will take longer, feeding or computing?

epoch = in_turns(ways)
share = epoch["feed only"] / (epoch["feed only"] + epoch["compute only"])
print(f"of feeding and computing on {device}, feeding is {share:.0%}")

# %%
# Each line has the median of the turns, and the range of their middle half. **Begin with
# this measurement, whatever you train.** If feeding is most of the time, a faster GPU or
# a smaller model can save only the rest. This loader works in the same process as the
# loop, so on a CPU the two times add up. On a GPU they do, too, if the loop reads the
# :term:`loss` in every step: it waits for the GPU before it feeds again.
#
# .. question:: Feeding is 90 % of such a loop. What does a GPU ten times as fast save?
#
#    - About nine tenths of the time.
#
#      No. That would be so if the model took all of the time. The CPU still has to
#      decode the pictures.
#
#    - About a tenth of the time.
#
#      Yes. A tenth of the time shrinks to a hundredth, and nine tenths stay as they
#      are. First make the feed faster.
#
#    - Nothing: the slower half decides.
#
#      No. With a read in every step the times of the two add up, so most of the
#      computing's tenth is saved. It is little, and not nothing.
#
# Keep the workers from epoch to epoch
# ------------------------------------
#
# :doc:`Lesson 4 </lessons/04_training_loop>` has a table of the loader's settings. Now
# that there is something to decode, we measure them again. :term:`Workers <worker>` are
# processes that prepare batches ahead. Without ``persistent_workers=True`` they end after
# each epoch, and start again for the next one.

can_fork = sys.platform == "linux"
fork = {"multiprocessing_context": "fork"}
two = {"batch_size": 64, "num_workers": 2, **fork}

settings = {f"batch size {n}": {"batch_size": n} for n in (16, 64, 256)}
if can_fork:
    settings["64, two workers"] = two
    settings["64, two workers, kept"] = {**two, "persistent_workers": True}
if device.type == "cuda":
    settings["64, pinned"] = {"batch_size": 64, "pin_memory": True}

# %%
# On Linux this page *forks* its workers: each begins as a copy of this process. Elsewhere
# it measures none. Which setting do you expect to take least time?


def train_with(options):
    loader = DataLoader(files, shuffle=True, **options)
    return lambda: train(loader)


works = {name: train_with(options) for name, options in settings.items()}
times = in_turns(works)
print("least on this machine:", min(times, key=times.get))
if can_fork:
    price = times["64, two workers"] - times["64, two workers, kept"]
    print(f"to start and end two workers: {price:.0f} ms an epoch")
else:
    print("workers: not measured, here they need a script with a main guard")

# %%
# If the ranges of two lines overlap, you cannot tell these settings apart.
#
# A larger batch saves what each *batch* costs, and nothing of what each *sample* costs.
# It also changes how the model learns (:doc:`lesson 12 </lessons/12_speed_ladder>`).
#
# In both lines with workers two processes do the same work. In the first they start and
# end in every epoch; in the second they started in the warm-up. **The difference is the
# price of starting and ending processes, and** ``persistent_workers=True`` **saves it.**
# Our epoch is short, so the price can be more than what the workers save; in an epoch of
# minutes you would not notice it. If workers make your own training slower, keep them,
# and measure again.
#
# On macOS and on Windows each worker first runs your script again. On Linux, from Python
# 3.14 on, a server process runs it once, and the workers are its copies. So a script
# needs the *main guard* of lesson 4, ``if __name__ == "__main__":``, and its Dataset in a
# file, not in a notebook.
#
# Know what a worker costs
# ------------------------
#
# Besides its start, a worker has to hand over each batch to the training process, and it
# needs a core. To see these costs alone, we make a Dataset that has nothing to decode:


class Rows(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images.float() / 255, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):  # a number, or a list of numbers
        return self.images[index], self.labels[index]


rows = Rows(images, labels)

# %%
# We feed without training, with no workers and with two that are not kept. For which of
# the two Datasets do you expect workers to pay?

# fold: Time the first batch and the others, and draw both


def first_and_others(loader):
    """Milliseconds until the first batch is there, and from there to the end."""
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter()
    for _ in batches:
        pass
    return 1e3 * (first - start), 1e3 * (time.perf_counter() - first)


parts = {}
for name, dataset in (("rows in memory", rows), ("files to decode", files)):
    for label, options in (("no workers", {"batch_size": 64}), ("two workers", two)):
        if options is two and not can_fork:
            continue
        runs = [first_and_others(DataLoader(dataset, **options)) for _ in range(3)]
        middle = [statistics.median(column) for column in zip(*runs, strict=True)]
        parts[f"{name}\n{label}"] = middle

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
first, others = zip(*parts.values(), strict=True)
ax.barh(list(parts), first, color="C1", label="until the first batch")
ax.barh(list(parts), others, left=first, color="C0", label="the other batches")
ax.invert_yaxis()
ax.set(xlabel="milliseconds an epoch", title="Feeding only, medians of three epochs")
ax.legend()
ax.grid(alpha=0.3, axis="x")
plt.show()

affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
print(f"cores that this process may use: {len(affinity(0))}")
if not can_fork:
    print("workers: not measured, here they need a script with a main guard")

# %%
# With workers, *until the first batch* is mostly the start of the processes. *The other
# batches* are the work itself, the hand-over, and the end of the workers. Rows in memory
# leave next to nothing for a worker to do. Files are work, and two workers share it.
#
# Two workers and the training are three processes. On two cores they take turns; on
# sixteen each has its own. **Take workers**
#
# - **only as many as there are idle cores,**
# - **only for samples that take longer than their hand-over,**
# - **and only if the clock agrees.**
#
# .. instructor-note::
#
#    Many learners believe that more workers are always faster. In a class with
#    different laptops, collect everyone's line ``least on this machine``. Not all
#    systems measure workers; pair those learners with others.
#
# How far do workers run ahead? ``prefetch_factor`` says it, in batches for each worker.
# Your own process tells the workers which samples to fetch, so it can count. How many of
# the 20 batches will have been asked for before we take the first one?


def order():
    for start in range(0, 1280, 64):
        asked.append(start)
        yield range(start, start + 64)


for ahead in (2, 4) if can_fork else ():
    asked = []
    options = {"num_workers": 2, "prefetch_factor": ahead, **fork}
    batches = iter(DataLoader(files, batch_sampler=order(), **options))
    print(f"prefetch_factor={ahead}: {len(asked)} batches asked for")
    del batches  # ends the workers

# %%
# As many as ``prefetch_factor`` times the two workers. `The default is 2
# <https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader>`__. A
# larger one helps if some batches take much longer than others. It makes no worker
# faster, and batches that wait take memory.
#
# Pin memory, so that Python need not wait for a copy
# ---------------------------------------------------
#
# The operating system may move what is in ordinary :term:`host memory`: it is
# :term:`pageable memory`. So :term:`CUDA` first copies a batch from there to a place that
# cannot move, and Python has to wait. In pinned memory the batch itself cannot move, and
# the GPU fetches it:
#
# .. drawing:: pinned_memory.svg
#
#    A batch in pageable memory is copied twice; a batch in pinned memory is copied
#    once, and the GPU can compute meanwhile.
#
# With ``pin_memory=True`` a loader returns pinned batches. To pin a batch is a copy, too.
# With workers, a thread makes it in the background; without, your loop waits for it. So
# measure whether it pays. Here we pin a batch ourselves, and copy it to your CUDA GPU, or
# else to the :term:`practice GPU`:

gpu = practice.start()
print(torch.cuda.get_device_name())

batch = torch.rand(4096, 784)
pinned = batch.pin_memory()
copies = {
    "ordinary memory": lambda: batch.to("cuda"),
    "pinned": lambda: pinned.to("cuda"),
    "pinned, non_blocking": lambda: pinned.to("cuda", non_blocking=True),
}

# %%
# ``set_sync_debug_mode("error")``, from lesson 8, stops where Python waits. At how many
# of the three copies?

torch.cuda.set_sync_debug_mode("error")
for name, copy in copies.items():
    try:
        copy()
        print(f"{name:<21} does not wait")
    except RuntimeError:
        print(f"{name:<21} waits")
torch.cuda.set_sync_debug_mode("default")

# %%
# At two. **Pinned memory and** ``non_blocking=True`` **belong together:** the first lets
# the GPU copy by itself, the second lets Python go on (`PyTorch's page on both
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__). From
# ordinary memory CUDA may make Python wait, also with ``non_blocking=True`` (`NVIDIA's
# page on it <https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html>`__).
# With devices other than CUDA's leave ``non_blocking`` off:
# :func:`gpulesson.device.to_device` says why.
#
# How long does each copy take? Only a real GPU can tell:

# fold: Time the three copies on a real GPU
if gpu.simulated:
    print("not timed: there is no real CUDA GPU")
else:
    for name, copy in copies.items():
        timing = measure(copy, device="cuda")
        rate = batch.nbytes / timing.median / 1e9
        print(f"{name:<21} {timing.median * 1e6:7.1f} µs, {rate:.1f} GB/s")
practice.stop()

# %%
# Each time ends when the *copy* is done, so ``non_blocking`` does not shorten it. It pays
# if Python has something else to do meanwhile, such as the next batch. If the GPU, too,
# is to compute meanwhile, the copy needs a :term:`stream` of its own.
#
# Fetch a whole batch with one call
# ---------------------------------
#
# A loader asks its Dataset for one sample after the other, and stacks them. For rows in
# memory these calls are the cost. There are two ways to ask once per batch. The first is
# a method ``__getitems__``, which gets the numbers of a whole batch:


class BatchedRows(Rows):
    def __getitems__(self, numbers):
        return self[numbers]  # stacked already


def as_it_is(batch):  # instead of stacking
    return batch


batched = BatchedRows(images, labels)
getitems = DataLoader(batched, batch_size=64, shuffle=True, collate_fn=as_it_is)

# %%
# The second is a *sampler* that yields lists of numbers. ``batch_size=None`` tells the
# loader to ask with each list as it is:

sampler = BatchSampler(RandomSampler(rows), batch_size=64, drop_last=False)
with_lists = DataLoader(rows, sampler=sampler, batch_size=None)
for feed in (getitems, with_lists):
    inputs, targets = next(iter(feed))
    print(len(feed), "batches, the first one is", tuple(inputs.shape))

# %%
# **If your Dataset can answer for many samples at once, let the loader ask once per
# batch.**
#
# Cut batches by index, where the data lives
# ------------------------------------------
#
# Rows of a :term:`tensor` need no loader at all. Shuffle their numbers, and take 64 of
# them at a time: ``index_select(0, numbers)`` returns these rows. The images stay bytes,
# and each batch becomes floats when it is needed:


def scale(batch):
    return batch.float().div_(255)


def by_index(images, labels):
    order = torch.randperm(len(images), device=images.device)
    for numbers in order.split(64):
        inputs = images.index_select(0, numbers)
        yield scale(inputs), labels.index_select(0, numbers)


my_images, my_labels = images.to(device), labels.to(device)  # once

# %%
# :class:`gpulesson.data.Batches` is the same, kept in a class. From one :term:`seed`, do
# both give the same first batch?

batches = Batches(my_images, my_labels, batch_size=64, shuffle=True, transform=scale)
torch.manual_seed(0)
ours, _ = next(by_index(my_images, my_labels))
torch.manual_seed(0)
theirs, _ = next(iter(batches))
print("same batch:", torch.equal(ours, theirs))
print(theirs.dtype, "on", theirs.device)

# %%
# They do. Look at two details. ``images[numbers]`` would pick the same rows as
# ``index_select``, but brackets accept much more than numbers of rows. Does that cost
# time?

parts = torch.randperm(1280, device=device).split(64)
picks = {
    "images[numbers]": lambda: [my_images[n] for n in parts],
    "index_select": lambda: [my_images.index_select(0, n) for n in parts],
}
times = in_turns(picks)

# %%
# If the two ranges are far apart, you have the answer for your device.
#
# The other detail is ``div_``. The underscore says that it changes the tensor itself,
# here the new floats. ``/ 255`` would make a second tensor of floats.
#
# .. question:: ``scale`` gets images that are floats already. What happens to them?
#
#    - Nothing. ``float`` makes a new tensor, and ``div_`` changes that one.
#
#      No. That is so for bytes. Of a tensor that is ``float32`` already, ``float`` makes
#      no copy: it returns the tensor that it got.
#
#    - They are divided by 255.
#
#      Yes. ``float`` returns the same tensor, and ``div_`` writes into it.
#
#    - An error says that they are no bytes.
#
#      No. Floats can be divided, so PyTorch has no reason to complain.
#
# We try both:

pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
scale(pixels)
print("bytes after scale: ", pixels)

numbers = pixels.float()
scale(numbers)
print("floats after scale:", numbers)

# %%
# The bytes are as they were. The floats have changed, and the next epoch would divide
# them again, without a message. (In ``by_index`` they would survive, since
# ``index_select`` copies. A slice does not. ``Batches`` tries its function on a copy, and
# refuses one that changes it.) ``.float().div_(255)`` **is safe for bytes, and would
# change data that are floats already.**
#
# Compare each feed with what the model takes
# -------------------------------------------
#
# Here are all five ways to feed, and a loop that only brings the batches to the device:

feeds = {
    "files, one by one": DataLoader(files, batch_size=64, shuffle=True),
    "rows, one by one": DataLoader(rows, batch_size=64, shuffle=True),
    "rows, __getitems__": getitems,
    "rows, BatchSampler": with_lists,
    f"bytes on {device}, by index": batches,
}


def only_move(feed):
    for inputs, targets in feed:
        inputs.to(device), targets.to(device)


# %%
# Which one will be the quickest?

times = in_turns({name: lambda f=f: only_move(f) for name, f in feeds.items()})

# %%
# How many images a second are that? And how many does the model take, when it gets the
# same batch again and again, as in the first section?

# fold: Draw and print images a second
takes = 1e3 * len(images) / epoch["compute only"]
rates = {name: 1e3 * len(images) / ms for name, ms in times.items()}

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.plot(list(rates.values()), list(rates), "o", ms=10)
ax.axvline(takes, color="C1", lw=3, label="what the model takes")
ax.invert_yaxis()
ax.set(xlabel="images a second", xscale="log")
ax.set_title(f"What each feed brings, and what the model takes ({device})")
ax.legend()
ax.grid(alpha=0.3)
plt.show()

print(f"{'images a second':>36}   of what the model takes")
print(f"{'the model takes':<23} {takes:12,.0f}")
for name, rate in rates.items():
    verdict = ", too slow" if rate < takes else ""
    print(f"{name:<23} {rate:12,.0f}   {rate / takes:.1f} times{verdict}")

# %%
# This is the :term:`throughput` of each feed. One left of the line takes longer than the
# model does. Without workers the two times add up on a CPU, so a feed right of the line
# costs time as well, and less the further right it is. (A GPU can compute while the CPU
# feeds.) **A feed is fast enough if it is far to the right of the model's line.** The
# line of a larger model is further left.
#
# Count what is copied to the GPU
# -------------------------------
#
# With a real GPU, copies are one more cost. The practice GPU keeps a log of them, so we
# can count them on any machine. (``force=True`` simulates beside a real GPU, too.)


def count_copies(epoch):
    with practice.practice_gpu(force=True) as gpu:
        gpu.clear_events()  # if it was running before
        epoch()
        events = [e for e in gpu.events if e.kind == "host to device"]
    megabytes = sum(e.nbytes for e in events) / 1e6
    print(f"{epoch.__name__:<15} {sum(e.count for e in events):>2} copies", end=", ")
    print(f"{megabytes:.2f} MB to the GPU")


# %%
# One epoch in three ways: floats batch by batch, bytes batch by batch, and all bytes at
# once, before the loop.


def floats_by_batch():
    for inputs, targets in Batches(scale(images), labels, batch_size=64):
        inputs.to("cuda"), targets.to("cuda")


def bytes_by_batch():
    for inputs, targets in Batches(images, labels, batch_size=64):
        scale(inputs.to("cuda")), targets.to("cuda")


def bytes_at_once():
    for inputs, _ in Batches(images.to("cuda"), labels.to("cuda"), batch_size=64):
        scale(inputs)


# %%
# How many copies does each way need, and which one moves the most bytes?

for way in (floats_by_batch, bytes_by_batch, bytes_at_once):
    count_copies(way)

# %%
# A batch needs two copies, of the images and of the labels. Images as bytes need a
# quarter of the traffic of floats. The last way makes two copies *for the whole run*:
# later epochs copy nothing. **Send bytes, and make floats of them on the GPU;
# if all of them fit, send them once.**
#
# So which feed should you take?
#
# .. list-table::
#    :header-rows: 1
#    :widths: 40 60
#
#    * - Your data
#      - Your feed
#    * - fit into the :term:`device memory`, beside the model
#      - bytes on the device, cut by index
#    * - fit into host memory only
#      - a loader with one call per batch, ``pin_memory`` and ``non_blocking``
#    * - are files that must be decoded
#      - decode once, and keep the bytes, if they fit into host memory; or a loader with
#        workers that are kept, ``pin_memory`` and ``non_blocking``
#
# Exercise
# --------
#
# .. exercise:: Feed a GPU with fewer calls and bytes
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_09.py
#
#    The file has a dataset, a plain feed that asks it for each picture by itself, and two
#    functions without a body. Its ``main`` counts calls and bytes on the practice GPU.
#
#    1. **Predict:** how many calls and how many bytes does the plain feed need, for 2,000
#       pictures of 784 pixels in batches of 64? Run the file to see.
#    2. Write ``floats``: send bytes, and make floats of them on the device.
#    3. Write ``feed``, with one call for each batch. Which way do you prefer?
#    4. Run the file again. By how much have the two numbers gone down?
#
#    To check it: ``python -m gpulesson check exercise_09.py``. You can check after each
#    function.
#
#    You are done when both have a check mark.
#
# .. solution::
#    :file: solution_09.py
#
#    A sampler that yields lists, ``batch_size=None``, and the division by 255 after the
#    copy. 32 calls instead of 2,000, and about a quarter of the bytes: the labels keep
#    their size. A loop over slices is right as well.
#
# .. keypoints::
#
#    - Time an epoch three ways, feeding only, computing only, both: then you know who
#      waits for whom.
#    - Measure a setting before you keep it: what helps depends on the machine.
#    - A worker costs its start, the hand-over of each batch, and a core. Keep workers
#      from epoch to epoch; they pay when samples are work and cores are idle.
#    - Ask for a whole batch at once, with ``__getitems__``, with a ``BatchSampler``, or
#      by index.
#    - Data that fits lives on the device, as bytes; then the loop copies nothing.
#
# **Next:** :doc:`/lessons/10_where_did_my_memory_go` counts what a step needs of the
# GPU's memory.

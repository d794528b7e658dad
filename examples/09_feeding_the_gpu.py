"""
Feeding the GPU
===============

Find out whether the model waits for its data, turn the loader's knobs with a clock in
hand, and leave the loader out where it is not needed.

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
      - Keep data on the device, and count what still crosses over.
"""

# %%
# A GPU that waits for its next batch is an expensive heater. So the first question
# about a slow training is not about the model. We feed the network of :doc:`lesson 5
# </lessons/05_fashion_mnist>` in every way that there is.

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

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images, labels = data.train_images[:1280], data.train_targets[:1280]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Who waits for whom
# ------------------
#
# Pictures mostly come as files that have to be decoded, one by one. We make such files
# in memory, and a :class:`torch.utils.data.Dataset` that decodes one when it is asked
# for it:


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, format="png")
    return file.getvalue()


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
# An epoch, three times over: the loader without a model, the model without a loader (the
# same batch again and again), and both. They take turns, as in :doc:`lesson 8
# </lessons/08_was_it_faster>`; the first turn is warm-up:

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
# This is the measurement to begin with, for any training. If feeding is most of the
# time, a faster GPU or a cleverer model can save only the rest. The three numbers also
# tell whether the two parts overlap: with a loader that works in the same process they
# do not, on a CPU, and "both" takes their sum at least, as far as the spreads can say.
#
# The knobs, measured
# -------------------
#
# The usual advice is: larger batches, more workers, pinned memory. ``num_workers=2``
# has two processes decode ahead. They are ended after each epoch, and started for the
# next one, unless ``persistent_workers`` keeps them. ``pin_memory`` puts batches where
# a CUDA GPU can fetch them by itself, and ``non_blocking=True`` lets Python go on
# meanwhile. Each setting trains the same epoch:

# Only there can workers simply inherit a Dataset that a notebook or page defines.
can_fork = sys.platform == "linux"
fork = {"multiprocessing_context": "fork"}
settings = [{"batch_size": n} for n in (16, 64, 256)]
if can_fork:
    settings += [{"batch_size": 64, "num_workers": n, **fork} for n in (1, 2)]
    settings += [{**settings[-1], "persistent_workers": True}]
if device.type == "cuda":
    settings += [{"batch_size": 64, "pin_memory": True}]


def describe(options):
    shown = {name: value for name, value in options.items() if name not in fork}
    return ", ".join(f"{name}={value}" for name, value in shown.items())


measured = {}
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
# A larger batch saves what each *batch* costs, and nothing of what each *sample* costs;
# and it is another training, as :doc:`lesson 4 </lessons/04_training_loop>` shows.
# Whether the workers helped stands above. They are the knob that surprises most, so we
# look at them more closely.
#
# In a script of your own, workers that are started afresh, as on Windows and macOS, and
# with Python 3.14 on Linux, need two things: the Dataset at the top level of a file, not
# in a notebook, and the training under ``if __name__ == "__main__":``.
#
# Pinning is a matter of CUDA. Where there is a GPU, this cell copies one batch from
# ordinary and from pinned memory:

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
# Mind what these times are: until the *copy* is done. What ``non_blocking`` brings is
# that Python does not wait, which shows only when there is something else to do, such
# as the next batch. From ordinary memory CUDA copies through a pinned buffer of its own,
# and Python waits although you asked it not to (`PyTorch's page on both
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__). Towards
# other devices leave it off: :func:`gpulesson.device.to_device`
# says why.
#
# What workers cost
# -----------------
#
# A worker is a process. It has to be started; each of its batches has to be handed to
# the training process; and it wants a core of its own. The second dataset below has
# nothing to decode. Its rows lie in memory as floats, so that the workers' costs stand
# alone:


class Rows(Dataset):
    """Images that are float tensors already."""

    def __init__(self, images, labels):
        self.images, self.labels = images.float() / 255, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):  # a number, or a list of numbers
        return self.images[index], self.labels[index]


rows = Rows(images, labels)
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

figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
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
# Read the bars in pairs, without workers and with. *Until the first batch* is mostly the
# cost of starting processes, paid in each epoch that has no ``persistent_workers``; it
# matters in short epochs. *The other batches* are the work, the hand-over of each batch,
# and at the end stopping the workers. Feeding alone, a single worker has nobody to work
# beside: it does the same work elsewhere, and can only lose. What it can win is time in
# which the model computes meanwhile; the table of the knobs has that. For rows in memory
# there is next to nothing to take off the training process. For files there is, and two
# workers share it; but with the process that trains they are three, and on a machine
# with two cores they take turns. That is how two workers can make a training slower
# there, and the same setting faster on sixteen cores. So: **as many workers as there are
# idle cores, only for samples that take longer than their hand-over, and only if the
# clock agrees.**
#
# One call for a whole batch
# --------------------------
#
# A loader asks its dataset for sample after sample, and stacks them. That is one Python
# call for each image, and for rows in memory the calls are the cost. PyTorch has two
# ways to ask once per batch. A dataset may have a method ``__getitems__``, which gets
# all indices of a batch. Or the *sampler* yields whole lists of indices, and
# ``batch_size=None`` tells the loader to leave them as they are:


class BatchedRows(Rows):
    def __getitems__(self, indices):
        return self[indices]  # stacked already


def as_it_is(batch):
    return batch


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
# The last line has no loader at all: ``Batches`` cuts a shuffled list of indices into
# slices, and takes the rows from tensors that lie on the device. Now beside them the
# other half of the first section: how many images a second does the model take?

appetite = len(images) / times["compute only"]

figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
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
# A feed left of the line takes longer than the model does. If workers feed ahead, its
# speed is then the speed of the training; in the same process both times add up. So
# right of the line what matters is how far. The line itself moves: a larger model takes
# fewer images a second, and is content with a slower feed.
#
# What crosses over
# -----------------
#
# On a real GPU there is one cost more, the copy. How often, and how many bytes, can be
# counted without one: the practice GPU keeps a log of every copy. (``force=True`` has it
# simulate also where a real GPU is present. It counts; it does not time.) Three ways to
# feed one epoch:


def copies_and_bytes(epoch):
    with gpulesson.practice_gpu(force=True) as gpu:
        epoch()
        events = [e for e in gpu.events if e.kind == "host to device"]
    return sum(e.count for e in events), sum(e.nbytes for e in events)


def floats_by_batch():
    for inputs, targets in Batches(images.float() / 255, labels, batch_size=64):
        inputs.to("cuda"), targets.to("cuda")


def bytes_by_batch():
    for inputs, targets in Batches(images, labels, batch_size=64):
        inputs.to("cuda").float() / 255, targets.to("cuda")


def resident_bytes():
    for inputs, _ in Batches(images.to("cuda"), labels.to("cuda"), batch_size=64):
        inputs.float() / 255


for epoch in (floats_by_batch, bytes_by_batch, resident_bytes):
    count, nbytes = copies_and_bytes(epoch)
    print(f"{epoch.__name__:<16} {count:3} copies, {nbytes / 1e6:5.2f} MB to the GPU")
whole = data.train_images.nbytes + data.train_targets.nbytes
print(f"all {len(data.train_images)} training images and labels: {whole / 1e6:.0f} MB")

# %%
# Pixels are bytes. Sent as bytes, and made floats on the GPU, they need a quarter of
# the traffic. And the last way copies twice, *once*: in the second epoch, and in all
# that follow, it copies nothing. If your data fits into the device's memory beside the
# model, this is the feed to try first; a few lines above, the table says what it brought
# here. If it does not fit: bytes, batched, decoded by as many workers as there are idle
# cores, from pinned memory.
#
# Exercise
# --------
#
# .. exercise:: Fewer calls, fewer bytes
#    :minutes: 15
#    :difficulty: medium
#    :starter: 09_fewer_calls.py
#
#    The script feeds one epoch to the practice GPU, and counts two things: how often the
#    dataset is called, and how many bytes are copied to the device.
#
#    1. **Predict:** what are the two numbers, for 2,000 images of 784 pixels in batches
#       of 64?
#    2. Fetch each batch with one call. Which of the two ways do you prefer?
#    3. Send bytes, and make floats of them on the device.
#    4. The script checks that the same images arrive in the same order.
#
#    To check it: ``python -m gpulesson check 09_fewer_calls.py``.
#
#    You are done when it prints ``well fed``.
#
# .. solution::
#    :file: 09_fewer_calls.py
#
#    A sampler that yields lists, ``batch_size=None``, and the division by 255 moved
#    from the dataset to the loop. 32 calls instead of 2,000, and about a quarter of the
#    bytes: the labels keep their size.
#
# .. keypoints::
#
#    - Time an epoch three ways, feeding only, computing only, both: then you know who
#      waits for whom.
#    - Knobs are measured, not believed: what helps depends on the machine.
#    - A worker costs its start, the hand-over of each batch, and a core. It pays when
#      samples are work and cores are idle.
#    - Ask for a whole batch at once, with ``__getitems__``, with a ``BatchSampler``, or
#      by indexing.
#    - Data that fits lives on the device, as bytes; then nothing crosses over in the
#      loop.
#
# **Next:** :doc:`/lessons/11_profile_first` looks inside the step itself.

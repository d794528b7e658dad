"""
9 · Feeding the GPU
===================

Find out whether the model waits for its data, choose the loader's settings by
measuring, and leave the loader out where you do not need it.

.. overview::
   :teaching: 30
   :exercises: 15

   .. objectives::

      - Find out whether the model waits for its data.
      - Choose a loader's settings by measuring them on your own machine.
      - Pick the feed that fits your data, and copy as little as possible.

   .. prereq::

      - :doc:`/lessons/05_fashion_mnist`, for the network and the images
      - :doc:`/lessons/08_was_it_faster`, for measuring in turns
"""

# %%
# A :term:`GPU` that waits for its next :term:`batch` is like a cook who waits for peeled
# potatoes: a hotter stove does not help. So when training is slow, first find out who
# waits. Here you feed the network of lesson 5 in several ways, and measure each.

import io
import statistics
import sys
import time

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision.transforms.functional import to_tensor

from gpulesson import practice_gpu
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize

# %%
# A few images are enough to measure with. With one CPU thread, times vary less.

torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
images, labels = data.train_images[:1024], data.train_targets[:1024]
print(f"{len(images)} images of {data.source}")
print(f"{device}: {device_name(device)}")

# %%
# Find out who waits: the model or its feed
# -----------------------------------------
#
# Pictures mostly come as files, and each file has to be decoded. We make such files in
# memory, in the PNG format. A :class:`torch.utils.data.Dataset` holds them, and decodes a
# picture when it is asked for it:


def png(image):
    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, format="png")
    return file.getvalue()


class Files(Dataset):
    def __init__(self, images, labels):
        self.files, self.labels = [png(image) for image in images], labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(io.BytesIO(self.files[index]))
        return to_tensor(picture), self.labels[index]  # floats, [1, 28, 28]


# %%
# Here are the model, its :term:`optimizer`, and a loop that trains on any batches, and
# moves each to the :term:`device`. (``non_blocking`` is explained below.)

files = Files(images, labels)
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


def in_turns(works, rounds=3):
    """Median milliseconds of each function; the first turn is warm-up."""
    turns = {name: [] for name in works}
    for _ in range(1 + rounds):
        for name, work in works.items():
            timing = measure(work, device=device, warmup=0, repeats=1)
            turns[name].append(1e3 * timing.median)
    medians = {}
    print(f"{'':<23}       ms   from, to")
    for name, (_, *times) in turns.items():
        medians[name] = statistics.median(times)
        print(f"{name:<23} {medians[name]:8.2f}   {min(times):.2f} to {max(times):.2f}")
    return medians


# %%
# We time an :term:`epoch` in three ways: the :term:`data loader` without a model, the
# model without a loader (the same batch again and again), and both together. Which will
# take longer, feeding or computing?

loader = DataLoader(files, batch_size=64, shuffle=True)
one_batch = [tensor.to(device) for tensor in next(iter(loader))]
ways = {
    "feed only": lambda: list(loader),
    "compute only": lambda: train([one_batch] * len(loader)),
    "both": lambda: train(loader),
}
epoch = in_turns(ways)

# %%
# Each line has the median of three turns, the shortest and the longest. **Begin with this
# measurement, whatever you train.** If *feed only* takes most of the time of *both*, a
# faster GPU or a smaller model can save only the rest, and the feed is what to change.
#
# .. question:: Feeding is 90 % of such a loop. What does a GPU ten times as fast save?
#
#    - About nine tenths of the time.
#
#      No. That would be so if the model took all of the time. The CPU still has to
#      decode the pictures.
#
#    - At most about a tenth of the time.
#
#      Yes. A tenth of the time shrinks to a hundredth, and nine tenths stay as they
#      are. First make the feed faster.
#
#    - More than half of it, since the GPU also decodes.
#
#      No. This loader decodes on the CPU, whatever the model computes on.
#
# Measure the loader's settings before you keep them
# --------------------------------------------------
#
# .. covers:: S1.7
#
# A :term:`worker` is a further Python process, which prepares batches ahead while your
# own process trains. These are the settings that decide about speed:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 30 32 38
#
#    * - Setting
#      - Begin with
#      - What it does
#    * - ``batch_size``
#      - 32, 64 or 128; larger if results stay as good
#      - Saves what each batch costs, and nothing of what each sample costs
#    * - ``num_workers``
#      - 0 if samples are ready in memory; else 2, 4 or 8, at most the cores you may use
#      - Several samples are prepared at once, and while your process trains
#    * - ``persistent_workers``
#      - ``True``, if there are workers
#      - They start once, and not in every epoch. (Not for a run that is to
#        :doc:`resume </lessons/06_save_load_resume>` to the last bit.)
#    * - ``prefetch_factor``
#      - 2, which is the default
#      - How many batches each worker prepares ahead; each takes memory
#    * - ``pin_memory``
#      - ``True``, with a :term:`CUDA` GPU and workers
#      - Puts batches where the GPU can copy by itself (next section)
#
# Linux can *fork* a worker, as a copy of your process; macOS and Windows *spawn* it, as a
# new Python that runs your script again, and Linux does much the same from Python 3.14
# on. So put the training under ``if __name__ == "__main__":``, the *main guard*, or
# :ref:`each worker tries to start its own workers <error-bootstrapping>`. A worker
# should not use the GPU (:ref:`a forked one cannot <error-fork>`, once your process
# has): let the training process move the batches. On this page workers are forked, and
# measured on Linux only.

can_fork = sys.platform == "linux"
two = {"batch_size": 64, "num_workers": 2, "multiprocessing_context": "fork"}

settings = {f"batch size {n}": {"batch_size": n} for n in (16, 64, 256)}
if can_fork:
    settings["64, two workers"] = two
    settings["64, two workers, kept"] = {**two, "persistent_workers": True}
if device.type == "cuda":
    settings["64, pinned"] = {"batch_size": 64, "pin_memory": True}

# %%
# We train for four epochs with each, in turns. The table tells the first epoch from the
# three later ones, and says how much of these passed until the first batch was there.
# Which setting will take the least time?

# fold: The helper four_epochs, which measures and prints


def one_epoch(loader):
    """Milliseconds until the first batch is there, and for the whole epoch."""
    start = time.perf_counter()
    batches = iter(loader)
    first = next(batches)
    waited = time.perf_counter() - start
    train([first])
    train(batches)
    del batches  # ends workers that are not kept
    synchronize(device)
    return 1e3 * waited, 1e3 * (time.perf_counter() - start)


def four_epochs(dataset, settings):
    """Train for four epochs with each setting, in turns, and print what they took."""
    loaders = {n: DataLoader(dataset, shuffle=True, **o) for n, o in settings.items()}
    turns = {name: [] for name in settings}
    for _ in range(4):
        for name, loader in loaders.items():
            turns[name].append(one_epoch(loader))
    print(f"{'milliseconds':<23} first epoch   later epochs   until the first batch")
    for name, ((_, first), *later) in turns.items():
        low, _, high = sorted(whole for _, whole in later)
        waited = statistics.median(waited for waited, _ in later)
        print(f"{name:<23} {first:11.0f}   {low:4.0f} to {high:4.0f}   {waited:6.1f}")


# %%
four_epochs(files, settings)

# %%
# If the ranges of two lines overlap, you cannot tell these settings apart. So in the
# recorded run, pinning without workers was not shown to help.
#
# Compare the two lines with workers. In both, two processes do the same work. If workers
# are not kept, they start and end in every epoch, and the time until the first batch is
# mostly their start. If they are kept, only the first epoch pays for it. **Tell the start
# of the workers apart from their work, and set** ``persistent_workers=True`` **to pay for
# it once.** In an epoch of minutes you would hardly notice it.
#
# A worker costs more than its start. It has to hand over each batch to the training
# process, and it needs a core. We see these costs if there is nothing to decode:


class Rows(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images.float() / 255, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):  # a number, or a list of numbers
        return self.images[index], self.labels[index]


rows = Rows(images, labels)
names = ("batch size 64", "64, two workers, kept")
four_epochs(rows, {name: settings[name] for name in names if name in settings})

# %%
# Rows in memory leave a worker nearly nothing to do. **Take workers only for samples that
# cost more than their hand-over, only as many as there are idle cores, and only if your
# measurement says that they help.** More workers are not always faster:
#
# .. measured:: on a 40 GB A100, by NERSC
#    :source: https://github.com/NERSC/sc23-dl-tutorial
#    :date: 2023
#
#    A vision transformer on weather data, batches of 16, samples a second in the fourth
#    epoch: 9.4 without workers, 12.4 with 4, 12.0 with 8, 11.3 with 16. With NVIDIA's
#    loader DALI, which can prepare samples on the GPU: 13.3.
#
# .. instructor-note::
#
#    Many learners believe that more workers are always faster. In a class with
#    different laptops, collect everyone's quickest setting. Not all systems measure
#    workers here; pair those learners with others.
#
# Set ``pin_memory``, so that Python need not wait for a copy
# -----------------------------------------------------------
#
# The operating system may move what is in ordinary :term:`host memory`: it is
# :term:`pageable memory`. So CUDA first copies a batch from there to a place that
# cannot move, and Python has to wait. In :term:`pinned memory` the batch itself cannot
# move, and the GPU fetches it:
#
# .. drawing:: pinned_memory.svg
#
#    A batch in pageable memory is copied twice; a batch in pinned memory is copied
#    once. In another :term:`stream` than computing, its copy can overlap with that.
#
# ``set_sync_debug_mode("error")``, from lesson 8, stops where Python waits. We try five
# copies on the :term:`practice GPU`. At which does Python wait?

with practice_gpu(force=True):
    batch = torch.rand(64, 784)
    pinned, on_gpu = batch.pin_memory(), batch.to("cuda")
    copies = {
        "ordinary memory": lambda: batch.to("cuda"),
        "pinned": lambda: pinned.to("cuda"),
        "pinned, non_blocking": lambda: pinned.to("cuda", non_blocking=True),
        "back": lambda: on_gpu.to("cpu"),
        "back, non_blocking": lambda: on_gpu.to("cpu", non_blocking=True),
    }
    torch.cuda.set_sync_debug_mode("error")
    for name, copy in copies.items():
        try:
            copy()
            print(f"{name:<21} does not wait")
        except RuntimeError:
            print(f"{name:<21} waits")
    torch.cuda.set_sync_debug_mode("default")

# %%
# **Towards the GPU, pinned memory and** ``non_blocking=True`` **belong together:** the
# first lets the GPU copy by itself, the second lets Python go on. What you compute with
# the batch on the GPU is safe: it waits in the same queue, behind the copy. So the GPU
# does not compute while it copies, but Python already prepares the next batch. Only do
# not write into the pinned batch before the copy is done.
#
# The way back is a trap. With ``non_blocking=True`` Python goes on before the numbers
# have arrived, and **reads whatever is there: wrong numbers, and no error** (`PyTorch's
# page on both
# <https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html>`__). Leave it off
# on the way back, or call ``torch.cuda.synchronize()`` before you read. Leave it off
# towards :term:`accelerators <accelerator>` other than CUDA's, too.
#
# With ``pin_memory=True`` the loader returns pinned batches. To pin a batch is one more
# copy: with workers, a thread makes it in the background; without, your loop waits for
# it, and PyTorch's page found both copies up to twice as slow as the plain one. **Pin
# where there are workers, and measure whether it pays.**
#
# .. question:: Pinned batches, ``.to(device)`` without ``non_blocking``: who gains?
#
#    - Nobody. Python waits as before.
#
#      No. Python waits, but for a shorter time: the copy to a place that cannot move
#      is left out.
#
#    - The copy is shorter, and Python still waits for it.
#
#      Yes. To go on meanwhile, Python needs ``non_blocking=True`` as well.
#
#    - Python does not wait: the memory is pinned.
#
#      No. Look at the second line above. ``to`` waits unless you say ``non_blocking``.
#
# Fetch a whole batch with one call
# ---------------------------------
#
# A loader asks its Dataset for one sample after the other, and stacks them. Our rows can
# answer for many numbers at once. A *sampler* that yields lists of numbers asks them to,
# and ``batch_size=None`` tells the loader to use each list as it is:

sampler = BatchSampler(RandomSampler(rows), batch_size=64, drop_last=False)
whole_batches = DataLoader(rows, sampler=sampler, batch_size=None)
inputs, targets = next(iter(whole_batches))
print(len(whole_batches), "batches, the first one is", tuple(inputs.shape))

# %%
# **If your Dataset can answer for many samples at once, let the loader ask once per
# batch.**
#
# .. fold:: Going further: the same with the method __getitems__
#
#    A loader calls ``__getitems__``, if the Dataset has it, with the numbers of a whole
#    batch. Our answer is stacked already, so ``collate_fn``, which would stack it, has to
#    return it as it is:
#
#    .. code-block:: python
#
#       class BatchedRows(Rows):
#           def __getitems__(self, numbers):
#               return self[numbers]
#
#
#       def as_it_is(batch):
#           return batch
#
#
#       batched = BatchedRows(images, labels)
#       loader = DataLoader(batched, batch_size=64, shuffle=True, collate_fn=as_it_is)
#
# Keep the data on the device, as bytes
# -------------------------------------
#
# Data that fits into the :term:`device memory` needs no loader at all. Shuffle the
# numbers of the rows, and take 64 of them at a time. The images stay bytes, and each
# batch becomes floats when it is needed:


def scale(batch):
    return batch.float() / 255


def by_index(images, labels):
    order = torch.randperm(len(images), device=images.device)
    for numbers in order.split(64):
        yield scale(images[numbers]), labels[numbers]


my_images, my_labels = images.to(device), labels.to(device)  # once
inputs, targets = next(by_index(my_images, my_labels))
print(tuple(inputs.shape), inputs.dtype, "on", inputs.device)

# %%
# :class:`gpulesson.data.Batches` is the same, kept in a class. The practice GPU counts
# what is copied, on any machine. One epoch in three ways: how many copies does each need,
# and which one moves the most bytes?


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
for way in (floats_by_batch, bytes_by_batch, bytes_at_once):
    with practice_gpu(force=True) as gpu:
        gpu.clear_events()  # if it was running before
        way()
        copies = [event for event in gpu.events if event.kind == "host to device"]
    number = sum(event.count for event in copies)
    megabytes = sum(event.nbytes for event in copies) / 1e6
    print(f"{way.__name__:<15} {number:>2} copies, {megabytes:.2f} MB")

# %%
# A batch needs two copies, of the images and of the labels. Images as bytes need a
# quarter of the traffic of floats. The last way makes two copies *for the whole run*:
# later epochs copy nothing. **Send bytes, and make floats of them on the GPU; if all of
# them fit, send them once.**
#
# Compare each feed with what the model takes
# -------------------------------------------
#
# Here are four ways to feed. We only bring the batches to the device:

pair = (my_images, my_labels)
feeds = {
    "files, one by one": DataLoader(files, batch_size=64, shuffle=True),
    "rows, one by one": DataLoader(rows, batch_size=64, shuffle=True),
    "rows, whole batches": whole_batches,
    "bytes on the device": Batches(*pair, batch_size=64, shuffle=True, transform=scale),
}


def only_move(feed):
    for inputs, targets in feed:
        inputs.to(device), targets.to(device)


times = in_turns({name: lambda f=f: only_move(f) for name, f in feeds.items()})

# %%
# How many images a second are that? And how many does the model take, when it gets the
# same batch again and again, as in the first section?

# fold: Draw and print images a second
takes = 1e3 * len(images) / epoch["compute only"]
rates = {name: 1e3 * len(images) / ms for name, ms in times.items()}

fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
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
# model does. **A feed is fast enough if it is far to the right of the model's line.** The
# line of a larger model is further left. So which feed should you take?
#
# .. list-table::
#    :header-rows: 1
#    :widths: 36 64
#
#    * - Your data
#      - Your feed, to begin with
#    * - fit into the device memory, beside the model
#      - bytes on the device, cut by index; no loader
#    * - fit into host memory only
#      - a loader with one call per batch, and ``num_workers=0``
#    * - are files that must be decoded, and fit into host memory when they are
#      - decode once, keep the bytes, then as above
#    * - are files, too large for that
#      - a loader with ``num_workers`` 2, 4 or 8, at most the cores you may use,
#        ``persistent_workers=True``, ``pin_memory=True`` and ``non_blocking=True``
#
# .. fold:: Going further: order, random numbers and streams of samples
#
#    - A loader returns its batches in the order in which it asked for them, so one slow
#      batch holds back the next ones. With ``in_order=False`` and workers it returns what
#      is ready, so the order can differ each time.
#    - Each worker has its own random numbers in PyTorch, NumPy's functions such as
#      ``np.random.rand``, and Python. ``torch.manual_seed`` in your script fixes all
#      three, unless the loader has a ``generator``: then they follow from that one. A
#      NumPy generator that you made yourself, with ``np.random.default_rng``, is copied
#      into all of them: they draw the same numbers. Make it in ``worker_init_fn``.
#    - An ``IterableDataset`` has no numbers of samples to divide, and each worker would
#      go through all of it. Let ``torch.utils.data.get_worker_info()`` say which part is
#      whose.
#
#    `The loader's page <https://docs.pytorch.org/docs/stable/data.html>`__ has more.
#
# Copy the next batch while the GPU computes
# ------------------------------------------
#
# In our loop the copy and the computing wait in one queue, so the GPU never does both at
# once. A second :term:`stream` is a second queue. In this function the next batch is
# copied there, while the loop computes with the one before:


def prefetch(batches):
    """Yield each batch on the GPU, while the one after it is being copied."""
    computing, copying = torch.cuda.current_stream(), torch.cuda.Stream()
    waiting = []

    def hand_over(parts, arrived):
        computing.wait_event(arrived)  # the GPU waits for the copy, Python does not
        for part in parts:
            part.record_stream(computing)
        return parts

    for batch in batches:
        with torch.cuda.stream(copying):
            parts = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = copying.record_event()
        if waiting:
            yield hand_over(*waiting.pop())
        waiting.append((parts, arrived))
    yield from (hand_over(*last) for last in waiting)


# %%
# Two lines keep the streams apart. An *event* is a mark in one queue that another queue
# can wait for: without ``wait_event`` the loop may compute with half a batch. And the
# memory belongs to the stream in which it was made: without ``record_stream``, PyTorch
# may give it to a later batch `while the loop still reads it
# <https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html>`__.
#
# The batches have to be pinned, or the copy waits. Does Python wait anywhere, and do all
# images arrive?


def pinned_batches():
    for batch in Batches(scale(images), labels, batch_size=64):
        yield [part.pin_memory() for part in batch]


with practice_gpu(force=True) as gpu:
    gpu.clear_events()
    total = sum(inputs.sum() for inputs, _ in prefetch(pinned_batches()))
    copies = [event for event in gpu.events if event.kind == "host to device"]
    waits = sum(event.waits for event in copies)
    print(f"{sum(event.count for event in copies)} copies, {waits} waits")
    print(f"{total.item():.0f} in all, {scale(images).sum().item():.0f} expected")

if device.type == "cuda":
    ways = {"copy, then compute": iter, "copy meanwhile": prefetch}
    in_turns({n: lambda w=way: train(w(pinned_batches())) for n, way in ways.items()})

# %%
# The practice GPU shows that it is right, and not what it saves: that is at most the time
# of the copies. **Measure first whether your GPU waits for copies.** If it does, a
# timeline (:doc:`lesson 11 </lessons/11_profile_first>`) shows copies between the
# :term:`kernels <kernel>` of two :term:`steps <step>`, and no kernel at the same time.
#
# Crops and flips can leave the CPU as well. Nearly all of torchvision's `transforms of
# the second version <https://docs.pytorch.org/vision/stable/transforms.html>`__ take
# whole batches, on any device. How many pictures of a batch does one flip turn?

# fold: Going further: crop and flip a whole batch on the GPU

from torchvision.transforms import v2

change = v2.Compose(
    [
        v2.RandomCrop(28, padding=2),
        v2.RandomHorizontalFlip(p=0.5),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


def flip_some(pictures):
    some = torch.rand(len(pictures), 1, 1, 1, device=pictures.device) < 0.5
    return torch.where(some, pictures.flip(-1), pictures)


with practice_gpu():
    torch.manual_seed(0)
    pictures = images[:64, None].to("cuda")  # bytes, [64, 1, 28, 28]
    changed = change(pictures)
    print(tuple(changed.shape), changed.dtype, "on", changed.device)
    for flip in (v2.RandomHorizontalFlip(p=0.5), flip_some):
        counts = [
            (flip(pictures) != pictures).flatten(1).any(1).sum() for _ in range(6)
        ]
        print("turned in six tries:", *torch.stack(counts).tolist())

# %%
# A transform draws once for each call, so all pictures of a batch get the same crop or
# flip. The last function draws for each picture.
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
#    - Time an epoch three ways, feeding only, computing only, both: then you know what to
#      change.
#    - Measure a setting before you keep it. Workers cost their start, the hand-over of
#      each batch, and a core; keep them from epoch to epoch.
#    - Ask for a whole batch at once, send bytes, and keep data that fits on the device;
#      then the loop copies nothing.
#
# **Next:** :doc:`/lessons/10_where_did_my_memory_go` counts what training needs of the
# GPU's memory.

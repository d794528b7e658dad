"""
12 · The speed ladder
=====================

Start from a script that many people write, and bring its training run towards what this
machine can do, one measured change at a time.

.. overview::
   :teaching: 35
   :exercises: 15

   .. questions::

      - Which of the many tips for speed make *my* training faster, and by how much?
      - Does it still learn the same, or only faster?
      - How fast could it be, and when should I stop?

   .. objectives::

      - Make one change at a time, measure it in turns, and keep it only if it helps.
      - Tell changes that keep every loss from those for which only the accuracy counts.
      - Retune the learning rate for a larger batch, and change it in every step.
      - Try compilation, graphs, lower precision and memory formats on your machine.
      - Compute the limit, with its latency, and say which part of it binds.

.. prereq::

   - :doc:`Lesson 9 </lessons/09_feeding_the_gpu>`: the ways to feed a model.
   - :doc:`Lesson 11 </lessons/11_profile_first>`: reads that wait, and the three limits.
"""

# %%
# The network is that of :doc:`lesson 5 </lessons/05_fashion_mnist>`, and the start is a
# script as many people write it. From there we go up as on a ladder: each rung is **one**
# change. The rungs were chosen before they were measured, and a rung stays only if it
# helps on *this* machine. The code decides, and prints why. So your ladder may have
# other rungs than this page.

import statistics
import sys
import time

import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from torchvision.transforms.functional import to_tensor

from gpulesson.capture import captured_step
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import synchronize
from gpulesson.step import Step
from gpulesson.training import fit

# %%
# A :term:`GPU` gets more images, so that its :term:`epochs <epoch>` are long enough to be
# measured. Of the training images we keep 2,000 back, as :term:`held-out data` to choose
# settings with. The test images are for the final numbers only. (The :term:`practice GPU`
# simulates no time, so there a verdict means nothing.)

# fold: Choose the device, and load the images
import logging
import os
import warnings

# for the last section, in older versions: set before the first product on a GPU
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
warnings.filterwarnings("ignore", ".*no CUDA graphs")  # the page says it
# without a CUDA toolkit, torch.compile would say so; that is no news here
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
torch.set_num_threads(1)
device = choose_device()
simulated = "simulated" in device_name(device)  # the practice GPU
data = load_fashion_mnist()

rounds, seeds = (5, 3) if not simulated else (1, 1)
count = 2048 if device.type == "cpu" else 1280 if simulated else 20480
count = min(count, len(data.train_images) - 2000) // 256 * 256
images, labels = data.train_images[:count], data.train_targets[:count]
floats = images.float() / 255
some = slice(count, count + 2000)
held_out = data.train_images[some].to(device), data.train_targets[some].to(device)
test = data.test_images[:4000].to(device), data.test_targets[:4000].to(device)

print(f"{count} training images of {data.source}")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 thread")

# %%
# Write one loop with switches
# ----------------------------
#
# Everything that we change is a switch of one function. First the ways to feed the loop.
# The slowest makes a :term:`tensor` of each picture when it is asked for it:


class Pictures(Dataset):
    """What torchvision's datasets do: a picture, made a tensor when it is asked for."""

    def __len__(self):
        return len(images)

    def __getitem__(self, index):
        return to_tensor(Image.fromarray(images[index].numpy())), int(labels[index])


# %%
# A feed comes from a :term:`data loader`, or from ``Batches``, which picks rows by
# index. All draw their order from one generator, so every rung sees the same
# :term:`batches <batch>`.

order = torch.Generator()


def loader(dataset, size):
    sampler = RandomSampler(dataset, generator=order)
    return DataLoader(dataset, batch_size=size, sampler=sampler)


def indexed(inputs, targets, size):
    options = {"batch_size": size, "shuffle": True, "generator": order}
    return Batches(inputs, targets, **options)


# %%
# The three feeds, from single pictures to rows that live on the :term:`device`:

feeds = {
    "pictures": lambda x, n: loader(Pictures(), n),
    "tensors": lambda x, n: loader(TensorDataset(x, labels), n),
    "indices": lambda x, n: indexed(x.to(device), labels.to(device), n),
}

# %%
# One training :term:`step` is the same five calls as ever. It returns its :term:`loss`
# without reading it:

loss_fn = torch.nn.CrossEntropyLoss()


def make_step(forward, optimizer, bf16):
    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = loss_fn(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# %%
# The function ``build`` in the next cell puts it together: it returns a fresh model,
# and a function that trains it for one epoch. Its defaults *are* the naive
# script: single pictures, batches of 64, Adam, ``loss.item()`` in every step.

# fold: Build a model and an epoch from the switches
matmul = (torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda).matmul


def build(
    seed, *, feed="pictures", read=True, fused=None, compiled=None, graph=False,
    batch=64, lr=1e-3, centred=False, triangle=False, epochs=5, fp32="none",
    bf16=False, tiny=False,
):  # fmt: skip
    """A fresh model, and a function that trains it for one epoch."""
    torch.manual_seed(seed)
    model = (MLP(1, 1, 1, 10) if tiny else MLP(784, 128, 64, 10)).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=torch.tensor(lr, device=device) if graph else lr,  # a graph reads a tensor
        fused=fused,
        capturable=graph,
    )
    pixels = centre(floats) if centred else floats
    batches = feeds[feed](pixels[:, :1, :1] if tiny else pixels, batch)
    forward = model
    if compiled:
        if simulated:
            raise NotImplementedError("the practice GPU does not compile")
        forward = torch.compile(model, mode=compiled, fullgraph=True)
    step = make_step(forward, optimizer, bf16)
    if graph:
        example = [part.to(device) for part in next(iter(batches))]
        amp = "bf16" if bf16 else None
        step = captured_step(forward, loss_fn, optimizer, *example, amp=amp)
        if step.why_plain:
            raise NotImplementedError(step.why_plain)
    schedule = None
    if triangle:
        schedule = triangular(optimizer, lr, epochs * len(batches))

    def epoch(number):
        order.manual_seed(1000 * seed + number)
        if matmul.fp32_precision != fp32:
            matmul.fp32_precision = fp32
        losses = []
        for inputs, targets in batches:
            loss = step(inputs.to(device), targets.to(device))
            if schedule:
                schedule.step()
            losses.append(loss.item() if read else loss)
        return losses if read else torch.stack(losses).tolist()

    return model, epoch


# %%
# Decide in turns
# ---------------
#
# When does a rung stay? We train the ladder so far and the ladder with the change in
# turns, one epoch each, five times, as in :doc:`lesson 8 </lessons/08_was_it_faster>`:
# what else runs on the machine slows both. Before that, the naive script runs in turns
# with itself: this *control* shows how far two times differ by chance. **A rung stays if
# every round of it gains more than any round of the control, and it computes the same
# losses.** If it costs something once, as a compiler does, it must also earn that back
# within a run, which has five epochs here. (Further down come rungs that cannot have the
# same losses. There the :term:`accuracy` decides.)
#
# On a GPU we look at the clock. On a CPU one thread computes, and we count the time that
# the processor worked for it, so that another program's time does not count. (What costs
# something once is timed by the clock, since a compiler works in other processes.)

# Windows counts a thread's time too coarsely
own_time = device.type == "cpu" and sys.platform != "win32"
clock = time.thread_time if own_time else time.perf_counter


def timed(fn, *arguments, clock=clock):
    """Seconds that a call takes, and its result."""
    synchronize(device)
    start = clock()
    result = fn(*arguments)
    synchronize(device)
    return clock() - start, result


# %%
# The function ``rung`` does it all: it compares the losses of a first epoch from the same
# :term:`seed`, measures in turns, decides, and prints why.

# fold: Measure a change in turns, and keep it if it helps
ladder = {}  # the switches that stay
record = []  # what was found: name, ratio of times (or None), verdict


def in_turns(old, new):
    """Seconds of `old` and of `new` in each round; the first of a round changes."""
    found = []
    for number in range(rounds):
        pair = {fn: timed(fn)[0] for fn in ((old, new), (new, old))[number % 2]}
        found.append((pair[old], pair[new]))
    return found


def spread(pairs):
    """The median ratio of new to old, and a text that shows all rounds."""
    ratios = [new / old for old, new in pairs]
    middle = statistics.median(ratios)
    return middle, f"{middle:5.2f} × the time ({min(ratios):.2f} to {max(ratios):.2f})"


def faster(pairs):
    """Whether each round gained more than chance: than any round of the control."""
    return max(new / old for old, new in pairs) < by_chance


def not_here(name, error):
    reason = (str(error).strip().split("\n")[0] or type(error).__name__)[:60]
    print(f"{name:<24} not here: {reason}")
    record.append((name, None, "not here"))


def rung(name, **change):
    trial = {**ladder, **change}
    try:
        old, new = build(0, **ladder)[1], build(0, **trial)[1]
        once, losses = timed(new, 0, clock=time.perf_counter)
        usual, expected = timed(old, 0, clock=time.perf_counter)
    except Exception as error:  # no compiler, no graphs: whatever it is
        return not_here(name, error)
    apart = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    pairs = in_turns(lambda: old(1), lambda: new(1))
    ratio, text = spread(pairs)
    gain = statistics.median(old - new for old, new in pairs)
    price = once - usual if {"compiled", "graph"} & set(change) else 0
    verdict = "kept"
    if apart > 1e-4:
        verdict = "left out: other losses"
    elif not faster(pairs):
        verdict = "left out: not faster in every round"
    elif price > 5 * gain:
        verdict = f"left out: earned back after {price / gain:.0f} epochs"
    if verdict == "kept":
        ladder.update(change)
    record.append((name, ratio, verdict))
    same = f"losses {apart:.0e} apart" if apart else "losses equal"
    if price:
        same += f", {price:.1f} s once"
    print(f"{name:<24} {text}, {same}")
    print(f"{'':<24} {verdict}")


# %%
# First the number to beat, an epoch of the naive script, and the control:

script, itself = build(0)[1], build(0)[1]
script(0), itself(0)  # warm up
pairs = in_turns(lambda: script(0), lambda: itself(0))
naive_epoch = statistics.median(seconds for seconds, _ in pairs)
by_chance = min(1, *(new / old for old, new in pairs))
print(f"an epoch of the naive script: {naive_epoch * 1e3:.0f} ms")
print("control:", spread(pairs)[1])

# %%
# The control has to be near 1. In brackets stand the least and the largest of all rounds:
# the further they are apart, the less you can trust the number before them.
#
# Feed it without a call for every picture
# ----------------------------------------
#
# Two changes to the feed. Which one will bring more?

rung("tensors made once", feed="tensors")
rung("index batching", feed="indices")

# %%
# The first makes all tensors before the loop. The second asks for a whole batch at once,
# from rows that are on the device. Both take away calls of Python.
#
# .. question:: A rung's losses are 2e-07 off the naive ones. Is it the same work?
#
#    - No: the same work has the same losses, to the last digit.
#
#      No. Adding the same numbers in another order rounds differently, in the seventh
#      digit of a float32 number. An operator that does several things at once does that.
#
#    - Yes: the difference is a rounding error.
#
#      Yes. A mistake, such as other batches or a forgotten step, changes the losses by
#      far more.
#
#    - Losses cannot say that; only the accuracy can.
#
#      No. With the same batches in the same order the losses can be compared step by
#      step, which is a much sharper test than an accuracy. You need the accuracy where
#      the steps are others.
#
# Start fewer operators
# ---------------------
#
# A read of the loss makes Python wait for a queue (:doc:`lesson 11
# </lessons/11_profile_first>`). A :term:`fused` Adam is one operator in the place of
# many. Which of the two can help a CPU, which has no queue?

rung("no read in the loop", read=False)
rung("fused Adam", fused=True)

# %%
# On a CPU, a read is one short call: expect a ratio near 1. On a GPU, it costs what the
# queue would have hidden.
#
# Two more ways to start less. :term:`torch.compile` joins the small operators between the
# matrix products. A :term:`CUDA graph` records a whole step, and starts it with one call.
# It is like ordering "the usual": one word instead of the whole list. The last line does
# both: the compiled model, inside a captured step.

rung("torch.compile", compiled="default")
rung("one CUDA graph a step", graph=True)
rung("compiled, in a graph", compiled="default", graph=True)

# %%
# A network of three layers has little between its products, and a run of a second does
# not earn back a compiler's time. **What costs time once has to be earned back: divide it
# by what an epoch saves.**
#
# Know when it compiles again
# ---------------------------
#
# A compiled function is made for the :term:`shapes <shape>` that it has seen. We give
# ``torch.compile`` a compiler of our own, which only counts how often it is called. The
# last batch of an epoch is often short: how many compilations will the four calls need?

compilations = []


def counting(graph, example_inputs):
    compilations.append(graph)
    return graph.forward  # run as it is


counted = torch.compile(MLP(784, 128, 64, 10), backend=counting)
for size in (64, 64, 40, 33):
    counted(floats[:size])
    print(f"batch of {size}: compilations so far: {len(compilations)}")

# %%
# One for the first shape, and one more when another size came: from then on the function
# is made for *any* size but 1. (A practice GPU never compiles.) With the environment
# variable ``TORCH_LOGS=recompiles``, or after
# ``torch._logging.set_logs(recompiles=True)``, PyTorch `logs each of them
# <https://docs.pytorch.org/docs/stable/generated/torch._logging.set_logs.html>`__ with
# its reason.
#
# With :term:`CUDA`, try the `modes
# <https://docs.pytorch.org/docs/stable/generated/torch.compile.html>`__, too:
# ``mode="reduce-overhead"`` puts the compiled part into CUDA graphs, and
# ``mode="max-autotune"`` does so as well, and tries several :term:`kernels <kernel>` for
# each product, which takes longer to compile.

if device.type == "cuda" and not simulated:
    rung("mode reduce-overhead", compiled="reduce-overhead", graph=False)
else:
    print(f"the modes are tried on CUDA only; here is {device_name(device)}")

# %%
# Set a goal that the slow script deserves
# ----------------------------------------
#
# The next rungs do other work, so their losses cannot be compared. **Now a rung must
# reach the same accuracy, in less time.** Which one? The naive script's, with the best
# :term:`learning rate` of a short list. If we tuned only the new rungs, part of their
# gain would be the tuning. All runs have a fixed length, and we take the mean of several
# seeds: if you stopped each run when it is good enough, you would stop at a lucky moment.

# fold: Runs of a fixed length, their accuracy, and a search for the best rate


def centre(pixels):
    """Images with the training images' mean subtracted, and divided by one number."""
    return (pixels - mean.to(pixels.device)) / scale.to(pixels.device)


def run(seed, epochs, **switches):
    """Seconds of a whole run, and the trained model."""
    model, epoch = build(seed, epochs=epochs, **switches)
    return sum(timed(epoch, number)[0] for number in range(epochs)), model


def accuracy(model, images, targets, centred=False, **_):
    pixels = images.float() / 255
    with torch.inference_mode():
        answers = model(centre(pixels) if centred else pixels).argmax(dim=1)
    return (answers == targets).float().mean().item()


def best_rate(rates, seed_numbers, switches):
    """The rate with the highest mean accuracy on the held-out images, and that mean."""
    found = {}
    for rate in rates:
        trial = {**switches, "lr": rate}
        models = [run(seed, **trial)[1] for seed in seed_numbers]
        reached = [accuracy(model, *held_out, **trial) for model in models]
        found[rate] = statistics.mean(reached)
    rate = max(found, key=found.get)
    return rate, found[rate]


# %%
# We try three rates with the ladder so far, for five epochs. Its losses are the naive
# script's, but for rounding, so this is the naive script's accuracy, too:

ladder["epochs"] = 5
tuning = range(100, 102)  # seeds that decide on rates only
ladder["lr"], _ = best_rate((1e-3, 2e-3, 4e-3), tuning, ladder)
same_work = dict(ladder)  # for later

first_models = [run(seed, **ladder)[1] for seed in range(seeds)]
reached = [accuracy(model, *held_out) for model in first_models]
goal = statistics.mean(reached)
print(f"learning rate {ladder['lr']:g}, 5 epochs of batches of 64: {goal:.2%}")
print(f"({min(reached):.2%} to {max(reached):.2%} from {seeds} seeds)")

# %%
# The mean is the goal. The brackets show how much luck a single run has.
#
# Take larger steps, and fewer
# ----------------------------
#
# With batches of 256 an epoch has a quarter of the steps, and more work in each. A step
# moves the weights only so far, so fewer steps may learn less. A higher rate makes each
# step longer, and more epochs make more steps.
#
# The function ``other_work`` looks for both, on the held-out images: for each length it
# finds the best of three rates, and takes the shortest length that reaches the goal. Then
# it trains the old ladder and the new one in turns, once from each of some other seeds.
# The rung stays if its mean accuracy is at least the goal, and every run gained more
# time than the control.
# (Where the ladder has a CUDA graph, each run records its own, and that time counts.)

# fold: Find rate and length, measure whole runs in turns, and decide


def whole_runs(trial):
    """Pairs of seconds, old ladder and trial in turns; and the trial's models."""
    pairs, models = [], []
    run(99, **trial)  # warm up
    for seed in range(seeds):
        seconds, model = run(seed, **trial)
        pairs.append((run(seed, **ladder)[0], seconds))
        models.append(model)
    return pairs, models


last_models = first_models


def other_work(name, lengths, rates, **change):
    global last_models
    try:
        for epochs in lengths:
            trial = {**ladder, **change, "epochs": epochs, "lr": rates[0]}
            if len(rates) > 1:
                trial["lr"], mean_reached = best_rate(rates, tuning, trial)
                if mean_reached < goal and epochs != lengths[-1]:
                    continue
            pairs, models = whole_runs(trial)
            reached = [accuracy(model, *held_out, **trial) for model in models]
            if statistics.mean(reached) >= goal:
                break
    except Exception as error:
        return not_here(name, error)
    ratio, text = spread(pairs)
    verdict = "kept"
    if statistics.mean(reached) < goal:
        verdict = "left out: less than the goal"
    elif not faster(pairs):
        verdict = "left out: not faster in every run"
    if verdict == "kept":
        ladder.update(trial)
        last_models = models
    record.append((name, ratio, verdict))
    shown = f"{statistics.mean(reached):.2%} ({min(reached):.2%} to {max(reached):.2%})"
    print(f"{name:<24} {text}, rate {trial['lr']:g}, {trial['epochs']} epochs")
    print(f"{'':<24} {shown}; {verdict}")


# %%
# Let us see:

rates = (4e-3, 8e-3, 1.6e-2)
other_work("batch 256", (5, 8), rates, batch=256)

# %%
# Compare its epochs with the five of the goal. **Twice the epochs, each in a third of the
# time, is a win.**
#
# .. question:: A quarter of the time an epoch, three times the epochs: does it pay?
#
#    - No: three times as many epochs are too many.
#
#      No. The number of epochs alone does not say how long you wait. Multiply it with
#      the time of an epoch.
#
#    - Yes: training is four times as fast.
#
#      No. An epoch is. Compare the times until the same accuracy is reached.
#
#    - Yes: training takes three quarters of the time.
#
#      Yes. Three times a quarter.
#
# .. instructor-note::
#
#    The lines differ from laptop to laptop: let the class compare them, and find for each
#    rung a machine on which it helps. The trap is the ratio of an epoch: learners quote
#    it as the gain of the whole.
#
# Learn more from each step
# -------------------------
#
# So far we made steps faster. You can also need fewer of them. The first idea is about
# the rate. A high one moves fast, and a low one ends calmly. The :term:`scheduler`
# ``OneCycleLR`` gives each *step* a rate of its own: here it rises for three tenths of
# the run, and then falls to nearly zero, like a triangle.


def triangular(optimizer, top, steps):
    shape = {"pct_start": 0.3, "anneal_strategy": "linear", "cycle_momentum": False}
    # one more, since it is stepped after the last step, too
    return OneCycleLR(optimizer, top, total_steps=steps + 1, **shape)


other_work("a triangular rate", (3, 5), rates, triangle=True)

# %%
# The second idea is about the images. Pixels from 0 to 1 are all on one side of zero, and
# most are dark. *Centred* images have the mean of the training images subtracted, and are
# divided by one number, so that they spread around zero. The test images get the same
# treatment, with the same numbers.

mean = floats.mean(dim=0)
scale = (floats - mean).square().mean().sqrt()
other_work("images centred", (2, 3), rates, centred=True)

# %%
# Both cost next to nothing. **A run that reaches the goal in fewer epochs saves time on
# every machine.**
#
# Compute with fewer digits
# -------------------------
#
# A float32 number has 8 bits for its size and 23 for its digits. :term:`TF32` keeps 10 of
# these 23 in a product, :term:`bfloat16` (bf16) keeps 7. That is less exact, and faster
# where the hardware multiplies such numbers. Does your GPU? Without the argument,
# `is_bf16_supported
# <https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html>`__
# also says yes for a GPU that only imitates bf16, slowly:

if device.type == "cuda":
    print("bf16 in hardware:", torch.cuda.is_bf16_supported(including_emulation=False))
print("fp32_precision of products:", matmul.fp32_precision)

# %%
# The switch for float32 products is ``torch.backends.cuda.matmul.fp32_precision``, with
# the values ``"ieee"`` and ``"tf32"``. For a CPU it is in
# ``torch.backends.mkldnn.matmul``, where ``"bf16"`` is possible. It replaces
# ``allow_tf32`` and ``set_float32_matmul_precision`` of older scripts, and `should not be
# mixed
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices>`__
# with them. :term:`Autocast <autocast>` goes further, and chooses bf16 operator by
# operator.

same_rate, same_length = [ladder["lr"]], [ladder["epochs"]]
fewer = "bf16" if device.type == "cpu" else "tf32"
other_work(f"products in {fewer}", same_length, same_rate, fp32=fewer)
other_work("bf16 autocast", same_length, same_rate, bf16=True)
matmul.fp32_precision = "none"  # as it was

# %%
# **Converting numbers takes time as well, and only large enough products earn it back.**
#
# Give a network with convolutions the format it likes
# ----------------------------------------------------
#
# The network so far has no convolutions. In the :term:`memory format` ``channels_last``
# the channels of a pixel lie side by side. Many libraries, and the matrix units of a GPU,
# like that better. Here is a small network that can use either format:


size = 512 if device.type == "cuda" and not simulated else 64
some_images, some_labels = floats[:size], labels[:size].to(device)


def convolutional_step(bf16=False, memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(9216, 10),
    ).to(device, memory_format=memory_format)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    inputs = some_images.unsqueeze(1).to(device, memory_format=memory_format)
    step = make_step(model, optimizer, bf16)
    return lambda: step(inputs, some_labels)


# %%
# We add bf16, then the format:

# fold: Measure the two changes in turns
steps = 20 if size == 512 else 1


def several(step):
    return lambda: [step() for _ in range(steps)]


kept = {}
for name, change in {
    "bf16 autocast": {"bf16": True},
    "channels_last": {"memory_format": torch.channels_last},
}.items():
    old, new = convolutional_step(**kept), convolutional_step(**kept, **change)
    before, after = old().item(), new().item()
    pairs = in_turns(several(old), several(new))
    verdict = "kept" if faster(pairs) else "left out: not faster in every round"
    if faster(pairs):
        kept.update(change)
    print(f"{name:<24} {spread(pairs)[1]}")
    print(f"{'':<24} first loss {before:.3f}, then {after:.3f}; {verdict}")

# %%
# The first losses agree but for rounding: the format changes where numbers lie, not what
# they are. On CUDA there is one switch more. After
# ``torch.backends.cudnn.benchmark = True`` the library `tries its convolutions
# <https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark>`__
# for each new shape, and takes the fastest. It pays where shapes stay the same.
#
# Compute the limit, with its latency
# -----------------------------------
#
# An epoch has to do three things, as in :doc:`lesson 11 </lessons/11_profile_first>`:
#
# - its arithmetic, the :term:`FLOP` of the products;
# - its bytes: the images are read once, and in each step Adam reads four numbers for
#   every weight, and writes three;
# - the starting of its operators, in every step: the :term:`latency`.
#
# A weight costs two FLOP in the :term:`forward pass`, two for its own :term:`gradient`,
# and two for the gradient of its layer's inputs, which the first layer does not need:

weights = [784 * 128, 128 * 64, 64 * 10]
flop = 6 * sum(weights) - 2 * weights[0]  # per sample
print(f"{flop:,} FLOP a sample, {flop * len(images) / 1e9:.2f} GFLOP an epoch")

# %%
# Two rates come from a large product, in the precision of the rung, and from copies, at
# the best of three sizes, so that a cache may help. For the latency we train a network
# with one unit a layer, on images of one pixel: the same steps and operators, and almost
# nothing to compute.

# fold: Measure the rates, and the time of an epoch
side = 1024 if device.type == "cpu" or simulated else 8192  # large, for this device


def seconds_of(fn):
    fn()
    return statistics.median(timed(fn)[0] for _ in range(5))


def product_rate(bf16=False, fp32="none", **_):
    """FLOP a second in a large product."""
    matmul.fp32_precision = fp32
    a = torch.randn(side, side, device=device)
    a = a.to(torch.bfloat16) if bf16 else a
    return 2 * side**3 / seconds_of(lambda: a @ a)


copy_rate = 0.0
for nbytes in (2**20, 2**23, 2**26):
    block = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    seconds = seconds_of(lambda t=target, b=block: t.copy_(b))
    copy_rate = max(copy_rate, 2 * nbytes / seconds)  # read and written


def epoch_seconds(**switches):
    """Seconds of an epoch, the median of five."""
    _, epoch = build(0, **{**switches, "epochs": 8})
    return seconds_of(lambda: epoch(1))


# %%
# The largest of the three times is the limit, and it names what binds:


def limits(**switches):
    """What an epoch needs at least, in seconds."""
    steps = len(images) // switches["batch"]
    return {
        "arithmetic": flop * len(images) / product_rate(**switches),
        "bytes": (floats.nbytes + steps * 7 * 4 * sum(weights)) / copy_rate,
        "latency": epoch_seconds(**{"feed": "tensors", **switches}, tiny=True),
    }


# %%
# We ask for the ladder before it did other work, and for the last rung. Beside the limit
# stand the FLOP that were done in a second, and the :term:`MFU`: these FLOP as a share of
# what the large product did in a second, in the same precision.

# fold: Print both
needs = {}
for name, switches in (("same work", same_work), ("last rung", ladder)):
    switches = {"batch": 64, **switches}
    needs[name] = limits(**switches)
    seconds = epoch_seconds(**switches)
    binds = max(needs[name], key=needs[name].get)
    done = flop * len(images) / seconds
    share = done / product_rate(**switches)
    print(f"{name}, batches of {switches['batch']}: {seconds * 1e3:.2f} ms an epoch")
    for what, least in needs[name].items():
        print(f"   {what:<10} {least * 1e3:8.3f} ms")
    print(
        f"   {binds} binds: measured {seconds / needs[name][binds]:.1f} times the limit"
    )
    print(f"   {done / 1e9:,.1f} GFLOP/s, MFU {share:.1%}")
matmul.fp32_precision = "none"

# %%
# **A limit without latency promises what no small step can reach.** With batches of 64
# there are four times as many steps to start as with 256, and the same FLOP. Where
# latency binds, start less: larger steps, fewer operators, a graph. Where arithmetic
# binds, compute with fewer digits, or take better hardware.
#
# An epoch takes longer than its limit: small products do not reach the rate of a large
# one, and on a CPU one core does all three, one after the other.
#
# See the whole ladder, and stop in time
# --------------------------------------
#
# Here is every rung, with the time of a run to the goal: five epochs at first. The
# upright lines are what a run with the last rung needs at least.

# fold: Draw the ladder
kept, left_out = [(5 * naive_epoch, 0)], [(float("nan"), 0)]
names = ["naive script"]
for row, (name, ratio, verdict) in enumerate(record, 1):
    seconds = kept[-1][0] * (ratio or float("nan"))
    (kept if verdict == "kept" else left_out).append((seconds, row))
    names.append(name if ratio else f"{name} ({verdict})")

fig, ax = plt.subplots(figsize=(7, 5.6), layout="constrained")
ax.plot(*zip(*kept, strict=True), "o-", color="C0", ms=9, label="kept")
ax.plot(
    *zip(*left_out, strict=True), "o", color="C0", mfc="none", ms=9, label="left out"
)
for (what, least), line in zip(
    needs["last rung"].items(), ("-.", ":", "--"), strict=True
):
    label = f"{what}, last rung"
    ax.axvline(ladder["epochs"] * least, ls=line, lw=2.5, color="C1", label=label)
ax.set_yticks(range(len(names)), names)
ax.set_ylim(len(names) - 0.5, -0.5)
ax.set(xlabel="seconds a run", xscale="log")
title = f"Each rung's time to {goal:.1%}, and what a run needs at least ({device})"
ax.set_title(title)
ax.xaxis.set_major_formatter("{x:g}")
fig.legend(loc="outside lower center", ncols=3)
ax.grid(alpha=0.3)
plt.show()

# %%
# Each rung was compared with the one before, and such ratios add up their errors. So in
# the end whole runs of the first and of the last script take turns:

pairs = [(run(seed, 5)[0], run(seed, **ladder)[0]) for seed in range(seeds)]
first, last = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
gains = [old / new for old, new in pairs]
print(f"a run to the goal: {first:.3f} s at first, {last:.3f} s now")
print(f"{min(gains):.1f} to {max(gains):.1f} times as fast, {seeds} runs each")
print(f"{device}: {device_name(device)}, 1 thread, PyTorch {torch.__version__}")

# %%
# The test images decided nothing so far. Do they agree that the last rung is as good?

for name, models in (("same work", first_models), ("last rung", last_models)):
    centred = models is last_models and "centred" in ladder
    found = [accuracy(model, *test, centred=centred) for model in models]
    shown = f"{statistics.mean(found):.2%} ({min(found):.2%} to {max(found):.2%})"
    print(f"{name}: {shown} of {len(test[1])} test images, {seeds} seeds")
print(f"trained with {count} images of {data.source}")

# %%
# This was one run, on one machine. The page :doc:`how fast, measured </results>` has a
# ladder with other batches and other data, on the processor that it names, so its ratios
# and its distance from the limit differ.
#
# **Stop when the next rung costs you more time than it will ever save.**
#
# Train the same with the package, or with the same bits
# ------------------------------------------------------
#
# The package has these rungs ready. ``fit`` does not read in its loop. What else a step
# should do, a ``Step`` tells it: step a schedule, or autocast to bfloat16, by
# ``amp="bf16"``. Compile a model beforehand, by ``model.compile()``. (And
# :func:`gpulesson.capture.captured_step` is the graph.)

torch.manual_seed(0), order.manual_seed(0)
model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
batches = indexed(centre(floats).to(device), labels.to(device), 256)
schedule = triangular(optimizer, 1e-2, 3 * len(batches))
step = Step(optimizer, scheduler=schedule)
history = fit(model, batches, loss_fn, optimizer, device, epochs=3, step=step)
print(f"3 epochs of batch 256: {accuracy(model, *test, centred=True):.2%}")

# %%
# One switch takes speed away, for a good reason. Some GPU kernels add up in an order that
# changes from run to run. After ``torch.use_deterministic_algorithms(True)`` PyTorch
# takes others, or stops where it has none (`its page on reproducibility
# <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__). Older versions ask for
# the environment variable ``CUBLAS_WORKSPACE_CONFIG``, too, before matrices are
# multiplied on CUDA; we set it at the top. Do two runs from one seed end with the same
# bits?


def weights_of(seed):
    model, epoch = build(seed, **{**ladder, "graph": False})
    epoch(0)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


torch.use_deterministic_algorithms(True)
print("the same bits twice:", torch.equal(weights_of(7), weights_of(7)))
torch.use_deterministic_algorithms(False)
matmul.fp32_precision = "none"

# %%
# Use it to find a mistake, or where a result must repeat to the last bit; the seed alone
# does not promise that on a GPU.
#
# Exercise
# --------
#
# .. exercise:: Make a batch sixteen times as large pay
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_12.py
#
#    The script trains on 1,200 made-up points, in batches of 32 and of 512. It counts
#    epochs until 90 % of the held-out points are right. To stop at the first good epoch
#    favours luck, so take the count as rough.
#
#    1. Fill in ``UPDATES``: how many updates does an epoch have, with either batch?
#    2. **Predict:** with the same learning rate, does the large batch need as many
#       epochs, or sixteen times as many, or something between? Then run it.
#    3. Change ``RATE``, until the large batch needs at most one and a half times the
#       epochs of the small one, the three seeds taken together.
#    4. How far up can you go before it needs more again?
#
#    To check it: ``python -m gpulesson check exercise_12.py``.
#
#    You are done when it prints ``it pays``, and the table is right, too.
#
# .. solution::
#    :file: solution_12.py
#
#    An epoch has 38 updates with the small batch, and 3 with the large one. An update of
#    a large batch is less noisy, and may be longer. Too long, and it oversteps: try
#    twenty times the solution's rate.
#
# .. keypoints::
#
#    - One change at a time, in turns with the ladder before it. It stays if it helps on
#      this machine, and what it costs once counts, too.
#    - The same losses prove the same work. Where losses must differ, a fixed accuracy,
#      runs of a fixed length and several seeds decide.
#    - A larger batch wants another learning rate. Centred images, and a rate that rises
#      and falls, can need fewer epochs.
#    - Compilers, graphs, precision and memory formats take away costs. Measure whether
#      your machine has those costs.
#    - The limit is the largest of arithmetic, reading and latency. In small steps it is
#      often latency, which a faster GPU does not change.
#
# **Next:** :doc:`/lessons/13_when_it_does_not_fit` is about memory again: what to do
# when there is too little of it.

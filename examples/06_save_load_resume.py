"""
6 · Save, load, resume
======================

Keep what a run has learned, and go on after a stop as if nothing had happened.

.. overview::
   :teaching: 30
   :exercises: 15

   .. objectives::

      - Save a model's weights, and load them safely, on any machine.
      - Save a whole run, and go on with it, bit for bit.
      - Let a run save itself when a cluster asks it to end.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices` and :doc:`/lessons/04_training_loop`
"""

# %%
# When a program ends, everything in memory is gone, even a model that took hours to
# train. Here are two recipes that keep it in a file. Don't worry about the details yet:
# the rest of the page explains them. Our example is a small model, trained for eight of
# ten :term:`epochs <epoch>`. The fold makes it, with two functions: ``make_run()``
# returns a new model, :term:`optimizer` and :term:`scheduler`, and ``train`` trains for
# one epoch.

# fold: Make the model and its data, and train
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice

practice.start()  # without a CUDA GPU, this page computes on the practice GPU
device = torch.device("cuda")


def make_model():
    layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
    return nn.Sequential(*layers).to(device)


def make_run():
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return model, optimizer, scheduler


torch.manual_seed(1)
X = torch.randn(192, 8)  # eight random numbers a row
y = X.sin().sum(dim=1, keepdim=True)  # [192, 1]: the sum of their sines
order = torch.Generator()  # random numbers for the loader alone
loader = DataLoader(TensorDataset(X, y), batch_size=32, shuffle=True, generator=order)


def train_step(model, optimizer, inputs, targets):
    loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(model, optimizer, scheduler, epoch):
    """Train for one epoch, as in lesson 4, and return its mean loss."""
    order.manual_seed(epoch)  # the order of the rows follows from the epoch's number
    total = 0
    for inputs, targets in loader:
        total += train_step(model, optimizer, inputs, targets)
    scheduler.step()
    return total.item() / len(loader)


model, optimizer, scheduler = make_run()
for epoch in range(8):
    train(model, optimizer, scheduler, epoch)

# %%
# Keep the model
# --------------
#
# **Save** what it has learned, its weights:

torch.save(model.state_dict(), "lesson6.pt")

# %%
# **Load** them in another program: make the same model, and fill it.

loaded = make_model().eval()  # new random weights, in evaluation mode
weights = torch.load("lesson6.pt", map_location="cpu", weights_only=True)
print(loaded.load_state_dict(weights))

# %%
# Every number has found its place, so ``loaded`` now answers as ``model`` does.
# Don't forget ``eval()``: a new model is in :term:`training mode`, in which
# :term:`dropout` changes its answers at random, and you get no error.
#
# Go on tomorrow
# --------------
#
# **Save** more than the weights, after each epoch. Our run also has a
# :term:`scheduler`, which lowers the :term:`learning rate` from epoch to epoch. If
# yours has none, leave its lines out.

checkpoint = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "scheduler": scheduler.state_dict(),
    "epoch": epoch + 1,  # this many are done
}
torch.save(checkpoint, "lesson6-run.pt")

# %%
# **Load** it all tomorrow: make everything as before, and fill it.

model, optimizer, scheduler = make_run()  # all new
checkpoint = torch.load("lesson6-run.pt", map_location="cpu", weights_only=True)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])

# %%
# Then begin the loop with the first epoch that is not done yet:

for epoch in range(checkpoint["epoch"], 10):
    loss = train(model, optimizer, scheduler, epoch)
    print(f"epoch {epoch + 1} of 10: loss {loss:.2f}")

# %%
# The run goes on where it had stopped. In short:
#
# .. list-table::
#    :header-rows: 1
#
#    * - You want to
#      - Save
#      - When
#    * - predict
#      - the weights: ``model.state_dict()``
#      - at the end
#    * - go on after a stop
#      - what changes in a run: ``checkpoint``
#      - after each epoch, and on a :ref:`signal <signal>`
#    * - write none of this yourself
#      - with :ref:`AutoSave <autosave>`
#      - after each epoch, every ten minutes, and on a signal
#
# All of this ran on a :term:`CUDA` :term:`GPU` or, without one, on the
# :term:`practice GPU`, which obeys the same rules but computes on the CPU.
#
# See what the weights alone forget
# ---------------------------------
#
# A saved computer game holds more than the level: your points, your tools, the time that
# is left. Imagine going on with the level alone!
#
# A run is like that. Let's go on from the first recipe's file, with the weights after
# eight epochs, and compare with ten epochs without a break. What will the :term:`loss`
# do?

whole, optimizer, scheduler = make_run()
expected = [train(whole, optimizer, scheduler, epoch) for epoch in range(10)]

resumed, optimizer, scheduler = make_run()
resumed.load_state_dict(weights)
from_weights = [train(resumed, optimizer, scheduler, epoch) for epoch in (8, 9)]

# %%

# fold: Draw the losses of both
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(4.5, 3.3), layout="constrained")
epochs = range(1, 11)
ax.plot(epochs, expected, "o-", label="without a break")
ax.plot(epochs[8:], from_weights, "s--", label="resumed with the weights alone")
ax.axvline(8.5, color="gray", linestyle=":")
ax.annotate("stopped", (8.4, max(expected)), ha="right", va="top", color="gray")
ax.set(
    xlabel="epoch", ylabel="mean squared error", title="The loss jumps after the break"
)
ax.legend()
plt.show()

# %%
# The loss jumps, although every weight is as before the break. What was lost?
#
# - the learning rate: the scheduler had made it about ten times smaller,
# - Adam's averages of past :term:`gradients <gradient>` for every weight: the
#   :term:`optimizer state`,
# - how many epochs are done,
# - the place in the sequence of random numbers, from which dropout draws.
#
# **To go on, a run needs everything that changes while it runs.** A file with all of this
# is called a :term:`checkpoint`:
#
# .. drawing:: checkpoint.svg
#
#    A file with the weights holds one of the five things that a run needs; a checkpoint
#    holds all five.
#
# Find out which part matters most
# --------------------------------
#
# Is it the scheduler or the :term:`optimizer`? Let's restore only some parts of the
# checkpoint, and look at the loss of the next epoch:

for parts in ["model"], ["model", "scheduler"], ["model", "optimizer"]:
    again, optimizer, scheduler = make_run()
    again.load_state_dict(checkpoint["model"])
    if "scheduler" in parts:
        scheduler.load_state_dict(checkpoint["scheduler"])
    if "optimizer" in parts:
        optimizer.load_state_dict(checkpoint["optimizer"])
    loss = train(again, optimizer, scheduler, 8)
    print(f"{' and '.join(parts):<20} {loss:.3f}")
print(f"{'without a break':<20} {expected[8]:.3f}")

# %%
# **The optimizer matters most:** its ``state_dict`` holds Adam's averages, and also the
# learning rate. The scheduler alone changes nothing here, because it sets the next rate
# only after the epoch.
#
# .. play:: stopped
#
#    Now try all the other ways. Choose where the run stops, and tick what was saved
#    besides the weights. The curve shows how the run went on when this page was built,
#    with just the code beside it. Which ticks does it need to go on as if nothing had
#    happened? (``random`` is the place in the random numbers, which dropout needs.)
#
# Resume to the last bit
# ----------------------
#
# With the optimizer, the loss is close to that without a break, but not the same: dropout
# got other random numbers. So let's save PyTorch's place in them, on the CPU and on
# the GPU. Here is the recipe as a function. Its ``step`` is for a stop within an epoch,
# which comes later.

from pathlib import Path


def save(path, model, optimizer, scheduler, epoch, step=0):
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "epoch": epoch,
        "step": step,
        "random": torch.get_rng_state(),
        "gpu_random": torch.cuda.get_rng_state_all(),  # a list; without a GPU, empty
    }
    unfinished = Path(f"{path}.part")
    torch.save(checkpoint, unfinished)
    unfinished.replace(path)


# %%
# The file is written under another name, and renamed when it is whole: **if the program
# is killed in the middle, the checkpoint from before is still there.** After a power cut
# the new file may be empty, unless you call ``os.fsync`` before renaming it. Now the way
# back:


def resume(path, model, optimizer, scheduler):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    torch.set_rng_state(checkpoint["random"])
    torch.cuda.set_rng_state_all(checkpoint["gpu_random"])
    return checkpoint["epoch"], checkpoint["step"]


# %%
# Making a model draws random numbers, so make it before you call ``resume``. Does the run
# now end with the same weights?

# fold: A function that compares all weights of two models


def same_weights(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# %%

model, optimizer, scheduler = make_run()
for epoch in range(8):
    train(model, optimizer, scheduler, epoch)
save("lesson6-run.pt", model, optimizer, scheduler, epoch=8)

model, optimizer, scheduler = make_run()  # tomorrow
first, step = resume("lesson6-run.pt", model, optimizer, scheduler)
for epoch in range(first, 10):
    train(model, optimizer, scheduler, epoch)
print("the same weights:", same_weights(model, whole))

# %%
# Yes, bit for bit the same. (On a GPU, even two runs without a break can differ in the
# last digits: `some operations
# <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__ add in varying order.)
#
# .. fold:: What else changes in your script, and has to be saved?
#
#    .. list-table::
#       :header-rows: 1
#
#       * - Your script has
#         - Add
#       * - no scheduler
#         - nothing: leave it out
#       * - a ``GradScaler``, or a second model with averaged weights (``AveragedModel``)
#         - its ``state_dict``
#       * - the best score so far, a counter to stop early
#         - a number
#       * - ``running_loss``, added up over an epoch
#         - the sum and the count of rows. Else the loss printed for an epoch with a stop
#           is that of its rest.
#       * - random numbers of Python or NumPy
#         - ``random.getstate()`` and, for ``rng = np.random.default_rng()``,
#           ``rng.bit_generator.state``; to set them, ``random.setstate`` and the same
#           attribute
#       * - images that :term:`workers <worker>` change at random
#         - nothing, without ``persistent_workers=True``: they follow from the loader's
#           generator. But without workers, images draw other numbers after a stop within
#           an epoch.
#       * - fewer GPUs tomorrow than today
#         - in ``resume``: ``checkpoint["gpu_random"][: torch.cuda.device_count()]``
#
# .. instructor-note::
#
#    The trap is to restore the random numbers right after ``torch.load``, and make the
#    model afterwards. Ask: which line draws the next random number?
#
# Look into a file of weights
# ---------------------------
#
# Your runs are safe now. But what is in the files? A :term:`state_dict` is a dictionary.
# How many entries does ours have?

for name, tensor in weights.items():
    print(name, tuple(tensor.shape))

# %%
# Four :term:`tensors <tensor>`: a weight and a bias for each linear layer. The number in
# a name is the layer's place, counted from 0. ``ReLU`` and dropout learn nothing.
#
# .. question:: ``path`` holds ``model.state_dict()``. What is ``torch.load(path)``?
#
#    - The model that was saved.
#
#      No. Only the ``state_dict`` was saved, and it does not know which layers it
#      belongs to.
#
#    - A dictionary of tensors.
#
#      Yes. ``torch.load`` gives back what ``torch.save`` was given. After ``model =
#      torch.load(path)``, ``model(inputs)`` fails: a dictionary cannot be called.
#
#    - The model that the script has, with new weights.
#
#      No. ``torch.load`` knows nothing of your model. Only ``load_state_dict`` fills it.
#
# And if the model is not the same? Here it is wrapped in another ``Sequential``:

try:
    nn.Sequential(make_model()).load_state_dict(weights)
except RuntimeError as error:
    print(error)

# %%
# *Missing key(s)* are names of the model, *unexpected* ones are those of the file.
# **Compare the two.** Here the file's names lack ``0.`` at the beginning. Often they have
# too much: ``module.`` from ``DataParallel``, or ``_orig_mod.`` from
# :term:`torch.compile`: :ref:`what to do <error-missing-keys>`.
#
# .. _cuda-file:
#
# Load a file that comes from a GPU
# ---------------------------------
#
# .. covers:: S0.4
#
# Our file was saved from a GPU. Now you want to load it on a laptop without one. Can you
# load first, and call ``.to("cpu")`` afterwards? We hide the GPU for a few lines:

# fold: A helper that hides CUDA GPUs from the lines within it
from unittest.mock import patch


def without_gpu():
    """Let PyTorch answer that there is no CUDA GPU."""
    return patch("torch.cuda.is_available", return_value=False)


# %%

with without_gpu():
    try:
        weights = torch.load("lesson6.pt", weights_only=True)
        print(weights["0.weight"].to("cpu").device)
    except RuntimeError as error:
        print(error)

    weights = torch.load("lesson6.pt", map_location="cpu", weights_only=True)
    print("\nwith map_location:", weights["0.weight"].device)

# %%
# No: ``torch.load`` brings each tensor back to the :term:`device` that it came from, and
# ``.to("cpu")`` is never reached. (To *deserialize* is to make tensors from a file's
# bytes.) **Give** ``map_location`` **whenever you load:** ``"cpu"`` **is right
# everywhere.**
#
# .. question:: A model on the GPU loads a dictionary from the CPU. Where is the model?
#
#    - On the CPU.
#
#      No. ``map_location`` is about the tensors of the dictionary. It does not know your
#      model.
#
#    - On the GPU, as before.
#
#      Yes. ``load_state_dict`` copies numbers into the tensors that the model has,
#      wherever they are.
#
#    - Nowhere: there is an error, because two devices are mixed.
#
#      No. Most calculations with tensors of two devices fail. A copy from one device to
#      another does not.
#
# .. _hostile-file:
#
# Refuse a file that wants to run code
# ------------------------------------
#
# ``torch.save`` uses ``pickle``, Python's own format for objects. Such a file can also
# say: *call this function with these arguments*. We make one that only creates an empty
# file. It could as well delete all of yours.

# fold: Make a hostile file
marker = Path("lesson6-marker.pt")
marker.unlink(missing_ok=True)  # of an earlier run of this page


class Hostile:
    def __reduce__(self):  # asked by pickle: how are you made again?
        return Path.touch, (marker,)  # by this function, with these arguments


torch.save({"weights": Hostile()}, "lesson6-hostile.pt")

# %%

try:
    torch.load("lesson6-hostile.pt", weights_only=True)
except Exception as error:
    print(type(error).__name__, "·", str(error)[:25])
print("the function was called:", marker.exists())

torch.load("lesson6-hostile.pt", weights_only=False)
print("the function was called:", marker.exists())

# %%
# The first load stops with an error. The second calls the function, without a word.
# **Load with** ``weights_only=True``\ **.** It accepts tensors, plain values and a short
# list of harmless classes.
#
# .. fold:: Which version of PyTorch, and what if your own file is refused?
#
#    ``weights_only=True`` has been the default since `PyTorch 2.6
#    <https://github.com/pytorch/pytorch/releases/tag/v2.6.0>`__. Keep PyTorch up to date:
#    two holes in this protection were closed in `2.6
#    <https://github.com/advisories/GHSA-53q9-r3pm-6pq6>`__ and `2.10
#    <https://github.com/advisories/GHSA-63cw-57p8-fm3p>`__.
#
#    A harmless file is refused if it holds a whole model, a ``Path``, a NumPy number, or
#    the ``args`` of ``argparse``. Save ``str(path)``, ``float(best)``, ``vars(args)``
#    (each ``Path`` in it as ``str``) instead. To rescue an old file that you trust, load
#    it once with ``weights_only=False``, where its classes can be imported, and save the
#    ``state_dict``.
#
# .. _signal:
#
# Save when the cluster asks the run to end
# -----------------------------------------
#
# If you have no cluster, skip this section.
#
# On a *cluster*, many computers that many people share, a run may only take so long. When
# the time is over, the system sends your program a *signal*: ``SIGTERM`` asks it to end.
# Seconds later, `with Slurm
# <https://slurm.schedmd.com/slurm.conf.html#OPT_KillWait>`__ usually 30, comes
# ``SIGKILL``, which no program can refuse.
#
# By default Python ends at once, and saves nothing. So we note the signal, and look for
# it after each :term:`step`. ``signal.signal`` names a function that Python calls when
# the signal comes; ours only writes its number into a list. Open the fold: the lines
# for your own loop are marked as *new*. We'll call ``run``, and say with ``asked_at``
# when the signal comes.

# fold: A run that saves when it gets a signal, and goes on
import signal
import sys


def run(path, asked_at=None):
    asked = []  # new: the signals that came
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))  # new
    model, optimizer, scheduler = make_run()
    first, done = 0, 0  # new
    if Path(path).exists():  # new
        first, done = resume(path, model, optimizer, scheduler)  # new
    for epoch in range(first, 10):  # changed
        order.manual_seed(epoch)  # new: the loader has this generator
        for step, (inputs, targets) in enumerate(loader):  # changed
            if epoch == first and step < done:  # new: it was done before the stop
                continue  # new
            train_step(model, optimizer, inputs, targets)
            if (epoch, step) == asked_at:  # for this page only
                signal.raise_signal(signal.SIGTERM)
            if asked:  # new: save within the epoch, and end
                save(path, model, optimizer, scheduler, epoch, step + 1)
                sys.exit(75)
        scheduler.step()
        save(path, model, optimizer, scheduler, epoch + 1)  # new
    return model


# %%
# Here it comes after step 4 of epoch 6, both counted from 0. Then we start the run again:

Path("lesson6-stopped.pt").unlink(missing_ok=True)  # a new run
try:
    run("lesson6-stopped.pt", asked_at=(6, 4))
except SystemExit as end:  # else Python would end here
    print("exit status:", end.code)

model = run("lesson6-stopped.pt")
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's own answer again
print("the same weights:", same_weights(model, whole))

# %%
# The second start goes on with step 5 of epoch 6, and ends with the weights of the run
# without a break. **Save after each epoch and on a signal, and let the same command go
# on.** The *exit status* says how a program ended: 0 is for success, and 75 for "try
# again later".
#
# The page :doc:`/cluster` has the job scripts, and a way to :ref:`skip batches without
# loading them <cluster-skip>`. Here is the whole as one script:
#
# .. script:: save_and_resume.py
#
# Why does our loader have a generator, ``order``? Let's stop one without it after four of
# 12 rows, and start again, skipping the :term:`batch` that is done. These rows were used:

# fold: Stop and resume with a loader that has no generator
torch.manual_seed(4)
plain = DataLoader(range(12), batch_size=4, shuffle=True)
before = next(iter(plain))
after = list(plain)[1:]
print(torch.cat([before, *after]).sort().values.tolist())

# %%
# Some came twice and others never, without an error: the second start has another order.
# **Give the loader a generator, and set its** :term:`seed` **in each epoch.** A loader
# with :ref:`workers needs two lines more <cluster-workers>`. Leave its
# ``persistent_workers=True`` out: with it, the order after a start is another one.
#
# Find the right folder on every machine
# --------------------------------------
#
# .. covers:: S0.3
#
# On many clusters, a variable of the system such as ``SCRATCH`` names the folder for
# large files. What happens where a variable, here ``MY_DISK``, is not set?

import os

print(os.path.expandvars("$MY_DISK/weights.pt"))

folder = Path(os.environ.get("SCRATCH") or ".") / "lesson6-files"
folder.mkdir(parents=True, exist_ok=True)  # torch.save makes no folders
torch.save(model.state_dict(), folder / "weights.pt")

# %%
# The name stays in the path, without an error. **Take the folder from the
# environment, and say what to use where the variable is missing,** here ``"."``, the
# current folder.

# fold: Remove what this page has saved
import shutil

shutil.rmtree(folder)
for name in "", "-run", "-hostile", "-marker", "-stopped":
    Path(f"lesson6{name}.pt").unlink(missing_ok=True)

# %%
# .. _autosave:
#
# Let AutoSave do all of this
# ---------------------------
#
# The package of this course (:doc:`/setup`) has all of it in a class:
#
# .. code-block:: python
#
#    from gpulesson.checkpoint import AutoSave
#
#    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
#    with AutoSave("my-run", **parts) as saves:
#        for epoch in saves.epochs(10):
#            for inputs, targets in saves.batches(loader):
#                train_step(model, optimizer, inputs, targets)
#                saves.step()
#            scheduler.step()
#
# Start the same script again, and it goes on. It finds its place within an epoch
# however the loader shuffles, keeps the last three checkpoints, and skips a damaged
# one. Its files cannot call a function: :doc:`/promises` says how this is tested. After
# a signal its exit status is 143: 128 and the signal's number, 15.
#
# Exercise
# --------
#
# .. exercise:: Resume without a trace
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_06.py
#
#    A run is to survive a stop: the same call again, perhaps in a new process, goes on
#    where the first one ended. The training is there already.
#
#    1. **Predict:** what changes during the run in ``main``, besides the weights?
#    2. Write ``save``, with what you named in step 1.
#    3. Write ``run``, first without a stop, then with one, and then let it go on from a
#       checkpoint. ``folder.mkdir(parents=True, exist_ok=True)`` makes the folder, and
#       ``path.exists()`` says whether a file is there.
#    4. Run the file, until it says ``the same bits``.
#
#    To check it: ``python -m gpulesson check exercise_06.py``.
#
#    You are done when both functions pass: the run that was stopped ends with the
#    weights of the one that was not, to the last bit.
#
# .. solution::
#    :file: solution_06.py
#
#    Three things besides the weights: Adam's state, the epoch, and torch's random number
#    generator, from which both dropout and shuffling draw. It is restored last, after
#    the model is made. And each epoch is saved before the run may stop.
#
# .. keypoints::
#
#    - Save ``state_dict()``. To load, make the same model, give ``map_location`` and
#      ``weights_only=True``, and call ``eval()`` before you predict.
#    - A checkpoint holds all that changes: model, optimizer, scheduler, epoch, random
#      numbers. Write it under another name, then rename it.
#    - Note ``SIGTERM``, look after each step, save, and end. The same command goes on, if
#      the order of the rows follows from the epoch.
#
# **Next:** :doc:`/lessons/07_common_mistakes` breaks things on purpose, so that you know
# the messages.

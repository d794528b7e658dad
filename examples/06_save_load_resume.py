"""
6 · Save, load, resume
======================

Keep what a run has learned, load it on another machine, and go on after a stop as if
nothing had happened.

.. overview::
   :teaching: 31
   :exercises: 15

   .. objectives::

      - Save a model's weights, and load them safely, on any machine.
      - Save a whole run, and go on with it, bit for bit.
      - Let a run save itself when a cluster asks it to end.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices`, on where things are
      - :doc:`/lessons/04_training_loop`, whose loop we save here
      - nothing to download: this lesson makes its data
"""

# %%
# When a program ends, what was only in memory is gone. What belongs into your file
# depends on what you want to do with it:
#
# .. list-table::
#    :header-rows: 1
#
#    * - You want to
#      - Save
#      - When
#    * - predict, or hand the model on
#      - the model's weights
#      - at the end
#    * - go on after a stop
#      - everything that changes while the run runs
#      - after each :term:`epoch`, and when a signal comes
#    * - the same, without writing it yourself
#      - what ``AutoSave`` of this course's package (:doc:`/setup`) saves
#      - every ten minutes, and when a signal comes
#
# The first two need PyTorch only, and we write them out, for a :term:`CUDA` :term:`GPU`.
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, and your CPU does the arithmetic.

import os
import shutil
import signal
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice

practice.start()
device = torch.device("cuda")

# %%
# Save the weights, and load them to predict
# ------------------------------------------
#
# .. covers:: S0.3
#
# First we need a folder. ``/home/sam/course`` exists on Sam's machine only. A variable of
# the system, such as ``$SCRATCH``, names another folder on each machine. But what happens
# where it is not set?

print(os.path.expandvars("$MY_DISK/weights.pt"))

base = Path(os.environ.get("SCRATCH") or ".")
folder = base / f"lesson-06-{os.getpid()}"  # in your script: base / "my-project"
folder.mkdir(parents=True, exist_ok=True)  # torch.save makes no folders

# %%
# The name stays in the path, without an error. The other lines give a folder on every
# machine: in ``SCRATCH``, which many clusters set to a large disk for work, or else where
# you start the script. (This page deletes its folder at the end, so its name has the
# number of the process.)
#
# Now a small model. What it has learned is in its :term:`state_dict`, a dictionary. How
# many entries will it have?


def make_model():
    layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
    return nn.Sequential(*layers).to(device)


torch.manual_seed(0)
model = make_model()
for name, tensor in model.state_dict().items():
    print(name, tuple(tensor.shape))

torch.save(model.state_dict(), folder / "weights.pt")

# %%
# Four :term:`tensors <tensor>`: a weight and a bias for each of the two linear layers.
# The number in a name is the layer's place, counted from 0. ``ReLU`` and :term:`dropout`
# learn nothing.
#
# The file holds numbers and their names, and no layers. So to load it you first make a
# model with the same layers, then you fill it:

loaded = make_model()
weights = torch.load(folder / "weights.pt", map_location=device, weights_only=True)
loaded.load_state_dict(weights)

model.eval()
loaded.eval()  # to predict: dropout off
inputs = torch.rand(5, 8, device=device)
print("same outputs:", torch.equal(model(inputs), loaded(inputs)))

# %%
# **Save the** ``state_dict``\ **. To load it, make the same model, fill it, and call**
# ``eval()`` **before you predict.** A new model is in :term:`training mode`. Without
# ``eval()``, dropout would change its answers at random, and no error would tell you.
# (``map_location`` and ``weights_only`` have their sections below.)
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
# *Missing key(s)* are names that the model has and the file has not; *unexpected* ones
# are those of the file. Compare the two. Here the file's names lack ``0.`` at the
# beginning. Often they have too much: ``module.``, from a model that was saved inside
# ``DataParallel``, or ``_orig_mod.``, from :term:`torch.compile`. :ref:`The page of
# errors <error-missing-keys>` says what to do.
#
# .. _cuda-file:
#
# Load a file that comes from a GPU
# ---------------------------------
#
# .. covers:: S0.4
#
# Our file comes from a GPU, and each tensor in it is saved with its :term:`device`. Now
# you want to load it on a laptop. You may have read that you can load first, and call
# ``.to("cpu")`` afterwards. Will it work? We hide the GPU for a few lines:

# fold: A helper that hides CUDA GPUs from the lines within it
from unittest.mock import patch


def without_gpu():
    """Let PyTorch answer that there is no CUDA GPU."""
    return patch("torch.cuda.is_available", return_value=False)


# %%

with without_gpu():
    try:
        weights = torch.load(folder / "weights.pt", weights_only=True)
        print(weights["0.weight"].to("cpu").device)
    except RuntimeError as error:
        print(error)

    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = torch.load(folder / "weights.pt", map_location=here, weights_only=True)
    print("\nwith map_location:", weights["0.weight"].device)

# %%
# The first load fails, and ``.to("cpu")`` is never reached: ``torch.load`` brings each
# tensor back to the device that it came from. (To *deserialize* is to make tensors from
# the file's bytes.) ``map_location`` says where the tensors go *while* they are loaded.
# **Give** ``map_location`` **whenever you load:** ``"cpu"`` **is right everywhere.**
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
# A file that wants to run code
# -----------------------------
#
# ``torch.save`` uses ``pickle``, Python's own format for objects. Such a file can also
# say: *call this function with these arguments*. We make one whose function creates an
# empty file called ``marker``; it could as well delete all your files.

# fold: Make a hostile file

marker = folder / "marker"


class Hostile:
    def __reduce__(self):  # asked by pickle: how are you made again?
        return Path.touch, (marker,)  # by this function, with these arguments


torch.save({"weights": Hostile()}, folder / "hostile.pt")

# %%

try:
    torch.load(folder / "hostile.pt", weights_only=True)
except Exception as error:
    print(type(error).__name__, "·", str(error)[:25])
print("the function was called:", marker.exists())

torch.load(folder / "hostile.pt", weights_only=False)
print("the function was called:", marker.exists())

# %%
# The first load stops with an error. The second calls the function, without a word.
# **Load with** ``weights_only=True``\ **.** It accepts tensors, plain values and a short
# list of harmless classes. It has been the default since `PyTorch 2.6
# <https://github.com/pytorch/pytorch/releases/tag/v2.6.0>`__. Keep PyTorch up to date:
# two holes in this protection were closed in `2.6
# <https://github.com/advisories/GHSA-53q9-r3pm-6pq6>`__ and `2.10
# <https://github.com/advisories/GHSA-63cw-57p8-fm3p>`__.
#
# Harmless files are refused, too, if they hold a whole model, a ``Path``, a NumPy
# number, or the ``args`` of ``argparse``. Save ``str(path)``, ``float(best)``,
# ``vars(args)`` (each ``Path`` in it as ``str``) instead. To rescue an old file that
# you trust, load it once with ``weights_only=False``, where its classes can be
# imported, and save the ``state_dict``.
#
# Why weights are not enough to go on
# -----------------------------------
#
# A saved computer game holds more than the number of the level: also your points, your
# tools and the time that is left. A run is like that. Ours has the model, an
# :term:`optimizer`, and a :term:`scheduler` that lowers the :term:`learning rate` after
# each epoch. It learns to predict, from eight random numbers, the sum of their sines.

torch.manual_seed(1)
X = torch.randn(192, 8)
y = X.sin().sum(dim=1, keepdim=True)  # [192, 1]: a sum for each row
order = torch.Generator()  # random numbers for the loader alone
data = TensorDataset(X, y)
loader = DataLoader(data, batch_size=32, shuffle=True, generator=order)


def make_run():
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return model, optimizer, scheduler


# %%
# The loop is that of lesson 4. New is the *generator* ``order``: we set its :term:`seed`
# again for each epoch, so the order of the rows follows from the epoch's number. This
# will let us find our place again.


def train_step(model, optimizer, inputs, targets):
    loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(model, optimizer, scheduler, epochs):
    history = []
    for epoch in epochs:
        order.manual_seed(epoch)
        losses = [train_step(model, optimizer, *batch) for batch in loader]
        scheduler.step()
        history.append(torch.stack(losses).mean().item())
    return history


# %%
# We run ten epochs without a break. Then we make the same run again, stop it after eight,
# and save its weights. The next day we make everything again, load the weights, and run
# the last two epochs. What will the :term:`loss` do?

whole, optimizer, scheduler = make_run()
expected = train(whole, optimizer, scheduler, range(10))

model, optimizer, scheduler = make_run()
train(model, optimizer, scheduler, range(8))
torch.save(model.state_dict(), folder / "weights-8.pt")

weights = torch.load(folder / "weights-8.pt", map_location="cpu", weights_only=True)
resumed, optimizer, scheduler = make_run()
resumed.load_state_dict(weights)
from_weights = train(resumed, optimizer, scheduler, range(8, 10))

# %%

# fold: Draw the losses of both
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
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
# The loss jumps, although every weight is as before the break. What else was lost?
#
# - the learning rate, which the scheduler had made about ten times smaller,
# - Adam's averages of past :term:`gradients <gradient>` for every weight, its
#   :term:`optimizer state`,
# - the place in the sequence of random numbers: dropout now gets others,
# - how many epochs are done.
#
# Which of them matters most? We will try it below.
#
# **To go on, a run needs everything that changes while it runs.** A file with all of this
# is called a :term:`checkpoint`:
#
# .. drawing:: checkpoint.svg
#
#    A file with the weights holds one of the five things that a run needs; a checkpoint
#    holds all five.
#
# Save and resume a whole run
# ---------------------------
#
# These two functions keep what has a ``state_dict``, the place, and PyTorch's random
# numbers. (A page of PyTorch to bookmark: `Saving and Loading Models
# <https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html>`__.)


def save(path, parts, epoch, step=0):
    checkpoint = {name: part.state_dict() for name, part in parts.items()}
    checkpoint |= {"epoch": epoch, "step": step, "rng": torch.get_rng_state()}
    checkpoint["gpu_rng"] = torch.cuda.get_rng_state_all()  # a list, maybe empty
    part = Path(f"{path}.part")
    torch.save(checkpoint, part)
    part.replace(path)


def resume(path, parts):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    torch.set_rng_state(checkpoint["rng"])
    here = torch.cuda.device_count()  # there may be fewer GPUs than before
    torch.cuda.set_rng_state_all(checkpoint["gpu_rng"][:here])
    return checkpoint["epoch"], checkpoint["step"]


# %%
# Three details matter. ``torch.save`` writes to another name, and ``replace`` renames
# the file when it is whole: **a crash in the middle leaves the checkpoint from before.**
# It is loaded to the CPU, because the states of the random numbers must be there;
# ``load_state_dict`` takes the rest to the model's device, Adam's averages, too. And the
# random numbers come last: making a model draws some.
#
# What else changes in your script? Add it:
#
# .. list-table::
#    :header-rows: 1
#
#    * - Your script has
#      - Add
#    * - no scheduler
#      - nothing: leave it out of ``parts``
#    * - a ``GradScaler``, or a second model with averaged weights (``AveragedModel``)
#      - an entry in ``parts``: they have a ``state_dict``
#    * - the best score so far, a counter to stop early
#      - a number in ``checkpoint``
#    * - ``running_loss``, added up over an epoch
#      - the sum and the count of rows, in ``checkpoint``. Else the loss printed for an
#        epoch with a stop is that of its rest.
#    * - random numbers of Python or NumPy
#      - ``random.getstate()`` and, for ``rng = np.random.default_rng()``,
#        ``rng.bit_generator.state``, in ``checkpoint``; to set them, ``random.setstate``
#        and the same attribute
#    * - images that :term:`workers <worker>` change at random
#      - nothing: their seeds come from the loader's generator, too. Without workers,
#        images draw other numbers after a stop within an epoch.
#
# Is it the same run now? We compare all weights with those of the run without a break, to
# the last bit:


def same_weights(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


model, optimizer, scheduler = make_run()
train(model, optimizer, scheduler, range(8))
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
save(folder / "run.pt", parts, epoch=8)

model, optimizer, scheduler = make_run()  # the next day
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
epoch, step = resume(folder / "run.pt", parts)
train(model, optimizer, scheduler, range(epoch, 10))
print("resumed with the weights alone:", same_weights(resumed, whole))
print("resumed with the checkpoint:   ", same_weights(model, whole))

# %%
# The same bits. (On a GPU some operations add their numbers in varying order, so even two
# runs without a break may differ in the last digits: PyTorch's notes on `reproducibility
# <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__.)
#
# And what mattered most? We restore only some of the parts, and look at the loss of the
# next epoch:

for names in ("model",), ("model", "scheduler"), ("model", "optimizer"):
    model, optimizer, scheduler = make_run()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    resume(folder / "run.pt", {name: parts[name] for name in names})
    loss = train(model, optimizer, scheduler, [8])[0]
    print(f"{' and '.join(names):<20} {loss:.2f}")
print(f"{'without a break':<20} {expected[8]:.2f}")

# %%
# The optimizer matters most: its ``state_dict`` holds Adam's averages, and the learning
# rate as well. The scheduler alone changes nothing here, because it sets the next rate
# only after the epoch.
#
# .. instructor-note::
#
#    The trap is to restore the generators right after ``torch.load``, and make the
#    model afterwards. Ask: which line draws the next random number?
#
# Save when the cluster asks the run to end
# -----------------------------------------
#
# On a *cluster*, many computers that many people share, you say beforehand how long a run
# may take. When the time is over, the system sends your program a *signal*, a short
# message: ``SIGTERM`` asks it to end. A little later, `after 30 seconds with Slurm
# <https://slurm.schedmd.com/slurm.conf.html#OPT_KillWait>`__ if nobody has set another
# time, comes ``SIGKILL``, which no program can refuse.
#
# By default Python ends at once then, and saves nothing. So we register a function that
# only notes the signal, and the loop looks after each :term:`step`. If you inherited a
# script, these are the lines to add:


def run(path, asked_at=None):
    asked = []  # new: the signals that came
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))  # new
    model, optimizer, scheduler = make_run()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}  # new
    first, done = resume(path, parts) if path.exists() else (0, 0)  # new
    for epoch in range(first, 10):  # changed
        order.manual_seed(epoch)  # new: the loader has this generator
        for step, batch in enumerate(loader):  # changed
            if (epoch, step) < (first, done):  # new: it was done before the stop
                continue
            train_step(model, optimizer, *batch)
            if (epoch, step) == asked_at:  # for this page only
                signal.raise_signal(signal.SIGTERM)
            if asked:  # new: save within the epoch, and end
                save(path, parts, epoch, step + 1)
                sys.exit(75)
        scheduler.step()
        save(path, parts, epoch + 1)  # new
    return model


# %%
# We send the signal ourselves, after step 4 of epoch 6, counted from 0. ``sys.exit``
# would now end Python. We catch it, to make the second start in the same program:

try:
    run(folder / "stopped.pt", asked_at=(6, 4))
except SystemExit as end:
    print("exit status:", end.code)

print("same weights:", same_weights(run(folder / "stopped.pt"), whole))

signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's own answer again
shutil.rmtree(folder)  # this page needs it no more

# %%
# The second start goes on with step 5 of epoch 6, and ends with the weights of the run
# without a break. **Save after each epoch and on a signal, and let the same command go
# on.** The *exit status* is the number that a program leaves when it ends, 0 if all
# went well. 75 is Unix's number for "try again later": it tells you, or your job
# script, that the run is not done. (Under ``torchrun``, of lesson 14, a job script sees
# 1 instead.) The :term:`batches <batch>` that are skipped are still loaded: :ref:`let
# the sampler skip <cluster-skip>` if that is slow.
#
# What if your loader shuffles without such a generator? We take 12 rows, do the first
# batch of 4, and start again, skipping the batch that is done:

torch.manual_seed(4)
plain = DataLoader(range(12), batch_size=4, shuffle=True)
before = next(iter(plain))
after = list(plain)[1:]
print(torch.cat([before, *after]).sort().values.tolist())

# %%
# Some rows come twice and others never, without an error: the second start has another
# order. So give the loader a generator, and set its seed in each epoch. If it has
# workers, leave out ``persistent_workers``, which makes the first epoch after a start
# another one. And workers get the cluster's signal as well, and die of it:
# :ref:`ignore_signals <cluster-workers>` prevents that.
#
# :doc:`/cluster` has job scripts for Slurm and PBS. They are warned two minutes before
# the limit. Then they send ``SIGTERM`` to the program, wait until it has saved, and put
# the job back into the queue. Here is the whole as one script, to compare with yours:
#
# .. script:: save_and_resume.py
#
# The same, kept in a class
# -------------------------
#
# The package has all this in ``AutoSave``. In a loop it looks like this:
#
# .. code-block:: python
#
#    from gpulesson.checkpoint import AutoSave
#
#    with AutoSave(folder, model=model, optimizer=optimizer) as saves:
#        for epoch in saves.epochs(10):
#            for inputs, targets in saves.batches(loader):
#                ...  # the step, as before
#                saves.step()
#
# What it adds: it finds its place within an epoch by itself, however the loader
# shuffles. It keeps the last three checkpoints, each with a *digest*, a number computed
# from all that is in it: a damaged file is noticed, and skipped. Its files are not
# pickles, so they cannot call a function. :doc:`/promises` says how this is tested.
# (Its exit status is 143, as the system's would be: 128 plus the number of the signal,
# 15.)
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
#    where the first one ended. You write two functions, ``save`` and ``run``. The
#    training itself is there already.
#
#    1. **Predict:** which things change during the run in ``main``, besides the weights?
#    2. Write ``save``, with what you named in step 1.
#    3. Write ``run``, first without a stop, then with one. In the end let it go on from
#       the checkpoint, if there is one.
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
#    - A checkpoint holds model, optimizer, scheduler, epoch, random states, and what else
#      changes in your script. Write it under another name, then rename it.
#    - Note ``SIGTERM``, look after each step, save, and end. The same command then goes
#      on within the epoch, if the order of the rows follows from the epoch.
#
# **Next:** :doc:`/lessons/07_common_mistakes` breaks things on purpose, so that you know
# the messages.

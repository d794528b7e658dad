"""
6 · Save, load, resume
======================

Keep what a run has learned, load it on another machine, and go on after a crash as if
nothing had happened.

.. overview::
   :teaching: 30
   :exercises: 15

   .. questions::

      - How do I save a model, and how do I get it back?
      - Why does a file from a GPU not load on my laptop?
      - Where do the files belong?
      - Why does the loss jump when I go on with saved weights?
      - What happens to my run when its time on a cluster is over?
      - Is it safe to load a file that I downloaded?

   .. objectives::

      - Save and load a ``state_dict``.
      - Load a file from a GPU on a machine without one.
      - Build a path that is right on every machine.
      - Resume a run bit for bit, and prove it by comparing.
      - Let a run save itself when a signal stops it, and go on within the epoch.
      - Say what ``weights_only`` protects from, and see it refuse a hostile file.
      - Notice a damaged file.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 2 </lessons/02_tensors_and_devices>`, on where things are, and
#      :doc:`lesson 4 </lessons/04_training_loop>`, on the training loop
#    - nothing to download: this lesson makes its data
#
# A run can end before you want it to: the program crashes, the battery is empty, your
# time on a shared computer is over. What was only in memory is then gone. In this
# lesson you save the weights of a model first, and later everything that a run needs to
# go on.

import os
import shutil
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from gpulesson.device import choose_device

torch.set_num_threads(1)  # one CPU core: more do not help with numbers this few
device = choose_device()
print("computing on", device)

# %%
# Save and load weights
# ---------------------
#
# Here is a small model: ``Sequential`` calls three layers one after the other, and
# ``ReLU`` is ``torch.relu`` as a layer. Its :term:`state_dict` is a Python dictionary
# with everything that it has learned. Before you run the cell: how many entries will it
# have?


def make_model():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))


torch.manual_seed(0)
model = make_model().to(device)
for name, tensor in model.state_dict().items():
    print(name, tuple(tensor.shape))

# %%
# Four: a weight and a bias for each of the two linear layers. The number in a name is
# the layer's place, counted from 0. Place ``1`` is missing, because ``ReLU`` learns
# nothing. Each entry is a :term:`tensor`, printed here with its :term:`shape`.
#
# One line writes the dictionary to a file. For now the file goes into a temporary
# folder, which disappears when Python ends. (A ``Path`` joins its parts with ``/``, and
# ``.pt`` is the usual ending for PyTorch's files.)

scratch = tempfile.TemporaryDirectory()
path = Path(scratch.name) / "weights.pt"
torch.save(model.state_dict(), path)

# %%
# And one line brings it back. The file holds numbers and their names, and no layers. So
# you first make a model with the same layers, then you fill it. We compare the outputs
# of the two models before and after:

copy = make_model().to(device)
inputs = torch.rand(5, 8, device=device)
print("same outputs before:", torch.equal(model(inputs), copy(inputs)))

copy.load_state_dict(torch.load(path, map_location=device, weights_only=True))
print("same outputs after: ", torch.equal(model(inputs), copy(inputs)))

# %%
# A new model begins with random weights, so the outputs differed. After loading they
# are the same. Read the line from the inside: ``torch.load`` reads the dictionary,
# ``load_state_dict`` copies its numbers into the model. **Save the** ``state_dict``;
# **to load it, make the same model first.** The two other arguments, ``map_location``
# and ``weights_only``, have a section each below.
#
# .. question:: A script says ``model = torch.load(path)``. What is ``model`` then?
#
#    - The model that was saved.
#
#      No. Only the ``state_dict`` was saved, and it does not know which layers it
#      belongs to.
#
#    - A dictionary of tensors.
#
#      Yes. ``torch.load`` gives back what ``torch.save`` was given. ``model(inputs)``
#      fails now, because a dictionary cannot be called.
#
#    - The model from before, with new weights.
#
#      No. ``torch.load`` knows nothing of your model. Only ``load_state_dict`` fills it.
#
# .. _cuda-file:
#
# Load a file that comes from a GPU
# ---------------------------------
#
# .. covers:: S0.4
#
# A tensor is saved together with the name of its :term:`device`. We save a model that is
# on a :term:`CUDA` :term:`GPU`, or else on the :term:`practice GPU`:

from gpulesson import practice

practice.start()
torch.save(make_model().to("cuda").state_dict(), Path(scratch.name) / "from_gpu.pt")
practice.stop()

# %%
# Now we need a machine without a GPU. So we let PyTorch believe that this is one, for a
# few lines. You may have read that you can load first, and call ``.to("cpu")``
# afterwards. Will it work?

# fold: A helper that hides CUDA GPUs from the lines within it
from unittest.mock import patch


def without_gpu():
    """Let PyTorch answer that there is no CUDA GPU."""
    return patch("torch.cuda.is_available", return_value=False)


# %%

from_gpu = Path(scratch.name) / "from_gpu.pt"

with without_gpu():
    try:
        weights = torch.load(from_gpu, weights_only=True)
        print(weights["0.weight"].to("cpu").device)
    except RuntimeError as error:
        print(error)

# %%
# It fails, in the first of the two lines, and ``.to("cpu")`` is never reached.
# ``torch.load`` tries to bring each tensor back to the device that it came from, and
# there is no such device. (To *deserialize* is to make tensors from the file's bytes,
# and a *storage* is the memory for a tensor's numbers.) The message names the solution:
# ``map_location`` says where the tensors go *while* they are loaded.

with without_gpu():
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = torch.load(from_gpu, map_location=here, weights_only=True)
    print("loaded to:", weights["0.weight"].device)

# %%
# With ``map_location=here`` the same line works on both machines: ``here`` is the
# device of the machine that loads. **Give** ``map_location`` **whenever you load.**
#
# You will also see ``map_location="cpu"``. It is right everywhere, too, because every
# machine has a CPU.
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

practice.start()
model_on_gpu = make_model().to("cuda")
weights = torch.load(path, map_location="cpu", weights_only=True)
model_on_gpu.load_state_dict(weights)
print("the dictionary:", weights["0.weight"].device)
print("the model:     ", model_on_gpu[0].weight.device)
practice.stop()

# %%
# The dictionary is on the CPU, and the model is still on the GPU. For a large model
# this is better, because the dictionary takes no memory on the GPU. For a small one
# take either.
#
# Put files in a place that is right on every machine
# ---------------------------------------------------
#
# .. covers:: S0.3
#
# Which folder does a script write to? In many scripts you find the author's own, such
# as ``/home/sam/course/weights.pt``. It exists on Sam's machine only. A little better
# is a path with an *environment variable*, a named text that the system hands to every
# program. ``os.path.expandvars`` puts the text in. Here is what becomes of such a path
# on three machines:

# fold: A helper that pretends to be on a machine with these environment variables


def expanded(line, **variables):
    """Expand a path where these environment variables are set, and no others."""
    with patch.dict(os.environ, variables, clear=True):
        return os.path.expandvars(line)


# %%

line = "$HOME/course/weights.pt"
print("Sam's laptop: ", expanded(line, HOME="/home/sam"))
print("Kim's laptop: ", expanded(line, HOME="/Users/kim"))
print("HOME not set: ", expanded(line))

# %%
# The third is wrong, and no error says so: when a variable is not set, ``expandvars``
# leaves its name where it was. And all three expect a folder ``course``. What happens
# without it?

try:
    torch.save(model.state_dict(), "course/not/made/weights.pt")
except RuntimeError as error:
    print(error)

# %%
# ``torch.save`` makes no folders, so the script has to. But where? On a *cluster*, many
# computers that many people share, your home folder is small: one computing centre
# gives each user 50 GB there, and 150 TB in a second folder, whose name is in the
# variable ``SCRATCH`` (`its documentation
# <https://github.com/eth-cscs/cscs-docs/blob/01ecb622d0cd5d8da89b6aaa789804401c87d9d4/docs/storage/filesystems.md>`__).
# So we take ``SCRATCH`` where it is set, and elsewhere a folder in the home of the
# person who runs the script:

cache = Path.home() / ".cache"
base = Path(os.environ.get("SCRATCH") or cache)
base.mkdir(parents=True, exist_ok=True)
folder = Path(tempfile.mkdtemp(prefix="lesson-06-", dir=base))

torch.save(model.state_dict(), folder / "weights.pt")
print([file.name for file in folder.iterdir()])

# %%
# ``mkdir`` makes the folder, and those above it, unless they are there. ``mkdtemp``
# makes one with a name that is still free, because this lesson deletes it in the end;
# in your own project take ``base / "my-project"``.
#
# **Let the machine name the folder**, and never write one person's home into a script.
# Both folders are for work, not for keeping: in ``SCRATCH`` the same centre deletes
# what was not used for 30 days. Copy your final weights to a place with a backup.
#
# Why weights are not enough
# --------------------------
#
# You play a computer game, and save it. What must be in the file? The number of the
# level is not enough: you also want your points, your tools and the time that is left. A
# run is like that. Here is one, with a model, an :term:`optimizer`, and a
# :term:`scheduler` that lowers the :term:`learning rate` after every :term:`epoch`, along
# a cosine curve that reaches zero after ten. The task: from eight random numbers,
# predict the sum of their sines.


def make_run():
    torch.manual_seed(0)
    layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return model, optimizer, scheduler


torch.manual_seed(1)
X = torch.randn(320, 8)
y = X.sin().sum(dim=1, keepdim=True)  # [320, 1]: a sum for each row
X, y = X.to(device), y.to(device)
loss_fn = nn.MSELoss()

# %%
# The loop is that of lesson 4, on a new model, which is in :term:`training mode`.
# ``randperm`` shuffles the row numbers, and ``split`` cuts them into :term:`batches
# <batch>` of 32. The function returns the mean :term:`loss` of each epoch:


def train(model, optimizer, scheduler, epochs):
    history = []
    for _ in epochs:
        losses = []
        for rows in torch.randperm(len(X)).split(32):
            loss = loss_fn(model(X[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        scheduler.step()
        history.append(torch.stack(losses).mean().item())
    return history


# %%
# First we run ten epochs without a break. Then we make the same run again, stop it after
# eight epochs, and save its weights:

undisturbed, optimizer, scheduler = make_run()
expected = train(undisturbed, optimizer, scheduler, range(10))

model, optimizer, scheduler = make_run()
train(model, optimizer, scheduler, range(8))
torch.save(model.state_dict(), folder / "weights-8.pt")

# %%
# The next day you go on. You make everything anew, load the weights, and run the last
# two epochs. What will the loss do?

weights = torch.load(folder / "weights-8.pt", map_location=device, weights_only=True)
resumed, new_optimizer, new_scheduler = make_run()
resumed.load_state_dict(weights)
from_weights = train(resumed, new_optimizer, new_scheduler, range(8, 10))

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
# The loss jumps, although every weight is the same as before the break. Something else
# was lost. We compare what the stopped run knew besides its weights with what a new run
# knows:

new_model, new_optimizer, new_scheduler = make_run()

print(f"learning rate:  {scheduler.get_last_lr()[0]:.4f}")
print(f"in a new run:   {new_scheduler.get_last_lr()[0]:.4f}")
print("Adam remembers:", list(optimizer.state[model[0].weight]))
print("in a new run:  ", list(new_optimizer.state[new_model[0].weight]))

# %%
# The scheduler had made the learning rate about ten times smaller. The new run begins
# with the large one. And Adam, the optimizer, had counted its :term:`steps <step>`
# (``step``). For every weight it had kept an average of past
# :term:`gradients <gradient>` (``exp_avg``) and one of their squares (``exp_avg_sq``).
# This is its :term:`optimizer state`; the new one has none.
#
# Two more things are lost, which the picture does not show. A random number generator
# goes through a fixed sequence of numbers, and now it is at another place in it: the
# next batches are different ones, and :term:`dropout` drops other values. And the file
# does not say how many epochs are done.
#
# **The weights are enough to predict. To go on, a run needs everything that changes
# while it runs.** A file that holds all of this is called a :term:`checkpoint`:
#
# .. drawing:: checkpoint.svg
#
#    A file with the weights holds one of the five things that a run needs; a checkpoint
#    holds all five.
#
# Resume bit for bit
# ------------------
#
# We stop the run once more after eight epochs. This time we save a dictionary with
# everything. ``torch`` has one generator of random numbers for the CPU, and one for
# each GPU; its state says which number comes next. So there are two entries. The second
# is a list, empty where there is no CUDA GPU.

model, optimizer, scheduler = make_run()
train(model, optimizer, scheduler, range(8))

checkpoint = {
    "epoch": 8,
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "scheduler": scheduler.state_dict(),
    "rng": torch.get_rng_state(),
    "gpu_rng": torch.cuda.get_rng_state_all(),
}
torch.save(checkpoint, folder / "epoch-8.pt")

# %%
# To resume, make everything anew, then restore each part:

checkpoint = torch.load(folder / "epoch-8.pt", map_location="cpu", weights_only=True)

model, optimizer, scheduler = make_run()
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
torch.set_rng_state(checkpoint["rng"])
torch.cuda.set_rng_state_all(checkpoint["gpu_rng"])

losses = train(model, optimizer, scheduler, range(checkpoint["epoch"], 10))

# %%
# Two details matter here. A whole checkpoint is loaded with ``map_location="cpu"``,
# because the state of a generator must be a tensor on the CPU, even for a generator of
# the GPU. (``optimizer.load_state_dict`` brings Adam's averages to the device of the
# weights by itself.) And the generators come last, because ``make_run`` draws random
# numbers, too.
#
# Is it the same run now? A similar loss proves nothing. We compare all weights with
# those of the run without a break, to the last digit:


def same_weights(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


print("resumed with the weights alone: ", same_weights(resumed, undisturbed))
print("resumed with the checkpoint:    ", same_weights(model, undisturbed))

# %%
# The weights alone led to another run. On a CPU the checkpoint brings back the same
# bits. (On a GPU some operations add their numbers in varying order, so even two runs
# without a break may differ in the last digits: PyTorch's notes on `reproducibility
# <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__. And on an Apple or
# Intel GPU expect ``False`` above and *another run* below: ``torch.cuda`` does not know
# their generators. The package's functions, further on, do.)
#
# Are optimizer, scheduler and generators all needed? We leave out one at a time. In the
# last row nothing is left out, but the generators are restored too early, before
# ``make_run``:

# fold: Resume with one part left out


def resume_without(left_out="", generators_first=False):
    """Resume from the checkpoint; say whether the weights are those without a break."""

    def restore_generators():
        torch.set_rng_state(checkpoint["rng"])
        torch.cuda.set_rng_state_all(checkpoint["gpu_rng"])

    if generators_first:
        restore_generators()
    parts = dict(zip(("model", "optimizer", "scheduler"), make_run(), strict=True))
    saved = torch.load(folder / "epoch-8.pt", map_location="cpu", weights_only=True)
    for name, part in parts.items():
        if name != left_out:
            part.load_state_dict(saved[name])
    if left_out != "generators" and not generators_first:
        restore_generators()
    train(*parts.values(), range(8, 10))
    return (
        "same weights" if same_weights(parts["model"], undisturbed) else "another run"
    )


print("nothing left out:         ", resume_without())
for part in ("optimizer", "scheduler", "generators"):
    print(f"{'without the ' + part + ':':<26}", resume_without(part))
print("generators restored first:", resume_without(generators_first=True))

# %%
# All three are needed, and the order matters, too: ``make_run`` sets the :term:`seed`
# and draws the first weights of each layer, and then the restored state is gone.
# **Compare the weights: only that shows that a run goes on as if nothing had
# happened.**
#
# .. instructor-note::
#
#    The trap is to restore the generators right after ``torch.load``, and make the
#    model afterwards. Ask: which line draws the next random number? The last row of the
#    table above is that mistake.
#
# The package has the same, kept in functions. They find the global generators by
# themselves, those of Python, of NumPy and of an Apple GPU too. (Hand over a
# ``torch.Generator`` of your own as ``generator=``. Save one from NumPy's
# ``default_rng`` yourself.)

from gpulesson.checkpoint import load_checkpoint, resume, save_checkpoint

model, optimizer, scheduler = make_run()
train(model, optimizer, scheduler, range(8))
file = folder / "safe-8.safetensors"
save_checkpoint(file, model=model, optimizer=optimizer, scheduler=scheduler, epoch=8)

model, optimizer, scheduler = make_run()
saved = load_checkpoint(file)
done = resume(saved, model=model, optimizer=optimizer, scheduler=scheduler)
train(model, optimizer, scheduler, range(done, 10))
print("same weights:", same_weights(model, undisturbed))

# %%
# ``resume`` returns the number of epochs that are done. The file is not one of
# ``torch.save``: it is in the `safetensors
# <https://huggingface.co/docs/safetensors/index>`__ format, in which weights are
# published, and any program for that format can read its tensors. Why, you see below.
#
# How often should you save? After a crash, everything since the last checkpoint is done
# again.
#
# Stop in the middle, on a signal
# -------------------------------
#
# On a cluster, you say beforehand how long a run may take, and the system ends it when
# the time is over. Before that, it sends the program a *signal*, a short message with a
# number: ``SIGTERM`` asks it to end. A little later, after 30 seconds if nobody has set
# another time (`documentation of Slurm, KillWait
# <https://slurm.schedmd.com/slurm.conf.html#OPT_KillWait>`__), comes ``SIGKILL``, which
# no program can refuse. What does Python do when it is asked? This program wants to
# sleep for a minute, and then to save:

import subprocess
import sys

program = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60); print('saved')"]
)
program.terminate()  # sends SIGTERM
print("exit status:", program.wait())

# %%
# It ended at once, and saved nothing. The exit status says why: a minus and the
# signal's number, 15. (On Windows it is 1. Windows has no such signals.) It is like the
# announcement that a library closes in ten minutes: time enough to mark your page, if
# you listen. Python does not listen by itself.
#
# And one epoch of a large run may take hours, so we cannot wait for its end. To stop
# *within* an epoch, a checkpoint must know which batches are done, and the next run must
# shuffle the data in the same order to leave them out. ``AutoSave`` of the package does
# all this. We write a script, to start it in another Python. Its first lines make the
# model and data of above; its loop is this one:

# fold: The first lines of the script

first_lines = """
import sys
import time
import torch
from torch import nn
from gpulesson.long_runs.autosave import AutoSave
from gpulesson.data import Batches


def slow(inputs):
    time.sleep(0.05)  # as if the model were larger
    return inputs.clone()


torch.set_num_threads(1)
torch.manual_seed(0)
layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
model = nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
loss_fn = nn.MSELoss()

X = torch.randn(320, 8)
y = X.sin().sum(dim=1, keepdim=True)
loader = Batches(X, y, batch_size=32, shuffle=True, transform=slow)

name = sys.argv[1]
run = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
"""

# %%

loop = """
with AutoSave(name, **run, every_steps=5) as saves:
    for epoch in saves.epochs(4):
        print("epoch", epoch, flush=True)
        for inputs, targets in saves.batches(loader):
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            saves.step()
        scheduler.step()

torch.save(model.state_dict(), name + ".pt")
"""
_ = (folder / "run.py").write_text(first_lines + loop)

# %%
# Three things are new in the loop. ``saves.epochs`` counts the epochs, ``saves.batches``
# hands out the batches, and ``saves.step()`` comes after each step: it saves every five
# steps, and it looks if a signal came. The checkpoints go into a folder, which has the
# name that we start the script with. First we let it run to its end, in this Python:

with patch.object(sys, "argv", ["run.py", str(folder / "undisturbed")]):
    exec(first_lines + loop, {})

# %%
# Now the same run in a Python of its own, with another name. As soon as it says that
# epoch 2 begins, we send it the signal:

# fold: A helper that starts the script, and may send it a signal


def start(name, stop_in=None):
    """Run the script, show what it prints, and ask it to end in one of its epochs."""
    with subprocess.Popen(
        [sys.executable, "run.py", name],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        for line in program.stdout:
            print(line, end="")
            if line.strip() == f"epoch {stop_in}":
                program.terminate()  # sends SIGTERM
    print("exit status:", program.returncode)


# %%

start("stopped", stop_in=2)

# %%
# It finished its step, saved, and ended. An exit status of 128 and the signal's number,
# so 143, is the custom for a program that ended because of a signal. (On Windows it ended
# at once, and its last checkpoint is up to five steps old.) On a cluster you would now
# ask for more time, and give the same command again. Which epoch will it print first?

start("stopped")

# %%
# Epoch 2 once more, as only some of its ten batches were done; the first line tells how
# many. They were loaded again and left out, so that the random numbers are at the right
# place, too. Is it the same run?

one = torch.load(folder / "undisturbed.pt", weights_only=True)
other = torch.load(folder / "stopped.pt", weights_only=True)
print("same weights:", all(torch.equal(one[key], other[key]) for key in one))
print("checkpoints:", len(list((folder / "stopped").glob("*.safetensors"))))

# %%
# The same bits. **On a cluster, save every few minutes and on a signal, and let the same
# command go on.** The folder does not fill up: the last three checkpoints stay, or as
# many as you say with ``keep=``. If saving takes long because the model is large,
# ``background=True`` copies it to the :term:`host memory`, and writes the file from there
# while the training goes on.
#
# (Ask your cluster to send its signal early enough, to the program itself. With Slurm,
# ``--signal=TERM@120`` sends it two minutes before the end, but only to what ``srun``
# started: so write ``srun python run.py`` into your batch script. And with ``fit`` of
# lesson 5, the whole loop becomes ``fit(…, autosave=saves)``.)
#
# .. question:: After which signal can a program still save?
#
#    - ``SIGKILL``.
#
#      No. The system ends the program, which learns nothing of it. Then you have what was
#      saved before.
#
#    - ``SIGTERM``.
#
#      Yes. It is a request. A program that listens can save first, and end then.
#
#    - None: a signal always ends a program at once.
#
#      No. That is what Python does by default. ``AutoSave`` puts a function of its own in
#      that place, while the loop runs.
#
# .. _hostile-file:
#
# A file that wants to run code
# -----------------------------
#
# ``torch.save`` uses ``pickle``, Python's own format for objects. Such a file can hold
# more than data. It can say: *call this function with these arguments*. We make a file
# that says so. Its function makes an empty file called ``marker``; it could as well
# delete all your files. We load it first with ``weights_only=True``, then without:

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
# The first load stops with an error. The second one calls the function, without a word.
# **Load with** ``weights_only=True``\ **.** It accepts tensors, plain values and a
# short list of harmless classes, which is enough for a checkpoint like ours, and refuses
# everything else. It has been the default since PyTorch 2.6 (`release notes
# <https://github.com/pytorch/pytorch/releases/tag/v2.6.0>`__). Keep PyTorch up to date:
# two known holes in this protection were closed in `2.6
# <https://github.com/advisories/GHSA-53q9-r3pm-6pq6>`__ and `2.10
# <https://github.com/advisories/GHSA-63cw-57p8-fm3p>`__.
#
# A harmless file is refused, too, if it holds a whole model instead of a
# ``state_dict``, or a NumPy array. Do not switch the protection off to get rid of the
# error: ask the author for the ``state_dict``, or for tensors.
#
# Better still is a file that cannot say such a thing. A safetensors file holds names,
# shapes and numbers, and nothing to call. ``save_checkpoint`` writes one, and writes all
# that is no tensor as JSON, which is text; ``export_weights`` and ``import_weights`` of
# ``gpulesson.weights`` do it for weights alone.
#
# Notice a damaged file
# ---------------------
#
# Disks and networks make mistakes, rarely. A file is a row of bytes, and a byte has
# eight bits, each 0 or 1. We flip one bit of the first weight, in the part that says
# how large the number is: in the file of ``torch.save``, and in the checkpoint of the
# package. Will loading notice?

# fold: A helper that flips a bit of the first weight


def flip_one_bit(path, weight):
    """Flip one bit of a file: in the last byte of this number, which has the exponent."""
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 3] ^= 64
    path.write_bytes(content)


# %%

from gpulesson.checkpoint import CheckpointError

weights = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
flip_one_bit(folder / "weights.pt", weights["0.weight"][0, 0])
flipped = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
print("before:", weights["0.weight"][0, 0], "after:", flipped["0.weight"][0, 0])

damaged = shutil.copy(file, folder / "safe-9.safetensors")
flip_one_bit(damaged, saved.model["0.weight"][0, 0])
try:
    load_checkpoint(damaged)
except CheckpointError as error:
    print("\n".join(textwrap.wrap(str(error).replace(str(folder), "…"), 75)))

# %%
# The first weight now has 36 digits before the point (this is what ``e+35`` means), and
# ``torch.load`` said nothing. ``load_checkpoint`` refused the file: ``save_checkpoint``
# writes a *digest* into it, a number computed from all its bytes, like a fingerprint.
# Loading computes it again and compares. (It finds accidents. An attacker would compute
# a new digest.)
#
# A crash can also come *while* a file is being written. So ``save_checkpoint`` writes
# to a file with another name, and renames it when it is complete; until then the
# checkpoint from before is untouched. If a file is damaged all the same, ``latest``,
# which looks for the checkpoint of a run that got furthest, skips it:

import warnings

from gpulesson.checkpoint import latest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of each file that it skips
    print("resume from", latest(folder).name)

# %%
# It found the last checkpoint that is whole. **Keep more than one checkpoint**, in case
# the last is damaged. Now we delete the folder of this lesson:

shutil.rmtree(folder)

# %%
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
#       the checkpoint, if there is one. Take ``torch.save`` and ``torch.load``, or
#       ``gpulesson.checkpoint`` (without ``scheduler=``: this run has none).
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
#    - Save ``state_dict()``. To load, make the same model, then call
#      ``load_state_dict``.
#    - Give ``map_location`` whenever you load: ``"cpu"`` is always right, ``device`` is
#      convenient for small weights. The model stays where it is.
#    - Let the machine name the folder: ``SCRATCH``, or else a folder in the user's home.
#      Never write one person's home into a script.
#    - A checkpoint holds model, optimizer, scheduler, epoch and random states. Compare
#      the weights to see that it works.
#    - On a cluster, let ``AutoSave`` save every few steps and when a signal comes. The
#      same command then goes on in the middle of the epoch.
#    - ``weights_only=True`` refuses files that ask for code to be run, as far as is
#      known. Leave it on, and keep PyTorch up to date. A safetensors file cannot ask.
#    - A plain file often does not show that it is damaged. A digest does.
#
# **Next:** :doc:`/lessons/07_common_mistakes` breaks things on purpose, so that you know
# the messages.

"""
Save, load, resume
==================

Keep what a training has learned, load it on another machine, and go on after a crash
as if nothing had happened.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - What do I save, and where?
      - Why can a file that I made on a GPU not be loaded on my laptop?
      - Is it safe to load a file from somebody else?
      - Why does a resumed training go another way?

   .. objectives::

      - Save and load a ``state_dict``, with a path that is right on every machine.
      - Load a file from a GPU on a machine without one.
      - Say what ``weights_only`` protects from, and see it refuse a hostile file.
      - Resume a training bit for bit, and prove it by comparing.
      - Notice a damaged file.
"""

# %%
# A training can be cut off at any time: by a crash, by the end of a cluster job, by a
# laptop's lid. What was not saved is lost. This lesson saves first the weights, then
# everything.

import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from gpulesson import practice
from gpulesson.checkpoint import latest, load_checkpoint, resume, save_checkpoint
from gpulesson.data import Batches, regression_data
from gpulesson.device import choose_device, tensor_devices
from gpulesson.models import MLP

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
device = choose_device()
print("computing on", device, "· PyTorch", torch.__version__)

# %%
# A path that is right on every machine
# -------------------------------------
#
# .. covers:: S0.3
#
# Many scripts carry the home folder of their author. Better: a folder named by the
# environment, with a fallback. Clusters often set ``SCRATCH`` for large files;
# elsewhere the home folder's ``.cache`` will do. In there we make a folder of our own,
# which the last cell of this lesson deletes. :class:`pathlib.Path` joins the parts the
# right way on each system.

base = Path(os.environ.get("SCRATCH") or Path.home() / ".cache")
base.mkdir(parents=True, exist_ok=True)
runs = Path(tempfile.mkdtemp(prefix="gpulesson-06-", dir=base))

torch.manual_seed(0)
model = MLP(8, 16, 1).to(device)
torch.save(model.state_dict(), runs / "weights.pt")

for name, tensor in model.state_dict().items():
    print(f"{name:<18} {tuple(tensor.shape)!s:<9} {tensor.dtype}")
print("saved", (runs / "weights.pt").stat().st_size, "bytes")

# %%
# A ``state_dict`` is a dictionary: the names of the parameters and buffers, and their
# numbers. It holds no code and no structure. To use it you make the same model first,
# then fill it:

loaded = torch.load(runs / "weights.pt", weights_only=True)
copy = MLP(8, 16, 1).to(device)
copy.load_state_dict(loaded)

probe = torch.rand(5, 8, device=device)
print("same outputs:", torch.equal(model(probe), copy(probe)))

# %%
# .. _cuda-file:
#
# From a GPU to a machine without one
# -----------------------------------
#
# .. covers:: S0.4
#
# A tensor is saved together with the name of its device, and loading brings it back to
# that device, if there is one. We save from a GPU (a practice GPU, where there is no
# other), and load in a new process from which all GPUs are hidden. That process sees
# what a laptop without a GPU sees:

practice.start()
torch.save(MLP(8, 16, 1).to("cuda").state_dict(), runs / "from-gpu.pt")
practice.stop()


def without_gpu(code):
    """Run a line of Python in a process that sees no GPU; return its last line."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", f"import torch; {code}"],
        cwd=runs,
        env=environment,
        capture_output=True,
        text=True,
    )
    return (done.stdout + done.stderr).strip().splitlines()[-1]


print(without_gpu("torch.load('from-gpu.pt', weights_only=True)"))

# %%
# The message is long, and contains its own remedy: ``map_location`` says where the
# tensors shall go *while* they are loaded. Calling ``.to("cpu")`` afterwards is no
# substitute, because there is no afterwards:

print(
    without_gpu(
        "state = torch.load('from-gpu.pt', weights_only=True, map_location='cpu');"
        "print(state['layers.0.weight'].device)"
    )
)

# %%
# ``map_location="cpu"`` works everywhere, and a good habit follows from it: load to the
# CPU, then let ``load_state_dict`` copy the numbers to wherever the model is. The
# file's device no longer matters:

copy.load_state_dict(
    torch.load(runs / "from-gpu.pt", weights_only=True, map_location="cpu")
)
print("the model stayed on", set(tensor_devices(copy).values()))

# %%
# .. _hostile-file:
#
# A file that wants to run code
# -----------------------------
#
# ``torch.save`` uses Python's pickle, and a pickle may contain an instruction to call
# any function. Here is a hostile file that does no harm: if it is obeyed, it creates
# an empty file called ``marker``. It could as well have deleted your home folder.


class Hostile:
    def __reduce__(self):
        return (Path.touch, (marker,))


marker = runs / "marker"
marker.unlink(missing_ok=True)
torch.save({"weights": Hostile()}, runs / "hostile.pt")

try:
    torch.load(runs / "hostile.pt", weights_only=True)
except Exception as error:
    print(type(error).__name__, "·", str(error).splitlines()[0][:88])
print("after weights_only=True, the marker exists: ", marker.exists())

torch.load(runs / "hostile.pt", weights_only=False)
print("after weights_only=False, the marker exists:", marker.exists())

# %%
# ``weights_only=True`` accepts tensors, plain values and a short list of harmless
# classes, and refuses everything else. It has been the default since PyTorch 2.6
# (`release notes <https://github.com/pytorch/pytorch/releases/tag/v2.6.0>`__). Older
# code that sets it to ``False`` to get rid of an error runs whatever the file's
# author wanted.
#
# Why weights are not enough
# --------------------------
#
# Now a training is interrupted. It has a dropout layer, shuffles its data, lowers its
# learning rate as it goes, and uses Adam, which remembers earlier gradients. First,
# undisturbed:

X, y = regression_data(samples=320, features=8, noise=0.1, seed=3)
X, y = X.to(device), y.to(device)


def make_parts():
    """Everything that has a state: model, optimizer, scheduler, shuffling generator."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        MLP(8, 32, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    generator = torch.Generator(device=device).manual_seed(0)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "generator": generator,
    }


def run(model, optimizer, scheduler, generator, epochs):
    """Train over the given epochs; return the mean loss of each."""
    history = []
    for _ in epochs:
        losses = []
        for inputs, targets in Batches(
            X, y, batch_size=32, shuffle=True, generator=generator
        ):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        scheduler.step()
        history.append(torch.stack(losses).mean())
    return torch.stack(history).tolist()


undisturbed = make_parts()
expected = run(**undisturbed, epochs=range(8))
print("undisturbed:", [round(loss, 4) for loss in expected])

# %%
# The second run is stopped after four epochs. It saves twice: its weights, as above,
# and a checkpoint with everything:

stopped = make_parts()
run(**stopped, epochs=range(4))
torch.save(stopped["model"].state_dict(), runs / "epoch-4-weights.pt")
save_checkpoint(runs / "epoch-4.pt", **stopped, epoch=4)

weights_only_parts = make_parts()
weights_only_parts["model"].load_state_dict(
    torch.load(runs / "epoch-4-weights.pt", weights_only=True)
)
from_weights = run(**weights_only_parts, epochs=range(4, 8))

complete_parts = make_parts()
finished = resume(load_checkpoint(runs / "epoch-4.pt"), **complete_parts)
from_checkpoint = run(**complete_parts, epochs=range(finished, 8))

for name, losses in (
    ("undisturbed", expected[4:]),
    ("weights alone", from_weights),
    ("checkpoint", from_checkpoint),
):
    print(f"{name:<14}", [f"{loss:.6f}" for loss in losses])

# %%
# The weights alone start where they left off and go another way: the optimizer has
# forgotten, the learning rate is back at its beginning, the dice fall differently. The
# checkpoint holds all of that. How equal is equal? We compare the bits of each weight:


def same_bits(one, other):
    return [x.cpu().numpy().tobytes() for x in one["model"].state_dict().values()] == [
        x.cpu().numpy().tobytes() for x in other["model"].state_dict().values()
    ]


print(
    "weights alone, same bits as undisturbed:",
    same_bits(weights_only_parts, undisturbed),
)
print(
    "checkpoint,    same bits as undisturbed:", same_bits(complete_parts, undisturbed)
)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(range(1, 9), expected, label="undisturbed", linewidth=5, alpha=0.35)
axes.plot(range(5, 9), from_weights, "o--", label="resumed from weights alone")
axes.plot(range(5, 9), from_checkpoint, "o-", label="resumed from a checkpoint")
axes.axvline(4.5, color="gray", linestyle=":")
axes.set(
    xlabel="epoch",
    ylabel="mean squared error",
    title="One training, interrupted after epoch 4",
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %%
# On a CPU the two are equal to the last bit. On a GPU some operations add in varying
# order, and the last digits may differ even between two undisturbed runs; PyTorch's
# notes on `reproducibility
# <https://docs.pytorch.org/docs/stable/notes/randomness.html>`__ say which. What the
# package's checkpoint holds:

checkpoint = load_checkpoint(runs / "epoch-4.pt")
print("epochs finished:", checkpoint.epoch)
print("model:    ", len(checkpoint.model), "tensors")
print(
    "optimizer:",
    len(checkpoint.optimizer["state"]),
    "parameters with",
    list(checkpoint.optimizer["state"][0]),
)
scheduled, (rate,) = (checkpoint.scheduler[key] for key in ("last_epoch", "_last_lr"))
print(f"scheduler: after {scheduled} steps, rate {rate:.6f}")
print("random number generators:", list(checkpoint.rng), "and the loader's own")

# %%
# A damaged file
# --------------
#
# Disks and networks make mistakes, rarely. We make some on purpose: one bit flipped, at
# a random place, a hundred times. What do plain files do, and what does the package's
# checkpoint?


def flip_one_bit(source, target, rng):
    content = bytearray(source.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    target.write_bytes(content)


def outcomes(source, load):
    """Flip bits of a file, one at a time, and count what loading makes of it."""
    expected = load(source)
    rng = random.Random(0)
    counts = {"wrong weights": 0, "the right ones": 0, "refused": 0}
    for _ in range(100):
        flip_one_bit(source, runs / "flipped.pt", rng)
        try:
            weights = load(runs / "flipped.pt")
            right = all(torch.equal(weights[name], expected[name]) for name in expected)
            counts["the right ones" if right else "wrong weights"] += 1
        except Exception:
            counts["refused"] += 1
    return counts


def plainly(path):
    return torch.load(path, weights_only=True, map_location="cpu")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print("torch.load:     ", outcomes(runs / "epoch-4-weights.pt", plainly))
    print(
        "load_checkpoint:",
        outcomes(runs / "epoch-4.pt", lambda path: load_checkpoint(path).model),
    )

# %%
# A wrong weight is a number like any other, and no error says so. The package writes
# a digest (SHA-256, a fingerprint of the content) at the end of the file, and checks
# it before it believes a byte. It also writes each checkpoint beside the old one, and
# renames it only when it is complete, so that a crash *while saving* costs the new
# checkpoint, and not the old one. ``torch.load`` still reads the file, should you one
# day not have this package:

print(sorted(torch.load(runs / "epoch-4.pt", weights_only=True)))

# %%
# After a crash you want the newest checkpoint that is whole, and ``latest`` finds it;
# it warns of each damaged one that it passes over, by name (silenced here). Here the
# newest file is cut in half, as after a full disk:

save_checkpoint(runs / "epoch-5.pt", **stopped, epoch=5)
content = (runs / "epoch-5.pt").read_bytes()
(runs / "epoch-5.pt").write_bytes(content[: len(content) // 2])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns about each file that it passes over
    print("resume from", latest(runs, pattern="epoch-?.pt").name)

shutil.rmtree(runs)

# %%
# Exercise
# --------
#
# .. exercise:: Resume without a trace
#    :minutes: 15
#    :difficulty: medium
#    :starter: 06_resume.py
#
#    The script trains for six epochs, once undisturbed and once stopped after three,
#    and compares the two in the end. It saves the weights alone.
#
#    1. **Predict:** name everything in this script that has a state besides the
#       weights.
#    2. Run it. It says ``another run``.
#    3. Save and restore what you named in step 1, with ``torch.save`` and
#       ``torch.load`` or with ``gpulesson.checkpoint``.
#    4. Run it again, until it says ``the same bits``.
#
#    To check it: ``python -m gpulesson check 06_resume.py``.
#
#    You are done when it does, and the script still loads with ``weights_only=True``.
#
# .. solution::
#    :file: 06_resume.py
#
#    Three things besides the weights: Adam's memory, the epoch, and the random number
#    generator that dropout and shuffling draw from.
#
# .. keypoints::
#
#    - Save ``state_dict()``, build paths with ``pathlib`` from the environment, never
#      from your own home folder.
#    - ``map_location="cpu"`` loads a GPU's file anywhere; ``load_state_dict`` then
#      copies to where the model is.
#    - ``weights_only=True`` accepts tensors, plain values and a few harmless classes
#      only; keep it that way.
#    - Resuming needs the optimizer, the scheduler, the epoch and the random states;
#      comparing bits shows whether it worked.
#    - A digest notices a damaged file, which a plain file does not.
#
# **Next:** :doc:`/lessons/07_common_mistakes` breaks things on purpose.

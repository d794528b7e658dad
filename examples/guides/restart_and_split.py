"""
Many GPUs: restart and split
============================

Let a run of several processes go on after one of them died, and split a model that does
not fit on one :term:`GPU`.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 14 </lessons/14_many_gpus>`: :term:`ranks <rank>`, ``torchrun``, and
#      ``DistributedDataParallel``
#    - :doc:`Lesson 6 </lessons/06_save_load_resume>`: :term:`checkpoints <checkpoint>`
#
# Each part has its own script, of PyTorch only. The folded cell puts the
# scripts into ``folder``. ``torchrun`` below runs one of them in two processes: on two
# GPUs, or else on two :term:`practice GPUs <practice GPU>` of :doc:`the course's
# package </setup>`, with PyTorch's :term:`Gloo` instead of :term:`NCCL`. Afterwards it
# prints what each process has written.

# fold: Put the two scripts into a folder
import shutil
import tempfile
import warnings
from pathlib import Path

import gpulesson

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
places = [".", "scripts", "../scripts", Path(gpulesson.__file__).with_name("scripts")]
for name in ("restart_ddp.py", "split_fsdp.py"):
    found = [Path(place, name) for place in places if Path(place, name).is_file()]
    if not found:
        raise FileNotFoundError(f"download {name} from this page into {Path.cwd()}")
    shutil.copy(found[0], folder)
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process loads

# %%

import subprocess
import sys

import torch

real = torch.cuda.device_count() >= 2
print("two GPUs, NCCL" if real else "two practice GPUs, Gloo instead of NCCL")


def torchrun(options, script):
    words = ["torch.distributed.run", *options.split(), "--redirects=1"]  # to files
    words += [f"--log-dir={script}.log"]
    words += [script] if real else ["-m", "gpulesson", "practice", "--force", script]
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    for log in sorted(folder.glob(f"{script}.log/*/*/*/stdout.log")):
        print(log.read_text(), end="")
    print(done.stderr if done.returncode else "", end="")


# %%
# Go on after a process died
# --------------------------
#
# .. _survive:
#
# In a long run, a process dies sooner or later. Then the others cannot go on: they wait
# for its :term:`gradients <gradient>`. So ``torchrun`` ends them all. With
# ``--max-restarts 1`` it starts all of them again, once. They begin at the first line of
# the script. What do they need, in order not to begin at the first :term:`epoch`?
#
# A checkpoint, as in lesson 6. In ``restart_ddp.py``:
#
# .. literalinclude:: /../examples/scripts/restart_ddp.py
#    :language: python
#    :caption: restart_ddp.py
#    :start-at: def save(
#    :end-before: def main
#
# After each epoch rank 0 calls ``save``. It first writes to another name. So a process
# that dies while it saves leaves the checkpoint before it whole. At the start all ranks
# call ``load``, which returns how many epochs are done. The loop begins there:
#
# .. literalinclude:: /../examples/scripts/restart_ddp.py
#    :language: python
#    :caption: restart_ddp.py
#    :start-at: done = load(
#    :end-at: save(epoch + 1
#    :dedent: 4
#
# **What a run changes from epoch to epoch has to be in the checkpoint, or to follow from
# the number of the epoch.** The model and the :term:`optimizer` are in it. A
# :term:`scheduler`
# and a ``GradScaler`` would have to be, as in lesson 6. Lesson 6 saves the states of the
# random numbers, too. Here each rank has its own state, and rank 0 saves for all. So
# the order of the rows and every random draw follow from the epoch: the sampler and the
# random numbers begin each epoch with a known :term:`seed`, of each rank another one.
#
# To try it, rank 1 kills itself in the third epoch, as the system kills a process that
# takes too much memory. It does so in the first attempt only. ``torchrun`` tells each
# process which attempt it is, in ``TORCHELASTIC_RESTART_COUNT``.
#
# .. script:: restart_ddp.py
#
# How many epochs will be done when the second attempt begins?

torchrun("--standalone --nproc-per-node 2 --max-restarts 1", "restart_ddp.py")

# %%
# Two. The third was not finished, so it is done again from its start. In the checkpoint
# there is now the last one:

file = folder / "checkpoint.pt"
state = torch.load(file, map_location="cpu", weights_only=True)
print(state["epochs"], "epochs,", list(state["model"]))

# %%
# Did the death change what was learned? We train the same model once more, here, in one
# process and without a stop:

sys.path.insert(0, str(folder))
from restart_ddp import BATCH_SIZE, EPOCHS, make_data, make_model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(make_data(), num_replicas=1, rank=0)
loader = DataLoader(make_data(), BATCH_SIZE, sampler=sampler)
model, loss_fn = make_model(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss_fn(model(inputs), labels).backward()
        optimizer.step()

# %%

alone, restarted = model.state_dict(), state["model"]
gaps = [(alone[name] - restarted[name]).abs().max().item() for name in alone]
print(f"largest difference of a weight: {max(gaps):.0e}")

# %%
# No: the difference is rounding in float64. **A run of many processes needs checkpoints
# more than any other:** with ten times as many machines, a failure comes about ten times
# as often. If a whole machine fails, its ``torchrun`` is gone, too, and the cluster has
# to start the job again: :doc:`/cluster` has scripts that save within an epoch and stop
# in good order.
#
# Split a model that does not fit
# -------------------------------
#
# .. _sharded:
#
# With :term:`DDP` each GPU holds the whole model, its gradients and the
# :term:`optimizer state`.
# :term:`FSDP` splits all three: each process keeps a part of every :term:`parameter`, a
# *shard*. Before a layer computes, its parts are collected. Afterwards what belongs to
# the others is thrown away. In PyTorch it is a call for each layer, and one for the
# model. In ``split_fsdp.py``, for PyTorch 2.6 or newer:
#
# .. literalinclude:: /../examples/scripts/split_fsdp.py
#    :language: python
#    :caption: split_fsdp.py
#    :pyobject: split
#
# ``fully_shard`` moves the layers to the GPU, one by one, so do not move the model
# yourself. The policy is FSDP's :term:`mixed precision`: layers are collected and
# computed in :term:`bfloat16`. The shards, which the optimizer changes, stay in float32.
#
# The optimizer is made after the split, because it has to hold the shards. The training
# loop is as you know it. No process has the whole model, so each saves its own shards,
# with ``torch.distributed.checkpoint``:
#
# .. literalinclude:: /../examples/scripts/split_fsdp.py
#    :language: python
#    :caption: split_fsdp.py
#    :start-at: def train(
#    :end-before: def print_memory
#
# So the order is: make, split, optimizer, :term:`steps <step>`, save. In ``main``:
#
# .. literalinclude:: /../examples/scripts/split_fsdp.py
#    :language: python
#    :caption: split_fsdp.py
#    :start-at: model = make_model()  # on the CPU
#    :end-at: save(model, optimizer)
#    :dedent: 4
#
# .. script:: split_fsdp.py
#
# The model has four layers of 1,024 × 1,024 weights. With Adam it needs four numbers for
# each parameter: the parameter, its gradient, and two of the optimizer. How much is that?

import runpy

make_layers = runpy.run_path(str(folder / "split_fsdp.py"))["make_model"]
parameters = sum(values.numel() for values in make_layers().parameters())
needed = 4 * 4 * parameters / 2**20  # four numbers of 4 bytes
print(f"{needed:.1f} MiB, half of it {needed / 2:.1f}")

# %%
# And how much does each of two processes hold after a step, and at most?

torchrun("--standalone --nproc-per-node 2", "split_fsdp.py")

# %%
# *Whole* is the model on one GPU, *split* its half with FSDP. The second number is the
# :term:`peak memory`, and it has to fit. Here it is half, too, because the optimizer's
# step makes it, and works on the shards only. (The room that a GPU's own libraries take
# is left out: it is the same for both.) **Eight processes would each keep an eighth.**
# While a layer computes, that layer is whole on each GPU, and often the next one, too.
# The :term:`activations <activation>` are not split: they belong to each process's own
# rows, so :term:`activation checkpointing` is often used as well. The price is
# messages: the layers travel in every :term:`forward pass` and in every :term:`backward
# pass`.
#
# Each process has written a file with its shards. To load them, make a model, and let
# ``dcp.load`` fill its values. In a run with FSDP you do that after ``split``, with as
# many processes as you like. Here a plain model on the CPU gets all of them:

import torch.distributed.checkpoint as dcp

print(*sorted(path.name for path in (folder / "parts").iterdir()))
model, rows = make_layers(), torch.randn(8, 1024)
untrained = model(rows).square().mean().item()
state = {"model": model.state_dict()}
dcp.load(state, checkpoint_id=folder / "parts")
model.load_state_dict(state["model"])
print(f"loss: {untrained:.4f} untrained, {model(rows).square().mean():.4f} loaded")

# %%
# These are the weights that two processes have learned, put together again: their
# :term:`loss` is smaller.
#
# .. fold:: Going further: very large models, several machines, saving while it trains
#
#    - The script makes the whole model in the :term:`host`'s memory, in each process.
#      `PyTorch's tutorial
#      <https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html>`__ makes it on
#      the :term:`device` ``meta`` first, without any memory.
#    - ``fully_shard(block, reshard_after_forward=False)`` keeps a block whole until its
#      backward pass: fewer messages, and more memory. ``set_modules_to_forward_prefetch``
#      fetches a later block early (`PyTorch's page
#      <https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html>`__).
#      ``clip_grad_norm_`` works as on one GPU.
#    - *Hybrid sharding* keeps a whole model in each machine, split among its GPUs. Then
#      only gradients travel between machines. A *mesh* is a table of all ranks. Give
#      ``fully_shard`` a `mesh of two dimensions
#      <https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html>`__: a row
#      for each machine, a column for each of its GPUs.
#    - ``train_fsdp.py`` of :doc:`/cluster` saves and loads in this way and goes on with
#      another number of GPUs. `async_save
#      <https://docs.pytorch.org/docs/stable/distributed.checkpoint.html>`__ writes while
#      the run goes on.
#
# :doc:`Lesson 14 </lessons/14_many_gpus>` says when to choose which.

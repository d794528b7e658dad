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
# Both parts have a script of their own, of PyTorch only, and run it in two processes: on
# two GPUs, or else on two :term:`practice GPUs <practice GPU>`.
#
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
#    :start-at: def save(
#    :end-before: def main
#
# After each epoch rank 0 calls ``save``. It first writes to another name. So a process
# that dies while it saves leaves the checkpoint before it whole. At the start all ranks
# call ``load``, which returns how many epochs are done. The loop begins there:
#
# .. literalinclude:: /../examples/scripts/restart_ddp.py
#    :language: python
#    :start-at: done = load(
#    :end-at: save(epoch + 1
#    :dedent: 4
#
# To try it, rank 1 kills itself in the third epoch, as the system kills a process that
# takes too much memory. It does so in the first attempt only. ``torchrun`` tells each
# process which attempt it is, in ``TORCHELASTIC_RESTART_COUNT``.
#
# .. script:: restart_ddp.py
#
# How many epochs will be done when the second attempt begins?

# fold: A helper that runs a script in two processes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import gpulesson

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
two_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= 2


def find(name):
    """Find a script of the course: in this folder, beside it, or in the package."""
    package = Path(gpulesson.__file__).parent
    for place in (".", "scripts", "../scripts", package / "scripts"):
        if Path(place, name).is_file():
            return Path(place, name).resolve()
    raise FileNotFoundError(f"download {name} from this page into {Path.cwd()}")


def launch(name, *options):
    """Run a script in two processes by torchrun, and print what they print, by rank."""
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    words += [] if two_gpus else ["-m", "gpulesson", "practice", "--force"]
    done = subprocess.run(
        [sys.executable, "-m", *words, str(find(name))],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    print("two GPUs, NCCL" if two_gpus else "two practice GPUs, Gloo instead of NCCL")
    lines = re.findall(r"rank \d+.*?(?=rank \d+|$)", done.stdout, re.M)  # may be glued
    print(*sorted(lines) or [done.stderr], sep="\n")


# %%

launch("restart_ddp.py", "--max-restarts", "1")

# %%
# Two. The third was not finished, so it is done again from its start. In the checkpoint
# there is now the last one:

state = torch.load(folder / "checkpoint.pt", map_location="cpu")
print(state["epochs"], "epochs,", list(state["model"]))

# %%
# Did the death change what was learned? We train the same model once more, here, in one
# process and without a stop. The order of the rows follows from the number of the epoch,
# so it is the same:

sys.path.insert(0, str(find("restart_ddp.py").parent))
from restart_ddp import BATCH_SIZE, EPOCHS, make_data, make_model

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

gaps = [
    (value - state["model"][name]).abs() for name, value in model.state_dict().items()
]
print(f"largest difference of a weight: {max(gap.max().item() for gap in gaps):.0e}")

# %%
# No: the difference is rounding in float64. **A run of many processes needs checkpoints
# more than any other:** with ten times as many machines, a failure comes about ten times
# as often. Random numbers are not in this checkpoint. With :term:`dropout`, a run that
# was restarted draws others than one that was not. If a whole machine fails, its
# ``torchrun`` is gone, too, and the cluster has to start the job again: :doc:`/cluster`
# has scripts that save within an epoch and stop in good order.
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
# model. In ``split_fsdp.py``:
#
# .. literalinclude:: /../examples/scripts/split_fsdp.py
#    :language: python
#    :pyobject: split
#
# ``fully_shard`` moves the layers to the GPU, one by one, so do not move the model
# yourself. The policy is FSDP's :term:`mixed precision`: layers are collected and
# computed in :term:`bfloat16`. The shards, which the :term:`optimizer` changes, stay in
# float32.
#
# .. script:: split_fsdp.py
#
# The model has four layers of 1,024 × 1,024 weights. With Adam it needs four numbers for
# each parameter: the parameter, its gradient, and two of the optimizer. How much is that?

sys.path.insert(0, str(find("split_fsdp.py").parent))
from split_fsdp import make_model as make_layers

parameters = sum(values.numel() for values in make_layers().parameters())
print(
    f"{4 * 4 * parameters / 2**20:.1f} MiB, half of it {2 * 4 * parameters / 2**20:.1f}"
)

# %%
# And how much does each of two processes hold after a :term:`step`?

launch("split_fsdp.py")

# %%
# *Whole* is the model on one GPU, *split* its half with FSDP. **Eight processes would
# each keep an eighth.** While a layer computes, that layer is whole on each GPU, and
# often the next one, too. The :term:`activations <activation>` are not split: they belong
# to each process's own rows, so :term:`activation checkpointing` is often used as well.
# The price is messages: the layers travel in every :term:`forward pass` and in every
# :term:`backward pass`.
#
# .. fold:: Going further: very large models, several machines, saving
#
#    - The script makes the whole model in the :term:`host`'s memory, in each process.
#      `PyTorch's tutorial
#      <https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html>`__ makes it on
#      the :term:`device` ``meta`` first, without any memory.
#    - *Hybrid sharding* keeps a whole model in each machine, split among its GPUs. Then
#      only gradients travel between machines. Give ``fully_shard`` a `mesh
#      <https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html>`__ of two
#      dimensions: machines, and GPUs of one.
#    - No process has the whole model, so each saves its shards: with
#      ``torch.distributed.checkpoint``, as ``train_fsdp.py`` of :doc:`/cluster` does. Its
#      `async_save
#      <https://docs.pytorch.org/docs/stable/distributed.checkpoint.html>`__ writes while
#      the run goes on.
#
# :doc:`Lesson 14 </lessons/14_many_gpus>` says when to choose which.

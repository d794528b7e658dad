"""
Many GPUs: restart and split
============================

Let a run of several processes survive one that dies, and split a model that does not fit
on one :term:`GPU`.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 14 </lessons/14_many_gpus>`: :term:`ranks <rank>`, ``torchrun``, and
#      ``DistributedDataParallel``
#    - :doc:`Lesson 6 </lessons/06_save_load_resume>`: :term:`checkpoints <checkpoint>`
#
# As in lesson 14, a helper runs a program in two processes, on two GPUs or else on two
# :term:`practice GPUs <practice GPU>`, and prints what each rank says:

# fold: The helper
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from gpulesson.data import load_fashion_mnist

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
real = torch.cuda.is_available() and torch.cuda.device_count() >= 2
LINE = re.compile(r"rank \d+.*?(?=rank \d+|$)", re.M)  # two may come at once


def launch(program, *options):
    """Run a program in two processes, by torchrun; print what they print, by rank."""
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    words += [] if real else ["-m", "gpulesson", "practice", "--force"]
    done = subprocess.run(
        [sys.executable, "-m", *words, program],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    print(*sorted(LINE.findall(done.stdout)), sep="\n")


# %%
# The task is lesson 14's, too: 1,001 images, and a model in float64.

data = load_fashion_mnist()
images = data.train_images[:1001].flatten(1).double() / 255
torch.save((images, data.train_targets[:1001]), folder / "images.pt")
print(f"{data.source}, {tuple(images.shape)}, on {'GPUs' if real else 'practice GPUs'}")

# %%
#
# Survive a process that dies
# ---------------------------
#
# .. _survive:
#
# In a long run, a process dies sooner or later. When one does, the others
# cannot go on: they wait for its :term:`gradients <gradient>`. So ``torchrun`` ends them
# all. With ``--max-restarts`` it then starts all of them again. They begin at the first
# line. What do they need, in order not to begin at the first :term:`epoch`?
#
# A checkpoint, as in lesson 6. ``gpulesson.long_runs.distributed`` has the pieces. (The
# scripts of :doc:`/cluster` have them in plain PyTorch.) ``processes`` does what the
# first lines of lesson 14's programs did. ``Parts`` gives each process its part of the
# same :term:`batches <batch>`, and a ``weight``. Multiply the mean :term:`loss` of a part
# by it, and DDP's mean is that of the whole batch. ``RankAutoSave`` saves once for all,
# and resumes on all. We write the program into a file, ``train.py``. First what it needs:

program = folder / "train.py"
setup = """\
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.long_runs.distributed import Parts, RankAutoSave, processes

folder = os.environ["RUN"]
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")  # 0 in the first, None if alone
images, labels = torch.load(Path(__file__).with_name("images.pt"))
dataset, loss_fn = TensorDataset(images, labels), nn.CrossEntropyLoss()
"""
print(f"train.py: {program.write_text(setup)} characters so far")

# %%
# Then what each process makes of it:

setup += """
def set_up(ranks):
    torch.manual_seed(0)
    layers = nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)
    model = nn.Sequential(*layers).double().to(ranks.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = Parts(len(dataset), batch_size=50, ranks=ranks)
    return model, optimizer, parts, DataLoader(dataset, batch_sampler=parts)
"""
print(f"train.py: {program.write_text(setup)} characters so far")

# %%
# And the loop. In the first attempt rank 1 kills itself (signal 9) at :term:`step` 13 of
# the second epoch, as the system kills a process that takes too much memory. (In
# the program, ranks, epochs and steps are counted from 0.)

loop = """
with processes() as ranks:
    model, optimizer, parts, loader = set_up(ranks)
    parallel = DistributedDataParallel(model)
    saved = {"model": model, "optimizer": optimizer, "every_steps": 5, "ranks": ranks}
    with RankAutoSave(folder, **saved) as saves:
        for epoch in saves.epochs(2):
            parts.set_epoch(epoch)
            for step, ((x, y), part) in enumerate(saves.batches(parts.weighted(loader))):
                if (attempt, ranks.rank, epoch, step) == ("0", 1, 1, 12):
                    os.kill(os.getpid(), 9)
                loss = loss_fn(parallel(x.to(ranks.device)), y.to(ranks.device))
                optimizer.zero_grad()
                (loss * part.weight).backward()
                optimizer.step()
                saves.step()
    print(f"rank {ranks.rank}: finished in attempt {attempt}, after {step + 1} steps")
    torch.save(model.state_dict(), f"{folder}.{ranks.rank}")
"""
print(f"train.py: {program.write_text(setup + loop)} characters")

# %%
# For comparison the same program runs as one process, without ``torchrun``. ``processes``
# allows that, and nothing kills it. Which attempt of the two processes will come to the
# end?

os.environ["RUN"] = str(folder / "one")
runpy.run_path(str(program))

os.environ["RUN"] = str(folder / "two")
launch("train.py", "--max-restarts", "1")

# %%
# The second attempt. ``torchrun`` told it so, by ``TORCHELASTIC_RESTART_COUNT``. It went
# on from the last checkpoint, at step 10 of the second epoch, and did 11 steps more. Are
# its weights those of one process that ran without interruption?

one, two = (torch.load(folder / f"{n}.0", map_location="cpu") for n in ("one", "two"))
gap = max((one[name] - two[name]).abs().max().item() for name in one)
print(f"largest difference of a weight: {gap:.0e}")

# %%
# Yes, except for rounding. **A run of many processes needs checkpoints more than
# any other:** with ten times as many machines, a failure comes about ten times as often.
# If a whole machine fails, its ``torchrun`` is gone, too. With a fixed number of
# machines, the cluster then has to start the job again: :doc:`/cluster`.
#
# Split a model that does not fit
# -------------------------------
#
# .. _sharded:
#
# With DDP each GPU holds the whole model, its gradients and the
# :term:`optimizer state`. If the model is too large for one GPU, ten GPUs with DDP do
# not help. Then split it: each process keeps a part of every :term:`parameter`. Before a
# layer computes, its parts are collected. Afterwards what belongs to the others is thrown
# away. PyTorch calls this *FSDP*, fully sharded data parallel; a shard is such a part. It
# is one call for each layer, and one for the model. Do not move the model yourself:
# ``fully_shard`` moves one layer at a time. (Each process makes the whole model in the
# :term:`host`'s memory before that. `PyTorch's tutorial
# <https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html>`__ shows how to
# avoid it.) The program begins like those of lesson 14:

split = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
"""

# %%
# How much memory will each process hold after a step, with four equal layers?

split += """
def held(shard):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    if shard:
        for layer in [*model, model]:
            fully_shard(layer)  # moves it to the GPU, and keeps a part
    else:
        model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 1024, device=device)).sum().backward()
    optimizer.step()
    return torch.cuda.memory_allocated() / 2**20

print(f"rank {rank}: copied {held(False):5.1f} MiB, split {held(True):5.1f} MiB")
dist.destroy_process_group()
"""
(folder / "split.py").write_text(split)
launch("split.py")

# %%
# Half. Parameters, gradients and Adam's two numbers are all split in two; with eight
# processes each would keep an eighth. While a layer computes, that layer is whole on each
# GPU, and often the next one, too. (*Copied* is the model without its wrapper. DDP would
# by default hold 16 MiB more: a copy of the gradients, to send.)
# The :term:`activations <activation>` are not split: they belong to each process's own
# rows. And what is saved in memory is paid with messages: the layers travel in every
# :term:`forward pass` and in every :term:`backward pass`.
#
# :doc:`Lesson 14 </lessons/14_many_gpus>` says when to choose which; :doc:`/cluster` has
# scripts for both.

"""
14 · Many GPUs
==============

Train one model on several :term:`GPUs <GPU>`, each with its own part of every
:term:`batch`, and show on two :term:`practice GPUs <practice GPU>` that they learn what
one GPU would have learned.

.. overview::
   :teaching: 35
   :exercises: 20

   .. questions::

      - What does each GPU hold, and what do they tell one another?
      - Which lines of my training script change?
      - Does it still learn the same?
      - When do more GPUs help?

   .. objectives::

      - Start a script with ``torchrun``, and say what rank and world size are.
      - Average gradients over two processes, and compare with the whole batch.
      - Change lesson 5's script so that it trains on all GPUs of a machine.
      - Show that two and four processes learn what one learns.
      - Choose between one GPU, DDP and the ways to split a model.
"""

# %%
# .. prereq::
#
#    - :doc:`Lesson 5 </lessons/05_fashion_mnist>`: a whole training script
#    - :doc:`Lesson 6 </lessons/06_save_load_resume>`: :term:`checkpoints <checkpoint>`
#    - :doc:`Lesson 13 </lessons/13_when_it_does_not_fit>`: :term:`gradients <gradient>`
#      that add up
#
# Thirty students correct a pile of exams. Each takes a part of the pile. In the end they
# compare notes, so that all of them know the result. Several GPUs train a model in the
# same way: each takes a part of the batch, and then they compare their gradients.
#
# .. drawing:: data_parallel.svg
#
# **Each GPU has a process of its own, with the whole model.** The copies begin equal. In
# every :term:`step` each process computes gradients from its own part. Then the processes
# average them, and make the same step. So the copies stay equal. This is *data
# parallel* training.
#
# Start one program several times
# -------------------------------
#
# You do not start these processes yourself. PyTorch's command ``torchrun`` does:
#
# .. code-block:: bash
#
#    torchrun --nproc-per-node 2 train.py
#
# It runs the same script twice. (Do not mind a warning between lines of stars: if you
# have not set ``OMP_NUM_THREADS``, ``torchrun`` sets it to 1, so that the processes do
# not compete for the cores of the CPU.) How does a process know which of the two it is?
# Its number, the :term:`rank`, is in an environment variable. Most scripts for several
# GPUs begin with these lines. A notebook is only one process, so we keep them as text,
# and write them into a file below:

# sphinx_gallery_thumbnail_path = 'drawings/data_parallel.svg'
start = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
"""

# %%
# - ``RANK`` is the number of this process among all, from 0. :term:`World size` says how
#   many there are.
# - ``LOCAL_RANK`` is its number on this machine. It chooses the GPU.
# - ``set_device`` makes it the default of this process.
# - ``init_process_group`` brings the processes together; with ``device_id`` it waits
#   until all of them are there. *NCCL* is NVIDIA's library that sends :term:`tensors
#   <tensor>` from GPU to GPU. ``destroy_process_group`` ends the connection, and comes
#   last.
#
# Now each process has a number, and we add them up. ``all_reduce`` is an
# :term:`all-reduce`: afterwards every process has the sum:

add = """\
number = torch.tensor(rank + 1.0, device=device)
dist.all_reduce(number)
print(f"rank {rank} of {world_size} on {device}: the sum is {number.item()}")
dist.destroy_process_group()
"""

# %%
# We write the program into a file, and start it twice. If there are fewer than two GPUs,
# the processes get practice GPUs: ``python -m gpulesson practice
# --nproc 2`` does the same as ``torchrun``. What do you expect to see?

# fold: A helper that starts a program in several processes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
real = torch.cuda.is_available() and torch.cuda.device_count() >= 2
LINE = re.compile(r"rank \d+.*?(?=rank \d+|$)", re.M)  # two may come at once
ERROR = re.compile(r"^.*\b(\w+Error: .*|Last error:|Multiple.*|Duplicate.*)$", re.M)


def launch(number, program):
    """Run a program in so many processes; print what they print, by rank."""
    (folder / "program.py").write_text(program)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    practice = ["gpulesson", "practice", "--force"]  # also where there is one GPU
    if real and number <= torch.cuda.device_count():
        words = [*torchrun, str(number), "program.py"]
    else:
        words = [*practice, "--nproc", str(number), "program.py"]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True
    )
    lines = sorted(LINE.findall(done.stdout))
    if done.returncode:
        lines += dict.fromkeys(ERROR.findall(done.stderr))
    print(*lines, sep="\n")


# %%

launch(2, start + add)

# %%
# 1 and 2 make 3, in both processes. Each is on a GPU of its own. **All processes run all
# lines.** If one of them does not come to ``all_reduce``, the others wait for it. Worse:
# if it skips one ``all_reduce``, its *next* one can meet the others' first. With as many
# numbers, they give a wrong sum and no error.
#
# .. question:: Only rank 0 runs the lines of ``add``, except for the last. What happens?
#
#    - Rank 0 prints the sum.
#
#      No. A sum over all processes needs all of them.
#
#    - Rank 0 waits for the others, and nothing is printed.
#
#      Yes. On GPUs it waits up to ten minutes, by default, then it stops with an error.
#      Of these lines, only ``print`` may stand below an ``if rank == 0:``.
#
#    - Each rank prints its own number.
#
#      No. The others skip these lines.
#
# Average the gradients
# ---------------------
#
# .. _average-gradients:
#
# Now a model. Its images are those of lesson 5, 1,001 of them. We take float64, with
# sixteen digits, so that rounding cannot hide a mistake. The file ``task.py`` has what is
# the same for one process and for many:

from gpulesson.data import load_fashion_mnist

data = load_fashion_mnist()
images = data.train_images[:1001].flatten(1).double() / 255
labels = data.train_targets[:1001]
torch.save((images, labels), folder / "images.pt")
print(f"{data.source}, {tuple(images.shape)}, on {'GPUs' if real else 'practice GPUs'}")

# %%

task = """\
from pathlib import Path
import torch
from torch import nn

images, labels = torch.load(Path(__file__).with_name("images.pt"))
sum_of_losses = nn.CrossEntropyLoss(reduction="sum")

def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)).double()

def batches(epoch):
    draw = torch.Generator().manual_seed(epoch)
    return torch.randperm(len(images), generator=draw).split(50)
"""
print(f"task.py: {(folder / 'task.py').write_text(task)} characters")

# %%
# ``batches`` cuts a shuffled order into batches of 50 rows. The last one has only one
# row, because 1,001 is 20 times 50 and one more. Remember this one.
#
# ``DistributedDataParallel``, *DDP* for short, wraps the model. It averages the gradients
# during ``backward``. Within ``no_sync`` it does not, so we can look at both. For the
# first batch of 50 rows we print one number of the gradient, that of the last layer's
# first bias. ``rank`` 0 takes the rows 0, 2, 4, … and rank 1 the rows 1, 3, 5, …:

average = """\
from task import *

model = make_model().to(device)
parallel = DistributedDataParallel(model, device_ids=[local_rank])
mine = batches(0)[0][rank::world_size]

def gradient():
    model.zero_grad()
    logits = parallel(images[mine].to(device))
    (sum_of_losses(logits, labels[mine].to(device)) / len(mine)).backward()
    return model[2].bias.grad[0].item()

with parallel.no_sync():
    own = gradient()
averaged = gradient()
print(f"rank {rank}: {len(mine)} rows, own {own:+.6f}, averaged {averaged:+.6f}")
dist.destroy_process_group()
"""
launch(2, start + average)

# %%
# Is the average right? Here is the gradient of all 50 rows, from one process:

sys.path.insert(0, str(folder))
from task import batches, make_model, sum_of_losses

model, rows = make_model(), batches(0)[0]
(sum_of_losses(model(images[rows]), labels[rows]) / len(rows)).backward()
print(f"one process: {len(rows)} rows, {model[2].bias.grad[0].item():+.6f}")

# %%
# The same. The two own gradients differ, for each comes from other rows. Their mean is
# the gradient of the whole batch, because both parts have 25 rows. This is lesson 13's
# :ref:`accumulation <accumulate>`, side by side instead of one after the other.
#
# Train with two processes
# ------------------------
#
# .. _two-processes:
#
# Now the whole loop. First alone, as in lesson 4. Each :term:`loss` is a sum, divided by
# the rows of the batch:

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for rows in batches(epoch):
        loss = sum_of_losses(model(images[rows]), labels[rows]) / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
alone = model.state_dict()

# %%
# For many processes three things change. They have numbers in the comments:

many = """\
from task import *

model = make_model().to(device)
parallel = DistributedDataParallel(model, device_ids=[local_rank])  # 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for rows in batches(epoch):
        mine = rows[rank::world_size]  # 2
        loss = sum_of_losses(parallel(images[mine].to(device)), labels[mine].to(device))
        loss = loss / len(rows) * world_size  # 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), "many.pt")
print(f"rank {rank}: {len(mine)} rows of the last batch")
dist.destroy_process_group()
"""

# %%
# 1. DDP wraps the model. At the start it also copies rank 0's weights to the others.
# 2. Each process takes its part of the batch.
# 3. We want the sum of all losses, divided by 50. DDP takes the *mean* of the gradients:
#    with two processes, half of what both add up to. So each divides its own sum by 50,
#    and multiplies by 2. If all parts are equal, the mean loss of the part gives the
#    same.
#
# How far apart will the weights be?


def gap(a, b):
    """The largest difference between two models' weights."""
    return max((a[name].cpu() - b[name].cpu()).abs().max().item() for name in a)


launch(2, start + many)
together = torch.load(folder / "many.pt", map_location="cpu")
print(f"largest difference of a weight: {gap(alone, together):.0e}")

# %%
# The difference is rounding: sums in another order. Four processes learn the same, too:
# write ``launch(4, start + many)`` in the cell above, and run it again.
#
# In the last batch there was one row, and rank 1 had none. It calls ``backward`` all the
# same, because the others wait for its part of the gradient, even if that is zero. **Two
# processes learn what one learns, if the batch of all together stays the same, and each
# row goes through the model by itself.** As in lesson 13, :term:`batch normalisation`
# breaks that (``nn.SyncBatchNorm`` repairs it), and :term:`dropout` drops other values.
#
# Often the batch is *not* kept. Each process gets 50 rows, and together they have 100.
# Then there are half as many steps, and your :term:`learning rate` was chosen for a batch
# of 50. :doc:`Past this machine </scaling>` says what then changes.
#
# .. question:: What would ``loss.item() / world_size`` be, if rank 0 printed it here?
#
#    - The mean loss of the whole batch.
#
#      No. Nothing has been added up over the processes yet.
#
#    - Rank 0's part of the mean loss.
#
#      Yes. Add up the parts of all with ``all_reduce``, as in the first program.
#
#    - The same on each rank, because DDP averages.
#
#      No. DDP averages gradients, and nothing else.
#
# Change lesson 5's script
# ------------------------
#
# .. _script-for-many:
#
# A real script reads images with a ``DataLoader``. This is what changes in the script of
# :doc:`lesson 5 </lessons/05_fashion_mnist>`. Lines with ``+`` are new, lines with ``-``
# are gone:
#
# .. script:: fashion_mnist_ddp.py
#    :changed-from: fashion_mnist.py
#
# - **Each process reads other images.** ``DistributedSampler`` deals them out, like
#   cards. It makes all parts equally long. If the images cannot be divided so, it takes
#   some of them twice. Two and four divide 60,000. It also shuffles, so ``shuffle`` is
#   gone. ``set_epoch`` gives each :term:`epoch` another order; without it, every epoch
#   has the same. The test images have to count once each, so a ``range`` deals them out:
#   with two processes, every second one.
# - **The batch is split.** Each process takes 64 divided by the number of processes,
#   which has to divide 64.
# - **What is counted is added up.** The loss and the correct answers of a process are
#   those of its own images. ``all_reduce`` adds them up over all processes.
# - **Rank 0 prints the results and saves, once.** (Each process prints its GPU.) It also
#   downloads; ``barrier`` lets the others wait until all is there. It saves ``model``,
#   not ``parallel``: the names in the wrapped model begin with ``module.``, and a plain
#   model would not load them.
#
# It is a script that runs as it stands:
#
# .. code-block:: bash
#
#    torchrun --nproc-per-node 2 fashion_mnist_ddp.py
#    python -m gpulesson practice --nproc 2 fashion_mnist_ddp.py
#
# The first line takes two GPUs, the second two practice GPUs. For a cluster there are
# scripts with everything that a long run needs: :doc:`On a cluster </cluster>`.
#
# Read the error of a forgotten line
# ----------------------------------
#
# .. _forgotten-set-device:
#
# A common mistake is to forget ``set_device`` and the local rank. What does
# ``"cuda"`` mean then, in each of the processes?

forgotten = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""
launch(2, forgotten)

# %%
# ``"cuda"`` is the first GPU, in both. NCCL refuses that. (NCCL before version 2.30 says
# ``Duplicate GPU detected``.) Do not set the variable that it names: two processes would
# then share one GPU. **Each process needs a GPU of its own: set_device, or a**
# :term:`device` **with a number.**
#
# Long runs, and models that do not fit on one GPU, have a page of their own:
# :doc:`/lessons/guides/restart_and_split`. Read it when you need it.
#
# Choose how to divide the work
# -----------------------------
#
# With DDP each GPU holds the whole model, its gradients and the
# :term:`optimizer state`. If the model is too large for one GPU, ten GPUs with DDP do
# not help. *FSDP*, fully sharded data parallel, splits it: each process keeps a part of
# every :term:`parameter`.
#
# There are two more ways to divide a model. *Tensor parallel* cuts single layers: each
# GPU computes some columns or rows of a product. *Pipeline parallel* gives each GPU some
# of the layers, one after the other. Both are for models of many billions of parameters.
# So this is how to choose:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 40 30 30
#
#    * - What you have
#      - What to use
#      - What you pay
#    * - the model fits, and a run takes too long
#      - DDP
#      - gradients travel in each step
#    * - the model does not fit, and lesson 13's ways are used up
#      - FSDP
#      - parameters travel as well
#    * - a single layer does not fit, or its messages take too long
#      - tensor parallel, within one machine
#      - messages in every layer, over fast links only
#    * - the model needs several machines, and FSDP's messages between them take too long
#      - pipeline parallel, with the others
#      - GPUs that wait for one another, a harder program
#    * - a run is short, or one GPU is not busy yet
#      - one GPU
#      - nothing
#
# **First make one GPU busy.** A GPU that waits for Python, as in lesson 11, waits no less
# when there are eight. If the processor or the disk is too slow, as in lesson 9, eight of
# them share it. :doc:`Past this machine </scaling>` has the arithmetic: what a step takes
# with 2, 8 and 64 GPUs, and when the messages take longer than the work.
#
# .. question:: A step takes 10 ms, and 8 ms on two GPUs. Why not 5?
#
#    - Rank 0 averages for all.
#
#      No. All ranks average together; none does it for the others.
#
#    - Messages take time, and small batches use a GPU less well.
#
#      Yes. The gradients are as long as before, however few rows each GPU has.
#
#    - ``DistributedSampler`` takes 3 ms.
#
#      No. It only deals out numbers of rows.
#
# .. instructor-note::
#
#    Two practice GPUs share the processor of one laptop. They show what is computed, and
#    nothing about speed. Say so before your learners measure.
#
# Exercise
# --------
#
# .. exercise:: Train one model on two GPUs
#    :minutes: 20
#    :difficulty: hard
#    :starter: exercise_14.py
#
#    You write two functions: which rows a process takes, and what it does with them.
#
#    1. **Predict:** 8 rows, batches of 4 in all, two processes. Which rows may rank 0
#       take in one epoch, and which ones are left for rank 1?
#    2. Write ``my_batches``. Then ``python -m gpulesson practice --nproc 2
#       exercise_14.py`` shows the rows of both processes. Were you right?
#    3. Write ``run``: choose the GPU, join the process group, wrap the model, train, and
#       add up the losses over both processes.
#    4. Save once. Start it again: both ranks show the same losses, and the saved weights
#       have a smaller one.
#
#    To check it: ``python -m gpulesson check exercise_14.py``. The check calls ``run`` in
#    two processes at once, too. You are done when both functions have their check mark.
#
# .. solution::
#    :file: solution_14.py
#
#    The epoch is the :term:`seed`, so both processes shuffle in the same way and take
#    different rows. DDP averages the gradients, ``all_reduce`` adds up the losses in
#    both, and rank 0 saves the model inside, not the wrapped one.
#
# .. keypoints::
#
#    - ``torchrun`` starts one process for each GPU. Each has a rank, and the whole model.
#    - DDP averages gradients during ``backward``. It averages nothing else.
#    - Keep the batch, and divide it: then many processes learn what one learns, except
#      with batch normalisation and dropout.
#    - All processes come to each ``all_reduce`` and each ``backward``; rank 0 prints and
#      saves.
#    - DDP is for models that fit; FSDP splits one that is too large. Use no more GPUs
#      than you can keep busy.
#
# **Next:** :doc:`/lessons/guides/restart_and_split` is about processes that die and
# models that do not fit; :doc:`/cluster` has scripts for Slurm and PBS, and
# :doc:`/scaling` what a thousand GPUs change.

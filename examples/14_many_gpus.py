"""
14 · Many GPUs
==============

Train one model on several :term:`GPUs <GPU>`, each with its own part of every
:term:`batch`, and show that two learn what one would have learned.

.. overview::
   :teaching: 21
   :exercises: 20

   .. objectives::

      - Change a training script in four places, so that it trains on all GPUs of a
        machine.
      - Show that two processes learn what one learns, and say when they do not.
      - Choose between one GPU, a copy of the model on each, and a model in parts.

   .. prereq::

      - :doc:`Lesson 5 </lessons/05_fashion_mnist>`: its training script, which we change
      - :doc:`Lesson 13 </lessons/13_when_it_does_not_fit>`: gradients that add up
"""

# %%
# Thirty students correct a pile of exams. Each takes a part of the pile. In the end they
# compare notes, so that all of them know the result. Several GPUs train a model in the
# same way: each takes a part of the batch, and then they average their
# :term:`gradients <gradient>`.
#
# .. drawing:: data_parallel.svg
#
# **Each GPU has a process of its own, with the whole model.** The copies begin equal. In
# every :term:`step` each process computes gradients from its own part. Then all take the
# mean of these gradients, and change their copies by it. So the copies stay equal. This
# is *data parallel* training.
#
# The mean of two gradients is the gradient of the batch
# ------------------------------------------------------
#
# Is it the same as a step of one GPU? For that no second GPU is needed. Take a batch of
# 64 images, and a small model in float64, whose sixteen digits hide no mistake:

# sphinx_gallery_thumbnail_path = 'drawings/data_parallel.svg'
import torch
from torch import nn

from gpulesson.data import load_fashion_mnist

data = load_fashion_mnist()
images = data.train_images[:64].flatten(1).double() / 255  # [64, 784]
labels = data.train_targets[:64]
torch.manual_seed(0)
small, loss_fn = nn.Linear(784, 10).double(), nn.CrossEntropyLoss()

# %%
# We deal the rows out like cards: one process gets the rows 0, 2, 4, … and the other the
# rows 1, 3, 5, … Each takes the gradient of the mean :term:`loss` of its 32 rows. Of the
# gradient we look at the first bias:


def gradient(rows):
    small.zero_grad()
    loss_fn(small(images[rows]), labels[rows]).backward()
    return small.bias.grad[0].item()


first, second = gradient(slice(0, 64, 2)), gradient(slice(1, 64, 2))
print(f"rows 0, 2, 4, …: {first:+.6f}")
print(f"rows 1, 3, 5, …: {second:+.6f}")
print(f"their mean:      {(first + second) / 2:+.6f}")
print(f"all 64 rows:     {gradient(slice(0, 64)):+.6f}")

# %%
# The two differ, for they come from different images. Their mean is the gradient of the
# whole batch. This holds because both parts are equally large. It is lesson 13's
# :ref:`accumulation <accumulate>`, side by side instead of one after the other.
#
# Now we change lesson 5's script, ``fashion_mnist.py``, in four places. The new file is
# ``fashion_mnist_ddp.py``. We look at each place, then run the file.
#
# 1: Start one process for each GPU
# ---------------------------------
#
# You do not start the processes yourself. PyTorch's command ``torchrun`` runs the same
# script several times, here twice:
#
# .. code-block:: bash
#
#    torchrun --nproc-per-node 2 fashion_mnist_ddp.py
#
# How does a process know which one it is? ``torchrun`` sets environment variables.
# ``RANK`` is the :term:`rank`, its number among all, from 0. ``WORLD_SIZE``, the
# :term:`world size`, is how many there are. ``LOCAL_RANK`` is its number on this machine,
# and says which GPU it takes. Lesson 5's script chose a :term:`device`. In
# ``fashion_mnist_ddp.py`` there is instead:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :start-at: local_rank = int(
#    :end-at: dist.init_process_group(
#    :dedent: 4
#
# ``set_device`` makes this GPU the default of the process. ``init_process_group`` brings
# the processes together, in a :term:`process group`. :term:`NCCL` is NVIDIA's library,
# which sends :term:`tensors <tensor>` from GPU to GPU.
#
# 2: Wrap the model
# -----------------
#
# ``DistributedDataParallel``, or :term:`DDP`, is a model around your model. In
# ``fashion_mnist_ddp.py``:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :start-at: model = Classifier()
#    :end-at: parallel = Dist
#    :dedent: 4
#
# The second line is new. At this moment DDP copies the weights of rank 0 to all. In each
# ``backward`` it averages the gradients, as you did above. The training loop calls
# ``parallel`` instead of ``model``, and stays as it was otherwise. **DDP averages
# gradients, and nothing else.** The loss that you print, and the number of correct
# answers, are still those of one process.
#
# 3: Give each process its own images
# -----------------------------------
#
# If both processes read the same images, the second GPU is wasted.
# ``DistributedSampler`` deals them out. Usually it asks the process group for the rank;
# here we name it, to see what each of two processes gets of eight images:

from torch.utils.data import DataLoader, DistributedSampler

samplers = [DistributedSampler(range(8), num_replicas=2, rank=rank) for rank in (0, 1)]
for epoch in (0, 1):
    for rank, sampler in enumerate(samplers):
        sampler.set_epoch(epoch)
        print(f"epoch {epoch}, rank {rank}: images {list(sampler)}")

# %%
# In each :term:`epoch` every image comes once, to one of the two. ``set_epoch`` makes a
# new order; without this call, all epochs have that of epoch 0. (If the images cannot be
# divided equally, the sampler takes some of them twice.) In ``fashion_mnist_ddp.py``:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :pyobject: make_loader
#
# The sampler replaces ``shuffle=True``. A batch of 64 is divided too: with two processes,
# each takes 32. So a step uses as many images as before, and your
# :term:`learning rate` still fits. Of the test images each has to count once, so a
# ``range`` deals them out.
#
# 4: Add up the results, print and save once
# ------------------------------------------
#
# Each process knows the losses of its own images. ``all_reduce`` is an
# :term:`all-reduce`: afterwards every process has the sum. In ``fashion_mnist_ddp.py``,
# at the end of ``train_epoch``:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :start-at: dist.all_reduce(running_loss)
#    :end-at: return running_loss
#    :dedent: 4
#
# The correct answers are added up in the same way. In ``main``, rank 0 alone prints and
# saves:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :start-at: for epoch in range(1
#    :end-at: dist.destroy_process_group()
#    :dedent: 4
#
# It saves ``model``, not ``parallel``: the names in the wrapped model begin with
# ``module.``, and a plain model would not load them.
#
# **All processes have to come to each backward and each all-reduce**: the others wait.
# So under ``if dist.get_rank() == 0`` there is only what needs no other process.
#
# .. question:: The last ``all_reduce`` of a run is under ``if rank == 0``. What happens?
#
#    - Rank 0 has the sum, and rank 1 has not.
#
#      No. The sum needs the number of rank 1, which does not come.
#
#    - Rank 0 waits for rank 1.
#
#      Yes. With NCCL it waits ten minutes by default, then there is an error. An
#      ``all_reduce`` in the middle is worse: the next one of rank 1 meets this one of
#      rank 0. If both have as many numbers, the sum is wrong, and there is no error.
#
#    - Rank 0 takes its own number.
#
#      No. It cannot know that nothing will come.
#
# .. fold:: The whole script, and each line that differs from lesson 5's
#
#    .. script:: fashion_mnist_ddp.py
#       :changed-from: fashion_mnist.py
#
# Two processes learn what one learns
# -----------------------------------
#
# Now we run ``fashion_mnist_ddp.py`` in two processes: by ``torchrun`` where there are
# two GPUs, elsewhere by ``python -m gpulesson practice --nproc 2``, on two
# :term:`practice GPUs <practice GPU>`. To be quick, the script gets 640 training images
# and 200 test images. What will each process print?

# fold: A helper that runs a script in two processes, and the small data folder
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gpulesson

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
two_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= 2


def find(name):
    """Find a script of the course: in this folder, beside it, or in the package."""
    for place in (
        ".",
        "scripts",
        "../scripts",
        Path(gpulesson.__file__).with_name("scripts"),
    ):
        if Path(place, name).is_file():
            return Path(place, name).resolve()
    raise FileNotFoundError(f"download {name} from this page into {Path.cwd()}")


def launch(name, *arguments):
    """Run a script in two processes, and print what they print."""
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if not two_gpus:
        words = ["gpulesson", "practice", "--force", "--nproc", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *words, str(find(name)), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # so that lines stay whole
        capture_output=True,
        text=True,
    )
    print("two GPUs, NCCL" if two_gpus else "two practice GPUs, Gloo instead of NCCL")
    lines = re.findall(r"training on cuda:\d+|\S.*", done.stdout)  # may be glued
    print(*sorted(lines, key=lambda line: line if "cuda:" in line else "~"), sep="\n")
    print(done.stderr if done.returncode else "", end="")


def write(name, images, labels):
    """Write images and labels as Fashion-MNIST's files have them."""
    raw = folder / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4I", 2051, *images.shape)
    (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.numpy().tobytes())
    head = struct.pack(">2I", 2049, len(labels))
    (raw / f"{name}-labels-idx1-ubyte").write_bytes(
        head + labels.byte().numpy().tobytes()
    )


write("train", data.train_images[:640], data.train_targets[:640])
write("t10k", data.test_images[:200], data.test_targets[:200])

# %%

launch("fashion_mnist_ddp.py", "data")

# %%
# Each process has a GPU of its own. Rank 0 printed the losses and the result, for all
# images. (Practice GPUs have no NCCL. PyTorch's *Gloo*, which connects CPUs, carries
# their tensors.)
#
# Would one process have learned the same? We take the model and ``train_epoch`` of lesson
# 5's script, and give them the same images in the same order, 64 at a time:

sys.path.insert(0, str(find("fashion_mnist.py").parent))
from fashion_mnist import Classifier, train_epoch
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

device = torch.device("cuda:0" if two_gpus else "cpu")
train_data = FashionMNIST(folder / "data", transform=ToTensor())
sampler = DistributedSampler(train_data, num_replicas=1, rank=0)
loader = DataLoader(train_data, batch_size=64, sampler=sampler)
torch.manual_seed(0)
model = Classifier().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1, 6):
    sampler.set_epoch(epoch)
    loss = train_epoch(model, loader, loss_fn, optimizer, device)
    print(f"Epoch [{epoch}/5], loss {loss:.4f}")

# %%
# The losses are the same, except perhaps for a last digit. How far apart are the weights?

alone, together = model.state_dict(), torch.load(folder / "fashion_mnist.pt", "cpu")
gaps = [(alone[name].cpu() - together[name]).abs().max().item() for name in together]
print(f"largest difference of a weight: {max(gaps):.0e}")

# %%
# This is rounding: float32 has about seven digits, and the sums had another order. **Two
# processes learn what one learns, if the batch of both together stays the same, both
# parts are equal, and each row goes through the model by itself.** With two layers they
# learn something else. :term:`Batch normalisation <batch normalisation>` takes the mean
# of the rows of one process (``nn.SyncBatchNorm`` takes that of all). And :term:`dropout`
# drops other values than in one process.
#
# .. fold:: Going further: parts that are not equal
#
#    Of a last batch of 50 rows and one more, rank 0 gets 26 rows and rank 1 gets 25. The
#    mean of the two means then counts the rows of rank 1 a little more. To be exact, each
#    process takes the *sum* of its losses, divides it by all 51 rows, and multiplies by
#    the world size, because DDP takes a mean where you want a sum:
#
#    .. code-block:: python
#
#       loss = sum_of_losses(parallel(inputs), labels) / rows_of_all * world_size
#
#    This holds for a process without any rows, too. It has to call ``backward`` all the
#    same, because the others wait for it. It is simpler to leave out a last batch that
#    cannot be divided, or to let ``DistributedSampler`` repeat some rows.
#
# How much faster several GPUs are
# --------------------------------
#
# It depends on the batch. Our script *keeps* the batch and divides it. Then each GPU has
# less to compute, and the gradients that travel are as large as before. Often the batch
# *grows* instead: each GPU takes 64 images. Then an epoch has half as many steps, and the
# learning rate may have to change: :doc:`Past this machine </scaling>` says how. With
# batches that grow, others lost little:
#
# .. measured:: on 8 GPUs against one, in float16, by W. Paik
#    :source: https://willgpaik-github-io.pages.dev/portfolio/pytorch-ddp-bench/
#    :date: without a date, seen in 2026
#
#    Images a second on 8 GPUs, as a share of 8 times those on one. Each GPU keeps its
#    batch, and the images are on the GPU already.
#
#    .. list-table::
#       :header-rows: 1
#
#       * - Model
#         - V100
#         - A100
#       * - ResNet-152
#         - 95.4 %
#         - 97.4 %
#       * - ViT-B/16
#         - 95.9 %
#         - 98.0 %
#
# How quickly gradients travel depends on what connects the GPUs:
#
# .. measured:: on 2 TITAN RTX, by Hugging Face
#    :source: https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many
#    :date: 2021, with PyTorch 1.8
#
#    200 steps of GPT-2 with DDP took 101 s over NVLink, the GPUs' own connection, and
#    131 s without it. With ``nn.DataParallel`` and NVLink they took 110 s.
#
# ``nn.DataParallel`` is an older class: one process for all GPUs. PyTorch `recommends DDP
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html>`__ instead.
#
# **First make one GPU busy.** If it waits for Python or for images, as in lessons 9 and
# 11, eight GPUs wait no less.
#
# .. question:: Why does a batch of 64 not take half the time on two GPUs?
#
#    - Rank 0 averages for all.
#
#      No. All ranks average together; none does it for the others.
#
#    - Messages take time, and small batches use a GPU less well.
#
#      Yes. The gradients are as long as before, however few rows each GPU has.
#
#    - ``DistributedSampler`` has to sort the images.
#
#      No. It only deals out numbers of images.
#
# Choose how to divide the work
# -----------------------------
#
# With DDP each GPU holds the whole model, its gradients and the :term:`optimizer state`.
# If these do not fit on one GPU, ten GPUs with DDP do not help. :term:`FSDP` splits them:
# each process keeps a part of every :term:`parameter`. It does not come after lesson 13's
# ways, but together with them: `torchtitan
# <https://github.com/pytorch/torchtitan/blob/018740b7/torchtitan/models/llama3/infra/parallelize.py>`__,
# PyTorch's own example for language models, uses FSDP with :term:`bfloat16` and
# :term:`activation checkpointing`.
#
# .. list-table::
#    :header-rows: 1
#    :widths: 40 30 30
#
#    * - What you have
#      - What to use
#      - What you pay
#    * - a run is short, or one GPU is not busy yet
#      - one GPU
#      - nothing
#    * - the model fits, and a run takes too long
#      - DDP
#      - gradients travel in each step
#    * - the model, its gradients and the optimizer state do not fit
#      - FSDP, with bfloat16 and activation checkpointing
#      - parameters travel as well
#    * - the same, and several machines with a slow network between them
#      - *hybrid sharding*: FSDP within a machine, DDP between them
#      - a whole model in each machine
#    * - a single layer does not fit, or its messages take too long
#      - *tensor parallel*: a part of each layer on each GPU
#      - messages in every layer, over fast links only
#    * - all of these are not enough
#      - *pipeline parallel*, too: some of the layers on each GPU
#      - GPUs that wait for one another, a harder program
#
# Hybrid sharding is ``fully_shard`` with a `mesh of two dimensions
# <https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html>`__.
# :doc:`/lessons/guides/restart_and_split` splits a model by FSDP, and restarts a run in
# which a process dies.
#
# What the errors of several processes mean
# -----------------------------------------
#
# Look for the first error, of any rank. The other processes often fail because one is
# gone.
#
# - ``Multiple Ranks are using the same GPU`` or ``Duplicate GPU detected``: mostly
#   ``set_device`` :ref:`was forgotten <error-same-gpu>`.
# - ``Expected to have finished reduction in the prior iteration``: DDP waits for a
#   gradient of each parameter, and :ref:`some got none <error-unused-parameters>`. Set
#   ``TORCH_DISTRIBUTED_DEBUG=INFO``, and the message names them.
#   ``find_unused_parameters=True`` is only for models that use other layers in each step.
# - ``Watchdog caught collective operation timeout``: a process :ref:`did not come
#   <error-watchdog>` to an ``all_reduce`` or a ``backward`` within ten minutes. On GPUs,
#   ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` `compares
#   <https://docs.pytorch.org/docs/stable/distributed.html>`__ what the ranks call.
# - ``Missing key(s) in state_dict``, and names with ``module.``: the wrapped model
#   :ref:`was saved <error-missing-keys>`.
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
#    - Start one process for each GPU, wrap the model, deal out the images, add up the
#      results; rank 0 prints and saves.
#    - DDP averages gradients. Keep the batch and divide it equally: then two processes
#      learn what one learns, except with batch normalisation and dropout.
#    - DDP is for models that fit, FSDP for those that do not. Use no more GPUs than you
#      can keep busy.
#
# **Next:** :doc:`/lessons/guides/restart_and_split` is about processes that die and
# models that do not fit; :doc:`/cluster` has scripts for Slurm and PBS, and
# :doc:`/scaling` what a thousand GPUs change.

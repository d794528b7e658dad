"""
14 · Many GPUs
==============

Train one model on several :term:`GPUs <GPU>`, each with its own part of every
:term:`batch`, and show that two learn what one would have learned.

.. overview::
   :teaching: 26
   :exercises: 20

   .. objectives::

      - Change a training script so that it trains on all GPUs of a machine.
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
# **Each GPU has its own process, with the whole model.** The copies begin equal. In
# every :term:`step` each process computes gradients from its own part. Then all take the
# mean of these gradients, and change their copies by it. So the copies stay equal. This
# is *data parallel* training.
#
# Where there are two GPUs, this page computes on them. Elsewhere its processes compute
# on two :term:`practice GPUs <practice GPU>`, and PyTorch's :term:`Gloo`, which
# connects CPUs, carries their :term:`tensors <tensor>`. That shows what several GPUs
# do, not how fast they are. Speeds of real ones are further down, as others measured
# them.
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
# Each line of the script that changes
# ------------------------------------
#
# This is what makes lesson 5's script, ``fashion_mnist.py``, one for several GPUs,
# ``fashion_mnist_ddp.py``. A line with a minus goes, a line with a plus comes, and the
# others show where. Four things happen in these lines, and each is explained below. So
# you need not understand them yet:
#
# .. script:: fashion_mnist_ddp.py
#    :changed-from: fashion_mnist.py
#
# We look at the four parts, then run the script.
#
# 1: Start one process for each GPU
# ---------------------------------
#
# You do not start the processes yourself. PyTorch's command ``torchrun`` runs the same
# script several times, here twice:
#
# .. code-block:: bash
#
#    torchrun --standalone --nproc-per-node 2 fashion_mnist_ddp.py
#
# ``--standalone`` says that one machine is all there is. Then ``torchrun`` takes a free
# port, and two runs on a machine do not disturb each other.
#
# How does a process know which one it is? ``torchrun`` sets environment variables.
# ``RANK`` is the :term:`rank`, its number among all, from 0. ``WORLD_SIZE``, the
# :term:`world size`, is how many there are. ``LOCAL_RANK`` is its number on this machine,
# and says which GPU it takes. Lesson 5's script chose a :term:`device`. Now there is:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :caption: fashion_mnist_ddp.py
#    :start-at: local_rank = int(
#    :end-at: dist.init_process_group(
#    :dedent: 4
#
# ``dist`` is ``torch.distributed``. ``set_device`` makes this GPU the default of the
# process. ``init_process_group`` brings the processes together, in a :term:`process
# group`. :term:`NCCL` is NVIDIA's library, which sends tensors from GPU to GPU.
# (``dist.barrier()``, further down in ``main``, waits until all have come there: here
# until one process of each machine has the data. NCCL waits ten minutes, unless
# ``init_process_group`` gets another ``timeout``.)
#
# 2: Wrap the model
# -----------------
#
# ``DistributedDataParallel``, or :term:`DDP`, is a model around your model:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :caption: fashion_mnist_ddp.py
#    :start-at: model = Classifier()
#    :end-at: torch.manual_seed(dist
#    :dedent: 4
#
# At the second line DDP copies the weights of rank 0 to all. (The :term:`optimizer` is
# made from ``model.parameters()``, as before: the wrapped model has the same ones.) In
# each ``backward`` it averages the gradients, as you did above. Before each
# :term:`forward pass` it copies the :term:`buffers <buffer>` of rank 0 to all, such as
# the averages that :term:`batch normalisation` keeps (`its arguments
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html>`__
# say how to leave that out). The training loop calls ``parallel`` instead of ``model``,
# and stays as it was otherwise. **DDP averages gradients, not results.** The loss that
# you print, and the number of correct answers, are still those of one process.
#
# The third line is for what is drawn at random. With the same :term:`seed`, all processes
# would draw the same :term:`dropout`, and the same random changes of their images. From
# here on each has its own seed.
#
# If you :ref:`accumulate gradients <accumulate>`, put each forward and backward but the
# last of a step under ``with parallel.no_sync():``, and they travel once instead of in
# every backward.
#
# 3: Give each process its own images
# -----------------------------------
#
# If both processes read the same images, the second GPU is wasted. A *sampler* says which
# images a loader reads, and in which order; any list of their numbers is one.
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
# new order; without this call, all epochs have that of epoch 0. The sampler has a seed of
# its own, the same in all processes, so their parts fit together. (If the images cannot
# be divided equally, it takes some of them twice.) In ``make_loader``:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :caption: fashion_mnist_ddp.py
#    :start-at: if train:
#    :end-at: return DataLoader
#    :dedent: 4
#
# The sampler replaces ``shuffle=True``. A batch of 64 is divided too: with two processes,
# each takes 32. So a step uses as many images as before, and your
# :term:`learning rate` still fits. Three processes cannot share 64: the script says so,
# and ends. Each test image has to count once, so none may come twice: of 200 images,
# ``range`` gives rank 0 the numbers 0, 2, 4, … and rank 1 the others.
#
# 4: Add up the results, print and save once
# ------------------------------------------
#
# Each process knows the losses of its own images. ``all_reduce`` is an
# :term:`all-reduce`: afterwards every process has the sum. At the end of ``train_epoch``:
#
# .. literalinclude:: /../examples/scripts/fashion_mnist_ddp.py
#    :language: python
#    :caption: fashion_mnist_ddp.py
#    :start-at: running_loss = torch.tensor(
#    :end-at: return running_loss
#    :dedent: 4
#
# The correct answers are added up in the same way. Then rank 0 alone prints and saves.
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
# Two processes learn what one learns
# -----------------------------------
#
# Now we run the script in two processes. To be quick, it gets 640 training images and 200
# test images. The folded cell puts them and both scripts into ``folder``.

# fold: Put the scripts and some images into a folder
import shutil
import struct
import tempfile
from pathlib import Path

import gpulesson

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
places = [".", "scripts", "../scripts", Path(gpulesson.__file__).with_name("scripts")]
for name in ("fashion_mnist.py", "fashion_mnist_ddp.py"):
    found = [Path(place, name) for place in places if Path(place, name).is_file()]
    if not found:
        raise FileNotFoundError(f"download {name} from this page into {Path.cwd()}")
    shutil.copy(found[0], folder)


def write(name, images, labels):
    """Write images and labels as Fashion-MNIST's files have them."""
    raw = folder / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4I", 2051, *images.shape)
    (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.numpy().tobytes())
    head, digits = struct.pack(">2I", 2049, len(labels)), labels.byte().numpy()
    (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + digits.tobytes())


write("train", data.train_images[:640], data.train_targets[:640])
write("t10k", data.test_images[:200], data.test_targets[:200])

# %%
# This is the ``torchrun`` command from above, as a cell can run it. Where there are no
# two GPUs, ``-m gpulesson practice --force`` comes before the script, from :doc:`the
# course's package </setup>`. Each process writes into its own file, and we print one
# after the other. What will each of them print?

import subprocess
import sys

real = torch.cuda.device_count() >= 2
command = "torch.distributed.run --standalone --nproc-per-node 2 --redirects 1"
command += " --log-dir logs " + ("" if real else "-m gpulesson practice --force ")
command = [sys.executable, "-m", *command.split(), "fashion_mnist_ddp.py", "data"]
done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
print("two GPUs, NCCL" if real else "two practice GPUs, Gloo instead of NCCL")
for log in sorted(folder.glob("logs/*/*/*/stdout.log")):
    print(f"rank {log.parent.name}:", log.read_text(), sep="\n", end="")
print(done.stderr if done.returncode else "", end="")

# %%
# Each process has its own GPU. Rank 0 printed the losses and the result, for all
# images.
#
# Would one process have learned the same? We take the model and ``train_epoch`` of lesson
# 5's script, and give them the same images in the same order, 64 at a time:

sys.path.insert(0, str(folder))
from fashion_mnist import Classifier, train_epoch
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

device = torch.device("cuda:0" if real else "cpu")
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

file = folder / "fashion_mnist.pt"
alone = model.state_dict()
together = torch.load(file, map_location="cpu", weights_only=True)
gaps = [(alone[name].cpu() - together[name]).abs().max().item() for name in together]
print(f"largest difference of a weight: {max(gaps):.0e}")

# %%
# This is rounding: float32 has about seven digits, and the sums had another order. **Two
# processes learn what one learns, if the batch of both together stays the same, both
# parts are equal, and each row goes through the model by itself.** With two layers they
# learn something else. Batch normalisation takes the mean of the rows of one process
# (``nn.SyncBatchNorm`` takes that of all). And dropout drops other values than in one
# process.
#
# .. fold:: Going further: parts that are not equal
#
#    Of a last batch of 51 rows, rank 0 gets 26 and rank 1 gets 25. The
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
# Count the images that all processes together train on in a second. Leave out the first
# epoch, which has to start things. The clock has to wait for the GPU: here it does,
# because ``train_epoch`` ends with ``.item()``.

import time

start = time.perf_counter()
train_epoch(model, loader, loss_fn, optimizer, device)
seconds = time.perf_counter() - start
print(f"one process: {len(train_data) / seconds:,.0f} images a second")

# %%
# That is for one process, on this machine. It says little about GPUs: for a model as
# small as this one, a GPU mostly waits, for images and for Python to start the next
# operation (:term:`launch overhead`). Measure with a model of your own. In
# ``fashion_mnist_ddp.py``, put the same lines around ``train_epoch`` in all ranks, and
# let rank 0 print. There ``len(train_loader.dataset)`` counts the images of all. Run it
# with ``--nproc-per-node 1``, then with 2, and divide.
#
# How much you gain depends on the batch. Our script *keeps* the batch and divides it.
# Then each GPU has less to compute, and the gradients that travel are as large as before.
# Often the batch *grows* instead: each GPU takes 64 images. Then an epoch has half as
# many steps, and the learning rate may have to change: :doc:`the page on many GPUs
# </scaling>` says how.
#
# .. measured:: on V100 GPUs, by W. Paik
#    :source: https://github.com/willgpaik/pytorch-ddp-scaling-benchmark/tree/dc0b8a8746ceb784cd1d0e7f370641b67aa938cd/results/v100_16gb
#    :date: 2026, with PyTorch 2.12
#
#    Images a second of all GPUs together, trained in float16 with DDP. The images are on
#    the GPU already. In brackets: how many times those of one GPU.
#
#    .. list-table::
#       :header-rows: 1
#
#       * - GPUs
#         - ResNet-152, 64 images in all
#         - ResNet-152, 128 on each
#         - ViT-B/16, 64 images in all
#         - ViT-B/16, 128 on each
#       * - 1
#         - 461
#         - 503
#         - 367
#         - 381
#       * - 2
#         - 631 (1.4)
#         - 962 (1.9)
#         - 633 (1.7)
#         - 736 (1.9)
#       * - 4
#         - 697 (1.5)
#         - 1,928 (3.8)
#         - 973 (2.7)
#         - 1,471 (3.9)
#       * - 8
#         - 679 (1.5)
#         - 3,841 (7.6)
#         - 1,031 (2.8)
#         - 2,926 (7.7)
#
# With batches that grow, eight GPUs do almost eight times as much. With 64 images in all,
# each of eight GPUs gets 8 images. With ViT they are hardly faster than four, and with
# ResNet-152 slower. What connects the GPUs matters, too: over NVLink, a separate
# connection, `two TITAN RTX
# <https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many>`__ took 101 s for
# what took 131 s without it.
#
# **First make one GPU busy.** If it waits for Python or for images, as in lessons 9 and
# 11, eight GPUs wait no less:
#
# .. measured:: on 8 V100, by OneFlow
#    :source: https://github.com/Oneflow-Inc/DLPerf/tree/019e14ac6f8bd7db3cb2edf489354288203d51d7/PyTorch/resnet50v1.5
#    :date: with PyTorch 1.6, of 2020
#
#    ResNet-50 in float32, 128 images on each GPU, read from files. With 8 loader
#    processes for all GPUs, four trained on 1,079 images a second, and eight on 1,070.
#    With 48 loader processes, eight trained on 2,633.
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
# With DDP each GPU holds the whole model, its gradients, the :term:`optimizer state`,
# and a copy of the gradients that travels: with Adam 20 bytes for each number of a
# :term:`parameter`. (``gradient_as_bucket_view=True`` `can save
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html>`__
# that copy's four.) If these do not fit on one GPU, ten GPUs with DDP do not help.
# :term:`FSDP` splits them: each process keeps a part of every parameter. It does not
# come after lesson 13's ways, but together with them: `torchtitan
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
#      - *hybrid sharding*: a whole model in each machine, split among its GPUs by FSDP
#      - the memory of a whole model in each machine
#    * - a single layer does not fit, or its messages take too long
#      - *tensor parallel*: a part of each layer on each GPU
#      - messages in every layer, over fast links only
#    * - all of these are not enough
#      - *pipeline parallel*, too: some of the layers on each GPU
#      - GPUs that wait for one another, a harder program
#
# :doc:`/lessons/guides/restart_and_split` splits a model by FSDP, says how to set hybrid
# sharding, and restarts a run in which a process dies.
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
#    two processes at once, too, for which it needs Linux, macOS or WSL. You are done when
#    both functions have their check mark.
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
# **Next:** :doc:`/lessons/15_what_an_operator_costs` looks at one GPU more closely.
# :doc:`/lessons/guides/restart_and_split` is about processes that die and models that do
# not fit; :doc:`/cluster` has scripts for Slurm and PBS, and :doc:`/scaling` what a
# thousand GPUs change.

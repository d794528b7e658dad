"""
7 · The common mistakes
=======================

Make each common mistake once on purpose, read what PyTorch says, and fix it.

.. overview::
   :teaching: 30
   :exercises: 20

   .. questions::

      - PyTorch says that my tensors are on different devices. Which tensor is it, and
        in which line?
      - What do messages about dtypes and shapes want from me?
      - Which mistakes give no message at all?

   .. objectives::

      - Read a message from its end: the operation, the argument, the device.
      - Find the tensor that was not moved: the inputs, the model, the labels, the loss,
        or a tensor that is made in ``forward``.
      - Bring results back to the CPU for NumPy.
      - Fix dtypes and shapes that do not fit together.
      - Replace ``.cuda()`` by code that runs on every machine.
      - Recognise four mistakes that give no message, and measure what each one costs.
"""

# %%
# .. prereq::
#
#    - :doc:`/lessons/02_tensors_and_devices`, for ``to`` and ``.device``
#    - :doc:`/lessons/04_training_loop`, for the loop and its five calls
#
# Everybody makes the mistakes of this page. Here you make each of them once, on purpose.
# You read what PyTorch says, and you fix it.
#
# For most of them we need a :term:`GPU`. If your machine has none, the :term:`practice
# GPU` gives the message. Here its messages are PyTorch's own, word for word: the tests
# of this course check that.

import torch
from torch import nn

from gpulesson import practice

practice.start()
device = torch.device("cuda")
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
loss_fn = nn.CrossEntropyLoss()
# one batch, as a data loader gives it: on the CPU
inputs = torch.randn(64, 20)
labels = torch.randint(3, (64,))  # 64 labels: 0, 1 or 2 at random
print(torch.cuda.get_device_name(), "· PyTorch", torch.__version__)

# %%
# An error would stop this page at the first mistake. So the cells put each mistake into
# a block that begins with ``with attempt():``. It catches the error, and prints what
# Python writes into the last line of a traceback.

# fold: The helper that catches an error and prints it
import contextlib
import textwrap


@contextlib.contextmanager
def attempt():
    """Run the block; print its error, in lines of 80 characters, or "no error"."""
    try:
        yield
    except Exception as error:
        print(textwrap.fill(f"{type(error).__name__}: {error}", 80))
    else:
        print("no error")


# %%
# .. _read-a-message:
#
# Read a message from its end
# ---------------------------
#
# The first mistake: the model is on the GPU, and the :term:`batch` was not moved. Before
# you run the cell: what would you like the message to tell you?

with attempt():
    outputs = model(inputs)

# %%
# It tells you three things. Read it from its end.
#
# 1. The operation: ``wrapper_CUDA_addmm`` is PyTorch's inner name of ``addmm``, a matrix
#    product and an addition. That is what ``nn.Linear`` computes. So it happened inside
#    the model, in the :term:`forward pass`.
# 2. The argument: ``mat1`` is the first matrix of the product, the batch. The second
#    one, ``mat2``, would be the weights of the layer.
# 3. The :term:`device`: ``mat1`` is on ``cpu``, and the other :term:`tensors <tensor>`
#    are on ``cuda:0``. So the batch is on the CPU, and the weights are on the GPU.
#
# Such a message is like the slip on a parcel that came back. It says who could not
# deliver it, which parcel it is, and where the parcel lies now. **The operation leads
# you to the line, the argument to the tensor, and the device says where that tensor
# is.** The fix follows from it: move the batch.

x = inputs.to(device)
with attempt():
    outputs = model(x)

# %%
# In your own program a traceback stands above the message. It shows the lines that were
# being run, the innermost last. Go up from the end until you see a line of your own
# file: there you can change something.
#
# A message that begins with ``CUDA error:`` comes from :term:`CUDA`, not from PyTorch,
# and cannot be read in this way: see the :doc:`page of messages </errors>`.
#
# .. _left-behind:
#
# Tell inputs, model and labels apart by the message
# --------------------------------------------------
#
# .. covers:: S1.12
#
# A training :term:`step` needs three things on the GPU: the model, the inputs and the
# labels. You have seen what PyTorch says when the inputs are missing. Now the model was
# not moved, and the inputs were:

cpu_model = nn.Linear(20, 3)
with attempt():
    cpu_model(x)

# %%
# The operation is the same, and the argument is the same: ``mat1``, the batch. The
# device is not. This time the batch is on ``cuda:0``, and the other tensors, the
# weights, are on ``cpu``. **Both messages name the same argument; what tells them apart
# is where it is said to be.** A batch on ``cpu`` must be moved. A batch on ``cuda:0`` is
# right, and then it is the model that must be moved.
#
# Next, the labels were not moved. Will the message come from the model again?

with attempt():
    loss_fn(model(x), labels)

# %%
# No. The operation is ``nll_loss_forward``: the *negative log-likelihood*, −ln p, which
# the :term:`cross-entropy` computes after the :term:`softmax`. Its argument ``target``,
# PyTorch's word for the labels, is on the CPU. So the forward pass went well, and the
# line to look at computes the :term:`loss`. With all three on the GPU, nothing is in the
# way:

y = labels.to(device)
with attempt():
    loss = loss_fn(model(x), y)
    print("the loss is on", loss.device)

# %%
# Here is a message of the same sort, from a model for texts: *got index is on cpu,
# different from other tensors on cuda:0 (when checking argument in method
# wrapper_CUDA__index_select)*. The model begins with an ``nn.Embedding``. It holds a
# row of weights for each word, and picks rows by the numbers of the words.
#
# .. question:: Which tensor of the model for texts stayed on the CPU?
#
#    - The weights of the embedding.
#
#      No. They are the "other tensors", and those are on ``cuda:0``.
#
#    - The word numbers.
#
#      Yes. ``index`` is the argument, and ``index_select`` is the operation: it
#      selects rows by their numbers. So the inputs of the model were not moved.
#
#    - The labels.
#
#      No. The operation would be one of the loss, and the argument would be called
#      ``target``.
#
# .. instructor-note::
#
#    The two messages with ``mat1`` have the same words in another order. Learners who
#    skim take the second for the first, and move the batch once more. Let them say
#    aloud which tensor is where before they change a line.
#
# .. _predictions-and-labels:
#
# At least two devices: compare predictions with moved labels
# -----------------------------------------------------------
#
# After training you count the right answers. The predictions come from the model, and
# the labels come straight from the loader:

predictions = model(x).argmax(dim=1)
with attempt():
    correct = (predictions == labels).sum()

# %%
# This form of the message names two devices, and no argument. It comes from operations
# that work number by number, such as ``==``, ``+`` and ``*``. They treat both sides
# alike, so there is no argument to name. **When no argument is named, look at the line,
# and ask each tensor in it for its device.** Here ``labels`` is the wrong one; ``y`` is
# its copy on the GPU:

with attempt():
    correct = (predictions == y).sum()
    print(correct.item(), "of", len(y), "are right")

# %%
# The count itself means nothing yet: nobody has trained this model.
#
# .. _single-numbers:
#
# A single number may come from the CPU
# -------------------------------------
#
# .. covers:: S1.8
#
# You know the exception from lesson 2. Both lines below multiply numbers on the GPU by
# one half, which is on the CPU. Will both fail?

with attempt():
    model(x) * torch.tensor(0.5)
with attempt():
    model(x) * torch.tensor([0.5])

# %%
# Only the second one fails. ``torch.tensor(0.5)`` has no dimensions: it is a single
# number, and PyTorch hands it to the GPU together with the operation, like a number of
# Python. ``torch.tensor([0.5])`` holds one number too, but as a list of length one.
# **In arithmetic, a tensor without dimensions may stay on the CPU; one with dimensions
# must be moved.** So a program can run with one number, and fail when you make a list of
# it.
#
# .. _loss-weights:
#
# Move the loss when it has tensors of its own
# --------------------------------------------
#
# .. covers:: S4.5
#
# ``nn.CrossEntropyLoss()`` holds no tensors. There is nothing in it to move. That
# changes when you give it :term:`class weights`, so that mistakes in a rare class count
# more:

weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
with attempt():
    weighted(model(x), y)

# %%
# .. question:: Which tensor of this line stayed on the CPU?
#
#    - The weights of the model's last layer.
#
#      No. The operation is ``nll_loss_forward``. When the loss is computed, the
#      model is finished, and it did not complain.
#
#    - The labels.
#
#      No. The loss calls them ``target``.
#
#    - The class weights of the loss.
#
#      Yes. The operation belongs to the loss, and ``weight`` is the name of that
#      argument of ``nn.CrossEntropyLoss``.
#
# ``nn.BCEWithLogitsLoss`` is the loss for questions with the answers yes and no. With a
# ``pos_weight`` above 1 it counts each yes more. It computes number by number, so its
# message names no argument:

yes_no = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
scores = torch.randn(64, 1, device=device)  # one score a row; above 0 means yes
answers = torch.ones(64, 1, device=device)  # 1 means yes, 0 means no
with attempt():
    yes_no(scores, answers)

# %%
# A loss is a :term:`module`, as a model is, and such weights are its :term:`buffers
# <buffer>`: tensors that belong to the module and are not trained. So the loss moves as
# a model does.

for name, tensor in weighted.named_buffers():
    print(name, "is a buffer, on", tensor.device)
weighted.to(device)
yes_no.to(device)
with attempt():
    weighted(model(x), y)
    yes_no(scores, answers)

# %%
# A loss that you write yourself can even learn. This one multiplies the outputs by a
# number for each class. ``nn.Parameter`` turns these numbers into :term:`parameters
# <parameter>`, as a layer has them:


class ScaledLoss(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes))

    def forward(self, outputs, labels):
        return loss_fn(outputs * self.scale, labels)


scaled = ScaledLoss(3)
with attempt():
    scaled(model(x), y)

# %%
# Again the loss was not moved. And there is a second thing to do, which no message asks
# for: the :term:`optimizer` must know these parameters, too.

scaled.to(device)
both = list(model.parameters()) + list(scaled.parameters())
optimizer = torch.optim.Adam(both, lr=0.01)
scaled(model(x), y).backward()
optimizer.step()
print("the scale after one step:", scaled.scale.detach())

# %%
# The three numbers began as 1 and have changed: they are being trained. **A loss with
# tensors of its own is handled like a model: move it, and give its parameters to the
# optimizer.**
#
# .. _made-in-forward:
#
# Make new tensors where the data is
# ----------------------------------
#
# ``torch.zeros``, ``torch.randn`` and ``torch.arange`` make tensors on the CPU, unless
# you tell them something else. Inside ``forward`` nobody notices, until the model runs on
# a GPU. This layer scales its inputs and adds noise:


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 3)
        self.scale = 2 * torch.ones(20)

    def forward(self, x):
        return self.linear(x * self.scale + torch.randn(x.shape))


with attempt():
    Noisy().to(device)(x)

# %%
# The traceback, which is not shown here, ends at the line after ``def forward``.
#
# .. question:: Which tensor stayed on the CPU, and stopped the program?
#
#    - ``torch.randn(x.shape)``.
#
#      No. It would be made on the CPU, and that is a mistake as well. But the
#      product is computed before the sum, and the program stopped at the product.
#
#    - ``self.scale``.
#
#      Yes. It is a plain attribute, neither a parameter nor a buffer. ``to`` does
#      not know of it, and left it where it was.
#
#    - ``x``.
#
#      No. It was moved at the beginning of the lesson.
#
# There are two mistakes in this class, and the message shows the first one only. Fix it,
# and you get the same message for the other one. Both are fixed here:


class NoisyFixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 3)
        # a buffer: it moves with the model, and is saved with it
        self.register_buffer("scale", 2 * torch.ones(20))

    def forward(self, x):
        # randn_like makes the noise where x is
        return self.linear(x * self.scale + torch.randn_like(x))


with attempt():
    NoisyFixed().to(device)(x)

# %%
# **Register constants as buffers, and make new tensors beside one that is already in
# the right place**: with ``randn_like(x)``, ``zeros_like(x)``, or ``device=x.device``.
#
# .. _convolution-input:
#
# Input type and weight type: a convolution says it in other words
# ----------------------------------------------------------------
#
# Many networks for images use convolutions, and a convolution has a check of its own. Its
# weights are on the GPU, and the images are not:

convolution = nn.Conv2d(1, 8, kernel_size=3).to(device)
images = torch.randn(64, 1, 28, 28)
with attempt():
    convolution(images)

# %%
# The devices are hidden in the types. ``torch.FloatTensor`` is an old name for a
# ``float32`` tensor on the CPU, and ``torch.cuda.FloatTensor`` for one on the GPU. So the
# input is on the CPU, and the weight is on the GPU. You can ignore the rest, from ``or
# input should be`` on. **One type with the word cuda and one without it: something was
# not moved.** Here it is the images.

with attempt():
    convolution(images.to(device))

# %%
# .. _numpy:
#
# Bring results to the CPU before you give them to NumPy
# ------------------------------------------------------
#
# NumPy knows nothing of GPUs. It works in the computer's own memory, the :term:`host
# memory`.

with attempt():
    predictions.numpy()

# %%
# The message tells you the fix, ``.cpu()``. A tensor that still knows how it was
# computed, for a later ``backward``, needs one more call:

with attempt():
    model(x).cpu().numpy()
with attempt():
    print(model(x).detach().cpu().numpy().shape)

# %%
# ``detach`` gives the same numbers without that knowledge. **Detach, copy to the CPU,
# then give it to NumPy**: ``.detach().cpu().numpy()``. Each such call waits until the
# GPU has finished. So do not write it into every step; once an :term:`epoch`, where you
# show a result, is enough.
#
# .. _mixed-dtypes:
#
# Double and Float: give the model float32
# ----------------------------------------
#
# Now everything is on the GPU, and it fails all the same. These inputs were computed
# with NumPy:

import numpy as np

table = torch.from_numpy(np.ones((64, 20))).to(device)
print("the inputs are", table.dtype, "and the weights are", model[0].weight.dtype)
with attempt():
    model(table)
with attempt():
    model(table.float())

# %%
# A :term:`dtype` says what sort of numbers a tensor holds. NumPy mostly computes in
# ``float64``, ``from_numpy`` keeps that, and the model's parameters are ``float32``.
# Messages use older names: ``Double`` is ``float64``, ``Float`` is ``float32``, and
# ``Long`` is ``int64``. **Convert the data where it comes in**, with ``.float()``. You
# could also convert the model, with ``.double()``, but then each number takes twice the
# memory.
#
# .. _labels-dtype:
#
# Give cross-entropy the outputs first, then whole numbers
# --------------------------------------------------------
#
# The labels of a classification are numbers of classes, so they must be whole numbers.
# Data from a table can arrive as ``float32``:

from_table = y.float()
with attempt():
    loss_fn(model(x), from_table)
with attempt():
    loss_fn(model(x), from_table.long())

# %%
# ``target`` is the labels again, and ``.long()`` makes whole numbers of them. (``Byte``
# means whole numbers from 0 to 255.) If you swap the two arguments of the loss, you get a
# message that says nothing of swapping. This time both are on the CPU:

with attempt():
    loss_fn(labels, model(x).cpu())

# %%
# Cross-entropy computes the softmax of its first argument, and for whole numbers there is
# no softmax: "not implemented for 'Long'". **First the outputs, then the labels**, in
# PyTorch's losses.
#
# .. _shapes-do-not-fit:
#
# Shapes that cannot be multiplied: compare the inner numbers
# -----------------------------------------------------------
#
# The other frequent message that has nothing to do with devices is about :term:`shapes
# <shape>`. Each image has 28 × 28 = 784 pixels, and the layer takes 784 numbers. Does
# it fit?

layer = nn.Linear(784, 10).to(device)
images = torch.randn(64, 1, 28, 28, device=device)
with attempt():
    layer(images)
with attempt():
    layer(images.flatten(start_dim=1))

# %%
# No. ``nn.Linear`` looks at the last dimension only, and that is 28. It took the images
# for 64·1·28 = 1792 rows of 28 numbers. **In a product of two matrices the two inner
# numbers must be equal**: in ``(1792x28 and 784x10)`` they are 28 and 784. (The layer's
# weight is ``10x784``, and turned round for the product.) ``flatten(start_dim=1)`` leaves
# the first dimension, the 64 images, and makes one row of 784 numbers of each.
#
# .. _cuda-everywhere:
#
# Write to(device) instead of cuda()
# ----------------------------------
#
# .. covers:: S2.4
#
# Older code says ``model.cuda()`` and ``x.cuda()``. These calls are neither deprecated
# nor wrong. They know only the GPUs that PyTorch calls ``cuda``. We stop the practice
# GPU that we started, and try both ways on this machine as it is:

from gpulesson.device import choose_device

practice.stop()

with attempt():
    nn.Linear(20, 3).cuda()
with attempt():
    nn.Linear(20, 3).to(choose_device())

# %%
# Where PyTorch finds such a GPU, you see "no error" twice. Elsewhere the first line
# failed, and the second one took what is there. **Choose the device in one place**, and
# write ``to(device)`` everywhere else.
#
# A forgotten eval: the same question, two answers
# ------------------------------------------------
#
# The last four mistakes give no message. The program runs, and its result is wrong or
# its memory is wasted. First we need a network with :term:`dropout`, trained a little.
# The folded function ``trained`` makes one, trains it for sixty steps, and returns it and
# its last loss:

# fold: Data of three classes, and sixty training steps
device = choose_device()
torch.manual_seed(0)
centres = 3 * torch.randn(3, 20)
targets = torch.randint(3, (900,))
points = (centres[targets] + 3 * torch.randn(900, 20)).to(device)
targets = targets.to(device)


def trained(dropout=0.0, after=None):
    """Train a network on the first 600 points; return it, and its last loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 3)]
    if after is not None:
        layers.append(after)  # behind the last layer
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        loss = loss_fn(network(points[:600]), targets[:600])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network, loss.item()


# %%
# In :term:`training mode`, dropout sets numbers to zero at random, and draws anew in
# each call. We ask the network twice about the same 300 points, and count the answers
# that changed. How many will it be?

network, last_loss = trained(dropout=0.8)


def predict():
    with torch.inference_mode():
        return network(points[600:]).argmax(dim=1)


changed = (predict() != predict()).sum().item()
print("changed answers without eval():", changed, "of 300")
network.eval()
changed = (predict() != predict()).sum().item()
print("changed answers with eval():   ", changed, "of 300")

# %%
# Without ``eval()`` some answers are chance, and so is every number that you compute from
# them. With ``eval()`` none changed: in :term:`evaluation mode` dropout does nothing.
# **Change the mode before you evaluate, and change it back before you go on training**,
# with ``model.eval()`` and ``model.train()``. ``torch.inference_mode``, which the cell
# uses too, does not do that for you. It only stops PyTorch from remembering how results
# were computed.
#
# A softmax before the cross-entropy: a loss that cannot reach zero
# -----------------------------------------------------------------
#
# ``nn.CrossEntropyLoss`` wants :term:`logits`, the outputs as they are, and has a
# softmax inside. A second softmax, after the last layer, does no visible harm: the loss
# falls. How far?

network, plain = trained()
network, twice = trained(after=nn.Softmax(dim=1))
print(f"logits into the loss:        {plain:.4f}")
print(f"probabilities into the loss: {twice:.4f}")

sure = torch.tensor([[1.0, 0.0, 0.0]])  # quite sure of class 0, and right
print("the softmax of 1, 0, 0:     ", sure.softmax(dim=1))
print(f"the loss of 1, 0, 0:         {loss_fn(sure, torch.tensor([0])):.4f}")

# %%
# The best probabilities are 1 for the right class and 0 for the others. The loss takes
# them for logits, and its own softmax leaves a little more than a half for the right
# class, as the third line shows. So the second line cannot fall below the last one,
# however long you train. **Give the loss logits; take the softmax afterwards, when you
# want to show probabilities.** :doc:`Lesson 5 </lessons/05_fashion_mnist>` measures what
# the mistake costs in :term:`accuracy`.
#
# Kept losses: memory that grows with every step
# ----------------------------------------------
#
# A loss knows how it was computed, and holds on to the numbers that ``backward`` would
# need. If you collect losses in a list, you collect all of that. We watch the memory of
# your GPU, or of the practice GPU:

practice.start()
network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)).to("cuda")
x, y = inputs.to("cuda"), labels.to("cuda")
# a first pass, so that memory needed only once is not counted below
loss_fn(network(x), y).backward()


def growth(keep):
    """KiB more on the GPU after each of 50 losses."""
    kept, grown, start = [], [], torch.cuda.memory_allocated()
    for _ in range(50):
        kept.append(keep(loss_fn(network(x), y)))
        grown.append((torch.cuda.memory_allocated() - start) / 1024)
    return grown


# %%
# Three ways to fill the list: the loss as it is, the loss after ``backward``, and a
# detached loss.


def after_backward(loss):
    loss.backward()
    return loss


memory = {
    "append(loss)": growth(lambda loss: loss),
    "append(loss), after backward()": growth(after_backward),
    "append(loss.detach())": growth(lambda loss: loss.detach()),
}
for name, kib in memory.items():
    print(f"{name:<31} {kib[-1]:7.1f} KiB more after 50 losses")

# %%

# fold: Draw the memory, loss by loss
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for (name, kib), line in zip(memory.items(), ("-", "--", ":"), strict=True):
    ax.plot(range(1, 51), kib, line, linewidth=2.5, label=name)
ax.set_xlabel("losses in the list", fontsize=11)
ax.set_ylabel("KiB more on the GPU", fontsize=11)
ax.set_title("What a list of losses keeps in the GPU's memory")
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# A loss that was kept as it is keeps what ``backward`` would need: above all the output
# of the hidden layer, 64 × 64 numbers of 4 bytes, or 16 KiB. (A KiB is 1,024 bytes.)
# That is the usual mistake in an evaluation: nobody calls ``backward``.
#
# After ``backward`` PyTorch lets go of the stored numbers. One block of 512 bytes remains
# for each loss, 25 KiB for 50 of them, as for a detached loss: the two lines lie on each
# other. So why detach? Because a part of the :term:`autograd graph` stays, in the host
# memory, where this count does not look. **Keep the detached loss, never the loss
# itself.** ``loss.item()`` keeps even less, a number of Python, but makes the CPU wait
# for the GPU.

practice.stop()

# %%
# A clock that does not wait: a time that means nothing
# -----------------------------------------------------
#
# A GPU works through a queue. A call returns when its work is *in the queue*, not when
# it is done (`PyTorch's page on it
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution>`__). We
# multiply two matrices, and look at the clock twice. On a real GPU the first time is the
# time that it takes to ask. A CPU and the practice GPU have no queue: the times agree.

import time

from gpulesson.timing import synchronize

matrix = torch.randn(1500, 1500, device=device)
product = matrix @ matrix  # a first call has more to do, so it is not measured
synchronize(device)

start = time.perf_counter()
product = matrix @ matrix
returned = time.perf_counter() - start
synchronize(device)
finished = time.perf_counter() - start
print(f"{device}: the call returned after {returned * 1e3:.2f} ms,")
print(f"and the product was there after {finished * 1e3:.2f} ms")

# %%
# **Wait for the GPU before you look at the clock**: with ``synchronize``, as here, or
# with ``torch.cuda.synchronize()``, which it calls on a GPU for CUDA. On a GPU, a
# speed-up computed from the first time is wrong. :doc:`Lesson 8
# </lessons/08_was_it_faster>` is about measuring time.
#
# Many more messages stand on :doc:`a page of their own </errors>`, each with its cause
# and its fix. Paste yours into the search box of this site, and it leads you there.
#
# Exercise
# --------
#
# .. exercise:: Fix five mistakes
#    :minutes: 20
#    :difficulty: hard
#    :starter: exercise_07.py
#
#    Five short functions, and each has a mistake of this lesson. Three of them stop with
#    an error. Two give no message.
#
#    1. **Predict:** read the functions, and mark the mistakes that you find, before you
#       run anything.
#    2. Run the file. It calls each function on a GPU, or on the practice GPU, and prints
#       what comes back, or the error. Read each message from its end: which operation,
#       which argument, which device?
#    3. Fix the three functions that stop. They must also work with tensors on the CPU. (A
#       message names one thing that is wrong, not all of them.)
#    4. Find and fix the two mistakes that give no message. The docstring of each
#       function says what it promises.
#
#    To check it: ``python -m gpulesson check exercise_07.py``.
#
#    You are done when the check has a tick for each of the five. When you run the file
#    then, a kept loss holds no more than a block of 512 bytes, and no answer changes.
#
# .. solution::
#    :file: solution_07.py
#
#    Three mistakes stopped a function: the class weights of the loss and the labels
#    stayed on the CPU, and ``numpy()`` was called on a tensor of the GPU. Behind the last
#    one there was another: a tensor with its graph must be detached. Two mistakes said
#    nothing: the kept losses, and the missing ``eval()``.
#
# .. keypoints::
#
#    - A message names the operation, the argument and its device. Read it from its
#      end, and the traceback upwards to your own line.
#    - ``mat1`` is the batch, ``target`` the labels, ``weight`` in a loss its class
#      weights. A loss with tensors moves as a model does, and new tensors are made
#      with ``…_like`` or ``device=x.device``.
#    - NumPy takes ``.detach().cpu()``, and each such call waits for the GPU.
#    - Inputs of linear layers are ``float32``, class labels are ``int64``, and the
#      inner numbers of a product must be equal.
#    - ``.cuda()`` knows only NVIDIA's and AMD's GPUs, ``.to(device)`` knows all of them.
#    - A forgotten ``eval()``, a second softmax, kept losses and a clock that does not
#      wait give no message: look for them yourself.
#
# **Next:** :doc:`/lessons/08_was_it_faster` shows how to measure time so that you can
# trust the result.

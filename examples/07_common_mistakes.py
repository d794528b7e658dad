"""
7 · The common mistakes
=======================

Make each common mistake once on purpose, read what PyTorch says, and fix it.

.. overview::
   :teaching: 31
   :exercises: 20

   .. objectives::

      - Read a message from its end: the operation, the argument, the device.
      - Fix what it names: a tensor on the wrong device, or of a wrong dtype or shape.
      - Find two mistakes that give no message, and measure what they cost.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices`, for ``to`` and ``.device``
      - :doc:`/lessons/04_training_loop`, for the loop and its five calls
"""

# %%
# Everybody makes the mistakes of this page. Here you make each of them once, on purpose.
# Most of them need a :term:`GPU` for :term:`CUDA`.
#
# On a machine without a CUDA GPU, this page computes on the :term:`practice GPU`: it
# obeys a GPU's rules, and your CPU does the arithmetic.

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

# %%
# An error would stop this page. So each mistake is in a block that begins with ``with
# attempt():``. It catches the error, and prints it.

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
# The model is on the GPU, and the :term:`batch` was not moved. Before you run the cell:
# what would you like the message to tell you?

with attempt():
    outputs = model(inputs)

# %%
# It tells you three things. Read it from its end.
#
# 1. The operation: ``wrapper_CUDA_addmm`` is PyTorch's inner name of ``addmm``, a matrix
#    product and an addition. That is what ``nn.Linear`` computes. So it happened inside
#    the model.
# 2. The argument: ``mat1`` is the first matrix of the product, the batch. The second
#    one, ``mat2``, would be the weights of the layer.
# 3. The :term:`device`: ``mat1`` is on ``cpu``, and the other :term:`tensors <tensor>`
#    are on ``cuda:0``. So the batch is on the CPU, and the weights are on the GPU.
#
# Such a message is like the slip on a parcel that came back. It says who could not
# deliver it, which parcel it is, and where the parcel lies now. **The operation leads
# you to the line, the argument to the tensor, and the device says where that tensor
# is.** The fix follows: ``x = inputs.to(device)``.
#
# In your own program a traceback is above the message. Go up in it from the end until
# you see a line of your own file: there you can change something.
#
# .. _left-behind:
#
# got mat1, got target: which of the three was not moved
# ------------------------------------------------------
#
# .. covers:: S1.12
#
# A training :term:`step` needs three things on the GPU: the inputs, the model and the
# labels. Now the inputs are moved. First the model is not, then the labels are not:

x, y = inputs.to(device), labels.to(device)
cpu_model = nn.Linear(20, 3)

with attempt():
    cpu_model(x)
with attempt():
    loss_fn(model(x), labels)
with attempt():
    loss_fn(model(x), y)

# %%
# The first message names ``mat1`` again, but this time ``mat1`` is on ``cuda:0``, and the
# other tensors, the weights, are on ``cpu``. **A batch on cpu must be moved. A batch on
# cuda:0 is right, and then it is the model that must be moved.**
#
# The second message comes from ``nll_loss_forward``, a part of the :term:`cross-entropy`.
# ``target`` is PyTorch's word for the labels. So the model went well, and the line to
# look at computes the :term:`loss`. With all three on the GPU there is no error.
#
# A model for texts begins with a :class:`torch.nn.Embedding`, which holds a row of
# weights for each word, and picks rows by the numbers of the words. It says: *got index
# is on cpu, different from other tensors on cuda:0 (when checking argument in method
# wrapper_CUDA__index_select)*.
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
# found at least two devices: ask each tensor of the line
# -------------------------------------------------------
#
# After training you count the right answers. The predictions come from the model, and
# the labels straight from the loader:

predictions = model(x).argmax(dim=1)
with attempt():
    correct = (predictions == labels).sum()
with attempt():
    correct = (predictions == y).sum()

# %%
# This message names no argument. It comes from operations that work number by number,
# such as ``==``, ``+`` and ``*``, which treat both sides alike. **When no argument is
# named, print the device of each tensor in the line.** Here ``labels`` is the wrong one,
# and ``y`` is its copy on the GPU.
#
# .. _single-numbers:
#
# A single number may come from the CPU
# -------------------------------------
#
# .. covers:: S1.8
#
# Both lines multiply numbers on the GPU by one half, which is on the CPU. Will both
# fail?

with attempt():
    model(x) * torch.tensor(0.5)
with attempt():
    model(x) * torch.tensor([0.5])

# %%
# Only the second one fails: ``[0.5]`` holds one number too, but as a list of length one.
# **In arithmetic, a tensor without dimensions may come from the CPU; one with dimensions
# must be moved**, as in :ref:`lesson 2 <two-devices>`.
#
# .. _loss-weights:
#
# got weight: move the loss when it has its own tensors
# --------------------------------------------------------
#
# .. covers:: S4.5
#
# With :term:`class weights`, mistakes in a rare class count more. Inputs, model and
# labels are on the GPU. What is missing?

weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
with attempt():
    weighted(model(x), y)

print("buffers of the loss:", [name for name, _ in weighted.named_buffers()])
weighted.to(device)
with attempt():
    weighted(model(x), y)

# %%
# The operation belongs to the loss again, and ``weight`` is the name of that argument of
# ``nn.CrossEntropyLoss``. A loss is a :term:`module`, as a model is, and class weights
# are its :term:`buffers <buffer>`, tensors that are not trained. **Move a loss that has
# tensors as you move a model.**
#
# .. fold:: Going further: a loss for yes and no, and a loss that learns
#
#    :class:`torch.nn.BCEWithLogitsLoss` with a ``pos_weight`` has to be moved, too. It
#    computes number by number, so its message names no argument.
#
#    A loss that you write yourself can have :term:`parameters <parameter>`, made with
#    :class:`torch.nn.Parameter`. Then no message tells you that the :term:`optimizer`
#    must know them. :ref:`A cell further down <loss-that-learns>` trains with an
#    optimizer that knows them, and with one that does not.
#
# .. _made-in-forward:
#
# found at least two devices, in forward: make tensors where the data is
# ----------------------------------------------------------------------
#
# ``torch.ones`` and ``torch.randn`` make tensors on the CPU, unless you tell them
# something else. This layer scales its inputs and adds noise:


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
# The message shows the first of two mistakes. Fix it, and you get the same message for
# the other one. Both are fixed here:


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
# Input type and weight type should be the same: look for the word cuda
# ---------------------------------------------------------------------
#
# Networks for images use convolutions, and a convolution has its own check:

convolution = nn.Conv2d(1, 8, kernel_size=3).to(device)
images = torch.randn(64, 1, 28, 28)
with attempt():
    convolution(images)
with attempt():
    convolution(images.to(device))

# %%
# ``torch.FloatTensor`` is an old name for a ``float32`` tensor on the CPU, and
# ``torch.cuda.FloatTensor`` for one on the GPU. You can ignore the rest, from ``or input
# should be`` on. **One type with the word cuda and one without it: something was not
# moved.** Here it is the input, the images.
#
# .. _numpy:
#
# can't convert cuda:0 device type tensor to numpy: detach, then copy
# -------------------------------------------------------------------
#
# NumPy works in the computer's own memory, the :term:`host memory`. Which calls will
# bring a result of the GPU there?

with attempt():
    predictions.numpy()
with attempt():
    model(x).cpu().numpy()
with attempt():
    model(x).detach().cpu().numpy()

# %%
# The first message asks for ``cpu()``. The second is about a tensor that still knows how
# it was computed, for a later ``backward``; ``detach`` gives the same numbers without
# that. **Detach, copy to the CPU, then give it to NumPy.** Each such call waits for the
# GPU, so do it once an :term:`epoch`, where you show a result, and not in every step.
#
# .. _mixed-dtypes:
#
# mat1 and mat2 must have the same dtype: Double and Float
# --------------------------------------------------------
#
# Now everything is on the GPU. These inputs were computed with NumPy, whose fractions
# are ``float64`` unless you say otherwise:

import numpy as np

table = torch.from_numpy(np.ones((64, 20))).to(device)
print("the inputs are", table.dtype, "and the weights are", model[0].weight.dtype)
with attempt():
    model(table)
with attempt():
    model(table.float())

# %%
# A :term:`dtype` says what sort of numbers a tensor holds. NumPy mostly computes in
# ``float64``, and a model's parameters are ``float32``. Messages use older names:
# ``Double`` is ``float64``, ``Float`` is ``float32``, and ``Long`` is ``int64``.
# **Convert the data where it comes in**, with ``.float()``.
#
# .. _labels-dtype:
#
# expected target dtype to be Long: outputs first, then whole numbers
# -------------------------------------------------------------------
#
# A label is the number of a class, but a table may hold it as ``float32``. And what if
# you swap the two arguments of the loss? This time all tensors are on the CPU:

scores = model(x).cpu()
with attempt():
    loss_fn(scores, labels.float())
with attempt():
    loss_fn(labels, scores)
with attempt():
    loss_fn(scores, labels.float().long())

# %%
# The first message wants whole numbers for the labels, and ``.long()`` makes them.
# (``Byte`` means whole numbers from 0 to 255.) The second one says nothing of swapping:
# the loss takes the :term:`softmax` of its first argument, and for whole numbers there
# is none, "not implemented for 'Long'". **First the outputs, then the labels, as whole
# numbers.**
#
# .. _shapes-do-not-fit:
#
# mat1 and mat2 shapes cannot be multiplied: compare the inner numbers
# --------------------------------------------------------------------
#
# Each image has 28 × 28 = 784 pixels, and the layer takes 784 numbers. Does its
# :term:`shape` fit?

layer = nn.Linear(784, 10).to(device)
images = torch.randn(64, 1, 28, 28, device=device)
with attempt():
    layer(images)
with attempt():
    layer(images.flatten(start_dim=1))

# %%
# No. ``nn.Linear`` looks at the last dimension only, and that is 28. It took the images
# for 64·1·28 = 1792 rows of 28 numbers. **In a product of two matrices the two inner
# numbers must be equal**: in ``(1792x28 and 784x10)`` they are 28 and 784. (``addmm:``
# before it is the operation; some versions of PyTorch leave that out.)
# ``flatten(start_dim=1)`` keeps the first dimension, the 64 images, and makes one row of
# 784 numbers of each.
#
# .. _cuda-everywhere:
#
# Write to(device) instead of cuda()
# ----------------------------------
#
# .. covers:: S2.4
#
# Older code says ``model.cuda()`` and ``x.cuda()``. These calls are not deprecated, and
# give no warning. What do they do when you choose another device?

for name in ("cuda", "cpu"):
    chosen = torch.device(name)
    print("chosen:     ", chosen)
    print("to(chosen): ", nn.Linear(20, 3).to(chosen).weight.device)
    print("cuda():     ", nn.Linear(20, 3).cuda().weight.device)

# %%
# ``cuda()`` knows one sort of device, and does not ask what you chose. On a Mac, or on a
# machine without a GPU, it stops with a message of :ref:`lesson 1 <no-driver>`. **Choose
# the device in one place**, and write ``to(device)`` everywhere else.
#
# No message: a forgotten eval gives two answers to one question
# --------------------------------------------------------------
#
# In :term:`training mode`, :term:`dropout` sets numbers to zero at random, and draws
# again in each call. We ask a network twice about the same 64 rows. How many answers
# change?

network = nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 3))
network.to(device)


def changed():
    with torch.no_grad():
        return (network(x).argmax(dim=1) != network(x).argmax(dim=1)).sum().item()


print("changed answers without eval():", changed(), "of 64")
network.eval()
print("changed answers with eval():   ", changed(), "of 64")

# %%
# Without ``eval()`` some answers are chance, and so is every number that you compute from
# them. In :term:`evaluation mode` dropout does nothing, and no answer changed.
# **Change the mode before you evaluate, and change it back before you go on training**,
# with ``model.eval()`` and ``model.train()``. ``no_grad`` does not do that for you.
#
# No message: kept losses fill the memory
# ---------------------------------------
#
# A loss holds on to the numbers that ``backward`` would need. If you collect losses in a
# list, you collect all of that. The folded function ``growth`` collects 50 losses, and
# counts how much more of the GPU's memory is taken after each.

# fold: Count the memory after each of 50 losses
loss_fn(model(x), y).backward()  # takes memory that stays, and is not counted below


def growth(keep):
    """Keep 50 losses, and return the KiB more on the GPU after each of them."""
    kept, grown, start = [], [], torch.cuda.memory_allocated()
    for _ in range(50):
        kept.append(keep(loss_fn(model(x), y)))
        grown.append((torch.cuda.memory_allocated() - start) / 1024)
    return grown


# %%
# Three ways to fill the list. Which of them will grow?


def after_backward(loss):
    loss.backward()
    return loss


memory = {
    "append(loss)": growth(lambda loss: loss),
    "append(loss), after backward()": growth(after_backward),
    "append(loss.detach())": growth(lambda loss: loss.detach()),
}
for name, kib in memory.items():
    print(f"{name:<31} {kib[-1]:6.1f} KiB more after 50 losses")

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
# A loss as it is keeps above all the output of the hidden layer, 64 × 32 numbers of 4
# bytes, or 8 KiB. (A KiB is 1,024 bytes.) This happens in evaluations, where nobody calls
# ``backward``. After ``backward`` only a block of 512 bytes remains, as for a detached
# loss, but a part of the :term:`autograd graph` stays in the host memory. **Keep the
# detached loss, never the loss itself.**
#
# .. _loss-that-learns:

# fold: Going further: train a loss that has a parameter


class Scaled(nn.Module):
    """The cross-entropy of scores times a number that is learned as well."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, scores, labels):
        return nn.functional.cross_entropy(self.scale * scores, labels)


for known in (False, True):
    loss_fn = Scaled().to(device)
    trained = [*model.parameters(), *(loss_fn.parameters() if known else ())]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    print(f"the optimizer knows it: {known!s:<5}  scale {loss_fn.scale.item():.3f}")

# %%
# Two more mistakes give no message: a :class:`torch.nn.Softmax` before the cross-entropy
# (:doc:`lesson 5 </lessons/05_fashion_mnist>`), and a clock that does not wait for the
# GPU (:doc:`lesson 8 </lessons/08_was_it_faster>`). You have a message that is not here?
# :doc:`The page of messages </errors>` has many more, each with its cause and its fix:
# paste yours into the search box of this site.
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
#    - Inputs, model, labels, a loss with tensors and what ``forward`` makes must be on
#      one device. Inputs are ``float32``, labels ``int64``, and the inner numbers of a
#      product are equal.
#    - A forgotten ``eval()`` and kept losses give no message: look for them yourself.
#
# **Next:** :doc:`/lessons/08_was_it_faster` shows how to measure time so that you can
# trust the result.

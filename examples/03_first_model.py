"""
A first model on the GPU
========================

Train a small network on the iris flowers, check every printed loss against a
published run, and move it to a GPU.

.. overview::
   :teaching: 20
   :exercises: 15

   .. questions::

      - What does a complete training look like, from the data to a judged model?
      - What must change to run it on a GPU?
      - How do I know that it still computes the same?

   .. objectives::

      - Split the data and prepare tensors for training and testing.
      - Train a network and compare its losses with published ones.
      - Keep losses without their history.
      - Move the model and the data, and check with ``is_cuda`` that they arrived.
      - Time a training so that the number means something.
      - Judge the model on flowers that it has not seen.

.. prereq:: Words that this lesson uses

   - A *loss* is one number that says how wrong the outputs are; *cross-entropy* is
     the usual one for choosing among classes.
   - A *gradient* says, for each of the model's parameters, which way the loss grows.
   - An *optimizer* moves the parameters the other way; *Adam* is a popular one.
   - An *epoch* is one pass over the training data; a *batch* is what one step looks
     at.
"""

# %%
# A published boot camp notebook trains a network with four inputs, hidden layers of
# eight and nine, and three outputs on the iris data, prints ten losses and reports
# 0.467 seconds on a GeForce GTX 1080 Ti. We do the same, print our losses beside the
# published ones, and add what that notebook left out.

import time

import matplotlib.pyplot as plt
import torch
from sklearn.model_selection import train_test_split

from gpulesson import practice
from gpulesson.data import load_iris
from gpulesson.device import choose_device, devices_of
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP, count_parameters
from gpulesson.timing import measure

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
device = choose_device()
print("computing on", device, "· PyTorch", torch.__version__)

# %%
# The data, and two altered rows
# ------------------------------
#
# .. covers:: S3.7
#
# 150 flowers, four lengths in centimetres each, three species. One widely copied
# version of this famous table, the UCI repository's, differs in two rows from the one
# in scikit-learn. Nobody would notice, except somebody who compares eight decimals,
# as we are about to do:

iris = load_iris()
copied = load_iris(widely_copied=True)

for row in (iris.features != copied.features).any(dim=1).nonzero().flatten().tolist():
    for where, flowers in {
        "scikit-learn": iris,
        "the widely copied file": copied,
    }.items():
        numbers = [f"{x:.1f}" for x in flowers.features[row].tolist()]
        print(f"row {row}: {numbers} in {where}")
print("we train on:", copied.source)

# %%
# A fifth of the flowers is put aside for judging the model, with the notebook's random
# state, and what training needs goes to the device. Mind that both halves travel, the
# features *and* the labels:

X_train, X_test, y_train, y_test = train_test_split(
    copied.features.numpy(), copied.targets.numpy(), test_size=0.2, random_state=33
)
X_train, X_test = torch.tensor(X_train).to(device), torch.tensor(X_test).to(device)
y_train, y_test = torch.tensor(y_train).to(device), torch.tensor(y_test).to(device)

print(
    "train:",
    tuple(X_train.shape),
    X_train.dtype,
    tuple(y_train.shape),
    y_train.dtype,
    "on",
    X_train.device,
)
print(
    "test: ",
    tuple(X_test.shape),
    X_test.dtype,
    tuple(y_test.shape),
    y_test.dtype,
    "on",
    X_test.device,
)

# %%
# The boot camp notebook also wraps its features in two data loaders with batches of
# 60. They hold no labels, and nothing ever reads from them. Loaders come when we need
# them, in a later lesson; 120 rows of four numbers fit into one batch.
#
# The model
# ---------
#
# Three linear layers with a ReLU between them. The seed is set right before the model
# is made, since making it draws the initial weights:

torch.manual_seed(32)
model = MLP(4, 8, 9, 3)
print(model)
print(count_parameters(model), "parameters, on", devices_of(model))

# %%
# One hundred steps
# -----------------
#
# .. covers:: S3.9
#
# The whole training data is one batch, so an epoch is one step. Each step does five
# things, in this order: compute the outputs, compute the loss, clear the old gradients,
# compute the new ones, move the weights.


def train(model, inputs, targets, epochs=100):
    """The notebook's loop. Returns the loss of every epoch, as floats."""
    loss_fn = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


start = time.perf_counter()
model.to(device)
losses = train(model, X_train, y_train)
first_seconds = time.perf_counter() - start

# the same once more, with the two rows as scikit-learn has them
torch.manual_seed(32)
other = MLP(4, 8, 9, 3).to(device)
other_X, _, other_y, _ = train_test_split(
    iris.features.numpy(), iris.targets.numpy(), test_size=0.2, random_state=33
)
other_losses = train(
    other, torch.tensor(other_X).to(device), torch.tensor(other_y).to(device)
)

# %%
# The published table, ours, and a third column for scikit-learn's version of the two
# rows:

published = [
    1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
    0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931,
]  # fmt: skip

print("epoch   published         ours   difference   with scikit-learn's rows")
for epoch, theirs in zip(range(1, 101, 10), published, strict=True):
    ours, others = losses[epoch - 1], other_losses[epoch - 1]
    print(
        f"{epoch:>5}  {theirs:.8f}   {ours:.8f}      {abs(ours - theirs):.1e}"
        f"                 {others:.8f}"
    )

# %%
# The first loss depends on the data, the split, the network and the seed, and on no
# training step yet. If the first row agrees, all four are the notebook's. After that,
# each step feeds on the one before, and tiny differences of rounding between
# processors, libraries and versions add up; the later rows agree to about four
# decimals.
#
# With scikit-learn's own two rows the table is another one, from the first loss on.
# This is what a data set that "is just iris" can do:

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(range(1, 101), losses, label="our run")
left.plot(range(1, 101, 10), published, "o", mfc="none", label="published")
left.set(
    xlabel="epoch", ylabel="cross-entropy loss", title="Every tenth loss was published"
)
left.legend()
right.semilogy(
    range(1, 101), [abs(a - b) for a, b in zip(losses, other_losses, strict=True)]
)
right.set(
    xlabel="epoch",
    ylabel="difference of the losses",
    title="What two altered rows change",
)
for axes in (left, right):
    axes.grid(alpha=0.3)

print(
    f"first loss: {losses[0]:.8f} widely copied file, {other_losses[0]:.8f} scikit-learn"
)

# %%
# Keep the number, not its history
# ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#
# One line of our loop differs from the boot camp's. It wrote ``losses.append(loss)``,
# and ours says ``loss.detach()``. A loss is more than a number. It remembers how it
# was computed, so that ``backward`` can retrace it:

loss = torch.nn.CrossEntropyLoss()(model(X_train), y_train)
print("kept as it is:", loss.grad_fn.name())
print("detached:     ", loss.detach().grad_fn)

# %%
# A list of undetached losses keeps a piece of that memory alive for each step. Beside
# that, such a list cannot be drawn: plotting libraries want numbers, and a tensor that
# requires gradients refuses to become one silently.
#
# Now on a GPU
# ------------
#
# .. covers:: S3.6
#
# On a machine with a CUDA GPU everything above ran there already, unless you chose
# another device: ``device`` said so. Without one, we use the practice GPU for this
# part. The boot camp notebook's test is to ask the model's first parameter, before
# and after:

practice.start()
print(torch.cuda.get_device_name())

torch.manual_seed(32)
model = MLP(4, 8, 9, 3)
print("before:", next(model.parameters()).is_cuda)

gpu_model = model.cuda()
print("after: ", next(model.parameters()).is_cuda)
print("gpu_model is model:", gpu_model is model)

# %%
# The boot camp notebook calls the result ``gpumodel``, as if there were two. There is
# one, and it moved. Now the data, and the same function as above, not a letter
# changed:

cpu_X, cpu_y = X_train.cpu(), y_train.cpu()
gpu_X, gpu_y = cpu_X.cuda(), cpu_y.cuda()
print("inputs and labels on a GPU:", gpu_X.is_cuda, gpu_y.is_cuda)

gpu_losses = train(model, gpu_X, gpu_y)
print("first loss:", f"{gpu_losses[0]:.8f}")
largest = max(abs(a - b) for a, b in zip(gpu_losses, losses, strict=True))
print(f"largest difference to the run above: {largest:.1e}")

# %%
# Two changes made it a GPU program: the model was moved, and the data was moved. The
# loop did not change. And forgetting one of the two is an error with a clear message,
# not a wrong result:

try:
    train(model, cpu_X, cpu_y.cuda(), epochs=1)
except RuntimeError as error:
    print(error)

practice.stop()

# %%
# How long did it take?
# ---------------------
#
# .. covers:: S3.8
#
# The boot camp notebook looks at the clock before and after. On a GPU that measures
# the wrong thing twice: the first steps pay for starting up the GPU and its
# libraries, and Python runs ahead of the GPU, so that the clock can be read before
# the work is done. A timing that means something warms up first, waits for the device
# (``synchronize``), and is repeated:


def one_training():
    torch.manual_seed(32)
    train(MLP(4, 8, 9, 3).to(device), X_train, y_train)


print(f"the first training of this page, with a clock: {first_seconds:.3f} s")
print("measured:", measure(one_training, device=device, warmup=1, repeats=5))

# %%
# Compare with the published 0.467 seconds, and with care: another machine, another
# PyTorch, another clock. What can be said is this. A network of this size gives a GPU
# little to work on. Its largest matrix product is 120 × 8 × 9, at the left edge of the
# picture in :doc:`lesson 1 </lessons/01_is_there_a_gpu>`, where starting an operation
# costs more than computing it. So do not expect a GPU to win here, and do not judge
# GPUs by a first model.
#
# Was anything learned?
# ---------------------
#
# The published notebook stops at the training loss. But a training loss says how well
# the network fits flowers that it was shown. The thirty that were put aside tell
# whether it learned anything about iris:

torch.manual_seed(32)
model = MLP(4, 8, 9, 3).to(device)
train(model, X_train, y_train)

result = evaluate(model, [(X_test, y_test)], torch.nn.CrossEntropyLoss(), device)

figure, axes = plt.subplots(figsize=(4, 3.4), layout="constrained")
axes.imshow(result.confusion, cmap="Blues")
for true in range(3):
    for predicted in range(3):
        count = int(result.confusion[true, predicted])
        axes.text(
            predicted,
            true,
            count,
            ha="center",
            va="center",
            color="white" if count > 6 else "black",
        )
axes.set(
    xlabel="predicted",
    ylabel="true",
    title=f"{result.samples} flowers the network had not seen",
)
axes.set_xticks(range(3), copied.class_names)
axes.set_yticks(range(3), copied.class_names)
plt.show()

print(f"test loss {result.loss:.4f}")
print(f"accuracy {result.accuracy:.1%} on {result.samples} flowers")

# %%
# Each row is a species, each column what the network said; what is off the diagonal was
# mistaken. Thirty flowers are few: one more mistake would move the accuracy by more
# than three points, so do not read much into its decimals.
#
# Exercise
# --------
#
# .. exercise:: Take this training to a device
#    :minutes: 15
#    :difficulty: medium
#    :starter: 03_train_iris.py
#
#    The script trains the network of this lesson, on the CPU only, and it never looks
#    at the test flowers.
#
#    1. **Predict:** how many lines must change to train on a GPU? Which ones?
#    2. Choose a device at the top, and move what must be moved.
#    3. Print where the model's parameters are after the move.
#    4. After training, compute the accuracy on ``X_test`` and ``y_test``, without
#       gradients.
#    5. Run it on the CPU and, if you have one, on a GPU. Is the first loss the same?
#
#    To check it: ``python -m gpulesson check 03_train_iris.py``.
#
#    You are done when the accuracy is printed and the losses agree with this page to
#    about four decimals.
#
# .. solution::
#    :file: 03_train_iris.py
#
#    The device and five moves: the model, and inputs and targets of both parts. The
#    loop is untouched; the evaluation after it is new.
#
# .. keypoints::
#
#    - Split the data first; inputs and labels both become tensors, and both travel.
#    - Judge the model on the part that was put aside: a training loss alone proves
#      nothing.
#    - With the same data, split and seed a published training can be reproduced; the
#      first loss shows whether it is.
#    - ``model.to(device)`` and the data's ``.to(device)`` make it a GPU training, and
#      ``is_cuda`` shows whether they arrived; the loop does not change.
#    - Warm up, synchronise and repeat before you believe a timing.
#    - Store ``loss.detach()``, not ``loss``: the loss drags along the memory of how it
#      was computed.
#
# **Next:** :doc:`/lessons/04_training_loop` makes a loop over batches, and takes it to a
# device.

"""
Fashion-MNIST end to end
========================

Train a classifier on pictures of clothes, judge it honestly, and look at what it gets
wrong.

.. overview::
   :teaching: 25
   :exercises: 15

   .. questions::

      - What does a complete training on real pictures look like?
      - How is an accuracy computed so that it is right, and does not slow the
        training down?
      - What are logits, and where does the softmax belong?

   .. objectives::

      - Prepare images as a batch of numbers on a device, and name their source.
      - Train for five epochs and report a loss weighted by samples.
      - Evaluate in the right mode, without gradients, with one transfer.
      - Explain logits, and measure what a softmax before the loss costs.
      - Read a confusion matrix and the pictures behind it.
"""

# %%
# Seventy thousand pictures of clothes, 28 by 28 pixels, ten kinds: `Fashion-MNIST
# <https://github.com/zalandoresearch/fashion-mnist>`__ is small enough for a laptop and
# hard enough to make mistakes on.

import inspect

import matplotlib.pyplot as plt
import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP, count_parameters
from gpulesson.training import fit, train_epoch

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
device = choose_device()
data = load_fashion_mnist()
print("data:  ", data.source)
print("device:", device, "· PyTorch", torch.__version__)

# %%
# Read the source line before any number below. ``fashion-mnist, 60000/10000`` is the
# whole set; an *excerpt* has fewer pictures, and results on it are lower; the *digits
# stand-in* takes over when nothing could be downloaded, and then these are not even
# clothes. (How to get the real set: :doc:`/setup`.)
#
# Look before you train
# ---------------------

figure, grid = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
for kind, axes in enumerate(grid.flat):
    first = int((data.train_targets == kind).nonzero()[0])
    axes.imshow(data.train_images[first], cmap="gray_r")
    axes.set_title(data.class_names[kind], fontsize=10)
    axes.axis("off")
figure.suptitle(f"The first of each kind ({data.source})")
plt.show()

print("images: ", tuple(data.train_images.shape), data.train_images.dtype)
print(
    "targets:",
    tuple(data.train_targets.shape),
    data.train_targets.dtype,
    "values",
    data.train_targets.unique().tolist(),
)

# %%
# A picture is bytes from 0 to 255, a target is the number of its kind. A network wants
# floats around zero to one. The whole set is so small that we convert it once, and keep
# it on the device:

train_images, test_images = (
    part.to(device).float() / 255 for part in (data.train_images, data.test_images)
)
train_targets, test_targets = (
    data.train_targets.to(device),
    data.test_targets.to(device),
)

print(f"{train_images.nbytes / 1e6:.0f} MB of training images on {train_images.device}")

# %%
# The network and its loop
# ------------------------
#
# .. covers:: S1.13
#
# 784 pixels in, two hidden layers of 128 and 64, ten numbers out. Adam with a
# learning rate of 0.001, batches of 64, five epochs. It is the loop of :doc:`lesson 4
# </lessons/04_training_loop>`, with shuffling and the mode switched on. For one epoch
# we leave out forty images, so that the last batch is short whatever the data:

torch.manual_seed(0)
model = MLP(784, 128, 64, 10).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batches = Batches(train_images, train_targets, batch_size=64, shuffle=True)
fewer = Batches(train_images[:-40], train_targets[:-40], batch_size=64, shuffle=True)

model.train()
batch_losses, batch_counts = [], []
for inputs, targets in fewer:
    outputs = model(inputs)
    loss = loss_fn(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    batch_losses.append(loss.detach())
    batch_counts.append(len(targets))

print(
    count_parameters(model),
    "parameters,",
    len(fewer),
    "steps in one epoch, the last with",
    batch_counts[-1],
    "images",
)

# %%
# Report the loss of an epoch
# ---------------------------
#
# .. covers:: S1.9
#
# Most scripts add up ``loss.item()`` in every step and divide by the number of steps.
# Two things are wrong with that. ``item()`` makes the CPU wait until the GPU has
# finished the step, every step. And a short last batch counts as much as a full one. So
# we kept the losses on the device, and weight each with its number of samples, in one
# transfer:

losses = torch.stack(batch_losses).cpu().double()
counts = torch.tensor(batch_counts, dtype=torch.float64)
by_steps = losses.mean().item()
by_samples = (losses * counts).sum().item() / counts.sum().item()
print(f"mean over steps {by_steps:.6f}, mean over samples {by_samples:.6f}")

# %%
# The difference is small here, since one short batch is among many. With few batches
# it can be large. The second number is right in every case.
#
# What stands in those two cells, the package has as a function: the same loop, with
# checks before it, and the weighting behind it. It stops with a clear message when a
# loss is no longer a finite number. This is its text, without the docstring:

head, docstring, body = inspect.getsource(train_epoch).split('"""')
print(head.rstrip() + body)

# %%
# ``fit`` calls it once an epoch, evaluates on held-out data in between, and keeps a
# history that draws itself. We train a fresh model with it, for the full five epochs.
# (The test images serve as held-out data here, because nothing is chosen by them.
# Whoever tunes on them needs a third part.)

torch.manual_seed(0)
model = MLP(784, 128, 64, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
test_batches = Batches(test_images, test_targets, batch_size=1000)

history = fit(
    model, batches, loss_fn, optimizer, device, epochs=5, validation=test_batches
)
history.plot().set_title(f"Five epochs ({data.source})")
plt.show()
print(history)

# %%
# Judge it
# --------
#
# .. covers:: S1.10
#
# Two things make an evaluation right, and two make it cheap. Right: ``eval()`` mode, so
# that layers such as dropout are quiet, and ``argmax`` over dimension **1**, which runs
# over the ten kinds; dimension 0 would run over the pictures. Cheap:
# ``inference_mode``, so that nothing is remembered for a backward pass that never
# comes, and counting on the device, so that only one number crosses over at the end.

model.eval()
correct = torch.zeros((), dtype=torch.int64, device=device)
with torch.inference_mode():
    for inputs, targets in test_batches:
        logits = model(inputs)  # [batch, 10]
        correct += (logits.argmax(dim=1) == targets).sum()

right = correct.item()  # the only wait
accuracy = right / len(test_targets)
print(f"{right} of {len(test_targets)} right: {accuracy:.2%} ({data.source})")

result = evaluate(model, test_batches, loss_fn, device)
print(
    f"the package counts the same: {result.accuracy:.2%}, with loss {result.loss:.4f}"
)

# %%
# Logits, and where the softmax belongs
# -------------------------------------
#
# .. covers:: S1.11
#
# The ten numbers that come out are *logits*: any real numbers, larger meaning likelier.
# Softmax turns them into probabilities that sum to one. It does not change their order,
# so the ``argmax`` needs none:

with torch.inference_mode():
    logits = model(test_images[:1])
    probabilities = logits.softmax(dim=1)

print("logits:       ", [round(value, 1) for value in logits[0].tolist()])
print("probabilities:", [round(value, 3) for value in probabilities[0].tolist()])
print(
    "sum:",
    round(probabilities.sum().item(), 6),
    "· same winner:",
    bool(logits.argmax() == probabilities.argmax()),
)

# %%
# ``CrossEntropyLoss`` contains a softmax, and wants logits. A model that ends with a
# softmax of its own runs all the same, and learns worse, since the second softmax
# squeezes the differences flat. No error tells you. A shorter training without that
# mistake and with it, two epochs on the first 8,000 images, three seeds each:


few = Batches(train_images[:8000], train_targets[:8000], batch_size=64, shuffle=True)


def accuracy_after_training(seed, with_softmax):
    torch.manual_seed(seed)
    layers = [MLP(784, 128, 64, 10)] + (
        [torch.nn.Softmax(dim=1)] if with_softmax else []
    )
    network = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    fit(network, few, loss_fn, optimizer, device, epochs=2)
    return evaluate(network, test_batches, loss_fn, device).accuracy


for with_softmax in (False, True):
    values = [accuracy_after_training(seed, with_softmax) for seed in range(3)]
    print(
        f"softmax in the model: {with_softmax!s:<5}  accuracy after 2 epochs:",
        ", ".join(f"{value:.2%}" for value in values),
    )

# %%
# What it gets wrong
# ------------------
#
# One number hides *which* mistakes were made. In the confusion matrix each row is a
# true kind, each column what the model said. The diagonal is right.

figure, axes = plt.subplots(figsize=(6, 5.2), layout="constrained")
share = result.confusion / result.confusion.sum(dim=1, keepdim=True)
picture = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(10), data.class_names, rotation=45, ha="right")
axes.set_yticks(range(10), data.class_names)
axes.set(xlabel="predicted", ylabel="true", title=f"Share of each kind ({data.source})")
figure.colorbar(picture, shrink=0.8, label="share of the true kind")
plt.show()

mistakes = result.confusion.clone().fill_diagonal_(0)
true, predicted = divmod(int(mistakes.argmax()), 10)
kinds = data.class_names
print(f"most frequent mistake: {kinds[true]!r} taken for {kinds[predicted]!r}:")
print(f"{int(mistakes[true, predicted])} of {int(result.confusion[true].sum())}")

# %%
# And the pictures themselves: those it was most certain about, and wrong.

with torch.inference_mode():
    logits = torch.cat([model(inputs) for inputs, _ in test_batches])
guesses, certainty = logits.argmax(dim=1), logits.softmax(dim=1).amax(dim=1)
wrong = (guesses != test_targets).nonzero().flatten()
worst = wrong[certainty[wrong].argsort(descending=True)][:10].cpu()

figure, grid = plt.subplots(2, 5, figsize=(9, 4.8), layout="constrained")
for index, axes in zip(worst.tolist(), grid.flat, strict=False):
    axes.imshow(data.test_images[index], cmap="gray_r")
    said, truth = (
        data.class_names[int(guesses[index])],
        data.class_names[int(data.test_targets[index])],
    )
    axes.set_title(f"said {said}\nis {truth}", fontsize=9)
    axes.axis("off")
figure.suptitle(f"Its most certain mistakes ({data.source})")
plt.show()

print(f"{len(wrong)} of {len(test_targets)} test images are wrong")

# %%
# Would you have known better? Decide picture by picture: where a person hesitates
# too, the picture or its label is the problem; where you are sure, the model is. (On
# the stand-in data several can be variants of one original.) Looking at mistakes is
# the cheapest way to learn which of the three needs work.
#
# Exercise
# --------
#
# .. exercise:: How good is it at each kind?
#    :minutes: 15
#    :difficulty: medium
#    :starter: 05_each_kind.py
#
#    The script trains the network of this lesson for two epochs, and prints one
#    accuracy.
#
#    1. **Predict:** which kind will be the hardest? Write it down.
#    2. Compute the accuracy of each kind, from the confusion matrix: right ones of a
#       kind, divided by all of that kind.
#    3. Print the kinds, the hardest first.
#    4. Add up the diagonal and divide by all: it must be the accuracy that the script
#       printed.
#
#    To check it: ``python -m gpulesson check 05_each_kind.py``.
#
#    You are done when ten lines are printed, and step 4 agrees to all digits.
#
# .. solution::
#    :file: 05_each_kind.py
#
#    A row of the matrix holds all pictures of one true kind, so the sum runs over
#    dimension 1.
#
# .. keypoints::
#
#    - Name the data beside every number: source, and how many images.
#    - Weight losses by samples, keep them on the device, and fetch them once an epoch.
#    - Evaluate with ``eval()``, ``inference_mode`` and ``argmax(dim=1)``, counting on
#      the device.
#    - Models return logits; ``CrossEntropyLoss`` does the softmax. A second one costs
#      accuracy, without an error.
#    - Look at the confusion matrix and at the wrong pictures, not at the accuracy
#      alone.
#
# **Next:** :doc:`/lessons/06_save_load_resume` makes sure that a training survives the
# night.

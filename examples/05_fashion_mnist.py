"""
5 · Fashion-MNIST end to end
============================

Train two classifiers on pictures of clothes, compare them, and look at what they get
wrong.

.. overview::
   :teaching: 32
   :exercises: 15

   .. objectives::

      - Write a model as a class, train it on pictures, and read its training and its
        validation loss.
      - Build a small convolutional network, and compare two models.
      - Find the classes and pictures that a model gets wrong, and leave the softmax to
        the loss.

   .. prereq::

      - :doc:`/lessons/04_training_loop`, whose loop we use here on pictures
"""

# %%
# Load the pictures with torchvision
# ----------------------------------
#
# Your phone finds faces, and shops find clothes by a photo. Here you'll train two
# networks that name clothes, and see where they fail.
#
# `Fashion-MNIST <https://github.com/zalandoresearch/fashion-mnist>`__ is a collection of
# small grey pictures. Each shows one of ten *classes* of things, such as shirts, bags or
# boots. There are 60,000 pictures to train on and 10,000 to test on. The package of this
# course brings a tenth of them, and ``excerpt_folder`` says where they are. In your own
# script you write the name of a folder and ``download=True`` instead, and get them all.

import time

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import excerpt_folder
from gpulesson.device import choose_device

torch.set_num_threads(1)  # for this page's small models; not for your script
device = choose_device()
folder = excerpt_folder()
train_set = FashionMNIST(folder, train=True, transform=ToTensor())
test_set = FashionMNIST(folder, train=False, transform=ToTensor())
names = train_set.classes
print(len(train_set), "pictures to train on,", len(test_set), "to test on")

# %%
# How many dimensions will the first picture have?

image, label = train_set[0]
print("image:", tuple(image.shape))
print("numbers from", image.min().item(), "to", image.max().item())
print("label:", label, "for", names[label])

# %%
# Three. Its :term:`shape` ``(1, 28, 28)`` says: one colour, since the picture is grey,
# then 28 rows and 28 columns. The files hold whole numbers from 0 to 255. Networks learn
# better from small ones, so ``ToTensor`` divided by 255. The label is the number of the
# class. **Look at your data before you train on it:**

# fold: Draw the first picture of each class
short = [name.removesuffix("/top").replace("Ankle boot", "Boot") for name in names]
fig, grid = plt.subplots(2, 5, figsize=(4.5, 2.7), layout="constrained")
for number, axes in enumerate(grid.flat):
    first = int((train_set.targets == number).nonzero()[0])
    axes.imshow(train_set.data[first], cmap="gray_r")
    axes.set_title(f"{number}: {short[number]}", fontsize=11)
    axes.axis("off")
fig.suptitle("The first training picture of each class")
plt.show()

# %%
# We train on 5,000 pictures. The other 1,000 we keep back for *validation*: they show how
# a model does on pictures that it hasn't seen. ``list`` calls ``ToTensor`` once for each
# picture, instead of again in every :term:`epoch`:

pictures = list(train_set)
train_loader = DataLoader(pictures[:5000], batch_size=64, shuffle=True)
validation_loader = DataLoader(pictures[5000:], batch_size=1000)
print(len(train_loader), "batches, the last one with", 5000 % 64, "pictures")

# %%
# A :term:`data loader` stacks single pictures into :term:`batches <batch>`. 5,000 isn't a
# multiple of 64, so the last batch is short.
#
# And the test pictures? They have to wait. The best of many tries is partly luck, so
# **compare and choose by the validation pictures, and keep the test pictures for the last
# number.**
#
# Write a model as a class
# ------------------------
#
# Our first model gets the 784 pixels of a picture and gives ten scores, one per class.
# Three *linear* layers lead from one to the other: 784 pixels to 128 numbers, these to
# 64, and these to ten. Between them ``relu`` sets negative numbers to zero.
#
# So far, ``Sequential`` lined up our layers. A class can do whatever Python can between
# them. If classes are new to you, this is all that you need here:
#
# - ``class Classifier(nn.Module)`` is a plan for objects. It extends PyTorch's plan for
#   models, the :term:`module`.
# - ``__init__`` runs when you make an object. ``self`` is this object, and here it gets
#   its layers.
# - ``super().__init__()`` runs the ``__init__`` of PyTorch's plan first, so that the
#   model can find its layers.
# - ``forward`` says what happens to a batch. It runs when you call ``model(x)``.


# fold: Going further: a smaller class, without PyTorch
class Line:
    def __init__(self, weight, bias):
        self.weight = weight  # this object's own number
        self.bias = bias

    def forward(self, x):
        return self.weight * x + self.bias


line = Line(weight=2, bias=1)  # makes an object: here __init__ runs
print("2 · 10 + 1 =", line.forward(10))

# %%
# Here is ours. In the comments, ``N`` is the number of pictures in the batch:


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden1 = nn.Linear(784, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(start_dim=1)  # [N, 1, 28, 28] to [N, 784]
        x = torch.relu(self.hidden1(x))  # [N, 128]
        x = torch.relu(self.hidden2(x))  # [N, 64]
        return self.out(x)  # [N, 10]


# %%
# A linear layer wants one row of numbers for each picture, so ``flatten`` lays the 28
# rows of pixels end to end. (Many scripts write ``x.view(x.size(0), -1)`` for it.) What
# shape will the scores of one batch have?

torch.manual_seed(0)
model = Classifier().to(device)
loss_fn = nn.CrossEntropyLoss()

images, labels = next(iter(train_loader))  # the first batch of a loader
scores = model(images.to(device))
print("scores:", tuple(scores.shape))
print(f"loss:   {loss_fn(scores, labels.to(device)):.2f}")

# %%
# 64 rows of ten scores. **The first number of a batch's shape is the number of pictures,
# from the input to the output.**
#
# The :term:`loss` is lesson 3's :term:`cross-entropy`: −ln p, where p is the probability
# that the model gives to the right class, as a mean over the batch. A model that knows
# nothing gives each class about a tenth, and −ln 0.1 is 2.3.
#
# Train, and weight each loss by its pictures
# -------------------------------------------
#
# .. covers:: S1.9
#
# The loop is that of lesson 4, in a function, because two models will need it. New is
# ``running_loss``, which collects the loss of an epoch:


def train_epoch(model, loader, optimizer):
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(labels)
    return running_loss / len(loader.dataset)


# %%
# ``loss.item()`` is the mean over a batch. Times its number of pictures it is their sum,
# and all sums, divided by 5,000, are the mean over all pictures. Many scripts leave out
# ``* len(labels)``, and divide by the number of *batches*.
#
# .. question:: How much does one picture of the last batch count in their mean?
#
#    - As much as any other picture.
#
#      No. Each *batch* counts the same, and the last one has fewer pictures to share it.
#
#    - Eight times as much.
#
#      Yes. Every batch has the same weight. In the last batch 8 pictures share it, in
#      the others 64.
#
#    - An eighth as much.
#
#      No. This mean does not know that a small batch should have a small weight.
#
# It is as if, in a town's average mark, a school of 8 pupils counted as much as one
# of 64. **Multiply each loss by its number of pictures.**
#
# With a :term:`GPU`, ``item()`` makes the CPU wait in every :term:`step` (:doc:`lesson
# 8 </lessons/08_was_it_faster>`), as a copy does. The folded cell adds up on the
# :term:`device`, reads once, and gets the same number:


# fold: Going further: the same loss, read once an epoch
def train_epoch_reading_once(model, loader, optimizer):
    model.train()
    running_loss, seen = torch.zeros((), device=device), 0  # (): a single number
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.detach() * len(labels)  # stays on the device
        seen += len(labels)  # with drop_last=True, not the whole set
    return running_loss.item() / seen  # read once


for train in (train_epoch, train_epoch_reading_once):
    torch.manual_seed(0)  # the same first weights, and the same order of pictures
    again = Classifier().to(device)
    loss = train(again, train_loader, torch.optim.Adam(again.parameters(), lr=3e-3))
    print(f"{train.__name__}: loss {loss:.3f}")

# %%
# Count the right answers on pictures it has not seen
# ---------------------------------------------------
#
# .. covers:: S1.10 S1.13
#
# A model could learn its 5,000 pictures by heart. So after each epoch we look at our
# :term:`held-out data`, the validation pictures:


def evaluate(model, loader):
    model.eval()
    running_loss, right = 0.0, 0
    with torch.inference_mode():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            scores = model(images)
            running_loss += loss_fn(scores, labels).item() * len(labels)
            right += (scores.argmax(dim=1) == labels).sum().item()
    return running_loss / len(loader.dataset), right


# %%
# ``eval()`` sets the :term:`evaluation mode`, which matters to layers such as
# :term:`dropout`. In :term:`inference mode` PyTorch does not record what a
# :term:`backward pass` would need; it is a stricter ``torch.no_grad()``. The model's
# answer is the class with the largest score, which ``argmax(dim=1)`` finds in each row;
# many scripts write ``best, answers = torch.max(scores, 1)``. **Evaluate with**
# ``eval()``, **in** ``inference_mode()``, **by** ``argmax(dim=1)``.
#
# Now we train, with Adam as the :term:`optimizer`, and print a line per epoch. Which of
# the two losses will be smaller at the end?


def fit(model, epochs=7):
    torch.manual_seed(0)  # the same order of pictures for each model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses, validation_losses = [], []
    for epoch in range(epochs):
        loss = train_epoch(model, train_loader, optimizer)
        validation_loss, right = evaluate(model, validation_loader)
        losses.append(loss)
        validation_losses.append(validation_loss)
        print(f"Epoch [{epoch + 1}/{epochs}], loss {loss:.3f}, ", end="")
        print(f"validation {validation_loss:.3f}, {right} right")
    return losses, validation_losses


start = time.perf_counter()
losses, validation_losses = fit(model)
linear_seconds = time.perf_counter() - start

# %%
# The training loss. Let's draw both:

# fold: Draw both losses
epochs = range(1, len(losses) + 1)
lowest = min(epochs, key=lambda epoch: validation_losses[epoch - 1])
fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
for each, name in ((losses, "training"), (validation_losses, "validation")):
    ax.plot(epochs, each, marker="o", markersize=4)
    ax.text(len(epochs) + 0.2, each[-1], name, va="center")
ax.axvline(lowest, linestyle=":", color="gray")
ax.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
ax.spines[["top", "right"]].set_visible(False)
ax.set_title(f"The validation loss is lowest after epoch {lowest}")
plt.show()

# %%
# At first both fall. After the dotted line only the training loss does: there the model
# learns its 5,000 pictures, rather than what clothes look like. This is
# :term:`overfitting`. **Watch both losses, and stop when the validation loss has not
# fallen for some epochs.**
#
# .. fold:: Going further: the same loop, kept in a function
#
#    The package has this loop in its own ``fit``. It evaluates after each epoch, and
#    returns the history, which can be drawn:
#
#    .. code-block:: python
#
#       from gpulesson.training import fit
#
#       history = fit(model, train_loader, loss_fn, optimizer, device, epochs=7,
#                     validation=validation_loader)
#       print(history)
#       history.plot()
#
# Build a small convolutional network
# -----------------------------------
#
# ``Classifier`` lays the rows end to end, so it does not know which pixels are
# neighbours. A *convolution* does:
#
# .. drawing:: convolution.svg
#
#    A window slides over the picture.
#
# A small window of 3 × 3 pixels slides over the picture. At each place its nine pixels
# are multiplied by nine weights, and their sum becomes one pixel of a new picture.
# Training finds the weights; they are the same at all places, so an edge or a sleeve is
# found wherever it is. ``Conv2d(1, 8, 3, padding=1)`` makes eight new pictures from
# one, each with its own weights, and a border of zeros, the padding, keeps them as
# large as before. The windows of ``conv2`` look at all eight at once. ``MaxPool2d(2)``
# then keeps the largest of each 2 × 2 pixels, which halves height and width.


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        x = torch.relu(self.pool(self.conv1(x)))
        x = torch.relu(self.pool(self.conv2(x)))
        return self.out(x.flatten(start_dim=1))


# %%
# The last layer wants 16 · 7 · 7 numbers. Where do the sevens come from? Let's follow one
# batch:

torch.manual_seed(0)
cnn = Convolutional().to(device)
x = images.to(device)
for layer in (cnn.conv1, cnn.pool, cnn.conv2, cnn.pool):
    x = layer(x)
    print(f"{type(layer).__name__:<9} {tuple(x.shape)}")

# %%
# From 28 to 14, and from 14 to 7: one large picture became 16 small ones. We train the
# new model with the same functions. Which of the two has more :term:`parameters
# <parameter>`?

start = time.perf_counter()
fit(cnn)
seconds = time.perf_counter() - start

print("\n               parameters  right  seconds")
rows = (("linear layers", model, linear_seconds), ("convolutions", cnn, seconds))
for name, each, seconds in rows:
    parameters = sum(p.numel() for p in each.parameters())
    _, right = evaluate(each, validation_loader)
    print(f"{name:<14} {parameters:>10,} {right:>6} {seconds:>8.1f}")

# %%
# The convolutional network has less than a tenth of the parameters, because each
# weight is used all over the picture. So a step computes more, which takes a CPU
# longer. Even so it usually gets more pictures right. But one run of each is weak
# evidence, so try other :term:`seeds <seed>`. **For pictures,
# try a convolutional network.**
#
# All 60,000 pictures bring more. The set's authors `list what others reported
# <https://github.com/zalandoresearch/fashion-mnist#benchmark>`__, unchecked: linear
# layers, about twice as large as ours, got 90.0 % right, and seven
# networks with two convolutions 87.6 to 93.2 %.
#
# Find the classes and pictures that it gets wrong
# ------------------------------------------------
#
# *Which* mistakes does the convolutional network make? We count its answers in a table of
# ten rows and ten columns, the :term:`confusion matrix`. The row *Dress* and the column
# *Shirt* count the dresses that it took for shirts; the right answers are on the
# diagonal. Where else do you expect large counts?

images, labels = next(iter(validation_loader))  # all 1,000
with torch.inference_mode():
    scores = cnn(images.to(device)).cpu()
answers = scores.argmax(dim=1)

confusion = torch.zeros(10, 10, dtype=torch.int64)
for number in range(1000):
    confusion[labels[number], answers[number]] += 1
print(confusion)

# %%
# .. play:: confusion
#
#    Here are the counts with their names: the stronger the orange, the more mistakes.
#    Choose a number to see its pictures.
#
# **The confusion matrix says which classes a model confuses.**
#
# Which mistakes are the worst? With ``reduction="none"`` we get one loss for each
# picture, instead of their mean, and ``argsort`` puts them in order:

losses = nn.CrossEntropyLoss(reduction="none")(scores, labels)
worst = losses.argsort(descending=True)[:10]  # the largest loss first
print(f"middle loss:  {losses.median():.2f}")
print(f"largest loss: {losses.max():.2f}")

# %%
# Half of the losses are below the middle one. The largest is far above the 2.3 of a model
# that knows nothing: here the right class got almost nothing. Would you have known
# better?

# fold: Draw the ten pictures with the largest loss
fig, grid = plt.subplots(2, 5, figsize=(4.5, 3.4), layout="constrained")
for index, axes in zip(worst.tolist(), grid.flat, strict=True):
    axes.imshow(images[index, 0], cmap="gray_r")
    axes.set_title(short[labels[index]], fontsize=11)
    axes.set_xlabel(short[answers[index]], fontsize=11)
    axes.set(xticks=[], yticks=[])
fig.suptitle("Above: what it is. Below: the model's answer")
plt.show()

# %%
# Where you hesitate as well, the picture or its label may be the problem. **The worst
# pictures show what kind of mistakes a model makes.**
#
# Leave the softmax to the loss
# -----------------------------
#
# .. covers:: S1.11
#
# The ten scores of a picture are called :term:`logits`. The :term:`softmax` of lesson 3
# makes probabilities of them, inside ``CrossEntropyLoss``. But some models that you will
# read end with ``nn.Softmax(dim=1)`` as well.
#
# .. question:: A softmax in the model, and another in the loss: what happens?
#
#    - An error, because the softmax is computed twice.
#
#      No. To ``CrossEntropyLoss``, probabilities are numbers like any others.
#
#    - Nothing changes, because a softmax keeps the order of the classes.
#
#      No. The answer of a given model does not change. But the loss does, and
#      training follows the loss.
#
#    - It trains, without a message, and learns more slowly.
#
#      Yes. The second softmax gets numbers between zero and one. They are so close to
#      each other that no class gets a probability near one. So even a perfect answer
#      has a large loss.
#
# How large? We give the loss a perfect answer for class 0, first as logits, then as
# probabilities:

perfect = torch.zeros(1, 10)
perfect[0, 0] = 50.0  # much larger than the others, so p is nearly 1
target = torch.tensor([0])
print(f"logits:        loss {loss_fn(perfect, target):.3f}")
print(f"probabilities: loss {loss_fn(perfect.softmax(dim=1), target):.3f}")

# %%
# The first is zero. With probabilities, the loss can't get below the second number. We
# train the first model once more, with a softmax at its end:

torch.manual_seed(0)
with_softmax = nn.Sequential(Classifier(), nn.Softmax(dim=1)).to(device)
_ = fit(with_softmax)

# %%
# The losses are much larger than the first model's, the right answers come later, and
# you got no message. **Let the model return logits: the softmax is inside the
# loss.**

# fold: Going further: a model that returns both


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = Classifier()

    def forward(self, images):
        logits = self.classifier(images)
        return logits, logits.softmax(dim=1)


logits, probabilities = Both()(images)  # the first for the loss, the second for people
print(
    f"loss {loss_fn(logits, labels):.3f}, sums {probabilities.sum(dim=1)[:3].tolist()}"
)
best, answers = probabilities.max(dim=1)
print("same answers:", torch.equal(answers, logits.argmax(dim=1)))

# %%
# .. instructor-note::
#
#    Let the class answer the question box before anyone sees the numbers.
#
# Give the last number once
# -------------------------
#
# Our choice is made: the convolutional network. Only now do we take the test pictures.
# The share of right answers is called the :term:`accuracy`:

test_loader = DataLoader(list(test_set), batch_size=1000)
_, right = evaluate(cnn, test_loader)
print(f"{right} of {len(test_set)} test pictures right: {right / len(test_set):.1%}")

# %%
# Tell others this number; two percentage points more or less may be luck. To improve
# the model by it, you would need new test pictures.
#
# .. play:: drawing
#
#    **Now draw a shoe.** What does the network say? Then take a test picture, and rub
#    parts out until the answer changes.
#
#    The network knows only photos of clothes, but it has to choose one of ten classes,
#    even for an empty sheet. Often it is nearly sure, and wrong. **A high
#    probability doesn't make an answer right.**
#
# Take the whole lesson with you as one script
# --------------------------------------------
#
# Here are the first network, its training and the test in one file that needs ``torch``
# (2.9 or later) and ``torchvision`` only. It trains on all 60,000 pictures, on a GPU if
# there is one, and saves what the model has learned, its :term:`state_dict`, as
# ``fashion_mnist.pt``. Start it with ``python fashion_mnist.py FOLDER``; it downloads
# the pictures into this folder if need be. For the other network, put ``Convolutional``
# into the file, and write its name in ``main``.
#
# .. script:: fashion_mnist.py
#
# Exercise
# --------
#
# .. exercise:: Compute the accuracy of each class
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_05.py
#
#    One accuracy does not say which clothes are hard. Write three functions that do.
#
#    1. **Predict:** which class will be the hardest? Write it down.
#    2. Write ``per_class``: from a confusion matrix, the right answers for each class,
#       divided by all the images of that class.
#    3. Write ``hardest``: the names of the classes, the hardest first.
#    4. Write ``class_accuracies``: go through the batches, count, and let ``per_class``
#       do the rest.
#    5. Run your file. It trains the first network of this lesson for two epochs, and
#       prints a line for each class, the hardest first.
#
#    To check it: ``python -m gpulesson check exercise_05.py``. The check calls your
#    functions on the :term:`practice GPU`, with its own images, and one class has
#    none.
#
#    You are done when the check passes, and ten lines are printed. Was your prediction
#    right?
#
# .. solution::
#    :file: solution_05.py
#
#    A row of the matrix holds all the images of one true class, so the sum runs over
#    dimension 1. A sort of pairs keeps each name beside its number.
#
# .. keypoints::
#
#    - A model is a class with layers in ``__init__`` and their use in ``forward``. Weight
#      each loss by its pictures, and stop where the validation loss no longer falls.
#    - A convolution slides a small window of weights over a picture. Compare models by
#      validation pictures, and use the test pictures once.
#    - The confusion matrix and the largest losses show what goes wrong. Models return
#      logits; ``CrossEntropyLoss`` contains the softmax.
#
# **Next:** :doc:`/lessons/06_save_load_resume` keeps what the model has learned.

"""
5 · Fashion-MNIST end to end
============================

Train a classifier on pictures of clothes, evaluate it, and look at what it gets wrong.

.. overview::
   :teaching: 28
   :exercises: 15

   .. objectives::

      - Train a classifier on real pictures, and print the right loss for each epoch.
      - Evaluate it on held-out pictures, and find the classes and pictures that it gets
        wrong.
      - Explain logits, and leave the softmax to the loss.

   .. prereq::

      - :doc:`/lessons/04_training_loop`, whose loop we use here on pictures
      - for all 60,000 pictures, an internet connection (30 MB, once). Without one, the
        lesson takes those that come with the package.
"""

# %%
# Load the pictures with torchvision
# ----------------------------------
#
# Your phone finds faces, and shops find clothes by a photo. We start with something
# smaller: `Fashion-MNIST <https://github.com/zalandoresearch/fashion-mnist>`__ is a
# collection of small grey pictures of clothes. Each shows one of ten *classes* of
# things, such as shirts, bags or boots. The whole set has 60,000 pictures to train on
# and 10,000 to test on.
#
# In your own script you name a folder for the files. Here ``gpulesson``, the package of
# this course (:doc:`/setup`), finds one, and fills it if need be:

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import excerpt_folder, load_fashion_mnist
from gpulesson.device import choose_device

torch.set_num_threads(1)  # for this page's small model; not for your script
device = choose_device()
folder = excerpt_folder()
data = load_fashion_mnist(folder)
names = data.class_names  # of the ten classes
print("data:", data.source)
print("device:", device)

# %%
# The first line counts the training and the test pictures on this machine. An *excerpt*
# has fewer than the whole set.
#
# Next come two lines that you will see in many scripts: ``train=True`` asks for the
# training pictures, ``train=False`` for the test pictures. The files hold whole numbers
# from 0 to 255. A network works best with small numbers, so ``ToTensor`` divides by
# 255. How many dimensions will one picture have?

train_set = FashionMNIST(folder, train=True, download=True, transform=ToTensor())
test_set = FashionMNIST(folder, train=False, download=True, transform=ToTensor())

image, label = train_set[0]
print("image:", tuple(image.shape), image.dtype)
print("label:", label)

# %%
# Three. Its :term:`shape` ``(1, 28, 28)`` says: one colour, since the picture is grey,
# then 28 rows and 28 columns. The label is the number of the class, from 0 to 9.
# **Look at your data before you train on it.**

# fold: Draw the first picture of each class
fig, grid = plt.subplots(2, 5, figsize=(8, 3.8), layout="constrained")
for number, axes in enumerate(grid.flat):
    first = int((train_set.targets == number).nonzero()[0])
    axes.imshow(train_set.data[first], cmap="gray_r")
    axes.set_title(f"{number}: {names[number]}", fontsize=11)
    axes.axis("off")
fig.suptitle("The first training picture of each class")
plt.show()

# %%
# A :term:`data loader` takes single pictures and stacks them into :term:`batches
# <batch>`. To keep this page quick we train on 5,000 pictures only: ``Subset`` picks them
# by their position. The next thousand we keep back, for *validation*:

few, kept = Subset(train_set, range(5000)), Subset(train_set, range(5000, 6000))
train_loader = DataLoader(few, batch_size=64, shuffle=True)
validation_loader = DataLoader(kept, batch_size=1000)
test_loader = DataLoader(test_set, batch_size=1000)
print("training:", len(few), "validation:", len(kept), "test:", len(test_set))
print(len(train_loader), "batches, the last one with", len(few) % 64, "pictures")

# %%
# Compare and choose by the validation pictures, and keep the test pictures for the last
# number: the best of many tries is partly luck. And 5,000 is not a multiple of 64, so the
# last batch is short. This will matter below.
#
# Write the model, layer by layer
# -------------------------------
#
# The model gets the 784 pixels of a picture, and gives ten scores, one per class.
# Three *linear* layers, as in :doc:`lesson 3 </lessons/03_first_model>`, lead from one to
# the other: 784 pixels to 128 numbers, these to 64, and these to ten. 128 and 64 are
# our choice. Between them ``relu`` sets negative numbers to zero. Without it, three
# layers would add up to a single one. In the comments, ``N`` is the size of the batch:


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()  # lets the module find its layers
        self.hidden1 = nn.Linear(784, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1)  # [N, 1, 28, 28] to [N, 784]
        x = torch.relu(self.hidden1(x))  # [N, 128]
        x = torch.relu(self.hidden2(x))  # [N, 64]
        return self.out(x)  # [N, 10]


# %%
# A linear layer wants one row of numbers for each picture. So the first line of
# ``forward`` lays the 28 rows of pixels end to end: ``x.size(0)`` is ``N``, and ``-1``
# asks PyTorch to work out the other number. The :term:`seed` makes the random first
# weights the same in every run. What shape will the scores of one batch have?

torch.manual_seed(0)
model = Classifier().to(device)
loss_fn = nn.CrossEntropyLoss()

images, labels = next(iter(train_loader))  # one batch
scores = model(images.to(device))
print("scores:", tuple(scores.shape))
print(f"loss:   {loss_fn(scores, labels.to(device)):.2f}")

# %%
# 64 rows of ten scores. **The first number of a batch's shape is the number of
# pictures, from the input to the output.**
#
# How wrong are the scores? The :term:`loss` function turns the ten scores of a picture
# into probabilities; this is called :term:`softmax`. If p is the probability of the
# right class, the :term:`cross-entropy` of the picture is −ln p, and the loss is the
# mean over the batch. The model knows nothing yet: it gives each class about a tenth,
# and −ln 0.1 is 2.3. A model that is sure and right has a loss near zero.
#
# Train, and weight each loss by its pictures
# -------------------------------------------
#
# .. covers:: S1.9
#
# The loop is that of lesson 4, with Adam as the :term:`optimizer`, on the :term:`device`
# from above. The new part is ``running_loss``, which collects the loss of one
# :term:`epoch`:


def train_epoch(model, loader, optimizer):
    model.train()
    running_loss, seen = torch.zeros((), device=device), 0  # (): a single number
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.detach() * len(labels)  # stays on the device
        seen += len(labels)
    return running_loss.item() / seen  # read once


# %%
# We train for five epochs, and print a line after each, in the form that you will see in
# many scripts. How far below 2.3 will the loss be?

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    loss = train_epoch(model, train_loader, optimizer)
    print(f"Epoch [{epoch + 1}/5], loss {loss:.4f}")

# %%
# It falls: a first sign that a run works.
#
# Many scripts write ``running_loss += loss.item()`` instead, and in the end divide by
# ``len(loader)``, the number of batches. This has two faults. In every :term:`step`,
# ``item`` makes the CPU wait for the :term:`GPU` (:doc:`lesson 8
# </lessons/08_was_it_faster>`). And the mean over the *batches* is not the mean over the
# pictures.
#
# .. question:: How much does one picture of the last batch count in that mean?
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
# It is as if a town computed its average mark from the averages of its schools, and a
# school of 8 pupils counted as much as a school of 64. **Multiply each loss by its number
# of pictures, add it up on the device, and read the sum once an epoch.** ``seen`` counts
# the pictures, since ``len(loader.dataset)`` is too many with ``drop_last=True``.
#
# .. fold:: Going further: the same loop, kept in a function
#
#    The package has this loop in ``fit``. It evaluates after each epoch, and returns the
#    history, which can be drawn:
#
#    .. code-block:: python
#
#       from gpulesson.training import fit
#
#       history = fit(model, train_loader, loss_fn, optimizer, device, epochs=5,
#                     validation=validation_loader)
#       print(history)
#       history.plot()
#
# Count the right answers on pictures it has not seen
# ---------------------------------------------------
#
# .. covers:: S1.10 S1.13
#
# The test pictures are our :term:`held-out data`. The model's answer for a picture is the
# class with the largest score, which ``argmax(dim=1)`` finds in each row. Many scripts
# write ``best, predicted = torch.max(outputs, 1)``, with the same result.


@torch.inference_mode()
def count_correct(model, loader):
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1)
        correct += (predicted == labels.to(device)).sum()
    return correct.item()  # read once


right = count_correct(model, test_loader)
print(f"{right} of {len(test_set)} right: {right / len(test_set):.1%}")

# %%
# The share of right answers is the :term:`accuracy`. **Evaluate with** ``eval()``, **in**
# ``inference_mode``, **and read the count once.** ``eval()`` sets the :term:`evaluation
# mode`, which matters to layers such as :term:`dropout`. In :term:`inference mode`, here
# in the whole function, PyTorch does not record what a :term:`backward pass` would need.
# It is ``torch.no_grad()`` and a little more: its results cannot be used in training
# later.
#
# Is this good? We used 5,000 pictures. The set's authors `list what others reported
# <https://github.com/zalandoresearch/fashion-mnist#benchmark>`__, unchecked: with all
# 60,000, a network about twice as large as ours gets 90.0 % of the test pictures right,
# and people with no fashion expertise get 83.5 % of 1,000 pictures right.
#
# Find the classes and pictures that it gets wrong
# ------------------------------------------------
#
# *Which* mistakes does the model make? We count them in a table of ten rows and ten
# columns, the :term:`confusion matrix`. Row 3, column 6 counts the pictures of class 3
# that the model took for class 6:

with torch.inference_mode():
    scores = torch.cat([model(images.to(device)) for images, _ in test_loader]).cpu()
predicted = scores.argmax(dim=1)

confusion = torch.zeros(10, 10, dtype=torch.int64)
for truth, answer in zip(test_set.targets, predicted, strict=True):
    confusion[truth, answer] += 1

# %%
# Where do you expect the large counts?

# fold: Draw the confusion matrix
fig, ax = plt.subplots(figsize=(7, 6), layout="constrained")
shares = confusion / confusion.sum(dim=1, keepdim=True)
picture = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
ax.set_xticks(range(10), names, rotation=45, ha="right")
ax.set_yticks(range(10), names)
ax.set(xlabel="the model's answer", ylabel="true class")
ax.set_title("Each row: the answers for one class")
fig.colorbar(picture, shrink=0.8, label="share of the pictures of the class")
plt.show()

# %%
# The dark squares on the diagonal are the right answers. Every other dark square is a
# class that is often taken for another. To find the most frequent mistake, we set the
# diagonal to zero and look for the largest count that is left. Here ``argmax`` numbers
# the hundred counts row by row, so we divide by ten to get the row and the column:

mistakes = confusion.clone()
mistakes.fill_diagonal_(0)  # the last _ says: it changes the tensor itself
row, column = divmod(mistakes.argmax().item(), 10)
print(f"most often: {names[row]!r} taken for {names[column]!r},")
print(f"{mistakes[row, column]} of {confusion[row].sum()} pictures")

# %%
# Which pictures are behind these counts? With ``reduction="none"`` the loss function
# returns a loss for each picture, instead of their mean. ``argsort`` puts the pictures in
# order, here with the largest loss first:

losses = nn.CrossEntropyLoss(reduction="none")(scores, test_set.targets)
worst = losses.argsort(descending=True)[:10].tolist()
print(f"middle loss:  {losses.median():.2f}")
print(f"largest loss: {losses.max():.2f}")

# %%
# Half of the pictures have a loss below the middle one, which is small. The largest loss
# is far above the 2.3 of a model that knows nothing: here the model gave the right class
# almost nothing.

# fold: Draw the ten pictures with the largest loss
fig, grid = plt.subplots(2, 5, figsize=(9, 4.8), layout="constrained")
for index, axes in zip(worst, grid.flat, strict=True):
    axes.imshow(test_set.data[index], cmap="gray_r")
    said, truth = names[predicted[index]], names[test_set.targets[index]]
    axes.set_title(f"said {said}\nis {truth}", fontsize=10)
    axes.axis("off")
fig.suptitle("The ten test pictures with the largest loss")
plt.show()

# %%
# Would you have known better? Where you hesitate, too, the picture or its label may be
# the problem. **The confusion matrix says which classes a model confuses, and the worst
# pictures show some of its mistakes.**
#
# Leave the softmax to the loss
# -----------------------------
#
# .. covers:: S1.11
#
# The ten scores of a picture are called :term:`logits`. They can be any numbers, and a
# larger one means a likelier class. Here are those of the first test picture, with the
# probabilities that softmax makes of them: e to the power of each logit, divided by the
# sum of all ten.

logits = scores[0]
probabilities = logits.softmax(dim=0)
for name, logit, p in zip(names, logits, probabilities, strict=True):
    print(f"{name:<12} {logit:6.1f} {p:7.3f}")
print("true class:", names[test_set.targets[0]])

# %%
# The probabilities add up to one. The largest logit has the largest probability, so the
# answer is the same without a softmax.
#
# ``CrossEntropyLoss`` computes the softmax itself. But some models that you will read
# end with ``nn.Softmax(dim=1)``, too.
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
# With logits the loss of a perfect answer is zero. With probabilities it cannot get
# below the second number: the second softmax gets a 1 and nine 0s, and makes e/(e+9) of
# the 1, which is less than a quarter. We train the same model once more, with a softmax
# at its end:

torch.manual_seed(0)
with_softmax = nn.Sequential(Classifier(), nn.Softmax(dim=1)).to(device)
optimizer = torch.optim.Adam(with_softmax.parameters(), lr=1e-3)
for _ in range(5):
    loss = train_epoch(with_softmax, train_loader, optimizer)

print(f"loss {loss:.4f} after five epochs")
for name, each in (("logits", model), ("softmax", with_softmax)):
    print(f"{name}: {count_correct(each, validation_loader) / len(kept):.1%} right")

# %%
# The loss is much larger than before, fewer answers are right, and you got no
# message. One run of each is weak evidence, so try other seeds, too. **Let the model
# return logits: the softmax is inside the loss.**
#
# .. instructor-note::
#
#    Let the class answer the question box before anyone sees the numbers.
#
# Take the whole lesson with you as one script
# --------------------------------------------
#
# Here is everything in one file that needs ``torch`` (2.9 or later) and ``torchvision``
# only. It trains on all pictures, on a GPU if there is one, and saves what the model
# has learned, its :term:`state_dict`, as ``fashion_mnist.pt``. Start it with ``python
# fashion_mnist.py FOLDER``; it downloads the pictures into this folder if need be.
#
# .. script:: fashion_mnist.py
#
# It prints its device, for each epoch a line as above, and in the end how many test
# pictures it got right.
#
# Its loaders use :term:`workers <worker>` and :term:`pinned memory`, which :doc:`lesson 9
# </lessons/09_feeding_the_gpu>` explains. The last ``if`` keeps the workers from
# training as well: on some systems each of them first runs this file from the top.
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
#    5. Run your file. It trains the network of this lesson for two epochs on a part of
#       the images, and prints a line for each class, the hardest first.
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
#    - ``FashionMNIST`` with ``ToTensor`` and a ``DataLoader`` feeds the loop. Weight each
#      loss by its pictures, and read the sum once an epoch.
#    - Evaluate with ``eval()``, ``inference_mode()`` and ``argmax(dim=1)``. The confusion
#      matrix and the largest losses show what goes wrong.
#    - Models return logits; ``CrossEntropyLoss`` contains the softmax. With a second one
#      the model learned more slowly here, without an error.
#
# **Next:** :doc:`/lessons/06_save_load_resume` keeps what the model has learned.

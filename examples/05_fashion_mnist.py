"""
5 · Fashion-MNIST end to end
============================

Train a classifier on pictures of clothes, evaluate it, and look at what it gets wrong.

.. overview::
   :teaching: 35
   :exercises: 15

   .. questions::

      - What does a complete training run on real pictures look like?
      - How do I compute a loss and an accuracy that are right, without slowing the
        run down?
      - What are logits, and where does the softmax belong?

   .. objectives::

      - Load Fashion-MNIST with torchvision, and cut it into batches with a loader.
      - Write the classifier 784-128-64-10, and train it for five epochs.
      - Report a loss for each epoch that is weighted by samples.
      - Evaluate on held-out images, in the right mode and without gradients.
      - Find the classes and the pictures that the model gets wrong.
      - Explain logits, and measure what a softmax before the loss costs.
"""

# %%
# .. prereq::
#
#    - :doc:`/lessons/04_training_loop`: the loop that we use here on pictures.
#    - An internet connection for the first run, which downloads 30 MB of pictures.
#      Without one the lesson runs all the same, on other pictures, and says so.
#
# Load the images with torchvision
# --------------------------------
#
# `Fashion-MNIST <https://github.com/zalandoresearch/fashion-mnist>`__ is a collection
# of small grey pictures of clothes, 28 by 28 pixels each: 60,000 to train on and 10,000
# to test on. Every picture belongs to one of ten classes.
#
# You will write the model, the loop and the evaluation in plain PyTorch. Where the
# package has a function for the same, you can do without it: the script at the end does.
#
# First the imports, and the :term:`device` that we compute on. One core of the CPU is
# enough for :term:`tensors <tensor>` as small as ours.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import fashion_mnist_folder, load_fashion_mnist
from gpulesson.device import choose_device

torch.set_num_threads(1)
device = choose_device()
print("device:", device)

# %%
# Now the data. In a script of your own you name a folder, any one that you may write
# to. Here the package finds the folder, downloads the files into it if they are not
# there yet, and checks that they are complete:

folder = fashion_mnist_folder()
data = load_fashion_mnist(folder)
print("data:", data.source)

# %%
# Read this line before you read any result below. The two numbers count the training
# and the test images. ``fashion-mnist, 60000/10000`` is the whole set. An *excerpt* has
# fewer images, so there is less to learn from. *Digits stand-in* means that nothing
# could be downloaded: then we use the :term:`stand-in data`, and you will see digits
# instead of clothes. :doc:`/setup` says how to get the real set.
#
# The next two lines are in many tutorials. ``train=True`` asks for the training
# images, ``train=False`` for the test images. ``download=True`` fetches the files if the
# folder does not have them; ours has them. They hold whole numbers from 0 to 255, and a
# network works best with small floating-point numbers: ``ToTensor`` divides by 255.
# Before you run the cell: how many dimensions will one picture have?

train_set = FashionMNIST(folder, train=True, download=True, transform=ToTensor())
test_set = FashionMNIST(folder, train=False, download=True, transform=ToTensor())

image, label = train_set[0]
print("image:", tuple(image.shape), image.dtype)
print(f"values from {image.min():.2f} to {image.max():.2f}")
print("label:", label)

# %%
# Three. The :term:`shape` ``(1, 28, 28)`` says: one colour, since the picture is grey,
# then 28 rows and 28 columns. The label is the number of its class, from 0 to 9.
# **Look at your data before you train on it.** Here is the first training image of each
# class:

# fold: Draw the first image of each class
fig, grid = plt.subplots(2, 5, figsize=(8, 3.8), layout="constrained")
for number, axes in enumerate(grid.flat):
    first = int((data.train_targets == number).nonzero()[0])
    axes.imshow(data.train_images[first], cmap="gray_r")
    axes.set_title(f"{number}: {data.class_names[number]}", fontsize=11)
    axes.axis("off")
fig.suptitle(f"The first image of each class ({data.source})")
plt.show()

# %%
# Cut the images into shuffled batches
# ------------------------------------
#
# A :term:`data loader` takes the images one by one and stacks them into :term:`batches
# <batch>`. We shuffle the training images, as in :doc:`lesson 4
# </lessons/04_training_loop>`. The test images keep their order: nothing is learned
# from them. ``next(iter(loader))`` takes one batch out of a loader, to look at it:

train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
test_loader = DataLoader(test_set, batch_size=1000)

images, labels = next(iter(train_loader))
print("images:", tuple(images.shape), "on", images.device)
print("labels:", tuple(labels.shape), labels.dtype)

# %%
# A batch is 64 images and their 64 labels. The labels are ``int64``, the usual
# :term:`dtype` for class numbers in a :term:`loss`. The loader leaves everything on the
# CPU, so the loop will have to move each batch.
#
# To keep this page quick, our first run uses 5,000 of the training images; a second run
# will use all of them. ``Subset`` picks images by their position:

few = Subset(train_set, range(5000))
few_loader = DataLoader(few, batch_size=64, shuffle=True)

sizes = [len(labels) for images, labels in few_loader]
print(len(sizes), "batches, the last one with", sizes[-1], "images")

# %%
# 5,000 is not a multiple of 64, so the last batch is short.
#
# Write the model, layer by layer
# -------------------------------
#
# The model gets the 784 pixels of an image, and gives ten scores, one for each class.
# Such scores are called :term:`logits`. Three *layers* lead from one to the other. The
# first makes 128 numbers out of the pixels, the second makes 64 out of these, and the
# third the ten scores. (128 and 64 are our choice.) All three are *linear*, as in
# :doc:`lesson 3 </lessons/03_first_model>`: each number that comes out is a sum of all
# numbers that go in, each multiplied by a *weight*, and of one more number, the *bias*.
# After the first two, ``relu`` sets negative numbers to zero; without it, the three could
# do no more than one.
#
# The class has two parts. ``__init__`` makes the layers: ``nn.Linear(784, 128)`` says how
# many numbers go in and come out, and the next layer takes what this one gives.
# ``forward`` says what happens to a batch ``x``, line by line. A linear layer wants one
# row of numbers for each image, so the first line lays the 28 rows of pixels end to end.
# In the comments, ``N`` is the number of images in the batch.


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


torch.manual_seed(0)
model = Classifier().to(device)

# %%
# ``x.size(0)`` is ``N``, and ``-1`` asks PyTorch to work out the other number. You will
# also see this as a layer, ``nn.Flatten()``. The weights and biases begin as random
# numbers, the same each time because of the :term:`seed`. How many has the first layer?
# And what comes out of ``model(…)``, which calls ``forward``?

print("weights:", tuple(model.hidden1.weight.shape))
print("biases: ", tuple(model.hidden1.bias.shape))

outputs = model(images.to(device))
print("outputs:", tuple(outputs.shape))

# %%
# Each of the 128 numbers has 784 weights, one for each pixel, and a bias. The 64 images
# have become 64 rows of ten scores. **The first number of a batch's shape is the
# number of images, from the input to the output.**
#
# Train, and print a loss for each epoch
# --------------------------------------
#
# How wrong are the scores of an image? The loss first turns them into probabilities. This
# is called :term:`softmax`: e to the power of each score, divided by the sum of all ten.
# If p is the probability of the right class, the :term:`cross-entropy` of the image is
# −ln p. The loss of a batch is the mean over its images. We compute softmax for the first
# image, and −ln p for four values:

scores = model(image.to(device))[0]  # ten scores
powers = scores.exp()  # e to the power of each
probabilities = powers / powers.sum()  # softmax
print(f"ten probabilities, {probabilities.min():.2f} to {probabilities.max():.2f}")

for p in (0.99, 0.5, 0.1, 0.001):
    print(f"p = {p:<5}  loss {-torch.tensor(p).log():.3f}")

# %%
# The model is not trained yet, so each class gets about a tenth, and the loss is near
# that of the third p, 2.3. It is nearly nothing if a model is sure and right, and large
# if it is sure and wrong.
#
# The loop is that of lesson 4: five calls in each :term:`step`, with Adam as the
# :term:`optimizer`, at a :term:`learning rate` of 0.001. After each :term:`epoch` it
# prints a line, in the form that you will see in many scripts. How far below 2.3 will the
# loss be after five epochs?

loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(5):
    model.train()
    running_loss = 0.0
    for images, labels in few_loader:
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print(f"Epoch [{epoch + 1}/5], loss {running_loss / len(few_loader):.4f}")

# %%
# ``running_loss`` adds up the losses of the steps; divided by the number of steps it is
# their mean. The first line is below 2.3 already, because the model learns while the
# first epoch goes on. **A loss that falls from epoch to epoch is the first sign that a
# run works.**
#
# Weight the loss by samples, and read it once an epoch
# -----------------------------------------------------
#
# .. covers:: S1.9
#
# The line ``running_loss += loss.item()`` is in many scripts, and it has two faults. The
# first one costs time: in every step ``item`` brings a number to the CPU, so the CPU has
# to wait until the :term:`GPU` has finished (:doc:`lesson 8
# </lessons/08_was_it_faster>`). The second fault makes the number wrong.
#
# The last batch has 8 images, every other batch has 64. The loop above divides the sum
# of the losses by the number of steps.
#
# .. question:: How much does one image of the last batch count in this mean?
#
#    - As much as an image of any other batch.
#
#      No. The mean gives the same weight to each *batch*, and the images of the last one
#      are fewer to share it.
#
#    - Eight times as much.
#
#      Yes. Every batch has the same weight. In the last batch 8 images share it, in the
#      others 64.
#
#    - An eighth as much.
#
#      No. This mean does not know that a small batch should have a small weight.
#
# A mean over the steps is as if a town computed its average mark from the averages of
# its schools, and a school of 8 pupils counted as much as a school of 64. To fix both
# faults we keep each loss on the device, and write down how many images it belongs to.
# One more epoch:

losses, sizes = [], []
for images, labels in few_loader:
    images, labels = images.to(device), labels.to(device)
    loss = loss_fn(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())  # stays on the device
    sizes.append(len(labels))

# %%
# ``detach`` gives the number without its :term:`autograd graph`, as in lesson 3. At the
# end of the epoch ``stack`` makes one tensor of the list, and one transfer brings it to
# the CPU:

losses = torch.stack(losses).cpu()  # read once
sizes = torch.tensor(sizes)
by_steps = losses.mean()
by_samples = (losses * sizes).sum() / sizes.sum()

print(f"last batch:        {losses[-1]:.5f}, {sizes[-1]} images")
print(f"mean over steps:   {by_steps:.5f}")
print(f"mean over samples: {by_samples:.5f}")

# %%
# The mean over the steps is pulled towards the loss of the last batch. The difference
# is small here, where one batch of many is short; with two or three batches it can be
# large. The mean over samples takes two lines in a loop:
# ``running_loss += loss.detach() * len(labels)`` in each step, and at the end
# ``running_loss.item() / len(few)``. **Weight each loss by its number of samples, and
# read the sum once an epoch.**
#
# Train on every image, with the data on the device
# -------------------------------------------------
#
# .. covers:: S1.13
#
# Now all the training images. They are small enough to convert once and keep on the
# device: then no batch has to be moved. ``load_fashion_mnist`` has read the same files as
# torchvision, into four tensors: images and labels, to train and to test.

train_images = data.train_images.to(device).float() / 255
train_labels = data.train_targets.to(device)
test_images = data.test_images.to(device).float() / 255
test_labels = data.test_targets.to(device)

from_torchvision, _ = train_set[0]  # (1, 28, 28); [0] takes the one colour
print("same numbers:", torch.allclose(train_images[0].cpu(), from_torchvision[0]))

# %%
# They are the numbers that ``ToTensor`` made. We could run the loop from above again. To
# save typing, the package keeps it in a function, ``fit``, and ``Batches`` cuts tensors
# into batches where they are. After each epoch ``fit`` also evaluates the model on
# :term:`held-out data`, which it calls ``validation``, as many scripts do:

from gpulesson.data import Batches
from gpulesson.training import fit

torch.manual_seed(0)
model = Classifier().to(device)  # a new one
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_batches = Batches(train_images, train_labels, batch_size=64, shuffle=True)
test_batches = Batches(test_images, test_labels, batch_size=1000)

history = fit(
    model, train_batches, loss_fn, optimizer, device, epochs=5, validation=test_batches
)
print(history)

# %%
# The line names the training loss of the first and of the last epoch, the loss and the
# :term:`accuracy` on the test images after the last, and the seconds of an epoch, the
# median of the five. The whole history as a picture. Does the model overfit?

# fold: Draw the history
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
history.plot(ax)
ax.set_title(f"Five epochs ({data.source})")
plt.show()

# %%
# It does if the loss on the test images rises while the other one falls: this is the
# :term:`overfitting` of lesson 4. While both fall, more epochs can help.
#
# What can you compare your accuracy with? If your data is the whole set of clothes,
# with the `README of Fashion-MNIST
# <https://github.com/zalandoresearch/fashion-mnist#benchmark>`__. It lists results that
# others report, unchecked: 0.900 for a network about twice as large as ours, and 0.835
# for people who know nothing special about fashion, on 1,000 of the test images. Other
# data has other results.
#
# If you try several learning rates and keep the one with the best test accuracy, you need
# a third set of images for the final number.
#
# Count the right answers on images it has not seen
# -------------------------------------------------
#
# .. covers:: S1.10
#
# How does ``fit`` know the accuracy? Let us compute it ourselves, first for one batch.
# The model's answer for an image is the class with the largest score. We do not train
# here, so PyTorch need not record how the scores were made: ``torch.no_grad()`` switches
# that off.

model.eval()
images, labels = next(iter(test_loader))
with torch.no_grad():
    outputs = model(images.to(device))

largest, predicted = torch.max(outputs, 1)
print("predicted:", tuple(predicted.shape))
print("same from argmax:", torch.equal(predicted, outputs.argmax(dim=1)))

# %%
# A thousand images, a thousand answers. ``torch.max(outputs, 1)``, which many scripts
# use, looks along dimension 1, the ten classes, and returns two tensors: the largest
# score of each row and its position. ``outputs.argmax(dim=1)`` gives the position alone.
#
# Now all the test images. ``dim=1`` makes the result right, and in models with
# :term:`dropout` so does ``model.eval()``, which sets the :term:`evaluation mode`. Two
# things make it quick: :term:`inference mode`, and one ``item`` at the end.

model.eval()
correct = torch.zeros((), dtype=torch.int64, device=device)
with torch.inference_mode():
    for images, labels in test_loader:
        predicted = model(images.to(device)).argmax(dim=1)
        correct += (predicted == labels.to(device)).sum()

right = correct.item()  # read once
print(f"{right} of {len(test_set)} right: {right / len(test_set):.2%}")

# %%
# ``predicted == labels`` is a tensor of true and false, and its sum counts the true
# ones. The result is the accuracy in the line of ``fit``. **Count on the device, and
# read the count once.**
#
# ``no_grad`` or ``inference_mode``? Neither records what a :term:`backward pass` would
# need. ``inference_mode`` saves a little more, but `training refuses most uses of its
# tensors <https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode>`__.
# **Evaluate in inference_mode. Use no_grad if you will train with the results**, for
# example as the inputs of a second model.
#
# Find the classes that it confuses
# ---------------------------------
#
# *Which* mistakes does the model make? We count them in a table of ten rows and ten
# columns, the :term:`confusion matrix`. Row 3, column 6 counts the images of class 3 that
# the model took for class 6:

with torch.inference_mode():
    outputs = model(test_images)
predicted = outputs.argmax(dim=1).cpu()

confusion = torch.zeros(10, 10, dtype=torch.int64)
for truth, answer in zip(data.test_targets, predicted, strict=True):
    confusion[truth, answer] += 1

# %%
# A hundred counts are easier to see as a picture. Where do you expect the large ones?

# fold: Draw the confusion matrix
names = data.class_names
fig, ax = plt.subplots(figsize=(7, 6), layout="constrained")
shares = confusion / confusion.sum(dim=1, keepdim=True)
picture = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
ax.set_xticks(range(10), names, rotation=45, ha="right")
ax.set_yticks(range(10), names)
ax.set(xlabel="the model's answer", ylabel="true class")
ax.set_title(f"Each row: the answers for one class ({data.source})")
fig.colorbar(picture, shrink=0.8, label="share of the images of the class")
plt.show()

# %%
# The dark squares on the diagonal are the right answers. The darker any other square,
# the larger the share of a class that is taken for another. To find the most frequent
# mistake, set the diagonal to zero and look for the largest count that is left.
# ``argmax`` without ``dim`` numbers the hundred counts row by row, so dividing by ten
# gives the row, and the rest is the column:

print(confusion.diagonal().sum().item(), "of", confusion.sum().item(), "right")

mistakes = confusion.clone()  # a copy
mistakes.fill_diagonal_(0)  # the last _ says: it changes the tensor itself
row, column = divmod(mistakes.argmax().item(), 10)
print(f"most often: {names[row]!r} taken for {names[column]!r},")
print(f"{mistakes[row, column]} of {confusion[row].sum()} images")

# %%
# The diagonal adds up to the right answers that we counted above, and a row adds up to
# all the images of its class. **The accuracy says how good a model is, and the
# confusion matrix says where to begin if it must get better.** (In the package,
# ``evaluate`` counts both.)
#
# Look at the pictures that it gets most wrong
# --------------------------------------------
#
# Which pictures are behind these counts? With ``reduction="none"`` the loss function
# returns a loss for each image, instead of their mean. ``argsort`` gives the positions of
# the images in the order of these losses, here the largest first:

loss_per_image = nn.CrossEntropyLoss(reduction="none")
losses = loss_per_image(outputs, test_labels)
worst = losses.argsort(descending=True)[:10].tolist()
print(f"middle loss:  {losses.median():.3f}")
print(f"largest loss: {losses.max():.3f}")

# %%
# Half of the images have a loss below the middle one, which is small. The largest loss is
# far above the 2.3 of a model that knows nothing: here the model is sure, and wrong. The
# ten worst:

# fold: Draw the ten images with the largest loss
fig, grid = plt.subplots(2, 5, figsize=(9, 4.8), layout="constrained")
for index, axes in zip(worst, grid.flat, strict=True):
    axes.imshow(data.test_images[index], cmap="gray_r")
    said, truth = names[predicted[index]], names[data.test_targets[index]]
    axes.set_title(f"said {said}\nis {truth}", fontsize=10)
    axes.axis("off")
fig.suptitle(f"The ten largest losses ({data.source})")
plt.show()

# %%
# Would you have known better? Where you hesitate, the picture or its label is the
# problem. Where you are sure, the model is. **Look at the worst pictures before you
# change anything: they show whether the data or the model needs work.**
#
# Leave the softmax to the loss
# -----------------------------
#
# .. covers:: S1.11
#
# The ten logits of an image can be any numbers, and a larger one means a likelier class.
# The method ``softmax`` turns them into probabilities, as ``powers / powers.sum()`` did
# above. Here are both for the first test image:

with torch.inference_mode():
    logits = model(test_images[:1])[0]
    probabilities = logits.softmax(dim=0)

for name, logit, probability in zip(names, logits, probabilities, strict=True):
    print(f"{name:<12} {logit:6.1f} {probability:7.3f}")
print("true class:", names[test_labels[0]])

# %%
# The probabilities lie between zero and one, and their sum is one. The largest logit
# has the largest probability, so the answer is the same without a softmax.
#
# And the loss? ``CrossEntropyLoss`` computes the softmax itself. But some models that you
# will read end with one, too, ``nn.Softmax(dim=1)``.
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
#      each other that it gives no class a probability near one. So even a perfect answer
#      has a large loss.
#
# How large? We give the loss a perfect answer for class 0, first as logits, then as the
# probabilities that a softmax would make of them:

perfect = torch.zeros(1, 10)
perfect[0, 0] = 50.0  # much larger than the others, so p is nearly 1
target = torch.tensor([0])
print(f"logits:        loss {loss_fn(perfect, target):.3f}")
print(f"probabilities: loss {loss_fn(perfect.softmax(dim=1), target):.3f}")

# %%
# With logits the loss of a perfect answer is zero. With probabilities, the second softmax
# gets a 1 and nine 0s. The powers are e and nine times 1, so the right class gets the
# probability e/(e+9). This is less than a quarter, and −ln of it is the second loss.
# No answer can get below that.
#
# What does it cost in accuracy? We train both models, three times each with other seeds,
# for two epochs on the first 8,000 images:

from gpulesson.evaluation import evaluate

part = Batches(train_images[:8000], train_labels[:8000], batch_size=64, shuffle=True)


def accuracy_with(last_layer, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(Classifier(), last_layer).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    fit(network, part, loss_fn, optimizer, device, epochs=2)
    return evaluate(network, test_batches, loss_fn, device).accuracy


for last_layer in (nn.Identity(), nn.Softmax(dim=1)):
    found = sorted(accuracy_with(last_layer, seed) for seed in range(3))
    print(f"{last_layer!s:<15}", *[f"{accuracy:8.2%}" for accuracy in found])

# %%
# ``nn.Identity`` changes nothing; it is there so that both lines are computed in the
# same way. Each line has its three accuracies in order. Compare the middle ones: with a
# softmax in the model the accuracy is lower, and no message told you. **Let the model
# return logits: the softmax is inside the loss.**
#
# .. instructor-note::
#
#    A softmax before the loss raises no error. Let the class answer the question box
#    before anyone sees the numbers.
#
# Take the whole lesson with you as one script
# --------------------------------------------
#
# Here is everything in one file that needs ``torch`` and ``torchvision`` only: the
# data, the model, the loop with its running loss, the evaluation. It trains for five
# epochs, on a GPU if there is one, prints the accuracy, and saves the weights, the
# model's :term:`state_dict`, as ``fashion_mnist.pt``. In a terminal: ``python
# fashion_mnist.py FOLDER``, with the folder of the data. The loader has the settings of
# lesson 4, and ``@torch.inference_mode()`` above a function holds for all of its body.
#
# .. script:: fashion_mnist.py
#
# The last ``if`` is there for the loader's :term:`workers <worker>`: on some systems
# each worker first runs this file from the top, and the ``if`` keeps it from training
# as well (`Python's documentation
# <https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods>`__).
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
#    functions on the :term:`practice GPU`, with images of its own, and one class has
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
#    - ``FashionMNIST`` with ``ToTensor`` and a ``DataLoader`` is the usual pipeline; name
#      the data and its size beside every result.
#    - The model lays the pixels end to end, ``x.view(x.size(0), -1)``, and ends with ten
#      numbers for each image.
#    - Weight losses by samples, keep them on the device, and read them once an epoch.
#    - Evaluate with ``eval()``, ``inference_mode()`` and ``argmax(dim=1)``, and count on
#      the device.
#    - The confusion matrix shows which classes are confused; the pictures with the
#      largest loss show why.
#    - Models return logits; ``CrossEntropyLoss`` contains the softmax. A second one costs
#      accuracy, without an error.
#
# **Next:** :doc:`/lessons/06_save_load_resume` keeps what the model has learned.

"""
4 · The training loop on a device
=================================

Change two places of a training loop so that it runs on a :term:`GPU`, add what such
loops often lack, and take the finished loop with you.

.. overview::
   :teaching: 32
   :exercises: 15

   .. objectives::

      - Move a training loop to a GPU by changing two places, and name what moves along
        by itself.
      - Follow one number and the loss through the five calls of a step.
      - Shuffle, evaluate on held-out data in the right mode, and say why a GPU may be no
        faster.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices` and :doc:`/lessons/03_first_model`
      - In Python: slices of lists, such as ``rows[0:10]``, and loops over pairs, such as
        ``for name, p in pairs``
"""

# %%
# In :doc:`lesson 3 </lessons/03_first_model>`, all flowers went through the model at
# once. Thousands of pictures go through in portions, and each portion is a
# :term:`batch`.
#
# On a machine without a :term:`CUDA` GPU, this page computes on the :term:`practice GPU`:
# it obeys a GPU's rules, but your CPU does the arithmetic.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice
from gpulesson.data import load_fashion_mnist

practice.start()
torch.set_num_threads(1)  # one CPU core is enough for so small a network

# %%
# Read a loop that runs on the CPU
# --------------------------------
#
# Fashion-MNIST is a set of pictures of clothes and shoes. Each has 28 × 28 grey pixels,
# numbers from 0 (black) to 255 (white), and one of ten labels. We take 2,000 pictures to
# train with and 500 for the test.

data = load_fashion_mnist()
X_train = data.train_images[:2000].flatten(1) / 255  # 784 numbers from 0 to 1
X_test = data.test_images[:500].flatten(1) / 255
y_train, y_test = data.train_targets[:2000], data.test_targets[:500]
print("train:", tuple(X_train.shape), tuple(y_train.shape))
print("test: ", tuple(X_test.shape), tuple(y_test.shape))

# %%
# A picture has become a row of 784 numbers. Here are the first eight, dark on white:

# fold: Draw eight pictures with their classes
_, axes = plt.subplots(2, 4, figsize=(4.5, 2.6), layout="constrained")
for ax, picture, label in zip(
    axes.flat, X_train[:8], y_train[:8].tolist(), strict=True
):
    ax.imshow(picture.reshape(28, 28), cmap="gray_r")
    ax.set_title(data.class_names[label], fontsize=10)
    ax.axis("off")
plt.show()

# %%
# Our model has layers in a row, as in lesson 3: from 784 numbers to 32, our choice, and
# from these to ten scores, one for each class. We'll need several fresh models, so a
# function makes them:


def make_model():
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


# %%
# You know the five calls from lesson 3. The outer loop counts the
# :term:`epochs <epoch>`. The inner loop takes a hundred pictures at a time:
# ``X_train[i : i + 100]`` are the rows from ``i`` up to ``i + 100``. How many times does
# ``optimizer.step()`` run?

loss_fn = nn.CrossEntropyLoss()
torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for i in range(0, 2000, 100):
        inputs = X_train[i : i + 100]
        targets = y_train[i : i + 100]
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

# %%
# Each round of the inner loop is one :term:`step`. **A step takes one batch, and an epoch
# takes all pictures once.** 2,000 pictures make 20 batches, so three epochs make 60
# steps. The printed :term:`loss` is that of an epoch's last batch, and it falls.
#
# .. question:: Which lines must change so that this loop runs on a GPU?
#
#    - Every line of the inner loop, because they do the computing.
#
#      No. These lines never say where to compute. An operation runs where its
#      :term:`tensors <tensor>` are.
#
#    - The line that makes the model, and the two that cut out inputs and targets.
#
#      Yes. The model moves once, before the loop. The inputs and targets are different in
#      every step, so they move inside the loop.
#
#    - Only the line that makes the model. The rest follows the model.
#
#      No. The slices would still be on the CPU, and the first ``model(inputs)``
#      would stop with an error.
#
# Move the model once, and each batch inside the loop
# ---------------------------------------------------
#
# .. covers:: S0.5 S1.5 S2.3 S4.1
#
# .. drawing:: what_travels.svg
#
#    The model travels to the :term:`device` once, and every step sends new inputs and
#    targets.
#
# On the left is the :term:`host`: the CPU with the computer's main memory. On the right
# is the GPU with its own memory, the :term:`device memory`. It is like moving house: the
# furniture (the model) goes over once, and the shopping (a batch) comes in every week.
# Training changes the model on the device, so there is nothing to bring over again.
#
# .. code-block:: diff
#
#    +device = torch.device("cuda")
#     torch.manual_seed(0)
#    -model = make_model()
#    +model = make_model().to(device)
#     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
#     for epoch in range(3):
#         for i in range(0, 2000, 100):
#    -        inputs = X_train[i : i + 100]
#    -        targets = y_train[i : i + 100]
#    +        inputs = X_train[i : i + 100].to(device)
#    +        targets = y_train[i : i + 100].to(device)
#             outputs = model(inputs)
#
# The :term:`seed` is the same, so both runs begin with the same model. Will the losses
# be the same?

device = torch.device("cuda")
torch.manual_seed(0)
model = make_model().to(device)  # place 1
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for i in range(0, 2000, 100):
        inputs = X_train[i : i + 100].to(device)  # place 2
        targets = y_train[i : i + 100].to(device)  # place 2
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f} on {loss.device}")

# %%
# These are the losses from above. On a real GPU the last digits may differ, because
# it adds up in another order. **Move the model once, before the loop. Move each batch,
# inputs and targets, inside the loop,** before the :term:`forward pass`, the call of
# ``model(inputs)``.
#
# Follow one step, call by call
# -----------------------------
#
# .. covers:: S4.4
#
# .. drawing:: training_step.svg
#
#    The five calls of a training step, and where each of them computes.
#
# Let's take one step slowly, with a new model. We watch the loss, and a single number
# among the model's :term:`parameters <parameter>`: entry 9 of the last layer's bias. It
# is added to the score of class 9. **Call 1,** the forward pass, computes the scores.
# **Call 2** computes the loss:

torch.manual_seed(0)
model = make_model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = X_train[:100].to(device), y_train[:100].to(device)

outputs = model(inputs)  # call 1
loss = loss_fn(outputs, targets)  # call 2
bias = model[2].bias  # of the last layer: a number for each class
print(f"{data.class_names[9]}: bias {bias[9].item():.4f}, loss {loss.item():.4f}")

# %%
# **Call 3** forgets the :term:`gradients <gradient>` of the step before. A first step has
# none, but all others do. **Call 4,** the :term:`backward pass`, computes new ones, and
# leaves each parameter's in ``grad``:

optimizer.zero_grad()  # call 3
loss.backward()  # call 4
print(f"gradient {bias.grad[9].item():.4f}")

# %%
# The gradient is positive: the loss grows with the bias. Which way will **call 5,** the
# :term:`optimizer`'s step, move the bias? And the loss of this batch?

optimizer.step()  # call 5
print(f"bias {bias[9].item():.4f}")
print(f"loss {loss_fn(model(inputs), targets).item():.4f}")

# %%
# The bias moved against its gradient, by the gradient times 0.1, the
# :term:`learning rate`. All other parameters moved as well, and the loss is smaller.
# **No call names a device. Four of them compute where their tensors are, and**
# ``zero_grad`` **has nothing to compute.**
#
# What if you leave out call 3? We begin without gradients, and make two backward passes
# with the same batch:

optimizer.zero_grad()
for count in (1, 2):
    loss_fn(model(inputs), targets).backward()
    print(f"gradient after backward pass {count}: {bias.grad[9].item():.4f}")

# %%
# The second is twice the first, apart from rounding: ``backward`` *adds* to the gradients
# that it finds, and you get no message. **Drop the old gradients in every step.** Some
# scripts say ``model.zero_grad()``, which does the same here.
#
# Know what moves along by itself
# -------------------------------
#
# .. covers:: S1.2 S1.6
#
# We moved the model, but never its parameters or gradients. Where are they? Some layers
# also own :term:`buffers <buffer>`, tensors that the optimizer does not change. For
# example, ``BatchNorm1d`` keeps a running mean of its inputs: later batches count more.

for name, p in model.named_parameters():
    print(f"{name} {p.device}, its gradient {p.grad.device}")

layer = nn.BatchNorm1d(10).to(device)
print("the buffer running_mean:", layer.running_mean.device)

# %%
# **One call of** ``to`` **moves all parameters and buffers. Losses and gradients are
# computed where these are, and stay there.**
#
# And the optimizer? Ours, ``SGD``, remembers nothing. Many scripts use ``Adam``, and from
# here on we do as well. It keeps averages of each number's earlier gradients, and adapts
# the length of its steps to them. The averages are where the parameters were in the first
# step, and they don't follow if you move the model later. **So first**
# ``model.to(device)``, **then the optimizer,** as `PyTorch's own page
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.cuda>`__
# asks.
#
# .. film:: films/one_step.py
#
#    Step through two steps of training: what does each line add on the GPU, and what does
#    it wait for? Then choose a mistake. Where does the script fail, or when is the queue
#    empty? (Python sends :term:`kernels <kernel>`, functions that the GPU runs, and goes
#    on while the GPU computes. The queue counts those that Python has not waited for. An
#    ordinary copy waits for all of them, as a printed loss does. So here printing costs
#    little: the next batch's copy waits anyway. Where nothing else waits, it costs more.)
#
# .. fold:: Going further: when the order of the two lines matters
#
#    ``to`` moves the parameters themselves, so an optimizer made earlier still knows
#    them. What it leaves where it is are the averages, the :term:`optimizer state`. Adam
#    makes them in its first step. If that was on the CPU, the step after a late ``to``
#    fails. ``Adagrad`` makes its state at once, so a late ``to`` always fails, as in
#    the film above.
#
#    Something else does not move: in a model that you write as a class, a tensor that is
#    neither a parameter nor a buffer. :ref:`Lesson 7 <made-in-forward>` has an example.
#
# Shuffle, and let a loader make the batches
# ------------------------------------------
#
# .. covers:: S4.3
#
# So far the batches are the same in every epoch. A :term:`data loader` can shuffle:
# ``TensorDataset`` puts inputs and targets together, row by row, and ``DataLoader`` cuts
# batches from them, with ``shuffle=True`` in a new order in each epoch.

train_set, test_set = TensorDataset(X_train, y_train), TensorDataset(X_test, y_test)
train_batches = DataLoader(train_set, batch_size=100, shuffle=True)
test_batches = DataLoader(test_set, batch_size=100)

inputs, targets = next(iter(train_batches))  # only the first batch
print(len(train_batches), "batches, the first is", tuple(inputs.shape), inputs.device)

# %%
# The batches are on the CPU, so they still move inside the loop. That is why the data may
# be larger than the GPU's memory: only the model, what it computes, and one batch have to
# fit.

# fold: Going further: a loader of the inputs alone
try:
    inputs, targets = next(iter(DataLoader(X_train, batch_size=60)))  # no targets
except ValueError as error:  # a batch is one tensor: 60 rows, not two
    print(error)

# %%
# Does shuffling matter? Pictures often come sorted by class. Let's sort ours, and train
# twice: in this order, and shuffled. The folded cell has the loop that you know, as a
# function:

# fold: The loop as a function: train(model, batches, loss_fn, epochs)


def train(model, batches, loss_fn, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for inputs, targets in batches:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %%
# How many of the 500 test pictures get the right name? And which classes does the model
# predict at all? ``unique`` lists each once.

order = y_train.argsort()  # the rows' numbers, sorted by class
by_class = TensorDataset(X_train[order], y_train[order])
for shuffle in (False, True):
    torch.manual_seed(0)
    model = make_model().to(device)
    batches = DataLoader(by_class, batch_size=100, shuffle=shuffle)
    train(model, batches, loss_fn, epochs=3)
    answers = model(X_test.to(device)).argmax(dim=1).cpu()  # a better test comes below
    right = (answers == y_test).sum().item()
    print(f"shuffle {shuffle}: {right} right, answers {answers.unique().tolist()}")

# %%
# Without shuffling, a batch holds one or two classes. It changes the model towards these,
# and undoes what earlier batches taught. In the end the model never predicts most of the
# classes.
# **Shuffle the training data in each epoch.**
#
# Going further: if all pictures fit into the GPU's memory, you can also move them once,
# and cut the batches there, as lesson 9 does.

# fold: Going further: cut a batch from pictures that are on the device
X_gpu = X_train.to(device)  # once, before the loop
rows = torch.randperm(2000, device=device)[:100]
batch = X_gpu[rows]  # in every step
print(f"all pictures: {X_gpu.nbytes:,} bytes, a batch: {batch.nbytes:,} bytes")
print("this batch was made on", batch.device)

# %%
# Evaluate on held-out data, in evaluation mode
# ---------------------------------------------
#
# .. covers:: S4.2
#
# A model can learn its training pictures by heart, and do worse on others
# (:term:`overfitting`). So test it on :term:`held-out data`. Let's train on only a
# hundred pictures, for a hundred epochs, and test on these and on others:

few = TensorDataset(X_train[:100], y_train[:100])
torch.manual_seed(0)
model = make_model().to(device)
train(model, DataLoader(few, batch_size=100), loss_fn, epochs=100)
for name, X, y in (
    ("seen", X_train[:100], y_train[:100]),
    ("not seen", X_test, y_test),
):
    right = (model(X.to(device)).argmax(dim=1).cpu() == y).sum().item()
    print(f"{len(y)} pictures that it has {name}: {right / len(y):.1%} right")

# %%
# It knows its hundred pictures by heart. The others show what it has learned.
#
# Some layers work differently in training. A :term:`dropout` layer sets random
# values to zero, so that the model does not rely on a few. What does it do in a test?

dropout = nn.Dropout(0.5)  # drops each value with probability 0.5
ones = torch.ones(8)
torch.manual_seed(0)
print("training mode:  ", dropout(ones).tolist())
dropout.eval()
print("evaluation mode:", dropout(ones).tolist())

# %%
# In :term:`training mode` the other values are doubled, to make up for the zeros. In
# :term:`evaluation mode` all pass unchanged. A forgotten ``eval()`` gives no error, only
# other answers. Our classifier has no such layer, but the model of lesson 6 has one.
# **Call** ``model.train()`` **before you train, and** ``model.eval()`` **before
# you evaluate.**
#
# .. question:: What does ``model.eval()`` do?
#
#    - It computes how good the model is.
#
#      No. It only sets a switch in the model and in each of its layers.
#
#    - It turns off gradients.
#
#      No. That is the work of ``torch.no_grad()``. Most layers allow a backward pass in
#      evaluation mode, too.
#
#    - It tells layers such as dropout to behave as after the training.
#
#      Yes. Dropout then lets everything through, and ``BatchNorm1d`` uses the
#      averages that it has kept.
#
# For the :term:`accuracy`, **count the right answers of all test batches, and divide
# once, at the end.** The mean of the batches' accuracies is wrong if the last batch is
# shorter.

# fold: Going further: take the mean of two batches
right = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
first, second = right.split(8)  # eight answers, and two
print("mean of the batches:", (first.mean().item() + second.mean().item()) / 2)
print("right / answers:    ", right.sum().item() / len(right))

# %%
# Some models predict a number instead of a class, such as how bright a picture is. Then
# the targets, the outputs and the loss are different, but the loop stays.

# fold: Going further: predict a number instead of a class


def brightness(X):
    return X.mean(dim=1, keepdim=True)  # the mean of the pixels: [N, 1], as the outputs


bright = DataLoader(TensorDataset(X_train, brightness(X_train)), 100, shuffle=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
train(model, bright, nn.MSELoss(), epochs=3)  # the mean of the squared differences
learned = model(X_test.to(device)).detach().cpu()
for name, y in (("true:   ", brightness(X_test)), ("learned:", learned)):
    print(name, [f"{x:.2f}" for x in y[:6].flatten().tolist()])

# %%
# Take one loop with you, and time it
# -----------------------------------
#
# Here is all of it in one loop. Only ``dataset`` is new, the data of a loader. Before
# you read it: where would you put ``train()`` and ``eval()``?


def train_and_test(device):
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(3):
        model.train()
        for inputs, targets in train_batches:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        right = 0
        with torch.no_grad():
            for inputs, targets in test_batches:
                inputs, targets = inputs.to(device), targets.to(device)
                right += (model(inputs).argmax(dim=1) == targets).sum().item()
        print(f"epoch {epoch + 1}: {right / len(test_batches.dataset):.1%} right")


# %%
# Each epoch trains and then tests, so each sets both modes. For your own task, change
# ``make_model``, the two loaders, and perhaps ``loss_fn``.
#
# How long does it take? The practice GPU can't say, so we stop it. Then
# ``choose_device()`` returns your GPU, or the CPU if you have none. The first run on a
# device also loads what it needs, so look at the second.

import time

from gpulesson.device import choose_device, device_name

practice.stop()
devices = [torch.device("cpu")]
if choose_device() not in devices:
    devices.append(choose_device())

for device in devices:
    for run in ("first", "second"):
        torch.manual_seed(2)
        start = time.perf_counter()  # seconds on a clock
        train_and_test(device)
        seconds = time.perf_counter() - start
        print(f"{run} run on {device_name(device)}: {seconds:.2f} seconds")

# %%
# On a GPU the same run takes about as long as on the CPU, or longer: the recorded
# times of :doc:`lesson 8 </lessons/08_was_it_faster>` show it. So if you have none, you
# haven't missed much here. **Why is it not faster?**
#
# - *The model is small.* Python has to launch each operation on the GPU, and this takes
#   longer than its few calculations.
# - *Each step copies a batch to the GPU.* The CPU needs no such copy.
# - *The loader works on the CPU,* whatever the device. It collects each batch picture by
#   picture. The folded cell times it alone:

# fold: Time the loader without any training
start = time.perf_counter()
for _ in range(3):
    for _ in train_batches:
        pass
print(f"three epochs of the loader: {time.perf_counter() - start:.2f} seconds")

# %%
# No GPU makes that part shorter. **A GPU pays off when each operation holds a lot of
# work,** as in larger models and batches. Lesson 8 measures from which size on, and
# :doc:`/lessons/09_feeding_the_gpu` makes the loader faster.
#
# Exercise
# --------
#
# .. covers:: S2.5
#
# .. exercise:: Write the training loop
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_04.py
#
#    The file has three functions without a body: one step of training, the accuracy, and
#    the run that is made of both.
#
#    1. Write ``train_step``: copy the batch to the device, then the five calls.
#    2. **Predict:** which of the five calls must not be in ``accuracy``? And which mode
#       does the model need there? Then write it.
#    3. Write ``run``: move the model, build the optimizer after that, shuffle the
#       training rows in each epoch, and test at the end.
#    4. Run the file. How much better is the model after ten epochs?
#
#    To check it: ``python -m gpulesson check exercise_04.py``. You can check after each
#    function.
#
#    You are done when all three have a check mark.
#
# .. solution::
#    :file: solution_04.py
#
#    ``run`` uses the other two. ``train_step`` switches to training mode by itself, and
#    ``accuracy`` to evaluation mode, so it does not matter which was called last. Of the
#    five calls, ``accuracy`` needs only the first: with the last three it would train on
#    the test pictures.
#
# .. keypoints::
#
#    - Two places change: ``model.to(device)`` once, before the optimizer and the loop,
#      and ``to(device)`` for inputs and targets inside it. Buffers and gradients follow.
#    - Forward pass, loss, ``backward`` and ``step`` compute where their tensors are. A
#      step goes against the gradients. Without ``zero_grad``, they add up.
#    - Shuffle in each epoch, call ``train()`` and ``eval()``, and on held-out data count
#      the right answers and divide once. A small model is no faster on a GPU.
#
# You have made the changes by hand. For a script of your own, :doc:`/port` proposes
# them, each with its reason.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains on more of these pictures, and looks
# at the mistakes.

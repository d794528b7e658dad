"""
4 · The training loop on a device
=================================

Take a training loop that runs on the CPU, change two things so that it runs on a
:term:`GPU`, and add what such loops often lack.

.. overview::
   :teaching: 35
   :exercises: 15

   .. questions::

      - Which lines of a training loop must change so that it runs on a GPU?
      - What does each of the five calls inside the loop do, and where does it run?
      - What is still missing in a loop that runs without an error?
      - How do the rows get to the GPU, and which settings should I start with?

   .. objectives::

      - Make the two changes: move the model once, and each batch inside the loop.
      - Name what moves along by itself, and build the optimizer after the move.
      - Explain the five calls of a training step.
      - Shuffle the rows, hold some of them back, and switch the model's mode.
      - Feed a loop in three ways, and choose a loader's settings by measuring.
      - Count right answers, and divide once.
"""

# %%
# .. prereq::
#
#    - :doc:`/lessons/02_tensors_and_devices` and :doc:`/lessons/03_first_model`
#    - Slices of lists, such as ``rows[0:10]``
#
# In :doc:`lesson 3 </lessons/03_first_model>`, all flowers went through the model at
# once. With more data you take a few rows at a time: a :term:`batch`. In this lesson you
# bring such a loop from the CPU to another :term:`device`, a GPU.
#
# If your machine has no GPU for :term:`CUDA`, the lesson uses the :term:`practice GPU`.
# It keeps track of where each :term:`tensor` is, and computes on the CPU.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice
from gpulesson.device import choose_device
from gpulesson.timing import measure

torch.set_num_threads(1)  # tensors this small gain nothing from more threads
print("PyTorch", torch.__version__)

# %%
# Read a loop that runs on the CPU
# --------------------------------
#
# The task is a regression: predict one number from eight. We make up 500 rows. Their
# targets follow a rule that the model has to find, plus a little noise that nobody can
# predict. The last hundred rows are put aside for later.

torch.manual_seed(1)
X = torch.randn(500, 8)
rule = torch.randn(8, 1) / 3
y = X @ rule + 0.1 * torch.randn(500, 1)  # the rule, and noise

X_train, y_train = X[:400], y[:400]
X_test, y_test = X[400:], y[400:]
print("inputs: ", tuple(X_train.shape), tuple(X_test.shape))
print("targets:", tuple(y_train.shape), tuple(y_test.shape))

# %%
# The two pairs of numbers are the rows and columns of each part: 400 rows to train with
# and 100 to test with, eight numbers in and one number out.
#
# The model has one hidden layer. The comments give the :term:`shape` after each line:


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):  # [rows, 8]
        hidden = torch.relu(self.hidden(x))  # [rows, 32]
        return self.out(hidden)  # [rows, 1]


# %%
# And this is the whole training loop. The outer loop counts the :term:`epochs <epoch>`:
# in each one, all 400 rows pass once. The inner loop cuts out ten rows at a time. How
# many times does ``optimizer.step()`` run?

torch.manual_seed(0)
model = Net()
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
cpu_losses = []
for epoch in range(1, 101):
    for i in range(0, len(X_train), 10):
        inputs = X_train[i : i + 10]
        targets = y_train[i : i + 10]
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cpu_losses.append(loss.item())
    if epoch in (1, 10, 100):
        print(f"epoch {epoch:>3}: loss {loss.item():.4f}")

# %%
# Each round of the inner loop is one :term:`step`. **A step takes one batch, and an epoch
# takes all rows once.** Here 400 rows make 40 batches of ten, so 100 epochs make 4,000
# steps.
#
# The printed :term:`loss` is the mean squared error of the last ten rows, and it falls.
# How far can it fall? The noise has a mean square of 0.01, and nobody can predict it. So
# on rows that it has not seen, no model gets below 0.01 on average.
#
# .. question:: Which lines must change so that this loop runs on a GPU?
#
#    - Every line of the inner loop, because they do the computing.
#
#      No. These lines never say where to compute. An operation runs where its
#      tensors are.
#
#    - The line that makes the model, and what the two slices give.
#
#      Yes. The model moves once, before the loop. The inputs and the targets are
#      other rows in each step, so they move inside the loop.
#
#    - Only the line that makes the model. The rest follows the model.
#
#      No. The slices would still be on the CPU, and the first ``model(inputs)``
#      would stop with an error. Two devices do not mix.
#
# Move the model once, and each batch inside the loop
# ---------------------------------------------------
#
# .. covers:: S0.5 S1.5 S4.1 S4.2
#
# .. drawing:: what_travels.svg
#
#    The model travels to the device once, and every step sends new inputs and targets.
#
# On the left is the :term:`host`: the CPU, on which Python runs, with the computer's main
# memory, the :term:`host memory`. On the right is the GPU with its own memory, the
# :term:`device memory`, often called VRAM. The GPU computes with the tensors there.
#
# It is like moving house: the furniture goes over once, and the shopping comes in every
# week. The model is the furniture. It is the same model in all 4,000 steps, so you move
# it before the loop. The batch is the shopping: each step needs other rows.
#
# First we need a device. If the machine has a GPU for CUDA, ``practice.start()`` says so
# and steps aside.

practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name())

# %%
# Here is the loop again, with the two changes. Compare it line by line with the one
# above. The :term:`seed` is the same, so both begin with the same model. Will the losses
# be the same, too?

torch.manual_seed(0)
model = Net().to(device)  # change 1
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for epoch in range(1, 101):
    for i in range(0, len(X_train), 10):
        inputs = X_train[i : i + 10]
        targets = y_train[i : i + 10]
        inputs = inputs.to(device)  # change 2
        targets = targets.to(device)  # change 2
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
    if epoch in (1, 10, 100):
        print(f"epoch {epoch:>3}: loss {loss.item():.4f}")

# %%
# These are the losses from above, apart from rounding. A picture shows all hundred of
# them:

# fold: Draw both runs
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.semilogy(range(1, 101), cpu_losses, label="on the CPU")
ax.semilogy(range(1, 101, 5), losses[::5], "o", label=f"on {model.out.weight.device}")
ax.axhline(0.01, color="gray", ls="--", label="mean square of the noise")
ax.set(xlabel="epoch", ylabel="loss of the last batch")
ax.set_title("Two changes, and the same training run on another device")
ax.legend()
plt.show()

largest = max(abs(a - b) for a, b in zip(losses, cpu_losses, strict=True))
print("the model is on", model.out.weight.device)
print(f"largest difference between the losses: {largest:.1e}")

# %%
# The dots lie on the line: it is the same training, on another device. On the practice
# GPU the largest difference is 0, because the CPU still does the arithmetic. On a real
# GPU expect a small difference. It adds up the same numbers in another order, and then
# rounds differently.
#
# **Move the model once, before the loop. Move each batch, inputs and targets, inside the
# loop.** The batch has to be there before the :term:`forward pass`, the call of
# ``model(inputs)``. If you put ``model.to(device)`` inside the loop, the result is the
# same, but each step looks through the whole model for nothing.
#
# Did the GPU make it faster? With ten rows a step, it has little to do. We measure that
# near the end of this lesson.
#
# Know what moves along by itself
# -------------------------------
#
# .. covers:: S1.2 S1.6
#
# You moved three things from host memory to device memory: the model, the inputs and the
# targets. "The model" is more than its :term:`parameters <parameter>`. Some layers also
# own :term:`buffers <buffer>`: tensors that belong to the model and that no
# :term:`optimizer` changes. A layer for :term:`batch normalisation` keeps its running
# averages there. Do buffers move, too?

network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
network = network.to(device)
for name, tensor in network.named_parameters():
    print("parameter", name, tensor.device)
for name, tensor in network.named_buffers():
    print("buffer   ", name, tensor.device)

# %%
# They do: all nine tensors are on the device, six parameters and three buffers. **One
# call of** ``to`` **moves everything that belongs to the model.** If you moved the
# parameters by hand, you would miss the buffers.
#
# The other two are the inputs and the targets. Who needs the targets? We move only the
# inputs, and see how far we get:

inputs, targets = X_train[:10], y_train[:10]
inputs = inputs.to(device)
outputs = network(inputs)
print("outputs on", outputs.device)
try:
    loss = loss_fn(outputs, targets)
except RuntimeError as error:
    print(error)

# %%
# The forward pass needs no targets. The loss compares outputs with targets, so
# it stops: one is on the GPU, the other is on the CPU. Now we move the targets as well.
# Where will the loss be, and where the :term:`gradients <gradient>` of the
# :term:`backward pass`?

targets = targets.to(device)
loss = loss_fn(outputs, targets)
loss.backward()
print("loss on", loss.device)
print("gradients on", {str(p.grad.device) for p in network.parameters()})

# %%
# You moved neither. **A result is computed where its tensors are, and it stays there.**
# This holds for the outputs, for the loss, and for the gradients.
#
# ``MSELoss`` holds no tensors of its own, so there is nothing to move in it. A loss with
# tensors of its own, such as :term:`class weights`, has to move like a model:
# :doc:`lesson 7 </lessons/07_common_mistakes>` shows the error.
#
# One owner of tensors is left, the optimizer. Adam keeps an average of the
# gradients for each parameter (``exp_avg``), an average of their squares
# (``exp_avg_sq``), and a count of its steps. This is the :term:`optimizer state`. Where
# does the optimizer of our loop keep it?

for name, tensor in optimizer.state[model.out.bias].items():
    print(f"{name:<10} {tensor.device}")

# %%
# The two averages are beside their parameter. The count is on the CPU on purpose: it is
# a single number, and Python can read it there without waiting for the GPU.
#
# Move the model before you build the optimizer
# ---------------------------------------------
#
# In our loop, the optimizer came after the move. Does the order matter? It matters as
# soon as there is a state. Here a model takes one step on the CPU, and moves afterwards.
# Where is Adam's average now?

late = Net()
adam = torch.optim.Adam(late.parameters())
loss_fn(late(X_train), y_train).backward()
adam.step()  # on the CPU

late.to(device)
bias = late.out.bias
print("parameter:", bias.device)
print("gradient: ", bias.grad.device)
print("average:  ", adam.state[bias]["exp_avg"].device)

# %%
# The parameter and its gradient moved. The average did not, because it belongs to the
# optimizer, and nobody moved that. What will the next step do?

try:
    adam.step()
except RuntimeError as error:
    print(error)

# %%
# An error. Its words depend on the optimizer and on the version of PyTorch. The reason is
# always the same: the state is on the CPU, and the parameter is on the GPU.
#
# And if the optimizer has not made a step yet? We build three optimizers **before** the
# move, and let each make its first step after it.

for method in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
    late = Net()
    optimizer_first = method(late.parameters(), lr=1e-3)
    late.to(device)
    loss_fn(late(inputs), targets).backward()
    try:
        optimizer_first.step()
        print(f"{method.__name__:<8} works")
    except RuntimeError:
        print(f"{method.__name__:<8} fails")

# %%
# SGD and Adam work. When a model moves, PyTorch puts the new numbers into the same
# parameter objects, so the optimizer still finds them, and Adam makes its state only in
# the first step. Adagrad makes its state at once, when it is built, and that was on the
# CPU.
#
# You need not remember which optimizer is which: **first** ``model.to(device)``, **then
# the optimizer.** This order is right for all of them, and `PyTorch's own page
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.cuda>`__
# asks for it.
#
# .. instructor-note::
#
#    Many learners have read that a late ``to`` always breaks the optimizer, because "the
#    parameters are new objects". The table shows that this is not so, and which case does
#    break. Let the class guess the three words before the cell runs.
#
# Follow one step, call by call
# -----------------------------
#
# .. covers:: S4.4
#
# Inside the loop are five calls, and none of them mentions a device:
#
# .. drawing:: training_step.svg
#
#    The five calls of a training step, and where each of them computes.
#
# Let us take one step slowly, with a new model on the device. We follow a single one of
# its parameters, the bias of the last layer. So that there is an older gradient to
# forget, the model has already made a backward pass with another batch.

torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
older_X, older_y = X_train[10:20].to(device), y_train[10:20].to(device)
loss_fn(model(older_X), older_y).backward()

bias = model.out.bias
print(f"bias {bias.item():.4f}, gradient {bias.grad.item():.4f}")

# %%
# **Call 1: the forward pass** computes ten outputs from ten rows.

inputs, targets = X_train[:10].to(device), y_train[:10].to(device)
outputs = model(inputs)
print(tuple(outputs.shape), "on", outputs.device)
print("made by", outputs.grad_fn.name())

# %%
# It also writes down how it computed them, for call 4. This record is the
# :term:`autograd graph`. ``AddmmBackward0`` is the entry of the last layer: a matrix
# product (*mm*) and an addition of the bias (*add*).
#
# **Call 2: the loss** turns the ten outputs and the ten targets into one number, which
# says how far apart they are.

loss = loss_fn(outputs, targets)
print(f"loss {loss.item():.4f} on {loss.device}")

# %%
# **Call 3:** ``zero_grad`` forgets the gradient of the batch before. What will be in its
# place?

optimizer.zero_grad()
print("gradient", bias.grad)

# %%
# ``None``, no gradient at all. You will often read that ``zero_grad`` sets gradients to
# zero. By default, `it sets them to None
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html>`__,
# which saves memory.
#
# **Call 4: the backward pass** goes back along the record, and computes a new gradient
# for each parameter.

loss.backward()
print(f"gradient {bias.grad.item():.4f} on {bias.grad.device}")

# %%
# The gradient tells how the loss changes when the bias grows. If the gradient is
# positive, the loss grows as well. In which direction should the bias move?
#
# **Call 5: the optimizer's step** moves each parameter against its gradient.

before = bias.item()
optimizer.step()
print(f"bias before {before:.4f}, after {bias.item():.4f}")

# %%
# The bias moved by 0.001, the :term:`learning rate`: this is how far Adam moves a
# parameter in its first step. In later steps its averages decide as well.
#
# **The five calls are the same on every device. They run where their tensors are.**
#
# .. question:: You leave out ``optimizer.zero_grad()``. What does the loop do?
#
#    - It stops with an error in ``loss.backward()``.
#
#      No. PyTorch cannot know that you did not want this. Some scripts leave
#      gradients in place on purpose, to collect them over several batches.
#
#    - Nothing changes. ``backward`` replaces the old gradient.
#
#      No. This would be natural, but ``backward`` never replaces a gradient.
#
#    - It runs, and each step uses the sum of all gradients so far.
#
#      Yes. ``backward`` adds to what is there, and no message tells you.
#
# Two backward passes with the same batch show it:

optimizer.zero_grad()
loss_fn(model(inputs), targets).backward()
print(f"one backward pass:   {bias.grad.item():.4f}")
loss_fn(model(inputs), targets).backward()
print(f"two backward passes: {bias.grad.item():.4f}")

# %%
# The same batch, twice the gradient. Some scripts call ``model.zero_grad()`` instead:

model.zero_grad()
print({p.grad for p in model.parameters()})

# %%
# No parameter has a gradient now. ``model.zero_grad()`` clears the parameters of the
# model, and ``optimizer.zero_grad()`` those that the optimizer was given. In this loop
# they are the same ones.
#
# Shuffle the rows
# ----------------
#
# Our loop runs, and its loss falls, but three things are missing. The first is the order:
# it shows the rows in the same order in each epoch. Does this matter? To try it, we put
# the loop into a function with a switch. ``torch.randperm(400)`` gives the numbers 0 to
# 399 in random order, and ``split`` cuts them into batches.


def train(X, y, shuffle=True, epochs=5, batch_size=10):
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        order = torch.randperm(len(X)) if shuffle else torch.arange(len(X))
        for rows in order.split(batch_size):
            inputs, targets = X[rows].to(device), y[rows].to(device)
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


# %%
# A second function computes the loss of a trained model on any rows. ``inference_mode``
# leaves out the record for a backward pass, because there will be none.


def loss_on(model, X, y):
    with torch.inference_mode():
        return loss_fn(model(X.to(device)), y.to(device)).item()


# %%
# Data often comes sorted: by date, by place, by class. We sort our rows by their target,
# and train with and without shuffling, from three different seeds each.

order = y_train.flatten().argsort()
X_sorted, y_sorted = X_train[order], y_train[order]
for shuffle in (False, True):
    print("shuffle", shuffle)
    for seed in range(3):
        torch.manual_seed(seed)
        trained = train(X_sorted, y_sorted, shuffle)
        print(f"   seed {seed}: test loss {loss_on(trained, X_test, y_test):.4f}")

# %%
# With shuffling, all three losses are smaller. In sorted rows the ten targets of a batch
# are nearly the same. Such a batch tells the model to answer with one number whatever
# the inputs are, and the next batch asks for another number. **Shuffle the training rows
# anew in each epoch.** It costs one argument.
#
# Measure on rows that the model has not seen
# -------------------------------------------
#
# The second missing thing: our loop printed only the loss of rows that it trained with.
# What is wrong with that? We train on 40 rows only, for 300 epochs. Then we compute the
# loss twice: on these 40 rows, and on the 100 rows that we put aside, the
# :term:`held-out data`.

torch.manual_seed(0)
trained = train(X_train[:40], y_train[:40], epochs=300)
seen = loss_on(trained, X_train[:40], y_train[:40])
print(f"40 rows that it has seen:      {seen:.4f}")
print(f"100 rows that it has not seen: {loss_on(trained, X_test, y_test):.4f}")

# %%
# The first number looks excellent. It is even below 0.01, the mean square of the noise.
# The second number tells the truth: the model has learned these 40 rows by heart, with
# their noise, and it does worse on any others. This is :term:`overfitting`. **Evaluate a
# model on rows that it has not seen.**
#
# Switch between training and evaluation mode
# -------------------------------------------
#
# The third thing is the mode. Some layers do something else in training than later, for
# example :term:`dropout`: in training it sets random values to zero, so that the model
# does not rely on a few of them. ``model.train()`` switches to :term:`training mode`, and
# ``model.eval()`` to :term:`evaluation mode`.
#
# .. question:: What does ``model.eval()`` do?
#
#    - It computes how good the model is.
#
#      No. It computes nothing. It sets a switch in the model and in each of its
#      layers, and you do the evaluation yourself.
#
#    - It turns off gradients.
#
#      No. That is the work of ``torch.no_grad()`` or ``torch.inference_mode()``. In
#      evaluation mode a backward pass still works.
#
#    - It tells layers such as dropout to behave as after the training.
#
#      Yes. Dropout then lets everything through, and batch normalisation uses its
#      running averages.
#
# We ask a model with dropout for the same row three times, first in training mode. A new
# model is always in training mode. Then we ask again in evaluation mode.

torch.manual_seed(0)
layers = [nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 1)]
with_dropout = nn.Sequential(*layers).to(device)
row = X_test[:1].to(device)
for _ in range(3):
    print(f"train: {with_dropout(row).item():.4f}")
with_dropout.eval()
for _ in range(3):
    print(f"eval:  {with_dropout(row).item():.4f}")

# %%
# In training mode each answer is another one, because other values were dropped. In
# evaluation mode they are all the same. **Call** ``model.train()`` **before you train,
# and** ``model.eval()`` **before you evaluate.** A forgotten ``eval()`` gives no error,
# only worse answers.
#
# Feed the loop in one of three ways
# ----------------------------------
#
# .. covers:: S4.3
#
# Until now we cut the batches ourselves. There are two more ways. To compare them, we put
# the five calls into a function, and feed it one epoch in each way. **First: slices**,
# shuffled as above.

torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def one_step(inputs, targets):
    loss = loss_fn(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for rows in torch.randperm(400).split(10):
    one_step(X_train[rows].to(device), y_train[rows].to(device))
print(f"test loss {loss_on(model, X_test, y_test):.4f}")

# %%
# **Second: a** :term:`data loader`. ``TensorDataset`` puts inputs and targets together,
# row by row. ``DataLoader`` shuffles the rows and makes batches. On which device are
# its batches?

rows = TensorDataset(X_train, y_train)
loader = DataLoader(rows, batch_size=10, shuffle=True)
for inputs, targets in loader:
    one_step(inputs.to(device), targets.to(device))
print("a batch comes from", inputs.device)
print(f"test loss {loss_on(model, X_test, y_test):.4f}")

# %%
# On the CPU, where its rows are. A loader does not know your device. This is one reason
# why the move is inside the loop. The other one is size: a large data set does not
# fit into the GPU's memory, and a batch does.
#
# **Third: data that lives on the device.** If all rows do fit, move them once, and cut
# the batches there. ``device=device`` makes the random order on the device as well.

all_X, all_y = X_train.to(device), y_train.to(device)  # once
for rows in torch.randperm(400, device=device).split(10):
    one_step(all_X[rows], all_y[rows])
print("a batch comes from", all_X[rows].device)
print(f"test loss {loss_on(model, X_test, y_test):.4f}")

# %%
# The loss went on falling, whatever fed the loop. :class:`gpulesson.data.Batches` is this
# third way, kept in a class: ``Batches(all_X, all_y, batch_size=10, shuffle=True)``.
#
# When does data fit? Count its bytes. The 60,000 training images of :doc:`lesson 5
# </lessons/05_fashion_mnist>` have 28 times 28 pixels, and a pixel is one byte.

free = torch.cuda.mem_get_info()[0]  # bytes
print(f"60,000 images:   {60_000 * 28 * 28 / 1e6:9,.0f} MB")
print(f"free on the GPU: {free / 1e6:9,.0f} MB")

# %%
# These images fit many times over. **Data that fits can live on the device; everything
# else comes from a loader, and its batches move inside the loop.**
# :doc:`Lesson 9 </lessons/09_feeding_the_gpu>` measures all of these ways, and counts
# their copies.
#
# Choose a loader's settings by measuring
# ---------------------------------------
#
# .. covers:: S1.7
#
# A loader can use other processes, its :term:`workers <worker>`, to prepare the next
# batches while the model computes. It can also put its batches into
# :term:`pinned memory`, from where a GPU fetches them by itself. These are the settings,
# with usual values to begin with:
#
# .. list-table::
#    :header-rows: 1
#    :widths: 30 32 38
#
#    * - Setting
#      - Begin with
#      - What it does
#    * - ``batch_size``
#      - 32, 64, 128 …, as large as fits
#      - More work in each step, and fewer steps
#    * - ``num_workers``
#      - 2, 4 or 8, at most your CPU's cores
#      - Workers prepare batches ahead
#    * - ``persistent_workers``
#      - ``True``, if there are workers
#      - Keeps the workers from epoch to epoch
#    * - ``pin_memory``
#      - ``True``, if there is a CUDA GPU
#      - The GPU can fetch the batch by itself
#
# Pinned memory pays off together with ``inputs.to(device, non_blocking=True)``. Then
# Python does not wait for the copy. `PyTorch's tuning guide
# <https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide>`__ recommends workers
# and pinned memory. It also says that the number of workers depends on the work, on the
# CPU and GPU, and on where the data is.
#
# So we measure. The practice GPU has no speed of its own, so we switch it off first. From
# here on, ``device`` is the best one that this machine has.

practice.stop()
device = choose_device()
print("measured on", device)

# %%
# The table shows how long one epoch of batches takes with different settings. The data
# are 2,000 made-up images that lie in memory, and no model is trained. Before you look:
# do you expect two workers to help here?

# fold: Time one epoch of batches with different settings
import sys

images = TensorDataset(torch.rand(2000, 784), torch.randint(10, (2000,)))
settings = [{"batch_size": size} for size in (10, 100, 1000)]
can_fork = sys.platform == "linux"  # elsewhere, workers need a script with a main guard
workers = {
    "batch_size": 100,
    "num_workers": 2,
    "persistent_workers": True,
    "multiprocessing_context": "fork",
}
if can_fork:
    settings.append(workers)
if torch.cuda.is_available():
    settings.append({"batch_size": 100, "pin_memory": True})


def time_epoch(options):
    loader = DataLoader(images, shuffle=True, **options)
    pinned = loader.pin_memory

    def epoch():
        for inputs, targets in loader:
            inputs.to(device, non_blocking=pinned)
            targets.to(device, non_blocking=pinned)

    return measure(epoch, device=device, warmup=1, repeats=7)  # warm-up starts workers


print("ms an epoch   half of the runs   settings")
for options in settings:
    timing = time_epoch(options)
    low, high = (1e3 * seconds for seconds in timing.quartiles)
    hidden = ("multiprocessing_context", "persistent_workers")
    names = ", ".join(f"{k}={v}" for k, v in options.items() if k not in hidden)
    print(f"{1e3 * timing.median:11.1f}   {low:6.1f} to {high:6.1f}   {names}")
if not can_fork:
    print("num_workers: not measured here, workers would need a script of their own")
if not torch.cuda.is_available():
    print("pin_memory: not measured, there is no CUDA GPU")

# %%
# The first number in each line is the median of seven runs, and half of the runs lie in
# the range beside it. If the ranges of two lines overlap, this measurement cannot tell
# them apart. The workers had ``persistent_workers=True``, so the time does not include
# their start.
#
# Workers help when it takes work to get a row, such as decoding a photograph. Here each
# row is ready in memory, so there is little for them to do, and every batch has to be
# handed over from their process to ours. With a file to decode for each row, your table
# would look different. **Change one setting at a time, and keep it only if your own
# measurement says so.** :doc:`Lesson 9 </lessons/09_feeding_the_gpu>` does this with
# files, with a model, and with pinned memory.
#
# Know what a larger batch changes
# --------------------------------
#
# The batch size belongs to the loop as much as to the loader, and it changes two things.
# The first is speed. We time a step with 10 rows, as in our loop, and a step with 1,000
# rows. How many times as long will it take?

model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for rows in (10, 1000):
    inputs = torch.randn(rows, 8, device=device)
    targets = torch.randn(rows, 1, device=device)
    timing = measure(lambda x=inputs, y=targets: one_step(x, y), device=device)
    microseconds = timing.median * 1e6
    print(f"{rows:>5} rows: {microseconds:7.1f} µs a step", end=", ")
    print(f"{microseconds / rows:7.3f} µs a row")

# %%
# A hundred times the rows, and not nearly a hundred times the time. A step costs a fixed
# amount, because Python has to start each operation, and only then a little for each
# row. With ten rows, the fixed part is nearly all. A GPU computes faster, but it does
# not start faster. **Ten rows of eight numbers are too few for a GPU to win.**
# :doc:`Lesson 8 </lessons/08_was_it_faster>` finds the size at which it begins to win.
#
# The second thing is learning. With larger batches there are fewer steps in an epoch.
# Five epochs again, with three batch sizes and three seeds:

for batch_size in (10, 100, 400):
    print(f"batch size {batch_size}, {5 * 400 // batch_size} steps")
    for seed in range(3):
        torch.manual_seed(seed)
        trained = train(X_train, y_train, batch_size=batch_size)
        print(f"   seed {seed}: test loss {loss_on(trained, X_test, y_test):.4f}")

# %%
# With 200 steps the model has learned the rule, and with 5 steps it has hardly begun. **A
# larger batch makes each row cheaper, and it is a different training.** It may need more
# epochs or a larger learning rate, and you have to find out which.
#
# Count right answers, and divide once
# ------------------------------------
#
# .. covers:: S2.3
#
# The exercise has a classifier. Its three sizes are arguments: numbers in, hidden
# numbers, and classes. Each forward and backward pass uses its parameters and each step
# changes them, so it has to be on the device:


class Classifier_MLP(nn.Module):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = nn.Linear(in_dim, hidden_dim)
        self.dropout = nn.Dropout(0.2)  # in training mode only
        self.out = nn.Linear(hidden_dim, out_dim)

    def forward(self, x):
        return self.out(self.dropout(torch.relu(self.hidden(x))))


classifier = Classifier_MLP(in_dim=64, hidden_dim=32, out_dim=10).to(device)
print({str(p.device) for p in classifier.parameters()})

# %%
# For each row it gives ten numbers, the :term:`logits`: one for each class. The largest
# one is its answer, and ``argmax(dim=1)`` finds it. Some models return the answer and
# probabilities at once; their ``forward`` ends with a :term:`softmax`:


class Answering(Classifier_MLP):
    def forward(self, x):
        probabilities = super().forward(x).softmax(dim=1)
        return probabilities.argmax(dim=1), probabilities


answering = Answering(64, 32, 10).to(device).eval()
answers, probabilities = answering(torch.rand(3, 64, device=device))
print("answers:", tuple(answers.shape), answers.device)
print("probabilities:", tuple(probabilities.shape), probabilities.device)

# %%
# Three rows give three answers, and three times ten probabilities, all on the device. For
# training keep the logits: ``CrossEntropyLoss`` expects them (:doc:`lesson 5
# </lessons/05_fashion_mnist>`).
#
# How good is a classifier? :term:`Accuracy <accuracy>` is the share of right answers. A
# common way is to take the accuracy of each batch, and then the mean of these. Here are
# ten answers in a batch of eight and a batch of two. The first eight are right. What is
# the accuracy?

right = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
batches = right.split(8)
print("of each batch:  ", [batch.mean().item() for batch in batches])
print("their mean:     ", sum(batch.mean().item() for batch in batches) / 2)
print("right / answers:", right.sum().item() / len(right))

# %%
# Eight of ten is 0.8. The mean of the two batches says 0.5, because the two answers of
# the short batch count as much as the other eight. **Count the right answers, and divide
# once, at the end.**
#
# On a device, keep the count there, too. ``torch.zeros(())`` is a single number, and
# ``item()`` fetches it to Python once, after the loop. In each step it would make Python
# wait for the GPU. Our classifier is not trained. How many of 1,000 random rows will it
# get right?

torch.manual_seed(0)
made_up = TensorDataset(torch.rand(1000, 64), torch.randint(10, (1000,)))
classifier.eval()
correct = torch.zeros((), dtype=torch.int64, device=device)
with torch.inference_mode():
    for inputs, targets in DataLoader(made_up, batch_size=64):
        inputs, targets = inputs.to(device), targets.to(device)
        correct += (classifier(inputs).argmax(dim=1) == targets).sum()
print(correct.item(), "of", len(made_up), "right")

# %%
# Roughly one in ten. This is what guessing gives with ten classes, so it is the number
# that any training has to beat.
#
# Exercise
# --------
#
# .. covers:: S2.5
#
# .. exercise:: Bring this loop to a device
#    :minutes: 15
#    :difficulty: medium
#    :starter: 04_training_loop.py
#
#    The script trains ``Classifier_MLP`` on scikit-learn's handwritten digits, on the
#    CPU, and prints its accuracy.
#
#    1. **Predict:** which lines must change? Mark them before you edit.
#    2. Choose a device. Move the model, and build the optimizer after it. Move each
#       batch, inputs and targets, in both loops.
#    3. The script takes the mean of its batches' accuracies, and the last batch is
#       shorter. Count the right answers on the device instead, fetch the count *once*,
#       and divide once.
#    4. Add what this loop lacks: shuffle the training rows, call ``train()`` before
#       training and ``eval()`` before the evaluation, and evaluate without gradients.
#
#    To check it: ``python -m gpulesson check 04_training_loop.py``.
#
#    You are done when the parameters are on the chosen device, and the accuracy is
#    right answers divided by rows.
#
# .. solution::
#    :file: 04_training_loop.py
#
#    Three mistakes are common here: the data moves and the model does not, the
#    optimizer is built before the move, and the accuracies of batches are averaged.
#    Compare your script with this one.
#
# .. keypoints::
#
#    - Two changes: ``model.to(device)`` once, before the loop, and inputs and targets
#      of each batch inside it.
#    - Buffers, outputs, loss and gradients are where the model and the batch are. An
#      optimizer's state stays where it was made, so build the optimizer after the move.
#    - Forward pass, loss, ``zero_grad``, ``backward`` and ``step`` name no device. They
#      run where their tensors are, and without ``zero_grad`` gradients add up.
#    - Shuffle in each epoch, measure on held-out rows, and call ``train()`` and
#      ``eval()``. No error reminds you of any of them.
#    - Slices and loaders give CPU batches, and each one moves; data that fits can live
#      on the device. Measure a loader's settings on your own machine.
#    - The accuracy is the number of right answers divided by the number of rows, not
#      the mean of the batches.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains a classifier on pictures.

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
# once. With more data you take a few rows at a time: a :term:`batch`. Here you bring such
# a loop from the CPU to another :term:`device`, a GPU.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice
from gpulesson.device import choose_device
from gpulesson.timing import measure

torch.set_num_threads(1)  # one CPU core: more do not help with numbers this few

# %%
# Read a loop that runs on the CPU
# --------------------------------
#
# The task is to predict one number from eight. We make up 500 rows. Their targets follow
# a rule that the model has to find, plus a little noise. The last hundred rows are put
# aside for the test.

torch.manual_seed(1)
X = torch.randn(500, 8)  # 500 rows of 8 random numbers around 0
rule = torch.randn(8, 1) / 3  # divided by 3, so that the targets are not large
y = X @ rule + 0.1 * torch.randn(500, 1)  # the rule, and noise

X_train, y_train = X[:400], y[:400]
X_test, y_test = X[400:], y[400:]
print("inputs: ", tuple(X_train.shape), tuple(X_test.shape))
print("targets:", tuple(y_train.shape), tuple(y_test.shape))

# %%
# 400 rows to train with and 100 to test with: eight numbers in, one out. The model is a
# class as in lesson 3, with two layers. The 32 is our choice:


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):  # [rows, 8]
        x = torch.relu(self.hidden(x))  # [rows, 32]
        return self.out(x)  # [rows, 1]


# %%
# And this is the whole training loop. The outer loop counts the :term:`epochs <epoch>`.
# The inner loop cuts out ten rows at a time. How many times does ``optimizer.step()``
# run?

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
# steps. The printed :term:`loss` is ``MSELoss``, the mean of the squared differences
# between outputs and targets, here of the last ten rows. It falls to about 0.01. Even the
# exact rule would leave about as much: the noise, 0.1 squared.
#
# .. question:: Which lines must change so that this loop runs on a GPU?
#
#    - Every line of the inner loop, because they do the computing.
#
#      No. These lines never say where to compute. An operation runs where its
#      :term:`tensors <tensor>` are.
#
#    - The line that makes the model, and the inputs and targets of each step.
#
#      Yes. The model moves once, before the loop. The inputs and targets are other rows
#      in each step, so they move inside the loop.
#
#    - Only the line that makes the model. The rest follows the model.
#
#      No. The slices would still be on the CPU, and the first ``model(inputs)``
#      would stop with an error.
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
# :term:`device memory`, often called VRAM.
#
# It is like moving house: the furniture (the model) goes over once, and the shopping (a
# batch) comes in every week. Only the loss comes back now and then; our loop fetches it
# with ``item()`` after each epoch.
#
# As in lesson 2, we use your :term:`CUDA` GPU if there is one, or else the
# :term:`practice GPU`:

practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name())

# %%
# Here is the loop again, with the two changes. The :term:`seed` is the same, so both
# begin with the same model. Will the losses be the same, too?

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
# These are the losses from above, apart from rounding. The dots show every fifth:

# fold: Draw both runs
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.semilogy(range(1, 101), cpu_losses, label="on the CPU")
ax.semilogy(range(1, 101, 5), losses[::5], "o", label=f"on {model.out.weight.device}")
ax.set(xlabel="epoch", ylabel="loss of the last batch")
ax.yaxis.set_major_formatter("{x:g}")
ax.set_title("Two changes, and the same training run on another device")
ax.legend()
plt.show()

largest = max(abs(a - b) for a, b in zip(losses, cpu_losses, strict=True))
print("the model is on", model.out.weight.device)
print(f"largest difference between the losses: {largest:.1e}")

# %%
# The dots lie on the line. On the practice GPU the difference is 0, because the CPU does
# the arithmetic. A real GPU adds up in another order, and so rounds differently.
#
# **Move the model once, before the loop. Move each batch, inputs and targets, inside the
# loop,** before the :term:`forward pass`, the call of ``model(inputs)``.
#
# Know what moves along by itself
# -------------------------------
#
# .. covers:: S1.2 S1.6
#
# You moved three things: the model, the inputs and the targets. The model has
# :term:`parameters <parameter>`, and some layers also own :term:`buffers <buffer>`:
# tensors that no :term:`optimizer` changes. A layer for :term:`batch normalisation`
# keeps averages of the numbers that it has seen. Do buffers move, too?

# layers one after the other, without writing a class
network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
network = network.to(device)
for name, tensor in network.named_parameters():
    print("parameter", name, tensor.device)
for name, tensor in network.named_buffers():
    print("buffer   ", name, tensor.device)

# %%
# They do: **one call of** ``to`` **moves all parameters and buffers.** The buffers are
# two averages, of the numbers and of how far they spread, and a counter. (Each name
# begins with the position of its layer.) A tensor kept as a plain attribute does not
# move: :doc:`lesson 7 </lessons/07_common_mistakes>` shows one.
#
# Must the targets move as well? We move only the inputs, and see how far we get:

inputs, targets = X_train[:10], y_train[:10]
inputs = inputs.to(device)
outputs = network(inputs)
print("outputs on", outputs.device)
try:
    loss = loss_fn(outputs, targets)
except RuntimeError as error:
    print(error)

# %%
# The forward pass needs no targets, but the loss does. We move them. ``backward`` puts
# the :term:`gradient` of each parameter ``p`` into ``p.grad``. Where will loss and
# gradients be?

targets = targets.to(device)
loss = loss_fn(outputs, targets)
loss.backward()
print("loss on", loss.device)
for name, p in network.named_parameters():
    print("gradient of", name, "on", p.grad.device)

# %%
# You moved neither. **A result is computed where its tensors are, and it stays there.**
#
# Move the model before you build the optimizer
# ---------------------------------------------
#
# The optimizer owns tensors, too. For each parameter Adam keeps averages of earlier
# gradients, its :term:`optimizer state`, and makes them in its first step. Here a model
# takes one step on the CPU, and moves afterwards. What will the next step do?

late = Net()
adam = torch.optim.Adam(late.parameters())
loss_fn(late(X_train), y_train).backward()
adam.step()  # on the CPU

late.to(device)
bias = late.out.bias
print("parameter:", bias.device)
print("gradient: ", bias.grad.device)
average = adam.state[bias]["exp_avg"]  # what Adam keeps for this parameter
print("average:  ", average.device)
try:
    adam.step()
except RuntimeError as error:
    print(error)

# %%
# The parameter and its gradient moved with the model. The average did not, because it
# belongs to the optimizer, so the next step fails.
#
# Before its first step Adam has no state, and would work; ``Adagrad`` begins with one.
# So **first** ``model.to(device)``, **then the optimizer,** as `PyTorch's own page
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.cuda>`__
# asks.
#
# .. instructor-note::
#
#    Some say that a late ``to`` always breaks the optimizer. It does so only if there
#    is a state already. Let the class name the three devices first.
#
# Follow one step, call by call
# -----------------------------
#
# .. covers:: S4.4
#
# You know the five calls from lesson 3. None of them names a device:
#
# .. drawing:: training_step.svg
#
#    The five calls of a training step, and where each of them computes.
#
# We take one step slowly, and follow a single number, the bias of the last layer. Before
# it, we make one :term:`backward pass` with another batch, so that there is an older
# gradient for call 3 to forget.

torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
older_X, older_y = X_train[10:20].to(device), y_train[10:20].to(device)
loss_fn(model(older_X), older_y).backward()

bias = model.out.bias
print(f"bias {bias.item():.4f}, gradient {bias.grad.item():.4f}")

# %%
# **Call 1, the forward pass,** computes ten outputs, and remembers how, for call 4.
# **Call 2, the loss,** makes one number of outputs and targets.

inputs, targets = X_train[:10].to(device), y_train[:10].to(device)
outputs = model(inputs)  # call 1
loss = loss_fn(outputs, targets)  # call 2
print(tuple(outputs.shape), "on", outputs.device)
print(f"loss {loss.item():.4f} on {loss.device}")

# %%
# **Call 3,** ``zero_grad``, forgets the older gradient. What will be in its place?
# **Call 4, the backward pass,** computes the gradients for this batch.

optimizer.zero_grad()  # call 3
print("gradient", bias.grad)
loss.backward()  # call 4
print(f"gradient {bias.grad.item():.4f} on {bias.grad.device}")

# %%
# It is ``None``. The name promises zero, but ``None`` `saves memory
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html>`__.
# Then call 4 made a new gradient. If it is positive, the loss grows with the bias. In
# which direction will **call 5, the optimizer's step,** move it?

before = bias.item()
optimizer.step()  # call 5
print(f"bias before {before:.4f}, after {bias.item():.4f}")

# %%
# Against its gradient, by 0.001, the :term:`learning rate`. Why not by 0.001 times the
# gradient? Adam divides by the size of the gradients that it has seen, so in its first
# step only the sign of a gradient counts.
#
# **No call names a device. Four of them compute, where their tensors are;** ``zero_grad``
# **only drops the old gradients.**
#
# And without ``zero_grad``? We make two backward passes with the same batch. (The step
# has changed the model, so the first gradient is a new one.) At the end we use
# ``model.zero_grad()``, as some scripts do:

optimizer.zero_grad()
loss_fn(model(inputs), targets).backward()
print(f"one backward pass:   {bias.grad.item():.4f}")
loss_fn(model(inputs), targets).backward()
print(f"two backward passes: {bias.grad.item():.4f}")
model.zero_grad()
print("after zero_grad:    ", bias.grad)

# %%
# Twice the gradient, apart from rounding: ``backward`` adds to what is there, and no
# message tells you. ``model.zero_grad()`` clears the gradients of the model,
# ``optimizer.zero_grad()`` those that the optimizer uses. Here they are the same.
#
# Add the three things that this loop lacks
# -----------------------------------------
#
# Our loop never shuffles, never tests, and never sets the model's mode. To try these, we
# put it into a function. ``torch.randperm(400)`` gives the numbers 0 to 399 in random
# order, and ``split`` cuts them into batches. A second function computes the loss on any
# rows.


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


def loss_on(model, X, y):
    with torch.inference_mode():
        return loss_fn(model(X.to(device)), y.to(device)).item()


# %%
# **First: shuffle.** Data often comes sorted, for example by class. We sort our rows by
# their target, and train for only five epochs, with and without shuffling, from three
# seeds each.

order = y_train.flatten().argsort()
X_sorted, y_sorted = X_train[order], y_train[order]
for shuffle in (False, True):
    print("shuffle", shuffle)
    for seed in range(3):
        torch.manual_seed(seed)
        trained = train(X_sorted, y_sorted, shuffle)
        print(f"   seed {seed}: test loss {loss_on(trained, X_test, y_test):.4f}")

# %%
# With shuffling, all three losses are smaller. The ten targets of a sorted batch are
# nearly the same, so it teaches the model to answer with one number whatever the inputs
# are. **Shuffle the training rows anew in each epoch.**
#
# **Second: test.** We train on 40 rows only, for 300 epochs, and compute two losses: on
# these rows, and on the :term:`held-out data`. Which will be smaller?

torch.manual_seed(0)
trained = train(X_train[:40], y_train[:40], epochs=300)
seen = loss_on(trained, X_train[:40], y_train[:40])
print(f"40 rows that it has seen:      {seen:.4f}")
print(f"100 rows that it has not seen: {loss_on(trained, X_test, y_test):.4f}")

# %%
# The first loss looks excellent, but the model has learned these 40 rows by heart, with
# their noise, and it does worse on others. This is :term:`overfitting`. **Evaluate a
# model on rows that it has not seen.**
#
# **Third: set the mode.** Some layers work differently in training. A :term:`dropout`
# layer, for example, sets random values to zero, so that the model does not rely on a few
# of them. ``model.train()`` switches to :term:`training mode`, and ``model.eval()`` to
# :term:`evaluation mode`.
#
# .. question:: What does ``model.eval()`` do?
#
#    - It computes how good the model is.
#
#      No. It only sets a switch in the model and in each of its layers.
#
#    - It turns off gradients.
#
#      No. That is the work of ``torch.no_grad()`` or ``torch.inference_mode()``. Most
#      layers allow a backward pass in evaluation mode, too.
#
#    - It tells layers such as dropout to behave as after the training.
#
#      Yes. Dropout then lets everything through, and batch normalisation uses the
#      averages that it has kept.
#
# A new model is in training mode. We ask one with dropout for the same row three times in
# each mode:

torch.manual_seed(0)
dropout = nn.Dropout(0.5)  # drops each value with probability 0.5
with_dropout = nn.Sequential(nn.Linear(8, 32), dropout, nn.Linear(32, 1)).to(device)
row = X_test[:1].to(device)
for _ in range(3):
    print(f"train: {with_dropout(row).item():.4f}")
with_dropout.eval()
for _ in range(3):
    print(f"eval:  {with_dropout(row).item():.4f}")

# %%
# In training mode each answer is another one, in evaluation mode they are all the same.
# **Call** ``model.train()`` **before you train, and** ``model.eval()`` **before you
# evaluate.** A forgotten ``eval()`` usually gives no error, only other answers.
#
# Feed the loop in one of three ways
# ----------------------------------
#
# .. covers:: S4.3
#
# The first way you know: cut slices on the CPU, and move each one. The second is a
# :term:`data loader`. ``TensorDataset`` puts inputs and targets together, row by row, and
# ``DataLoader`` shuffles the rows and makes batches. On which device does a batch arrive?

train_set = TensorDataset(X_train, y_train)
loader = DataLoader(train_set, batch_size=10, shuffle=True)
for inputs, targets in loader:
    came_from = inputs.device
    inputs, targets = inputs.to(device), targets.to(device)
    # here follow the five calls
print("a batch comes from", came_from)

# %%
# On the CPU, like the rows of ``train_set``, so the move is inside the loop. There is a
# second reason: a large data set does not fit into the GPU's memory, and a batch does.
#
# If all rows do fit, the third way is to move them once, and cut the batches on the
# device. We count the bytes of our rows, 400 × 9 numbers of 4 bytes, and of the 60,000
# pictures of lesson 5, 28 × 28 pixels of one byte:

all_X, all_y = X_train.to(device), y_train.to(device)  # once
for rows in torch.randperm(400, device=device).split(10):
    inputs, targets = all_X[rows], all_y[rows]
    # here follow the five calls
print("a batch comes from", inputs.device)
print(f"our rows:        {all_X.nbytes + all_y.nbytes:,} bytes")
print(f"60,000 pictures: {60_000 * 28 * 28:,} bytes")

# %%
# Both fit, the pictures even as ``float32``, four times as large: a small GPU, too, has
# over a billion bytes. **Data that fits can live on the device; everything else comes
# from a loader, and its batches move inside the loop.** :class:`gpulesson.data.Batches`
# is this third way, kept in a class.
#
# Choose the loader's settings by measuring
# -----------------------------------------
#
# .. covers:: S1.7
#
# These are some of a loader's settings. A :term:`worker` is a further Python process.
#
# .. list-table::
#    :header-rows: 1
#    :widths: 36 30 34
#
#    * - Setting
#      - Begin with
#      - What it does
#    * - ``batch_size``
#      - 32, 64 or 128; larger if results stay as good
#      - More work in each step, and fewer steps
#    * - ``num_workers``
#      - 0 if the rows are ready in memory; otherwise 2, 4 or 8, at most your CPU's cores
#      - Workers prepare batches while your own process computes
#    * - ``persistent_workers``
#      - ``True``, if there are workers
#      - Keeps the workers from epoch to epoch
#    * - ``pin_memory``
#      - ``True``, if there is a CUDA GPU
#      - Puts batches where a GPU can copy directly, into :term:`pinned memory`
#
# On macOS, on Windows and, from Python 3.14, on Linux, your script runs again for the
# workers: put the training under ``if __name__ == "__main__":``, the *main guard*.
#
# Pinned memory pays off most with ``inputs.to(device, non_blocking=True)``: then Python
# does not wait for the copy. `PyTorch's tuning guide
# <https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide>`__ recommends workers
# and pinned memory. What helps depends on your data and machine, so we measure. First
# we stop the practice GPU that we started:

practice.stop()
device = choose_device()
print("measured on", device)

# %%
# How long does a loader take to deliver 2,000 images that are in memory, in batches of
# 100? Do you expect two workers to help?

# fold: Time one epoch of batches with different settings
import sys

images = TensorDataset(torch.rand(2000, 784), torch.randint(10, (2000,)))
settings = {"no workers": {}}
can_fork = sys.platform == "linux"  # elsewhere, workers need a main guard
if can_fork:
    settings["num_workers=2"] = {
        "num_workers": 2,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
if torch.cuda.is_available():
    settings["pin_memory=True"] = {"pin_memory": True}


def time_epoch(options):
    loader = DataLoader(images, batch_size=100, shuffle=True, **options)
    pinned = loader.pin_memory

    def epoch():
        for inputs, targets in loader:
            inputs.to(device, non_blocking=pinned)
            targets.to(device, non_blocking=pinned)

    return measure(epoch, device=device, warmup=1, repeats=7)  # warm-up starts workers


print("setting            ms an epoch   the middle half of the runs")
for name, options in settings.items():
    timing = time_epoch(options)
    low, high = (1e3 * seconds for seconds in timing.quartiles)
    print(f"{name:<16} {1e3 * timing.median:13.1f}   {low:.1f} to {high:.1f}")
if not can_fork:
    print("num_workers: not measured, here workers need a script with a main guard")
if not torch.cuda.is_available():
    print("pin_memory: not measured, there is no CUDA GPU")

# %%
# The first number is the median of seven runs. If the ranges of two lines overlap, you
# cannot tell the settings apart.
#
# Workers help when it takes work to get a row, such as decoding a photograph. Here each
# row is ready, and a worker has to send each batch to your process, which can cost more
# than it saves. **Change one setting at a time, and keep it only if your own measurement
# says so.** :doc:`Lesson 9 </lessons/09_feeding_the_gpu>` goes on from here.
#
# And the batch size? We train for five epochs with three sizes and three seeds:

# fold: Time and evaluate three batch sizes


def five_epochs(batch_size):
    def run():
        return train(X_train, y_train, batch_size=batch_size)

    test_losses = []
    for seed in range(3):
        torch.manual_seed(seed)
        test_losses.append(f"{loss_on(run(), X_test, y_test):.4f}")
    seconds = measure(run, device=device, warmup=1, repeats=5).median
    print(f"batch size {batch_size}: {5 * 400 // batch_size} steps", end=", ")
    print(f"{1e3 * seconds:.0f} ms, test losses", *test_losses)


for size in (10, 100, 400):
    five_epochs(size)

# %%
# Fewer steps take less time: each one costs a fixed amount, because Python has to start
# its operations. With ten rows this is nearly all of the time, and a GPU does not make
# Python faster. (:doc:`Lesson 8 </lessons/08_was_it_faster>` measures when a GPU wins.)
# But the losses rise: after 5 steps the model has hardly begun to learn. **A larger batch
# makes each row cheaper, and it is a different training run**, which may need more epochs
# or a larger learning rate.
#
# Count right answers, and divide once
# ------------------------------------
#
# .. covers:: S2.3
#
# The exercise has a classifier. Its three sizes are arguments:


class Classifier_MLP(nn.Module):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = nn.Linear(in_dim, hidden_dim)
        self.dropout = nn.Dropout(0.2)  # in training mode only
        self.out = nn.Linear(hidden_dim, out_dim)

    def forward(self, x):
        return self.out(self.dropout(torch.relu(self.hidden(x))))


# %%
# As in lesson 3, it gives one score a class, the :term:`logits`, and ``argmax(dim=1)``
# finds the answer of each row. The :term:`softmax` turns logits into probabilities. Where
# is each result?

classifier = Classifier_MLP(in_dim=64, hidden_dim=32, out_dim=10).to(device)
classifier.eval()
logits = classifier(torch.rand(3, 64, device=device))
answers = logits.argmax(dim=1)
probabilities = logits.softmax(dim=1)
print("parameters:   ", classifier.out.weight.device)
print("answers:      ", tuple(answers.shape), answers.device)
print("probabilities:", tuple(probabilities.shape), probabilities.device)

# %%
# All are where the model and its inputs are. If you have no GPU, and the practice GPU
# is off, that is the CPU. Some models return answers and probabilities from ``forward``.
# To train, return the logits, which ``CrossEntropyLoss`` expects.
#
# The :term:`accuracy` is the share of right answers. Many scripts compute it for each
# batch, and then take the mean. Here are ten answers in two batches, eight right ones and
# two wrong ones. What is the accuracy?

right = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
first, second = right.split(8)  # eight answers, and two
print("of each batch:  ", first.mean().item(), second.mean().item())
print("their mean:     ", (first.mean().item() + second.mean().item()) / 2)
print("right / answers:", right.sum().item() / len(right))

# %%
# Eight of ten is 0.8. In the mean of the batches, the short batch counts as much as the
# other. **Count the right answers, and divide once, at the end.**
#
# Keep the count on the device, too, and fetch it once: ``item()`` in each step would make
# Python wait for the GPU. (``torch.zeros(())`` is a single number.) How many of 1,000
# random rows will the untrained classifier get right?

torch.manual_seed(0)
made_up = TensorDataset(torch.rand(1000, 64), torch.randint(10, (1000,)))
correct = torch.zeros((), dtype=torch.int64, device=device)
with torch.inference_mode():
    for inputs, targets in DataLoader(made_up, batch_size=64):
        inputs, targets = inputs.to(device), targets.to(device)
        correct += (classifier(inputs).argmax(dim=1) == targets).sum()
print(correct.item(), "of", len(made_up), "right")

# %%
# Roughly one in ten, as guessing gives with ten classes.
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
#    ``accuracy`` to evaluation mode, so it does not matter which was called last.
#
# .. keypoints::
#
#    - Two changes: ``model.to(device)`` once, before the loop, and inputs and targets
#      of each batch inside it.
#    - Buffers move with the model. An optimizer's state does not, so build the optimizer
#      after the move.
#    - Forward pass, loss, ``backward`` and ``step`` compute where their tensors are.
#      ``zero_grad`` only drops old gradients, and without it they add up.
#    - Shuffle in each epoch, evaluate on held-out rows, and call ``train()`` and
#      ``eval()``. An error seldom reminds you.
#    - Slices and loaders of CPU data give CPU batches; data that fits can live on the
#      device. Measure a loader's settings on your machine.
#    - The accuracy is right answers divided by rows, not the mean of the batches.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains a classifier on pictures.

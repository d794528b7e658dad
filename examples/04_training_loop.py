"""
The training loop on a device
=============================

Take a loop that runs on the CPU, make the two changes that bring it to a GPU, and add
what such loops often lack.

.. overview::
   :teaching: 30
   :exercises: 15

   .. questions::

      - What exactly must change in a training loop to run on a GPU, and why just
        there?
      - What does each of the five steps in the middle do?
      - My data does not fit on the GPU, or it does: what then?

   .. objectives::

      - Make the two changes, and place them: the model before the loop, the batch
        inside it.
      - Explain the five core steps, and see which device each of them runs on.
      - Name the three things that a loop often lacks, and show what their lack costs.
      - Feed a loop from slices, from a data loader, and from data that lives on the
        device, and measure the loader's knobs.
      - Measure how the batch size decides whether a GPU has anything to do.
"""

# %%
# We begin on the CPU. Without a GPU in the machine, the part about the device runs on
# the practice GPU. For the timings at the end we switch it off: a simulation has
# nothing to say about speed.

import sys

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpulesson import practice
from gpulesson.data import Batches, regression_data
from gpulesson.device import choose_device, devices_of, tensor_devices
from gpulesson.models import MLP
from gpulesson.timing import measure

# for tensors this small, more threads only wait for each other
torch.set_num_threads(1)
print("PyTorch", torch.__version__)

# %%
# A loop as you find it
# ---------------------
#
# .. covers:: S0.5
#
# The task is a regression: eight numbers in, one number out, judged by the mean
# squared error. The loop goes through the data a hundred times, in slices of ten
# rows. You will meet it in many shapes:

X, y = regression_data(samples=500, features=8, noise=0.1, seed=1)
X_train, y_train, X_test, y_test = (
    X[:400],
    y[:400],
    X[400:],
    y[400:],
)  # [400, 8], [400, 1], [100, 8], [100, 1]


def train_on_cpu(epochs=100, batch_size=10):
    torch.manual_seed(0)
    model = MLP(8, 32, 1)
    loss_fn = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(epochs):
        for i in range(0, len(X_train), batch_size):
            inputs = X_train[i : i + batch_size]
            targets = y_train[i : i + batch_size]
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


cpu_losses = train_on_cpu()
print(
    f"loss of the last batch: {cpu_losses[0]:.4f} after epoch 1,",
    f"{cpu_losses[-1]:.4f} after epoch {len(cpu_losses)}",
)

# %%
# The two changes
# ---------------
#
# .. covers:: S1.5 S4.1 S4.2
#
# The model goes to the device **once, before the loop**. It is the same model in every
# step; moving it inside would be work for nothing. And it goes **before the optimizer
# is made**, so that the optimizer never meets parameters in another place.
#
# The batch goes to the device **inside the loop, before the forward pass**. Each step
# has another one.


practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name())


def train(epochs=100, batch_size=10):
    torch.manual_seed(0)
    model = MLP(8, 32, 1).to(device)  # change 1: the model, once
    loss_fn = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(epochs):
        for i in range(0, len(X_train), batch_size):
            inputs = X_train[i : i + batch_size].to(
                device
            )  # change 2: every batch, both halves
            targets = y_train[i : i + batch_size].to(device)
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return model, torch.stack(losses).tolist()


model, losses = train(epochs=20)
largest = max(abs(a - b) for a, b in zip(losses, cpu_losses, strict=False))
print(f"trained on {next(model.parameters()).device}")
print(f"largest difference to the CPU's losses: {largest:.1e}")

# %%
# The same arithmetic in another place. On a real GPU expect a small difference: sums
# are taken in another order there, and rounding follows the order.
#
# Three things travel, and the rest follows
# -----------------------------------------
#
# .. covers:: S1.2 S1.6
#
# The model's numbers, the inputs and the targets. "The model" is more than its
# weights: layers such as batch normalisation keep running averages, in *buffers*:
# tensors that belong to the model and are not trained. ``to`` moves both, which is
# one more reason not to move parameters by hand.

network = torch.nn.Sequential(
    torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
).to(device)
for name, place in tensor_devices(network).items():
    kind = "buffer" if name in dict(network.named_buffers()) else "parameter"
    print(f"{name:<22} {kind:<10} {place}")

# %%
# And the targets? The forward pass does without them; the *loss* needs them. So a loop
# that forgets the targets fails one line later than one that forgets the inputs.
# Everything else is computed from these three, and lands where they are:

inputs, targets = X_train[:10].to(device), y_train[:10].to(device)
outputs = network(inputs)
loss = torch.nn.MSELoss()(outputs, targets)
loss.backward()
print("outputs:  ", outputs.device)
print("loss:     ", loss.device)
print("gradients:", {str(p.grad.device) for p in network.parameters()})

# %%
# The five steps stay as they are
# -------------------------------
#
# .. covers:: S4.4
#
# Nothing after the two changes mentions a device. Let us take one step slowly. The
# model has already made a backward pass, so there is a gradient to forget:

model = MLP(8, 32, 1).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
first = next(model.parameters())
torch.nn.MSELoss()(model(inputs), targets).backward()
once = first.grad.clone()

outputs = model(inputs)  # 1. forward: compute, and remember how
print("1. outputs", tuple(outputs.shape), "made by", outputs.grad_fn.name())

loss = torch.nn.MSELoss()(
    outputs, targets
)  # 2. one number that says how wrong they are
print("2. loss   ", f"{loss.item():.4f}")

optimizer.zero_grad()  # 3. forget the gradients of the step before
print("3. the gradient was", tuple(once.shape), "numbers, and is now", first.grad)

loss.backward()  # 4. go back along the memory of 1 and 2: a gradient for each parameter
print("4. the gradient is", tuple(first.grad.shape), "numbers")

before = first.detach().clone()
optimizer.step()  # 5. move each parameter against its gradient
print("5. moved by at most", f"{(first - before).abs().max().item():.4f}")

optimizer.zero_grad()
torch.nn.MSELoss()(model(inputs), targets).backward()
single = first.grad.clone()
torch.nn.MSELoss()(model(inputs), targets).backward()
print(
    "without step 3 the gradient grows to", (first.grad / single).nanmean().item(), "×"
)
print("Adam's memory is on", devices_of(optimizer))

# %%
# You will often read that step 3 sets the gradients to zero; it sets them to
# ``None``. Leave it out, and ``backward`` *adds* to what is there, without any error
# message: the model then follows the sum of all gradients so far. The last line but
# one shows it: two backward passes of the same batch, twice the gradient. (In step 5,
# Adam moves each parameter by about its learning rate at first. What it remembers
# lives beside the parameters; only its count of steps is kept on the CPU.)
#
# What the loop lacks
# -------------------
#
# The loop above runs and its loss falls, and yet it lacks three things. First,
# **shuffling**. It shows the data in the same order each time, and if the order has a
# meaning, each slice is a lopsided sample. Here the rows are sorted by their target.
# (``Batches`` is the package's way to cut slices from tensors, shuffled or not;
# ``inference_mode`` computes without remembering how.)

practice.stop()
device = choose_device()  # from here on: what this machine really has

order = y_train.flatten().argsort()
X_sorted, y_sorted = X_train[order].to(device), y_train[order].to(device)


def test_loss(shuffle, seed, epochs=5, batch_size=10):
    torch.manual_seed(seed)
    model = MLP(8, 32, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = torch.nn.MSELoss()
    for _ in range(epochs):
        for inputs, targets in Batches(
            X_sorted, y_sorted, batch_size=batch_size, shuffle=shuffle
        ):
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        return loss_fn(model(X_test.to(device)), y_test.to(device)).item()


for shuffle in (False, True):
    values = sorted(test_loss(shuffle, seed) for seed in range(3))
    print(
        f"shuffle={shuffle!s:<5}  test loss after 5 epochs, three seeds:",
        ", ".join(f"{value:.4f}" for value in values),
    )

# %%
# In sorted slices all ten targets are nearly the same, so one step says little about
# what tells rows apart, and learning is slow. With many more epochs the gap can close;
# shuffling is one argument, and closes it now.
#
# Second, **held-out data**. The numbers just printed come from a hundred rows that no
# training saw; the first loop of this lesson printed the loss of its last training
# batch, ten rows it had seen a hundred times.
#
# Third, **the mode**. Layers such as dropout and batch normalisation behave
# differently while training and afterwards. ``model.train()`` and ``model.eval()``
# switch; they compute nothing themselves. Forget ``eval()``, and a model with dropout
# gives a different answer each time you ask:

torch.manual_seed(0)
dropout_model = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1)
)
row = X_test[:1]
with torch.inference_mode():
    print("train():", [round(dropout_model(row).item(), 3) for _ in range(3)])
    dropout_model.eval()
    print("eval(): ", [round(dropout_model(row).item(), 3) for _ in range(3)])

# %%
# Slices, loaders, or data that lives there
# -----------------------------------------
#
# .. covers:: S4.3
#
# Why is the batch moved inside the loop, and not all the data before it? Because a
# data loader makes its batches on the CPU, and because the data of a serious training
# often does not fit on the GPU. When it does fit, it can stay there. Three ways to
# feed the same loop:

whole_X, whole_y = X_train.to(device), y_train.to(device)  # resident: moved once

loader = DataLoader(TensorDataset(X_train, y_train), batch_size=10, shuffle=True)


def from_slices():
    order = torch.randperm(len(X_train))
    for rows in order.split(10):
        yield X_train[rows].to(device), y_train[rows].to(device)


def from_loader():
    for inputs, targets in loader:
        yield inputs.to(device), targets.to(device)


def resident():
    yield from Batches(whole_X, whole_y, batch_size=10, shuffle=True)


print("a loader's batch is on", next(iter(loader))[0].device)
for feed in (from_slices, from_loader, resident):
    timing = measure(lambda feed=feed: list(feed()), device=device, repeats=9)
    print(f"{feed.__name__:<12} an epoch of batches, without any training: {timing}")

# %%
# A :class:`torch.utils.data.DataLoader` fetches sample by sample and then stacks
# them. For data that comes from files that is the right tool; for a tensor it is a
# long way round. ``Batches`` indexes its slices straight out of tensors that live on
# the device: no copy crosses over during the training. On a CPU nothing has to cross
# anyway, so slices and resident data cost about the same; the difference appears
# where ``.to(device)`` is a real copy.
#
# The loader's three knobs
# ------------------------
#
# .. covers:: S1.7
#
# When you do need a loader, three settings are recommended everywhere: larger batches,
# more workers, pinned memory. Advice of this kind is best measured on your own machine.
# Here are 4,000 samples of 784 numbers, the size of a small picture:

pictures = TensorDataset(torch.rand(4000, 784), torch.randint(10, (4000,)))
can_fork = sys.platform == "linux"  # elsewhere workers need a script with a main guard
settings = [{"batch_size": 10}, {"batch_size": 100}, {"batch_size": 1000}]
if can_fork:
    settings += [
        {"batch_size": 100, "num_workers": 2, "multiprocessing_context": "fork"}
    ]
if torch.cuda.is_available():
    settings += [{"batch_size": 100, "pin_memory": True}]


def one_epoch(loader):
    for inputs, targets in loader:
        inputs.to(device, non_blocking=loader.pin_memory)
        targets.to(device, non_blocking=loader.pin_memory)


for options in settings:
    timing = measure(
        lambda o=options: one_epoch(DataLoader(pictures, **o)),
        device=device,
        warmup=1,
        repeats=5,
    )
    shown = ", ".join(
        f"{name}={value}"
        for name, value in options.items()
        if name != "multiprocessing_context"
    )
    low, high = timing.quartiles
    print(
        f"{shown:<32} {timing.median * 1e3:7.1f} ms an epoch",
        f"(half of the runs within {low * 1e3:.1f} to {high * 1e3:.1f})",
    )
print(f"on {device}, {torch.get_num_threads()} CPU threads, torch {torch.__version__}")
if not can_fork:
    print(
        "num_workers=2: not measured, workers would need a script with a main guard here"
    )
if not torch.cuda.is_available():
    print("pin_memory=True: not measured, there is no CUDA GPU to pin for")

# %%
# The loader fetches sample by sample whatever the ``batch_size``, and that is most of
# the work here. A larger batch saves the fixed cost of each batch, and has to be
# stacked in one larger piece of memory, which costs too; so the lines need not fall
# in order: read yours. The batch size also changes the training, as the last section
# shows. ``num_workers`` starts processes, and hands every batch from one process to
# another: that pays when making a sample is hard work, such as decoding a photograph,
# and not when the sample lies in memory already. ``pin_memory`` keeps batches in
# memory that a GPU can fetch by itself; it matters only with a GPU, and with
# ``non_blocking=True`` Python need not wait for the copy either.
#
# Why batch 10 bores a GPU
# ------------------------
#
# Ten rows through this network are a few thousand multiplications. As in :doc:`lesson 1
# </lessons/01_is_there_a_gpu>`, starting the operations costs more than doing them. The
# same loop with growing batches, in rows per second:

many_X, many_y = regression_data(samples=8192, features=8, seed=2)
many_X, many_y = many_X.to(device), many_y.to(device)
model = MLP(8, 32, 1).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def step(batch_size):
    loss = torch.nn.functional.mse_loss(model(many_X[:batch_size]), many_y[:batch_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


batch_sizes = [10, 32, 128, 512, 2048, 8192]
timings = [measure(lambda n=n: step(n), device=device, repeats=15) for n in batch_sizes]
rows = [n / t.median for n, t in zip(batch_sizes, timings, strict=True)]

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.loglog(batch_sizes, rows, "o-")
axes.set(
    xlabel="batch size",
    ylabel="rows per second",
    title=f"One network, one device ({device}), growing batches",
)
axes.set_xticks(batch_sizes, batch_sizes)
axes.minorticks_off()
axes.grid(alpha=0.3)
plt.show()

print("batch 10:  ", timings[0])
print("batch 8192:", timings[-1])
longer = timings[-1].median / timings[0].median
print(f"{8192 / 10:.0f} times the rows took {longer:.1f} times as long")

# %%
# A step costs a fixed amount for starting its operations, and then a little for each
# row. As long as the fixed part dominates, more rows come nearly for nothing, and the
# more parallel the hardware, the longer that lasts. That is the reason for large
# batches on a GPU. It is not free, since fewer, larger steps are a different training.
# The regression of this lesson, five epochs with the same learning rate:

for batch_size in (10, 100, 400):
    losses = sorted(test_loss(True, seed, batch_size=batch_size) for seed in range(3))
    print(f"batch {batch_size:>3}: test loss", ", ".join(f"{x:.4f}" for x in losses))

# %%
# A larger batch takes fewer steps through the same data. It may need another learning
# rate, or more epochs, to get as far.
#
# Exercise
# --------
#
# .. covers:: S2.3 S2.5
#
# The exercise has a classifier whose three sizes you choose. Forward and backward pass
# compute with its parameters, and ``step`` changes them, so they have to be on the
# device:


class Classifier_MLP(torch.nn.Module):
    """Logits [N, out_dim] from features [N, in_dim]."""

    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = torch.nn.Linear(in_dim, hidden_dim)
        self.out = torch.nn.Linear(hidden_dim, out_dim)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


classifier = Classifier_MLP(in_dim=64, hidden_dim=32, out_dim=10).to(device)
print(tensor_devices(classifier))

# %%
# .. exercise:: Bring this loop to a device
#    :minutes: 15
#    :difficulty: medium
#    :starter: 04_training_loop.py
#
#    The script trains ``Classifier_MLP`` on scikit-learn's handwritten digits, on the
#    CPU, and prints its accuracy.
#
#    1. **Predict:** which lines must change? Mark them before you edit.
#    2. Move the model, and build the optimizer after it. Move each batch, both halves.
#    3. The script computes the accuracy as a mean of the accuracies of its batches. The
#       last batch is shorter. Count right answers instead, and divide once.
#    4. Evaluate in ``eval()`` mode and without gradients, on the device, and fetch the
#       count *once*.
#
#    To check it: ``python -m gpulesson check 04_training_loop.py``.
#
#    You are done when the parameters are on the chosen device, and the accuracy is
#    right answers divided by samples.
#
# .. solution::
#    :file: 04_training_loop.py
#
#    A common mistake in such an exercise: the data is moved, the model is forgotten,
#    and accuracies of batches are averaged. Compare.
#
# .. keypoints::
#
#    - Two changes: ``model.to(device)`` once, before the optimizer; each batch, inputs
#      and targets, inside the loop.
#    - Forward, loss, ``zero_grad``, ``backward``, ``step`` never mention a device: they
#      run where their tensors are.
#    - A loop should shuffle, switch between ``train()`` and ``eval()``, and be judged
#      on data it has not seen.
#    - A loader yields CPU tensors, so batches are moved one by one; data that fits can
#      stay on the device, and then no copy is left in the loop. Measure a loader's
#      knobs before you turn them.
#    - A step has a fixed cost; larger batches spread it over more rows, and are a
#      different training.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains a classifier on pictures.

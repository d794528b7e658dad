"""
4 · The training loop on a device
=================================

Take a training loop that runs on the CPU, change two things so that it runs on a
:term:`GPU`, and add what such loops often lack.

.. overview::
   :teaching: 29
   :exercises: 15

   .. objectives::

      - Move a training loop to a GPU with two changes, and name what moves along by
        itself.
      - Follow one number through the five calls of a step.
      - Shuffle, evaluate on held-out data in the right mode, and compute the accuracy
        from a count.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices` and :doc:`/lessons/03_first_model`
      - Slices of lists, such as ``rows[0:10]``
"""

# %%
# A shop gets thousands of pictures of clothes and shoes, and wants them sorted: shirt,
# bag, sneaker. In :doc:`lesson 3 </lessons/03_first_model>`, all flowers went through the
# model at once. Thousands of pictures go through in portions, and each portion is a
# :term:`batch`.
#
# On a machine without a :term:`CUDA` GPU, this page computes on the :term:`practice GPU`:
# it obeys a GPU's rules, and your CPU does the arithmetic.

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
# Fashion-MNIST is such a set of pictures. Each has 28 × 28 grey pixels, numbers from 0
# (black) to 255, and one of ten labels. To keep this page quick, we take 2,000 pictures
# to train with and 500 for the test.

images = load_fashion_mnist()
X_train = images.train_images[:2000].flatten(1) / 255  # 784 numbers from 0 to 1
X_test = images.test_images[:500].flatten(1) / 255
y_train, y_test = images.train_targets[:2000], images.test_targets[:500]
print("train:", tuple(X_train.shape), tuple(y_train.shape))
print("test: ", tuple(X_test.shape), tuple(y_test.shape))

# %%
# A picture has become a row of 784 numbers, its 28 rows of pixels laid end to end. These
# are the first eight:

# fold: Draw eight pictures with their classes


def draw(pictures, titles):
    _, axes = plt.subplots(1, 8, figsize=(7, 1.4), layout="constrained")
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.imshow(picture.reshape(28, 28), cmap="gray_r")
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    plt.show()


draw(X_train[:8], [images.class_names[label] for label in y_train[:8].tolist()])

# %%
# The model is a class as in lesson 3. Its three sizes are arguments: 784 numbers in, ten
# scores out, and between them as many as you choose.


class Classifier(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):  # [N, inputs]
        x = torch.relu(self.hidden(x))  # [N, hidden]
        return self.out(x)  # [N, classes]


# %%
# And this is the whole training loop. The outer loop counts the :term:`epochs <epoch>`.
# The inner loop cuts out a hundred pictures at a time. How many times does
# ``optimizer.step()`` run?

loss_fn = nn.CrossEntropyLoss()
torch.manual_seed(0)
model = Classifier(784, 32, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
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
#    - The line that makes the model, and the inputs and targets of each step.
#
#      Yes. The model moves once, before the loop. The inputs and targets are others in
#      each step, so they move inside the loop.
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
#    -model = Classifier(784, 32, 10)
#    +model = Classifier(784, 32, 10).to(device)
#     optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
#     for epoch in range(3):
#         for i in range(0, 2000, 100):
#    -        inputs = X_train[i : i + 100]
#    -        targets = y_train[i : i + 100]
#    +        inputs = X_train[i : i + 100].to(device)
#    +        targets = y_train[i : i + 100].to(device)
#             outputs = model(inputs)
#
# The :term:`seed` is the same, so both runs begin with the same model. Will the losses be
# the same, too?

device = torch.device("cuda")
torch.manual_seed(0)
model = Classifier(784, 32, 10).to(device)  # change 1
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for i in range(0, 2000, 100):
        inputs = X_train[i : i + 100].to(device)  # change 2
        targets = y_train[i : i + 100].to(device)  # change 2
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f} on {loss.device}")

# %%
# These are the losses from above, apart from rounding: a real GPU adds up in another
# order. **Move the model once, before the loop. Move each batch, inputs and targets,
# inside the loop,** before the :term:`forward pass`, the call of ``model(inputs)``.
#
# Know what moves along by itself
# -------------------------------
#
# .. covers:: S1.2 S1.6
#
# You moved three things: the model, the inputs and the targets. The model has
# :term:`parameters <parameter>`. Some layers also own :term:`buffers <buffer>`, tensors
# that no :term:`optimizer` changes: ``BatchNorm1d``, a layer for :term:`batch
# normalisation`, keeps averages of the numbers that it has seen. And ``backward`` puts
# the :term:`gradient` of each parameter ``p`` into ``p.grad``. Where will they all be?
# (``inputs`` and ``targets`` are still the loop's last batch.)

network = nn.Sequential(nn.Linear(784, 10), nn.BatchNorm1d(10)).to(device)
loss = loss_fn(network(inputs), targets)
loss.backward()
for name, p in network.named_parameters():
    print("parameter", name, p.device, "and its gradient", p.grad.device)
for name, buffer in network.named_buffers():
    print("buffer   ", name, buffer.device)

# %%
# **One call of** ``to`` **moves all parameters and buffers. Losses and gradients are
# computed where these are, and stay there.**
#
# The optimizer owns tensors, too: Adam keeps averages of earlier gradients. It makes them
# where the parameters are, and they do not move along later. **So first**
# ``model.to(device)``, **then the optimizer,** as `PyTorch's own page
# <https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.cuda>`__
# asks.
#
# .. fold:: Going further: when the order of the two lines matters
#
#    ``to`` moves the parameters themselves, so an optimizer made earlier still knows
#    them. What it leaves where it is are the averages, the :term:`optimizer state`. Adam
#    makes them in its first step. If that was on the CPU, the step after a late ``to``
#    fails. Some optimizers, such as ``Adagrad``, make their state at once, and with them
#    a late ``to`` always fails.
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
# We take one step slowly, and follow a single number: the last layer's bias for the class
# *ankle boot*. Before it, we make one :term:`backward pass` with another batch, so that
# there is an older gradient for call 3 to forget.

torch.manual_seed(0)
model = Classifier(784, 32, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_fn(model(inputs), targets).backward()

bias = model.out.bias
print(f"bias {bias[9].item():.4f}, gradient {bias.grad[9].item():.4f}")

# %%
# **Call 1, the forward pass,** computes the scores, and remembers how, for call 4.
# **Call 2, the loss,** makes one number of scores and targets. **Call 3,** ``zero_grad``,
# forgets the older gradient. What will be in its place?

inputs, targets = X_train[:100].to(device), y_train[:100].to(device)
outputs = model(inputs)  # call 1
loss = loss_fn(outputs, targets)  # call 2
print(f"outputs {tuple(outputs.shape)}, loss {loss.item():.4f}")

optimizer.zero_grad()  # call 3
print("gradient", bias.grad)

# %%
# It is ``None``. The name promises zero, but ``None`` `saves memory
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html>`__.
# **Call 4, the backward pass,** computes the gradients for this batch. A positive one
# says that the loss grows with the bias. In which direction will **call 5, the
# optimizer's step,** move the bias?

loss.backward()  # call 4
print(f"gradient {bias.grad[9].item():.4f}")

optimizer.step()  # call 5
print(f"bias {bias[9].item():.4f}")

# %%
# Against its gradient, by 0.01, the :term:`learning rate`. Why not by 0.01 times the
# gradient? Adam divides by the size of the gradients that it has seen, so in its first
# step only the sign of a gradient counts. **No call names a device. Four of them compute
# where their tensors are;** ``zero_grad`` **only drops old gradients.**
#
# And without ``zero_grad``? We make two backward passes with the same batch:

optimizer.zero_grad()
loss_fn(model(inputs), targets).backward()
print(f"one backward pass:   {bias.grad[9].item():.4f}")
loss_fn(model(inputs), targets).backward()
print(f"two backward passes: {bias.grad[9].item():.4f}")

# %%
# Twice the gradient, apart from rounding: ``backward`` adds to what is there, and no
# message tells you. (Some scripts say ``model.zero_grad()``. It clears the gradients of
# the model, mostly the same ones.)
#
# Shuffle, and let a loader make the batches
# ------------------------------------------
#
# .. covers:: S4.3
#
# Our loop lacks three things. The first is that it never shuffles. A :term:`data loader`
# does: ``TensorDataset`` puts inputs and targets together, row by row, and
# ``DataLoader`` cuts batches from them, with ``shuffle=True`` in a new order in each
# epoch. They are batches of CPU tensors, so they still move inside the loop. (So a data
# set may be larger than the GPU's memory: only a batch has to fit.)


def train(data, shuffle=True, epochs=3):
    torch.manual_seed(0)
    model = Classifier(784, 32, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for _ in range(epochs):
        for inputs, targets in DataLoader(data, batch_size=100, shuffle=shuffle):
            inputs, targets = inputs.to(device), targets.to(device)
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def accuracy(model, X, y):
    model.eval()
    with torch.no_grad():
        answers = model(X.to(device)).argmax(dim=1)
    return (answers == y.to(device)).sum().item() / len(y)


# %%
# Pictures often come sorted, all shirts first. We sort ours by class, and train with and
# without shuffling. What share of the test pictures will be sorted rightly?

order = y_train.argsort()
by_class = TensorDataset(X_train[order], y_train[order])
for shuffle in (False, True):
    model = train(by_class, shuffle)
    print(f"shuffle {shuffle}: accuracy {accuracy(model, X_test, y_test):.1%}")

# %%
# Without shuffling, the last batches hold one class only, and the model learns to answer
# with it. **Shuffle the training data anew in each epoch.**
#
# One question is open: must every step copy a batch? If all pictures fit into the GPU's
# memory, they can live there: move them once, cut the batches on the device, and no step
# copies any. :doc:`/lessons/09_feeding_the_gpu` measures what it brings.

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
# The second thing is the test, on :term:`held-out data`. To see why, we train on a
# hundred pictures only, forty times over:

model = train(TensorDataset(X_train[:100], y_train[:100]), epochs=40)
seen = accuracy(model, X_train[:100], y_train[:100])
print(f"100 pictures that it has seen:     {seen:.1%}")
print(f"500 pictures that it has not seen: {accuracy(model, X_test, y_test):.1%}")

# %%
# The model has learned its hundred pictures by heart, and does worse on others. This is
# :term:`overfitting`. The number to believe is the second.
#
# The third thing is the mode. Some layers work differently in training. A
# :term:`dropout` layer sets random values to zero, so that the model does not rely on a
# few of them. Here is one alone, in both modes:

dropout = nn.Dropout(0.5)  # drops each value with probability 0.5
ones = torch.ones(10, device=device)
print("training mode:  ", dropout(ones).tolist())
dropout.eval()
print("evaluation mode:", dropout(ones).tolist())

# %%
# In :term:`training mode` some values are zero, and the others are doubled, to make up
# for them. In :term:`evaluation mode` all pass unchanged. A forgotten ``eval()`` gives no
# error, only other answers. **Call** ``model.train()`` **before you train, and**
# ``model.eval()`` **before you evaluate.**
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
#      Yes. Dropout then lets everything through, and batch normalisation uses the
#      averages that it has kept.
#
# Count right answers, and divide once
# ------------------------------------
#
# The :term:`accuracy` is the share of right answers. Many scripts compute it for each
# batch, and then take the mean. Here are ten answers in two batches, eight right ones and
# two wrong ones. What is the accuracy?

right = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
first, second = right.split(8)  # eight answers, and two
print("mean of the batches:", (first.mean().item() + second.mean().item()) / 2)
print("right / answers:    ", right.sum().item() / len(right))

# %%
# Eight of ten is 0.8. In the mean, the short batch counts as much as the other. **Count
# the right answers, and divide once, at the end.**
#
# At last, the shop's model, and its answers for eight pictures that it has not seen:

# fold: Train on all 2,000 pictures, and draw eight answers
model = train(TensorDataset(X_train, y_train))
with torch.no_grad():
    answers = model.eval()(X_test[:8].to(device)).argmax(dim=1).tolist()
pairs = zip(answers, y_test[:8].tolist(), strict=True)
marks = [f"{images.class_names[a]}{'' if a == b else '?'}" for a, b in pairs]
draw(X_test[:8], marks)
print(f"accuracy on {len(y_test)} pictures: {accuracy(model, X_test, y_test):.1%}")

# %%
# A question mark means that the answer is wrong.
#
# Predict a number instead of a class
# -----------------------------------
#
# .. covers:: S4.2
#
# The shop prints its catalogue. How much ink does a picture need? The answer is a number:
# the mean of its pixels. (You can compute it, so you can check what the network learns.)
# Two things differ: the last layer has one output, and the loss is ``MSELoss``, the mean
# of the squared differences. The two changes for the GPU are the same.


def ink(X):
    return X.mean(dim=1, keepdim=True)  # [N, 1], the shape of the outputs


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
data = TensorDataset(X_train, ink(X_train))
for inputs, targets in DataLoader(data, batch_size=20, shuffle=True):
    inputs, targets = inputs.to(device), targets.to(device)
    loss = loss_fn(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print("computed:", [f"{x:.2f}" for x in ink(X_test[:6]).flatten().tolist()])
learned = model(X_test[:6].to(device)).flatten().tolist()
print("learned: ", [f"{x:.2f}" for x in learned])

# %%
# After one epoch, the learned numbers are already close. **Another task changes the last
# layer and the loss, not the loop.**
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
#    - Two changes: ``model.to(device)`` once, before the optimizer and the loop, and
#      inputs and targets of each batch inside it. Buffers, gradients and results follow.
#    - Forward pass, loss, ``backward`` and ``step`` compute where their tensors are.
#      ``zero_grad`` drops old gradients, and without it they add up.
#    - Shuffle in each epoch, call ``train()`` and ``eval()``, and on held-out data count
#      the right answers and divide once.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains on many more of these pictures, and
# looks at the mistakes.

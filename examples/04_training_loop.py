"""
4 · The training loop on a device
=================================

Take a training loop that runs on the CPU, change two places so that it runs on a
:term:`GPU`, and add what such loops often lack.

.. overview::
   :teaching: 27
   :exercises: 15

   .. objectives::

      - Move a training loop to a GPU by changing two places, and name what moves along
        by itself.
      - Follow one number and the loss through the five calls of a step.
      - Shuffle, evaluate on held-out data in the right mode, and compute the accuracy
        from a count.

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
# numbers from 0 (black) to 255 (white), and one of ten labels. To keep this page quick,
# we take 2,000 pictures to train with and 500 for the test.

images = load_fashion_mnist()
X_train = images.train_images[:2000].flatten(1) / 255  # 784 numbers from 0 to 1
X_test = images.test_images[:500].flatten(1) / 255
y_train, y_test = images.train_targets[:2000], images.test_targets[:500]
print("train:", tuple(X_train.shape), tuple(y_train.shape))
print("test: ", tuple(X_test.shape), tuple(y_test.shape))

# %%
# A picture has become a row of 784 numbers. Here are the first eight pictures, inverted
# (dark on white):

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
# The model is a class as in lesson 3. Its three sizes are arguments:


class Classifier(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x):  # [N, inputs]
        x = torch.relu(self.hidden(x))  # [N, hidden]
        return self.out(x)  # [N, outputs]


# %%
# In the training loop, the outer loop counts the :term:`epochs <epoch>`, and the inner
# loop cuts out a hundred pictures at a time. How many times does ``optimizer.step()``
# run?

loss_fn = nn.CrossEntropyLoss()
torch.manual_seed(0)
model = Classifier(784, 32, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
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
#    -model = Classifier(784, 32, 10)
#    +model = Classifier(784, 32, 10).to(device)
#     optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
#     for epoch in range(3):
#         for i in range(0, 2000, 100):
#    -        inputs = X_train[i : i + 100]
#    -        targets = y_train[i : i + 100]
#    +        inputs = X_train[i : i + 100].to(device)
#    +        targets = y_train[i : i + 100].to(device)
#             outputs = model(inputs)
#
# The :term:`seed` is the same, so both runs begin with the same model. And the losses?

device = torch.device("cuda")
torch.manual_seed(0)
model = Classifier(784, 32, 10).to(device)  # place 1
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
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
# These are the losses from above, apart from rounding: a real GPU adds up in another
# order. **Move the model once, before the loop. Move each batch, inputs and targets,
# inside the loop,** before the :term:`forward pass`, the call of ``model(inputs)``.
#
# Know what moves along by itself
# -------------------------------
#
# .. covers:: S1.2 S1.6
#
# Where are the model's :term:`parameters <parameter>` now? And the :term:`gradient` of
# each parameter ``p``, which ``backward`` put into ``p.grad``?
#
# Some layers also own :term:`buffers <buffer>`, tensors that the :term:`optimizer` does
# not change. An example is ``BatchNorm1d``, for :term:`batch normalisation`: it brings
# the numbers between two layers to a common scale, and remembers the mean of what it
# has seen.

for name, p in model.named_parameters():
    print(f"{name:<13} {p.device}, its gradient {p.grad.device}")

layer = nn.BatchNorm1d(10).to(device)
print("the buffer running_mean:", layer.running_mean.device)

# %%
# **One call of** ``to`` **moves all parameters and buffers. Losses and gradients are
# computed where these are, and stay there.** A tensor in a plain attribute, such as
# ``self.mask = torch.ones(10)``, does not move along: :ref:`lesson 7 <made-in-forward>`.
#
# The optimizer owns tensors, too: Adam keeps averages of earlier gradients, where the
# parameters were in its first step. They do not follow if you move the model later.
# **So first**
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
# .. drawing:: training_step.svg
#
#    The five calls of a training step, and where each of them computes.
#
# We take one step slowly with a new model. We watch the loss, and one number: entry 9 of
# the last layer's bias, which is added to the score of class 9. **Call 1, the forward
# pass,** computes the scores, and remembers how. **Call 2** computes the loss:

torch.manual_seed(0)
model = Classifier(784, 32, 10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
inputs, targets = X_train[:100].to(device), y_train[:100].to(device)

outputs = model(inputs)  # call 1
loss = loss_fn(outputs, targets)  # call 2
bias = model.out.bias
print(images.class_names[9], f"has bias {bias[9].item():.4f}, loss {loss.item():.4f}")

# %%
# Why is there a **call 3,** ``zero_grad``? We leave it out, and make two
# :term:`backward passes <backward pass>` with the same batch:

loss.backward()
print(f"one backward pass:   {bias.grad[9].item():.4f}")
loss_fn(model(inputs), targets).backward()
print(f"two backward passes: {bias.grad[9].item():.4f}")

optimizer.zero_grad()  # call 3
print("after zero_grad:    ", bias.grad)

# %%
# Twice the gradient, apart from rounding: ``backward`` adds to what is there, and you get
# no message. ``zero_grad`` drops it. It leaves ``None``, which `saves memory
# <https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html>`__.
# Some scripts say ``model.zero_grad()``, which does the same here.
#
# **Call 4, the backward pass,** computes the gradient of this batch alone. It is
# positive: the loss grows with the bias. Which way will **call 5, the optimizer's step,**
# move the bias, and the loss?

loss_fn(model(inputs), targets).backward()  # calls 1, 2 and 4
print(f"gradient {bias.grad[9].item():.4f}")
optimizer.step()  # call 5
print(f"bias {bias[9].item():.4f}, loss {loss_fn(model(inputs), targets).item():.4f}")

# %%
# The bias moved against its gradient, by 0.003, the :term:`learning rate`: Adam divides
# by the size of the gradients that it has seen, so in its first step only the sign
# counts. All other parameters moved, too, and the loss is smaller. **No call names a
# device. Four of them compute where their tensors are;** ``zero_grad`` **only drops old
# gradients.**
#
# Shuffle, and let a loader make the batches
# ------------------------------------------
#
# .. covers:: S4.3
#
# Our loop lacks three things. First, it never shuffles. A :term:`data loader` does:
# ``TensorDataset`` puts inputs and targets together, row by row, and ``DataLoader`` cuts
# batches from them, with ``shuffle=True`` in a new order in each epoch. They are CPU
# tensors, so they still move inside the loop. That is why the data may be larger than the
# GPU's memory: only the model, what it computes, and one batch have to fit.


def train(data, shuffle=True, outputs=10, loss_fn=loss_fn, epochs=3):
    torch.manual_seed(0)
    model = Classifier(784, 32, outputs).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model.train()
    for _ in range(epochs):
        for inputs, targets in DataLoader(data, batch_size=100, shuffle=shuffle):
            inputs, targets = inputs.to(device), targets.to(device)
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def predict(model, X):
    model.eval()
    with torch.no_grad():
        return model(X.to(device)).cpu()


# %%
# Pictures often come sorted by class. We sort ours, and train twice: in this order, and
# shuffled again in each epoch, so that each epoch has other batches. How many of the 500
# test pictures get the right name, and which classes does the model predict at all?

order = y_train.argsort()
by_class = TensorDataset(X_train[order], y_train[order])
for shuffle in (False, True):
    model = train(by_class, shuffle)
    answers = predict(model, X_test).argmax(dim=1)
    right = (answers == y_test).sum().item()
    print(f"shuffle {shuffle}: {right} right, answers {answers.unique().tolist()}")

# %%
# Without shuffling, a batch holds one or two classes. It changes the model towards these,
# and undoes what earlier batches taught. It never predicts most of the classes. **Shuffle
# the training data in each epoch.** Here are eight answers of the second model, the
# wrong ones with a question mark:

# fold: Draw eight answers
first = answers[:8].tolist()
pairs = zip(first, y_test[:8].tolist(), strict=True)
marks = [f"{images.class_names[a]}{'' if a == b else '?'}" for a, b in pairs]
draw(X_test[:8], marks)

# %%
# 2,000 pictures are few, and :doc:`/lessons/05_fashion_mnist` has more. If all pictures
# fit into the GPU's memory, move them once, and cut the batches there. Then no step
# copies any. :doc:`/lessons/09_feeding_the_gpu` measures what you gain. The folded cell
# does it, and prints how much memory our pictures and one batch take there, with four
# bytes for each pixel:

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
# The second thing is the test. A model can learn its training pictures by heart, and do
# worse on others (:term:`overfitting`). So test it on :term:`held-out data`. The folded
# cell trains a model on only a hundred pictures, for a hundred epochs, and prints how
# many of these it gets right, and how many of the test:

# fold: Going further: watch a model overfit a hundred pictures
few = train(TensorDataset(X_train[:100], y_train[:100]), epochs=100)
for name, X, y in (
    ("seen", X_train[:100], y_train[:100]),
    ("not seen", X_test, y_test),
):
    right = (predict(few, X).argmax(dim=1) == y).sum().item()
    print(f"{len(y)} pictures that it has {name}: {right / len(y):.1%} right")

# %%
# The third thing is the mode. Some layers work differently in training. A
# :term:`dropout` layer sets random values to zero, so that the model does not rely on a
# few:

dropout = nn.Dropout(0.5)  # drops each value with probability 0.5
ones = torch.ones(8, device=device)
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
#      Yes. Dropout then lets everything through, and batch normalisation uses the
#      averages that it has kept.
#
# Count right answers, and divide once
# ------------------------------------
#
# The :term:`accuracy` is the share of right answers. Many scripts compute it for each
# batch, and then take the mean. Here are ten answers in two batches, eight of them right:

right = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
first, second = right.split(8)  # eight answers, and two
print("mean of the batches:", (first.mean().item() + second.mean().item()) / 2)
print("right / answers:    ", right.sum().item() / len(right))

# %%
# In the mean, the short batch counts as much as the other. **Count the right answers, and
# divide once, at the end.**
#
# Predict a number instead of a class
# -----------------------------------
#
# .. covers:: S4.2
#
# Can a network learn how bright a picture is, the mean of its pixels? Three things
# differ: the targets, one output instead of ten, and the loss, ``MSELoss``, the mean of
# the squared differences.


def brightness(X):
    return X.mean(dim=1, keepdim=True)  # [N, 1], the shape of the outputs


data = TensorDataset(X_train, brightness(X_train))
model = train(data, outputs=1, loss_fn=nn.MSELoss())
for name, y in (("true:   ", brightness(X_test)), ("learned:", predict(model, X_test))):
    print(name, [f"{x:.2f}" for x in y[:6].flatten().tolist()])

# %%
# The learned numbers are close. **Another task changes targets, outputs and loss, but not
# the loop:** ``train`` is the function from above.
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
#    - Two places change: ``model.to(device)`` once, before the optimizer and the loop,
#      and ``to(device)`` for inputs and targets inside it. Buffers and gradients follow.
#    - Forward pass, loss, ``backward`` and ``step`` compute where their tensors are. A
#      step goes against the gradients. Without ``zero_grad``, they add up.
#    - Shuffle in each epoch, call ``train()`` and ``eval()``, and on held-out data count
#      the right answers and divide once.
#
# You have made the changes by hand. For a script of your own, :doc:`/port` proposes
# them, each with its reason.
#
# **Next:** :doc:`/lessons/05_fashion_mnist` trains on many more of these pictures, and
# looks at the mistakes.

"""
3 · A first model on the GPU
============================

Write your first network, train it to tell three species of flowers apart, and move it
to a :term:`GPU`.

.. overview::
   :teaching: 28
   :exercises: 15

   .. objectives::

      - Write a model as layers in a row and as a class, and say how its scores become
        shares and a loss.
      - Train it with a loop of five calls, and evaluate it on flowers that it has not
        seen.
      - Move the model and the data to a GPU, and time a run.

   .. prereq::

      - :doc:`/lessons/01_is_there_a_gpu`
      - :doc:`/lessons/02_tensors_and_devices`, for what ``to`` copies, and what it moves
"""

# %%
# Describe a flower by four numbers
# ---------------------------------
#
# The data set *iris* holds 150 flowers of three species, each with four lengths in
# centimetres. The task: given the lengths of a flower, name its species.

import matplotlib.pyplot as plt
import torch
from sklearn.model_selection import train_test_split
from torch import nn

from gpulesson.data import load_iris

torch.set_num_threads(1)  # one CPU core is enough for so few numbers
iris = load_iris()
print(tuple(iris.features.shape), tuple(iris.targets.shape))

# %%
# The first :term:`tensor` has the :term:`shape` 150 by 4: a row of four numbers for each
# flower. The second has one number for each flower. Here are five of the rows:

# fold: Print five rows as a table
names = [name.removesuffix(" (cm)") for name in iris.feature_names]
print(" row " + "".join(f"{name:>15}" for name in names) + "    label  species")
for row in (0, 1, 50, 51, 100):
    lengths = "".join(f"{length:>12.1f} cm" for length in iris.features[row].tolist())
    label = int(iris.targets[row])
    print(f"{row:>4} {lengths}    {label:>5}  {iris.class_names[label]}")

# %%
# The four lengths are the *features*: what the model gets to see. The species is the
# *class*: what the model has to name. Each class has a number, 0, 1 or 2, and the number
# of a flower's class is its *label*. **Features go in, and a label should come out.**
#
# Is this easy? We draw two of the four features:

# fold: Draw two of the four features
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for label, (name, marker) in enumerate(zip(iris.class_names, "os^", strict=True)):
    flowers = iris.features[iris.targets == label]
    ax.scatter(flowers[:, 2], flowers[:, 3], marker=marker, alpha=0.7, label=name)
ax.set(
    xlabel="petal length (cm)",
    ylabel="petal width (cm)",
    title="Petals of 150 flowers: one species is apart, two overlap",
)
ax.legend(title="species")
ax.grid(alpha=0.3)
plt.show()

# %%
# *Setosa* is easy: its petals are small. The other two species overlap a little.
#
# Keep thirty flowers for the test
# --------------------------------
#
# .. covers:: S3.7
#
# If an exam repeats the questions of the homework, a student can learn the answers by
# heart. So can a network. So before we train, we put thirty flowers aside. This
# :term:`held-out data` is our exam.
#
# ``train_test_split``, from scikit-learn, shuffles the rows and cuts them in two, the
# same way each time (``random_state=33``). It works with NumPy arrays, so we make tensors
# of what comes back. ``X`` is the usual name for features, and ``y`` for labels.

X, y = iris.features.numpy(), iris.targets.numpy()
parts = train_test_split(X, y, test_size=0.2, random_state=33)
X_train, X_test, y_train, y_test = (torch.tensor(part) for part in parts)
print("train:", tuple(X_train.shape), tuple(y_train.shape), X_train.dtype)
print("test: ", tuple(X_test.shape), tuple(y_test.shape), y_test.dtype)

# %%
# **Both parts have their features and their labels.** The features have the :term:`dtype`
# ``float32``, numbers with a decimal point, and the labels ``int64``, whole numbers.
#
# Build a network from layers in a row
# ------------------------------------
#
# Our network has three layers. The first makes eight numbers out of the four lengths,
# the second nine out of the eight, and the last three out of the nine: a score for each
# class. (Eight and nine are our choice.)
#
# .. drawing:: network.svg
#
#    One flower on its way through the network. The brackets hold the shapes for ``N``
#    flowers.
#
# ``nn.Linear(4, 8)`` makes eight numbers from four. Each of the eight is a sum: the four
# inputs, each multiplied by a *weight*, plus one more number, the *bias*. Then ``ReLU``
# replaces negative numbers by zero. Without it, three layers could do no more than one:
# a sum of such sums is such a sum again.

torch.manual_seed(32)
model = nn.Sequential(
    nn.Linear(4, 8),  # [N, 4] -> [N, 8]
    nn.ReLU(),
    nn.Linear(8, 9),  # [N, 8] -> [N, 9]
    nn.ReLU(),
    nn.Linear(9, 3),  # [N, 9] -> [N, 3], one score for each class
)
print(sum(parameter.numel() for parameter in model.parameters()), "weights and biases")

# %%
# ``nn.Sequential`` hands the result of each layer to the next. The weights and biases
# are the model's :term:`parameters <parameter>`. They start as random numbers, and
# training will change them. The :term:`seed` makes the random numbers the same each time.
#
# Turn scores into shares
# -----------------------
#
# We follow one flower of the test through the lesson. What does the model say of it
# before it is trained? You call a model like a function:

flower, label = X_test[4:5], y_test[4:5]  # still a table, of one row
scores = model(flower)
print("lengths:", flower)
print("scores: ", scores)
print("species:", iris.class_names[label.item()])

# %%
# Three scores, called :term:`logits`. (``grad_fn`` says that PyTorch remembers how they
# were computed. Training needs this.) Scores can be any numbers. To read them, we turn
# them into shares of a whole: *e* to the power of each score, divided by the sum of all
# three. This is called :term:`softmax`, and the shares are often called probabilities.


def guess(flower):
    scores = model(flower)
    shares = torch.exp(scores) / torch.exp(scores).sum()
    for name, share in zip(iris.class_names, shares[0].tolist(), strict=True):
        print(f"{name:<11} {share:.3f}")
    return shares


shares = guess(flower)

# %%
# The shares are positive and add up to one. **The class with the largest score has the
# largest share, and it is the model's answer.** Here it is *setosa*, which is wrong, and
# no share is far from a third: the model knows nothing yet.
#
# Measure how wrong an answer is
# ------------------------------
#
# The :term:`loss` is one number that says how wrong the answer is. For classes we use the
# :term:`cross-entropy`: minus the logarithm of the share of the *right* class. We compute
# it by hand for our flower, and with PyTorch:

right = shares[0, label.item()]
print(f"by hand:          {-torch.log(right).item():.4f}")

loss_fn = nn.CrossEntropyLoss()
print(f"CrossEntropyLoss: {loss_fn(scores, label).item():.4f}")
print(f"all three equal:  {torch.log(torch.tensor(3.0)).item():.4f}")

# %%
# The first two agree. ``CrossEntropyLoss`` computes the shares itself: **give it the
# scores, not the shares.** If the right share were 1, the loss would be 0. With three
# equal shares it is −ln(1/3), the last line. Our model is worse: it gives the right class
# less than a third. For many flowers, the loss is the mean. (``item()`` turns a tensor of
# one number into a Python number.)
#
# Train it with five calls
# ------------------------
#
# An :term:`optimizer` changes the parameters so that the loss gets smaller. Ours is
# called Adam, and its :term:`learning rate`, ``lr``, says how far it goes each time. One
# round of the loop is a :term:`step`. Here all 120 flowers go through the model at once,
# as one :term:`batch`. So each step is also an :term:`epoch`, a pass over all the data.
# (The loop counts in ``_``, the usual name for a value that you do not need.)

optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(100):
    outputs = model(X_train)  # 1. compute the scores of all flowers
    loss = loss_fn(outputs, y_train)  # 2. one number: how wrong are they?
    optimizer.zero_grad()  # 3. forget the gradients of the step before
    loss.backward()  # 4. compute new gradients
    optimizer.step()  # 5. change every parameter a little
    losses.append(loss.item())

# %%
# A :term:`gradient` says, for each weight and bias, how the loss would change if that
# number grew a little. Call 4 computes them, and call 5 uses them. Call 3 is there
# because call 4 *adds* to the gradients that it finds. **Outputs, loss,**
# ``zero_grad``, ``backward``, ``step``: **these five calls are in every training loop.**

# fold: Draw the losses
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.plot(range(1, 101), losses)
ax.set(xlabel="epoch", ylabel="loss", title="The loss of the training flowers falls")
ax.grid(alpha=0.3)
plt.show()

# %%
# .. question:: You run the cell with the loop a second time. Which loss comes first?
#
#    - The same as the first time, because the seed was set.
#
#      No. The seed was set before the model was *made*. The cell makes no new model, and
#      it draws no random numbers.
#
#    - About the last loss of the first time.
#
#      Yes. The model keeps its parameters, so training goes on where it stopped. To start
#      again, make the model again, too.
#
#    - A large one, because the list is empty again.
#
#      No. The list only collects numbers for us. What the model has learned is in its
#      parameters.
#
# .. instructor-note::
#
#    Learners with a notebook easily run the cell with the loop twice, and then their
#    losses no longer match. Let them answer the question before they type. To start
#    again, they run the cell that makes the model, and then the loop.
#
# Evaluate it on flowers that it has not seen
# -------------------------------------------
#
# What does the model say of our flower now? It was not trained with it.

shares = guess(flower)

# %%
# By far the largest share now belongs to *virginica*, which is right. How many of the
# thirty will get the right name?

model.eval()
with torch.no_grad():
    outputs = model(X_test)  # [30, 3]
predicted = outputs.argmax(dim=1)  # [30]
print("predicted:", predicted[:10].tolist())
print("label:    ", y_test[:10].tolist())
correct = (predicted == y_test).sum().item()
print(f"{correct} of {len(y_test)} right, accuracy {correct / len(y_test):.1%}")

# %%
# Line by line:
#
# - ``model.eval()`` switches to :term:`evaluation mode`. Layers that you meet in lesson 4
#   need it. ``model.train()`` switches back.
# - ``torch.no_grad()`` tells PyTorch not to remember how the outputs are computed.
# - ``argmax(dim=1)`` looks along each row for the *position* of the largest score: the
#   label of a class.
# - ``sum`` counts the right ones. Their share is the :term:`accuracy`.
#
# **Evaluate a model on data that it was not trained with.** And do not read 100 % as
# *never wrong*: there were only thirty flowers.
#
# .. question:: ``outputs`` is ``[30, 3]``. Which call gives one class for each flower?
#
#    - ``outputs.argmax()``
#
#      No. Without ``dim`` it looks through the whole table, and returns a single
#      number.
#
#    - ``outputs.argmax(dim=0)``
#
#      No. ``dim=0`` goes down each *column*. It returns three numbers: for each class,
#      the flower with the largest score.
#
#    - ``outputs.argmax(dim=1)``
#
#      Yes. ``dim=1`` goes along each *row*, over the three classes, and returns thirty
#      numbers.
#
# Write the same network as a class
# ---------------------------------
#
# Most programs write a model as a Python class, a plan for objects. (It has nothing to
# do with the class of a flower.) ``Net()`` makes an object, and runs ``__init__``.
# ``self`` is this object: ``self.first`` is a layer that it keeps. ``nn.Module`` in
# brackets means that our plan extends PyTorch's plan for models, the :term:`module`.
# ``super().__init__()`` runs that plan's own ``__init__`` first, so that it can find our
# layers. ``model(x)`` calls ``forward``.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 9)
        self.last = nn.Linear(9, 3)

    def forward(self, x):  # x: [N, 4]
        x = torch.relu(self.first(x))  # [N, 8]
        x = torch.relu(self.second(x))  # [N, 9]
        return self.last(x)  # [N, 3]


# %%
# Is it the same network? We put the loop into a function, train a ``Net`` from the same
# seed, and compare the losses with those from above:


def train(model, X, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        outputs = model(X)
        loss = loss_fn(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(32)
print("the same losses:", train(Net(), X_train, y_train) == losses)

# %%
# They are the same. **In a class,** ``forward`` **may do anything with** ``x``, not only
# hand it from layer to layer.
#
# .. fold:: Going further: why not ``model.forward(x)``?
#
#    It computes the same, but skips the *hooks*: functions that you, or a tool that you
#    use, attach to a model to watch it. No error says so. Call ``model(x)``.
#
# Time a run: warm up, repeat, take the middle
# --------------------------------------------
#
# .. covers:: S3.8
#
# How long do a hundred steps take? A first run often does extra work, such as loading
# code, and other programs disturb some runs. So ``measure``, from the package, runs the
# work once to *warm up*, and then five times by the clock:

from gpulesson.timing import measure


def one_run():
    train(Net(), X_train, y_train)


timing = measure(one_run, device="cpu", warmup=1, repeats=5)
print("five runs:", [f"{seconds:.3f}" for seconds in timing.times], "seconds")
print(f"the middle one: {timing.median:.3f} seconds")

# %%
# **Believe the middle of several runs, not the first one.** This was your CPU. On a GPU
# the clock must also wait until the work is done (:doc:`/lessons/08_was_it_faster`). With
# 151 numbers, do not expect a GPU to be faster. But the lines that bring them to one are
# the same for a large network.
#
# Move the model and the data to a GPU
# ------------------------------------
#
# .. covers:: S3.6
#
# On a machine without a :term:`CUDA` :term:`GPU`, this page computes on the
# :term:`practice GPU`: it obeys a GPU's rules, and your CPU does the arithmetic.

from gpulesson import practice

practice.start()
print(torch.cuda.get_device_name())

# %%
# Before you look at the change: which things have to move?
#
# .. code-block:: diff
#
#    +device = torch.device("cuda")
#     torch.manual_seed(32)
#    -model = Net()
#    +model = Net().to(device)
#    +X_gpu = X_train.to(device)
#    +y_gpu = y_train.to(device)
#    -losses = train(model, X_train, y_train)
#    +gpu_losses = train(model, X_gpu, y_gpu)
#
# Three things move: the model, the features and the labels. ``is_cuda`` says whether a
# parameter is on a GPU. (``next`` takes the first one.)

device = torch.device("cuda")
torch.manual_seed(32)
model = Net()
print("before:", next(model.parameters()).is_cuda)
model = model.to(device)
print("after: ", next(model.parameters()).is_cuda)

X_gpu = X_train.to(device)
y_gpu = y_train.to(device)
gpu_losses = train(model, X_gpu, y_gpu)
difference = max(abs(a - b) for a, b in zip(losses, gpu_losses, strict=True))
print(f"largest difference between the losses: {difference:.0e}")

# %%
# The losses agree. A real GPU adds up in another order, so its last digits may differ.
# **The loop did not change: it computes where its tensors are.**
#
# .. question:: You moved the model and not the features. What does ``model(X_train)`` do?
#
#    - PyTorch copies the features to the GPU by itself.
#
#      No. Such a copy costs time, and PyTorch does not make it unasked.
#
#    - It computes on the CPU, which is slower.
#
#      No. The weights are on the GPU, and the CPU cannot compute with them.
#
#    - It stops with an error.
#
#      Yes, with the message that you know from lesson 2. So you cannot get a wrong
#      result from this mistake.
#
# Our loop keeps ``loss.item()``, a number. What would it cost to keep ``loss`` itself?

# fold: Count the GPU's memory that one kept loss holds
before = torch.cuda.memory_allocated()
kept = loss_fn(model(X_gpu), y_gpu)
print("the loss: ", torch.cuda.memory_allocated() - before, "bytes")
kept = kept.item()
print("a number: ", torch.cuda.memory_allocated() - before, "bytes")

# %%
# The loss holds on to the results that it was computed from, until ``backward`` has used
# them. **Keep** ``loss.item()``, **not** ``loss``.
#
# Compare your run with a published one
# -------------------------------------
#
# .. covers:: S3.9
#
# We took the settings of this network from a course for beginners, which published the
# losses of every tenth epoch (`a public copy
# <https://github.com/qalmaqihir/qalmaqihir.github.io/blob/7c695bea7cfa47a3d4019912a05387f2dd821c6e/docs/bootcampsnotes/pytorchDLbootcamp/05-Using-GPU/00-Using-GPU-and-CUDA.md>`__).
# Its hundred steps took 0.467 seconds, timed once, on a GeForce GTX 1080 Ti. It used a
# widely copied file of the flowers, in which two rows are `wrong
# <https://scikit-learn.org/stable/datasets/toy_dataset.html#iris-plants-dataset>`__:

# fold: Print the two flowers, in both versions
copied = load_iris(widely_copied=True)
for row in (copied.features != iris.features).any(dim=1).nonzero().flatten().tolist():
    for name, version in (("scikit-learn", iris), ("copied file", copied)):
        print(row, f"{name:<13}", [f"{x:.1f}" for x in version.features[row].tolist()])

# %%
# Three numbers of six hundred differ. We train once more, on the GPU, with the copied
# file. Which column will be closer to the published one?

# fold: Train with the copied file, and print three columns of losses
published = [
    1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
    0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931,
]  # fmt: skip
parts = train_test_split(copied.features.numpy(), y, test_size=0.2, random_state=33)
torch.manual_seed(32)
model = Net().to(device)
copied_losses = train(model, torch.tensor(parts[0]).to(device), y_gpu)

print("epoch  published  copied_file  scikit_learn")
columns = zip(published, copied_losses[::10], losses[::10], strict=True)
for row, (a, b, c) in enumerate(columns):
    print(f"{10 * row + 1:>5} {a:>10.5f} {b:>12.5f} {c:>13.5f}")

# %%
# With the copied file, the losses follow the published ones. (The rest is mostly Adam,
# which PyTorch has `changed a little since
# <https://github.com/pytorch/pytorch/pull/22628>`__.) With scikit-learn's flowers, the
# first loss differs already, before any training. **To reproduce a result you need the
# same data, and the same name does not prove that it is.**
#
# Exercise
# --------
#
# .. exercise:: Train and test on a device
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_03.py
#
#    Write this lesson's program as three functions: the loop, the accuracy, and the run
#    on a :term:`device` that uses both.
#
#    1. **Predict:** what must move to train *and test* on a GPU? Count the things.
#    2. Write ``train``: the loop of five calls. It returns the losses as numbers.
#    3. Write ``accuracy``, in evaluation mode and without gradients.
#    4. Write ``run``: set the seed, make the model, move what has to move, train, and
#       return the accuracy on the test flowers.
#    5. Run your file. It prints two losses of the lesson, and the accuracy after one
#       epoch and after a hundred.
#
#    To check it: ``python -m gpulesson check exercise_03.py``. The check calls your
#    functions on the :term:`practice GPU`, with flowers of its own.
#
#    You are done when the check passes, and your two losses are those of the last table,
#    on the right.
#
# .. solution::
#    :file: solution_03.py
#
#    Five things move: the model, and the features and labels of both parts. A model
#    moves as it is. Of a tensor, ``to`` returns a copy, so each is assigned again.
#
# .. keypoints::
#
#    - A model turns features into scores, ``[N, 4]`` into ``[N, 3]``. Softmax makes
#      shares of them, and the loss is minus the logarithm of the right class's share.
#    - Outputs, loss, ``zero_grad``, ``backward``, ``step``. Then ``eval()``,
#      ``no_grad()`` and ``argmax(dim=1)``, on flowers that were put aside before.
#    - ``to(device)`` for model, features and labels makes it a GPU program. Warm up and
#      repeat before you believe a time.
#
# **Next:** :doc:`/lessons/04_training_loop` has more data, which goes to the device in
# batches.

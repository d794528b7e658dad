"""
3 · A first model on the GPU
============================

Write your first network, train it to tell three species of flowers apart, and move it
to a :term:`GPU`.

.. overview::
   :teaching: 30
   :exercises: 15

   .. objectives::

      - Write a network, and say how its scores become probabilities and a loss.
      - Say what one step of training does, train with a loop of five calls, and
        evaluate on flowers that the network has not seen.
      - Move the model and the data to a GPU, and time a run on the CPU.

   .. prereq::

      - The package of this course, installed as :doc:`/setup` says
      - :doc:`/lessons/01_is_there_a_gpu` and :doc:`/lessons/02_tensors_and_devices`,
        whose devices come back in the last part
      - In Python: loops and functions, lists such as ``[x for x in rows]``, f-strings
"""

# %%
# Describe a flower by four numbers
# ---------------------------------
#
# Three species of iris look much alike, but their petals and sepals (the leaves below the
# petals) differ in size. A network will learn to tell them apart from four lengths alone.
#
# The data set *iris* has the four lengths, in centimetres, of 150 flowers.

import matplotlib.pyplot as plt
import torch
from sklearn.model_selection import train_test_split
from torch import nn

from gpulesson.data import load_iris

# sphinx_gallery_thumbnail_number = 4
torch.set_num_threads(1)  # one CPU core is enough for so few numbers
iris = load_iris()
print(iris.feature_names)
print(iris.features[0], "is a", iris.class_names[iris.targets[0]])

# %%
# The four lengths are the *features*: what the model gets to see. The species is the
# *class*: what the model has to name. Each class has a number, 0, 1 or 2, and the number
# of a flower's class is its *label*. **Features go in, and a label should come out.**
#
# Is this easy? Here are two of the four features:

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
# *Setosa* is easy: its petals are small. The others overlap a little.
#
# Keep thirty flowers for the test
# --------------------------------
#
# .. covers:: S3.7
#
# A student can learn the answers of the homework by heart, and so can a network. So we
# put thirty flowers aside for an exam, as :term:`held-out data`.
#
# ``train_test_split``, from scikit-learn, shuffles the rows and cuts them in two, the
# same way each time (``random_state=33``). It works on NumPy arrays, so we make a
# :term:`tensor` of each part. ``X`` is the usual name for features, and ``y`` for labels.

X, y = iris.features.numpy(), iris.targets.numpy()
parts = train_test_split(X, y, test_size=0.2, random_state=33)
X_train, X_test, y_train, y_test = (torch.tensor(part) for part in parts)
print("train:", tuple(X_train.shape), tuple(y_train.shape), X_train.dtype)
print("test: ", tuple(X_test.shape), tuple(y_test.shape), y_test.dtype)

# %%
# **Both parts have features and labels:** a row of four numbers for each flower, and one
# label. The features have the :term:`dtype` ``float32``, numbers with a decimal point,
# and the labels ``int64``, whole numbers.
#
# Build a network from layers in a row
# ------------------------------------
#
# Our network has three layers. The first makes eight numbers out of the four lengths,
# the second nine out of the eight, and the last three out of the nine: a score for each
# class. Eight and nine are our choice.
#
# .. drawing:: network.svg
#
#    One flower on its way through the network. The brackets hold the :term:`shapes
#    <shape>` for ``N`` flowers.
#
# ``nn.Linear(4, 8)`` makes eight numbers from four. Each of the eight is a sum: the four
# inputs, each multiplied by a *weight*, plus one more number, the *bias*. Then ``ReLU``
# replaces negative numbers by zero. Without it, three layers of sums would still add up
# to a single layer.

torch.manual_seed(32)
model = nn.Sequential(
    nn.Linear(4, 8),  # [N, 4] -> [N, 8]: 8 · 4 weights + 8 biases = 40 numbers
    nn.ReLU(),
    nn.Linear(8, 9),  # [N, 8] -> [N, 9]: 9 · 8 + 9 = 81
    nn.ReLU(),
    nn.Linear(9, 3),  # [N, 9] -> [N, 3]: 3 · 9 + 3 = 30
)
print(sum(parameter.numel() for parameter in model.parameters()), "weights and biases")

# %%
# ``nn.Sequential`` hands the result of each layer to the next. The weights and biases
# are the model's :term:`parameters <parameter>`. They start as random numbers, and
# training will change them. The :term:`seed` makes them the same each time.
#
# Turn scores into probabilities
# ------------------------------
#
# We follow one flower of the test through the lesson. You call a model like a function.
# It gives three scores, called :term:`logits`, which can be any numbers. The
# :term:`softmax` turns them into shares of a whole, called probabilities: *e* to the
# power of each score, divided by the sum of all three. A power of *e* is never negative,
# and a larger score gives a larger one.


def guess(flower):
    scores = model(flower)
    powers = torch.exp(scores)  # e to the power of each score
    probabilities = powers / powers.sum()
    print("scores: ", scores)
    for name, p in zip(iris.class_names, probabilities[0].tolist(), strict=True):
        print(f"{name:<11} {p:.3f}")
    return scores, probabilities


flower, label = X_test[4:5], y_test[4:5]  # still a table, of one row
print("lengths:", flower)
print("species:", iris.class_names[label.item()])
scores, probabilities = guess(flower)

# %%
# The probabilities add up to one. **The class with the largest score has the largest
# probability, and it is the model's answer.** Here it is *setosa*, which is wrong: the
# model knows nothing yet. Don't worry about ``grad_fn``: it says that PyTorch remembers
# how the scores were computed, which training will need. ``item()`` turns a tensor of
# one number into a Python number.
#
# Measure how wrong an answer is
# ------------------------------
#
# The :term:`loss` is one number that says how wrong the answer is. For classes we use the
# :term:`cross-entropy`: minus the logarithm of the probability of the *right* class. Why
# a logarithm? Look at three probabilities, and then at our flower:

for p in (1.0, 0.5, 0.01):
    print(f"right class has {p:<4}: loss {0 - torch.log(torch.tensor(p)).item():.2f}")

right = probabilities[0, label.item()]
print(f"our flower, by hand: {-torch.log(right).item():.4f}")
loss_fn = nn.CrossEntropyLoss()
print(f"CrossEntropyLoss:    {loss_fn(scores, label).item():.4f}")

# %%
# The less the model gives to the right class, the larger the loss. Being sure of a wrong
# class costs most. The last two lines agree: ``CrossEntropyLoss`` makes the probabilities
# itself. **Give it the scores, not the probabilities.** For many flowers, the loss is the
# mean.
#
# Change one weight, and go downhill
# ----------------------------------
#
# Training looks for parameters with a small loss. Which way should it change a weight? We
# take one of the last layer's, which goes into the score of *setosa*. We move it a little
# each way, and leave the other 150 numbers as they are. ``torch.no_grad()`` tells PyTorch
# not to remember how these losses are computed.

weights = model[4].weight  # of the last layer, entry 4 of the model: [3, 9]
start = weights[0, 3].item()


def loss_at(value):
    with torch.no_grad():
        weights[0, 3] = value
        return loss_fn(model(X_train), y_train).item()


for value in (start - 0.1, start, start + 0.1):
    print(f"weight {value:.3f}: loss {loss_at(value):.4f}")
slope = (loss_at(start + 0.1) - loss_at(start - 0.1)) / 0.2
print(f"slope: {slope:.2f}")

# %%
# A larger weight makes the loss larger. The slope says how fast: the change of the loss,
# divided by the change of the weight. This is the weight's :term:`gradient`. With one
# call, ``backward()``, PyTorch computes the gradients of all 151 numbers. Is ours the
# same?

loss_at(start)  # put the weight back
loss_fn(model(X_train), y_train).backward()
gradient = weights.grad[0, 3].item()  # backward() put it here
print(f"gradient: {gradient:.2f}")

moved = start - 1.0 * gradient  # against the slope
print(f"weight {start:.3f}: loss {loss_at(start):.4f}")
print(f"weight {moved:.3f}: loss {loss_at(moved):.4f}")

# %%
# It is. Then we took a :term:`step` against it: we subtracted it from the weight, and the
# loss fell. Here is the loss for many more values of this weight. (The folded cell puts
# the weight back at its end.)

# fold: Draw the loss over one weight
import copy

values = [-4 + 0.1 * i for i in range(59)]
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.plot(values, [loss_at(value) for value in values], label="loss")
near = [start - 0.9, start + 0.9]
tangent = [loss_at(start) + gradient * (value - start) for value in near]
ax.plot(near, tangent, "--", label="its slope here: the gradient")
ax.plot(start, loss_at(start), "o", color="C2", markersize=9, label="before the step")
ax.plot(moved, loss_at(moved), "s", color="C3", markersize=8, label="after the step")
ax.set(
    xlabel="the weight (the other 150 numbers stay)",
    ylabel="loss",
    title="A step against the slope leads downhill",
)
ax.legend()
ax.grid(alpha=0.3)
plt.show()
loss_at(start)  # put the weight back
untrained = copy.deepcopy(model)  # for the picture after the training

# %%
# **Training goes downhill: compute every gradient, change every parameter a little
# against its own, and repeat.** The :term:`learning rate` says how far. Ours was 1.0, so
# that you see the step in the picture.
#
# Train it with five calls
# ------------------------
#
# An :term:`optimizer` takes the steps, for all 151 numbers together. Ours, Adam, also
# adapts their length to each number. Here all 120 flowers go through the model at once,
# as one :term:`batch`. So each step is also an :term:`epoch`, a pass over all the data.

optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for epoch in range(1, 101):
    outputs = model(X_train)  # 1. compute the scores of all flowers
    loss = loss_fn(outputs, y_train)  # 2. one number: how wrong are they?
    optimizer.zero_grad()  # 3. forget the gradients of the step before
    loss.backward()  # 4. compute new gradients: the slopes
    optimizer.step()  # 5. change each parameter a little, downhill
    losses.append(loss.item())
    if epoch in (1, 11, 100):
        print(f"epoch {epoch:>3}: loss {loss.item():.4f}")

# %%
# The loss falls. Call 3 is there because call 4 *adds* to the gradients that it finds;
# lesson 4 shows what happens without it.
# **Outputs, loss,** ``zero_grad``, ``backward``, ``step``: **you will see these five
# calls in most training loops.**

# fold: Draw the losses
fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
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
# What does the model answer now? The colours show the answer for every petal, before and
# after training, and the marks are the thirty flowers of the test:

# fold: Draw the answers before and after training
lengths, widths = torch.meshgrid(
    torch.linspace(0.5, 7.2, 200), torch.linspace(0, 2.7, 150), indexing="xy"
)
petals = torch.stack([lengths.flatten(), widths.flatten()], dim=1)
sepals = X_train[:, :2].mean(dim=0).expand(len(petals), 2)  # of mean length and width
fig, axes = plt.subplots(1, 2, figsize=(7, 3.8), sharey=True, layout="constrained")
for ax, one, name in zip(axes, (untrained, model), ("before", "after"), strict=True):
    with torch.no_grad():
        answers = one(torch.cat([sepals, petals], dim=1)).argmax(dim=1)
    colours, limits = ["C0", "C1", "C2"], [-0.5, 0.5, 1.5, 2.5]
    regions = answers.reshape(lengths.shape)
    ax.contourf(lengths, widths, regions, levels=limits, colors=colours, alpha=0.25)
    for number, (species, marker) in enumerate(
        zip(iris.class_names, "os^", strict=True)
    ):
        flowers = X_test[y_test == number]
        ax.scatter(flowers[:, 2], flowers[:, 3], marker=marker, label=species)
    ax.set(xlabel="petal length (cm)", title=f"{name} training")
axes[0].set_ylabel("petal width (cm)")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
fig.suptitle("What the model answers for each petal")
plt.show()

# %%
# Before, nearly every petal was *setosa*. Now each species has its region. The picture
# gives all flowers the same sepals, so a flower may be classified correctly even if it
# appears on the wrong side of a border. Here is our flower again, and then all thirty:

scores, probabilities = guess(flower)

model.eval()
with torch.no_grad():
    outputs = model(X_test)  # [30, 3]
predicted = outputs.argmax(dim=1)  # [30]
print("predicted:", predicted[:10].tolist())
print("label:    ", y_test[:10].tolist())
correct = (predicted == y_test).sum().item()
print(f"{correct} of {len(y_test)} right, accuracy {correct / len(y_test):.1%}")

# %%
# *Virginica* now has by far the largest probability, and that is right. Line by line:
#
# - ``model.eval()`` switches to :term:`evaluation mode`. Layers that you meet in lesson 4
#   need it. ``model.train()`` switches back.
# - ``argmax(dim=1)`` looks along each row for the *position* of the largest score: the
#   label of a class.
# - ``sum`` counts the right ones. Their share is the :term:`accuracy`.
#
# **Evaluate a model on data that it was not trained with.** But don't read 100 % as
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
# ``Sequential`` can only hand numbers from layer to layer. To do anything else in
# between, programs write the model as a Python class: a plan for objects with their own
# values and functions. Here is one without PyTorch:


class Line:
    def __init__(self, weight, bias):  # runs when an object is made
        self.weight = weight  # self is this object
        self.bias = bias

    def forward(self, x):
        return self.weight * x + self.bias


line = Line(2, 1)
print(line.weight, line.forward(10))  # 2 · 10 + 1

# %%
# A network's class adds two things. ``nn.Module`` in brackets: our plan extends PyTorch's
# plan for models, the :term:`module`, which finds our layers and calls ``forward`` when
# you write ``model(x)``. And ``super().__init__()`` runs that plan's own ``__init__``.
# (``torch.relu`` is ``ReLU`` as a function.)


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
# seed, and compare the losses:


def train(model, X, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):  # _ is a usual name for a value that is not needed
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
# It is. **In a class,** ``forward`` **may do anything with** ``x``, not only hand it from
# layer to layer.
#
# .. fold:: Going further: why not call forward yourself?
#
#    It computes the same, but skips the *hooks*: functions that you, or a tool that you
#    use, attach to a model to watch it. No error says so. Call ``model(x)``.
#
# Time a run: warm up, repeat, take the middle
# --------------------------------------------
#
# .. covers:: S3.8
#
# How long do a hundred steps take? A first run often does extra work, and other programs
# disturb some runs. The package's ``measure`` runs the work once to *warm up*, and then
# five times by the clock:

from gpulesson.timing import measure


def one_run():
    train(Net(), X_train, y_train)


timing = measure(one_run, device="cpu", warmup=1, repeats=5)
print("five runs:", [f"{seconds:.3f}" for seconds in timing.times], "seconds")
print(f"the middle one, on this CPU: {timing.median:.3f} seconds")
print("published, on a GTX 1080 Ti: 0.467 seconds")

# %%
# **Believe the middle of several runs.** The last line is not ours, but from a `course
# <https://github.com/qalmaqihir/qalmaqihir.github.io/blob/7c695bea7cfa47a3d4019912a05387f2dd821c6e/docs/bootcampsnotes/pytorchDLbootcamp/05-Using-GPU/00-Using-GPU-and-CUDA.md>`__
# that trained this network on an old GPU: one run, without a warm-up. Don't expect a GPU
# to win here: launching an operation takes longer than the computation itself for 151
# numbers. But the code that moves a model to the GPU is the same for a large network.
#
# Move the model and the data to a GPU
# ------------------------------------
#
# .. covers:: S3.6
#
# On a machine without a :term:`CUDA` :term:`GPU`, this page computes on the
# :term:`practice GPU`: it obeys a GPU's rules, but your CPU does the arithmetic.
#
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
# parameter is on a GPU, and ``next`` takes the first one.

from gpulesson import practice

practice.start()
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
# .. question:: You moved the model but not the features. What does ``model(X_train)`` do?
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
#      Yes, with the message of lesson 2. So this mistake cannot give a wrong result.
#
# How much of the GPU's memory does a loss keep? The folded cell counts it before
# ``backward``, after it, and for the number alone:

# fold: Going further: why the loop keeps loss.item(), and not loss
free = torch.cuda.memory_allocated()
kept = loss_fn(model(X_gpu), y_gpu)
print("a loss, before backward:", torch.cuda.memory_allocated() - free, "bytes")
kept.backward()
print("a loss, after backward: ", torch.cuda.memory_allocated() - free, "bytes")
kept = kept.item()
print("a number:               ", torch.cuda.memory_allocated() - free, "bytes")
# The loss holds on to the results that it was computed from, until backward has used
# them. So it costs most where backward is never called, such as in a test.

# %%
# Compare your run with a published one
# -------------------------------------
#
# .. covers:: S3.9
#
# Our seeds and settings are those of the course above, which also published losses. Its
# widely copied file of the flowers has two
# `wrong rows
# <https://scikit-learn.org/stable/datasets/toy_dataset.html#iris-plants-dataset>`__, and
# only with them do we get its losses. **To reproduce a result you need the same data, and
# the same name does not prove that it is.** Here are both rows in both files, and the
# losses: published, from the copied file, and ours:

# fold: Going further: print the two flowers, and three columns of losses
copied = load_iris(widely_copied=True)
for row in (copied.features != iris.features).any(dim=1).nonzero().flatten().tolist():
    for name, version in (("scikit-learn", iris), ("copied file", copied)):
        print(row, f"{name:<13}", [f"{x:.1f}" for x in version.features[row].tolist()])

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
# The last digits differ, mostly because PyTorch has `changed Adam
# <https://github.com/pytorch/pytorch/pull/22628>`__ since.
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
#    functions on the :term:`practice GPU`, with its own flowers.
#
#    You are done when the check passes, and your two losses are those that the lesson's
#    loop printed for epochs 1 and 11.
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
#      probabilities of them, and the loss is minus the logarithm of the right class's.
#    - A gradient is a slope, and each step goes against it: outputs, loss, ``zero_grad``,
#      ``backward``, ``step``. Then evaluate on flowers that were put aside before.
#    - ``to(device)`` for model, features and labels makes it a GPU program. Warm up and
#      repeat before you believe a time.
#
# **Next:** :doc:`/lessons/04_training_loop` has more data, which goes to the device in
# batches.

"""
3 · A first model on the GPU
============================

Write your first network, train it to tell three species of flowers apart, and move it
to a :term:`GPU`.

.. overview::
   :teaching: 30
   :exercises: 20

   .. objectives::

      - Train a network with a loop of five calls, and evaluate it on flowers that it has
        not seen.
      - Say what a loss and a gradient are, and what one step of training does.
      - Move the model and the data to a GPU.

   .. prereq::

      - The package of this course, installed as :doc:`/setup` says
      - :doc:`/lessons/01_is_there_a_gpu` and :doc:`/lessons/02_tensors_and_devices`
      - In Python: loops and functions
"""

# %%
# See a network learn
# -------------------
#
# Three species of iris look alike, two of them so much that it takes a trained eye to
# tell them apart. Let's train one! It will see only four numbers: the length and width
# of a petal, and those of a *sepal*, a leaf beside the petals.
#
# .. drawing:: iris.svg
#
#    An iris: its petals, and the sepals beside them.
#
# Here is the whole program. It trains a network with 120 flowers, and then asks it to
# name thirty that it has never seen. You'll understand every line by the end. For now,
# just run it.

# fold: First, what it imports
import copy
import math

import torch
from sklearn.model_selection import train_test_split
from torch import nn

from gpulesson.data import load_iris

torch.set_num_threads(1)  # for so few numbers, one core of the CPU is the fastest

# %%

iris = load_iris()
parts = train_test_split(iris.features, iris.targets, test_size=30, random_state=33)
X_train, X_test, y_train, y_test = parts

torch.manual_seed(32)
model = nn.Sequential(
    nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for _ in range(500):
    loss = loss_fn(model(X_train), y_train)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print((model(X_test).argmax(dim=1) == y_test).sum().item(), "of", len(y_test), "right")

# %%
# You have trained a network! The colours show what it answers for each petal, before and
# after training. The marks are the thirty flowers.

# fold: Draw the answers before and after training
import matplotlib.pyplot as plt

torch.manual_seed(32)
untrained = nn.Sequential(
    nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)
)
lengths, widths = torch.meshgrid(
    torch.linspace(0.5, 7.2, 200), torch.linspace(0, 2.7, 150), indexing="xy"
)
petals = torch.stack([lengths.flatten(), widths.flatten()], dim=1)
sepals = X_train[:, :2].mean(dim=0).expand(len(petals), 2)  # of mean length and width
fig, axes = plt.subplots(2, 1, figsize=(4.5, 6), sharex=True, layout="constrained")
for ax, one, name in zip(axes, (untrained, model), ("before", "after"), strict=True):
    with torch.no_grad():
        answers = one(torch.cat([sepals, petals], dim=1)).argmax(dim=1)
    colours, limits = ["C0", "C1", "C2"], [-0.5, 0.5, 1.5, 2.5]
    regions = answers.reshape(lengths.shape)
    ax.contourf(lengths, widths, regions, levels=limits, colors=colours, alpha=0.25)
    for number, marker in enumerate("os^"):
        flowers = X_test[y_test == number]
        species = iris.class_names[number]
        ax.scatter(flowers[:, 2], flowers[:, 3], marker=marker, label=species)
    ax.set(ylabel="petal width (cm)", title=f"{name} training")
# All flowers have the same sepals here, so one near a border may be on its wrong side.
axes[1].set_xlabel("petal length (cm)")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
fig.suptitle("What the network answers for each petal")
plt.show()

# %%
# Before, it gave every flower the same answer. Now each species has its region, and
# nobody told the network where the borders are. (The picture shows two of a flower's four
# numbers. For the others its colours take the mean, so a mark in a wrong colour need not
# be a mistake.) How does that work? Let's take the program apart.
#
# Describe a flower by four numbers
# ---------------------------------
#
# We'll follow one flower through the lesson, the first of the thirty:

flower, label = X_test[0], y_test[0]
print(iris.feature_names)
print(flower)
print(label, "means", iris.class_names[label])

# %%
# The four lengths are the *features*. The species is the *class*. Each class has a
# number, 0, 1 or 2, which is the flower's *label*. Both are :term:`tensors <tensor>`.
# **Features go in, and a label should come out.**
#
# Keep thirty flowers for the test
# --------------------------------
#
# .. covers:: S3.7
#
# A student can learn the answers of the homework by heart, and so can a network. So the
# program put thirty flowers aside for an exam, as :term:`held-out data`. A shuffle chose
# them, with ``random_state`` the same ones each time.

print("train:", X_train.shape, y_train.shape)
print("test: ", X_test.shape, y_test.shape)

# %%
# ``X`` is the usual name for features, and ``y`` for labels. **Each part has both:** for
# each flower a row of four numbers, and one label.
#
# Build a network from layers in a row
# ------------------------------------
#
# The network has three layers. They make eight numbers out of the four lengths, then
# nine, then three: a score for each species. Eight and nine are our choice. (Many texts
# call the four inputs the *input layer*, the eight and the nine numbers *hidden layers*,
# and the scores the *output layer*.)
#
# .. drawing:: network.svg
#
#    Our flower on its way through the trained network. ``N`` is the number of flowers.
#
# ``nn.Linear(4, 8)`` makes eight numbers from four. Each of the eight is a sum: the four
# inputs, each multiplied by a *weight*, plus one more number, the *bias*. Then ``ReLU``
# replaces negative numbers by zero. Without it, three layers could do no more than a
# single one, because sums of sums are sums again.
#
# Let's make an untrained network, in a function, because we'll need another one later:


def make_model():
    torch.manual_seed(32)
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)
    )


model = make_model()
print(sum(parameter.numel() for parameter in model.parameters()), "numbers")

# %%
# They are 4 × 8 weights and 8 biases, then 8 × 9 and 9, then 9 × 3 and 3.
# ``Sequential`` hands the result of each layer to the next. The weights and biases are
# the :term:`parameters <parameter>`. They start as random numbers, the same each time
# because of the :term:`seed`, and training changes them.
#
# Turn scores into probabilities
# ------------------------------
#
# What does the untrained network say about our flower? You call a model like a function.
# It returns three scores, called :term:`logits`. The :term:`softmax` makes probabilities
# of them: it takes *e* to the power of each score, and divides by the sum of all three.


def guess(flower):
    powers = torch.exp(model(flower))  # e, about 2.7, to the power of each score
    return powers / powers.sum()


print("scores:       ", model(flower))
print("probabilities:", guess(flower))

# %%
# The probabilities add up to one. **The class with the largest score is the network's
# answer.** Here it is class 0, *setosa*, but our flower is of class 1. No wonder: the
# network has learned nothing yet. Don't worry about ``grad_fn``: PyTorch notes how it
# computed the numbers, because training will need that.
#
# Measure how wrong an answer is
# ------------------------------
#
# The :term:`loss` is one number that says how wrong an answer is. For classes we use the
# :term:`cross-entropy`: minus the logarithm of the probability of the *right* class. Why
# a logarithm? Look at three probabilities, and then at our flower:

for p in (0.9, 0.5, 0.01):
    print(f"right class has {p}: loss {-math.log(p):.2f}")

right = guess(flower)[label].item()
print(f"our flower, by hand: {-math.log(right):.4f}")
print(f"CrossEntropyLoss:    {loss_fn(model(flower), label).item():.4f}")

# %%
# The less the network gives to the right class, the larger the loss, without a
# limit. Being sure of a wrong class costs most. The last two lines agree: the program's
# ``CrossEntropyLoss`` makes the probabilities itself. **Give it the scores, not the
# probabilities.** For many flowers it returns the mean. ``item()`` turns a tensor of
# one number into a Python number.
#
# Change one weight, and go downhill
# ----------------------------------
#
# Training looks for parameters with a small loss. Which way should it change a weight?
# Let's pick one, and move it a little each way. ``Sequential`` counts its entries from 0,
# with the ReLUs, so the last layer is entry 4. Any of its 27 weights will do; we take the
# one in row 0 and column 3. (A layer keeps its weights turned, as with ``.T`` in lesson
# 2: three rows of nine, a row for each *output*.) We work in a copy of the network, so
# that the network itself stays as it is.

trial = copy.deepcopy(model)  # the same 151 numbers, to play with
weights = trial[4].weight  # 3 rows of 9; a change here leaves model as it is
start = weights[0, 3].item()


def loss_at(value):
    with torch.no_grad():  # without this, PyTorch refuses our change
        weights[0, 3] = value
    return loss_fn(trial(X_train), y_train)


for value in (start - 0.1, start, start + 0.1):
    print(f"weight {value:.3f}: loss {loss_at(value).item():.4f}")
slope = (loss_at(start + 0.1) - loss_at(start - 0.1)) / 0.2
print(f"slope: {slope.item():.2f}")

# %%
# A larger weight makes the loss larger, so this weight should get smaller. The slope is
# the change of the loss, divided by the change of the weight. This is the weight's
# :term:`gradient`. PyTorch computes the gradients of all 151 numbers with one call,
# ``backward()``. Is ours the same?

loss_at(start).backward()
print(f"gradient: {weights.grad[0, 3].item():.2f}")  # backward() put it there

# %%
# It is! Now we can walk downhill. The :term:`learning rate` says how far to go, and the
# rule is: **new weight = weight − learning rate × gradient.** What do you expect: will
# our :term:`steps <step>` get longer, or shorter?

value, walk = start, []
for _ in range(6):  # _ is a usual name for what we don't need
    trial.zero_grad()  # forget the gradients of the step before
    loss = loss_at(value)
    loss.backward()
    gradient = weights.grad[0, 3].item()
    print(f"weight {value:6.3f}: loss {loss.item():.4f}, gradient {gradient:.2f}")
    walk.append((value, loss.item()))
    value = value - 2 * gradient  # the rule, with the learning rate 2

# %%
# Here is the walk as a picture:

# fold: Draw the walk over the loss
values = [-2.6 + 0.05 * i for i in range(63)]
fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
with torch.no_grad():
    ax.plot(values, [loss_at(value) for value in values], color="C0")
for number, (value, loss) in enumerate(walk, start=1):
    ax.plot(value, loss, "o", color="C1", markersize=7)
    place = {"xytext": (-10, 6), "textcoords": "offset points"}
    ax.annotate(str(number), (value, loss), fontsize=11, **place)
ax.set(
    xlabel="the weight (the other 150 numbers stay)",
    ylabel="loss",
    title="Each step goes downhill, and is shorter",
)
ax.grid(alpha=0.3)
plt.show()

# %%
# The steps get shorter, because the slope gets flatter. **Training is this walk, with all
# numbers at once.**
#
# Train it with five calls
# ------------------------
#
# The :term:`optimizer` ``torch.optim.SGD`` applies exactly our rule, to all 151
# numbers. (The name is short for *stochastic gradient descent*: usually, each step
# takes some examples at random.) All move at once and their effects add up, so the
# learning rate must be much smaller. Here is the loop of the program again, as a
# function that keeps the losses. A round in which all 120 flowers go through the
# network is an :term:`epoch`.


def train(model, X, y, lr=0.02, epochs=500):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        outputs = model(X)  # 1. compute the scores of all flowers
        loss = loss_fn(outputs, y)  # 2. one number: how wrong are they?
        optimizer.zero_grad()  # 3. forget the gradients of the step before
        loss.backward()  # 4. compute new gradients: the slopes
        optimizer.step()  # 5. change each number a little, downhill
        losses.append(loss.item())
    return losses


losses = train(model, X_train, y_train)
for epoch in (1, 100, 500):
    print(f"epoch {epoch:>3}: loss {losses[epoch - 1]:.4f}")

# %%

# fold: Draw the losses
fig, ax = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
ax.plot(range(1, 501), losses)
ax.set(xlabel="epoch", ylabel="loss", title="The loss of the training flowers falls")
ax.grid(alpha=0.3)
plt.show()

# %%
# The loss begins where our walk began, but now it falls much further. Call 3 is there
# because call 4 *adds* to the gradients that it finds. **You'll see these five calls in
# nearly every training loop:** outputs, loss, ``zero_grad``, ``backward``, ``step``.
# Lesson 4 uses another optimizer, Adam, which also adapts the steps to each number.
#
# **Now play with it.** You can't break anything. What is the last loss with a learning
# rate of 1? And with 0.0001?
#
# .. play:: learning
#
#    Here the network learns in your browser, from the same random numbers. Press *One
#    call* a few times, and see what each line does. Then press *Run*. Every step uses all
#    120 flowers, so a step is an epoch, and the losses are those above. The marks are the
#    120 flowers, and the colours show the answers for sepals of mean size. Now choose
#    another learning rate. And what happens without call 3? (Google's `Playground
#    <https://playground.tensorflow.org>`__ lets you change the layers as well.)
#
# In a notebook, this line trains a new network:
#
# .. code-block:: python
#
#    print(train(make_model(), X_train, y_train, lr=1)[-1])
#
# .. fold:: What happens?
#
#    With 1, the steps are so long that they jump over the valley, and never come down
#    into it. The network ends with the same answer for every flower. With 0.0001 the
#    steps are so short that all of them together change little. When a loss doesn't
#    fall, try another learning rate first.
#
#    Without ``zero_grad``, each step also uses all the gradients before it. At
#    first the loss falls faster. Then the network cannot stop: it runs through the valley
#    and up the other side.
#
# .. question:: You train the same model again. Which loss comes first?
#
#    - The same as the first time, because the seed was set.
#
#      No. The seed was set when the model was *made*. ``train`` makes no new model.
#
#    - About the last loss of the first time.
#
#      Yes. The model keeps its parameters, so training goes on where it stopped. To start
#      again, make a new model.
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
# What does it say about our flower now, and about all thirty?

print("probabilities:", guess(flower))

model.eval()
with torch.no_grad():
    outputs = model(X_test)  # [30, 3]: three scores for each flower
predicted = outputs.argmax(dim=1)  # [30]
right = (predicted == y_test).sum().item()
print(f"{right} of {len(y_test)} right, accuracy {right / len(y_test):.1%}")

# %%
# Class 1, *versicolor*, now has by far the largest probability, and that is right. Line
# by line:
#
# - ``model.eval()`` switches to :term:`evaluation mode`, which some layers of later
#   lessons need. ``torch.no_grad()`` tells PyTorch to note nothing, which saves work.
# - ``argmax(dim=1)`` finds the *position* of the largest score in each row: the label of
#   a class.
# - ``sum`` counts the right answers. Their share is the :term:`accuracy`.
#
# **Evaluate a model on data that it was not trained with.** But don't trust this accuracy
# too much: there were only thirty flowers.
#
# Move the model and the data to a GPU
# ------------------------------------
#
# .. covers:: S3.6
#
# Three things have to move: the model, the features and the labels. Without a
# :term:`CUDA` GPU, this page uses the :term:`practice GPU` of lesson 2.

from gpulesson import practice

practice.start()
device = torch.device("cuda")
gpu_model = make_model()
print("before:", gpu_model[0].weight.device)
gpu_model = gpu_model.to(device)
print("after: ", gpu_model[0].weight.device)

X_gpu, y_gpu = X_train.to(device), y_train.to(device)
gpu_losses = train(gpu_model, X_gpu, y_gpu, epochs=100)
for name, found in (("CPU", losses), ("GPU", gpu_losses)):
    print(f"{name}: loss {found[0]:.4f} in epoch 1, {found[99]:.4f} in epoch 100")

# %%
# The same losses. **The loop did not change: it computes where its tensors are.** With
# only 151 numbers a GPU is not faster. But the lines that move a model are the same for a
# large one.
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
# Going further: memory, a published run, and a clock
# ---------------------------------------------------
#
# .. covers:: S3.8 S3.9
#
# You can skip all of this, and come back when you are curious.

# fold: Going further: why the loop keeps loss.item(), and not loss
# How much of the GPU's memory does a loss keep? It holds on to the results that it was
# computed from, until backward has used them. So it costs most where backward is never
# called, such as in a test.
free = torch.cuda.memory_allocated()
kept = loss_fn(gpu_model(X_gpu), y_gpu)
print("a loss, before backward:", torch.cuda.memory_allocated() - free, "bytes")
kept.backward()
print("a loss, after backward: ", torch.cuda.memory_allocated() - free, "bytes")
kept = kept.item()
print("a number:               ", torch.cuda.memory_allocated() - free, "bytes")

# %%

# fold: Going further: compare with a published run
# Another course trained this network, with Adam, and published its losses. Its widely
# copied file of the flowers has two wrong rows, and only with them do we get its losses.
# To reproduce a result you need the same data, and a name does not prove that it is.
copied = load_iris(widely_copied=True)
for row in (copied.features != iris.features).any(dim=1).nonzero().flatten().tolist():
    for name, version in (("scikit-learn", iris), ("copied file", copied)):
        print(row, f"{name:<13}", [f"{x:.1f}" for x in version.features[row].tolist()])


def losses_of_adam(data, device="cpu"):
    parts = train_test_split(data.features, data.targets, test_size=30, random_state=33)
    X, y = parts[0].to(device), parts[2].to(device)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        loss = loss_fn(model(X), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[::10]


published = [
    1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
    0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931,
]  # fmt: skip
print("epoch  published  copied_file  scikit_learn")
columns = zip(
    published, losses_of_adam(copied, device), losses_of_adam(iris), strict=True
)
for row, (a, b, c) in enumerate(columns):
    print(f"{10 * row + 1:>5} {a:>10.5f} {b:>12.5f} {c:>13.5f}")
# The last digits differ from the published ones, mostly because PyTorch has changed Adam.

# %%

# fold: Going further: time a hundred steps
# A first run often does extra work, and other programs disturb some runs. So `measure`
# does the work once to warm up, and then five times by the clock. Believe the middle one.
from gpulesson.timing import measure

practice.stop()  # what imitates a GPU slows the CPU down


def one_run():
    train(make_model(), X_train, y_train, epochs=100)


timing = measure(one_run, device="cpu", warmup=1, repeats=5)
print("five runs:", [f"{seconds:.3f}" for seconds in timing.times], "seconds")
print(f"the middle one, on this CPU: {timing.median:.3f} seconds")
print("published, on a GTX 1080 Ti: 0.467 seconds")
# The last is one run of the other course, with Adam, without a warm-up, on an old GPU. A
# GPU takes longer to launch an operation than to compute it with so few numbers.

# %%
# .. fold:: Where the published numbers come from
#
#    The time and the losses are those of a `course
#    <https://github.com/qalmaqihir/qalmaqihir.github.io/blob/7c695bea7cfa47a3d4019912a05387f2dd821c6e/docs/bootcampsnotes/pytorchDLbootcamp/05-Using-GPU/00-Using-GPU-and-CUDA.md>`__,
#    whose seeds and network this lesson has. The manual of scikit-learn tells of the
#    `wrong rows
#    <https://scikit-learn.org/stable/datasets/toy_dataset.html#iris-plants-dataset>`__,
#    and PyTorch's repository of the `change of Adam
#    <https://github.com/pytorch/pytorch/pull/22628>`__.
#
# Exercise
# --------
#
# .. exercise:: Train and test on a device
#    :minutes: 20
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
#       epoch and after five hundred.
#
#    To check it: ``python -m gpulesson check exercise_03.py``. The check calls your
#    functions on the :term:`practice GPU`, with its own flowers.
#
#    You are done when the check passes, and your two losses are those that the lesson
#    printed for epochs 1 and 100.
#
# .. solution::
#    :file: solution_03.py
#
#    Five things move: the model, and the features and labels of both parts. A model
#    moves as it is. Of a tensor, ``to`` returns a copy, so each is assigned again.
#
# .. keypoints::
#
#    - A training loop makes five calls: outputs, loss, ``zero_grad``, ``backward``,
#      ``step``. Evaluate the model on flowers that were put aside before.
#    - Softmax makes probabilities of scores, and the loss is minus the logarithm of the
#      right class's. A gradient is a slope: new weight = weight − learning rate ×
#      gradient.
#    - ``to(device)`` for model, features and labels makes it a GPU program.
#
# **Next:** :doc:`/lessons/04_training_loop` has more data, and takes a part of it to the
# device in each step.

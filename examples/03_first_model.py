"""
3 · A first model on the GPU
============================

Write your first network, train it to tell three species of flowers apart, and find out
whether it is any good.

.. overview::
   :teaching: 30
   :exercises: 15

   .. questions::

      - What does a whole training program look like, from the data to the accuracy?
      - How do I know whether the model is any good?
      - What must change to run it on a GPU?

   .. objectives::

      - Say what features, labels and classes are, and keep a part of the data for the
        test.
      - Write a model as a Python class, and name the shape of the data at each line.
      - Train it with a loop of five calls, and compare its losses with published ones.
      - Evaluate it on flowers that it has not seen.
      - Move the model and the data to a GPU, and check that they arrived.
      - Call the model itself, and keep losses without their history.
      - Time a run so that the number means something.

.. prereq::

   - :doc:`Lesson 1 </lessons/01_is_there_a_gpu>`: how a program chooses where it
     computes.
   - :doc:`Lesson 2 </lessons/02_tensors_and_devices>`: what ``to`` copies, and what it
     moves.
"""

# %%
# This network is small enough to train in a moment on any computer, and short enough to
# read every line of it. You will look at the data, write the model, train it, evaluate
# it, and run it on a :term:`GPU`. Until that last part, everything stays on the CPU.
#
# A course for beginners once published a notebook with the same network, which printed
# its results to eight decimals (`a public copy of it
# <https://github.com/qalmaqihir/qalmaqihir.github.io/blob/7c695bea7cfa47a3d4019912a05387f2dd821c6e/docs/bootcampsnotes/pytorchDLbootcamp/05-Using-GPU/00-Using-GPU-and-CUDA.md>`__).
# We use the same settings, so you can put our results beside the published ones.
#
# Describe a flower by four numbers
# ---------------------------------
#
# The data set is called *iris*. It holds 150 flowers of three species. Of each flower,
# four lengths were measured, in centimetres. The task is this: given the four lengths
# of a flower, name its species.

import matplotlib.pyplot as plt
import torch
from sklearn.model_selection import train_test_split
from torch import nn

from gpulesson.data import load_iris

iris = load_iris(widely_copied=True)
print(iris.features.shape)
print(iris.targets.shape)

# %%
# Both are :term:`tensors <tensor>`. The :term:`shape` of the first says 150 rows of
# four numbers: a row for each flower. The second has one number for each flower.
# (``widely_copied=True`` picks the copy that the published notebook used; an aside near
# the end explains it.)
#
# Here are five of the 150 rows:

# fold: Print five rows as a table

names = [name.removesuffix(" (cm)") for name in iris.feature_names]
print(" row " + "".join(f"{name:>15}" for name in names) + "    label  species")
for row in (0, 1, 50, 51, 100):
    lengths = "".join(f"{length:>12.1f} cm" for length in iris.features[row].tolist())
    label = int(iris.targets[row])
    print(f"{row:>4} {lengths}    {label:>5}  {iris.class_names[label]}")

# %%
# The four lengths are the *features*. They are what the model gets to see. The species
# is the *class*. It is what the model has to name. A network computes with numbers, so
# each class has a number: 0, 1 or 2. The number that belongs to a flower is its
# *label*. **A row of features goes in, and one of the labels should come out.**
#
# Is this an easy task? We draw two of the four features, for all 150 flowers:

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
# *Setosa* is easy: its petals are small. The other two species overlap a little. Where
# they do, the length and the width of a petal are not enough to name the species. The
# model gets all four features, so it may do better than your eyes on this picture.
#
# Keep thirty flowers for the test
# --------------------------------
#
# .. covers:: S3.7
#
# If an exam repeats the questions of the homework, a student can pass it by learning
# the answers by heart. So a fair exam has new questions. Networks can learn by heart,
# too. So before we train, we put a fifth of the flowers aside. They are called
# :term:`held-out data`, and they are our exam.
#
# The function ``train_test_split`` of scikit-learn shuffles the rows and cuts them in
# two. It works with NumPy arrays, so we hand it arrays, and make tensors of what comes
# back. With ``random_state=33``, as in the published notebook, the cut is the same each
# time.

X, y = iris.features.numpy(), iris.targets.numpy()
parts = train_test_split(X, y, test_size=0.2, random_state=33)
X_train, X_test, y_train, y_test = (torch.tensor(part) for part in parts)

print("X_train:", tuple(X_train.shape), X_train.dtype, X_train.type())
print("X_test: ", tuple(X_test.shape), X_test.dtype, X_test.type())
print("y_train:", tuple(y_train.shape), y_train.dtype, y_train.type())
print("y_test: ", tuple(y_test.shape), y_test.dtype, y_test.type())

# %%
# ``X`` is the usual name for features, and ``y`` for labels. There are 120 flowers to
# train with and 30 for the test, and **both parts have their features and their
# labels**.
#
# The features have the :term:`dtype` ``float32``: numbers with a decimal point, in 32
# bits. The labels are ``int64``: whole numbers in 64 bits. The last column shows their
# older names, as in lesson 2. Older code says ``torch.FloatTensor(X_train)``.
#
# (The published notebook also makes two :term:`data loaders <data loader>`, which hand
# out data in portions, here of up to 60. They hold no labels, and nothing ever reads
# from them, so we leave them out.)
#
# Write the model as a Python class
# ---------------------------------
#
# Our network has three layers. The first makes eight numbers out of the four lengths of
# a flower. The second makes nine out of the eight, and the last makes three out of the
# nine: a score for each class. (Eight and nine are a choice; others would do.) The
# drawing sketches the way of the first flower of the table through the network. Its
# brackets hold the shapes for ``N`` flowers.
#
# .. drawing:: network.svg
#
#    The strong lines show how one number of each row is made: all the numbers above it,
#    each multiplied by a weight, are added up, and a bias is added.
#
# In PyTorch a model is a :term:`module`, which you write as a Python class that
# inherits from ``nn.Module``. (Python's word ``class`` is not the class of a flower.)
# It has two parts: ``__init__`` makes the layers, and ``forward`` says what happens to
# the input. The comments give the shape after each line, as in the drawing.


class Net(nn.Module):
    def __init__(self):
        super().__init__()  # first, nn.Module prepares itself
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 9)
        self.last = nn.Linear(9, 3)

    def forward(self, x):  # x: [N, 4], four lengths a flower
        x = torch.relu(self.first(x))  # [N, 8]
        x = torch.relu(self.second(x))  # [N, 9]
        return self.last(x)  # [N, 3], one score a class


# %%
# ``nn.Linear(4, 8)`` computes eight numbers from four. Each of the eight is a sum: the
# four inputs, each multiplied by a *weight*, plus one more number, the *bias*. Then
# ``relu`` replaces negative numbers by zero. Without it, the three layers together
# could do no more than one, because weighted sums of weighted sums are weighted sums
# again.
#
# The weights and biases are the :term:`parameters <parameter>`. They start as random
# numbers, and training will change them. The :term:`seed` makes the random numbers the
# same each time. We put five flowers in: you call the model like a function, and
# PyTorch calls its ``forward``. Which shape will come out?

torch.manual_seed(32)
model = Net()

outputs = model(X_train[:5])
print(outputs.shape)
print(outputs)

# %%
# Five rows of three numbers: a score for each class. Such scores are called
# :term:`logits`. The class with the largest score is the model's answer: here it is
# class 0 for all five. The model is not trained yet, so its answers are worth nothing.
# (``grad_fn`` in the output says that PyTorch remembers how the scores were computed.
# Training will need this.) **A model turns N rows of features into N rows of scores.**
#
# How many numbers will training have to change? We ask each parameter for its shape:

for name, parameter in model.named_parameters():
    print(f"{name:<14} {tuple(parameter.shape)}")

print(sum(parameter.numel() for parameter in model.parameters()), "numbers in all")

# %%
# Each weight has a row for each number that comes out and a column for each number that
# goes in. Each bias has one number for each that comes out. So the first layer has
# 8 × 4 + 8 numbers, and the last line has the sum over all layers.
#
# Networks of this form are called *multi-layer perceptrons*. The course needs them in
# many sizes, so the same is kept in the package, as ``MLP``. We compare the two, with
# the same seed:

from gpulesson.models import MLP

torch.manual_seed(32)
same = MLP(4, 8, 9, 3)
print("the same outputs:", torch.equal(model(X_train), same(X_train)))

# %%
# The same seed and the same layers, so the same outputs. From here on,
# ``MLP(4, 8, 9, 3)`` means the class above.
#
# Choose a loss and an optimizer
# ------------------------------
#
# Training needs two more things. The :term:`loss` is one number that says how wrong the
# outputs are; for classes we use the :term:`cross-entropy`, which is small when the
# right class has by far the largest score. The :term:`optimizer` changes the parameters
# so that the loss gets smaller; we use the one called Adam, and its
# :term:`learning rate`, ``lr``, says how far it goes each time.
#
# How large is the loss before training? We compare our model with one that gives the
# three classes the same score, whatever the flower:

loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

no_idea = torch.zeros(120, 3)
print(f"three equal scores: {loss_fn(no_idea, y_train).item():.4f}")
print(f"untrained model:    {loss_fn(model(X_train), y_train).item():.4f}")

# %%
# The first line is what a model gets that has no idea. It gives each class one third,
# and the loss is minus the natural logarithm of the right class's share: −ln(1/3),
# which is ln 3. Our model is no better, as you would expect before training. **A loss
# near the logarithm of the number of classes means: nothing learned yet.** (``item``
# turns a tensor that holds one number into a Python number.)
#
# Train it in one hundred steps
# -----------------------------
#
# Now we train. All 120 flowers go through the model at once, as one :term:`batch`. One
# round of the loop is called a :term:`step`. Here each step sees all the data, so it is
# also an :term:`epoch`, one pass over the data. Each step makes five calls:

losses = []
for _ in range(100):
    outputs = model(X_train)  # 1. compute the scores of all flowers
    loss = loss_fn(outputs, y_train)  # 2. one number: how wrong are they?
    optimizer.zero_grad()  # 3. forget the gradients of the step before
    loss.backward()  # 4. compute new gradients
    optimizer.step()  # 5. change every parameter a little
    losses.append(loss.detach())  # keep the number; more on this below

ours = torch.stack(losses).tolist()  # as 100 Python numbers

# %%
# A :term:`gradient` says, for each number of a parameter, how the loss would change if
# that number grew a little. Call 4 computes the gradients, and call 5 uses them: it
# changes each number so that the loss should get smaller. Call 3 comes before them
# because call 4 *adds* to the gradients that are there. (An underscore is the usual
# name for a value that is not needed.) **Outputs, loss,** ``zero_grad``, ``backward``,
# ``step``: **these five calls are in every training loop.**
#
# Did the loss get smaller? The published notebook printed its loss in every tenth
# epoch. We put ours beside it:

# fold: The published losses, and a function that prints columns of losses

published = [
    1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
    0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931,
]  # fmt: skip


def print_losses(**columns):
    """Print columns of ten losses each, those of the epochs 1, 11, 21, …, 91."""
    print("epoch" + "".join(f"{name:>13}" for name in columns))
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        print(f"{10 * row + 1:>5}" + "".join(f"{value:>13.8f}" for value in values))


difference = [abs(a - b) for a, b in zip(published, ours[::10], strict=True)]
print_losses(published=published, ours=ours[::10], difference=difference)

# %%
# The loss falls from row to row. Now compare the two columns. In epoch 1 no parameter
# has been changed yet, so the first loss depends only on the data, the cut, the model
# and the seed. If it agrees, we have all four right. In the later rows the difference
# stays below 0.0001. Most of it comes from Adam, whose formula PyTorch has `changed a
# little since <https://github.com/pytorch/pytorch/pull/22628>`__.
#
# The same as a picture, with all our losses:

# fold: Draw the losses

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.plot(range(1, 101), ours, label="our run")
ax.plot(range(1, 101, 10), published, "o", mfc="none", label="published")
ax.set(
    xlabel="epoch",
    ylabel="loss (cross-entropy)",
    title="The loss falls, and our run follows the published one",
)
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# .. question:: You run the cell with the loop a second time. Which loss comes first?
#
#    - The same as in the table, because the seed was set.
#
#      No. The seed was set before the model was *made*. The loop makes no new model, and
#      it draws no random numbers.
#
#    - About the last loss of the first run.
#
#      Yes. The model keeps its parameters, so training goes on where it stopped. To start
#      again, make the model and its optimizer again.
#
#    - A large one, because the new loop starts with an empty list.
#
#      No. The list only collects numbers for us. What the model has learned is in its
#      parameters, and the loop does not touch those at its start.
#
# .. instructor-note::
#
#    Learners with a notebook easily run the cell with the loop twice, and then their
#    losses no longer match the table. Let them answer the question above before they
#    type. To start again, they run three cells in order: the one that makes the model,
#    the one that makes the optimizer, and the loop.
#
# Evaluate it on flowers that it has not seen
# -------------------------------------------
#
# The loss got small, but on the flowers that the model was trained with. The published
# notebook stops here; its thirty test flowers are never used. Now comes the exam. What
# share of the thirty flowers will get the right name?

model.eval()
with torch.no_grad():
    outputs = model(X_test)  # [30, 3]
predicted = outputs.argmax(dim=1)  # [30]

print("predicted:", predicted[:10].tolist())
print("label:    ", y_test[:10].tolist())
correct = (predicted == y_test).sum().item()
print(f"accuracy {correct / len(y_test):.1%}: {correct} of {len(y_test)} flowers")

# %%
# Line by line:
#
# - ``model.eval()`` switches to :term:`evaluation mode`. Some layers, which you will meet
#   later, behave differently while training. Our model has none of them. Make the call
#   a habit; ``model.train()`` switches back.
# - ``with torch.no_grad()`` tells PyTorch not to remember how the outputs are computed.
#   We will not call ``backward`` on them, so this saves time and memory.
# - ``argmax(dim=1)`` looks along each row of scores and returns the *position* of the
#   largest: 0, 1 or 2, which is the label of a class. The first ten are printed, above
#   the true labels.
# - ``predicted == y_test`` is true where the two agree, ``sum`` counts, and the share of
#   right answers is the :term:`accuracy`.
#
# **Evaluate a model on data that it was not trained with.** And if you see 100 %, do
# not read it as *never wrong*: with only thirty flowers, a single mistake already costs
# more than three points.
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
# Run it on a GPU: move the model and the data
# --------------------------------------------
#
# .. covers:: S3.6
#
# To train again, on a GPU, we keep the loop from above in a function, which makes an
# optimizer for the model that it gets.


def train(model, inputs, targets):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


# %%
# As in lesson 2, a machine without a :term:`CUDA` GPU uses the :term:`practice GPU` in
# this section, so the code is the same everywhere. The published notebook asks the first
# parameter ``is_cuda``, before the model is moved and after:

from gpulesson import practice

practice.start()
print(torch.cuda.get_device_name())

model = MLP(4, 8, 9, 3)
print("before:", next(model.parameters()).is_cuda)
gpumodel = model.cuda()
print("after: ", next(model.parameters()).is_cuda)
print("gpumodel is model:", gpumodel is model)

# %%
# ``False``, then ``True``: the model has moved. ``gpumodel`` is the published
# notebook's name. It sounds like a second model, but the last line shows that there is
# one. As in lesson 2, a model is moved.
#
# We write ``to(device)`` instead of ``cuda()``, because it works with every
# :term:`device`. (In a program of your own, choose the device as in lesson 1, with
# ``device = choose_device()``.) Before you look at the cell: which things have to move?

device = torch.device("cuda")

torch.manual_seed(32)
model = MLP(4, 8, 9, 3).to(device)  # the model,
gpu_X = X_train.to(device)  # the features,
gpu_y = y_train.to(device)  # and the labels

print(X_train.type(), "became", gpu_X.type())
gpu_losses = train(model, gpu_X, gpu_y)

# %%
# Three things move: the model, the features and the labels. **The loop did not
# change.** It computes where its tensors are. (``train`` made the optimizer after the
# model had moved. Keep this order; lesson 4 shows when it matters.) The printed types
# show how the old names differ on a GPU: ``torch.cuda.`` comes first.
#
# Does the GPU compute the same? We print its losses beside the others:

print_losses(published=published, CPU=ours[::10], GPU=gpu_losses[::10])

# %%
# On the practice GPU the last two columns are equal, because in truth your CPU did the
# work. A real GPU adds up long sums in another order, so expect other digits
# at the end.
#
# For the test on the GPU, the model is there already, and the test flowers must follow.
# ``devices_of``, from the package, tells where all parameters are:

from gpulesson.device import devices_of

print("parameters on", *devices_of(model))
model.eval()
with torch.inference_mode():
    predicted = model(X_test.to(device)).argmax(dim=1)
correct = (predicted == y_test.to(device)).sum().item()
print(f"{correct} of {len(y_test)} right, computed on {predicted.device}")

# %%
# ``torch.inference_mode()`` does what ``no_grad`` does, and is stricter: training
# refuses most uses of what is computed inside. For an evaluation both are right.
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
#      Yes. That is good news: you cannot get a wrong result from this mistake. The next
#      cell shows the message.

try:
    model(X_train)
except RuntimeError as error:
    print(error)

# %%
# The message says which input of which operation is on which device. (``addmm`` is a
# matrix product and an addition, the work of a ``Linear``.)
#
# Improve three habits of the published loop
# ------------------------------------------
#
# .. covers:: S3.8
#
# Our loop does the same as the published one, and in three places we wrote it
# differently. You will see the older way in many programs, so it is good to know why.
#
# Call the model, not its forward
# ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#
# The published loop says ``model.forward(X_train)``. We say ``model(X_train)``. PyTorch
# then calls ``forward`` for us, and it also calls the *hooks*. A hook is a function that
# you, or a tool that you use, attach to a model to watch it. This one counts:

calls = []


def count(module, inputs, outputs):  # called by PyTorch
    calls.append("called")


hook = model.register_forward_hook(count)
model(gpu_X)
print("after model(x):        ", len(calls))
model.forward(gpu_X)
print("after model.forward(x):", len(calls))
hook.remove()

# %%
# The count is 1 after the first call, and it is still 1 after the second. **With**
# ``model.forward(x)`` **the hooks are skipped, and no error says so.**
#
# Keep the number, not its history
# ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#
# The published loop says ``losses.append(loss)``. We say ``loss.detach()``. A loss is
# more than a number: it holds on to what it was computed from, the :term:`autograd
# graph`, so that ``backward`` can walk through it. How much of the GPU's memory does
# one loss hold?

before = torch.cuda.memory_allocated()
kept = loss_fn(model(gpu_X), gpu_y)
print("a new loss:    ", torch.cuda.memory_allocated() - before, "bytes")

kept.backward()
print("after backward:", torch.cuda.memory_allocated() - before, "bytes")

# %%
# A new loss holds the results on the way to it that ``backward`` needs and then frees.
# So in the published loop each kept loss takes one block of memory. On test data,
# without ``no_grad``, each goes on holding all of it. And in both cases the losses
# cannot be drawn, because a plot needs NumPy's numbers:

try:
    kept.cpu().numpy()
except RuntimeError as error:
    print(error)

kept = loss_fn(model(gpu_X), gpu_y).detach()
print("detached:      ", torch.cuda.memory_allocated() - before, "bytes")
print("for a plot:    ", kept.cpu().numpy())

# %%
# Here *requires grad* means that the tensor has such a history, and the message names
# the method that cuts it off. With ``detach`` the memory is small from the start.
# **Keep** ``loss.detach()``, **not** ``loss``.
#
# Warm up, wait and repeat before you believe a time
# ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#
# The published loop reads the clock before the loop and after it. Two things can go
# wrong. First, the first call of a function often does extra work that later calls need
# not repeat. An example: Python loads library code when it is first needed. We count
# the pieces that it loads for a program's first optimizer, and for its second:

# fold: Count what is loaded for an optimizer, in a Python that has just started

import subprocess
import sys

program = """
import sys, torch
for which in ("first", "second"):
    before = len(sys.modules)
    torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
    print(f"{which} optimizer: {len(sys.modules) - before} pieces of code loaded")
"""
done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=True
)
print(done.stdout, end="")

# %%
# So a first run says little about the next ones, also on a CPU. The remedy is to run
# the work once before the clock starts, to *warm up*.
#
# Second, Python does not wait for a GPU. It asks for work and goes on, so the clock may
# be read before the work is done. The remedy is to :term:`synchronise`, which means to
# wait.
#
# The package's ``measure`` does all this. Called as below, it runs the work once to
# warm up and then five times by the clock, and waits for the device each time. You see
# the middle one of the five times and, in brackets, the range of the middle half. The
# practice GPU says nothing about speed, so it is switched off now. From here on
# ``device`` is the best that this machine has:

from gpulesson.device import choose_device
from gpulesson.timing import measure

practice.stop()
device = choose_device()
inputs, targets = X_train.to(device), y_train.to(device)


def one_run():
    torch.manual_seed(32)
    train(MLP(4, 8, 9, 3).to(device), inputs, targets)


print(measure(one_run, device=device, warmup=1, repeats=5))

# %%
# The published time is 0.467 seconds, on a GPU of the type GeForce GTX 1080 Ti. Do not
# take it for a race: it is another machine, another version of PyTorch, and another way
# to measure. (CPU threads are the cores that PyTorch may use.)
#
# Do not expect a GPU to be faster here. The largest product in this network, 120 rows
# of eight numbers by a weight of 72, takes fewer than ten thousand multiplications.
# That is less than at the left end of the picture in :doc:`lesson 1
# </lessons/01_is_there_a_gpu>`, where starting a product takes longer than computing
# it. **A first model is too small to say anything about GPUs.**
#
# Aside: two versions of one famous data set
# ------------------------------------------
#
# .. covers:: S3.9
#
# You can skip this section. It tells why we loaded the data with
# ``widely_copied=True``. Scikit-learn has the data as Fisher published it in 1936, and
# its `documentation
# <https://scikit-learn.org/stable/datasets/toy_dataset.html#iris-plants-dataset>`__
# says that the copy in the UCI repository, a collection of data sets, has two wrong
# rows. Many courses use that copy. These are the two rows:

# fold: Print the rows in which the two versions differ

original = load_iris()
differ = (original.features != iris.features).any(dim=1)
for row in differ.nonzero().flatten().tolist():
    for version, flowers in (("scikit-learn", original), ("copied file", iris)):
        print(
            row, f"{version:<13}", [round(x, 1) for x in flowers.features[row].tolist()]
        )

# %%
# Three numbers of six hundred are different. We train once more, with the rows as
# scikit-learn has them, and print both beside the published losses:

# fold: Train with scikit-learn's version, and print three columns of losses

features, targets = original.features.numpy(), original.targets.numpy()
parts = train_test_split(features, targets, test_size=0.2, random_state=33)
other_X, _, other_y, _ = (torch.tensor(part) for part in parts)

torch.manual_seed(32)
others = train(MLP(4, 8, 9, 3), other_X, other_y)
print_losses(published=published, copied_file=ours[::10], scikit_learn=others[::10])

# %%
# With the copied file the first loss is the published one. With scikit-learn's version
# it differs in the fifth decimal, before a single step of training, and in all later
# rows the two are further apart. **To reproduce a result, you need the same data, and
# the same name does not prove that it is.**
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
#    on a device that uses both.
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
#    You are done when the check passes, and your two losses are those of this page.
#
# .. solution::
#    :file: solution_03.py
#
#    Five things move: the model, and the features and labels of both parts. A model
#    moves as it is. Of a tensor, ``to`` returns a copy, so each is assigned again.
#
# .. keypoints::
#
#    - Features go in, and the label of a class comes out. Put test data aside before you
#      train; both parts need features and labels.
#    - A model is a class that inherits from ``nn.Module``: ``__init__`` makes the
#      layers, and ``forward`` turns ``[N, 4]`` into ``[N, 3]``.
#    - Outputs, loss, ``zero_grad``, ``backward``, ``step``. With the same data, cut,
#      model and seed, the first loss agrees with a published one.
#    - ``eval()``, ``no_grad()``, ``argmax(dim=1)``: then count the right answers on data
#      that was kept back.
#    - ``model.to(device)`` and ``.to(device)`` for features and labels make it a GPU
#      program. ``devices_of`` shows that they arrived; the loop does not change.
#    - Write ``model(x)``, because ``model.forward(x)`` skips the hooks, and keep
#      ``loss.detach()``, because ``loss`` holds on to what it was computed from.
#    - Warm up, synchronise and repeat before you believe a time.
#
# **Next:** :doc:`/lessons/04_training_loop` feeds a model batch by batch, and takes the
# loop apart.

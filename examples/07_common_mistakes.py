"""
The common mistakes
===================

Make each mistake on purpose, read its message word by word, and mend it.

.. overview::
   :teaching: 25
   :exercises: 20

   .. questions::

      - PyTorch says that my tensors are on different devices. Which ones, and in
        which line?
      - Which mistakes give no error at all?

   .. objectives::

      - Recognise the messages of tensors left behind: inputs, labels, model, loss
        weights.
      - Mend tensors that are made in the wrong place.
      - Bring results back to the CPU for NumPy and for printing.
      - Replace a hard-coded ``cuda`` by code that runs everywhere.
      - Find the mistakes that stay silent, and show what they cost.
"""

# %%
# Every error here is real: the cell runs, fails and prints what it was told. Without a
# GPU in the machine the messages come from the practice GPU, which takes CUDA's
# wording. A small helper catches them, so that the page can go on:

import contextlib

import matplotlib.pyplot as plt
import torch
from torch import nn

from gpulesson import practice
from gpulesson.device import choose_device, devices_of, to_device
from gpulesson.models import MLP
from gpulesson.timing import measure, synchronize

# for networks this small, more threads only wait for each other
threads = torch.get_num_threads()
torch.set_num_threads(1)
practice.start()
device = torch.device("cuda")
print(torch.cuda.get_device_name(), "· PyTorch", torch.__version__)


@contextlib.contextmanager
def attempt(what):
    """Run the block; print the error's type and text, or that there was none."""
    try:
        yield
    except Exception as error:
        print(f"{what}: {type(error).__name__}\n   {error}")
    else:
        print(f"{what}: no error")


torch.manual_seed(0)
inputs, labels = (
    torch.randn(64, 20),
    torch.randint(3, (64,)),
)  # a batch, as a loader gives it: on the CPU
loss_fn = nn.CrossEntropyLoss()

# %%
# .. _left-behind:
#
# Somebody was left behind
# ------------------------
#
# .. covers:: S1.8 S1.12
#
# Three things must be on the device: model, inputs, labels. Each of them is forgotten
# in turn, and the message names the first operation that met two devices, the
# argument, and where that argument is.

model = MLP(20, 32, 3).to(device)
with attempt("the inputs were forgotten"):
    loss_fn(model(inputs), labels.to(device))

# %%
# Read the end first. ``addmm`` is the matrix product inside ``nn.Linear``: it happened
# in the *forward pass*. There, weights are on the GPU, and the argument ``mat1``, which
# is the batch, is on the CPU. So the inputs did not travel.

cpu_model = MLP(20, 32, 3)
with attempt("the model was forgotten"):
    loss_fn(cpu_model(inputs.to(device)), labels.to(device))

# %%
# Nearly the same words, the other way round. Which argument is named, and on which
# device, tells the two apart.

with attempt("the labels were forgotten"):
    loss_fn(model(inputs.to(device)), labels)

# %%
# The forward pass went well this time. ``nll_loss`` is the second half of the
# cross-entropy, and its ``target`` is on the CPU. **The name of the operation tells you
# which line of your loop to look at.** One mend for all three:

batch = to_device((inputs, labels), device)
with attempt("model and batch together"):
    loss = loss_fn(model(batch[0]), batch[1])
print(
    "model on", devices_of(model), "batch on", devices_of(batch), "loss on", loss.device
)

# %%
# .. _predictions-and-labels:
#
# The accuracy is the next place. Predictions come from the GPU, and the labels straight
# from the loader:

predictions = model(batch[0]).argmax(dim=1)
with attempt("predictions against labels"):
    (predictions == labels).sum()

with attempt("both on the device"):
    print("right:", (predictions == batch[1]).sum().item(), "of", len(labels))

# %%
# .. _single-numbers:
#
# There is an exception that makes this confusing. A tensor without dimensions, a single
# number, may come from the CPU. The same code then works with a scalar and fails with a
# vector of length one:

with attempt("times tensor(0.5)"):
    model(batch[0]) * torch.tensor(0.5)
with attempt("times tensor([0.5])"):
    model(batch[0]) * torch.tensor([0.5])

# %%
# .. _loss-weights:
#
# A loss can hold tensors
# -----------------------
#
# .. covers:: S4.5
#
# Most losses have no state, so nobody moves them. With class weights a loss has a
# tensor of its own, and is a module like any other:

weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
with attempt("class weights on the CPU"):
    weighted(model(batch[0]), batch[1])

positive = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
with attempt("pos_weight on the CPU"):
    positive(model(batch[0])[:, :1], torch.ones(64, 1, device=device))

print(
    "buffers of the loss:",
    {name: str(t.device) for name, t in weighted.named_buffers()},
)

# %%
# ``weight`` and ``pos_weight`` are buffers. So the loss moves as a model does:

with attempt("after .to(device)"):
    weighted.to(device)(model(batch[0]), batch[1])
    positive.to(device)(model(batch[0])[:, :1], torch.ones(64, 1, device=device))

# %%
# .. _made-in-forward:
#
# A tensor is born in the wrong place
# -----------------------------------
#
# ``torch.zeros``, ``torch.randn``, ``torch.arange`` make tensors on the CPU. Inside
# ``forward`` that goes unnoticed until the model meets a GPU. And a tensor that is a
# plain attribute is invisible to ``to``:


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 3)
        self.scale = torch.full((20,), 2.0)  # neither a parameter nor a buffer

    def forward(self, x):
        return self.linear(x * self.scale + torch.randn(x.shape))  # born on the CPU


with attempt("a plain attribute"):
    Noisy().to(device)(batch[0])


class Mended(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 3)
        self.register_buffer(
            "scale", torch.full((20,), 2.0)
        )  # moves, and is saved, with the model

    def forward(self, x):
        return self.linear(x * self.scale + torch.randn_like(x))  # born where x is


with attempt("a buffer, and randn_like"):
    print(Mended().to(device)(batch[0]).device)

# %%
# The first class has *two* such mistakes, and the message shows the first only. Mend
# it, and you get the next one. Two rules: register constants as buffers, and make new
# tensors beside one that is already right, with ``randn_like(x)`` or
# ``device=x.device``.
#
# .. _numpy:
#
# NumPy cannot see the GPU
# ------------------------

with attempt("numpy() of a GPU tensor"):
    predictions.numpy()

# %%
# The message contains the remedy, ``.cpu()``. If the tensor carries gradients, there is
# a second condition, with a message of its own:

with attempt("numpy() with gradients"):
    model(batch[0]).cpu().numpy()
with attempt("detach, then cpu, then numpy"):
    print(model(batch[0]).detach().cpu().numpy().shape)

# %%
# Each of these waits for the GPU. Do it where a result is shown, once an epoch, and
# not in every step.
#
# .. _cuda-everywhere:
#
# cuda() everywhere
# -----------------
#
# .. covers:: S2.4
#
# Older code says ``model.cuda()`` and ``x.cuda()``. These calls are not deprecated, and
# not wrong; they only know one kind of device. We switch the practice GPU off, and ask
# this machine itself:

practice.stop()

with attempt("model.cuda() on this machine"):
    MLP(20, 32, 3).cuda()
with attempt("model.to(choose_device())"):
    print(devices_of(MLP(20, 32, 3).to(choose_device())))

# %%
# Where there is a CUDA GPU both lines work. Without one, the first ends in the error
# above, and the second runs on what there is. Write ``to(device)``, and choose the
# device in one place.
#
# Mistakes without an error
# -------------------------
#
# The dangerous ones. First, **a forgotten** ``eval()``. The model below has dropout,
# and in training mode each answer is drawn anew:

device = choose_device()
torch.manual_seed(0)
centres = 3 * torch.randn(3, 20)
labels = torch.randint(3, (900,))
points = (centres[labels] + 3 * torch.randn(900, 20)).to(device)
labels = labels.to(device)

model = nn.Sequential(
    nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.8), nn.Linear(64, 3)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    loss = loss_fn(model(points[:600]), labels[:600])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def accuracy():
    with torch.inference_mode():
        return (model(points[600:]).argmax(dim=1) == labels[600:]).float().mean().item()


print("without eval():", [f"{accuracy():.1%}" for _ in range(4)])
model.eval()
print("with eval():   ", [f"{accuracy():.1%}" for _ in range(4)])

# %%
# Second, **kept loss tensors**. A loss remembers how it was computed, and whoever keeps
# the loss keeps all of that. We look at the memory of a GPU while a list grows, with
# and without ``detach``:

practice.start()
network = MLP(20, 32, 3).to("cuda")
on_gpu = to_device((inputs, torch.randint(3, (64,))), "cuda")
kept = {
    "append(loss)": [],
    "append(loss.detach())": [],
    "append(loss) after backward": [],
}
memory = {}
loss_fn(network(on_gpu[0]), on_gpu[1]).backward()  # libraries take their memory once
network.zero_grad()

for name, losses in kept.items():
    loss = None  # lets go of the one before
    start = torch.cuda.memory_allocated()
    memory[name] = []
    for _ in range(50):
        loss = loss_fn(network(on_gpu[0]), on_gpu[1])
        if "backward" in name:
            network.zero_grad()
            loss.backward()
        losses.append(loss.detach() if "detach" in name else loss)
        memory[name].append((torch.cuda.memory_allocated() - start) / 1024)

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, kilobytes in memory.items():
    axes.plot(range(1, 51), kilobytes, "--" if "after" in name else "-", label=name)
axes.set(
    xlabel="losses kept",
    ylabel="KiB more on the device",
    title="What a list of losses holds on to",
)
axes.legend()
axes.grid(alpha=0.3)
plt.show()

for name, kilobytes in memory.items():
    print(f"{name:<28} {kilobytes[-1] - kilobytes[0]:8.1f} KiB more after 50 steps")
del kept, loss
practice.stop()

# %%
# The first two curves are of a loop without ``backward``, such as a validation loop:
# there a loss kept as it is keeps its whole forward pass, and a detached one keeps a
# block of 512 bytes. ``backward`` frees the stored forward pass, and on the device
# such a loss is one block again; what is left of the graph, its nodes, stays in main
# memory. A validation loop belongs under ``inference_mode``, where nothing is
# remembered at all.
#
# Third, **a softmax before the cross-entropy**. It runs, and its loss falls, but not
# far: cross-entropy contains a softmax already, and the second one flattens the
# differences. Forty steps with and without:


def loss_after_forty_steps(*last):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3), *last).to(
        device
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(40):
        loss = loss_fn(network(points[:600]), labels[:600])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"logits into the loss:        {loss_after_forty_steps():.4f}")
print(f"probabilities into the loss: {loss_after_forty_steps(nn.Softmax(dim=1)):.4f}")
certain = torch.tensor([1.0, 0.0, 0.0])
print(f"the lowest they can reach:   {-certain.log_softmax(dim=0)[0].item():.4f}")

# %%
# Even a model that is certain, and right, cannot get below the third number. What it
# costs in accuracy is measured in :doc:`lesson 5 </lessons/05_fashion_mnist>`.
#
# Fourth, **a clock that does not wait**. A GPU works through a queue. Calls return when
# the work is *queued*:

import time

torch.set_num_threads(threads)  # this one is large enough for all
matrix = torch.randn(1500, 1500, device=device)
measure(lambda: matrix @ matrix, device=device, repeats=1)  # warm up

start = time.perf_counter()
product = matrix @ matrix
unsynchronised = time.perf_counter() - start
synchronize(device)
waited = time.perf_counter() - start

print(
    f"on {device}: the call returned after {unsynchronised * 1e3:.2f} ms,",
    f"the product was there after {waited * 1e3:.2f} ms",
)
print("measured:", measure(lambda: matrix @ matrix, device=device, repeats=7))

# %%
# On a CPU the two times agree: the call returns with the result. On a GPU the first
# one is the time to *ask*. A speed-up computed from it is fiction. Call
# ``synchronize`` before each look at the clock, or use ``measure``, which does it for
# you.
#
# Exercise
# --------
#
# .. exercise:: Five mistakes in one script
#    :minutes: 20
#    :difficulty: hard
#    :starter: 07_five_mistakes.py
#
#    The script trains and evaluates on a GPU, real or practice. It contains five
#    mistakes of this page. Three stop it, two do not.
#
#    1. **Predict:** read it, and mark what you find, before you run it.
#    2. Run it. Read the message: which operation, which argument, which device?
#    3. Mend that one, and run again, until it ends.
#    4. Now find the two that gave no message.
#
#    To check it: ``python -m gpulesson check 07_five_mistakes.py``.
#
#    You are done when it prints the same accuracy twice, and the memory that the losses
#    hold is one block each.
#
# .. solution::
#    :file: 07_five_mistakes.py
#
#    The class weights, the labels and ``numpy()`` stopped it. The missing ``eval()``
#    and the kept losses did not.
#
# .. keypoints::
#
#    - The message names the operation and the argument: ``mat1`` in ``addmm`` are the
#      inputs, ``target`` in ``nll_loss`` the labels.
#    - Make tensors where they are needed, with ``…_like`` or ``device=x.device``;
#      register constants as buffers.
#    - Bring results back with ``.detach().cpu()``, seldom.
#    - ``.cuda()`` knows one kind of device; ``.to(device)`` knows all.
#    - Forgotten ``eval()``, kept losses, a second softmax and a clock that does not
#      wait give no error: know them.
#
# **Next:** :doc:`/lessons/08_was_it_faster` gives the clock of this lesson its due.

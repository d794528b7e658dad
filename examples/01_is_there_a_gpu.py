"""
Is there a GPU?
===============

Find out what PyTorch can compute on here, and write code that takes the best of it.

.. covers:: S0.1 S2.1

.. overview::
   :teaching: 15
   :exercises: 10

   .. questions::

      - Does this machine have a GPU that PyTorch can use?
      - If not: what is missing, and can I go on?
      - Why should a GPU be faster at all, and when is it not?

   .. objectives::

      - Detect a GPU from Python and read its name.
      - Tell apart the three things that must fit: the GPU, its driver, and the
        PyTorch build.
      - Choose a device so that one script runs on every machine.
      - Measure when more cores start to pay.
"""

# %%
# Everything runs on the CPU unless you send it elsewhere. That is PyTorch's first rule,
# and the reason why this course begins with a question instead of a network: what *is*
# there to send it to?

import platform

import matplotlib.pyplot as plt
import torch

from gpulesson.device import choose_device, device_report
from gpulesson.timing import measure

print("PyTorch", torch.__version__)

# %%
# .. _no-driver:
#
# Ask PyTorch
# -----------
#
# .. covers:: S1.3 S3.3
#
# Most tutorials begin with these four calls. ``device_count`` says how many GPUs there
# are, ``get_device_name`` what they are called, and ``current_device`` which of them is
# *selected*: an index, 0 for the first one. The last two have no answer without a GPU,
# so we look before we ask.

print("available:", torch.cuda.is_available())
print("how many: ", torch.cuda.device_count())

if torch.cuda.is_available():
    print("selected: ", torch.cuda.current_device())
    print("name:     ", torch.cuda.get_device_name())
else:
    print("no CUDA GPU here")

# %%
# And what happens if you do not look first? Without a GPU you get an error, and it is a
# good habit to read errors to their end: the last line names the cause.

try:
    print("selected: ", torch.cuda.current_device())
except (RuntimeError, AssertionError) as error:
    print(f"{type(error).__name__}: {error}")

# %%
# An index is the normal answer where there is a GPU. Where there is none, the wording
# of the error tells *which* piece is missing: "Found no NVIDIA driver" comes from a
# PyTorch that could use a GPU but meets no driver, "Torch not compiled with CUDA
# enabled" from a PyTorch that is no CUDA build, such as a Mac's, "The NVIDIA driver
# on your system is too old" from one whose driver must be updated, "No CUDA GPUs are
# available" from one that finds a driver and no GPU, or only GPUs that are hidden
# from this process (by the environment variable ``CUDA_VISIBLE_DEVICES``).
#
# What CUDA is
# ------------
#
# .. covers:: S3.1
#
# CUDA is not a language, and not a chip. It is NVIDIA's *platform*: a way to program
# its GPUs, with a compiler, a runtime, libraries such as cuDNN, and a driver
# underneath (`NVIDIA's definition
# <https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-a-general-purpose-parallel-computing-platform-and-programming-model>`__).
# AMD's platform is called ROCm, Apple's Metal (in PyTorch: ``mps``), Intel's oneAPI
# (in PyTorch: ``xpu``). A PyTorch build contains the code for one of them, or for
# none:

builds = {
    "CUDA (NVIDIA)": torch.version.cuda,
    "ROCm (AMD)": torch.version.hip,
    "Metal (Apple)": torch.backends.mps.is_built() or None,
    "oneAPI (Intel)": torch.version.xpu,
}
for maker, version in builds.items():
    print(f"{maker:<15} {'not in this build' if version is None else version}")

# %%
# Three things must fit together: the **GPU** in the machine, the **driver** that the
# system's administrator installed, and the **PyTorch build** that you installed. When
# ``is_available()`` says ``False`` on a machine that has an NVIDIA GPU, one of the
# three is missing, too old, or hidden. You do not have to install CUDA itself:
# PyTorch's packages bring their own copy of the runtime.
#
# One report for all of it
# ------------------------
#
# .. covers:: S3.2
#
# The package of this course collects those facts, and says what to install if the GPU
# cannot be used. In a terminal the same report is printed by ``python -m gpulesson``;
# it is the first thing to send along when you ask someone for help.

report = device_report()
print(report)

# %%
# It describes the machine that ran this cell: the one that built the page, or yours,
# when you run it. If something is missing, the last entry says what to do, with the
# command where one helps. The commands depend on the system:

commands = {
    ("Linux", "NVIDIA GPU"): "pip install torch torchvision",
    ("Windows", "NVIDIA GPU"): "pip install torch torchvision "
    "--index-url https://download.pytorch.org/whl/cu130",
    ("Darwin", "Apple GPU"): "pip install torch torchvision",
    ("any", "CPU only"): "pip install torch torchvision "
    "--index-url https://download.pytorch.org/whl/cpu",
}
for (name, hardware), command in commands.items():
    here = "(this system)" if name == platform.system() else ""
    print(f"{name}, {hardware} {here}\n    {command}")

# %%
# ``cu130`` stands for CUDA 13.0; `the selector on pytorch.org
# <https://pytorch.org/get-started/locally/>`__ has the newest, and :doc:`/setup`
# explains each step, for other hardware too.
#
# .. _choose-once:
#
# Choose a device, once
# ---------------------
#
# The line that you will find in almost every script is this one:

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(device)

# %%
# It is fine, with two limits. It knows NVIDIA's GPUs, and AMD's, which PyTorch calls
# ``cuda`` as well; on a Mac it says ``cpu``. And it *does* nothing yet: a
# :class:`torch.device` is only a label that you pass to other calls. Nothing has moved.
#
# PyTorch has a call that knows all platforms. Mind its argument:

print("built for:   ", torch.accelerator.current_accelerator())
print("present here:", torch.accelerator.current_accelerator(check_available=True))

# %%
# Without ``check_available`` the answer is what this PyTorch was *compiled for*,
# whether or not such a device exists. With it, the answer is ``None`` where there is
# none. The lessons use a helper with that rule, and with a way to overrule it without
# touching the code: an argument comes first, then the environment variable
# ``GPULESSON_DEVICE``, then the accelerator, then the CPU.

device = choose_device()
print(device)

# %%
# Ask for something that does not exist, and you are told so at once, not five minutes
# into a run:

try:
    choose_device("cuda:99")
except RuntimeError as error:
    print(error)

# %%
# Why a GPU at all?
# -----------------
#
# .. covers:: S1.1 S2.2
#
# Training a network is, almost entirely, multiplying matrices. Every number of the
# product can be computed without waiting for the others, so work on a big product can
# be shared by many cores: a laptop has a few, a GPU thousands of small ones. But
# handing out work costs time as well. So we measure one matrix product at growing
# sizes, on one core, on all cores of the CPU, and on the GPU if there is one.


def product_rates(device, threads, sizes):
    """Billions of multiplications and additions a second, for n-by-n matrix products."""
    torch.set_num_threads(threads)
    rates = []
    for n in sizes:
        a = torch.randn(n, n, device=device)
        timing = measure(lambda a=a: a @ a, device=device, repeats=7)
        rates.append(
            2 * n**3 / timing.median / 1e9
        )  # an n-by-n product: n³ multiplications, n³ additions
    return rates


sizes = [32, 64, 128, 256, 512, 1024, 2048]
all_cores = torch.get_num_threads()
rates = {
    "CPU, one thread": product_rates(torch.device("cpu"), 1, sizes),
    f"CPU, all {all_cores} threads": product_rates(
        torch.device("cpu"), all_cores, sizes
    ),
}
if device.type != "cpu":
    rates[f"GPU ({device})"] = product_rates(device, all_cores, sizes)

# %%
# Where a line still rises, its hardware has power to spare:

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for label, values in rates.items():
    axes.loglog(sizes, values, "o-", label=label)
axes.set(
    xlabel="rows and columns of the matrices",
    ylabel="billion operations per second",
    title="One matrix product, small to large",
)
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %%
# And in numbers, from the same measurement:

*_, (first, one), (last, most) = rates.items()
ahead = [n for n, a, b in zip(sizes, one, most, strict=True) if b > 1.2 * a]
print(f"compared: {last} with {first}, torch {torch.__version__}")
for i in (0, -1):
    print(f"at {sizes[i]:>4} × {sizes[i]:<4}: {most[i] / one[i]:.3g} times the speed")
print(f"at least 20 % ahead at: {ahead or 'no size measured here'}")

# %%
# The small matrices on the left are too little work: starting a product costs more than
# computing it, and extra cores, or a GPU, have nothing to gain there, and waking them
# can even cost. Towards the right each unit of hardware approaches its own limit; where
# the lines part, the extra cores have enough to do. Remember this picture when someone
# asks "will a GPU help?". The honest answer is "how much work is there in one step?". A
# tiny network on tiny batches lives at the left edge, and :doc:`lesson 3
# </lessons/03_first_model>` trains one that does.
#
# No GPU? Practise all the same
# -----------------------------
#
# You can follow the whole course without a GPU. Everything runs on the CPU, and for the
# parts that are *about* a second device there is the **practice GPU**: a simulated one,
# on which CUDA code runs, really trains and breaks with CUDA's own error messages. It
# is simulated, and says so in its name; it is not fast. Where a real one is present, it
# steps aside.

import gpulesson

with gpulesson.practice_gpu():
    print("available:", torch.cuda.is_available())
    print("name:     ", torch.cuda.get_device_name())
    print("selected: ", torch.cuda.current_device())

print("afterwards:", torch.cuda.is_available())

# %%
# Exercise
# --------
#
# .. covers:: S0.6
#
# .. exercise:: One script for every machine
#    :minutes: 10
#    :difficulty: easy
#    :starter: 01_any_machine.py
#
#    A colleague's script computes on ``cuda``, and nowhere else.
#
#    1. **Predict:** what will it print on this machine, and which line stops it if
#       there is no GPU?
#    2. Run it: ``python 01_any_machine.py``. If it fails, compare the error's last
#       line with your prediction.
#    3. Change it so that it runs on any machine, and uses a GPU where there is one.
#    4. Run it again with ``GPULESSON_DEVICE=cpu`` set. Does your version obey? Should
#       it?
#
#    To check it: ``python -m gpulesson check 01_any_machine.py``.
#
#    You are done when it ends with ``done on …`` and the device that you expected.
#
# .. solution::
#    :file: 01_any_machine.py
#
#    The device is chosen in one place and passed to everything that makes a tensor.
#    ``choose_device`` obeys ``GPULESSON_DEVICE``; a script of your own that does not
#    import this package can use the two commented lines instead.
#
# .. keypoints::
#
#    - ``torch.cuda.is_available()`` tells whether a CUDA GPU can be used,
#      ``get_device_name()`` what it is, and ``current_device()`` which one is selected.
#    - The GPU, its driver and the PyTorch build must fit together; ``python -m
#      gpulesson`` says which of them does not.
#    - Choose the device once, let an argument or the environment overrule it, and pass
#      it on: ``torch.device(…)`` is only a label, it moves nothing.
#    - More cores pay when one step holds enough work; for small matrices they do not.
#
# **Next:** :doc:`/lessons/02_tensors_and_devices` sends the first numbers across.

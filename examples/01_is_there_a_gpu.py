"""
1 · Is there a GPU?
===================

Find out what PyTorch can compute on here, and write code that takes the best of it.

.. covers:: S0.1 S2.1

.. overview::
   :teaching: 20
   :exercises: 10

   .. questions::

      - What is a GPU good at, and when does it not help?
      - Does this machine have a GPU that PyTorch can use, and if not, why not?
      - How do I write one script that runs on every machine?
      - Can I learn all this without a GPU?

   .. objectives::

      - Explain which work a GPU makes faster, with a measurement.
      - Ask PyTorch whether there is a GPU, and what it is called.
      - Name the three things that must fit together, and find the one that does not.
      - Choose a device once, so that one script runs on every machine.
      - Run code for a GPU on a machine without one.

.. prereq::

   - Nothing but Python's functions and loops, and a little NumPy.
   - PyTorch and the package of this course: :doc:`/setup` says how to install both.
"""

# %%
# Training a neural network is arithmetic: a few simple calculations, repeated many
# millions of times. A :term:`GPU` is a processor that was made for such work. In this
# lesson you see what it is good at, you ask PyTorch whether your machine has one, and
# you write a script that runs with it and without it. You have none? Stay: the whole
# course can be done without.
#
# Everything runs on the CPU unless you say otherwise
# ---------------------------------------------------
#
# .. covers:: S2.2
#
# You know arrays and their matrix product ``a @ b`` from NumPy. PyTorch has both: its
# array is called a :term:`tensor`, and the product is written in the same way. A
# network turns numbers into other numbers, mostly by multiplying them with tables of
# numbers: matrix products. Training repeats this many times: it is slow, and it is
# where a GPU pays.
#
# The cell multiplies two matrices with a thousand rows and columns. How many
# multiplications will that take?

import torch

a = torch.rand(1000, 1000)
b = torch.rand(1000, 1000)
product = a @ b

print(f"numbers in the result: {product.numel():,}")
print(f"multiplications:       {1000 * product.numel():,}")
print("computed on:          ", product.device)

# %%
# The result holds a million numbers, and each of them takes a thousand multiplications:
# a row of ``a`` against a column of ``b``. No number has to wait for another. So the
# work can be shared. A CPU has a few fast cores to share it among; a GPU has hundreds
# or thousands of slower ones.
#
# The last line says where PyTorch computed: on the CPU, even if your machine has a GPU.
# **Everything runs on the CPU unless you send it elsewhere.** The reason is that a GPU
# is almost a computer of its own, with its own memory:
#
# .. drawing:: host_device.svg
#
#    Two memories, and a bus between them: a processor computes with what is in its own.
#
# Four words for this are in every text about GPUs. The CPU with its memory is the
# :term:`host`, and the computer's ordinary memory is :term:`host memory`. The GPU is
# the :term:`device`, and its memory is :term:`device memory`, also called VRAM (video
# RAM). (PyTorch's own word ``device`` is wider: it counts the CPU as one, too.) A
# tensor of the host must be copied to the device memory, over the *bus*, before the GPU
# can compute with it. (An Apple GPU shares the computer's memory, but the rules are the
# same.)
#
# A GPU is good at large products
# -------------------------------
#
# .. covers:: S1.1
#
# Imagine that you have letters to fold. For three letters you need no help. For ten
# thousand you call a hundred helpers, and it is worth the minute it takes to explain
# the job to them. A product on many cores is like that: handing out the work takes some
# time, whether there is much work or little.
#
# So we measure. The folded cell multiplies matrices of growing size: on one core of the
# CPU, on all cores that PyTorch may use, and on the GPU if there is one. (On a Mac,
# Apple's library decides for itself how many cores it uses.) Before you look: will the
# speed be the same for a small and for a large product?

# fold: Measure one matrix product at seven sizes, and draw the speeds

import matplotlib.pyplot as plt

from gpulesson.device import choose_device, device_name
from gpulesson.timing import measure

sizes = [32, 64, 128, 256, 512, 1024, 2048]
all_cores = torch.get_num_threads()


def product_speeds(device, threads):
    """Billions of calculations a second, for the product of two n-by-n matrices."""
    torch.set_num_threads(threads)
    speeds = []
    for n in sizes:
        a = torch.rand(n, n, device=device)
        # the quickest of seven runs: other programs make a run slower, none faster
        seconds = min(measure(lambda a=a: a @ a, device=device, repeats=7).times)
        # n × n results, each with n multiplications and n additions
        speeds.append(2 * n**3 / seconds / 1e9)
    return speeds


speeds = {"CPU, one core": product_speeds("cpu", 1)}
if all_cores > 1:
    speeds[f"CPU, {all_cores} cores"] = product_speeds("cpu", all_cores)
torch.set_num_threads(all_cores)
here = choose_device()
if here.type != "cpu":
    speeds[device_name(here)] = product_speeds(here, all_cores)

fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for name, values in speeds.items():
    ax.loglog(sizes, values, "o-", label=name)
ax.set_xlabel("rows and columns of the matrices")
ax.set_ylabel("billion calculations a second")
ax.set_title("Speed of one matrix product, from small to large")
ax.set_xticks(sizes, sizes)
tens = [10**n for n in range(6) if 10**n < 10 * max(map(max, speeds.values()))]
ax.set_yticks(tens, [f"{ten:,}" for ten in tens])
ax.minorticks_off()
ax.legend()
ax.grid(alpha=0.3)
plt.show()

# %%
# Each line is one processor, or one number of cores. Further right is a larger product,
# higher up a faster one, and each mark on the upright axis is ten times the one below.
# Here are the two ends of each line, in billions of calculations (multiplications and
# additions) a second:

print(f"{sizes[0]:>6}{sizes[-1]:>10}  rows and columns")
for name, values in speeds.items():
    print(f"{values[0]:6.0f}{values[-1]:10,.0f}  {name}")

# %%
# Read one row from left to right. Only the size differs, and with it the speed. The
# small product is slow for its size, because starting it takes longer than computing
# it. The large product holds so much computing that the start does not matter, and many
# cores can share it: the few of a CPU, or the many of a GPU. (On a busy computer a line
# can also fall, and more cores can show less. No GPU among your rows? The next table
# has two.) **A GPU pays when one product holds much work.**
#
# What does that mean for a real run? ResNet-50 is a network for photographs. To train
# it by 90 passes over ImageNet, more than a million pictures, takes about three billion
# billion calculations: a billion billion to compute the model's answers, and about twice
# as many to learn from them. (The first number is that of `You and others, 2017
# <https://arxiv.org/abs/1709.05011>`__. They call it the total, but it counts no
# learning.) How long would the processors above need for it, if they were always as
# fast as at their best point? For comparison we add two GPUs, with the highest speed
# that their maker states for numbers of 32 bits, as ours are: `NVIDIA T4
# <https://www.nvidia.com/en-us/data-center/tesla-t4/>`__, a small one, and `NVIDIA H200
# <https://www.nvidia.com/en-us/data-center/h200/>`__, a very large one.

best = {name: max(values) for name, values in speeds.items()}
best["NVIDIA T4, at most"] = 8_100  # billion calculations a second
best["NVIDIA H200, at most"] = 67_000

for name, speed in best.items():
    hours = 3 * 10**18 / (speed * 1e9) / 3600
    print(f"{hours:9,.1f} hours = {hours / 24:7,.1f} days  {name}")

# %%
# What takes weeks or months on most CPUs takes hours on a large GPU. No real run keeps
# its best speed all the time: if it computes with all 32 bits, every processor takes
# longer than this table says. (Newer NVIDIA GPUs round inside convolutions by default,
# and can be faster.) The authors of the paper give 14 days for one NVIDIA M40, an older
# GPU.
#
# .. question:: Your largest matrices are 120 by 8 and 8 by 9. Will a large GPU help?
#
#    - Yes: thousands of cores are always faster than a few.
#
#      No. Thousands of cores need thousands of things to do at the same time. In a
#      product this small there is hardly anything to share.
#
#    - No: each product is so small that starting it takes longer than computing it.
#
#      Yes. You are at the left end of the picture, where more cores find little to do.
#      The network of :doc:`lesson 3 </lessons/03_first_model>` is of this size.
#
#    - No: a GPU refuses matrices as small as this.
#
#      No. It computes a product of any size. It is only slow for the size.
#
# .. _no-driver:
#
# Ask PyTorch whether it can use a GPU
# ------------------------------------
#
# .. covers:: S1.3 S3.3
#
# Four functions begin most tutorials. They are in ``torch.cuda``, named after
# :term:`CUDA`, with which NVIDIA's GPUs are programmed. ``is_available`` says whether
# PyTorch finds a CUDA GPU, ``device_count`` how many there are, ``current_device``
# which one is *selected*, that is, used if you name none (they are counted from 0), and
# ``get_device_name`` what it is called.

if torch.cuda.is_available():
    print("GPUs:    ", torch.cuda.device_count())
    print("selected:", torch.cuda.current_device())
    print("name:    ", torch.cuda.get_device_name())
else:
    print("no CUDA GPU here")

# %%
# The ``if`` is there because the last two functions have no answer without a GPU. What
# happens if you forget it?

try:
    print("selected:", torch.cuda.current_device())
except (RuntimeError, AssertionError) as error:  # it depends on what is missing
    print(f"{type(error).__name__}: {error}")

# %%
# With a GPU you get its number. Without one you get an error, and **the words of the
# error tell you what is missing**. These four are the most common:
#
# - ``Found no NVIDIA driver on your system.`` PyTorch could use a GPU, but the system's
#   own program for it is missing. This program is called the :term:`driver`. (The
#   command ``nvidia-smi``, which lists the GPUs, comes with it.)
# - ``The NVIDIA driver on your system is too old``: update it, or install a PyTorch for
#   an older CUDA.
# - ``Torch not compiled with CUDA enabled``: you have a PyTorch that was made
#   without support for NVIDIA's GPUs. Every PyTorch for a Mac is one.
# - ``No CUDA GPUs are available``: there is a driver, and it shows no GPU to this
#   program. Perhaps the environment variable ``CUDA_VISIBLE_DEVICES`` hides it. (An
#   environment variable is a named text that the system hands to every program.)
#
# .. question:: You have an NVIDIA GPU. Why is ``is_available()`` most likely ``False``?
#
#    - The GPU is broken.
#
#      No. That is rare. Far more often the software between PyTorch and the GPU is
#      missing or does not fit, and that you can repair.
#
#    - The CUDA toolkit, NVIDIA's tools for programmers, is missing.
#
#      No. PyTorch's packages bring all of CUDA that they need. Only the driver has to
#      be there.
#
#    - The driver is missing or old, PyTorch is without CUDA, or the GPU is hidden.
#
#      Yes. These are the usual reasons, and the error's words tell which one it is.
#
# CUDA is how NVIDIA's GPUs are programmed
# ----------------------------------------
#
# .. covers:: S3.1
#
# CUDA is NVIDIA's platform for computing on its GPUs. It is not a language of its own. It
# extends the languages C, C++ and Fortran by a few words, with which you write a
# :term:`kernel`, a function that runs on the GPU (NVIDIA's guides to `CUDA C++
# <https://docs.nvidia.com/cuda/cuda-c-programming-guide/>`__ and `CUDA Fortran
# <https://docs.nvidia.com/hpc-sdk/compilers/cuda-fortran-prog-guide/>`__). You will not
# write any: PyTorch comes with nearly all its kernels compiled, that is, translated into
# the GPU's own instructions.
#
# Other makers have other platforms: AMD has ROCm (``hip`` in the code below), Intel has
# oneAPI (``xpu``), Apple has Metal (``mps``). A :term:`PyTorch build` is made for one
# of them, or for the CPU only. Which one is yours?

print("PyTorch:", torch.__version__)
print("CUDA:   ", torch.version.cuda)
print("ROCm:   ", torch.version.hip)
print("oneAPI: ", torch.version.xpu)
print("Metal:  ", torch.backends.mps.is_built())

# %%
# A version number or ``True`` means that this build is made for the platform; ``None``
# or ``False`` means that it is not. The first line often says the same in short:
# ``+cu132`` stands for CUDA 13.2, ``+cpu`` for the CPU only. **What PyTorch can use is
# decided when you install it**, and no setting changes it later.
#
# .. _no-kernel-image:
#
# GPU, driver and PyTorch build must fit together
# -----------------------------------------------
#
# .. covers:: S3.2
#
# So there are three things: the GPU in the machine, the driver in the system, and your
# PyTorch build. It is not enough that all three are there. Kernels are compiled for
# *generations* of GPUs, and a build does not have them for all:

print("kernels for:", *torch.cuda.get_arch_list())
if torch.cuda.is_available():
    print("this GPU has:", torch.cuda.get_device_capability())

# %%
# NVIDIA numbers the generations by :term:`compute capability`: ``sm_75`` is 7.5, which
# began with the GPUs of 2018, and ``sm_120`` is 12.0. (Without CUDA the list is empty,
# or holds AMD's names.) An entry ``sm_…`` runs on GPUs with the same number before the
# point, and the same or a higher one after it: ``sm_86`` also serves a GPU with 8.9. (A
# few small GPUs, NVIDIA's Jetsons, are an exception.) An entry ``compute_…`` also runs
# on newer generations. If nothing in the list serves your GPU, ``is_available()`` can
# say ``True`` all the same, because it only asks whether CUDA finds a GPU (`its source
# <https://github.com/pytorch/pytorch/blob/v2.15.0/torch/cuda/__init__.py>`__). The
# first computation then fails with
# ``CUDA error: no kernel image is available for execution on the device``. It means
# that `there is no compiled code for your GPU
# <https://github.com/pytorch/pytorch/issues/31285>`__ in this build, and you need
# another one.
#
# The course's package looks at all three for you, and says what is missing:

from gpulesson.device import device_report

print(device_report())

# %%
# The first rows are the devices that PyTorch finds on the machine that ran this cell,
# the CPU last, with their memory (a GiB is about a billion bytes), but not a CPU's on
# Windows. For an Apple GPU it is the memory that macOS recommends to use at most. For
# an NVIDIA GPU the row also says whether this build has kernels for it. Then come the
# build, the driver, and the versions. The row that matters is the last one, *advice*:
# **it says what to install or change, if anything**, and gives the command where there
# is one. ``python -m gpulesson`` prints the same report in a terminal. Send it when you
# ask for help.
#
# The commands for each system, and for GPUs of other makers, are in :doc:`/setup`.
#
# .. _choose-once:
#
# Choose a device, once
# ---------------------
#
# A script that says ``"cuda"`` in ten places stops on every machine without a CUDA GPU.
# So we decide in one place. This is the line that you will find in most scripts:

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(device)

# %%
# It is a good line, with one limit: it knows only ``cuda``. (PyTorch calls AMD's GPUs
# ``cuda``, too.) On a Mac the line says ``cpu``, although Apple's GPU can compute as
# well. PyTorch's word for any processor beside the CPU is :term:`accelerator`, and it
# has a function that looks for one:

print("built for:", torch.accelerator.current_accelerator())
found = torch.accelerator.current_accelerator(check_available=True)
print("found:    ", found)

device = found or torch.device("cpu")
print("chosen:   ", device)

# %%
# Without ``check_available=True`` you learn what this PyTorch was *built for*, even if
# there is no such device. With it you get the device that is really there, or ``None``,
# and then ``or`` takes the CPU. A script of your own needs no more than this.
#
# The lessons use the same, kept in a function. It can be overruled without a change to
# the code: set the environment variable ``GPULESSON_DEVICE`` to ``cpu``, for example.
# If you ask for a device that does not exist, here the hundredth GPU, it says so at
# once:

from gpulesson.device import choose_device

print(choose_device())

try:
    choose_device("cuda:99")
except RuntimeError as error:
    print(error)

# %%
# So pass ``device`` to everything that makes a tensor. **Choose once, pass it on.**
#
# .. question:: ``device = torch.device("cuda")`` ran without an error. What do you know?
#
#    - There is a CUDA GPU in this machine.
#
#      No. The line does not look for one. What fails is a later line, when a tensor is
#      to go there.
#
#    - From now on, PyTorch computes on the GPU.
#
#      No. Nothing has moved, and new tensors are made on the CPU, as before.
#
#    - Nothing about this machine.
#
#      Yes. A :class:`torch.device` is only a label. It names a place, and does not look
#      whether the place exists.
#
# No GPU? Practise, or borrow one
# -------------------------------
#
# For what is *about* a GPU, this course brings the :term:`practice GPU`: a simulated
# one. Most PyTorch code for CUDA runs on it, and gives the right results up to rounding
# and random numbers. What fails has nearly always the message of a real one. It computes
# on your CPU, so it is never fast. If there is a real CUDA GPU, the practice GPU stays
# out of the way, and the cell runs on the real one.
#
# One of the two tensors is on the GPU. What will happen?

from gpulesson import practice_gpu

with practice_gpu():
    print(torch.cuda.get_device_name())
    a = torch.rand(4, 3, device="cuda")
    b = torch.rand(3, 2)
    try:
        print(a @ b)
    except RuntimeError as error:
        print(error)

# %%
# It fails as on a real GPU, in the same words: ``mat2``, the second of the two matrices,
# is still on the CPU. :doc:`The next lesson </lessons/02_tensors_and_devices>` is about
# this message. **You can make, understand and fix a GPU's errors without a GPU.**
#
# For speed, and for a few things that :doc:`the guide to the practice GPU
# </lessons/guides/learn_without_a_gpu>` lists, you need a real one, and you can borrow
# one. `Google Colab <https://research.google.com/colaboratory/faq.html>`__ and `Kaggle
# <https://www.kaggle.com/docs/notebooks>`__ run notebooks in your browser and lend a
# GPU for some hours, free of charge. Download the notebook of a lesson from its page,
# open it there, and choose a GPU in the notebook's settings. Upload the package's file,
# too (:doc:`/setup` has it). On Colab the notebook's first cell installs it, and what
# else is missing. On Kaggle, write the file's whole path in that cell (:doc:`/setup`
# says how).
#
# .. instructor-note::
#
#    Ask each learner for the report of ``python -m gpulesson`` before the course
#    begins, and read its last row. Those without a GPU lose speed, and little else.
#
#    The trap of this lesson is ``torch.device("cuda")``: it looks like a command and is
#    a label.
#
# Exercise
# --------
#
# .. covers:: S0.6
#
# .. exercise:: Compute on every machine
#    :minutes: 10
#    :difficulty: easy
#    :starter: exercise_01.py
#
#    Two functions are empty: one picks the device, one computes on it.
#
#    1. **Predict:** you write ``torch.device("cuda")`` and nothing else into
#       ``pick_device``. What happens on a machine without a GPU, and in which line?
#    2. Write ``pick_device``. It returns a CUDA GPU where there is one, and else the
#       CPU. Check it: it is called on a machine with a GPU, and on one without.
#    3. Write ``scores``. It makes images and weights on the device that it is given, and
#       multiplies them there.
#    4. Run the file: ``python exercise_01.py``. It computes on your machine, and on one
#       with a GPU, which is simulated if you have none.
#
#    To check it: ``python -m gpulesson check exercise_01.py``.
#
#    You are done when it says that both functions are right.
#
# .. solution::
#    :file: solution_01.py
#
#    The device is picked in one place, and passed to everything that makes a tensor. So
#    nothing has to be copied, and the result stays on the device. ``choose_device()`` or
#    ``torch.accelerator`` do as well for ``pick_device``.
#
# .. keypoints::
#
#    - A GPU pays when one product holds much work. For a small product, starting it
#      takes longer than computing it.
#    - ``torch.cuda.is_available()`` says whether PyTorch finds a CUDA GPU,
#      ``get_device_name()`` what it is called, ``current_device()`` which is selected.
#    - The GPU, its driver and the PyTorch build must fit together. ``python -m
#      gpulesson`` says which of them does not.
#    - Choose the device in one place and pass it on. ``torch.device(…)`` is only a label.
#    - The practice GPU runs most PyTorch code for CUDA on any machine. Colab and Kaggle
#      lend real GPUs.
#
# **Next:** :doc:`/lessons/02_tensors_and_devices` copies the first numbers to a device,
# and explains the error that you have just seen.

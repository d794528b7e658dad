"""
1 · Is there a GPU?
===================

Find out what PyTorch can compute on here, and write code that takes the best of it.

.. covers:: S0.1 S2.1

.. overview::
   :teaching: 22
   :exercises: 10

   .. objectives::

      - Say which work a GPU makes faster, and show it with a measurement.
      - Ask PyTorch whether it can use a GPU, and find out what is missing if not.
      - Choose a device once, so that one script runs on every machine.

   .. prereq::

      - Python's functions and loops, and a little NumPy
      - PyTorch and the package of this course, installed as :doc:`/setup` says
"""

# %%
# Training a neural network is simple arithmetic, repeated many millions of times. A
# :term:`GPU` is a processor that was made for such work. You have none? The whole course
# can be done without.
#
# Everything runs on the CPU unless you say otherwise
# ---------------------------------------------------
#
# .. covers:: S2.2
#
# You know arrays and their matrix product ``a @ b`` from NumPy. PyTorch has both; its
# array is called a :term:`tensor`. A network computes mostly such products, and training
# repeats them very often: it is where a GPU pays.
#
# How many multiplications does a product of two matrices with a thousand rows and
# columns take?

import torch

a = torch.rand(1000, 1000)
b = torch.rand(1000, 1000)
product = a @ b

print(f"numbers in the result: {product.numel():,}")
print(f"multiplications:       {1000 * product.numel():,}")
print("computed on:          ", product.device)

# %%
# Each of the million results takes a thousand multiplications: a row of ``a`` against a
# column of ``b``. None has to wait for another, so the work can be shared. A CPU has a
# few fast cores to share it among; a GPU has hundreds or thousands of slower ones.
#
# The last line says where PyTorch computed: on the CPU, even if your machine has a GPU.
# **Everything runs on the CPU unless you send it elsewhere**, because a GPU has a memory
# of its own:
#
# .. drawing:: host_device.svg
#
#    Two memories, and a bus between them: a processor computes with what is in its own.
#
# The CPU is part of the :term:`host`, with the :term:`host memory`. The GPU is the
# :term:`device`, with the :term:`device memory`, also called VRAM. (For PyTorch the CPU
# is a ``device``, too.) A tensor has to be copied over the *bus* before the GPU can
# compute with it. (An Apple GPU shares the computer's memory; the rules are the same.)
#
# A GPU is good at large products
# -------------------------------
#
# .. covers:: S1.1
#
# Imagine that you have letters to fold. For three letters you need no help. For ten
# thousand you call a hundred helpers, and it is worth the minute it takes to explain
# the job to them. Many cores are like that: handing out the work takes some time,
# whether there is much work or little.
#
# The folded cell measures products of growing size on one core of the CPU, on all cores
# that PyTorch may use, and on the GPU if there is one. Will a small and a large product
# have the same speed?

# fold: Measure one matrix product at five sizes, and draw the speeds

import matplotlib.pyplot as plt

from gpulesson.device import choose_device, device_name
from gpulesson.timing import measure

sizes = [8, 32, 128, 512, 2048]
all_cores = torch.get_num_threads()


def product_speeds(device, threads):
    """Billions of calculations a second, for the product of two n-by-n matrices."""
    torch.set_num_threads(threads)  # on a Mac, Apple's library does not ask for it
    speeds = []
    for n in sizes:
        a = torch.rand(n, n, device=device)
        runs = 3 if n > 1000 else 7
        timing = measure(lambda a=a: a @ a, device=device, warmup=2, repeats=runs)
        # n × n results, each with n multiplications and n additions, in the time of the
        # quickest run: other programs make a run slower, none faster
        speeds.append(2 * n**3 / min(timing.times) / 1e9)
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
# Higher up is faster, and each mark on the upright axis is ten times the one below. Here
# are both ends of each line, in billions of multiplications and additions a second:

print(f"{sizes[0]:>6}{sizes[-1]:>10}  rows and columns")
for name, values in speeds.items():
    print(f"{values[0]:6.1f}{values[-1]:10,.1f}  {name}")

# %%
# Read one row from left to right. The small product is slow for its size, because
# starting it takes longer than computing it. The large one holds so much work that the
# start does not matter, and many cores can share it. (On a busy computer, more cores
# can show less.) **A GPU pays when one product holds much work.**
#
# And a real run? ResNet-50, a network for photographs, learns from 90 passes over more
# than a million pictures. The model's answers take about a billion billion calculations
# (`You and others, 2017 <https://arxiv.org/abs/1709.05011>`__, who call it the total),
# and to learn from them takes about twice as many again. How long is that at the best
# speeds above, or at those that NVIDIA states for a small GPU, the `T4
# <https://www.nvidia.com/en-us/data-center/tesla-t4/>`__, and a very large one, the
# `H200 <https://www.nvidia.com/en-us/data-center/h200/>`__?

best = {name: max(values) for name, values in speeds.items()}
best["NVIDIA T4, at most"] = 8_100  # billion calculations a second
best["NVIDIA H200, at most"] = 67_000

for name, speed in best.items():
    hours = 3 * 10**18 / (speed * 1e9) / 3600
    print(f"{hours:9,.1f} hours = {hours / 24:7,.1f} days  {name}")

# %%
# What takes weeks or months on most CPUs takes hours on a large GPU. No real run, with
# numbers of 32 bits, keeps a processor at its best all the time: the paper reports 14
# days for one NVIDIA M40, an older GPU.
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
# Four functions of ``torch.cuda`` begin most tutorials. :term:`CUDA` is how NVIDIA's
# GPUs are programmed. Is there a GPU for it, how many are there, which one is used if
# you name none, and what is it called?

print("available:", torch.cuda.is_available())
print("GPUs:     ", torch.cuda.device_count())
try:
    print("selected: ", torch.cuda.current_device())
    print("name:     ", torch.cuda.get_device_name())
except (RuntimeError, AssertionError) as error:  # it depends on what is missing
    print(f"{type(error).__name__}: {error}")

# %%
# With a GPU you get its number, counted from 0, and its name. Without one, the last two
# functions stop, and **the words of the error tell you what is missing**. These are the
# most common:
#
# - ``Found no NVIDIA driver on your system``: the system's own program for the GPU, its
#   :term:`driver`, is missing.
# - ``The NVIDIA driver on your system is too old``: update it, or install a PyTorch for
#   an older CUDA.
# - ``Torch not compiled with CUDA enabled``: this PyTorch was made without support for
#   NVIDIA's GPUs, as every PyTorch for a Mac is.
# - ``No CUDA GPUs are available``: there is a driver, and it shows no GPU to this
#   program. Perhaps the environment variable ``CUDA_VISIBLE_DEVICES`` hides it.
#
# You need not install CUDA itself: PyTorch's packages bring what they need of it.
#
# .. _no-kernel-image:
#
# GPU, driver and PyTorch build must fit together
# -----------------------------------------------
#
# .. covers:: S3.1 S3.2
#
# CUDA is a platform, not a language of its own: it extends `C++
# <https://docs.nvidia.com/cuda/cuda-c-programming-guide/>`__, C and `Fortran
# <https://docs.nvidia.com/hpc-sdk/compilers/cuda-fortran-prog-guide/>`__ by a few words,
# with which a :term:`kernel` is written, a function that runs on the GPU. You need to
# write none. PyTorch brings its kernels, translated for some generations of GPUs.
#
# Other makers have other platforms: AMD has ROCm, Intel oneAPI, Apple Metal. A
# :term:`PyTorch build` is made for one of them, or for the CPU only. Which is yours?

print("PyTorch:", torch.__version__)
print("CUDA:   ", torch.version.cuda)
print("ROCm:   ", torch.version.hip)
print("oneAPI: ", torch.version.xpu)
print("Metal:  ", torch.backends.mps.is_built())

# %%
# A version number or ``True`` means that this build is made for the platform. The first
# line often says the same: ``+cu132`` is CUDA 13.2, ``+cpu`` the CPU only. **What
# PyTorch can use is decided when you install it.**
#
# .. fold:: Going further: a GPU that is too old, or too new, for the build
#
#    ``is_available()`` can be ``True`` although the build has no kernels for your GPU.
#    Then the first computation fails with ``CUDA error: no kernel image is available for
#    execution on the device``, and you need another build.
#
#    ``torch.cuda.get_arch_list()`` names the generations that a build has kernels for,
#    by their :term:`compute capability`: ``sm_75`` is 7.5, which began with the GPUs of
#    2018, and ``sm_120`` is 12.0. Such an entry runs on GPUs with the same number before
#    the point, and the same or a higher one after it: ``sm_86`` also serves a GPU with
#    8.9. (A few small GPUs, NVIDIA's Jetsons, are an exception.) An entry ``compute_…``
#    also runs on newer generations. ``torch.cuda.get_device_capability()`` gives the
#    number of your GPU.
#
# The course's package looks at GPU, driver and build for you:

from gpulesson.device import device_report

print(device_report())

# %%
# The first rows are the devices that PyTorch finds, with their memory (a GiB is about a
# billion bytes). **The last row, advice, says what to install or change**, if anything.
# ``python -m gpulesson`` prints this report in a terminal, and :doc:`/setup` has the
# commands for each system.
#
# .. _choose-once:
#
# Choose a device, once
# ---------------------
#
# A script that says ``"cuda"`` in ten places stops on every machine without a CUDA GPU.
# So decide in one place. Most scripts do it with this line:

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(device)

# %%
# It has one limit: it knows only NVIDIA's and AMD's GPUs, which PyTorch both calls
# ``cuda``. On a Mac it says ``cpu``. PyTorch's word for any processor beside the CPU is
# :term:`accelerator`, and it has a function that looks for one:

found = torch.accelerator.current_accelerator(check_available=True)
print("found: ", found)

device = found or torch.device("cpu")
print("chosen:", device)

# %%
# You get the accelerator, or ``None``, and then ``or`` takes the CPU. (Without
# ``check_available=True`` you learn what this PyTorch was *built for*, even if there is
# no such device.) A script of your own needs no more than this.
#
# The lessons use the same, kept in a function. If you ask it for a device that does not
# exist, here the hundredth GPU, it says so at once:

from gpulesson.device import choose_device

print(choose_device())

try:
    choose_device("cuda:99")
except RuntimeError as error:
    print(error)

# %%
# **Choose once, and pass** ``device`` **to everything that makes a tensor.**
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
# No GPU? Practise on a simulated one
# -----------------------------------
#
# This course brings the :term:`practice GPU`. It obeys a GPU's rules, and your CPU does
# the arithmetic, so it is never fast. Where there is a real CUDA GPU, that one is used
# instead. In this cell only ``a`` is on the GPU. What will happen?

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
# ``mat2``, the second of the two matrices, is still on the CPU. :doc:`The next lesson
# </lessons/02_tensors_and_devices>` is about this message. **You can make, understand
# and fix a GPU's errors without a GPU.** For speed you need a real one, and you can
# borrow it free of charge: :doc:`/setup` names two places.
#
# .. instructor-note::
#
#    Ask each learner for the report of ``python -m gpulesson`` before the course
#    begins, and read its last row.
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
#    - ``torch.cuda.is_available()`` says whether PyTorch finds a CUDA GPU. The GPU, its
#      driver and the PyTorch build must fit together, and ``python -m gpulesson`` says
#      which of them does not.
#    - Choose the device in one place and pass it on. ``torch.device(…)`` is only a label.
#
# **Next:** :doc:`/lessons/02_tensors_and_devices` copies the first numbers to a device,
# and explains the error that you have just seen.

"""
1 · Is there a GPU?
===================

Find out which hardware PyTorch can use here, and write code that runs on every machine.

.. covers:: S0.1 S2.1

.. overview::
   :teaching: 20
   :exercises: 10

   .. objectives::

      - Say when a GPU is worth using, and measure how fast your computer is.
      - Ask PyTorch whether it can use a GPU, and find out what is missing if not.
      - Choose a device once, so that one script runs on every machine.

   .. prereq::

      - Python's functions, loops, ``try``, ``with`` and f-strings; a little NumPy
      - PyTorch and the package of this course, installed as :doc:`/setup` says
"""

# %%
# You want to train a neural network, and you've heard that a :term:`GPU` makes that
# faster. By lesson 5 you'll have trained one that tells shirts from shoes, with code that
# runs on a laptop as well as on a large GPU. Let's begin with what a GPU is good at, and
# whether you have one: if you don't, you can still do the whole course.
#
# Everything runs on the CPU unless you say otherwise
# ---------------------------------------------------
#
# .. covers:: S2.2
#
# You know arrays and their matrix product ``a @ b`` from NumPy. PyTorch has both; its
# array is called a :term:`tensor`. Most of what a network does is multiply matrices.
#
# Let's multiply two matrices with a thousand rows and columns. How many calculations is
# that, if each multiplication and each addition counts as one?

import torch

a = torch.rand(1000, 1000)
b = torch.rand(1000, 1000)
product = a @ b

numbers = product.numel()  # how many the result has
print(f"numbers in the result: {numbers:,}")  # :, groups the digits
print(f"calculations:          {2 * 1000 * numbers:,}")
print("computed on:          ", product.device)

# %%
# Each of the million numbers is a row of ``a`` times a column of ``b``: a thousand
# multiplications, and about as many additions. No number has to wait for another, so the
# work can be shared. A CPU has a few fast cores; a GPU has hundreds or thousands
# of slower ones.
#
# The last line says where PyTorch computed. **Everything runs on the CPU unless you send
# it elsewhere**, even on a machine with a GPU, because a GPU has its own memory:
#
# .. drawing:: host_device.svg
#
#    Two memories, and a bus between them: a processor computes with what is in its own.
#
# The computer around the GPU is called the :term:`host`, so there is :term:`host memory`
# and :term:`device memory`. A tensor has to be copied over the *bus* before the GPU can
# compute with it. Somewhat confusingly, PyTorch calls both the CPU and the GPU a
# :term:`device`: ``cpu``, or a GPU such as ``cuda``. Don't worry about learning these
# words now: you'll meet them on every page.
#
# A GPU is good at large products
# -------------------------------
#
# .. covers:: S1.1
#
# Imagine that you have letters to fold. For three you need no help. For ten thousand you
# call a hundred helpers, and it's worth the minute it takes to explain the job. The
# cores of a GPU are such helpers: starting them takes time, however little work there is.
#
# The folded cell measures products of five sizes, on the CPU and on a GPU if there is
# one. You don't need to read its code, but run it: the next cells need it. Which will be
# faster at a small product, and which at a large one?

# fold: Measure one matrix product at five sizes, and draw the speeds

import matplotlib.pyplot as plt

from gpulesson.device import choose_device, device_name
from gpulesson.timing import measure

sizes = [10, 30, 100, 300, 1000]


def product_speeds(device):
    """Billions of calculations a second, for the product of two n-by-n matrices."""
    quickest = dict.fromkeys(sizes, float("inf"))
    for _ in range(25):  # in rounds, so that a busy moment does not hit one size alone
        for n in sizes:
            a = torch.rand(n, n, device=device)
            timing = measure(lambda a=a: a @ a, device=device, warmup=1, repeats=2)
            # other programs make a run slower, none faster: the quickest counts
            quickest[n] = min(quickest[n], *timing.times)
    # n × n results, each with n multiplications and n additions
    return [2 * n**3 / quickest[n] / 1e9 for n in sizes]


speeds = {f"CPU, {torch.get_num_threads()} cores": product_speeds("cpu")}
here = choose_device()
if here.type != "cpu":
    speeds[device_name(here)] = product_speeds(here)

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
# The picture has two lines, named in its corner: one for a CPU, and one for a large GPU.
# Higher is faster. At the left end the matrices are small, and the GPU starts *below* the
# CPU. Further right it crosses the CPU's line, and at the right end, where the matrices
# are large, it is far above. On the vertical axis, each mark is ten times the one below
# it, so a line that ends one mark higher stands for ten times the speed. (Without a GPU,
# your own picture has the CPU's line alone.)
#
# Here are both ends of each line, in billions of calculations per second. The first line
# names the two sizes, and each row below it is one processor:

print(f"{sizes[0]:>6}{sizes[-1]:>9}  rows and columns")
for name, values in speeds.items():
    print(f"{values[0]:6.1f}{values[-1]:9,.1f}  {name}")

# %%
# The small product is slow, because starting it takes longer than computing it. In the
# large one the start hardly counts, and every core has work. **A GPU pays off when each
# product involves a lot of work.** If you see only one row, PyTorch found no GPU,
# and the box *Recorded* shows what a computer with a GPU printed.
#
# .. play:: race
#
#    Let the two of that computer race, at the speeds that its picture shows. Who wins at
#    10 rows and columns, and from where on does it change? Your own CPU can join: type
#    the two numbers of its row from above, if you've run this lesson.
#
# How many days does a real run take? ResNet-50, a network for photographs, learns from
# 1.28 million pictures, 90 times over. Its answer to one picture takes `about 4 billion
# multiplications <https://arxiv.org/abs/1512.03385>`__ and as many additions, and
# learning from it about twice as many again. At the speed of the large product, that is:

one_picture = 8e9 + 2 * 8e9  # the answer, and learning from it
calculations = 90 * 1.28e6 * one_picture

for name, values in speeds.items():
    seconds = calculations / (values[-1] * 1e9)
    print(f"{seconds / 3600 / 24:8,.1f} days  {name}")

# %%
# This is a rough guess: few runs keep a processor as busy as one large product does.
# NVIDIA measured the whole run, on an older GPU:
#
# .. measured:: on one V100, by NVIDIA
#    :source: https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895/PyTorch/Classification/ConvNets/resnet50v1.5/README.md
#    :date: 2021
#
#    ResNet-50, 90 times over these pictures, in numbers of 32 bits as here: about 3.8
#    days. (A V100 is a GPU of 2017.)
#
# What to take home: **a run that takes a CPU many days takes a large GPU only a few.**
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
# :term:`CUDA` is how NVIDIA's GPUs are programmed, and ``torch.cuda`` is PyTorch's part
# for it. Let's ask it three things: is there a GPU, which one is used if you name none,
# and what is it called? Without a GPU, the second line raises an error. ``try`` lets the
# program go on: the lines below ``except`` then print the error.

print("available:", torch.cuda.is_available())
try:
    print("selected: ", torch.cuda.current_device())
    print("name:     ", torch.cuda.get_device_name())
except (RuntimeError, AssertionError) as error:  # it depends on what is missing
    print(f"{type(error).__name__}: {error}")

# %%
# With a GPU you get its number, counted from 0, and its name. Without one, **the words of
# the error tell you what is missing**:
#
# - ``Found no NVIDIA driver on your system``: the system's own program for the GPU, its
#   :term:`driver`, is missing. Without an NVIDIA GPU that is as it should be.
# - ``Torch not compiled with CUDA enabled``: this PyTorch was made without support for
#   NVIDIA's GPUs. If you have no GPU, setup gave you this one, and all is well.
#
# .. fold:: What the other messages mean
#
#    - ``The NVIDIA driver on your system is too old``: update it, or install PyTorch 2.14
#      or older, built for CUDA 12.6. From 2.15 on there are only builds for CUDA 13:
#      :doc:`/setup`.
#    - ``No CUDA GPUs are available``: there is a driver, but it reports no GPU to this
#      program. Perhaps the environment variable ``CUDA_VISIBLE_DEVICES`` hides it.
#
#    You don't need to install CUDA itself: PyTorch's packages include what they need of
#    it.
#
# .. _no-kernel-image:
#
# GPU, driver and PyTorch build must fit together
# -----------------------------------------------
#
# .. covers:: S3.1 S3.2
#
# Without a GPU you can skip this section. Each :term:`PyTorch build` is made for one kind
# of GPU, or for the CPU only. So **what PyTorch can use is decided when you install it**.
# Does yours fit your GPU and its driver? The course's package looks at all three. Read
# one row of its report, the last: *advice* says what to change, if anything.

from gpulesson.device import device_report

print(device_report())

# %%
# If the advice says to install something, :doc:`/setup` has the command. The rows above
# it list what PyTorch finds; you need them when something is wrong. In a terminal,
# ``python -m gpulesson`` prints this report.
#
# .. fold:: Going further: what CUDA is, and a GPU that is too old for a build
#
#    CUDA is not a language but a platform: it adds a few words to `C++
#    <https://docs.nvidia.com/cuda/cuda-c-programming-guide/>`__, Fortran and others, and
#    PyTorch uses it for you. AMD's platform is called ROCm, Apple's Metal. The row
#    *torch* names the one that your build is made for: ``+cu132`` is CUDA 13.2, and
#    ``+cpu`` the CPU only.
#
#    A build contains :term:`kernels <kernel>`, functions that run on the GPU, for some
#    generations of GPUs. If yours is not among them, ``is_available()`` can be ``True``,
#    and the first computation fails with ``CUDA error: no kernel image is available for
#    execution on the device``. A GPU older than capability 7.5, such as a P100 or
#    V100, needs PyTorch 2.14 or older; others need another build. ``python -m gpulesson``
#    names it. (PyTorch 2.15 itself names a build for CUDA 12.6 that does not exist.)
#
#    ``torch.cuda.get_arch_list()`` names the generations, by their :term:`compute
#    capability`: ``sm_75`` is 7.5, ``sm_120`` is 12.0. Such an entry runs on GPUs with
#    the same number before the point, and the same or a higher one after it: ``sm_86``
#    also serves a GPU with 8.9. (In builds for CUDA 13.0 and older, NVIDIA's Jetsons
#    are an exception.) An entry ``compute_…`` also runs on newer generations.
#    ``torch.cuda.get_device_capability()`` gives the number of your GPU.
#
# .. _choose-once:
#
# Choose a device, once
# ---------------------
#
# A script that says ``"cuda"`` in ten places stops on every machine without a CUDA GPU.
# So decide in one place, with this line:

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
three = torch.ones(3, device=device)

print("chosen: ", device)
print("made on:", three.device)

# %%
# The tensor was made on the CUDA GPU if there is one, and on the CPU otherwise.
# (``cuda:0`` is the first GPU.) ``torch.device(…)`` itself only makes a label: it names
# a place, but does not check that the place exists. So the line asks first. **Choose
# once, and pass** ``device`` **to everything that makes a tensor.**
#
# .. fold:: Going further: a line that finds Apple's and Intel's GPUs, too
#
#    The line above finds NVIDIA's and AMD's GPUs, which PyTorch both calls ``cuda``. On
#    a Mac it chooses ``cpu``. PyTorch's word for any processor beside the CPU is
#    :term:`accelerator`, and with :mod:`torch.accelerator` two lines find each:
#
#    .. code-block:: python
#
#       found = torch.accelerator.current_accelerator(check_available=True)
#       device = found or torch.device("cpu")
#
#    (Without ``check_available=True`` you learn what this PyTorch was *built for*, even
#    if there is no such device.) Lessons that measure times use ``choose_device()`` of
#    the course's package, which does the same. It also takes a name, and checks that
#    the device exists: ``choose_device("cuda:99")`` stops with ``device 'cuda:99' (from
#    the argument) is not there``.
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
#      Yes. A :class:`torch.device` is only a label, and this line did not ask
#      ``is_available()``.
#
# No GPU? Practise on a simulated one
# -----------------------------------
#
# This course includes the :term:`practice GPU`. It obeys a GPU's rules, but your CPU does
# the arithmetic, so it is never fast. Where there is no CUDA GPU, the exercise below and
# most lessons use it. **You can make, understand and fix a GPU's errors without a GPU.**
# For speed you need a real one: Google Colab and Kaggle lend one in your browser, free of
# charge within limits, and :doc:`/setup` says how.
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
#       multiplies them there: ``images @ weights.T``. The ``.T`` swaps rows and columns;
#       lesson 2 draws it.
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
#    With ``"cuda"`` alone, ``pick_device`` runs, and the line fails that makes the
#    first tensor. The device is picked in one place, and passed to everything that
#    makes a tensor. So nothing has to be copied, and the result stays on the device.
#    ``choose_device()`` or ``torch.accelerator`` do as well for ``pick_device``.
#
# .. keypoints::
#
#    - A GPU pays off when each product involves a lot of work. For a small product,
#      starting it takes longer than computing it.
#    - ``torch.cuda.is_available()`` says whether PyTorch finds a CUDA GPU. The GPU, its
#      driver and the PyTorch build must fit together, and ``python -m gpulesson`` says
#      which of them does not.
#    - Choose the device in one place and pass it on. ``torch.device(…)`` is only a label.
#
# **Next:** :doc:`/lessons/02_tensors_and_devices` shows what you can do with
# tensors, and how they get to a GPU.

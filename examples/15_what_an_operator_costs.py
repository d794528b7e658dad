"""
15 · What an operator costs
===========================

Say what limits one operator: starting it, moving its bytes, or computing; and choose the
change that helps.

.. overview::
   :teaching: 36
   :exercises: 15

   .. objectives::

      - Compute an operator's arithmetic intensity, and find its place under the roofline.
      - Save launches with a CUDA graph, and bytes with fused operators.
      - Choose shapes and number formats for tensor cores, and state the speed of a
        transformer in tokens a second and as MFU.

   .. prereq::

      - :doc:`Lesson 11 </lessons/11_profile_first>`, for the three limits of a step
      - :doc:`Lesson 12 </lessons/12_speed_ladder>`, for mixed precision and the ladder
"""

# %%
# :doc:`Lesson 11 </lessons/11_profile_first>` named the limit of a whole training
# :term:`step`. A step is made of operators, and each of them has its own limit. One may
# wait for memory while the next keeps all of the arithmetic busy. Here you look at one
# operator at a time.

import warnings
from math import ceil

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from gpulesson import practice_gpu
from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP
from gpulesson.timing import measure

# %%
# The :term:`tensors <tensor>` are so large that they fit into few caches. A :term:`GPU`
# gets even larger ones.

torch.set_num_threads(1)
device = choose_device()
side = 4096 if device.type == "cpu" else 8192
n = side * side
x, y, out = (torch.rand(side, side, device=device) for _ in range(3))
print(f"{side} × {side} numbers, {x.nbytes / 1e6:.0f} MB a tensor")
print(f"{device}: {device_name(device)}, PyTorch {torch.__version__}, 1 CPU thread")

# %%
# Divide the FLOP of an operator by its bytes
# -------------------------------------------
#
# An operator reads its inputs from memory, computes, and writes its result. So it has two
# costs: bytes and :term:`FLOP`. FLOP divided by bytes is its :term:`arithmetic
# intensity`.
#
# Take four operators. The sum of two tensors reads two numbers and writes one, for one
# addition. A :term:`softmax` does about five operations for each number: it looks for the
# largest one, subtracts that, takes the exponential, adds up, and divides. In a linear
# layer without a bias, each number of the weights is multiplied and added once for every
# row of the :term:`batch`. (``out=`` writes into memory that is there, so that we do not
# measure how memory is found.) Which one does most arithmetic for each byte?


def linear(batch):
    return lambda: torch.mm(y[:batch], x, out=out[:batch])


operators = {  # what runs, its FLOP, the numbers that it reads and writes
    "sum": (lambda: torch.add(x, y, out=out), n, 3 * n),
    "softmax": (lambda: torch.softmax(x, dim=1, out=out), 5 * n, 2 * n),
    "linear, batch 1": (linear(1), 2 * n, n + 2 * side),
    "linear, batch 256": (linear(256), 256 * 2 * n, n + 2 * 256 * side),
}
print(f"{'':<18} million FLOP     MB   FLOP per byte")
for name, (_, flop, numbers) in operators.items():
    nbytes = 4 * numbers  # float32
    print(f"{name:<18} {flop / 1e6:12.0f} {nbytes / 1e6:6.0f} {flop / nbytes:15.2f}")

# %%
# The weights are read once, however many rows there are. So the larger the batch, the
# more is computed with each byte. **As long as the batch is much smaller than the layer,
# there is about half a FLOP per byte for each row in float32,** and one in a format of
# two bytes.
#
# These bytes are the least that must move. An operator that reads something twice moves
# more. So does a CPU that writes to other memory than it read: it mostly reads that
# memory, too, before it writes.
#
# Draw the roof of your machine
# -----------------------------
#
# A machine has two ceilings: its :term:`bandwidth` in bytes a second, and its arithmetic
# in FLOP a second. We measure both: the first with a copy of one of these tensors, the
# second with a product of two large matrices. Should an operator move bytes or compute
# more quickly than that, its rate counts.


def fastest(work, repeats=5):
    """Seconds of the fastest run: other programs only make a run slower."""
    return min(measure(work, device=device, warmup=1, repeats=repeats).times)


times = {name: fastest(work) for name, (work, _, _) in operators.items()}
byte_rates = [4 * numbers / times[name] for name, (_, _, numbers) in operators.items()]
flop_rates = [flop / times[name] for name, (_, flop, _) in operators.items()]

half = side // 2
a, b, product = x[:half, :half], y[:half, :half], torch.empty(half, half, device=device)
byte_rate = max(*byte_rates, 2 * x.nbytes / fastest(lambda: out.copy_(x)))
flop_rate = max(*flop_rates, 2 * half**3 / fastest(lambda: torch.mm(a, b, out=product)))
ridge = flop_rate / byte_rate
print(f"bandwidth  {byte_rate / 1e9:8.1f} GB/s")
print(f"arithmetic {flop_rate / 1e9:8.1f} GFLOP/s")
print(f"ridge      {ridge:8.1f} FLOP per byte")

# %%
# The *ridge* is the second divided by the first. An operator has to do so many FLOP with
# each byte, or its arithmetic waits for memory. With a lower intensity it is
# *memory-bound*, with a higher one *compute-bound*. At best, it reaches the lower of two
# rates: its intensity times the bandwidth, or the arithmetic. How near do our operators
# come?

# fold: Set the operators beside the roof


def roof(intensity):
    return min(intensity * byte_rate, flop_rate)


print(f"{'':<18}      ms   GB/s  GFLOP/s  of the roof  limit")
points = {}
for name, (_, flop, numbers) in operators.items():
    seconds, intensity = times[name], flop / (4 * numbers)
    points[name] = intensity, flop / seconds
    limit = "memory" if intensity < ridge else "arithmetic"
    print(
        f"{name:<18} {1e3 * seconds:7.2f} {4 * numbers / seconds / 1e9:6.1f}"
        f" {flop / seconds / 1e9:8.1f} {flop / seconds / roof(intensity):12.0%}  {limit}"
    )

# %%
# Look at the two columns of rates. The first three operators move many bytes a second and
# do few FLOP. The large product does many FLOP a second and moves few bytes.
#
# The picture of this is the :term:`roofline` (`its paper
# <https://doi.org/10.1145/1498765.1498785>`__, from 2009). We add the linear layer with
# more batch sizes:

# fold: Draw the roofline
batches = (1, 4, 16, 64, 256)
layer = {}
for batch in batches:
    flop, numbers = 2 * batch * n, n + 2 * batch * side
    layer[batch] = flop / (4 * numbers), flop / fastest(linear(batch), repeats=3)

left, right = 0.03, 1000
fig, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
corners = [left, ridge, right]
ax.loglog(corners, [roof(each) / 1e9 for each in corners], color="gray", lw=3)
line = [(intensity, rate / 1e9) for intensity, rate in layer.values()]
ax.loglog(*zip(*line, strict=True), "o-", color="C0", label="linear, batch 1 to 256")
for (name, marker), color in zip(
    (("sum", "s"), ("softmax", "^")), ("C1", "C2"), strict=True
):
    intensity, rate = points[name]
    ax.loglog(intensity, rate / 1e9, marker, ms=10, color=color, label=name)
ax.text(0.07, roof(0.4) / 1e9, "bandwidth")
ax.text(ridge * 1.5, flop_rate / 1e9 * 1.3, "arithmetic")
ax.axvline(ridge, color="gray", ls=":")
ax.set(xlabel="FLOP per byte", ylabel="GFLOP/s", xlim=(left, right))
ax.set_ylim(top=flop_rate / 1e9 * 4)
ax.set_title(f"Operators under the roof ({device})")
ax.legend(loc="lower right")
ax.grid(alpha=0.3)
plt.show()

# %%
# **Left of the ridge, fewer bytes help. Right of it, quicker arithmetic helps. Far below
# the roof, something else is the limit**, such as its launch, bytes that we did not
# count, or code that does not suit its sizes. A point can lie a little above the roof as
# well: the roof is a measurement, too, and a cache may spare some of the bytes.
#
# .. play:: roofline
#
#    Move the slider: the layer's point goes up along the roof, and then along the top.
#    From which batch on is arithmetic the limit? The rings are what this page has
#    measured. Then choose another machine, with the numbers of its data sheet, as
#    :doc:`/plan` has them.
#
# .. question:: A linear layer answers one request at a time. What makes it faster?
#
#    - A GPU with twice the arithmetic and the same bandwidth.
#
#      No. With a batch of one, each weight is used once. The layer waits for memory.
#
#    - Weights of two bytes instead of four.
#
#      Yes. Half the bytes have to move, and this layer moves little else.
#
#    - Fewer FLOP, by leaving out the bias.
#
#      No. The bias is one number for each output, beside thousands of weights.
#
# Know what a launch costs
# ------------------------
#
# Bytes and FLOP are not all. Python has to call an operator, PyTorch has to choose a
# :term:`kernel`, and a GPU has to begin with it. This is the :term:`launch overhead`. We
# add 1 to more and more numbers, many times in a row. Up to how many numbers will a call
# take the same time?


def each_call(numbers):
    """Seconds for one of many calls in a row."""
    values, calls = torch.zeros(numbers, device=device), 100 if numbers < 10**6 else 5

    def work():
        for _ in range(calls):
            values.add_(1)

    return fastest(work) / calls


print("   numbers  µs a call  ns a number")
for power in range(8):
    seconds = each_call(10**power)
    print(f"{10**power:10} {1e6 * seconds:10.1f} {1e9 * seconds / 10**power:12.3f}")

# %%
# At first the time of a call hardly grows: it is the launch, and the numbers cost nearly
# nothing. At the end it grows with the numbers, and on a CPU by more than they do, once
# they leave its caches. **A small operator costs its launch, whatever it computes.** On a
# GPU the flat part reaches further, since a GPU works on so many numbers at once. For
# small operators only one thing helps: fewer launches, each with more work.
#
# Capture a step as a CUDA graph
# ------------------------------
#
# A :term:`CUDA graph` launches a whole step at once. Lesson 12 used the package's
# function for that. PyTorch's own way has three rules:
#
# - A graph replays the same kernels *on the same memory*. So there is one tensor for the
#   inputs and one for the targets, and each new batch is copied into them.
# - Python does not run in a replay. So Adam has to count its steps on the :term:`device`,
#   which it does with ``capturable=True``. Otherwise the capture stops with an error.
# - Some ordinary steps come first, on another :term:`stream` than the usual one. They
#   make what is made only once, such as the :term:`optimizer`'s state.


def make_step():
    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    inputs = torch.zeros(64, 784, device="cuda")
    targets = torch.zeros(64, dtype=torch.int64, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, inputs, targets


# %%
# Here is the capture. Inside ``torch.cuda.graph`` the GPU computes nothing: Python runs,
# and what it would launch is only recorded.


def capture(step, warm_up):
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        warm_up()
    torch.cuda.current_stream().wait_stream(side_stream)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph, loss


# %%
# We train on ten batches, once with ordinary steps, and once with three of them and seven
# replays. Without a GPU, the :term:`practice GPU` runs this. It replays graphs as a GPU
# does, but has no speed. Will the :term:`losses <loss>` be the same?


def train(batches, by_graph):
    step, inputs, targets = make_step()
    losses = []

    def ordinary(some):
        for images, labels in some:
            inputs.copy_(images), targets.copy_(labels)
            losses.append(step())

    if not by_graph:
        ordinary(batches)
        return torch.stack(losses).tolist()
    graph, loss = capture(step, lambda: ordinary(batches[:3]))
    for images, labels in batches[3:]:
        inputs.copy_(images), targets.copy_(labels)
        graph.replay()
        losses.append(loss.clone())  # the next replay writes into it again
    return torch.stack(losses).tolist()


# %%
with practice_gpu():
    torch.manual_seed(1)
    patterns = torch.rand(10, 784, device="cuda")  # a picture for each class
    labels = torch.randint(10, (10, 64), device="cuda")
    batches = list(zip(patterns[labels], labels, strict=True))
    plain, graphed = train(batches, by_graph=False), train(batches, by_graph=True)

apart = max(abs(a - b) for a, b in zip(plain, graphed, strict=True))
print(f"losses by ordinary steps: {plain[0]:.4f} … {plain[-1]:.4f}")
print(f"losses by a graph:        {graphed[0]:.4f} … {graphed[-1]:.4f}")
print(f"at most {apart:.0e} apart")

# %%
# The replays trained on other batches than those that the capture saw. **A graph
# fixes the kernels, their sizes and their addresses; only what lies there changes.**
# So a step cannot be captured if it reads a value, such as with ``loss.item()``, and it
# cannot be replayed with other :term:`shapes <shape>`. A number of Python's, such as the
# :term:`learning rate` ``1e-3``, is fixed as well; a tensor on the device can be changed.
# (`PyTorch's page <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>`__
# has the full list.)
#
# .. question:: A list of losses from seven replays has one number, seven times. Why?
#
#    - The learning rate is too small.
#
#      No. Even a small rate changes the last digits.
#
#    - The loop says ``inputs = batch`` instead of ``inputs.copy_(batch)``.
#
#      No, though this is a common mistake. The graph then trains on the old batch again
#      and again, and that batch's loss still changes.
#
#    - The list keeps ``loss`` itself, and not a copy.
#
#      Yes. All replays write into the same tensor, so in the end each place of the list
#      shows the last loss.
#
# You can also capture a part of a step, and leave the rest to Python. Then data may
# decide what comes next, and the optimizer need not be capturable. Meanwhile
# detach what you keep of ordinary steps: an :term:`autograd graph` stops the capture.

# fold: Going further: only the model as a graph

with practice_gpu():
    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).cuda()
    example, inputs = (torch.rand(64, 784, device="cuda") for _ in range(2))
    with torch.no_grad():  # its autograd graph would stop the capture
        ordinary = model(inputs)
    graphed = torch.cuda.make_graphed_callables(model, (example,))
    outputs = graphed(inputs)  # one graph
    outputs.square().mean().backward()  # and another one
    print("same outputs:", torch.allclose(outputs, ordinary))

# %%
# Fuse a chain of pointwise operators
# -----------------------------------
#
# The sigmoid brings any number between 0 and 1. Written out it is a chain of four
# *pointwise* operators: each number of the result needs one number of the input. Each
# operator reads the whole tensor from memory, and writes it back. PyTorch also has the
# sigmoid in one piece. How many bytes does either way move?


def written_out(x, out):
    torch.neg(x, out=out)
    return out.exp_().add_(1).reciprocal_()  # 1 / (1 + exp(-x))


# %%
# We count the bytes as in lesson 11, and measure the time:

# fold: Count the operators and the bytes, and time both ways


class Count(TorchDispatchMode):
    operators = nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view or func is torch.ops.aten._unsafe_view.default:
            return result  # moves nothing
        others = [value for name, value in kwargs.items() if name != "out"]
        tensors = tree_leaves((args, others, result))
        self.operators += 1
        self.nbytes += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


ways = {"written out": written_out, "in one piece": torch.sigmoid}
counts, times = {}, {}
for name, way in ways.items():
    with Count() as counts[name]:
        way(x, out=out)
    times[name] = fastest(lambda way=way: way(x, out=out))
if device.type == "cuda":  # a CPU's compiler takes long
    try:
        compiled = torch.compile(lambda x: 1 / (1 + torch.exp(-x)))
        times["compiled"] = fastest(lambda: compiled(x))
    except Exception as error:
        print("not compiled:", type(error).__name__)

print(f"{'':<13} operators    MB       ms")
for name, seconds in times.items():
    count = counts.get(name)
    moved = f"{count.operators:9} {count.nbytes / 1e6:5.0f}" if count else " " * 15
    print(f"{name:<13} {moved} {1e3 * seconds:8.2f}")

# %%
# The one operator reads each number once, does all of the arithmetic, and writes the
# result: it is :term:`fused`. That saves bytes and launches, and no FLOP. **A pointwise
# chain costs its bytes, so fuse it.** (On a CPU the time falls by less than the bytes.
# Three of the four operators write where they read, so they do not need the extra read
# from above.)
#
# :term:`torch.compile` writes a kernel for a
# chain of pointwise operators. It needs a C++ compiler on a CPU, and on a GPU Triton and
# a C compiler.
#
# Keep the scores of attention out of memory
# ------------------------------------------
#
# *Attention*, which lesson 12 trains with, has such a chain between two products. Each
# place of a text has a score for each place, itself too. In language models a *mask*
# hides the later places. Written out, each operator reads or writes the whole table of
# scores. How many bytes does PyTorch's one call move?

places, dtype = 1024, torch.bfloat16 if device.type == "cuda" else torch.float32
q, k, v = torch.randn(3, 1, 4, places, 64, device=device, dtype=dtype)
later = torch.ones(places, places, dtype=torch.bool, device=device).triu(1)
earlier = ~later


def by_hand():
    scores = q @ k.transpose(-2, -1) / 64**0.5
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v


one_call = F.scaled_dot_product_attention
ways = {
    "written out": by_hand,
    "one call, mask": lambda: one_call(q, k, v, attn_mask=earlier),
    "one call, is_causal": lambda: one_call(q, k, v, is_causal=True),
}

# %%

# fold: Count the bytes of the three ways, time them, and compare the results
print(f"{'':<20} operators    MB       ms  largest difference")
for name, way in ways.items():
    with Count() as count:
        found = way()
    seconds, apart = fastest(way, repeats=3), (found - by_hand()).abs().max().item()
    print(
        f"{name:<20} {count.operators:9} {count.nbytes / 1e6:5.0f} {1e3 * seconds:8.2f}"
        f"  {apart:.0e}"
    )

# %%
# The results differ by rounding. The fast kernels behind the one call take a
# block of scores, use it, and forget it. With them the table is never in a GPU's
# :term:`device memory`. The best known is FlashAttention (`its paper
# <https://arxiv.org/abs/2205.14135>`__). **Say** ``is_causal=True`` **instead of giving
# a mask:** then no mask is made or read, and hidden blocks are left out.
#
# Behind the call are several *backends*. PyTorch takes one that knows your device, number
# format and mask. ``sdpa_kernel`` allows only those that you name. Which can run here?

from torch.nn.attention import SDPBackend, sdpa_kernel

print(f"{'':<20} float32  bfloat16")
for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
    answers = []
    for dtype in (torch.float32, torch.bfloat16):
        some = [part.to(dtype) for part in (q, k, v)]
        try:
            with sdpa_kernel(getattr(SDPBackend, name)), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they say why it cannot
                one_call(*some, is_causal=True)
            answers.append("runs")
        except RuntimeError:
            answers.append("no")
    print(f"{name:<20} {answers[0]:<8} {answers[1]}")

# %%
# ``MATH`` is attention written out, for what the others cannot do. If attention is slow
# on a GPU, allow ``FLASH_ATTENTION`` alone: `warnings say why it cannot run
# <https://github.com/Dao-AILab/flash-attention/issues/1321>`__, such as float32 or a
# mask. For masks of your own, `FlexAttention <https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html>`__
# compiles such a kernel from a function in Python.
#
# Look inside a GPU
# -----------------
#
# Why do bytes cost so much, and why do shapes matter? A GPU is made of many equal parts,
# its :term:`streaming multiprocessors <streaming multiprocessor>`, in short SM. An H100
# `has up to 132
# <https://developer.nvidia.com/blog/nvidia-hopper-architecture-in-depth/>`__. Each has
# its own arithmetic and its own small memory, and all share one large memory:
#
# .. drawing:: gpu_inside.svg
#
#    The nearer a memory is to the arithmetic, the quicker and the smaller it is.
#
# An SM runs its threads in groups of 32, each called a :term:`warp`. When a warp waits
# for memory, the SM goes on with another one. So it wants many at hand. The
# :term:`occupancy` is how many there are, as a share of those that it could hold. If each
# thread of a kernel needs many registers, the SM holds fewer. That `need not be slow
# <https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy>`__: a
# good matrix product keeps in them what it uses again and again.
#
# Give tensor cores the shapes that they like
# -------------------------------------------
#
# The :term:`tensor cores <tensor core>` of an SM multiply small blocks of matrices, and
# do far more FLOP a second than its other units. Whether a product uses them, and how
# well, depends on two things.
#
# *The number format.* They multiply float16 since the V100, and :term:`bfloat16` since
# the A100. Float32 they multiply if it may be rounded to :term:`TF32`, since the A100 as
# well. PyTorch has a switch for products and one for convolutions. How are they set?

print("TF32 in products:    ", torch.backends.cuda.matmul.allow_tf32)
print("TF32 in convolutions:", torch.backends.cudnn.allow_tf32)

# %%
# Without a word from you, convolutions use TF32 and products do not (`PyTorch's page
# <https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices>`__).
# **So make TF32 your first change on such a GPU, and compare bf16 with that, not with
# plain float32.** One line sets it for products:
#
# .. code-block:: python
#
#    torch.set_float32_matmul_precision("high")
#
# .. fold:: Going further: the newer switch
#
#    Since PyTorch 2.9 there is ``torch.backends.cuda.matmul.fp32_precision = "tf32"``,
#    and ``torch.backends.cudnn.conv.fp32_precision`` for convolutions. Use either the
#    newer switches or the older ones: after a newer one is written, reading the older
#    ones for the same thing can raise an error. PyTorch's compiler did that itself in
#    some versions, and failed (`an issue of PyTorch
#    <https://github.com/pytorch/pytorch/issues/166387>`__).
#
# *The sizes.* Tensor cores work best if the widths of the matrices are multiples of 16
# bytes, which is 8 numbers of two bytes, and on an A100 of 128 bytes (`NVIDIA's guide
# <https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html>`__).
# So `nanoGPT <https://github.com/karpathy/nanoGPT>`__ pads GPT-2's vocabulary of 50,257
# to 50,304.
#
# And a product is cut into tiles, which the SMs compute side by side, one *wave* after
# the other. Tiles at the edge are partly empty, and the last wave may be, too. How much
# of the work is useful, if a tile has 128 × 256 numbers?


def useful(rows, columns, sms=132, tile=(128, 256)):
    tiles = ceil(rows / tile[0]) * ceil(columns / tile[1])
    waves = ceil(tiles / sms)
    return tiles, tiles / sms, rows * columns / (waves * sms * tile[0] * tile[1])


print(" rows  columns  tiles  waves  useful")
for shape in ((4096, 4096), (4096, 4352), (4097, 4097), (512, 512)):
    tiles, waves, share = useful(*shape)
    print(f"{shape[0]:5} {shape[1]:8} {tiles:6} {waves:6.2f} {share:7.0%}")

# %%
# A few columns more, and the product may take a wave longer. A small product does not
# even fill the first wave. This is a simple model: NVIDIA's library chooses among many
# tiles, and may divide a sum among several SMs. **Take sizes that are multiples of 64 or
# 128, and measure the sizes around the one that you want.**
#
# State a transformer's speed in tokens and FLOP
# ----------------------------------------------
#
# People who train language models count *tokens* a second: pieces of text. How much
# arithmetic is one token? In the :term:`forward pass` each :term:`parameter` is
# multiplied and added once for it, 2 FLOP, and in the :term:`backward pass` twice as
# much. So N parameters and D tokens need about 6·N·D FLOP (`the paper that made it known
# <https://arxiv.org/abs/2001.08361>`__). Is that right for a small transformer?

block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(block, 4, enable_nested_tensor=False).to(device)
tokens = torch.randn(8, 64, 128, device=device)  # 8 texts of 64 tokens, as vectors


def step():
    model.zero_grad()
    model(tokens).square().mean().backward()


parameters, tokens_a_step = sum(p.numel() for p in model.parameters()), 8 * 64
with FlopCounterMode(display=False) as counter:
    step()
counted, rule = counter.get_total_flops(), 6 * parameters * tokens_a_step
print(f"{parameters:,} parameters: {rule / 1e9:.2f} GFLOP a step by the rule,")
print(f"{counted / 1e9:.2f} GFLOP counted")

# %%
# The rule leaves out that each token is compared with all others of its text, and that
# part grows with the length of the texts. Here they are short. Divide by the time of a
# step, and by the best rate that this page has measured:

seconds = fastest(step)
best = max(flop_rate, *(rate for _, rate in layer.values()))
print(f"{tokens_a_step / seconds:,.0f} tokens a second")
print(f"{rule / seconds / 1e9:.1f} of {best / 1e9:.1f} GFLOP/s", end=", ")
print(f"which is {rule / seconds / best:.0%}")

# %%
# With a data sheet's peak instead of our measured product, and with the FLOP of attention
# added, this share is the :term:`MFU` (`its definition
# <https://arxiv.org/abs/2204.02311>`__). **Tokens a second tell you how long a run takes;
# MFU tells you how much of the hardware it uses.**
#
# .. instructor-note::
#
#    Many learners take a low MFU for a fault of the hardware. Let them name the limit of
#    one layer first: by its intensity, its launches, or its shape.
#
# Exercise
# --------
#
# .. exercise:: From which batch on does a layer compute?
#    :minutes: 15
#    :difficulty: medium
#    :starter: exercise_15.py
#
#    You write two functions about a linear layer without a bias. Nothing has to be
#    measured.
#
#    1. **Predict:** a layer with 4096 inputs and 4096 outputs, in numbers of two bytes,
#       on an H200. From which batch size on is arithmetic its limit: 16, 64, 256, 1024?
#    2. Write ``cost``: the FLOP and the bytes of one call.
#    3. Write ``limit``: the least time of the call, and what sets it.
#    4. Run the file. It prints a line for each batch size. Were you right?
#
#    To check it: ``python -m gpulesson check exercise_15.py``.
#
#    You are done when both functions have a check mark.
#
# .. solution::
#    :file: solution_15.py
#
#    The bytes are the weights, once, and the rows that come and go. The time is the
#    longer of two times, not their sum: a GPU computes while it loads.
#
# .. keypoints::
#
#    - Divide FLOP by bytes. Below the ridge fewer bytes help, above it quicker
#      arithmetic.
#    - A small operator costs its launch: a CUDA graph saves launches. A chain of
#      pointwise operators costs its bytes: fusing saves them.
#    - TF32 first, then two bytes; sizes that fill tiles and waves. 6·N·D FLOP give the
#      MFU.
#
# **Next:** your own script. :doc:`/review` names what costs time in it, and
# :doc:`/scaling` says what a thousand GPUs change.

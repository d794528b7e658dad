"""CUDA graphs: what a capture records and refuses, and what a replay does, against the same steps by hand."""

import copy
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import database
import pytest
import test_false_alarms
import torch
from processes import run_script
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from practice_gpu import PracticeError, practice_gpu
from practice_gpu.graphs import recording

FORBIDDEN = "operation not permitted when stream is capturing"
SPOILT = "operation failed due to a previous error during capture"
UNPINNED = "unless the CPU tensor is pinned"

Model = nn.Module
Tensor = torch.Tensor


@pytest.fixture(params=["practice", pytest.param("real", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[str]:
    """The practice GPU, and a real one where there is one: yields which."""
    if request.param == "real":
        gc.collect()  # a graph that dies in another's capture spoils that one
        with torch.cuda.stream(torch.cuda.default_stream()):  # a spoilt capture leaves its stream current
            yield "real"
    else:
        with practice_gpu(memory="1 GiB", force=True):
            yield "practice"


def same(cuda: str, found: Any, expected: Any) -> None:
    """The same bits as on the CPU; on a real GPU, the same numbers within rounding."""
    found, expected = [[part.detach().cpu() for part in parts] for parts in (found, expected)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if cuda == "real":
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        else:
            assert torch.equal(one, other)


def captured(body: Callable[[], Any], graph: torch.cuda.CUDAGraph | None = None, **options: Any) -> Any:
    """Capture a function; return the graph and what the function returned."""
    graph = graph or torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = body()
    return graph, result


# -- what a capture leaves, what a replay does


def test_a_capture_computes_nothing_and_a_replay_does(cuda):
    ran = []
    x = torch.zeros(2, device="cuda")

    def body():
        ran.append(1)
        x.add_(1)
        return x * 2

    graph, y = captured(body)
    assert x.tolist() == [0.0, 0.0]
    for n in (1.0, 2.0, 3.0):
        graph.replay()
        assert (x.tolist(), y.tolist()) == ([n, n], [2 * n, 2 * n])
    assert ran == [1]


def test_the_private_memory_reads_nan_before_the_first_replay(gpu):
    x = torch.arange(6.0, device="cuda")
    graph, (y, half, places, wide) = captured(
        lambda: (x + 1, (x / 2).bfloat16(), x.argsort(), torch.complex(x, x)[1:])
    )
    assert y.isnan().all() and half.isnan().all() and wide.isnan().all()
    assert places.tolist() == [0] * 6
    graph.replay()
    assert y.tolist() == [1, 2, 3, 4, 5, 6] and places.tolist() == [0, 1, 2, 3, 4, 5]
    assert wide[0].item() == 1 + 1j


def test_a_replay_reads_what_is_in_the_memory_now(cuda):
    x, rate = torch.ones(3, device="cuda"), torch.tensor(2.0, device="cuda")
    factor = 3.0
    graph, y = captured(lambda: x * rate * factor)
    x.fill_(10.0)
    rate.fill_(5.0)
    factor = 100.0
    graph.replay()
    assert y.tolist() == [150.0] * 3
    x[1:].zero_()
    graph.replay()
    assert y.tolist() == [150.0, 0.0, 0.0]


def test_a_number_on_the_host_is_read_at_the_capture(cuda):
    x, number = torch.ones(2, device="cuda"), torch.tensor(3.0)
    graph, y = captured(lambda: x * number)
    number.fill_(7.0)
    graph.replay()
    assert y.tolist() == [3.0, 3.0]


def test_the_hosts_own_work_is_done_once_at_the_capture(cuda):
    host, x = torch.zeros(2), torch.zeros(2, device="cuda")
    graph, other = captured(lambda: (x.add_(1), host.add_(1), torch.full((2,), 5.0))[2])
    assert host.tolist() == [1.0, 1.0] and other.tolist() == [5.0, 5.0]
    graph.replay()
    assert host.tolist() == [1.0, 1.0] and x.tolist() == [1.0, 1.0]


def test_views_strides_and_conjugates(cuda):
    x = torch.arange(12.0, device="cuda").view(3, 4)
    z = torch.tensor([1 + 2j, 3 - 1j], device="cuda")

    def body():
        x.t()[1].mul_(10)
        x[::2, 1:3].add_(100)
        return x.t().contiguous(), z.conj() * 2, z.conj().imag + 1, x.expand(2, 3, 4).sum(0)

    before = x.clone()
    graph, results = captured(body)
    assert torch.equal(x, before)
    graph.replay()
    found = [part.clone() for part in (*results, x)]
    x.copy_(before)
    expected = body()
    same(cuda, found, (*expected, x))


def test_in_place_work_on_what_the_capture_made_starts_anew_each_time(cuda):
    def body():
        total = torch.zeros(3, device="cuda")
        total += 1
        total[1:] *= 5
        buffer = torch.empty(2, device="cuda")
        buffer.copy_(total[1:])
        return total, buffer

    graph, (total, buffer) = captured(body)
    for _ in range(3):
        graph.replay()
        assert total.tolist() == [1, 5, 5] and buffer.tolist() == [5, 5]
    del total
    graph.replay()
    assert buffer.tolist() == [5, 5]


def test_memory_that_is_made_empty_keeps_what_was_written_to_it(gpu):
    graph, buffer = captured(lambda: torch.empty(2, device="cuda"))
    buffer.fill_(3.0)
    graph.replay()
    assert buffer.tolist() == [3.0, 3.0]


def test_replaying_inside_autocast_and_inference_mode_changes_nothing(cuda):
    a, b = torch.rand(3, 3, device="cuda"), torch.rand(3, 3, device="cuda")
    a @ b  # cuBLAS initialises
    graph, product = captured(lambda: a @ b)
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        graph.replay()
    assert product.dtype is torch.float32
    same(cuda, [product], [a.cpu() @ b.cpu()])


def test_capture_in_inference_mode(cuda):
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).cuda(), torch.rand(2, 4, device="cuda")
    with torch.inference_mode():
        model(x)  # cuBLAS initialises
        graph, y = captured(lambda: F.softmax(model(x), 1))
    x.fill_(0.5)
    graph.replay()
    same(cuda, [y], [F.softmax(copy.deepcopy(model).cpu()(torch.full((2, 4), 0.5)), 1)])


FIRST_PRODUCT = """
import torch
a = torch.rand(3, 3, device="cuda", requires_grad=True)
if {before!r}:
    exec({before!r})
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        exec({within!r})
except RuntimeError as error:
    said = error.__context__ or error
    print(type(said).__name__, str(said).splitlines()[0], "|", str(error).splitlines()[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "within", "refused"),
    [
        ("a @ a", "(a @ a).sum().backward()", True),  # the backward pass has a thread of its own
        pytest.param("", "a @ a", True, marks=pytest.mark.thorough),
        pytest.param("a @ a", "a @ a", False, marks=pytest.mark.thorough),
        ("(a @ a).sum().backward(); a.grad = None", "(a @ a).sum().backward()", False),
        pytest.param("", "a + a", False, marks=pytest.mark.thorough),
    ],
)
def test_cublas_has_to_be_initialised_before_a_capture(cuda, before, within, refused, warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FIRST_PRODUCT.format(before=before, within=within))
    run = run_script(warm if cuda == "practice" else None, script, tmp_path, practice=cuda == "practice")
    said = (
        "RuntimeError CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)` | "
        f"CUDA error: {SPOILT}\n"
    )
    assert run.stdout == (said if refused else "")


def test_with_a_default_device(gpu):
    torch.set_default_device("cuda")
    try:
        x = torch.zeros(3)
        graph, (y, host) = captured(lambda: (x.add_(1) + torch.ones(3), torch.ones(2, device="cpu")))
        graph.replay()
        assert (y.tolist(), host.tolist(), y.is_cuda) == ([2.0] * 3, [1.0] * 2, True)
        graph.replay()
        assert y.tolist() == [3.0] * 3
    finally:
        torch.set_default_device(None)


def test_nobody_sees_the_operators_of_a_replay(cuda):
    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts.append(func)
            return func(*args, **(kwargs or {}))

    counts: list[Any] = []
    x = torch.zeros(3, device="cuda")
    graph, _ = captured(lambda: x.add_(1))
    with Counts():
        graph.replay()
    assert not counts
    assert x.tolist() == [1.0] * 3


# -- training


def network(dropout: float = 0.0) -> Model:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4)
    )


def data(batches: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.randn(batches, 8, 6), torch.randint(4, (batches, 8))


def sgd(model: Model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: Model, **options: Any) -> torch.optim.Optimizer:
    on_cuda = next(model.parameters()).is_cuda
    return torch.optim.Adam(model.parameters(), lr=0.01, capturable=on_cuda, **options)


OPTIMIZERS = {
    "sgd": sgd,
    "adam, one by one": lambda model: adam(model, foreach=False),
    "adam, foreach": lambda model: adam(model, foreach=True),
    "adam, fused": lambda model: torch.optim.Adam(
        model.parameters(), lr=0.01, fused=True, capturable=next(model.parameters()).is_cuda
    ),
}


class Steps:
    """A model that is trained by hand, or by replaying one step."""

    def __init__(
        self, model: Model, optimizer: torch.optim.Optimizer, amp: bool = False, scaler: Any = None
    ) -> None:
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.kind = next(model.parameters()).device.type
        self.amp = torch.autocast(self.kind, torch.bfloat16, enabled=amp, cache_enabled=False)
        self.graph: Any = None

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with self.amp:
            loss = F.cross_entropy(self.model(x), y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def by_hand(self, batches: Any) -> list[Tensor]:
        return [self.step(x.to(self.kind), y.to(self.kind)).clone() for x, y in batches]

    def capture(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.cuda(), y.cuda()
        self.optimizer.zero_grad(set_to_none=True)
        self.graph, self.loss = captured(lambda: self.step(self.x, self.y))

    def replayed(self, batches: Any) -> list[Tensor]:
        losses = []
        for x, y in batches:
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
            losses.append(self.loss.clone())
        return losses

    def everything(self) -> list[Tensor]:
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        return [*self.model.state_dict().values(), *state]


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_as_by_hand(cuda, name, amp):
    if cuda == "real" and amp:
        pytest.skip("bfloat16 on the CPU and on a GPU are not comparable over several steps")
    batches = list(zip(*data(), strict=True))
    model = network()
    twin = copy.deepcopy(model)
    if cuda == "real" or name in ("adam, one by one", "adam, foreach"):
        twin.cuda()  # with capturable=True these calculate otherwise, and not on the CPU
    graphed = Steps(model.cuda(), OPTIMIZERS[name](model), amp)
    hand = Steps(twin, OPTIMIZERS[name](twin), amp)
    found, expected = graphed.by_hand(batches[:2]), hand.by_hand(batches[:2])
    before = copy.deepcopy(graphed.everything())
    graphed.capture(*batches[2])
    same(cuda, graphed.everything(), before)  # a capture trains nothing, batch statistics included
    same(cuda, found + graphed.replayed(batches[2:]), expected + hand.by_hand(batches[2:]))
    same(cuda, graphed.everything(), hand.everything())


@pytest.mark.parametrize("grad", [True, False], ids=["gradients on", "gradients off"])
def test_a_recurrent_network_has_its_gradients(cuda, grad):
    """The CPU's LSTM leaves its backward pass what it needs only where gradients are enabled."""
    torch.manual_seed(0)
    layer, inputs = nn.LSTM(6, 5), torch.randn(3, 8, 6)
    twin = copy.deepcopy(layer)
    layer, inputs = layer.cuda(), inputs.cuda()
    if cuda == "real":  # cuDNN may round as TF32 does
        twin.cuda()
    step = lambda: torch.autograd.grad(layer(inputs)[0].square().sum(), layer.parameters())  # noqa: E731
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()  # libraries initialise
    graph, gradients = captured(step, stream=side)
    with torch.set_grad_enabled(grad):
        graph.replay()
    expected = torch.autograd.grad(
        twin(inputs.to(twin.weight_hh_l0.device))[0].square().sum(), twin.parameters()
    )
    same(cuda, gradients, expected)


def test_a_grad_scaler_with_a_fused_optimizer(gpu):
    batches = list(zip(*data(), strict=True))
    model = network()
    twin = copy.deepcopy(model)
    make = OPTIMIZERS["adam, fused"]
    graphed = Steps(model.cuda(), make(model), True, torch.amp.GradScaler("cuda", growth_interval=3))
    hand = Steps(twin, make(twin), True, torch.amp.GradScaler("cpu", growth_interval=3))
    graphed.by_hand(batches[:2]), hand.by_hand(batches[:2])
    graphed.capture(*batches[2])
    same("practice", graphed.replayed(batches[2:]), hand.by_hand(batches[2:]))
    same("practice", graphed.everything(), hand.everything())
    assert graphed.scaler.get_scale() == hand.scaler.get_scale() > 65536


def test_a_rate_that_is_a_float_is_frozen_and_a_tensor_is_read(gpu):
    x, y = (part[0].cuda() for part in data())
    for rate, moves in ((0.01, True), (torch.tensor(0.01, device="cuda"), False)):
        model = network().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
        steps = Steps(model, optimizer)
        steps.by_hand([(x, y)])
        steps.capture(x, y)
        if isinstance(rate, Tensor):
            rate.zero_()
        else:
            optimizer.param_groups[0]["lr"] = 0.0
        before = model[0].weight.detach().clone()
        steps.graph.replay()
        assert torch.equal(before, model[0].weight) is not moves


def test_adam_that_cannot_be_captured_says_so(cuda):
    x, y = (part[0].cuda() for part in data())
    model = network().cuda()
    steps = Steps(model, torch.optim.Adam(model.parameters()))
    steps.by_hand([(x, y)])
    if not torch.backends.cuda.is_built():
        pytest.skip("a PyTorch without CUDA does not look")
    with pytest.raises(RuntimeError, match="capturable is False"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps.capture(x, y)


def test_a_gradient_from_before_the_capture_is_added_to(cuda):
    model = nn.Linear(3, 1).cuda()
    x = torch.rand(4, 3, device="cuda")
    model(x).sum().backward()
    before = model.weight.grad.clone()
    graph, _ = captured(lambda: model(x).sum().backward())
    assert torch.equal(model.weight.grad, before)
    graph.replay()
    graph.replay()
    same(cuda, [model.weight.grad], [3 * before])


def test_make_graphed_callables_of_pytorch(cuda):
    batches = list(zip(*data(), strict=True))
    x = batches[0][0].cuda()
    model = network()
    twin = copy.deepcopy(model)
    model.cuda()
    before = copy.deepcopy(model.state_dict())
    torch.cuda.make_graphed_callables(model, (torch.zeros_like(x),))
    model.load_state_dict(before)  # the warm-up moved the batch statistics
    graphed, hand = Steps(model, sgd(model)), Steps(twin, sgd(twin))
    same(cuda, graphed.by_hand(batches), hand.by_hand(batches))
    same(cuda, graphed.everything(), hand.everything())
    model.eval()
    twin.eval()
    same(cuda, [model(x)], [twin(x.cpu())])


def test_make_graphed_callables_with_indices_between_the_two_passes(cuda):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten())
    second = nn.Sequential(nn.Linear(27, 5), nn.Tanh())
    twins = copy.deepcopy(first), copy.deepcopy(second)
    x = torch.randn(2, 1, 8, 8)
    samples = (
        (torch.randn(2, 1, 8, 8, device="cuda"),),
        (torch.randn(2, 27, device="cuda", requires_grad=True),),
    )
    first, second = torch.cuda.make_graphed_callables((first.cuda(), second.cuda()), samples)
    for _ in range(2):
        for module in (first, second, *twins):
            module.zero_grad()
        second(first(x.cuda())).square().sum().backward()
        twins[1](twins[0](x)).square().sum().backward()
    found = [parameter.grad for module in (first, second) for parameter in module.parameters()]
    same(cuda, found, [parameter.grad for twin in twins for parameter in twin.parameters()])


# -- random numbers


def test_random_numbers_of_every_kind_are_those_of_the_host(gpu):
    def draw(device):
        x = torch.full((5,), 0.5, device=device)
        return [
            torch.rand(3, device=device), torch.randn_like(x), x.bernoulli(), x.clone().normal_(),
            torch.randperm(6, device=device), torch.randint(9, (4,), device=device),
            torch.rrelu(x - 1, training=True), torch.multinomial(x, 2), F.dropout(x),
        ]  # fmt: skip

    torch.manual_seed(3)
    expected = draw("cpu") + draw("cpu")
    torch.manual_seed(3)
    graph, results = captured(lambda: draw("cuda"))
    found = []
    for _ in range(2):
        graph.replay()
        found += [result.clone() for result in results]
    same("practice", found, expected)
    with torch.inference_mode():
        graph, y = captured(lambda: F.dropout(torch.ones(9, device="cuda")))
    torch.manual_seed(4)
    graph.replay()
    torch.manual_seed(4)
    same("practice", [y], [F.dropout(torch.ones(9))])


def test_a_replay_draws_differently_on_a_real_gpu_as_well(cuda):
    x = torch.ones(1000, device="cuda")
    state = torch.cuda.get_rng_state()
    graph, y = captured(lambda: F.dropout(x))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


def test_a_generator_of_ones_own(gpu, monkeypatch):
    x = torch.zeros(4, device="cuda")
    generator = torch.Generator("cuda").manual_seed(5)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    captured(lambda: x.uniform_(generator=generator), graph)
    host = torch.Generator().manual_seed(5)
    for _ in range(2):
        graph.replay()
        same("practice", [x], [torch.rand(4, generator=host)])
    other = torch.Generator("cuda").manual_seed(5)
    monkeypatch.setattr(recording, "_LAZY_GENERATORS", True)  # PyTorch from 2.12 on
    lazy, y = captured(lambda: torch.rand(4, device="cuda", generator=other))
    lazy.replay()
    same("practice", [y], [torch.rand(4, generator=torch.Generator().manual_seed(5))])
    monkeypatch.setattr(recording, "_LAZY_GENERATORS", False)
    with pytest.raises(RuntimeError, match="for a CUDA generator not in capture mode"):
        captured(lambda: (x.add_(1), torch.rand(4, device="cuda", generator=other)))
    captured(lambda: (x.add_(1), torch.rand(4, generator=host)))  # the host's are its own business


def test_seeds_in_a_capture(gpu):
    x = torch.zeros(4, device="cuda")
    torch.cuda.manual_seed(7)
    with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
        captured(lambda: (x.add_(1), torch.cuda.manual_seed(8)))
    captured(lambda: (x.add_(1), torch.cuda.manual_seed(7)))
    with pytest.raises(PracticeError, match="setting a generator's state"):
        captured(lambda: (x.add_(1), torch.cuda.set_rng_state(torch.cuda.get_rng_state())))


# -- what is refused

WAITS = {
    "item": lambda t, e: t[0].item(),
    "float": lambda t, e: float(t[0]),
    "if": lambda t, e: bool(t[0] > 0),
    "print": lambda t, e: str(t),
    "mask": lambda t, e: t[t > 0],
    "nonzero": lambda t, e: t.nonzero(),
    "masked_select": lambda t, e: t.masked_select(t > 0),
    "unique": lambda t, e: t.unique(),
    "synchronize": lambda t, e: torch.cuda.synchronize(),
    "stream": lambda t, e: torch.cuda.current_stream().synchronize(),
    "stream query": lambda t, e: torch.cuda.current_stream().query(),
    "event": lambda t, e: e.synchronize(),
    "blocking copy of pinned memory": lambda t, e: t.copy_(e.pinned),
    "another capture": lambda t, e: captured(lambda: t + 1),
}
COPIES = {
    "cpu": lambda t: t.cpu(),
    "to cpu": lambda t: t.to("cpu"),
    "numpy": lambda t: t.cpu().numpy(),
    "tolist": lambda t: t.tolist(),
    "to cuda": lambda t: torch.ones(3).to("cuda"),
    "cuda": lambda t: torch.ones(3).cuda(non_blocking=True),
    "tensor": lambda t: torch.tensor(1.0, device="cuda"),
    "copy_": lambda t: t.copy_(torch.ones(3)),
    "copy_ to the host": lambda t: torch.ones(3).copy_(t, non_blocking=True),
    "copy_ of a part, which is spread out": lambda t: t.copy_(
        torch.ones(3).pin_memory()[:1], non_blocking=True
    ),
    "index on the host": lambda t: t[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("name", WAITS)
def test_the_host_may_not_wait_in_a_capture(cuda, name):
    t = torch.ones(3, device="cuda")
    event = torch.cuda.Event()
    event.record()
    event.pinned = torch.ones(3).pin_memory()
    with pytest.raises(torch.AcceleratorError, match=SPOILT) as caught:
        captured(lambda: (t.add_(1), WAITS[name](t, event)))
    chain: BaseException | None = caught.value
    texts = []
    while chain is not None:
        texts.append(str(chain))
        chain = chain.__context__
    assert any(FORBIDDEN in text for text in texts), texts
    assert not torch.cuda.is_current_stream_capturing()
    assert t.tolist() == [1.0] * 3
    graph, _ = captured(lambda: t.add_(1))
    graph.replay()
    assert t.tolist() == [2.0] * 3


@pytest.mark.parametrize("name", COPIES)
def test_memory_of_the_host_must_be_pinned_in_a_capture(cuda, name):
    t = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=UNPINNED):
        captured(lambda: (t.add_(1), COPIES[name](t)))
    assert t.tolist() == [1.0] * 3


def test_what_comes_after_a_wait_fails_as_well(gpu):
    t = torch.ones(3, device="cuda")

    def body():
        with pytest.raises(torch.AcceleratorError, match=FORBIDDEN):
            t.sum().item()
        with pytest.raises(torch.AcceleratorError, match=SPOILT):
            t + 1
        torch.ones(3) + 1

    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match=SPOILT):
        captured(body, graph)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    captured(lambda: t.add_(1), graph)
    graph.replay()
    assert t.tolist() == [2.0] * 3


def test_the_texts_are_those_of_the_cuda_runtime():
    cudart = getattr(torch._C, "_cudart", None)
    if cudart is None:
        pytest.skip("PyTorch is built without CUDA")
    for code, error in ((900, recording.errors.capturing()), (901, recording.errors.capture_spoilt()),
                        (907, recording.errors.captured_event())):  # fmt: skip
        text = cudart.cudaGetErrorString(cudart.cudaError(code))
        assert str(error).startswith(f"CUDA error: {text}\nSearch for `cudaError")
        assert type(error) is torch.AcceleratorError


def test_an_event_of_a_capture_has_no_moment(gpu):
    x = torch.ones(2, device="cuda")
    event, outside = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True, external=True)
    captured(lambda: (x.add_(1), event.record(), outside.record()))
    for ask in (event.synchronize, event.query, lambda: event.elapsed_time(outside)):
        with pytest.raises(torch.AcceleratorError, match="an event last recorded in a capturing stream"):
            ask()
    outside.synchronize()
    event.record()
    event.synchronize()


def test_an_error_of_the_block_ends_the_capture(cuda):
    x = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def body():
        x.add_(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        captured(body, graph)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert x.tolist() == [0.0, 0.0]
    graph.replay()  # as far as it came
    assert x.tolist() == [1.0, 1.0]


def test_what_an_object_may_be_asked_in_which_order(cuda):
    x = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=r"CUDAGraph::pool\(\) without a preceding successful capture"):
        graph.pool()
    with pytest.raises(RuntimeError):
        graph.replay()
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        captured(lambda: x.add_(1), graph, stream=torch.cuda.default_stream())
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        captured(lambda: x.add_(1), torch.cuda.CUDAGraph(), capture_error_mode="strict")
    torch.cuda.set_stream(torch.cuda.default_stream())  # PyTorch leaves the other one
    graph = torch.cuda.CUDAGraph()
    captured(lambda: x.add_(1), graph, capture_error_mode="relaxed")
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        captured(lambda: x.add_(1), graph)
    graph.reset()
    captured(lambda: x.add_(5), graph, capture_error_mode="thread_local")
    graph.replay()
    assert x.tolist() == [5.0, 5.0]


def test_an_empty_graph_warns(cuda):
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph, _ = captured(lambda: None)
    graph.replay()


def test_what_is_not_simulated(gpu):
    graph, x = torch.cuda.CUDAGraph(keep_graph=True), torch.zeros(2, device="cuda")
    with pytest.raises(PracticeError, match=r"does not simulate torch\.cuda\.CUDAGraph\.debug_dump"):
        graph.debug_dump("graph.dot")
    assert not hasattr(graph, "something_else")
    captured(lambda: x.add_(1), graph)
    graph.instantiate()
    with pytest.raises(PracticeError, match="the replay of a CUDA graph in a capture"):
        captured(lambda: (x.add_(1), graph.replay()))
    with pytest.raises(PracticeError, match="sparse"):
        captured(lambda: torch.sparse.mm(torch.eye(2, device="cuda").to_sparse(), x.view(2, 1)))


@pytest.mark.slow
@database.SHARES
def test_every_operator_of_pytorchs_database_replays_as_it_runs(every: int) -> None:
    """One sample of each; what draws random numbers sets a seed, and what is made empty has no values."""
    outcomes: dict[str, list[str]] = {}
    operators = [
        op
        for op in database.operators(every)
        if torch.float32 in op.dtypes and not any(p in op.name for p in test_false_alarms.RANDOM)
    ]
    with practice_gpu(force=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators:
            outcomes.setdefault(replay_one(op), []).append(f"{op.name}.{op.variant_test_name}")
    print({outcome: len(names) for outcome, names in outcomes.items()})
    assert len(outcomes.pop("same")) >= 570 // every
    for expected in ("no sample", FORBIDDEN, UNPINNED, "original seed", "sparse"):
        outcomes.pop(expected, None)
    assert not outcomes, outcomes


def replay_one(op: Any) -> str:
    """Capture an operator and replay it twice; return what came of it."""
    put = partial(tree_map_only, Tensor, lambda tensor: tensor.detach().clone().cuda())
    try:
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))
        inputs = sample.input, sample.args, sample.kwargs
        ours, theirs = put(inputs), put(inputs)
        expected = op(theirs[0], *theirs[1], **theirs[2])
    except Exception:  # made for a GPU only, or the CPU cannot do it
        return "no sample"
    before = put(ours)
    try:
        graph, found = captured(lambda: op(ours[0], *ours[1], **ours[2]))
    except (RuntimeError, NotImplementedError) as error:
        texts = f"{error} {error.__context__}"
        known = [text for text in (FORBIDDEN, UNPINNED, "original seed", "sparse") if text in texts]
        return known[0] if known else texts
    for replay in range(2):
        for place, value in zip(tree_leaves(ours), tree_leaves(before), strict=True):
            if replay and isinstance(place, Tensor) and place.numel():
                place.copy_(value)  # what works in place begins with the same numbers again
        graph.replay()
    pairs = zip(tree_leaves((found, ours)), tree_leaves((expected, theirs)), strict=True)
    rtol = 1e-5 if op.name in WITH_VECTORS else 0
    wrong = [pair for pair in pairs if isinstance(pair[0], Tensor) and not equal(*pair, rtol)]
    return "different" if wrong else "same"


WITH_VECTORS = {"linalg.cond", "linalg.eigvalsh", "linalg.svdvals"}
"""While a mode watches, and a capture is watched by one, PyTorch computes the vectors with these values
(`isTensorSubclassLike` in BatchLinearAlgebra.cpp), by another of LAPACK's algorithms."""


def equal(one: Tensor, other: Tensor, rtol: float = 0) -> bool:
    if one.dtype is torch.complex32:  # PyTorch compares none
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return one.dtype is other.dtype and torch.allclose(one, other, equal_nan=True, rtol=rtol, atol=0)


# -- memory that is gone


def test_memory_that_was_given_back_is_an_error_at_the_replay(gpu):
    tensors = [torch.ones(3, device="cuda")]
    graph, y = captured(lambda: tensors[0] * 2)
    graph.replay()
    assert y.tolist() == [2.0] * 3
    tensors.clear()
    with pytest.raises(PracticeError, match=r"given back since the capture.*a real GPU often says nothing"):
        graph.replay()


def test_load_state_dict_of_the_optimizer_makes_new_memory_that_of_the_model_does_not(gpu):
    x, y = (part[0] for part in data())
    model = network().cuda()
    steps = Steps(model, adam(model))
    steps.by_hand([(x, y)] * 2)
    steps.capture(x, y)
    model.load_state_dict(network().state_dict())
    steps.graph.replay()
    steps.optimizer.load_state_dict(copy.deepcopy(steps.optimizer.state_dict()))
    with pytest.raises(PracticeError, match=r"capture again after optimizer.load_state_dict\(\)"):
        steps.graph.replay()


def test_the_memory_of_another_graph(gpu):
    x = torch.ones(3, device="cuda")
    between = []
    first, _ = captured(lambda: between.append(x * 2))
    second, z = captured(lambda: between[0] + 1, pool=first.pool())
    between.clear()
    second.replay()  # reads what the first graph has never computed
    assert z.isnan().all()
    first.replay()
    second.replay()
    assert z.tolist() == [3.0] * 3
    del first  # its memory is the second one's as well
    second.replay()
    first, _ = captured(lambda: between.append(x * 2))
    third, _ = captured(lambda: between[0] + 1)
    del first
    between.clear()
    with pytest.raises(PracticeError, match="given back since the capture"):
        third.replay()


# -- copies from and to pinned memory


def test_a_pinned_copy_is_done_again_by_every_replay(cuda):
    host, back = torch.ones(3).pin_memory(), torch.zeros(3).pin_memory()
    x = torch.zeros(3, device="cuda")

    def body():
        y = host.to("cuda", non_blocking=True)
        x.copy_(host, non_blocking=True)
        back.copy_(y + x, non_blocking=True)
        half = host.to("cuda", torch.bfloat16, non_blocking=True)
        return y, (y * 3).to("cpu", non_blocking=True), half

    graph, (y, there, half) = captured(body)
    assert x.tolist() == [0.0] * 3 and back.tolist() == [0.0] * 3
    for value in (1.0, 4.0):
        host.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == x.tolist() == [value] * 3
        assert back.tolist() == [2 * value] * 3
        assert half.tolist() == [value] * 3 and half.dtype is torch.bfloat16
        assert there.tolist() == [3 * value] * 3


def test_the_log_a_capture_waits_once_and_a_replay_never(gpu):
    host, x = torch.ones(3).pin_memory(), torch.ones(3, device="cuda")
    gpu.clear_events()
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True) * 2)
    assert [(event.kind, event.call, event.count) for event in gpu.events] == [
        ("wait", "torch.cuda.synchronize()", 1)
    ]
    gpu.clear_events()
    for _ in range(5):
        graph.replay()
    (copies,) = gpu.events
    assert (copies.kind, copies.call) == ("host to device", "CUDAGraph.replay()")
    assert (copies.count, copies.nbytes, copies.waits) == (5, 60, 0)
    assert copies.filename == __file__


# -- memory


def test_the_count_of_memory(gpu):
    x = torch.ones(128, device="cuda")  # 512 bytes
    start = gpu.memory().allocated

    def body():
        one = x + 1
        two = one + 1
        del one
        three = two + 1
        return three  # two blocks at once at most, one at the end

    graph, y = captured(body)
    assert gpu.memory().allocated == start + 512
    torch.cuda.empty_cache()
    assert gpu.memory().reserved == start + 1024  # the graph keeps what it used
    assert torch.cuda.mem_get_info()[0] == gpu.memory().capacity - start - 1024
    counts = gpu.memory()
    for _ in range(3):
        graph.replay()
    assert gpu.memory() == counts
    del y
    assert gpu.memory().allocated == start
    torch.cuda.empty_cache()
    assert gpu.memory().reserved == start + 1024
    graph.reset()
    torch.cuda.empty_cache()
    assert gpu.memory().reserved == start


def test_graphs_that_share_a_pool_keep_its_memory_once(gpu):
    x = torch.ones(128, device="cuda")
    start = gpu.memory().allocated

    def keeps(pools):
        held = [captured(lambda: (x + 1).sum(), pool=pool)[0] for pool in pools]
        torch.cuda.empty_cache()
        return gpu.memory().reserved - start, held

    handle = torch.cuda.graph_pool_handle()
    assert keeps([handle, handle])[0] == 1024
    gc.collect()
    assert keeps([None, None])[0] == 2048
    held = keeps([None])[1]
    held.append(captured(lambda: (x + 1).sum(), pool=held[0].pool())[0])
    assert held[0].pool() == held[1].pool() == held[1].pools()[0]


def test_memory_that_a_graph_keeps_is_not_there_for_others():
    with practice_gpu(memory="8 KiB", force=True):
        x = torch.ones(128, device="cuda")
        graph, _ = captured(lambda: x.expand(8, 128).contiguous().sum())  # 4 KiB, and a block that lives
        with pytest.raises(torch.OutOfMemoryError, match=r"4\.00 KiB is reserved by PyTorch but unallocated"):
            torch.ones(1024, device="cuda")
        graph.reset()
        torch.ones(1024, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            captured(lambda: (x.add_(1), torch.ones(4096, device="cuda")))
        assert x.sum().item() == 128


def test_a_wrong_label_is_found_at_the_replay(gpu):
    x, y = torch.rand(2, 3, device="cuda"), torch.tensor([0, 1], device="cuda")
    graph, _ = captured(lambda: F.cross_entropy(x, y))
    y.fill_(7)
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        graph.replay()


# -- streams, names, threads


def test_which_stream_is_capturing(cuda):
    if not hasattr(torch.cuda.Stream, "is_capturing"):
        pytest.skip("this PyTorch's streams cannot be asked")
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    seen = []
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        assert torch.cuda.current_stream() == stream
        seen += [torch.cuda.is_current_stream_capturing(), stream.is_capturing(), side.is_capturing()]
        side.wait_stream(stream)
        seen.append(side.is_capturing())
        with torch.cuda.stream(side):
            x.add_(1)
        stream.wait_stream(side)
    seen += [torch.cuda.is_current_stream_capturing(), stream.is_capturing(), side.is_capturing()]
    assert seen == [True, True, False, True, False, False, False]


def test_two_devices():
    with practice_gpu(count=2, force=True), torch.cuda.device(1):
        x = torch.zeros(3, device="cuda")
        other = torch.ones(3, device="cuda:0")
        torch.cuda.manual_seed(3)
        graph, (y, drawn) = captured(lambda: (x.copy_(other) + 1, torch.rand(2, device="cuda")))
        graph.replay()
        assert y.device.index == 1 and y.tolist() == [2.0] * 3
        same("practice", [drawn], [torch.rand(2, generator=torch.Generator().manual_seed(3))])


def test_capture_begin_and_end_without_the_context_manager(cuda):
    x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        x.add_(1)
        graph.capture_end()
    graph.replay()
    assert x.tolist() == [1.0, 1.0]


def test_another_thread_goes_on_meanwhile(gpu):
    x, seen = torch.zeros(2, device="cuda"), []

    def other():
        y = torch.ones(2, device="cuda") + 1
        seen.append((y.tolist(), torch.cuda.is_available()))
        with pytest.raises(torch.AcceleratorError, match=FORBIDDEN):
            torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match=SPOILT), torch.cuda.graph(graph):
        x.add_(1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [([2.0, 2.0], True)]

"""Operators come by a dispatch key, or by a mode while another mode watches them; nobody notices which."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from practice_gpu import practice_gpu
from practice_gpu.operators.dispatch import Operators, keys

pytestmark = pytest.mark.skipif(keys.KEY is None, reason="this PyTorch has no key to spare")


class Seen(TorchDispatchMode):
    """Notes operators, and where their results are."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.places: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operators.append(func.overloadpacket.__name__)
        self.places.append(result.device.type)
        return result


def modes() -> int:
    return torch._C._len_torch_dispatch_stack()


def included() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_included(keys.KEY)


def test_there_is_no_mode_and_in_the_end_no_key():
    with practice_gpu(force=True):
        assert (modes(), included()) == (0, True)
        assert (torch.ones(2, device="cuda") * 2).is_cuda
    assert (modes(), included()) == (0, False)


def test_another_mode_sees_views_and_results_that_are_placed(gpu):
    x = torch.ones(2, 3, device="cuda")
    with Seen() as outer, Seen() as inner:
        y = (x.t() * 2).detach()
        assert y.is_cuda
    for seen in (outer, inner):
        assert {"t", "mul", "detach"} <= set(seen.operators)
        assert set(seen.places) == {"cuda"}
    assert modes() == 0
    assert (x + y.t()).is_cuda


def test_what_another_mode_computes_is_placed(gpu):
    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) * 2

    x = torch.ones(3, device="cuda")
    with Doubles():
        y = x + 1
    assert (y.is_cuda, y.tolist()) == (True, [4.0] * 3)


def test_an_exception_in_another_mode_leaves_the_key(gpu):
    with pytest.raises(RuntimeError, match="same device"), Seen():
        torch.ones(2, device="cuda") + torch.ones(2)
    assert (modes(), included()) == (0, True)


def test_a_mode_that_was_open_before_stays_above_nothing():
    with Seen() as seen:
        with practice_gpu(force=True):
            assert not included()
            x = torch.ones(2, device="cuda") + 1
            assert x.is_cuda
        assert modes() == 1
    assert "add" in seen.operators


def test_what_is_not_to_be_dispatched_is_not_seen(gpu):
    x = torch.ones(200, device="cuda")
    before = gpu.memory()
    for unseen in (torch._C._DisableTorchDispatch, keys.unobserved):
        with unseen():
            y = x + 1
        assert not y.is_cuda
    assert gpu.memory() == before
    assert (x + 1).is_cuda


def test_views_do_not_come_to_the_kernel(gpu, monkeypatch):
    seen = []
    see = Operators.see
    monkeypatch.setattr(
        Operators, "see", lambda self, func, *rest: seen.append(func) or see(self, func, *rest)
    )
    x = torch.ones(2, 3, device="cuda")
    seen.clear()
    y = x.t().detach().view(3, 2)[1:].unsqueeze(0).expand(4, 2, 2)
    assert y.is_cuda
    assert not seen
    assert (y + 1).is_cuda
    assert [func.name() for func in seen] == ["aten::add.Tensor"]


def test_autograds_own_threads_go_on_after_another_thread_has_ended(gpu):
    """Backward passes in backward passes take threads of autograd's own, beyond a depth of sixty."""
    thread = threading.Thread(target=lambda: torch.ones(2, device="cuda") * 2)
    thread.start()
    thread.join()
    places = set()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            places.add((gradient * 2).device.type)
            if ctx.depth:
                with torch.enable_grad():
                    x = torch.ones(2, device="cuda", requires_grad=True)
                    Nested.apply(x, ctx.depth - 1).sum().backward()
                    places.add(x.grad.device.type)
            return gradient * 2, None

    x = torch.ones(2, device="cuda", requires_grad=True)
    Nested.apply(x, 70).sum().backward()
    assert places == {"cuda"}
    assert (x.grad.is_cuda, x.grad.tolist()) == (True, [2.0, 2.0])


def test_without_a_key_a_mode_does_it(monkeypatch):
    """As in versions of PyTorch that have none to spare."""
    monkeypatch.setattr(keys, "KEY", None)
    with practice_gpu(force=True):
        assert modes() == 1
        with Seen() as seen:
            assert (torch.ones(2, device="cuda") * 2).is_cuda
        graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
        with torch.cuda.graph(graph):
            x.mul_(2)
        graph.replay()
        assert x.tolist() == [2, 2]
    assert seen.places and modes() == 0

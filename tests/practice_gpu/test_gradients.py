"""Gradients that cross from one device to another on their way back."""

import pytest
import torch


def assigned(w, out):
    out[0] = w.sigmoid().sum()
    out[1:] = w[1:].double() * 2
    return out


COPIES = [
    (assigned, [0.19661193, 2.19661193, 2.19661193]),
    (lambda w, out: out.copy_(w * 3), [3.0, 3.0, 3.0]),
    (lambda w, out: out[:2].copy_(w[1:] * w[0]), [2.0, 1.0, 1.0]),
    (lambda w, out: out.view(3, 1)[:, 0].copy_(w), [1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("write", "expected"), COPIES)
@pytest.mark.parametrize("devices", [("cuda:0", "cpu"), ("cpu", "cuda:1"), ("cuda:0", "cuda:1")])
def test_the_gradient_of_a_copy_into_a_tensor_comes_back(two, write, expected, devices):
    w = torch.ones(3, device=devices[0], requires_grad=True)
    out = torch.zeros(3, device=devices[1])
    result = write(w, out)
    assert result.device == torch.device(devices[1])
    result.sum().backward()
    assert w.grad.device == torch.device(devices[0])
    assert torch.allclose(w.grad.cpu(), torch.tensor(expected))
    copied = [event for event in two.events if event.call == ".copy_()"]
    assert sum(event.count for event in copied) == (2 if write is assigned else 1)


def test_rows_at_indices_are_not_moved(two):
    w = torch.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.zeros(3)[torch.tensor([0, 2])] = w
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.zeros(3)[[0, 2]] = w


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda p, c, h: p * c, 6.0),
        (lambda p, c, h: p.exp() * c, 6 * 2.718281828),
        (lambda p, c, h: torch.where(c > 0, c, p.square()), 0.0),
        (lambda p, c, h: c.masked_fill(c > 0, p.square()), 6.0),
        (lambda p, c, h: (p * c).sum().cpu() + (p * h).sum(), 9.0),
        (lambda p, c, h: (p * h).sum() + (p * c).sum().cpu(), 9.0),
    ],
)
def test_the_gradient_of_a_number_on_the_cpu_comes_back_to_it(two, use, expected):
    """CUDA lets a tensor without dimensions join, and autograd moves its gradient."""
    c, h = torch.full((3,), 2.0, device="cuda"), torch.ones(3)
    numbers = [torch.tensor(1.0, requires_grad=True), torch.ones(2, requires_grad=True)]
    for tensor in numbers:
        for _ in range(2):
            tensor.grad = None
            use(tensor.prod(), c, h).sum().backward()
            assert tensor.grad.device.type == "cpu"
            assert torch.allclose(tensor.grad, torch.tensor(expected))
        (gradient,) = torch.autograd.grad(use(tensor.prod(), c, h).sum(), tensor)
        assert gradient.device.type == "cpu"
    use(numbers[0], c, h).sum().backward()
    assert numbers[0].grad.device.type == "cpu"
    (gradient,) = torch.autograd.grad(use(numbers[0], c, h).sum(), numbers[0], create_graph=True)
    assert gradient.device.type == "cpu"
    optimizer = torch.optim.Adam(numbers, foreach=False)
    optimizer.step()
    assert optimizer.state[numbers[0]]["exp_avg"].device.type == "cpu"


def test_a_hook_may_not_move_a_gradient(two):
    w = torch.ones(2, device="cuda", requires_grad=True)
    seen: list[str] = []
    w.register_hook(lambda gradient: seen.append(str(gradient.device)))
    doubled = w * 2
    doubled.register_hook(lambda gradient: gradient * 3)
    doubled.sum().backward()
    assert seen == ["cuda:0"] and w.grad.tolist() == [6.0, 6.0]

    def to_host(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.cpu()

    doubled = w * 2
    doubled.register_hook(to_host)
    with pytest.raises(RuntimeError) as caught:
        doubled.sum().backward()
    assert str(caught.value) == (
        "hook 'to_host' has changed the type of value (was torch.cuda.FloatTensor got torch.FloatTensor)"
    )

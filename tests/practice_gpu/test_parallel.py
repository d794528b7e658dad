"""Several devices in one call, and several processes."""

import pytest
import torch
from torch import distributed, nn
from torch.cuda import comm

from practice_gpu import practice_gpu


def places(tensors):
    return [tensor.device.index for tensor in tensors]


def model_and_gradients() -> tuple[nn.Module, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return a model, inputs, and what plain PyTorch computes: outputs and gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.rand(12, 3)
    expected = model(x)
    expected.pow(2).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return model, x, expected, gradients


@pytest.mark.parametrize("count", [1, 2, 3])
def test_data_parallel_shares_the_batch_among_all_devices(count):
    model, x, expected, gradients = model_and_gradients()
    seen = []
    with practice_gpu(count=count, force=True):
        model[0].register_forward_hook(lambda module, given, made: seen.append(made.device.index))
        outputs = nn.DataParallel(model.cuda())(x.cuda())
        assert sorted(seen) == list(range(count))
        assert outputs.device.index == 0
        outputs.pow(2).sum().backward()
        assert all(parameter.grad.device.index == 0 for parameter in model.parameters())
        assert torch.allclose(outputs.cpu(), expected)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert torch.allclose(parameter.grad.cpu(), gradient, atol=1e-6)


def test_data_parallel_takes_inputs_from_the_host_and_wants_its_parameters_on_the_device():
    with practice_gpu(count=2, force=True):
        parallel = nn.DataParallel(nn.Linear(3, 2).cuda())
        assert parallel(torch.ones(4, 3)).device.index == 0
        parallel.cpu()
        with pytest.raises(RuntimeError, match=r"must have its parameters and buffers on device cuda:0"):
            parallel(torch.ones(4, 3))
    assert nn.parallel._functions._streams is None


def test_communication_between_devices(two):
    five = torch.arange(5.0)
    halves = comm.scatter(five, [0, 1])
    assert [half.tolist() for half in halves] == [[0, 1, 2], [3, 4]]
    assert places(halves) == [0, 1]
    assert [piece.numel() for piece in comm.scatter(five, [1, 0], chunk_sizes=[1, 4])] == [1, 4]
    assert comm.gather(halves, destination=1).tolist() == five.tolist()
    assert comm.gather(halves, destination="cpu").device.type == "cpu"
    assert places(comm.broadcast(five, [0, 1])) == [0, 1]
    first, second = comm.broadcast_coalesced([five.cuda(), five.cuda()], [0, 1])
    assert (places(first), places(second)) == ([0, 0], [1, 1])
    total = comm.reduce_add(comm.broadcast(five, [0, 1]), 1)
    assert (total.tolist(), total.device.index) == ([0, 2, 4, 6, 8], 1)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        comm.broadcast(five, [0, 2])


def test_communication_into_given_tensors(two):
    given = [torch.zeros(2, device="cuda:0"), torch.zeros(3, device="cuda:1")]
    comm.scatter(torch.arange(5.0), out=given)
    assert [tensor.tolist() for tensor in given] == [[0, 1], [2, 3, 4]]
    assert comm.gather(given, out=torch.zeros(5, device="cuda:1")).tolist() == [0, 1, 2, 3, 4]
    assert comm.broadcast(torch.ones(2), out=given[:1])[0].tolist() == [1, 1]


# -- processes

ALONE = {"rank": 0, "world_size": 1}


def test_a_model_trains_in_a_process_group_of_gloo(gpu):
    distributed.init_process_group("gloo", store=distributed.HashStore(), **ALONE)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2).cuda(), device_ids=[0])
        model(torch.ones(4, 3, device="cuda")).sum().backward()
        assert model.module.weight.grad.is_cuda
        total = torch.ones(2, device="cuda")
        distributed.all_reduce(total)
        assert total.is_cuda
    finally:
        distributed.destroy_process_group()

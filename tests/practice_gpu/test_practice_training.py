"""Ordinary training code runs on the practice GPU, unmodified, and computes what the CPU computes."""

import io
import multiprocessing
import os

import loops
import pytest
import torch
from torch import nn

from practice_gpu import practice_gpu


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop", [loops.sliced_batches, loops.fashion, loops.iris], ids=["S0.5", "S1.13", "S3.8"]
)
def test_the_loops_of_the_sources_compute_what_the_cpu_computes(loop):
    expected = loop()
    with practice_gpu(force=True) as gpu:
        found = loop()
        assert gpu.memory().peak > 0
    assert found == expected
    assert found[0] != found[1]


def test_a_cnn_with_all_that_belongs_to_it():
    with practice_gpu(force=True):
        result = loops.convolutions("cuda")
        tensors = [*result["model"].parameters(), *result["model"].buffers()]
        state = [value["momentum_buffer"] for value in result["optimizer"].state.values()]
        assert {str(tensor.device) for tensor in [*tensors, *state, result["norm"]]} == {"cuda:0"}
    assert result["dtypes"] == {torch.bfloat16}
    assert result["losses"][-1] < result["losses"][0] / 2
    assert result["lr"] == [0.05 * 0.25]
    assert result["scale"] == 65536.0


def test_the_scaler_skips_a_step_that_overflowed(gpu):
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 32768.0


@pytest.mark.parametrize("loop", [loops.recurrent, loops.transformer])
def test_other_architectures_compute_what_the_cpu_computes(loop):
    expected = loop("cpu")
    with practice_gpu(force=True):
        found = loop("cuda")
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("map_location", [None, "cpu", "cuda", torch.device("cuda:0"), {"cuda:0": "cpu"}])
def test_optimizer_state_resumes_with_and_without_map_location(map_location):
    with practice_gpu(force=True):
        straight, resumed = loops.half_way("cuda", map_location, io.BytesIO())
    assert resumed == straight


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"pin_memory": True}, {"num_workers": 2, "pin_memory": True}], ids=str
)
def test_data_loaders_with_workers_and_pinned_memory(options):
    expected = loops.loaded("cpu")
    with practice_gpu(force=True):
        found = loops.loaded("cuda", **options)
        assert found.is_cuda
        assert found.item() == pytest.approx(expected.item())


def test_pinned_batches_do_not_make_the_host_wait():
    with practice_gpu(force=True) as gpu:
        loops.loaded("cuda", pin_memory=True)
        pinned = [event for event in gpu.events if event.kind == "host to device" and event.call == ".to()"]
        gpu.clear_events()
        loops.loaded("cuda")
        pageable = [event for event in gpu.events if event.kind == "host to device" and event.call == ".to()"]
    assert sum(event.count for event in pinned) == sum(event.count for event in pageable) == 8
    assert sum(event.waits for event in pinned) == 0
    assert sum(event.waits for event in pageable) == 8


@pytest.mark.slow
def test_a_dataset_on_the_device_cannot_feed_forked_workers(gpu):
    dataset = loops.on_tensors("cuda")
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=3))
    assert all(part.is_cuda for batch in batches for part in batch)
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(
            torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context="fork")
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_forked_child_may_use_cuda_only_if_its_parent_has_not():
    def work():
        torch.ones(2).cuda().sum().item()

    def exit_code():
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(60)
        return child.exitcode

    with practice_gpu(force=True):
        assert exit_code() == 0
        assert not torch.cuda.is_initialized()
        work()
        assert exit_code() == 1


def test_moving_a_model_keeps_its_identity_and_an_optimizer_built_before(gpu):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model[0].weight
    assert model.to("cuda") is model
    assert model[0].weight is weight
    assert {str(t.device) for t in [*model.parameters(), *model.buffers()]} == {"cuda:0"}
    model(torch.rand(4, 3, device="cuda")).sum().backward()
    assert weight.grad.is_cuda
    before = weight.tolist()
    optimizer.step()
    assert weight.tolist() != before
    assert model.cpu() is model
    assert not weight.is_cuda
    assert not weight.grad.is_cuda


PLAIN = "Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam ASGD Rprop LBFGS"
OPTIMIZERS: dict[str, dict[str, object]] = {
    **{name: {} for name in PLAIN.split()},
    "Adam, fused": {"fused": True},
    "Adam, one by one": {"foreach": False},
    "Adam, amsgrad": {"amsgrad": True},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "SGD, fused": {"momentum": 0.9, "fused": True},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_on_the_cpu(name):
    def train(device):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        kind = getattr(torch.optim, name.split(",")[0])
        optimizer = kind(model.parameters(), lr=0.1, **OPTIMIZERS[name])
        inputs = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)).to(device)

        def closure():
            optimizer.zero_grad()
            loss = (model(inputs) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return model.weight.detach()

    expected = train("cpu")
    with practice_gpu(force=True):
        found = train("cuda")
        assert found.is_cuda
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_flow_back_through_a_move(gpu):
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = x.to("cuda")
    assert y.grad_fn.name() == "ToCopyBackward0"
    assert not y.is_leaf
    (y**2).sum().cpu().backward()
    assert x.grad.tolist() == [4.0, 6.0]
    assert x.grad.device.type == "cpu"

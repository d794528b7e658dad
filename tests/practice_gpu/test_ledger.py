"""The simulated memory: what tensors take, when they give it back, and when there is no more."""

import gc
import threading

import pytest
import torch

from practice_gpu import practice_gpu
from practice_gpu.sizes import format_size, parse_size


@pytest.fixture
def gpu():
    with practice_gpu(memory="64 MiB", force=True) as gpu:
        yield gpu


def test_a_small_tensor_takes_one_block_of_512_bytes(gpu):
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    x = torch.FloatTensor([1.0, 2.0]).cuda()
    assert before == (0, 0)
    assert (
        torch.cuda.memory_allocated()
        == torch.cuda.max_memory_allocated()
        == torch.cuda.memory_reserved()
        == 512
    )
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved() == 512
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved() == 0


@pytest.mark.parametrize("elements, expected", [(0, 0), (1, 512), (128, 512), (129, 1024), (1000, 4096)])
def test_bytes_are_rounded_up_to_blocks(gpu, elements, expected):
    x = torch.zeros(elements, device="cuda")
    assert x.numel() == elements
    assert torch.cuda.memory_allocated() == expected


def test_views_take_nothing_and_keep_their_base(gpu):
    x = torch.zeros(1024, device="cuda")
    views = [x[3:], x.view(32, 32).t(), x.detach(), x.expand(2, -1), torch.nn.Parameter(x)]
    assert all(view.is_cuda for view in views)
    assert torch.cuda.memory_allocated() == 4096
    del x
    assert torch.cuda.memory_allocated() == 4096
    views.clear()
    assert torch.cuda.memory_allocated() == 0


def test_a_training_step_takes_weights_gradients_and_optimizer_state(gpu):
    layer = torch.nn.Linear(256, 128, bias=False).cuda()
    size = 256 * 128 * 4
    optimizer = torch.optim.Adam(layer.parameters())
    x = torch.rand(8, 256, device="cuda")
    at_rest = torch.cuda.memory_allocated()
    assert at_rest == size + 8 * 256 * 4
    layer(x).sum().backward()
    assert torch.cuda.memory_allocated() == at_rest + size
    optimizer.step()
    assert torch.cuda.memory_allocated() == at_rest + 3 * size  # the gradient and Adam's two moments
    optimizer.zero_grad()
    assert torch.cuda.memory_allocated() == at_rest + 2 * size


def test_activations_are_kept_for_backward_and_then_given_back(gpu):
    x = torch.rand(1024, 1024, device="cuda", requires_grad=True)
    y = x.exp().sin().sum()
    kept = torch.cuda.memory_allocated()
    assert kept == 2 * 4 * 2**20 + 512  # x, exp(x); the sine needs its input alone; the sum
    y.backward()
    assert torch.cuda.memory_allocated() == 2 * 4 * 2**20 + 512  # x and its gradient
    assert torch.cuda.max_memory_allocated() >= 3 * 4 * 2**20


def test_resizing_is_followed(gpu):
    x = torch.zeros(128, device="cuda")
    x.resize_(1280)
    assert torch.cuda.memory_allocated() == 5120
    out = torch.empty(0, device="cuda")
    torch.add(x, x, out=out)
    assert torch.cuda.memory_allocated() == 10240
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 5120


def test_out_of_memory_has_the_text_and_type_of_cuda(gpu):
    x = torch.zeros(4 * 2**20, device="cuda")  # 16 MiB
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.zeros(16 * 2**20, device="cuda")
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which "
        "48.00 MiB "
        "is free. Including non-PyTorch memory, this process has 16.00 MiB memory in use. Of the allocated "
        "memory "
        "16.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If "
        "reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )
    assert isinstance(caught.value, RuntimeError)
    del caught
    assert torch.cuda.memory_allocated() == x.nbytes


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(2**19, "2.00 MiB"), (6 * 2**20, "20.00 MiB"), (11 * 2**20, "12.00 MiB"), (31 * 2**19, "16.00 MiB")],
)
def test_the_error_names_what_the_allocator_asks_for(nbytes, said):
    with (
        practice_gpu(memory="1 KiB", force=True),
        pytest.raises(torch.OutOfMemoryError, match=f"Tried to allocate {said}"),
    ):
        torch.zeros(nbytes // 4, device="cuda")


def test_what_does_not_fit_is_not_computed_first(gpu):
    huge = 2**46  # more than any machine has
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 262144.00 GiB"):
        torch.zeros(huge, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1).expand(huge).cuda()
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 262144.00 GiB. GPU 0 has a total capacity"
    ):
        torch.ones(1, device="cuda").expand(huge) * 2
    with pytest.raises(torch.OutOfMemoryError):
        torch.rand(2**25, device="cuda")


def test_a_fraction_of_the_memory_can_be_allowed(gpu):
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.zeros(7 * 2**20, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"0 bytes memory in use\. 32\.00 MiB allowed; Of the"):
        torch.zeros(9 * 2**20, device="cuda")
    with pytest.raises(ValueError, match="Allowed range: 0~1"):
        torch.cuda.set_per_process_memory_fraction(1.5)


def test_a_loop_that_keeps_its_losses_fills_the_memory(gpu):
    layer = torch.nn.Linear(1024, 1024).cuda()
    kept = []
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(100):
            kept.append(layer(torch.rand(512, 1024, device="cuda")).relu().sum())
    assert 5 < len(kept) < 40
    kept.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() < 16 * 2**20


def test_each_device_has_its_own_memory():
    with practice_gpu(memory="1 MiB", count=2, force=True) as gpu:
        x = torch.zeros(100, device="cuda:1")
        assert gpu.memory(0).allocated == 0
        assert gpu.memory(1).allocated == torch.cuda.memory_allocated(x.device) == 512
        with pytest.raises(torch.OutOfMemoryError, match=r"GPU 1 has a total capacity of 1024\.00 KiB"):
            torch.zeros(2**20, device="cuda:1")


def test_threads_do_not_lose_count(gpu):
    def work():
        for _ in range(300):
            torch.zeros(200, device="cuda") + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.cuda.memory_allocated() == 0
    assert gpu.memory().requests == 4 * 300 * 2


@pytest.mark.parametrize(
    "text, size", [("8 GiB", 2**33), ("512MiB", 2**29), ("1.5 GB", 1_500_000_000), (4096, 4096), ("600", 600)]
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "size, text", [(512, "512 bytes"), (2048, "2.00 KiB"), (20 * 2**20, "20.00 MiB"), (3 * 2**29, "1.50 GiB")]
)
def test_sizes_are_written_as_cuda_writes_them(size, text):
    assert format_size(size) == text

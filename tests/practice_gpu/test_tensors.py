"""What tensors, factory functions and storages say and do about devices."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from processes import run_script
from torch.utils._pytree import tree_map_only

from practice_gpu import PracticeError
from practice_gpu.processes import environment

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
REAL = torch.cuda.is_available()
pytestmark = pytest.mark.usefixtures("gpu")


def test_attributes():
    x = torch.ones(2, 3, device="cuda")
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device(), torch.get_device(x)) == (CUDA, True, False, 0, 0)
    y = x.cpu()
    assert (y.device, y.is_cuda, y.is_cpu, y.get_device()) == (CPU, False, True, -1)
    assert x.type() == "torch.cuda.FloatTensor"
    assert y.type() == "torch.FloatTensor"
    assert type(x) is torch.Tensor
    assert repr(x[0]) == "tensor([1., 1., 1.], device='cuda:0')"
    assert f"{x.sum():.1f}" == "6.0"


@pytest.mark.parametrize("target", ["cuda", "cuda:0", 0, CUDA, torch.device("cuda")])
def test_ways_to_name_the_device(target):
    x = torch.ones(2)
    for moved in (x.to(target), x.to(device=target), x.cuda(target), torch.ones(2, device=target)):
        assert moved.device == CUDA
    assert x.device == CPU
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        x.to("gpu")


def test_to_returns_the_tensor_itself_where_nothing_changes():
    x = torch.ones(2, device="cuda")
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert x.to(torch.float32) is x
    assert x.to(x) is x
    assert x.cpu().cpu().device == CPU
    y = x.to("cuda", copy=True)
    assert y is not x
    assert y.is_cuda


def test_to_converts_types_on_the_way():
    x = torch.ones(2, dtype=torch.int64)
    assert x.to("cuda", torch.float16).dtype is torch.float16
    assert x.to("cuda", dtype=torch.float64, non_blocking=True).dtype is torch.float64
    y = x.to(torch.ones(1, device="cuda"))
    assert (y.dtype, y.device) == (torch.float32, CUDA)
    assert x.type_as(y).is_cuda
    assert y.to("cpu", torch.int32).device == CPU
    assert x.type(torch.cuda.FloatTensor).is_cuda
    assert y.type("torch.LongTensor").device == CPU
    assert torch.ones(1, 2, 3, 4).to("cuda", memory_format=torch.channels_last).stride() == (24, 1, 8, 2)


def test_cpu_and_cuda_can_change_the_layout():
    x = torch.ones(1, 2, 3, 4)
    moved = x.cuda(memory_format=torch.channels_last)
    assert (moved.device, moved.stride()) == (CUDA, (24, 1, 8, 2))
    back = moved.cpu(memory_format=torch.contiguous_format)
    assert (back.device, back.stride()) == (CPU, (24, 12, 4, 1))


def test_to_the_meta_device():
    x = torch.ones(2, device="cuda").to("meta")
    assert x.device.type == "meta"
    assert torch.empty(3, device="meta").device.type == "meta"


def test_what_is_really_elsewhere_is_copied_from_there():
    """As from an Apple GPU; the meta device is the only other one here, and it has nothing to copy."""
    elsewhere = torch.empty(2, device="meta")
    for move, *to in (
        (torch.Tensor.cuda,),
        (torch.Tensor.cpu,),
        (torch.Tensor.to, "cuda"),
        (torch.Tensor.to, "cpu"),
    ):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data"):
            move(elsewhere, *to)


def test_no_other_accelerator_stands_beside_it():
    for kind in (torch.backends.mps, torch.mps, torch.xpu):  # an older PyTorch has not both for each
        assert not getattr(kind, "is_available", bool)()
        assert getattr(kind, "device_count", int)() == 0


def test_numpy():
    x = torch.ones(2, device="cuda")
    assert x.numpy(force=True).tolist() == [1.0, 1.0]
    for attempt in (x.numpy, lambda: np.asarray(x), lambda: np.array(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            attempt()
    assert torch.from_numpy(np.ones(2)).device == CPU


def test_a_lazy_layer_can_be_moved_before_it_has_a_shape():
    layer = torch.nn.LazyLinear(2).cuda()
    assert layer(torch.ones(1, 3, device="cuda")).device == CUDA
    assert layer.weight.device == CUDA


@pytest.mark.parametrize("name", [None, "tensor"])
def test_a_module_moves_to_where_a_tensor_is(name):
    """What reads the arguments of ``Module.to`` is written in C++."""
    for device, dtype in (("cuda:0", torch.float64), ("cpu", torch.float32)):
        tensor = torch.ones(1, device=device, dtype=dtype)
        layer = torch.nn.Linear(2, 2).to(*[] if name else [tensor], **{name: tensor} if name else {})
        assert (str(layer.weight.device), layer.weight.dtype) == (device, dtype)


def test_assigning_data_moves_a_parameter():
    p = torch.nn.Parameter(torch.ones(2))
    p.data = p.data.cuda()
    assert p.is_cuda
    (p * torch.ones(2, device="cuda")).sum().backward()
    assert p.grad.device == CUDA


def test_results_are_where_their_inputs_are():
    x = torch.rand(4, 4, device="cuda")
    results = [
        x + 1, x @ x, x.sum(), x.argmax(1), x > 0.5, *x.max(dim=0), *x.split(2), torch.cat([x, x]),
        x[x > 0.5], x.new_zeros(2), torch.zeros_like(x), torch.rand_like(x), x.clone(), x.to_sparse(),
        x.to_sparse().to_dense(),
        torch.linalg.svd(x)[1], torch.fft.fft(x), x.unbind()[0], torch.meshgrid(x[0], x[1], indexing="ij")[0],
        x.to_sparse_csr(), torch.tensor(x), torch.as_tensor(x), x.nonzero(), torch.where(x > 0.5)[0],
    ]  # fmt: skip
    assert {str(result.device) for result in results} == {"cuda:0"}


def test_factories_with_a_device():
    makers = [
        torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn, torch.eye, torch.arange,
        torch.randperm, torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.hann_window,
    ]  # fmt: skip
    for make in makers:
        assert make(3, device="cuda").device == CUDA
        assert make(3, device="cpu").device == make(3).device == CPU
    assert torch.full((2,), 1.0, device="cuda", requires_grad=True).is_leaf
    assert torch.zeros_like(torch.ones(2), device="cuda").is_cuda
    assert torch.zeros_like(torch.ones(2, device="cuda"), device="cpu").device == CPU
    assert torch.ones(2, device="cuda").new_tensor([1.0]).is_cuda
    assert torch.ones(2, device="cuda").new_ones(2, device="cpu").device == CPU
    assert torch.fft.fftfreq(4, device="cuda").is_cuda
    assert torch.normal(torch.zeros(2, device="cuda"), 1.0).is_cuda
    assert torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device="cuda").is_cuda


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2),
        lambda: torch.tensor([1, 2]),
        lambda: torch.as_tensor([1.0]),
        lambda: torch.nn.Linear(2, 1).weight,
    ],
    ids=["ones", "tensor", "as_tensor", "Linear"],
)
def test_the_default_device_decides_where_tensors_are_made(make):
    with torch.device("cuda"):
        assert make().device == CUDA
        assert torch.from_numpy(np.ones(2)).device == torch.ones(2, device="cpu").device == CPU
        with torch.device("cpu"):
            assert make().device == CPU
    assert make().device == CPU
    torch.set_default_device("cuda")
    assert make().device == CUDA
    with torch.device("cpu"):
        assert make().device == CPU
    torch.set_default_device(None)
    assert make().device == CPU


def test_pinned_memory():
    x = torch.ones(3).pin_memory()
    assert x.is_pinned()
    assert x.pin_memory() is x
    assert not torch.ones(3).is_pinned()
    assert torch.zeros(2, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.zeros(2, device="cuda", pin_memory=True)


def test_storages():
    x = torch.arange(4.0, device="cuda")
    storage = x.untyped_storage()
    assert storage.device == CUDA
    assert storage.is_cuda
    assert storage.cpu().device == storage.clone().cpu().device == CPU
    assert storage.clone().device == CUDA
    assert x.cpu().untyped_storage().cuda().device == CUDA
    assert x.storage().device == CUDA


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_that_are_made_on_the_device():
    before = torch.cuda.memory_allocated()
    made = [
        torch.UntypedStorage(12, device="cuda"),
        torch.TypedStorage(3, dtype=torch.float32, device="cuda"),
        torch.cuda.FloatStorage(3),
        torch.cuda.FloatStorage([1.0, 2.0, 3.0]),
        torch.FloatStorage(3).cuda(),
    ]
    assert all(storage.device == CUDA and storage.is_cuda for storage in made)
    assert torch.cuda.memory_allocated() == before + len(made) * 512
    assert isinstance(made[2], torch.cuda.FloatStorage)
    assert made[3].tolist() == made[3].cpu().tolist() == [1.0, 2.0, 3.0]
    assert torch.UntypedStorage(3).device == torch.UntypedStorage(3, device="cpu").device == CPU
    assert torch.UntypedStorage(3, device="meta").device.type == "meta"


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_stay_on_the_device(way):
    model = torch.nn.Linear(2, 2).cuda()
    x = torch.arange(4.0, device="cuda")[1:]
    assert way(x).device == CUDA
    assert way(x).tolist() == [1.0, 2.0, 3.0]
    assert way(model).weight.device == CUDA
    if way is not copy.copy:
        assert way(model).weight is not model.weight


def saved(what):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("shape", [torch.strided, torch.sparse_coo])
def test_save_and_load(weights_only, shape):
    x = torch.eye(3, device="cuda")
    x = x.to_sparse() if shape is torch.sparse_coo else x
    for place, expected in {None: CUDA, "cpu": CPU, "cuda:0": CUDA, CPU: CPU}.items():
        loaded = torch.load(saved({"x": x}), map_location=place, weights_only=weights_only)["x"]
        assert loaded.device == expected
        assert loaded.to_dense().cpu().equal(torch.eye(3))
    moved = torch.load(saved(x), map_location=lambda storage, location: storage, weights_only=weights_only)
    assert moved.device == CPU


def test_two_names_of_one_storage_stay_one():
    x = torch.arange(4.0, device="cuda")
    a, b = torch.load(saved([x, x[2:]]))
    b[0] = 7
    assert a.tolist() == [0.0, 1.0, 7.0, 3.0]


LOAD = """
import torch
print(torch.load("x.pt", map_location="cpu").device)
torch.load("x.pt")
"""


@pytest.mark.slow
@pytest.mark.skipif(REAL, reason="the new process would find this machine's GPU")
def test_a_checkpoint_of_the_gpu_cannot_be_loaded_without_one_unless_it_is_mapped(warm, tmp_path):
    torch.save(torch.ones(2, device="cuda"), tmp_path / "x.pt")
    (tmp_path / "load.py").write_text(LOAD)
    done = run_script(warm, tmp_path / "load.py", tmp_path, **{environment.VARIABLE: ""})
    assert done.stdout == "cpu\n"
    assert "Attempting to deserialize object on a CUDA device" in done.stderr


def test_in_torch_func_the_device_is_seen():
    x = torch.rand(3, 2, device="cuda")
    seen = []
    torch.vmap(lambda row: seen.append(row.device) or row.sum())(x)
    assert seen == [CUDA]
    assert torch.func.grad(lambda v: (v**2).sum())(x).device == CUDA


def test_a_hook_and_a_custom_function_see_the_device():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert x.is_cuda
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.is_cuda
            return gradient * torch.full((3,), 2.0, device=gradient.device)

    x = torch.ones(3, device="cuda", requires_grad=True)
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient.device))
    Double.apply(x).sum().backward()
    assert seen == [CUDA]
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_in_place_operators_keep_the_device_and_copy_between_devices():
    x = torch.zeros(3, device="cuda")
    x += 1
    x.copy_(torch.arange(3.0))
    assert x.device == CUDA
    assert x.tolist() == [0.0, 1.0, 2.0]
    host = torch.empty(3)
    host.copy_(x)
    assert host.device == CPU
    x[0] = 5.0
    x[1:] = torch.tensor(1.0)
    assert x.tolist() == [5.0, 1.0, 1.0]


def test_checkpointed_activations():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).cuda()
    x = torch.rand(2, 4, device="cuda", requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad.device == CUDA


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Counting(torch.Tensor):
    """A subclass that notes what is called."""

    called: list[object] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapping(torch.Tensor):
    """A tensor that wraps another, as quantised and distributed ones do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Wrapping, lambda wrapper: wrapper.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapping, func(*args, **kwargs))


@pytest.mark.parametrize("kind", [Plain, Counting])
def test_a_subclass_stays_what_it_is_when_it_moves(kind):
    x = torch.ones(2).as_subclass(kind)
    for there in (x.to("cuda"), x.cuda(), x.cuda(0, non_blocking=True), x.to("cuda", torch.float64)):
        assert (type(there), there.device) == (kind, CUDA)
        assert (type(there.cpu()), there.cpu().device) == (kind, CPU)
    asks = torch.ones(2, requires_grad=True)
    asks.as_subclass(kind).cuda().sum().backward()
    assert asks.grad.tolist() == [1.0, 1.0]
    assert type(torch.nn.Parameter(torch.ones(2)).cuda()) is torch.Tensor


def test_a_subclass_sees_the_methods_under_their_names():
    Counting.called.clear()
    torch.ones(2).as_subclass(Counting).to("cuda").cpu()
    assert [func for func in Counting.called if func.__name__ in ("to", "cpu")] == [
        torch.Tensor.to,
        torch.Tensor.cpu,
    ]


def test_a_table_of_functions_that_was_filled_before_or_meanwhile_holds_good():
    meanwhile = {torch.Tensor.to: "to"}
    before = {torch.Tensor.to._original: "to"}
    assert meanwhile[torch.Tensor.to] == before[torch.Tensor.to] == "to"
    vision = pytest.importorskip("torchvision.tv_tensors")
    image = vision.Image(torch.rand(3, 4, 4))
    assert (type(image.to("cuda")), image.to("cuda").device) == (vision.Image, CUDA)
    boxes = vision.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(4, 4)).to("cuda")
    assert (type(boxes), boxes.canvas_size, boxes.is_cuda) == (vision.BoundingBoxes, (4, 4), True)
    assert type(image.cuda()) is torch.Tensor  # torchvision keeps the type of .to alone


def test_what_a_tensor_wraps_moves_with_it(gpu):
    for there in (Wrapping(torch.ones(2)).to("cuda"), Wrapping(torch.ones(2)).cuda()):
        assert (type(there), there.device, there.inner.device) == (Wrapping, CUDA, CUDA)
        assert (there * 2).inner.device == CUDA
        assert (there.cpu().device, there.cpu().inner.device) == (CPU, CPU)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        there + Wrapping(torch.ones(2))


def test_a_backward_pass_through_what_wraps_tensors():
    """PyTorch asked the driver for a stream, and ended the process, where the wrapper really was on CUDA."""
    x = Wrapping(torch.ones(2).cuda()).requires_grad_()
    (x * 2).sum().backward()
    assert (type(x.grad), x.grad.inner.tolist(), x.grad.inner.device) == (Wrapping, [2.0, 2.0], CUDA)


def test_nested_tensors_hold_their_parts_on_the_device():
    rows = [torch.ones(2, 3), torch.ones(4, 3)]
    for nested in (
        torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda"),
        torch.nested.nested_tensor([row.cuda() for row in rows], layout=torch.jagged),
        torch.nested.nested_tensor(rows, layout=torch.jagged).cuda(),
    ):
        assert (nested.device, nested.values().device) == (CUDA, CUDA)
        assert torch.nn.Linear(3, 2).cuda()(nested).values().device == CUDA
    with pytest.raises(RuntimeError, match="got tensors is on cpu, different from other tensors on cuda:0"):
        torch.nested.as_nested_tensor([rows[0].cuda(), rows[1]])


def test_a_method_is_handled_once_under_a_default_device(gpu):
    x = torch.ones(2, device="cuda")
    with torch.device("cuda"):
        assert x.type() == "torch.cuda.FloatTensor"
        gpu.clear_events()
        x.tolist()
    assert sum(event.count for event in gpu.events) == 1


def test_exchanging_memory_with_other_libraries():
    x = torch.ones(2, device="cuda")
    same = torch.from_dlpack(x)
    same[0] = 5
    assert (same.device, x.tolist()) == (CUDA, [5.0, 1.0])
    assert torch.from_dlpack(x, device="cpu").device == CPU
    assert torch.from_dlpack(np.ones(2)).device == CPU
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x.clone().requires_grad_())
    for attempt in (lambda: np.from_dlpack(x), lambda: torch.utils.dlpack.to_dlpack(x)):
        with pytest.raises(PracticeError, match="handing a GPU's memory to another library"):
            attempt()


def test_memory_of_a_device_is_shared_already():
    x = torch.ones(2, device="cuda")
    assert x.is_shared() and x.share_memory_() is x
    assert not x.cpu().is_shared()


@pytest.mark.parametrize("kind", [torch.Tensor, torch.FloatTensor])
def test_a_legacy_constructor_makes_a_tensor_on_the_cpu(gpu, kind):
    ones = torch.ones(4, 1, device="cuda")
    for made in (kind(4, 1), kind(4, 1).fill_(1.0), kind(ones.size()).normal_(), kind([[1.0]])):
        with pytest.raises(RuntimeError, match="to be on the same device"):
            ones + made
    assert (ones + ones.new(4, 1).zero_()).is_cuda and ones.new(ones.size()).is_cuda
    assert not torch.ones(2).new(3).is_cuda
    sparse = ones.to_sparse()
    assert sparse.new(sparse._indices(), sparse._values(), sparse.size()).is_cuda  # as SparseAdam does


LEGACY = [
    (lambda c, h: torch.cuda.FloatTensor(h), "TypeError: expected TensorOptions(dtype=float, device=cuda,"),
    (lambda c, h: torch.cuda.LongTensor(c), "TypeError: expected TensorOptions(dtype=long int, device=cuda,"),
    (lambda c, h: c.new(h), "TypeError: expected TensorOptions(dtype=float, device=cuda,"),
    (lambda c, h: h.new(c), "TypeError: expected TensorOptions(dtype=float, device=cpu,"),
    (
        lambda c, h: c.new([1.0], device="cpu"),
        "RuntimeError: legacy constructor expects device type: cuda but",
    ),
    (lambda c, h: h.new(2, device="cuda"), "RuntimeError: legacy constructor expects device type: cpu but"),
    (lambda c, h: torch.cuda.FloatTensor(2, device="cpu"), "RuntimeError: legacy constructor expects device"),
    (lambda c, h: torch.cuda.FloatTensor(c, device="cuda"), "RuntimeError: Legacy tensor constructor of the"),
    (lambda c, h: c.new(c, device="cuda"), "RuntimeError: Legacy tensor new of the form tensor.new("),
    (lambda c, h: h.cuda("cpu"), "RuntimeError: Invalid device, must be cuda device"),
    (lambda c, h: torch.nn.Linear(1, 1).cuda("cpu"), "RuntimeError: Invalid device, must be cuda device"),
    (lambda c, h: setattr(c, "device", "cpu"), "AttributeError: attribute 'device' of 'torch._C.TensorBase'"),
    (lambda c, h: c.apply_(abs), "TypeError: apply_ is only implemented on CPU tensors"),
    (lambda c, h: c.map_(c, max), "TypeError: map_ is only implemented on CPU tensors"),
    (lambda c, h: c.map2_(c, c, max), "TypeError: map2_ is only implemented on CPU tensors"),
    (
        lambda c, h: c.map_(h, max),
        "TypeError: map_: expected torch.cuda.FloatTensor for 'other' (got torch.FloatTensor)",
    ),
    (
        lambda c, h: h.map2_(h, y=c, callable=max),
        "TypeError: map2_: expected torch.FloatTensor for argument 'y' (got torch.cuda.FloatTensor)",
    ),
    (
        lambda c, h: c.requires_grad_().apply_(abs),
        "RuntimeError: Can't call apply_() on Variable that requires grad. Use var.detach().apply_()",
    ),
]
"""What is done with a tensor on the device and one on the host, and what CUDA says."""


@pytest.mark.parametrize(("do", "text"), LEGACY)
def test_old_methods_and_types_move_nothing(gpu, do, text):
    with pytest.raises((TypeError, RuntimeError, AttributeError)) as caught:
        do(torch.ones(3, device="cuda"), torch.ones(3))
    assert f"{type(caught.value).__name__}: {caught.value}".startswith(text)


def test_a_type_of_the_cpu_takes_no_tensor_of_a_device(gpu):
    x = torch.ones(3, device="cuda", dtype=torch.int64)
    with pytest.raises(
        TypeError, match=r"expected TensorOptions\(dtype=long int, device=cpu.+device=cuda:0,"
    ):
        torch.LongTensor(x)
    assert torch.Tensor(x.float()).is_cuda
    assert isinstance(x.cpu(), torch.LongTensor) and not isinstance(x, torch.LongTensor)
    assert not torch.LongTensor(x.cpu()).is_cuda and x.type(torch.LongTensor).device == CPU
    assert torch.FloatTensor(2, device="cpu").device == torch.FloatTensor(size=(2,)).device == CPU
    assert not isinstance(torch.empty(2, device="meta"), torch.FloatTensor)
    assert (torch.FloatTensor.is_cuda, torch.cuda.FloatTensor.is_cuda) == (False, True)
    with pytest.raises(TypeError):
        torch.set_default_tensor_type(torch.Tensor)


def test_what_a_function_makes_in_passing_is_where_its_arguments_are(gpu):
    x = torch.rand(2, 4, 3, device="cuda")
    for result in (
        torch.nn.functional.cosine_similarity(x, x),
        torch.quantile(x, 0.5),
        torch.linalg.pinv(x),
        torch.linalg.matrix_rank(x),
        torch.linalg.matrix_rank(input=x[:, :0]),
        torch.vander(x[0, 0]),
        torch.max_pool1d(x, 2),
    ):
        assert result.is_cuda


def test_legacy_default_type_and_storages():
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    try:
        assert torch.zeros(2).type() == torch.tensor([1.0]).type() == "torch.cuda.HalfTensor"
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.zeros(2).type() == "torch.FloatTensor"
    assert torch.cuda.FloatStorage(3).device == CUDA


def test_sparse_tensors_are_where_their_parts_are():
    indices, values = torch.tensor([[0, 1]]), torch.ones(2)
    assert torch.sparse_coo_tensor(indices.cuda(), values.cuda(), (3,)).device == CUDA
    moved = torch.sparse_coo_tensor(indices, values.cuda(), (3,), device="cuda")
    assert (moved.device, moved._indices().device) == (CUDA, CUDA)
    assert torch.sparse_coo_tensor([[0, 1]], values.cuda(), (3,)).device == CUDA
    with pytest.raises(RuntimeError, match="got values is on cuda:0, different from other tensors on cpu"):
        torch.sparse_coo_tensor(indices, values.cuda(), (3,))

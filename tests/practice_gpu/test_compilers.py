"""TorchScript, ``torch.compile`` and ``torch.export`` while a practice GPU is there."""

import io
import warnings

import pytest
import torch
from torch import nn

from practice_gpu import PracticeError, practice_gpu
from practice_gpu.patching.patches import Patches

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")

CUDA = torch.device("cuda", 0)


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Dropout(0.0)).cuda()


def computed(x: torch.Tensor) -> torch.Tensor:
    """Call functions that the practice GPU replaces."""
    made = torch.zeros(3, device=x.device) + torch.zeros_like(x) + torch.arange(3, device="cuda")
    return torch.nn.functional.layer_norm(x, (3,)) + made + torch.softmax(x, dim=1)


def moved(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda") + 1


# -- TorchScript


def test_a_scripted_function_computes_on_the_device(two):
    x = torch.rand(2, 3, device="cuda")
    result = torch.jit.script(computed)(x)
    assert result.device == CUDA
    assert torch.allclose(result, computed(x))


def test_a_scripted_module_trains(two):
    model = build()
    scripted = torch.jit.script(model)
    scripted(torch.rand(2, 3, device="cuda")).pow(2).sum().backward()
    assert model[0].weight.grad.device == CUDA
    with pytest.raises(RuntimeError, match=r"mat1 is on cpu, different from other tensors on cuda:0"):
        scripted(torch.rand(2, 3))


def test_a_script_may_use_what_it_imported_from_torch_meanwhile(two):
    from torch import zeros_like
    from torch.nn.functional import layer_norm

    def made(x: torch.Tensor) -> torch.Tensor:
        return zeros_like(x) + layer_norm(x, (3,))

    assert zeros_like is torch.zeros_like  # ours
    assert torch.jit.script(made)(torch.ones(2, 3, device="cuda")).device == CUDA


def test_names_of_a_class_to_script_are_looked_up_where_it_is_written(two):
    def three_more(number: int) -> int:
        return number + 3

    @torch.jit.script
    class Pair:
        def __init__(self, first: int) -> None:
            self.first = three_more(first)

    assert Pair(1).first == 4


def test_the_scripts_table_of_functions_keeps_none_of_ours():
    torch.jit._builtins._builtin_table = None
    with practice_gpu(force=True):
        torch.jit.script(computed)
        torch.jit._builtins._find_builtin(torch.add)
    assert torch.jit._builtins._find_builtin(torch.zeros) == "aten::zeros"
    assert torch.jit.script(nn.LayerNorm(3))(torch.ones(2, 3)).shape == (2, 3)


def test_an_operator_that_is_called_first_leaves_other_threads_their_gpu(two, monkeypatch):
    """``batch_norm`` in eval mode is such a one, and a DataLoader's thread may be pinning its batches."""
    registered, register = [], torch.jit._builtins._register_builtin

    def entered(*args):
        registered.append(args)
        register(*args)

    def suspended(patches):
        raise AssertionError("PyTorch's own were put back")

    monkeypatch.setattr(torch.jit._builtins, "_register_builtin", entered)
    monkeypatch.setattr(Patches, "suspended", suspended)
    vars(torch.ops.aten).pop("digamma", None)  # as if nobody had called it
    x = torch.full((2,), 3.0, device="cuda")
    assert torch.ops.aten.digamma(x).device == CUDA
    assert len(registered) == 1


def test_a_move_in_a_script_is_refused_and_no_driver_is_asked_for(two):
    with pytest.raises(PracticeError, match=r"does not simulate \.to\(\) and \.cuda\(\) inside TorchScript"):
        torch.jit.script(moved)(torch.ones(2))

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.view(7)

    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        torch.jit.script(wrong)(torch.ones(2))


class Shifted(nn.Module):
    """Makes tensors where its inputs are, while it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(3, device=x.device).to(x.device) + torch.zeros(3, device=x.device)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_traced_model_computes_on_the_device(two, requires_grad):
    convolutional = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
    ).cuda()
    for model, shape in ((build(), (2, 3)), (convolutional.eval(), (2, 3, 4, 4)), (Shifted(), (2, 3))):
        model.requires_grad_(requires_grad)
        traced = torch.jit.trace(model, torch.rand(shape, device="cuda"))
        x = torch.rand(shape, device="cuda")
        assert traced(x).device == CUDA
        assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert torch.ones(2, device="cuda").sum().device == CUDA


@pytest.mark.filterwarnings("ignore:torch.tensor results:torch.jit.TracerWarning")
def test_a_trace_that_holds_a_tensor_is_refused(two):
    def weighted(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0], device=x.device)

    with pytest.raises(PracticeError, match=r"of a function that makes its own tensor"):
        torch.jit.trace(weighted, torch.ones(2, device="cuda"))
    assert torch.jit.trace(weighted, torch.ones(2))(torch.ones(2)).tolist() == [1, 2]


def test_a_trace_across_devices_is_refused(two):
    with pytest.raises(PracticeError, match=r"torch\.jit\.trace of a model and inputs on several"):
        torch.jit.trace(build(), torch.ones(2, 3))


def test_a_function_that_is_scripted_when_it_is_traced(two):
    @torch.jit.script_if_tracing
    def filled(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) + 1

    x = torch.ones(2, device="cuda")
    assert torch.jit.trace(lambda x: filled(x) * 2, x)(x).tolist() == [2, 2]


def test_a_move_in_a_trace_is_refused(two):
    with pytest.raises(PracticeError, match=r"a move between devices inside torch\.jit\.trace"):
        torch.jit.trace(moved, torch.ones(2))
    assert moved(torch.ones(2)).device == CUDA


def test_a_saved_script_is_loaded_onto_a_device(two):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(build()), file)
    for where in (None, "cpu", "cuda", "cuda:1"):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=where)
        expected = torch.device(where) if where else torch.device("cpu")
        found = next(loaded.parameters()).device
        assert (found.type, found.index or 0) == (expected.type, expected.index or 0)


# -- torch.compile


@torch.compile
def compiled_before(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@pytest.mark.parametrize(
    "options", [{}, {"mode": "reduce-overhead"}, {"fullgraph": True}, {"backend": "eager", "dynamic": True}]
)
def test_what_is_compiled_runs_as_it_is_with_one_warning(two, options):
    with pytest.warns(UserWarning, match="the practice GPU compiles nothing") as caught:
        assert torch.compile(lambda x: x * 2, **options)(torch.ones(3, device="cuda")).device == CUDA
        model = nn.Linear(3, 2).cuda()
        model.compile(**options)
        assert model(torch.ones(4, 3, device="cuda")).device == CUDA
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_what_was_compiled_before_runs_as_it_is():
    model = nn.Linear(3, 2)
    model.compile()
    wrapped = torch.compile(nn.Linear(3, 2))
    with practice_gpu(force=True), pytest.warns(UserWarning, match="compiles nothing") as caught:
        for device in ("cpu", "cuda"):
            assert compiled_before(torch.ones(3, device=device)).tolist() == [3, 3, 3]
        assert model.cuda()(torch.ones(4, 3, device="cuda")).device == CUDA
        assert wrapped.cuda()(torch.ones(4, 3, device="cuda")).device == CUDA
    assert len(caught) == 1


def test_afterwards_pytorch_compiles_again():
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with practice_gpu(force=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(torch.ones(2, device="cuda"))
    assert seen == []
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert len(seen) == 1


# -- torch.export


def test_a_module_on_the_cpu_is_exported(two):
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),))
    assert program.module()(torch.ones(4, 3)).shape == (4, 2)
    assert torch.ones(2, device="cuda").sum().device == CUDA


def test_a_module_or_input_on_the_device_is_not(two):
    for model, x in (
        (nn.Linear(3, 2).cuda(), torch.ones(4, 3, device="cuda")),
        (nn.Linear(3, 2), torch.ones(4, 3, device="cuda")),
        (nn.Linear(3, 2).cuda(), torch.ones(4, 3)),
    ):
        with pytest.raises(PracticeError, match=r"simulate torch\.export\.export .* after model\.cpu"):
            torch.export.export(model, (x,))

"""Weights in safetensors files: they come back to the bit, whole or not at all."""

import pytest
import safetensors.torch
import torch
from torch import nn

from gpulesson.checkpoint import CheckpointError, export_weights, import_weights


class Tied(nn.Module):
    """Embedding and output share one matrix, as in a language model; a buffer, and a transposed weight."""

    def __init__(self, seed=0, width=4):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.output = nn.Linear(width, 6, bias=False)
        self.output.weight = self.embedding.weight
        self.turned = nn.Parameter(torch.randn(3, 2).T.to(torch.bfloat16))


def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_weights_come_back(tmp_path):
    model, other = Tied(), Tied(seed=1)
    path = export_weights(model, str(tmp_path / "new" / "a.safetensors"))
    assert not same(model, other)
    import_weights(other, str(path))
    assert same(model, other)
    assert other.output.weight is other.embedding.weight
    assert [each.name for each in path.parent.iterdir()] == ["a.safetensors"]


def test_other_programs_read_it_and_write_for_us(tmp_path):
    model, other = Tied(), Tied(seed=1)
    path = export_weights(model, tmp_path / "a.safetensors")
    found = safetensors.torch.load_file(path)
    assert "embedding.weight" in found and "output.weight" not in found  # one of the two
    assert safetensors.torch.load_model(other, path) == (set(), [])
    assert same(model, other)

    model.turned = nn.Parameter(model.turned.detach().contiguous())
    safetensors.torch.save_model(model, str(tmp_path / "b.safetensors"))
    third = Tied(seed=2)
    import_weights(third, tmp_path / "b.safetensors")
    assert same(model, third)


def only(**tensors):
    def change(path):
        found = safetensors.torch.load_file(path) | tensors
        safetensors.torch.save_file({name: value for name, value in found.items() if value is not None}, path)

    return change


def flipped(old: bytes, new: bytes):
    """Return a change of the file's beginning and of its last byte, which is a weight's."""

    def change(path):
        content = path.read_bytes().replace(old, new, 1)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (only(turned=torch.zeros(3, 2).bfloat16()), r"model turned: torch.bfloat16 \[3, 2\] in the file"),
        (only(turned=torch.zeros(2, 3)), r"model turned: torch.float32 \[2, 3\] in the file, torch.bfloat16"),
        (only(turned=None), "model turned: None in the file"),
        (only(**{"embedding.weight": None}), "model embedding.weight: None in the file"),
        (
            only(**{"output.weight": torch.zeros(6, 4)}),
            "output.weight are one tensor of the model, and differ in the file",
        ),
        (only(**{"x\x1b[2J": torch.zeros(1)}), r"model x\\x1b\[2J: torch.float32 \[1\] in the file"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "not loaded: it is no whole safetensors file",
        ),
        (
            lambda path: path.write_bytes(b"\xff" * 100),
            "not loaded: it does not begin as a safetensors",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"~"),
            "its digest is not that of its content",
        ),
        (flipped(b"sha256", b"shb257"), "export_weights wrote it, and its digest is gone: it is damaged"),
        (lambda path: path.unlink(), "was not loaded. FileNotFoundError"),
        (lambda path: [path.unlink(), path.mkdir()], "is a folder|Is a directory|Permission"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, change, line):
    path = export_weights(Tied(), tmp_path / "a.safetensors")
    change(path)
    model = Tied(seed=1)
    with pytest.raises(CheckpointError, match=line):
        import_weights(model, path)
    assert same(model, Tied(seed=1))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_while_loading_changes_nothing(tmp_path, monkeypatch, error):
    path = export_weights(Tied(), tmp_path / "a.safetensors")
    model = Tied(seed=1)
    load = model.load_state_dict

    def failing(state):
        load(state)
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(model, "load_state_dict", failing)
    with pytest.raises(CheckpointError if error is RuntimeError else error):
        import_weights(model, path)
    assert same(model, Tied(seed=1))


def test_what_cannot_be_exported_leaves_the_old_file(tmp_path):
    path = export_weights(Tied(), tmp_path / "a.safetensors")
    before = path.read_bytes()
    spoilt = Tied()
    with torch.no_grad():
        spoilt.norm.weight[0] = float("nan")
    cases = [(spoilt, "norm.weight holds NaN"), (Tied, "give an object")]
    cases += [(nn.Linear(2, 1, dtype=torch.complex64), "knows no torch.complex64 in torch.strided layout")]
    for model, match in cases:
        with pytest.raises(CheckpointError, match=match):
            export_weights(model, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("value", [2.0, float("nan")])
def test_both_names_of_a_tensor_may_be_there_if_they_agree(tmp_path, value):
    path = export_weights(Tied(), tmp_path / "a.safetensors")
    weight = torch.full((6, 4), value)
    only(**{"embedding.weight": weight, "output.weight": weight.clone()})(path)
    model = Tied(seed=1)
    import_weights(model, path)
    assert torch.equal(model.output.weight.isnan(), weight.isnan())


class Remembering(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Sparse(), "safetensors knows no torch.float32 in torch.sparse_coo layout, as mask is"),
        (Remembering(2, 1), "_extra_state of the model's state is no tensor"),
        (nn.LazyLinear(1), "weight has no values yet: call a lazy model once"),
        (nn.Linear(2, 1, device="meta"), "weight has no values yet"),
    ],
)
def test_a_model_of_other_things_than_tensors_with_values(tmp_path, model, message):
    path = export_weights(nn.Linear(2, 1), tmp_path / "a.safetensors")
    for call in (export_weights, import_weights):
        with pytest.raises(CheckpointError, match=message):
            call(model, path)

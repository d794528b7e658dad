"""An error of the practice GPU leads to the change that a person would make."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from gpulesson_tools.porting import reasons
from gpulesson_tools.porting.facts import Failure, Run
from gpulesson_tools.porting.reasons import Files
from gpulesson_tools.porting.tracer import Tracer
from gpulesson_tools.programs.hooks import Hooks
from practice_gpu import practice_gpu

HEAD = """\
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
device = torch.device("cuda")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale = torch.ones(2)
    def forward(self, x):
        return self.layer(x)
model = Net().to(device)
X, y = torch.ones(8, 3), torch.zeros(8).long()
loader = DataLoader(TensorDataset(X, y), batch_size=4)
"""


@pytest.fixture(scope="module", autouse=True)
def gpu():
    with practice_gpu(force=True):
        yield


def run(folder: Path, code: str) -> tuple[Run, Files]:
    """Run a script here, on the practice GPU, as a child process does."""
    path = folder / "train.py"
    path.write_text(code)
    space = {"__name__": "__main__", "__file__": str(path)}
    tracer = Tracer(folder, seconds=600)
    with Hooks(tracer):
        try:
            exec(compile(code, str(path), "exec"), space)
        except Exception as error:
            tracer.run.failure = tracer.failure(error)
        tracer.finish()
    return tracer.run, Files({"train.py": code.encode()})


def fixed(folder: Path, code: str, head: str = HEAD) -> list[str]:
    """Return the lines that the best change for a script's error takes away and puts there."""
    record, files = run(folder, head + code)
    assert isinstance(record.failure, Failure), "the script does not fail"
    change = next(reasons.fix(files, record.failure))
    assert record.failure.message.splitlines()[0] in change.message
    return _lines(head + code, change.text.decode())


def _lines(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


BATCH = [
    ("for x, _ in loader:\n    model(x)", ["+    x = x.to(device)"]),
    # also what is made of it: the batch itself moves
    ("for i, (x, _) in enumerate(loader):\n    model(2 * x)", ["+    x = x.to(device)"]),
    (
        "for x, _ in loader: model(x)",
        ["-for x, _ in loader: model(x)", "+for x, _ in loader: x = x.to(device); model(x)"],
    ),
    # the name that it gets in the loop
    ("for x, _ in loader:\n    z = x.reshape(-1, 3)\n    model(z)", ["+    x = x.to(device)"]),
    ("for x, _ in loader:\n    x = x * 2\n    model(x)", ["-    x = x * 2", "+    x = (x * 2).to(device)"]),
    (
        "for i in range(0, 8, 4):\n    x = X[i:i + 4]\n    model(x)",
        ["-    x = X[i:i + 4]", "+    x = X[i:i + 4].to(device)"],
    ),
    # in a function, not in forward
    (
        "def train(net, data):\n    for x, _ in data:\n        net(x)\ntrain(model, loader)",
        ["+        x = x.to(device)"],
    ),
    (
        "for x in [{'a': 2 * X}]:\n    model(x['a'])",
        ["+    x = {key: value.to(device) for key, value in x.items()}"],
    ),
    (
        "for x in [{'a': 2 * X, 'b': 1}]:\n    model(x['a'])",
        ["-    model(x['a'])", "+    model(x['a'].to(device))"],
    ),
    ("x, _ = next(iter(loader))\nmodel(x)", ["+x = x.to(device)"]),
    # what comes together moves together, and not in forward
    (
        "a, b = torch.randn(4, 3).split([2, 1], 1)\nmodel(torch.cat([a, b], 1))",
        ["+a, b = a.to(device), b.to(device)"],
    ),
    ("parts = [2 * X, 3 * X]\nmodel(*parts[:1])", ["+parts = [value.to(device) for value in parts]"]),
    (
        "parts = [2 * X, 3 * X]\nwith torch.enable_grad(): model(*parts[:1])",
        ["+parts = [value.to(device) for value in parts]"],
    ),
    # a name of the comprehension's, not the loop's
    (
        "for a, _ in []: pass\nsum(model(a).sum() for a, _ in loader)",
        [
            "-sum(model(a).sum() for a, _ in loader)",
            "+sum(model(a.to(device)).sum() for a, _ in loader)",
        ],
    ),
    # the tensor belongs to a dataset: once before the loop that uses it
    ("list(loader)\nfor _ in range(2):\n    model(X)", ["+X = X.to(device)"]),
]


@pytest.mark.parametrize("code, expected", BATCH, ids=[code for code, _ in BATCH])
def test_a_batch_moves_where_it_gets_its_name(tmp_path, code, expected):
    assert fixed(tmp_path, code) == expected


def test_a_move_that_has_nothing_to_do_is_taken_out(tmp_path):
    code = HEAD + "x = X.to(device)\nfor _ in range(2):\n    z = (x + 1)\n    model(z)\n"
    moved = code.replace("(x + 1)", "(x + 1).to(device)")
    record, files = run(tmp_path, moved)
    (spot,) = record.idle
    assert reasons.without(files, spot) is None  # the author's own
    files = Files({"train.py": code.encode()})
    files.texts["train.py"] = moved.encode()
    assert reasons.without(files, spot).decode() == code
    without_brackets = code.replace("(x + 1)", "x + 1")
    files = Files({"train.py": without_brackets.encode()})
    files.texts["train.py"] = moved.encode()
    assert reasons.without(files, spot).decode() == without_brackets


def test_of_a_statement_that_only_moves_nothing_is_left_or_what_still_has_to_move(tmp_path):
    code = HEAD + "X = X.to(device)\nz = X + 1\nfor _ in range(2):\n    z = z\n    model(z)\n"
    for line in ("    z = z.to(device)", "    z, y = z.to(device), y.to(device)"):
        moved = code.replace("    z = z", line)
        record, _ = run(tmp_path, moved)
        files = Files({"train.py": code.replace("    z = z\n", "").encode()})
        files.texts["train.py"] = moved.encode()
        left = reasons.without(files, next(spot for spot in record.idle if spot.column < 15)).decode()
        assert left == moved.replace(f"{line}\n", "    y = y.to(device)\n" if "y" in line else "")


def test_the_second_tensor_joins_the_move_of_the_first(tmp_path):
    code = "for x, y in loader:\n    x = x.to(device)\n    nn.functional.cross_entropy(model(x), y)"
    assert fixed(tmp_path, code) == ["-    x = x.to(device)", "+    x, y = x.to(device), y.to(device)"]


MADE = [
    # where nothing random is drawn, and where it is drawn in each step: made there
    ("h = torch.zeros(2)\nmodel(X.to(device)) + h", "h = torch.zeros(2, device=device)"),
    ("for _ in range(2):\n    model(torch.randn(4, 3))", "    model(torch.randn(4, 3, device=device))"),
    # drawn once: the same numbers as before
    ("n = torch.randn(4, 3)\nmodel(n)", "n = torch.randn(4, 3).to(device)"),
    # this one takes no device
    (
        "n = torch.from_numpy(np.ones((4, 3), 'f'))\nmodel(n)",
        "n = torch.from_numpy(np.ones((4, 3), 'f')).to(device)",
    ),
    ("model(torch.FloatTensor([[1, 2, 3]]).abs())", "model(torch.FloatTensor([[1, 2, 3]]).abs().to(device))"),
    # a generator of the CPU's stays with the CPU
    (
        "for _ in range(2):\n    n = torch.randn(4, 3, generator=torch.Generator())\n    model(n)",
        "    n = torch.randn(4, 3, generator=torch.Generator()).to(device)",
    ),
    # the tensor belongs to a dataset: it moves where it is used
    ("list(loader)\nmodel(X)", "model(X.to(device))"),
    (
        "loss = nn.CrossEntropyLoss(weight=torch.ones(2))\nloss(model(X.to(device)), y.to(device))",
        "loss = nn.CrossEntropyLoss(weight=torch.ones(2)).to(device)",
    ),
    (
        "nets = [nn.Linear(3, 3) for _ in range(2)]\nnets[0](X.to(device))",
        "nets = [nn.Linear(3, 3).to(device) for _ in range(2)]",
    ),
    (
        "class Run:\n    def __init__(self):\n        self.w = torch.rand(2)\n"
        "    def go(self):\n        return model(X.to(device)) * self.w\nRun().go()",
        "        self.w = torch.rand(2).to(device)",
    ),
]


@pytest.mark.parametrize("code, expected", MADE, ids=[expected.strip() for _, expected in MADE])
def test_what_is_made_on_the_way(tmp_path, code, expected):
    taken, put = fixed(tmp_path, code)
    assert put == f"+{expected}" and taken.startswith("-")


def test_a_tensor_that_is_trained_is_made_on_the_device(tmp_path):
    code = "w = torch.ones(3, requires_grad=True)\n(X.to(device) @ w).sum()"
    assert fixed(tmp_path, code)[1] == "+w = torch.ones(3, requires_grad=True, device=device)"
    code = "w = torch.from_numpy(np.ones(3, 'f')).requires_grad_()\n(X.to(device) @ w).sum()"
    assert fixed(tmp_path, code)[1] == "+w = torch.from_numpy(np.ones(3, 'f')).to(device).requires_grad_()"


GENERATOR = "g = torch.Generator()\n"
WEIGHTS = [
    # drawn by a generator of the CPU's; asking for a gradient at once, or later; more than the call itself
    ("w = torch.randn(3, generator=g)\nw.requires_grad = True", "w = torch.randn(3, generator=g).to(device)"),
    (
        "w = torch.randn(3, generator=g) * 2\nw.requires_grad_()",
        "w = (torch.randn(3, generator=g) * 2).to(device)",
    ),
    (
        "w = torch.randn(3, generator=g, requires_grad=True)",
        "w = torch.randn(3, generator=g).to(device).requires_grad_()",
    ),
    (
        "w = nn.Parameter(torch.rand(3, generator=g))",
        "w = nn.Parameter(torch.rand(3, generator=g).to(device))",
    ),
    (
        "w = torch.Tensor(3).fill_(1).requires_grad_()",
        "w = torch.Tensor(3).to(device).fill_(1).requires_grad_()",
    ),
    (
        "w, = [torch.ones(3) for _ in '1']\nw.requires_grad = True",
        "w, = [torch.ones(3, device=device) for _ in '1']",
    ),
]


@pytest.mark.parametrize("code, expected", WEIGHTS, ids=[expected for _, expected in WEIGHTS])
def test_weights_move_before_they_ask_for_a_gradient_also_where_a_result_meets_the_device(
    tmp_path, code, expected
):
    code = f"{GENERATOR}{code}\nhidden = X @ w\nhidden + X.to(device).sum(1)"
    assert fixed(tmp_path, code)[1] == f"+{expected}"


def test_an_input_that_asks_for_a_gradient_is_not_trained(tmp_path):
    code = "for x, _ in loader:\n    x = x.abs().requires_grad_()\n    model(x).sum().backward()\n"
    assert fixed(tmp_path, code) == [
        "-    x = x.abs().requires_grad_()",
        "+    x = x.abs().requires_grad_().to(device)",
    ]
    record, _ = run(tmp_path, HEAD + code.replace("model(x)", "model(x.to(device))"))
    assert [thing.by for thing, _ in record.used] == ["Net"]


def test_a_copy_that_asks_for_a_gradient_is_moved_where_it_is_made(tmp_path):
    forward = "        return self.layer(x)"
    head = HEAD.replace(forward, "        x = x.clone().detach().requires_grad_()\n" + forward)
    code = "rows = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, 3)] * 3)).reshape(-1, 3)\nmodel(rows)"
    record, files = run(tmp_path, head + code)
    texts = [change.text.decode() for change in reasons.fix(files, record.failure)]
    assert any("x.clone().detach().to(device).requires_grad_()" in text for text in texts)


def test_in_forward_a_tensor_goes_where_the_input_is(tmp_path):
    forward = "        return self.layer(x)"
    head = HEAD.replace(forward, "        return self.layer(x) + torch.ones(2)")
    assert fixed(tmp_path, "model(X.to(device))", head)[1] == (
        "+        return self.layer(x) + torch.ones(2, device=x.device)"
    )


def test_of_two_functions_with_one_name_the_very_one_is_asked_for_its_input(tmp_path):
    forward = "        return self.layer(x)"
    outer = "\nclass Outer(nn.Module):\n    def forward(self, data):\n        return model(data)"
    head = HEAD.replace(forward, f"{forward} + torch.ones(2){outer}")
    assert fixed(tmp_path, "Outer()(X.to(device))", head)[1].endswith("torch.ones(2, device=x.device)")


def test_an_attribute_of_a_module_becomes_a_buffer(tmp_path):
    head = HEAD.replace("self.layer(x)", "self.layer(x) * self.scale")
    assert fixed(tmp_path, "model(X.to(device))", head)[1] == (
        '+        self.register_buffer("scale", torch.ones(2))'
    )
    # a file that is read was perhaps saved without it
    head = HEAD.replace("self.layer(x)", "self.layer(x) * self.scale") + "read = model.load_state_dict\n"
    assert fixed(tmp_path, "model(X.to(device))", head)[1] == (
        '+        self.register_buffer("scale", torch.ones(2), persistent=False)'
    )


def test_an_attribute_that_a_module_gets_later_is_moved_and_not_registered(tmp_path):
    made = "        self.later = torch.stack([torch.ones(2)])\n        return self.layer(x) * self.later"
    head = HEAD.replace("        return self.layer(x)", made)
    assert fixed(tmp_path, "model(X.to(device))", head)[1] == (
        "+        self.later = torch.stack([torch.ones(2)]).to(device)"
    )


def test_a_move_stands_at_the_loop_although_forward_uses_the_name_too(tmp_path):
    head = HEAD.replace("self.layer(x)", "sum(self.layer(x) for x in x)")
    assert fixed(tmp_path, "for rows, _ in loader:\n    model(rows)", head) == ["+    rows = rows.to(device)"]


HOST = [
    ("p.numpy()", "p.cpu().numpy()"),
    ("p.argmax(1).numpy()", "p.argmax(1).cpu().numpy()"),
    ("np.array(p)", "np.array(p.cpu())"),
    ("np.array(p[:, 0])", "np.array(p[:, 0].cpu())"),
    ("torch.histogram(p)", "torch.histogram(p.cpu())"),  # only the CPU has it
]


@pytest.mark.parametrize("code, expected", HOST, ids=[code for code, _ in HOST])
def test_numpy_and_what_only_the_cpu_has_get_what_is_there(tmp_path, code, expected):
    head = HEAD + "p = model(X.to(device)).detach()\n"
    assert fixed(tmp_path, code, head) == [f"-{code}", f"+{expected}"]


@pytest.mark.parametrize("begin, name", [("found = []", "found"), ("found = {'x': []}", 'found["x"]')])
def test_a_list_for_numpy_collects_on_the_cpu(tmp_path, begin, name):
    code = f"{begin}\nfor _ in range(2):\n    {name}.append(model(X.to(device)).detach())\nnp.array({name})"
    assert fixed(tmp_path, code)[1] == f"+    {name}.append(model(X.to(device)).detach().cpu())"


def test_lengths_stay_on_the_cpu(tmp_path):
    code = "n = torch.tensor([3, 2]).to(device)\nx = X[:4].view(3, 2, 2).to(device)\n"
    code += "nn.utils.rnn.pack_padded_sequence(x, n)"
    assert fixed(tmp_path, code)[1].endswith("(x, n.cpu())")


def test_what_is_trained_is_found_under_any_name(tmp_path):
    code = (
        "class Trainer:\n    def __init__(self, net):\n        self.model = net\n"
        "        self.head = nn.Linear(2, 1)\n        self.optimizer = torch.optim.SGD(net.parameters())\n"
        "    def step(self):\n        self.head(self.model(X)).sum().backward()\nTrainer(model).step()\n"
    )
    record, files = run(tmp_path, HEAD.replace("Net().to(device)", "Net()") + code)
    texts = [reasons.trained(files, *each).text.decode() for each in record.used]
    assert sorted(line for text in texts for line in _lines(HEAD + code, text) if line.startswith("+")) == [
        "+        self.head = nn.Linear(2, 1).to(device)",
        "+model = Net()",
    ]


def test_a_file_that_was_saved_from_the_gpu_says_where_it_goes(tmp_path):
    code = "torch.save(model.state_dict(), 'w.pt')\nmodel.load_state_dict(torch.load('w.pt'))\n"
    code += "torch.load('w.pt', 'cpu')\n"
    code = code.replace("w.pt", str(tmp_path / "w.pt"))
    record, files = run(tmp_path, HEAD + code)
    (spot,) = record.loads
    assert "w.pt', map_location=device))" in reasons.loading(files, spot).text.decode()

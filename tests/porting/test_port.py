"""``python -m gpulesson port``, as a reader calls it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("libcst")

from gpulesson.__main__ import main
from gpulesson_tools.porting.command import _changes, _keep
from gpulesson_tools.porting.facts import LESSONS
from gpulesson_tools.porting.reasons import COMES_BACK, MOVES, Change, Files
from practice_gpu import practice_gpu

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
NET = "nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))"
LOOP = f"""\
import torch
from torch import nn

model = {NET}
x, y = torch.randn(64, 4), torch.ones(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def sampled(cases, names: list[str], quick: int) -> list:
    """Return the cases by their names; those after the first few run in the thorough tests alone."""
    marks = [()] * quick + [pytest.mark.thorough] * (len(names) - quick)
    return [
        pytest.param(case, id=name, marks=mark) for case, name, mark in zip(cases, names, marks, strict=True)
    ]


@pytest.fixture
def port(tmp_path, monkeypatch, capsys):
    """Ports a script in a folder of its own; returns exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def port(text: str | bytes, *options: str):
        (tmp_path / "train.py").write_bytes(text if isinstance(text, bytes) else text.encode())
        status = main(["port", *options, "train.py", "--its-own"])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return port


@pytest.mark.slow
def test_the_script_of_the_landing_page_becomes_the_one_beside_it(port, tmp_path):
    status, printed, _ = port((SCRIPTS / "circle.py").read_bytes())
    assert status == 0
    assert "All 200 are equal to the bit, and the script printed the same." in printed
    assert (
        "line 21: the batch's inputs and targets move to the device. Lesson 4, The training loop on a device"
        in printed
    )
    assert "Without it: RuntimeError: Expected all tensors to be on the same device" in printed
    names = {"torch": torch}
    with practice_gpu(force=True):
        exec("device = " + re.search("and Intel's, too, write after the =:\n *(.*)", printed)[1], names)
    assert torch.device(names["device"]).type == "cuda"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_bytes() == (SCRIPTS / "circle.py").read_bytes()
    ported = (SCRIPTS / "circle_gpu.py").read_text().splitlines()[1:]
    added = [line[1:] for line in printed.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added and set(added) <= set(ported)


@pytest.mark.slow
def test_it_writes_when_asked_and_keeps_what_was_there(port, tmp_path, capsys):
    late = LOOP + "    if step == 10:\n        print(model(x).detach().numpy()[0])\n"
    text = late.replace("\n", "\r\n").encode("utf-8-sig").replace(b"    ", b"\t")
    (tmp_path / "train.py.before-port").write_bytes(b"an older one")
    status, printed, _ = port(text, "--write", "--out", "port.patch")
    assert status == 0
    assert "The script draws random numbers on the GPU." in printed  # the dropout
    assert "All 12 are equal to the bit" in printed and "Not reached" not in printed
    written = (tmp_path / "train.py").read_bytes()
    assert b"print(model(x).detach().cpu().numpy()[0])" in written
    assert b".to(device)\r\n" in written and written.startswith(b"\xef\xbb\xbfimport torch\r\n")
    assert written.count(b"\n") == written.count(b"\r\n")
    assert (tmp_path / "train.py.before-port").read_bytes() == b"an older one"
    assert (tmp_path / "train.py.before-port-2").read_bytes() == text
    (tmp_path / "train.py").write_bytes(text)
    subprocess.run(["git", "apply", "port.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_bytes() == written
    assert main(["port", "--out", "port.patch", "train.py"]) == 1
    assert "port.patch exists already" in capsys.readouterr().err
    assert main(["port", "train.py"]) == 1  # there is nothing to do any more


OTHER = LOOP.replace("    optimizer.step()", "    optimizer.step() if not x.is_cuda else None")


@pytest.mark.slow
def test_a_script_that_trains_something_else_is_not_written(port, tmp_path):
    status, printed, errors = port(OTHER, "--write", "--out", "port.patch")
    assert status == 1
    assert "So these changes train something else." in printed and "Nothing was written." in errors
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == OTHER


@pytest.mark.slow
def test_losses_may_differ_by_what_rounding_changes_and_no_more(port):
    # a copy of this is summed in another order, where the library for matrices does so
    rows = "torch.from_numpy(numpy.random.randn(759, 9).astype('float32')[:, :8])"
    sample, weights = torch.randn(759, 9)[:, :8], torch.randn(8, 1)
    if torch.equal(sample @ weights, sample.contiguous() @ weights):
        pytest.skip("both orders give the same bits here")
    text = LOOP.replace("torch.randn(64, 4)", rows).replace("64", "759").replace("4, 8", "8, 1")
    text = "import numpy\n" + text.replace(", nn.Dropout(), nn.Linear(8, 1)", "")
    status, printed, _ = port(text)
    assert status == 0 and "differ from step" in printed and "no more than by rounding" in printed
    faster = "    optimizer.param_groups[0]['lr'] *= 1 + 1e-5 * x.is_cuda\n    optimizer.step()"
    status, printed, _ = port(text.replace("    optimizer.step()", faster))
    assert status == 1 and "So these changes train something else." in printed


@pytest.mark.slow
def test_without_a_seed_of_its_own_nothing_is_proved(port):
    noise = LOOP.replace("model(x), y)", "model(x), y) * (1 + __import__('time').time_ns() % 1000 / 1e6)")
    status, printed, _ = port(noise)
    assert status == 1 and "also differ from run to run on the CPU" in " ".join(printed.split())


REFUSED = {
    "name = input()\n" + LOOP: "train.py, line 1, waits for input()",
    LOOP.replace("    loss.backward()\n", ""): "backward() was never called",
    f"exec({LOOP!r})": "its training is in text that is run by exec()",
    "import urllib.request as r\nr.urlopen('https://example.org')": "line 2, wants to download something",
    LOOP + "loss[0]\n": "loss[0]\n    ~~~~^^^\nIndexError: invalid index of a 0-dim tensor",
    LOOP.replace("1))\n", "1)).cuda()\n")
    .replace("), torch", ").cuda(), torch.cuda.FloatTensor")
    .replace(
        "FloatTensor.ones(64, 1)", "FloatTensor(64, 1)"
    ): "it trains on the GPU already, and cannot run without one: train.py, line 4,",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--device')\n"
    + LOOP: "it has an option --device, so it can choose its device already",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args([])\n": (
        "train.py: error: the following arguments are required: data"
    ),
    LOOP.replace("range(12)", "range(2)"): "it took 2 training steps, too few to compare",
    LOOP.replace("ones(64, 1)", "full((64, 1), torch.nan)"): "its loss is not a number any more in step 1",
    "open('../data')": "line 1, finds no file. It is tried in a copy of the folder that you are in.",
    "print('hello')": "backward() was never called",
    LOOP + "class A:\n\tdef f(self):\n            a = 1\n            return a\n\n\tdef g(self): pass\n": (
        "cannot read train.py, where some lines begin with tabs and some with spaces"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", REFUSED, ids=REFUSED.values())
def test_what_cannot_be_ported_has_a_reason_and_nothing_changes(port, tmp_path, text):
    status, printed, errors = port(text)
    assert status == 1 and not printed
    assert REFUSED[text] in errors
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_what_has_no_end_is_ended(port):
    status, _, errors = port("while True: pass", "--limit", "2")
    assert status == 1 and "it neither finished nor reached a training step" in errors


@pytest.mark.slow
def test_several_files_later_training_and_lines_that_were_not_reached(port, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(4, 1)\n"
        "        self.shift = ones()\n\n"
        "    def forward(self, x):\n        return self.layer(x) + self.shift\n\n\n"
        "def ones():\n    import torch\n    return torch.ones(1)\n"
    )
    script = LOOP.replace(NET, "Net()").replace(
        "from torch import nn", "import sys\nfrom torch import nn\nfrom net import Net"
    )
    loads = "if sys.argv[2:]:\n    state = torch.load('w.pt')\n    model.load_state_dict(state)\n"
    script = script.replace("optimizer =", loads + "    other = torch.load(sys.argv[2])\noptimizer =")
    second = "second =" + LOOP.partition("model =")[2].replace("model", "second")
    status, printed, _ = port(script + second + "if loss.isnan():\n    print(loss.numpy())\n", "--write")
    assert status == 0 and "All 24 are equal to the bit" in printed
    assert '+        self.register_buffer("shift", ones(), persistent=False)' in printed
    assert "+second = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).to(device)" in printed
    assert "+    state = torch.load('w.pt', map_location=device)" in printed.splitlines()
    assert ", loads a file." in printed and "argv[2], map" not in printed
    assert "Not reached, so not tried, lines: train.py, 11 to 13, train.py, 29." in printed
    assert "register_buffer" in (tmp_path / "net.py").read_text()
    assert (tmp_path / "net.py.before-port").exists() and (tmp_path / "train.py.before-port").exists()


def test_of_several_files_none_is_written_if_one_was_changed_in_the_meantime(tmp_path, capsys):
    originals = {"net.py": b"x = 1\n", "train.py": b"y = 1\n"}
    (tmp_path / "net.py").write_bytes(b"x = 1\n# one more line\n")
    (tmp_path / "train.py").write_bytes(originals["train.py"])
    files = Files(originals, {name: text + b"z = 2\n" for name, text in originals.items()})
    found = SimpleNamespace(files=files, proved=True, left=[], stuck="")
    assert _keep(found, tmp_path, SimpleNamespace(write=True, out=None)) == 1
    assert "A file was changed in the meantime. Nothing was written." in capsys.readouterr().err
    assert (tmp_path / "train.py").read_bytes() == originals["train.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.py", "train.py"]


@pytest.mark.slow
def test_a_script_that_ends_itself_on_the_gpu_is_not_proved(port):
    ends = "    optimizer.step()\n    if x.is_cuda and step == 5:\n        raise SystemExit(1)\n"
    status, printed, _ = port(LOOP.replace("    optimizer.step()\n", ends))
    assert status == 1 and "The script took 12 steps on the CPU and 6 on the GPU" in printed


@pytest.mark.slow
@pytest.mark.thorough
def test_tensors_that_meet_in_forward_move_one_after_the_other(port):
    net = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, left, right):
        both = torch.cat([left, right], 1)
        return self.layer(both)

def half():
    return torch.randn(64, 2).abs()

model = Net()"""
    text = LOOP.replace(f"model = {NET}", net)
    text = text.replace("    loss =", "    a = half()\n    b = half() + 1\n    loss =").replace(
        "model(x)", "model(a, b)"
    )
    status, printed, _ = port(text)
    assert status == 0 and "+        both" not in printed


@pytest.mark.slow
def test_what_two_tensors_make_is_not_moved_in_each_step_but_they_once(port):
    text = LOOP.replace("for step", "scale = torch.linspace(0.1, 1, 4)\nfor step").replace(
        "(x)", "(x * scale)"
    )
    status, printed, _ = port(text)
    assert status == 0 and "-    loss" not in printed
    assert "+scale = torch.linspace(0.1, 1, 4, device=device)" in printed
    assert "+x, y = torch.randn(64, 4).to(device), " in printed


@pytest.mark.slow
def test_what_a_short_run_would_leave_out_is_tried_too(port):
    text = LOOP.replace("range(12)", "range(310)")
    text += "    if step == 100:\n        model(torch.linspace(0, 1, 4).reshape(1, 4))\n"
    text += "print(loss.detach().numpy())\n"
    status, printed, _ = port(text)
    assert status == 0
    assert "+        model(torch.linspace(0, 1, 4" in printed and "loss.detach().cpu().numpy()" in printed
    assert "with whole loops, for 301 steps; their losses are equal as well." in printed
    assert "Not reached" not in printed


FIT = """\
import sys, torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X = torch.randn(64, 4)
def fit(data):
    for i in range(6):
        x = data[i * 8 : i * 8 + 8]
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
fit(X)
print(model(X).mean())
"""
TIDIED = {
    # X moves at last, and then x need not: but other data may come to fit, in a line that was not reached
    FIT: ["+X = torch.randn(64, 4).to(device)"],
    FIT.replace("fit(X)", "fit(X)\nif sys.argv[2:]:\n    fit(torch.load(sys.argv[2]))"): [
        "+X = torch.randn(64, 4).to(device)",
        "+        x = data[i * 8 : i * 8 + 8].to(device)",
    ],
    # a list that another name has, too, is still that list; a closure's names are not moved twice
    FIT.replace("    for", "    global held, kept\n    held, kept = [], []\n    for")
    .replace("        optimizer.zero", "        held.append(x)\n        kept = held\n        optimizer.zero")
    .replace("model(x)", "model(torch.stack(kept))")
    .replace("        optimizer.step()", "        optimizer.step()\n        kept.clear()"): [
        "+X = torch.randn(64, 4).to(device)",
    ],
    FIT.replace("x = data[i * 8 : i * 8 + 8]", "(x,) = data[i * 8 : i * 8 + 8].split(8)")
    .replace("        model(x)", "        def loss():\n            return model(x)\n        loss()")
    .replace("print(model(X).mean())", ""): ["+        x = x.to(device)"],
}


@pytest.mark.slow
@pytest.mark.parametrize("text", sampled(TIDIED, ["once", "for others", "held", "closure"], quick=2))
def test_no_move_is_too_many_and_none_too_few(port, text):
    status, printed, _ = port(text)
    added = [line for line in printed.splitlines() if line.startswith("+") and line[1:].strip()]
    assert status == 0
    assert added[1:] == [
        '+device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        "+model = nn.Linear(4, 1).to(device)",
        *TIDIED[text],
    ]


@pytest.mark.slow
def test_a_model_that_goes_back_to_the_cpu_is_named_once(port):
    back = LOOP + "    if step % 10 == 9:\n        model.cpu()\n"
    status, printed, _ = port(back)
    assert status == 1 and printed.count("the model moves to the device") == 1


@pytest.mark.slow
def test_a_device_that_the_script_names_is_chosen(port):
    text = LOOP.replace("\n\n", "\n\nDEVICE = torch.device('cpu')\nprint('on ' + str(DEVICE))\n", 1)
    status, printed, _ = port(text.replace("8, 1))", "8, 1)).to(DEVICE)"))
    assert status == 0
    assert '+DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")' in printed.splitlines()
    assert "-DEVICE = torch.device('cpu')" in printed.splitlines()


WEIGHTS = """\
import torch
g = torch.Generator().manual_seed(1)
X, Y = torch.randint(0, 5, (64, 2), generator=g), torch.randint(0, 5, (64,), generator=g)
C = torch.randn((5, 3), generator=g)
W = torch.randn((6, 5), generator=g) * 0.1
gain = torch.ones((1, 5))
running = torch.zeros((1, 5))
parameters = [C, W, gain]
for p in parameters:
    p.requires_grad = True
losses = []
for i in range(200000):
    ix = torch.randint(0, 64, (16,), generator=g)
    pre = C[X[ix]].view(16, 6) @ W
    with torch.no_grad():
        running = 0.9 * running + 0.1 * pre.mean(0, keepdim=True)
    loss = torch.nn.functional.cross_entropy(pre * gain, Y[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.1 * p.grad
    losses.append(loss.item())
print(torch.tensor(losses).view(-1, 1000).mean(1))
with torch.no_grad():
    print(torch.nn.functional.cross_entropy(C[X].view(64, 6) @ W - running, Y))
    odds = torch.softmax(C[torch.tensor([[1, 2]])].view(1, 6) @ W, 1)
    print(torch.multinomial(odds, 1, generator=g).item())
"""


@pytest.mark.slow
def test_weights_that_are_plain_tensors_move_where_they_are_made_and_the_end_is_reached(port):
    status, printed, _ = port(WEIGHTS)
    added = {line[1:].strip() for line in printed.splitlines() if line.startswith("+")}
    assert status == 0
    assert {
        "C = torch.randn((5, 3), generator=g).to(device)",
        "W = (torch.randn((6, 5), generator=g) * 0.1).to(device)",
        "gain = torch.ones((1, 5), device=device)",
        "print(torch.multinomial(odds.cpu(), 1, generator=g).item())",
    } <= added
    assert not [line for line in added if line.startswith("pre =")]
    assert "loops that train or draw batches ended after a few turns" in printed
    # the plot of means needs all losses; what stands behind it does not
    assert "as far as it was tried" in printed and "Not reached, so not tried, lines: 26." in printed


@pytest.mark.slow
def test_what_is_left_on_the_cpu_is_named_and_the_changes_are_a_part(port, tmp_path):
    kept = LOOP + "a, w = torch.ones(8, 3), torch.zeros(3, 1)\nfor step in range(6):\n"
    kept += "    w = w - 0.1 * a.T @ (a @ w - 1)\n    assert not w.is_cuda\n"
    status, printed, errors = port(kept, "--write", "--out", "port.patch")
    assert status == 1 and printed.startswith(
        "train.py is ported in part. This is still computed on the CPU:"
    )
    assert "train.py, line 16: w = w - 0.1 * a.T @ (a @ w - 1)\n" in printed and "All 12 are equal" in printed
    assert "Your file is as it was: this is a part." in errors
    assert (tmp_path / "train.py").read_text() == kept
    subprocess.run(["git", "apply", "port.patch"], cwd=tmp_path, check=True)
    assert "8, 1)).to(device)" in (tmp_path / "train.py").read_text()


@pytest.mark.slow
def test_what_was_found_before_it_stops_is_written_as_a_part(port, tmp_path):
    stops = LOOP + "if x.is_cuda:\n    raise ValueError('not here')\n"
    status, printed, _ = port(stops, "--out", "port.patch")
    assert status == 1 and printed.startswith("train.py is not ported. The changes below are a part.")
    assert "The difference so far, which is a part, is in port.patch" in printed
    assert "8, 1)).to(device)" in (tmp_path / "port.patch").read_text()
    # text for a terminal: no roles, no double backquotes, no addresses of pages
    assert "``" not in printed and ":`" not in printed and "`_" not in printed


PLACES = {
    # results of the device are not put into a tensor of the CPU's one by one
    LOOP.replace(
        "model = " + NET,
        "class Net(nn.Linear):\n    def forward(self, x):\n        out = torch.empty(5)\n"
        "        for i in range(5):\n"
        "            out[i] = super().forward(x[i])[0]\n        return out\nmodel = Net(4, 1)",
    ).replace("(model(x), y)", "(model(x), y[:5, 0])"): [
        "+        out = torch.empty(5, device=x.device)",
        "+model = Net(4, 1).to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1).to(device)",
    ],
    # what a comprehension draws moves in the comprehension; a module that only wraps others is not the model
    LOOP.replace(
        "model = " + NET,
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.one = nn.Linear(4, 1)\n"
        "    def forward(self, x):\n        return nn.Sequential(self.one, nn.ReLU())(x)\n"
        "def right(model, data):\n"
        "    return sum((model(a).round() == b).sum() for a, b in data) / len(data)\n"
        "model = Net()",
    )
    .replace(
        "optimizer =",
        "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16)\noptimizer =",
    )
    .replace("for step in range(12):", "for x, y in data:")
    + "print(right(model, data))\n": [
        "+    return sum((model(a.to(device)).round() == b.to(device)).sum() for a, b in data) / len(data)",
        "+model = Net().to(device)",
        "+    x, y = x.to(device), y.to(device)",
    ],
    # a distribution of two tensors, and a table that is computed once from constants
    LOOP.replace(
        "optimizer =",
        "prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))\noptimizer =",
    )
    .replace(NET, "nn.Linear(4, 1)")
    .replace("(model(x), y)", "(model(x), y) - prior.log_prob(model(x)).mean()"): [
        "+prior = torch.distributions.MultivariateNormal"
        "(torch.zeros(1, device=device), torch.eye(1, device=device))",
        "+model = nn.Linear(4, 1).to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1, device=device)",
    ],
    LOOP.replace(
        "model = " + NET,
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 1)\n"
        "        self.base = torch.distributions.Normal(torch.zeros(1), torch.ones(1))\nmodel = Net()",
    ).replace("(model(x), y)", "(model(x), y) - model.base.log_prob(model(x)).mean()"): [
        "+        self.base = torch.distributions.Normal"
        "(torch.zeros(1, device=device), torch.ones(1, device=device))",
        "+model = Net().to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1, device=device)",
    ],
    LOOP.replace(NET, "nn.Linear(4, 1)")
    .replace(
        "optimizer =",
        "betas = torch.linspace(0, 1, 12)\nalphas = torch.cumprod(1 - betas, 0)\n"
        "roots = alphas.sqrt()\noptimizer =",
    )
    .replace("(model(x), y)", "(roots[step : step + 1] * model(x), y)"): [
        "+model = nn.Linear(4, 1).to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1, device=device)",
        "+betas = torch.linspace(0, 1, 12, device=device)",
    ],
    # a network that is called, and never trained
    "import copy\n"
    + LOOP.replace(NET, "nn.Linear(4, 1)")
    .replace("optimizer =", "old = nn.Linear(4, 1)\noptimizer =")
    .replace("    loss =", "    with torch.no_grad():\n        goal = 0.9 * old(x) * (1 - y)\n    loss =")
    .replace("(model(x), y)", "(model(x), goal)")
    + "    old = copy.deepcopy(model)\n": [
        "+model = nn.Linear(4, 1).to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1).to(device)",
        "+old = nn.Linear(4, 1).to(device)",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", sampled(PLACES, ["filled", "comprehension", "distribution", "held", "table", "called"], quick=2)
)
def test_what_was_made_moves_and_not_what_was_computed(port, text):
    status, printed, _ = port(text)
    added = [line for line in printed.splitlines() if line.startswith("+") and line[1:].strip()]
    assert status == 0, printed
    assert sorted(added[1:]) == sorted(
        ['+device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', *PLACES[text]]
    )


ODD = """\
import os
class Settings(dict):
    def __getattr__(self, name):
        return self[name]
class Anything:
    def __getattr__(self, name):
        return lambda *_: self
class Bare:
    __slots__ = ()
    def __getattr__(self, name):
        raise KeyError(name)
    def call(self, what):
        return what()
settings, anything = Settings(rate=0.1), Anything()
"""


@pytest.mark.slow
def test_a_module_with_objects_that_answer_anything_and_an_end_without_cleaning_up(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("SIZE = 4\n")
    loop = LOOP.replace("randn(64, 4)", "randn(64, SIZE)").replace("lr=0.1", "lr=settings.rate")
    loss = "Bare().call(lambda: ((model(x) - y) ** 2).mean())"
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom . import SIZE\n"
        "assert sys.argv[1:] == ['--its-own'] and __spec__.name == 'package.train'\n"
        f"{ODD}{loop.replace('nn.functional.mse_loss(model(x), y)', loss)}"
        "print('done', flush=True)\nos._exit(0)\n"
    )
    assert main(["port", "-m", "package.train", "--its-own"]) == 0
    printed = capsys.readouterr().out
    assert "+++ b/package/train.py" in printed
    assert "All 12 are equal to the bit, and the script printed the same." in printed
    assert main(["port", "-m", "package.other"]) == 1
    assert "There is no module 'package.other' in this folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cell_of_a_notebook(tmp_path, monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell()
    shell.run_cell("%load_ext gpulesson")
    capsys.readouterr()
    shell.run_cell("%%port --epochs 3\n" + LOOP)
    assert "equal to the bit" in capsys.readouterr().out and list(tmp_path.iterdir()) == []
    shell.run_cell("%%port\n!pip install torch\n")
    assert "cell.py is not Python that can run: line 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("gone.py", None, "There is no script 'gone.py'"),
        ("notes.txt", "x", "expected a file that ends in .py"),
        ("train.py", "for\n", "line 1: invalid syntax"),
    ],
)
def test_what_is_not_a_script(tmp_path, monkeypatch, capsys, name, text, says):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    assert main(["port", name]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["-m"], ["-c", "train"], ["--limit", "0", "train.py"], ["--limit", "soon", "train.py"]]
)
def test_wrong_words(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["port", *words])
    assert stopped.value.code == 2


def test_the_lessons_have_their_titles():
    scripts = sorted((Path(__file__).parents[2] / "examples").glob("[0-9][0-9]_*.py"))
    titles = [script.read_text(encoding="utf-8").splitlines()[1] for script in scripts]
    assert [f"{number} · {title}" for number, title in LESSONS.items()] == titles


def test_what_goes_and_what_comes_back_on_one_line_are_listed_apart():
    moves = [(("x",), MOVES), (("y",), MOVES), (("p",), COMES_BACK)]
    changes = [Change("train.py", b"", *words, 2, line=3) for words in moves]
    listed = _changes(SimpleNamespace(changes=changes, files=SimpleNamespace(texts=["train.py"])))
    assert [line.partition(" Lesson")[0] for line in listed] == [
        "line 3: x and y move to the device.",
        "line 3: p comes back to the CPU.",
    ]

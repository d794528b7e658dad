"""``python -m gpulesson port``, as a reader calls it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("libcst")

from gpulesson.__main__ import main
from gpulesson_tools.porting.command import _changes
from gpulesson_tools.porting.facts import LESSONS
from gpulesson_tools.porting.reasons import Change

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
LOOP = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
x, y = torch.randn(64, 4), torch.ones(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


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
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_bytes() == (SCRIPTS / "circle.py").read_bytes()
    ported = (SCRIPTS / "circle_gpu.py").read_text().splitlines()[1:]
    added = [line[1:] for line in printed.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added and set(added) <= set(ported)


@pytest.mark.slow
def test_it_writes_when_asked_and_keeps_what_was_there(port, tmp_path, capsys):
    text = LOOP.replace("\n", "\r\n").encode("utf-8-sig").replace(b"    ", b"\t")
    (tmp_path / "train.py.before-port").write_bytes(b"an older one")
    status, printed, _ = port(text, "--write", "--out", "port.patch")
    assert status == 0
    assert "The script draws random numbers on the GPU." in printed  # the dropout
    written = (tmp_path / "train.py").read_bytes()
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


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_otherwise(port, end):
    status, printed, _ = port(LOOP.replace("\n", end).encode())
    assert status == 0 and "8, 1)).to(device)" in printed


REFUSED = {
    "name = input()\n" + LOOP: "train.py, line 1, waits for input()",
    LOOP.replace("    loss.backward()\n", ""): "no loss went backward()",
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
    LOOP.replace("range(24)", "range(2)"): "it took 2 training steps, too few to compare",
    LOOP.replace("ones(64, 1)", "full((64, 1), torch.nan)"): "its loss is not a number any more in step 1",
    "open('../data')": "line 1, finds no file. It is tried in a copy of the folder that you are in.",
    "print('hello')": "no loss went backward()",
    LOOP + "class A:\n\tdef f(self):\n            a = 1\n            return a\n\n\tdef g(self): pass\n": (
        "cannot read train.py, where some lines begin with tabs and some with spaces"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", REFUSED, ids=REFUSED.values())
def test_what_cannot_be_ported_is_said_and_nothing_changes(port, tmp_path, text):
    status, printed, errors = port(text)
    assert status == 1 and not printed
    assert REFUSED[text] in errors
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_what_has_no_end_is_ended(port):
    status, _, errors = port("while True: pass", "--limit", "3")
    assert status == 1 and "it neither finished nor reached a training step" in errors
    status, printed, _ = port(LOOP.replace("for step in range(24)", "while True"))
    assert status == 0 and "loops that train or draw batches ended after a few turns" in printed


@pytest.mark.slow
def test_what_comes_late_in_a_loop_is_tried_as_well(port):
    status, printed, _ = port(LOOP + "    if step == 20:\n        print(model(x).detach().numpy()[0])\n")
    assert status == 0
    assert "+        print(model(x).detach().cpu().numpy()[0])" in printed
    assert "All 24 are equal to the bit" in printed and "Not reached" not in printed


@pytest.mark.slow
def test_several_files_and_what_was_not_reached(port, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(4, 1)\n"
        "        self.shift = torch.ones(1)\n\n"
        "    def forward(self, x):\n        return self.layer(x) + self.shift\n"
    )
    script = LOOP.replace("from torch import nn", "from torch import nn\nfrom net import Net")
    script = script.replace("nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))", "Net()")
    status, printed, _ = port(script + "if loss.isnan():\n    print(loss.numpy())\n")
    assert status == 0
    assert "+++ b/net.py" in printed and '+        self.register_buffer("shift", torch.ones(1))' in printed
    assert "Not reached, so not tried, lines: train.py, 16." in printed


@pytest.mark.slow
def test_a_script_that_ends_itself_on_the_gpu_is_not_proved(port):
    ends = "    optimizer.step()\n    if x.is_cuda and step == 5:\n        raise SystemExit(1)\n"
    status, printed, _ = port(LOOP.replace("    optimizer.step()\n", ends))
    assert status == 1 and "The script took 24 steps on the CPU and 6 on the GPU" in printed


@pytest.mark.slow
def test_what_is_trained_later_moves_as_well(port):
    second = "second =" + LOOP.partition("model =")[2].replace("model", "second")
    status, printed, _ = port(LOOP + second)
    assert status == 0 and "All 48 are equal to the bit" in printed
    assert "+second = nn.Sequential" in printed


@pytest.mark.slow
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
    text = LOOP.replace("model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))", net)
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
    text = LOOP.replace("range(24)", "range(310)")
    text += "    if step == 200:\n        model(torch.linspace(0, 1, 4).reshape(1, 4))\n"
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
@pytest.mark.parametrize("text", TIDIED, ids=range(len(TIDIED)))
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


DEVICES = {
    'device = "cpu"': 'device = "cuda" if torch.cuda.is_available() else "cpu"',
    "DEVICE = torch.device('cpu')": 'DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
    'place = "cpu"': 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
}


@pytest.mark.slow
@pytest.mark.parametrize("line", DEVICES)
def test_a_device_that_the_script_names_is_chosen(port, line):
    name = line.split()[0]
    text = LOOP.replace("\n\n", f"\n\n{line}\nprint('on ' + str({name}))\n", 1)
    status, printed, _ = port(text if name == "place" else text.replace("8, 1))", f"8, 1)).to({name})"))
    assert status == 0
    assert f"+{DEVICES[line]}" in printed.splitlines()
    assert (f"-{line}" in printed.splitlines()) == (name != "place")


@pytest.mark.slow
def test_a_tensor_that_an_attribute_gets_later_is_moved_and_not_registered(port):
    net = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.stack([torch.tensor(2.0)])
        return self.layer(x) * self.mask

model = Net()"""
    text = LOOP.replace("model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))", net)
    status, printed, _ = port(text)
    assert status == 0 and "register_buffer" not in printed


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
    assert "train.py, line 16: w = w - 0.1 * a.T @ (a @ w - 1)\n" in printed and "All 24 are equal" in printed
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


NET = "nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))"
PLACES = {
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
        "betas = torch.linspace(0, 1, 24)\nalphas = torch.cumprod(1 - betas, 0)\n"
        "roots = alphas.sqrt()\noptimizer =",
    )
    .replace("(model(x), y)", "(roots[step : step + 1] * model(x), y)"): [
        "+model = nn.Linear(4, 1).to(device)",
        "+x, y = torch.randn(64, 4).to(device), torch.ones(64, 1, device=device)",
        "+betas = torch.linspace(0, 1, 24, device=device)",
    ],
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
    .replace("for step in range(24):", "for x, y in data:")
    + "print(right(model, data))\n": [
        "+    return sum((model(a.to(device)).round() == b.to(device)).sum() for a, b in data) / len(data)",
        "+model = Net().to(device)",
        "+    x, y = x.to(device), y.to(device)",
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
    "text", PLACES, ids=["distribution", "held", "table", "filled", "comprehension", "called"]
)
def test_what_was_made_moves_and_not_what_was_computed(port, text):
    status, printed, _ = port(text)
    added = [line for line in printed.splitlines() if line.startswith("+") and line[1:].strip()]
    assert status == 0, printed
    assert sorted(added[1:]) == sorted(
        ['+device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', *PLACES[text]]
    )


@pytest.mark.slow
def test_weights_are_mapped_also_in_lines_that_were_not_reached(port):
    loads = "if sys.argv[2:]:\n    state = torch.load('w.pt')\n    model.load_state_dict(state)\n"
    loads += "    other = torch.load(sys.argv[2])\n"
    status, printed, _ = port("import sys\n" + LOOP.replace("optimizer =", loads + "optimizer ="))
    assert status == 0
    assert "+    state = torch.load('w.pt', map_location=device)" in printed.splitlines()
    assert ", loads a file." in printed and "argv[2], map" not in printed


@pytest.mark.slow
def test_objects_that_answer_anything_or_fail_and_an_end_without_cleaning_up(port):
    odd = """\
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
    odd += LOOP.replace("lr=0.1", "lr=settings.rate")
    odd = odd.replace(
        "nn.functional.mse_loss(model(x), y)", "Bare().call(lambda: ((model(x) - y) ** 2).mean())"
    )
    status, printed, _ = port(odd + "print('done', flush=True)\nos._exit(0)\n")
    assert status == 0 and "All 24 are equal to the bit, and the script printed the same." in printed


@pytest.mark.slow
def test_a_module_is_run_as_python_runs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("SIZE = 4\n")
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom . import SIZE\n"
        "assert sys.argv[1:] == ['--its-own'] and __spec__.name == 'package.train'\n"
        + LOOP.replace("randn(64, 4)", "randn(64, SIZE)")
    )
    assert main(["port", "-m", "package.train", "--its-own"]) == 0
    assert "+++ b/package/train.py" in capsys.readouterr().out
    assert main(["port", "-m", "package.other"]) == 1
    assert "There is no module 'package.other' in this folder" in capsys.readouterr().err


@pytest.mark.slow
def test_several_files_are_written_all_or_none(port, tmp_path, monkeypatch):
    net = "from torch import nn\ndef made():\n    return nn.Linear(4, 1)\n"
    (tmp_path / "net.py").write_text(net)
    script = "from net import made\n" + LOOP.replace(
        "nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))", "nn.Sequential(made())"
    ).replace("(model(x), y)", "(model(x) + shift(), y)")
    script = script.replace("import made", "import made, shift")
    (tmp_path / "net.py").write_text(net + "def shift():\n    import torch\n    return torch.ones(64, 1)\n")
    monkeypatch.setattr("gpulesson_tools.porting.command._not_reached", lambda _: _spoil(tmp_path / "net.py"))
    status, printed, errors = port(script, "--write")
    assert status == 1 and "A file was changed in the meantime. Nothing was written." in errors
    assert (tmp_path / "train.py").read_text() == script
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["net.py", "train.py"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    status, printed, errors = port(script, "--write")
    assert status == 0 and "+    import torch" not in printed
    assert "import torch\n" in (tmp_path / "net.py").read_text().partition("def made")[0]
    assert (tmp_path / "net.py.before-port").exists() and (tmp_path / "train.py.before-port").exists()


def _spoil(path: Path):
    path.write_text(path.read_text() + "# one more line\n")
    return []


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
def test_what_is_no_script(tmp_path, monkeypatch, capsys, name, text, says):
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
    for number, title in LESSONS.items():
        (lesson,) = (Path(__file__).parents[2] / "examples").glob(f"{number:02}_*.py")
        assert f"{number} · {title}" in lesson.read_text(encoding="utf-8").splitlines()


def test_what_goes_and_what_comes_back_on_one_line_are_told_apart():
    moves = [("x", "moves to the device"), ("y", "moves to the device"), ("p", "comes back to the CPU")]
    changes = [Change("train.py", b"", *words, 2, line=3) for words in moves]
    told = _changes(SimpleNamespace(changes=changes, files=SimpleNamespace(texts=["train.py"])))
    assert [line.partition(" Lesson")[0] for line in told] == [
        "line 3: x and y move to the device.",
        "line 3: p comes back to the CPU.",
    ]

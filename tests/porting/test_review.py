"""``python -m gpulesson review``: faults are found where they are, and nothing is found in right code."""

from __future__ import annotations

import re

import pytest
import torch

from gpulesson.__main__ import main
from gpulesson_tools.porting.child import Loops
from gpulesson_tools.porting.facts import Run
from gpulesson_tools.porting.review import TABLE, findings
from gpulesson_tools.porting.run import Runs
from gpulesson_tools.programs.arguments import Program
from practice_gpu import practice_gpu

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
# A comment names the faults of its line.
FAULTY = {
    "loop": HEAD
    + """\
device = "cuda"  # no gpu
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(10).cuda()  # no gpu, plain
        self.state = torch.zeros(10, device=device)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, x):
        y = self.body(x) * self.scale + self.state
        self.state = y.detach().mean(0)
        return y

x, y = torch.randn(200, 1, 28, 28), torch.randint(0, 10, (200,))
loader = DataLoader(TensorDataset(x, y), batch_size=64)
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    running = 0.0
    for images, labels in loader:
        images, labels = images.cuda(), labels.cuda()
        noise = torch.randn(64, 3).cuda()  # made
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()  # waits
        print(loss, loss.detach().cpu())  # waits, back
    print(epoch, running / len(loader))
    right, other = 0, 0.0
    for images, labels in loader:
        right += (model(images.cuda()).argmax(1) == labels.cuda()).sum().item()  # mode, unused
    with torch.no_grad():
        for images, labels in loader:
            other += criterion(model(images.cuda()), labels.cuda()).item()  # mode, means
    other /= len(loader)  # means
""",
    "method": HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        return self.body(x)

    def show(self, x):
        return self.forward(x).detach()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model, x = Net().to(device), torch.randn(64, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for step in range(8):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    model.show(x)  # unused
""",
    "settings": HEAD
    + """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randint(0, 256, (256, 3, 32, 32)).float() / 255, torch.arange(256) // 26

def train(model, loader, optimizer, others):
    losses = []
    for epoch in range(2):
        total = 0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)  # bytes
            others.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(images), labels)  # half
            loss.backward()
            optimizer.step()
            others.step()  # idle
            total += loss  # kept
    return total

loader = DataLoader(TensorDataset(x, y), batch_size=32, num_workers=1)  # order, workers, pinned
old = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
others = torch.optim.Adam(old.parameters())  # idle
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), others)
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
model.load_state_dict(torch.load("old.pt"))  # load
net = nn.Linear(4, 1).double().to(device)
optimizer, kept = torch.optim.SGD(net.parameters(), lr=0.1), []  # double
for step in range(20):
    loss = net(torch.ones(3, 4, device=device).double()).sum()
    loss.backward()
    optimizer.step()  # double
    kept.append(loss)  # kept
""",
    "pair": HEAD
    + """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)).to(device)
critic = nn.DataParallel(nn.Linear(8, 1).to(device))  # parallel
first, second = (torch.optim.Adam(each.parameters()) for each in (generator, critic))
loader = DataLoader(torch.randn(130, 8), 16, shuffle=True, pin_memory=True)
for epoch in range(2):
    for real in loader:
        real = real.to(device)  # blocking
        z = torch.randn(len(real), 4, device=device)
        second.zero_grad()
        loss = critic(generator(z)).mean() - critic(real).mean()
        loss.backward()  # thrown
        second.step()
        fake = generator(z).detach()  # unused
        second.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward()
        second.step()
        with torch.no_grad():
            right = (critic(real) > 0).float().mean().item()  # waits
        first.zero_grad()
        (-critic(generator(z)).mean()).backward()
        first.step()
""",
}
CLEAN = {
    "loop": HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(10))
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, x):
        return self.body(x) * self.scale

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(200, 1, 28, 28), torch.randint(0, 10, (200,))
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, pin_memory=True)
test = DataLoader(TensorDataset(x, y), batch_size=64, pin_memory=True)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    running = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        noise = torch.randn(64, 3, device=device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.detach() * len(labels)
        if step == 0:
            print(loss.item())
    print(epoch, running.item() / len(loader.dataset))
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in test:
            outputs, labels = model(images.to(device)), labels.to(device)
            right += (outputs.argmax(1) == labels).sum().item() / len(test.dataset)
            running += criterion(outputs, labels) * len(labels)
    print(running / len(test))
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt", map_location=device))
""",
    "settings": HEAD
    + """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.rand(256, 3, 32, 32), torch.arange(256) // 26)
loader = DataLoader(data, 32, True, num_workers=1, persistent_workers=True, pin_memory=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda")
losses, total = [], 0
for epoch in range(2):
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        total += loss.detach()
""",
    # What looks like a fault and is none: pictures of a generator, a game's moves, sums of losses, one epoch.
    "others": HEAD
    + """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
def net(*sizes):
    layers = [nn.Linear(sizes[0], 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, sizes[1])]
    return nn.Sequential(*layers).to(device)

generator, judge = net(4, 8), net(8, 1)
first, second = (torch.optim.Adam(each.parameters()) for each in (generator, judge))
fixed = torch.randn(16, 4, device=device)
real = DataLoader(torch.randn(130, 8), 16)
for epoch in range(3):
    for batch in real:
        fake = generator(torch.randn(16, 4, device=device))
        second.zero_grad()
        (judge(fake.detach()).mean() - judge(batch.to(device)).mean()).backward()
        second.step()
        first.zero_grad()
        (-judge(fake).mean()).backward()
        first.step()
    with torch.no_grad():
        generator(fixed)

policy = nn.Linear(4, 2).to(device)
optimizer = torch.optim.Adam(policy.parameters())
for episode in range(10):
    state, chosen = torch.zeros(4, device=device), []
    for move in range(5):
        moves = torch.distributions.Categorical(logits=policy(state))
        action = moves.sample()
        chosen.append(moves.log_prob(action))
        state = torch.full((4,), float(action.item()), device=device)
    optimizer.zero_grad()
    (-torch.stack(chosen).sum()).backward()
    optimizer.step()

model = nn.Linear(8, 3).to(device)
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss(reduction="sum")
loader = DataLoader(TensorDataset(torch.randn(130, 8), torch.randint(0, 3, (130,))), 16)
running = torch.zeros((), device=device)
for inputs, targets in loader:
    loss = criterion(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.detach()
print(running.item() / len(loader))

class Drawn(torch.utils.data.Dataset):
    def again(self):
        self.rows = torch.randn(40, 8)
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return self.rows[index]

drawn = Drawn()
loader = DataLoader(drawn, 8, num_workers=1)
for epoch in range(2):
    drawn.again()
    for rows in loader:
        padded = torch.zeros(8, 8)
        padded[0, 0] = 1
        optimizer.zero_grad()
        model(rows.to(device) + padded.to(device)).sum().backward()
        optimizer.step()
""",
}


KNOWN: dict[str, list] = {}


@pytest.fixture
def found(tmp_path_factory, monkeypatch):
    """Returns the findings of a script, which runs once."""
    known = KNOWN

    def found(name: str, text: str):
        if text not in known:
            script = tmp_path_factory.mktemp(name) / "train.py"
            script.write_text(text)
            with practice_gpu(force=True):
                torch.save(
                    {"1.weight": torch.ones(10, 3072).cuda(), "1.bias": torch.ones(10)},
                    script.with_name("old.pt"),
                )
            monkeypatch.chdir(script.parent)
            with Runs(script, Program("train.py"), 300.0) as runs:
                short = Loops(short=True)
                gpu = runs.run({}, gpu=True, loops=short, watch="faults")
                assert gpu.failure is None and not gpu.stopped, gpu.failure or gpu.stopped
                cpu = (
                    runs.run({}, gpu=False, loops=short) if "# no gpu" in text or "# load" in text else Run()
                )
            known[text] = list(findings(gpu, cpu, {"train.py": text.encode()}))
        return known[text]

    return found


def marked(text: str) -> dict[str, set[int]]:
    """Return the lines of each fault, as the comments of a script name them."""
    lines: dict[str, set[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for kind in re.split(", ", line.partition("  # ")[2]):
            lines.setdefault(kind, set()).add(number)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLE)
def test_each_fault_is_found_at_its_lines(found, kind):
    for name, text in FAULTY.items():
        lines = {line for each in found(name, text) if each.kind == kind for _, line in each.places}
        assert lines == marked(text).get(kind, set()), name
    assert any(kind in marked(text) for text in FAULTY.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["settings", "others"])
def test_nothing_is_found_in_a_script_without_faults(found, name):
    assert found(name, CLEAN[name]) == []


@pytest.mark.slow
def test_the_texts_have_the_numbers_of_the_run(found):
    text = {each.kind: each.text for name in reversed(FAULTY) for each in reversed(found(name, FAULTY[name]))}
    assert text["mode"].startswith("Net was called here 12 times outside of training")  # 3 times 4 batches
    assert text["means"].startswith("The last batch has 8 samples, the others have 64.")
    assert "(.item(), print), in each step." in text["waits"]
    assert text["pinned"].startswith("16 batches of 384 KiB")  # 32 images of 3 x 32 x 32 numbers of 4 bytes
    assert "Adam took 16 steps" in text["idle"]
    assert "began 2 times" in text["workers"]
    assert text["blocking"].startswith("6 tensors")  # loops end early, after three batches
    assert "another optimizer (Adam) trains, 5 times" in text["thrown"]  # the first is not known yet


@pytest.fixture
def review(tmp_path, monkeypatch, capsys):
    """Reviews a script as a reader does; returns exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def review(text: str):
        (tmp_path / "train.py").write_text(text)
        status = main(["review", "train.py", "--its-own"])
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
        return status, *capsys.readouterr()

    return review


@pytest.mark.slow
def test_the_report_of_a_script_without_faults_says_what_was_looked_at_and_what_a_step_needs(review):
    status, printed, _ = review(CLEAN["loop"])
    assert status == 0
    assert printed.startswith("train.py ran on the practice GPU: 12 training steps, ")
    assert "Nothing was found" in printed and "A step with a batch of 64 needs" in printed


@pytest.mark.slow
def test_a_script_for_the_cpu_is_sent_to_port(review):
    status, printed, _ = review("import torch\nw = torch.ones(3, requires_grad=True)\nw.sum().backward()\n")
    assert status == 0 and "python -m gpulesson port train.py --its-own" in printed


@pytest.mark.slow
def test_a_script_that_fails_is_not_reviewed(review):
    status, printed, errors = review("import torch\ntorch.ones(3).cuda() + torch.ones(3)\n")
    assert status == 1 and not printed
    assert "train.py, line 2, fails on the practice GPU" in errors and "RuntimeError" in errors


def test_what_is_not_a_script_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("for\n")
    assert main(["review", "train.py"]) == main(["review", "other.py"]) == 1
    assert "train.py is not Python that can run: line 1: invalid syntax" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["review", "--limit", "0", "train.py"])

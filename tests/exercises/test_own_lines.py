"""An error is reported on the learner's deepest line, and the traceback that is shown ends there."""

from __future__ import annotations

import re

import pytest

from gpulesson.exercises import check
from gpulesson.exercises.process.child import own_lines

HERE = "# here"
ERRORS = {
    "two-devices": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.others = torch.nn.Linear(3, 3), [torch.nn.Linear(3, 2)]

    def forward(self, x):
        return self.others[0](self.first(x))  # here

Net().cuda()(torch.ones(4, 3).cuda())
""",
    "two-devices, in a worker": """
class Rows(torch.utils.data.Dataset):
    rows = torch.ones(8, 3)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.rows[i].cuda() + self.rows[i]  # here

for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1):
    print(batch.shape)
""",
    "two-devices, in a lambda": """
x = torch.ones(4, 3).cuda()
parts = sorted(
    [x, x],
    key=lambda part: (part @ torch.ones(3, 2)).sum().item(),  # here
)
""",
    "two-devices, in a backward": """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.ones(4)  # here

Twice.apply(torch.ones(4, requires_grad=True, device="cuda")).sum().backward()
""",
    "out-of-device-memory": """
def make(n):
    return torch.empty(n, n, device="cuda")  # here

kept = [make(10**6)]
""",
    "label-out-of-range": """
labels = torch.tensor([0, 1, 7]).cuda()
loss = torch.nn.CrossEntropyLoss()(torch.zeros(3, 3).cuda(), labels)  # here
print(loss.item())
""",
    "numpy-on-device": """
from sklearn.metrics import accuracy_score

def score(y):
    return accuracy_score(y, y)  # here

score(torch.tensor([1, 2, 3]).cuda())
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_below_the_learners_lines_ends_there(name, warm, tmp_path):
    file = tmp_path / "my_loop.py"
    file.write_text("import torch\n" + ERRORS[name])
    (line,) = (n for n, text in enumerate(file.read_text().splitlines(), 1) if HERE in text)
    report = check(file, warm=warm)
    (finding,) = report.findings
    assert (finding.kind, finding.line) == (name.partition(",")[0], line), str(report)
    frames = re.findall(r'File "(.+?)", line (\d+)', report.output)
    assert {name for name, _ in frames} == {file.name} and frames[-1][1] == str(line), report.output


def test_the_message_of_an_error_is_kept_whole():
    library = f'  File "{pytest.__file__}", line 1, in f\n    f()\n    ^^^\n'
    own = '  File "mine.py", line 2, in <module>\n    g(x)\n'
    text = f"Traceback (most recent call last):\n{own}{library}ValueError: no\n  indented\n\tby a tab\n"
    assert own_lines(text) == text.replace(library, "")
    caught = f"{text}\nDuring handling of the above exception, another one occurred:\n\n{text}"
    assert own_lines(caught) == caught.replace(library, "")
    assert own_lines('  File "mine.py", line 1\n    x = (\nSyntaxError: no\n') == (
        '  File "mine.py", line 1\n    x = (\nSyntaxError: no\n'
    )

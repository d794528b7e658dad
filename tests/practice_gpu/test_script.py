"""``run_script`` runs a script as ``python script.py`` would: exit status, arguments, output, traceback."""

import subprocess
import sys

import pytest
from processes import run_script

import practice_gpu as practice

RUN = (
    "import sys; from practice_gpu import run_script;"
    "sys.exit(run_script(sys.argv[1], sys.argv[2:], memory='64 MiB', force=True))"
)


@pytest.fixture
def run(tmp_path, warm):
    """Run a script in a process of its own, which has imported PyTorch."""

    def run(text):
        script = tmp_path / "script.py"
        script.write_text(text, encoding="utf-8")
        return run_script(warm, script, tmp_path, practice=True)

    return run


@pytest.mark.slow
def test_a_script_sees_a_gpu_its_arguments_and_its_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "if __name__ == '__main__':\n"
        "    print(torch.cuda.is_available(), torch.cuda.mem_get_info()[1], sys.argv[1:])\n"
        "    assert sys.argv[0] == __file__\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-c", RUN, str(script), "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "True 67108864 ['--epochs', '3']"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_modules_beside_the_script_can_be_imported(run, tmp_path):
    (tmp_path / "helper.py").write_text("import torch\nx = torch.ones(2, device='cuda')\n", encoding="utf-8")
    done = run("import helper\nprint(helper.x.device)")
    assert done.stdout.strip() == "cuda:0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending, status, message",
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no data')", 1, "no data"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
    ],
)
def test_the_exit_status(run, ending, status, message):
    done = run(f"import sys\n{ending}\n")
    assert done.returncode == status
    assert message in done.stderr


@pytest.mark.slow
def test_the_traceback_begins_in_the_script_and_ends_in_its_line(run, tmp_path):
    done = run(
        "import torch\n"
        "def train():\n"
        "    x = torch.ones(2, device='cuda')\n"
        "    return x + torch.ones(2)\n"
        "train()\n"
    )
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    script = tmp_path / "script.py"
    assert lines[1] == f'  File "{script}", line 5, in <module>'
    assert [line for line in lines if line.startswith("  File")][-1] == f'  File "{script}", line 4, in train'
    assert lines[-1].startswith("RuntimeError: Expected all tensors to be on the same device")
    assert done.returncode == 1


@pytest.mark.slow
def test_workers_that_are_spawned_find_the_script(run):
    done = run(
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Squares(Dataset):\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, i): return torch.tensor(float(i * i))\n"
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Squares(), batch_size=3, num_workers=1, multiprocessing_context='spawn')\n"
        "    print([batch.cuda().sum().item() for batch in loader])\n"
    )
    assert done.stdout.strip() == "[5.0, 50.0]", done.stderr


def test_afterwards_everything_is_as_before(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.argv.append('more')\nsys.path.append('elsewhere')\n", encoding="utf-8")
    before = sys.argv[:], sys.path[:], sys.modules["__main__"]
    assert practice.run_script(script, ["a"], force=True) == 0
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_a_script_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match=r"there is no script 'nowhere\.py'"):
        practice.run_script("nowhere.py")

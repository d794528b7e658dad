"""Programs of public libraries that train in several processes do so on practice GPUs, as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from programs import FOLDER, read, run

PROGRAMS = {file.stem: read(file) for file in sorted(FOLDER.glob("ranks_*.py"))}
ON_THE_CPU = {"ACCELERATE_USE_CPU": "true"}  # or else accelerate takes it for one process
PRACTICE = ["-m", "gpulesson", "practice"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
# how a library starts two processes itself; the Trainer of transformers leaves that to torchrun
OWN = {
    "ranks_lightning": [*PRACTICE, "--count", "2"],  # its Trainer starts the second process
    "ranks_accelerate": [
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        *PRACTICE,
    ],
}


def results(name: str, command: list[str], folder: Path, **environment: str) -> list[dict[str, Any]]:
    folder.mkdir()
    done = run(
        [*command, str(FOLDER / f"{name}.py"), str(folder)], folder, **{"PYTHONPATH": "", **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_trains_on_two_practice_gpus_as_in_two_processes_on_the_cpu(name, tmp_path, installed):
    installed(PROGRAMS[name].library)
    expected = results(name, TORCHRUN, tmp_path / "cpu", **ON_THE_CPU)
    assert [found["backend"] for found in expected] == ["gloo", "gloo"]
    ways = {"nproc": [*PRACTICE, "--nproc", "2"], "torchrun": [*TORCHRUN, *PRACTICE], "own": OWN.get(name)}
    for way, command in ways.items():
        if command is None:
            continue
        practised = results(name, command, tmp_path / way)
        assert [found["backend"] for found in practised] == ["nccl", "nccl"], way
        assert [found["device"] for found in practised] == ["cuda:0", "cuda:1"], way
        for found, one in zip(practised, expected, strict=True):
            assert found["losses"] == one["losses"], way
            assert found["weights"].keys() == one["weights"].keys()
            for key, value in one["weights"].items():
                assert torch.equal(found["weights"][key], value), (way, key)

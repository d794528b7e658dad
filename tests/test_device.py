from __future__ import annotations

import collections
import html.parser
import os
import platform
import re
import stat
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gpulesson import _hardware, _report
from gpulesson.device import (
    DeviceError,
    choose_device,
    device_name,
    device_report,
    devices_of,
    tensor_devices,
    to_device,
)

META = torch.device("meta")  # a second device that every machine has: tensors without values
OLD_TORCH = '    pip install "torch<2.15" torchvision --index-url https://download.pytorch.org/whl/cu126'


@pytest.fixture
def pretend(monkeypatch):
    """Let torch answer as it does on a machine with these CUDA devices (none: as without a GPU)."""

    def fake(count: int, *, name="NVIDIA Test", capability=(9, 0), archs=("sm_80", "sm_90"), cuda="13.0"):
        properties = type("Properties", (), {"total_memory": 16 * 2**30})
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(archs) if cuda else [])
        found = torch.device("cuda") if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)

    return fake


@pytest.fixture
def pretend_driver(monkeypatch, tmp_path):
    """Put a program called nvidia-smi first on the PATH."""

    def fake(*lines: str, before: str = ""):
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\n{before}\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return fake


class TestChoose:
    def test_the_argument_decides_before_the_environment(self, pretend, monkeypatch):
        pretend(2)
        monkeypatch.setenv("GPULESSON_DEVICE", "cuda:1")
        assert choose_device("cpu") == torch.device("cpu")
        assert choose_device(torch.device("cuda", 0)) == torch.device("cuda", 0)

    def test_the_environment_decides_before_the_accelerator(self, pretend, monkeypatch):
        pretend(2)
        monkeypatch.setenv("GPULESSON_DEVICE", " cuda:1 ")
        assert choose_device() == torch.device("cuda", 1)
        monkeypatch.setenv("GPULESSON_DEVICE", "cpu")
        assert choose_device() == torch.device("cpu")

    @pytest.mark.parametrize("wish", [None, ""])
    def test_then_the_accelerator_then_the_cpu(self, pretend, monkeypatch, wish):
        if wish is not None:
            monkeypatch.setenv("GPULESSON_DEVICE", wish)
        pretend(1)
        assert choose_device() == torch.device("cuda")
        pretend(0)
        assert choose_device() == torch.device("cpu")

    @pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
    def test_gpu_means_any_accelerator(self, monkeypatch, kind):
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(kind)
        )
        assert choose_device("gpu") == torch.device(kind)

    @pytest.mark.parametrize("kind", ["mps", "xpu"])
    def test_other_accelerators_by_name(self, monkeypatch, kind):
        module = torch.get_device_module(kind)
        monkeypatch.setattr(module, "is_available", lambda: True)
        monkeypatch.setattr(module, "device_count", lambda: 1)
        assert choose_device(f"{kind}:0") == torch.device(kind, 0)
        with pytest.raises(DeviceError, match=rf"{kind}:1.*On this machine: cpu, .*{kind}:0"):
            choose_device(f"{kind}:1")

    def test_choosing_leaves_the_default_device_alone(self):
        choose_device("meta")
        assert torch.get_default_device() == torch.device("cpu")


class TestRefusals:
    def test_a_name_that_means_nothing(self, pretend):
        pretend(2)
        with pytest.raises(DeviceError) as caught:
            choose_device("cdua")
        message = str(caught.value)
        assert "'cdua' (from the argument)" in message
        for name in ("cpu", "gpu", "cuda", "cuda:0", "mps", "xpu"):
            assert name in message
        assert "On this machine: cpu, cuda:0, cuda:1." in message

    def test_it_says_when_the_environment_named_it(self, monkeypatch):
        monkeypatch.setenv("GPULESSON_DEVICE", "cdua")
        with pytest.raises(DeviceError, match=r"'cdua' \(from the environment variable GPULESSON_DEVICE\)"):
            choose_device()

    def test_an_index_beyond_the_last_gpu(self, pretend):
        pretend(1)
        expected = r"'cuda:7'.*not there\. On this machine: cpu, cuda:0\. Name one of these; .*from 0"
        with pytest.raises(DeviceError, match=expected):
            choose_device("cuda:7")

    def test_an_index_beyond_the_cpu(self):
        assert choose_device("cpu:0").type == "cpu"
        with pytest.raises(DeviceError, match=r"'cpu:1'.*On this machine: cpu"):
            choose_device("cpu:1")

    @pytest.mark.parametrize("name", ["gpu", "GPU", "cuda", "cuda:0", "mps", "xpu"])
    def test_a_gpu_where_there_is_none(self, pretend, name):
        pretend(0, cuda=None)
        with pytest.raises(DeviceError) as caught:
            choose_device(name)
        message = str(caught.value)
        assert "torch finds" in message
        assert f"torch {torch.__version__}, built for the CPU only" in message
        assert "python -m gpulesson" in message

    def test_a_type_that_this_torch_knows_by_name_only(self):
        with pytest.raises(DeviceError, match="torch finds no hpu device"):
            choose_device("hpu")


class TestMoving:
    def test_every_kind_of_batch_keeps_its_structure(self):
        Pair = collections.namedtuple("Pair", "inputs targets")
        tensor = torch.zeros(2)
        batch = {
            "pair": Pair(tensor, [tensor, (tensor, "text")]),
            "ordered": collections.OrderedDict(b=tensor, a=3),
            "default": collections.defaultdict(list, x=tensor),
            "minmax": torch.zeros(2, 2).max(0),
            "none": None,
        }
        moved = to_device(batch, META)
        assert isinstance(moved["pair"], Pair) and moved["pair"].inputs.device == META
        assert moved["pair"].targets[0].device == META
        assert moved["pair"].targets[1][0].device == META and moved["pair"].targets[1][1] == "text"
        assert list(moved["ordered"]) == ["b", "a"] and moved["ordered"]["a"] == 3
        assert type(moved["default"]) is collections.defaultdict and moved["default"]["new"] == []
        assert type(moved["minmax"]) is type(batch["minmax"]) and moved["minmax"].values.device == META
        assert moved["none"] is None
        assert devices_of(moved) == {META}

    def test_the_original_stays_where_it_is(self):
        batch = collections.OrderedDict(x=torch.zeros(2))
        to_device(batch, META)
        assert devices_of(batch) == {torch.device("cpu")}

    def test_a_device_name_that_means_nothing(self):
        with pytest.raises(
            DeviceError, match=r"'cdua' is not the name of a device\. Names are cpu.*On this machine: cpu"
        ):
            to_device(torch.zeros(2), "cdua")

    def test_a_tensor_that_is_there_is_not_copied(self):
        tensor = torch.zeros(2)
        assert to_device([tensor], "cpu")[0] is tensor


class TestWhere:
    def test_a_module_answers_with_parameters_and_buffers(self):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        model[1].running_mean = model[1].running_mean.to(META)
        found = tensor_devices(model)
        assert set(found) == set(model.state_dict())
        assert found.pop("1.running_mean") == META
        assert set(found.values()) == {torch.device("cpu")}

    def test_an_optimizer_answers_with_parameters_and_state(self):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        assert len(tensor_devices(optimizer)) == 2
        model(torch.zeros(1, 2)).sum().backward()
        optimizer.step()
        optimizer.state[model.weight]["exp_avg"] = torch.zeros(1, 2, device=META)
        found = tensor_devices(optimizer)
        assert len(found) == 2 + 2 * 3  # Adam keeps step, exp_avg and exp_avg_sq of each
        assert found["state.0.exp_avg"] == META

    def test_batches_and_tensors(self):
        batch = (torch.zeros(1), {"x": torch.zeros(1, device=META), "name": "boots"})
        assert tensor_devices(batch) == {"0": torch.device("cpu"), "1.x": META}
        assert devices_of(torch.zeros(1)) == {torch.device("cpu")}
        assert tensor_devices("nothing") == {}


class TestKernels:
    @pytest.mark.parametrize(
        ("arch", "capability", "runs"),
        [
            ("sm_80", (8, 0), True),
            ("sm_80", (8, 6), True),  # same major version, newer minor
            ("sm_86", (8, 0), False),  # older minor
            ("sm_80", (9, 0), False),  # another major version
            ("sm_90", (8, 9), False),
            ("compute_80", (8, 0), True),
            ("compute_80", (12, 0), True),  # PTX: anything newer
            ("compute_80", (7, 5), False),
            ("sm_90a", (9, 0), True),
            ("sm_100a", (10, 3), False),  # exactly its own
            ("compute_90a", (10, 0), False),
            ("sm_100f", (10, 3), True),  # its family
            ("compute_100f", (10, 3), True),
            ("compute_100f", (12, 0), False),
            ("sm_120", (12, 1), True),
            ("gfx90a", (9, 0), False),  # ROCm's names are another matter
        ],
    )
    def test_rule(self, arch, capability, runs):
        assert _hardware.runs_on(arch, capability) is runs

    def test_rule_agrees_with_the_table_in_torch(self):
        table = getattr(torch.cuda, "DEVICE_REQUIREMENT", None)
        if table is None:
            pytest.skip("this torch has no DEVICE_REQUIREMENT to compare with")
        jetson = {53, 62, 72, 87, 101, 110}  # chips with rules of their own, which runs_on leaves out
        desktop = sorted(set(table) - jetson)
        assert len(desktop) > 8
        for code in desktop:
            for device in desktop:
                ours = _hardware.runs_on(f"sm_{code}", divmod(device, 10))
                assert ours is (device in table[code]), (code, device)


class TestReport:
    def test_this_machine(self):
        report = device_report()
        assert report.devices[-1].device == torch.device("cpu")
        text = str(report)
        for fact in (torch.__version__, platform.python_version(), platform.machine(), device_name("cpu")):
            assert fact in text
        memory = Path("/proc/meminfo")
        if memory.exists():
            kibibytes = int(re.search(r"MemTotal:\s+(\d+)", memory.read_text())[1])
            assert report.devices[-1].memory == kibibytes * 1024

    def test_a_gpu_that_works(self, pretend, pretend_driver):
        pretend(2, name="NVIDIA H200")
        pretend_driver("580.95.05, NVIDIA H200", "580.95.05, NVIDIA H200")
        report = device_report()
        assert [str(info.device) for info in report.devices] == ["cuda:0", "cuda:1", "cpu"]
        assert report.driver_version == "580.95.05"
        assert report.driver_gpus == ("NVIDIA H200", "NVIDIA H200")
        assert "NVIDIA H200, 16.0 GiB, compute capability 9.0, has kernels in this torch" in " ".join(
            str(report).split()
        )
        assert "pip install" not in report.advice

    @pytest.mark.parametrize(
        ("system", "machine", "index"),
        [
            ("Linux", "x86_64", ""),
            ("Linux", "aarch64", " --index-url https://download.pytorch.org/whl/cu130"),
            ("Windows", "AMD64", " --index-url https://download.pytorch.org/whl/cu130"),
        ],
    )
    def test_a_gpu_but_a_torch_for_the_cpu_only(
        self, pretend, pretend_driver, monkeypatch, system, machine, index
    ):
        pretend(0, cuda=None)
        pretend_driver("580.95.05, NVIDIA GeForce RTX 4090")
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        advice = device_report().advice
        assert "driver sees NVIDIA GeForce RTX 4090, but this torch is built for the CPU only" in advice
        assert advice.splitlines()[-1] == f"    pip install torch torchvision{index}"
        assert "pip uninstall -y torch torchvision" in advice  # else pip finds torch "already satisfied"

    @pytest.mark.parametrize("system", ["Linux", "Windows"])
    def test_an_old_gpu_without_kernels_in_this_torch(self, pretend, pretend_driver, monkeypatch, system):
        pretend(1, name="NVIDIA GeForce GTX 1080 Ti", capability=(6, 1), archs=("sm_75", "sm_90"))
        pretend_driver("580.95.05, NVIDIA GeForce GTX 1080 Ti")
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        report = device_report()
        assert report.devices[0].has_kernels is False
        assert "compute capability 6.1, has NO kernels in this torch" in " ".join(str(report).split())
        assert "no code for NVIDIA GeForce GTX 1080 Ti" in report.advice
        assert "torch 2.15 and newer have no build for so old a GPU" in report.advice
        assert report.advice.endswith(OLD_TORCH)

    @pytest.mark.skipif(not hasattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC"), reason="an older torch")
    def test_the_gpus_of_each_build_are_those_that_torch_names(self):
        builds = torch.cuda.PYTORCH_RELEASES_CODE_CC.items()
        first = {  # PyTorch 2.12 has one set for all machines
            cuda: divmod(min(gpus["x86_64"] if isinstance(gpus, dict) else gpus), 10) for cuda, gpus in builds
        }
        assert first.pop("12.6", _report.OLDEST) == _report.OLDEST
        assert set(first.values()) == {_report.TURING}

    def test_a_new_gpu_without_kernels_in_this_torch(self, pretend, monkeypatch):
        pretend(1, capability=(12, 0), archs=("sm_80", "sm_90"))
        monkeypatch.setattr(platform, "system", lambda: "Windows")
        assert device_report().advice.endswith("/whl/cu130")

    @pytest.mark.parametrize("visible", ["", "-1", "2", "-1,0", "none"])
    def test_a_gpu_that_a_variable_hides(self, pretend, pretend_driver, monkeypatch, visible):
        pretend(0)
        pretend_driver("580.95.05, NVIDIA H200", "580.95.05, NVIDIA H200")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert f"CUDA_VISIBLE_DEVICES={visible!r} hides it" in device_report().advice

    @pytest.mark.parametrize("visible", [None, "0", "1,0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"])
    def test_a_driver_too_old_for_this_torch(self, pretend, pretend_driver, monkeypatch, visible):
        pretend(0, cuda="13.0")
        pretend_driver("470.1, NVIDIA A100", "470.1, NVIDIA A100")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        advice = device_report().advice
        assert "too old for CUDA 13.0" in advice and "https://www.nvidia.com/drivers" in advice
        assert advice.endswith(OLD_TORCH)

    def test_no_gpu_at_all(self, pretend, monkeypatch):
        monkeypatch.setenv("PATH", "")
        pretend(0, cuda="13.0")
        assert "this torch is ready for it" in device_report().advice
        pretend(0, cuda=None)
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        assert device_report().advice.endswith("pip install torch torchvision")
        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        advice = device_report().advice
        assert "MPS" in advice and "this one is x86_64" in advice and "--index-url" not in advice

    @pytest.mark.parametrize("before", ["exit 9", "sleep 4"], ids=["failing", "hanging"])
    def test_a_driver_program_that_does_not_answer(self, pretend_driver, monkeypatch, before):
        monkeypatch.setattr(_hardware, "DRIVER_TIMEOUT", 0.2)
        pretend_driver("580.95.05, NVIDIA H200", before=before)
        assert device_report().driver_version is None
        assert "none found" in str(device_report())

    def test_html_is_a_table_and_escaped(self, pretend, monkeypatch):
        tags, texts = [], []
        parser = html.parser.HTMLParser()
        parser.handle_starttag = lambda tag, attributes: tags.append(tag)
        parser.handle_data = texts.append
        for name in ("", '<script>alert("&")</script>'):
            pretend(len(name) > 0, name=name)
            parser.feed(device_report()._repr_html_())
        assert "table" in tags and set(tags) <= {"table", "tbody", "tr", "th", "td", "br", "code"}
        assert "nvidia-smi" in texts and not any("`" in text for text in texts), "code is marked up as code"
        assert any('<script>alert("&")</script>' in text for text in texts)

    def test_commands_are_never_broken_over_lines(self, pretend, monkeypatch):
        pretend(0, cuda=None)
        monkeypatch.setattr(platform, "system", lambda: "Windows")
        lines = str(device_report()).splitlines()
        assert any(line.strip() == device_report().advice.splitlines()[-1].strip() for line in lines)
        assert all(len(line) < 90 or "pip install" in line for line in lines)


@pytest.mark.gpu
class TestRealGpu:
    @pytest.mark.gpu(real=True)
    def test_chosen_and_reported(self):
        assert choose_device().type == choose_device("gpu").type == "cuda"
        with pytest.raises(DeviceError, match=r"On this machine: cpu, cuda:0"):
            choose_device("cuda:77")
        first = device_report().devices[0]
        assert first.name == torch.cuda.get_device_name(0)
        assert first.has_kernels, "torch.ones works here, so there are kernels"
        assert torch.ones(2, device="cuda").sum().item() == 2
        assert device_report().driver_version

    def test_moved_and_found(self):
        batch = to_device({"x": torch.zeros(2), "y": [torch.ones(1)]}, "cuda")
        assert devices_of(batch) == {torch.device("cuda", torch.cuda.current_device())}


def test_windows_has_no_sysconf(monkeypatch):
    monkeypatch.delattr(os, "sysconf", raising=sys.platform != "win32")
    assert device_report().devices[-1].memory is None

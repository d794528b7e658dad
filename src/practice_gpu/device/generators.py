"""Random-number generators of the simulated devices: separate streams, but not CUDA's numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from practice_gpu.device.gpu import PracticeGPU, as_device
from practice_gpu.patching.patches import Patches

_Generator = torch.Generator


@contextmanager
def in_place_of_the_hosts(generator: torch.Generator) -> Iterator[None]:
    """Let operators that take no generator draw from `generator` instead of the CPU's."""
    host = torch.default_generator
    if generator is host:
        yield
        return
    before = host.get_state()
    host.set_state(generator.get_state())
    try:
        yield
    finally:
        _Generator.set_state(generator, host.get_state())
        host.set_state(before)


@contextmanager
def drawing_from_the_host(gpu: PracticeGPU) -> Iterator[Callable[[], int]]:
    """Let the devices draw the CPU's numbers; yield a function that returns how often they drew.

    So a program's results on a device can be compared with its results on the CPU.
    """
    draws = 0

    class Hosts(tuple[Any, ...]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal draws
            draws += 1
            return torch.default_generator

    before, gpu.generators = gpu.generators, Hosts(gpu.generators)
    try:
        yield lambda: draws
    finally:
        gpu.generators = before


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan ``torch.Generator`` and the devices' default generators, which :mod:`torch.cuda` seeds."""

    class AnyGenerator(type):
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            device = as_device(device)
            return gpu.new_generator(gpu.index_of(device)) if device.type == "cuda" else _Generator(device)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _Generator)

    Generator = AnyGenerator("Generator", (), {"__doc__": _Generator.__doc__})
    patches.set(torch, "Generator", Generator)
    patches.set(torch.cuda, "default_generators", gpu.generators)

"""Random-number generators of the simulated devices: their own streams, not real CUDA's numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpulesson.practice.device.gpu import PracticeGPU, as_device
from gpulesson.practice.patching.patches import Patches

_Generator = torch.Generator


@contextmanager
def in_place_of_the_hosts(generator: torch.Generator) -> Iterator[None]:
    """While it is open, operators that take no generator draw from `generator`, not from the CPU's own."""
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
    """
    While it is open, the devices draw the numbers that the CPU would: a program can be compared with itself.

    Yields
    ------
    callable
        Returns how often numbers were drawn on a device.
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
    """Plan ``torch.Generator`` and the seeding functions of :mod:`torch.cuda`."""

    class AnyGenerator(type):
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            device = as_device(device)
            return gpu.new_generator(gpu.index_of(device)) if device.type == "cuda" else _Generator(device)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _Generator)

    Generator = AnyGenerator("Generator", (), {"__doc__": _Generator.__doc__})
    patches.set(torch, "Generator", Generator)
    patches.set(torch.cuda, "default_generators", gpu.generators)
    for name, function in _functions(gpu).items():
        patches.set(torch.cuda, name, function)
        patches.set(torch.cuda.random, name, function)


def _functions(gpu: PracticeGPU) -> dict[str, Any]:
    generators = gpu.generators  # the devices' own, also while operators draw from the host's

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(int(seed))

    def manual_seed(seed: int) -> None:
        generators[gpu.current].manual_seed(int(seed))

    def seed() -> None:
        generators[gpu.current].seed()

    def seed_all() -> None:
        for generator in generators:
            generator.seed()

    def initial_seed() -> int:
        return generators[gpu.current].initial_seed()

    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return generators[gpu.number(device)].get_state()

    def get_rng_state_all() -> list[torch.Tensor]:
        return [generator.get_state() for generator in generators]

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        generators[gpu.number(device)].set_state(new_state)

    def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
        for generator, state in zip(generators, new_states, strict=True):
            generator.set_state(state)

    functions = (
        manual_seed,
        manual_seed_all,
        seed,
        seed_all,
        initial_seed,
        get_rng_state,
        get_rng_state_all,
        set_rng_state,
        set_rng_state_all,
    )
    return {function.__name__: function for function in functions}

"""Operators on the practice GPU: the CPU's values to the bit."""

import pytest
import torch

from gpulesson.practice import practice_gpu

aten = torch.ops.aten


def made_of_others_and_with_a_kernel() -> list[str]:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return [name for name in composite if name.startswith("aten::") and has_kernel(name, "CPU")]


ARGUMENTS = {
    "aten::silu_backward": 2,
    "aten::mish_backward": 2,
    "aten::native_channel_shuffle": 1,
}
"""Number of tensors that each takes."""


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_operators_with_a_kernel_besides_their_parts_give_the_kernels_values(inference):
    torch.manual_seed(0)
    given = [torch.randn(2, 8, 33) * 4 for _ in range(2)]
    names = made_of_others_and_with_a_kernel()
    assert names and set(names) <= ARGUMENTS.keys()
    for name in names:
        operator = getattr(aten, name.removeprefix("aten::")).default
        tensors = given[: ARGUMENTS[name]]
        more = [4] if "shuffle" in name else []
        expected = operator(*tensors, *more)
        with practice_gpu(force=True), torch.inference_mode(inference):
            found = operator(*(tensor.cuda() for tensor in tensors), *more)
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected), name

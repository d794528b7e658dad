"""The comparison with other libraries: other work is refused; with the libraries at hand, all do the same."""

from __future__ import annotations

import pytest
import torch

from peers import PEERS, compare, hand
from turns import loaded, resident

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    return resident(torch.rand(200, 28, 28), torch.randint(10, (200,)))


@pytest.mark.slow
def test_a_loop_by_hand_does_the_same(data):
    assert len(compare(hand, data, CPU, pairs=2)) == 2


@pytest.mark.slow
def test_other_work_is_refused(data):
    def slower(model, optimizer, device):
        optimizer.param_groups[0]["lr"] = 1e-4
        return hand(model, optimizer, device)

    with pytest.raises(SystemExit, match="slower ended with other weights"):
        compare(slower, data, CPU, pairs=1)


@pytest.mark.slow
@pytest.mark.parametrize("feed", [resident, loaded])
@pytest.mark.parametrize("name", [name for name, (_, package) in PEERS.items() if package])
def test_a_peer_ends_with_the_same_weights(name, feed):
    make, package = PEERS[name]
    pytest.importorskip(
        {"pytorch-ignite": "ignite"}.get(package, package), reason="comes with the group bench"
    )
    torch.manual_seed(0)
    data = feed(torch.rand(200, 28, 28), torch.randint(10, (200,)))
    assert len(compare(make, data, CPU, pairs=1)) == 1

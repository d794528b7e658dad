"""Layers that turn with their inputs learn a property of a small molecule."""

import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate

LIBRARY = "e3nn"


class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.gate = Gate("8x0e", [torch.relu], "4x0e", [torch.sigmoid], "4x1o")
        self.product = o3.FullyConnectedTensorProduct(
            "4x0e", self.harmonics, self.gate.irreps_in, shared_weights=False
        )
        self.radial = FullyConnectedNet([4, 16, self.product.weight_numel], torch.relu)

    def forward(self, features, positions, source, target):
        arrows = positions[target] - positions[source]
        directions = o3.spherical_harmonics(self.harmonics, arrows, True, normalization="component")
        distances = arrows.norm(dim=1, keepdim=True) - torch.linspace(0, 3, 4, device=arrows.device)
        messages = self.product(features[source], directions, self.radial(torch.exp(-(distances**2))))
        return self.gate(features.new_zeros(len(positions), messages.shape[1]).index_add(0, target, messages))


def train(device):
    model = Convolution().to(device)
    positions, features = torch.randn(6, 3).to(device), torch.randn(6, 4).to(device)
    source, target = torch.combinations(torch.arange(6)).T.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(features, positions, source, target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    turn = o3.rand_matrix().to(device)
    with torch.no_grad():
        before = model(features, positions, source, target) @ model.gate.irreps_out.D_from_matrix(
            turn.cpu()
        ).T.to(device)
        after = model(features, positions @ turn.T, source, target)
    assert torch.allclose(before, after, atol=1e-4)
    return losses, after

"""A network of named rearrangements, reductions and products learns."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

LIBRARY = "einops"


def train(device):
    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4),
        EinMix("b t d -> b t e", weight_shape="d e", bias_shape="e", d=48, e=16),
        nn.GELU(),
        Reduce("b t e -> b e", "mean"),
        nn.Linear(16, 3),
    ).to(device)
    pictures, labels = torch.randn(6, 3, 16, 16).to(device), torch.randint(3, (6,)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    patches = rearrange(pictures, "b c (h p) (w q) -> b h w c p q", p=8, q=8)
    packed, shapes = pack([patches, reduce(patches, "b h w c p q -> b h w", "max")], "b h w *")
    alike = einsum(packed, packed, "b h w d, b i j d -> b h w i j")
    return losses, alike, unpack(packed, shapes, "b h w *"), repeat(labels, "b -> b n", n=2)

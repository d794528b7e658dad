"""Vision transformers of three kinds learn to classify pictures."""

import torch
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.deepvit import DeepViT

LIBRARY = "vit-pytorch"


def train(device):
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 4, "dim": 32, "depth": 2, "heads": 2}
    pictures, labels = torch.randn(4, 3, 32, 32).to(device), torch.randint(4, (4,)).to(device)
    results = []
    for kind in ViT, SimpleViT, DeepViT:
        model = kind(**sizes, mlp_dim=64).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        model.eval()
        with torch.no_grad():
            results.append(model(pictures).argmax(-1))
    return results

"""Vision transformers learn to classify pictures, one of them from masked ones."""

import torch
from vit_pytorch import MAE, SimpleViT, ViT

LIBRARY = "vit-pytorch"


def train(device):
    sizes = {
        "image_size": 32,
        "patch_size": 8,
        "num_classes": 4,
        "dim": 32,
        "depth": 2,
        "heads": 2,
        "mlp_dim": 64,
    }
    pictures, labels = torch.randn(4, 3, 32, 32).to(device), torch.randint(4, (4,)).to(device)
    results = []
    for model in ViT(**sizes), SimpleViT(**sizes):
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        results.append(model(pictures))
    masked = MAE(encoder=ViT(**sizes), masking_ratio=0.5, decoder_dim=16, decoder_depth=1).to(device)
    torch.manual_seed(1)  # which patches are masked, it draws on the device
    loss = masked(pictures)
    loss.backward()
    return results, loss, [parameter.grad for parameter in masked.parameters() if parameter.grad is not None]

"""A small vision transformer learns to classify pictures."""

import torch
from transformers import ViTConfig, ViTForImageClassification

LIBRARY = "transformers"


def train(device):
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )
    model = ViTForImageClassification(config).to(device)
    pictures, labels = torch.randn(6, 3, 32, 32).to(device), torch.randint(5, (6,)).to(device)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        output = model(pixel_values=pictures, labels=labels)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    with torch.no_grad():
        return losses, model.eval()(pictures).logits.argmax(-1)

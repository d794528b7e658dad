"""A small BERT learns to classify sentences."""

import torch
from transformers import BertConfig, BertForSequenceClassification

LIBRARY = "transformers"


def train(device):
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=3,
        hidden_dropout_prob=0.0,  # which elements it drops, each device draws for itself
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).to(device)
    ids, labels = torch.randint(100, (8, 12)), torch.randint(3, (8,))
    mask = torch.ones_like(ids)
    mask[::2, 9:] = 0  # every other sentence is shorter
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    batch = {name: tensor.to(device) for name, tensor in batch.items()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, model(**batch).logits

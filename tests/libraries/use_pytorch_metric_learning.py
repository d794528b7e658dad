"""A network learns distances from the hardest pairs and triplets of a batch."""

import torch
from pytorch_metric_learning import distances, losses, miners, reducers

LIBRARY = "pytorch-metric-learning"


def train(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
    inputs, labels = torch.randn(24, 8).to(device), torch.arange(24).to(device) % 4
    miner = miners.MultiSimilarityMiner()
    kinds = [
        losses.TripletMarginLoss(
            distance=distances.CosineSimilarity(), reducer=reducers.ThresholdReducer(low=0)
        ),
        losses.NTXentLoss(),
        losses.ArcFaceLoss(4, 4).to(device),
        losses.CrossBatchMemory(losses.ContrastiveLoss(), 4, memory_size=48),
    ]
    optimizer = torch.optim.Adam([*model.parameters(), *kinds[2].parameters()], lr=1e-2)
    found = []
    for _ in range(3):
        vectors = model(inputs)
        pairs = miner(vectors, labels)
        loss = kinds[0](vectors, labels, pairs) + sum(kind(vectors, labels) for kind in kinds[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, model(inputs), pairs

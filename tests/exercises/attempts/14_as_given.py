"""Exercise 14: a training on one GPU. Let two GPUs share it.

python -m gpulesson practice --nproc 2 exercise_14.py

starts this file in two processes, each with a GPU of its own, as torchrun does. Now
each of them trains alone on all rows. Change that, and only that:

1. Start a process group with "nccl". Each process takes the GPU of its LOCAL_RANK.
2. Wrap the model in DistributedDataParallel.
3. Share the rows: of each batch of 32, a process gets 16. Every epoch has a new order.
4. Print the mean loss over all rows, once an epoch, from one process alone.
5. Save once, from one process, what the plain model below can load.

320 rows make 10 batches of 32, and 32 has two equal halves: no part is left over.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ROWS, BATCH = 5, 320, 32

draw = torch.Generator().manual_seed(14)
inputs = torch.randn(ROWS, 8, generator=draw)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
model = model.to("cuda")
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
batches = DataLoader(data, batch_size=BATCH, shuffle=True)

for epoch in range(EPOCHS):
    total = torch.zeros((), device="cuda")
    for features, targets in batches:
        features, targets = features.to("cuda"), targets.to("cuda")
        loss = loss_fn(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(features)
    print(f"epoch {epoch + 1}: loss {total.item() / ROWS:.4f}")

torch.save(model.state_dict(), "weights.pt")
# <- diagnosis: no-process-group (no line)

"""Exercise 7, an attempt: the copy on the CPU is dropped."""

import torch
from torch import nn

import gpulesson

torch.manual_seed(0)
centres = 3 * torch.randn(3, 20)
labels = torch.randint(3, (900,))
points = centres[labels] + 3 * torch.randn(900, 20)

with gpulesson.practice_gpu():  # a real CUDA GPU, where there is one
    device = torch.device("cuda")
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.8), nn.Linear(64, 3)).to(device)
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 2.0])).to(
        device
    )  # 1: a loss with weights moves, too
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(40):
        for i in range(0, 600, 100):
            inputs = points[i : i + 100].to(device)
            targets = labels[i : i + 100].to(device)  # 2: both halves of a batch
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        held_out = loss_fn(model(points[600:].to(device)), labels[600:].to(device))
        losses.append(held_out.detach())  # 3: the number, not its history
        model.train()

    # how many bytes did the kept losses hold?
    del loss, held_out
    before = torch.cuda.memory_allocated()
    count = len(losses)
    del losses
    freed = before - torch.cuda.memory_allocated()
    print(f"{count} losses held {freed / count:.0f} bytes each")

    test_inputs, test_targets = points[600:].to(device), labels[600:].to(device)
    model.eval()  # 4: no dropout in the evaluation
    for _ in range(2):  # ask twice: the answers should agree
        predictions = model(test_inputs).argmax(dim=1)
        predictions.cpu()  # <- diagnosis: move-thrown-away
        right = (predictions.numpy() == test_targets.cpu().numpy()).sum()
        print(f"accuracy {right / len(test_targets):.2%}")

"""What a step keeps for its backward pass."""

import torch
from torch import nn

device = torch.device("cuda")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(64, 256),
            nn.Linear(256, 256),
            nn.Linear(256, 10),
        )

    def forward(self, x):
        x = self.a(x).relu()
        x = self.b(x).relu()
        return self.c(x)


model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters())
rows = torch.rand(4096, 64, device=device)
classes = torch.randint(10, (4096,), device=device)
for _ in range(2):
    outputs = model(rows)
    loss = nn.functional.cross_entropy(outputs, classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# variant: 4,096 rows
# variant: 8,192 rows
# - rows = torch.rand(4096, 64, device=device)
# + rows = torch.rand(8192, 64, device=device)
# - classes = torch.randint(10, (4096,), device=device)
# + classes = torch.randint(10, (8192,), device=device)

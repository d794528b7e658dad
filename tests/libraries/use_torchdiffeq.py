"""A network is the right-hand side of a differential equation, and learns a spiral."""

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint, odeint_event

LIBRARY = "torchdiffeq"


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


def train(device):
    times = torch.linspace(0, 2, 8).to(device)
    start = torch.tensor([[2.0, 0.0]], device=device)
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=device)
    with torch.no_grad():
        spiral = odeint(lambda t, y: (y**3) @ turn, start, times, method="dopri5")
    slope = Slope().to(device)
    optimizer = torch.optim.RMSprop(slope.parameters(), lr=1e-2)
    losses = []
    for solve, method in ((odeint, "dopri5"), (odeint_adjoint, "dopri5"), (odeint, "rk4")):
        optimizer.zero_grad()
        loss = (solve(slope, start, times, method=method) - spiral).abs().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    when, state = odeint_event(
        lambda t, y: -y, start[0, :1], times[0], event_fn=lambda t, y: y[0] - 1.0, reverse_time=False
    )
    return losses, spiral, when, state, slope.state_dict()

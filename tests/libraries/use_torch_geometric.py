"""Networks on graphs learn to classify nodes, and whole graphs from a loader."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import degree

LIBRARY = "torch_geometric"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = GCNConv(4, 16), GATConv(16, 8, heads=2), SAGEConv(16, 3)

    def forward(self, x, edges):
        x = F.relu(self.first(x, edges))
        return self.third(F.elu(self.second(x, edges)), edges)


def train(device):
    def graph(nodes=12):
        return Data(torch.randn(nodes, 4), torch.randint(nodes, (2, 30)), y=torch.randint(3, (nodes,)))

    model = Net().to(device)
    data = ToUndirected()(graph()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for batch in DataLoader([graph() for _ in range(6)], batch_size=3):
        batch = batch.to(device)
        pooled = global_mean_pool(model(batch.x, batch.edge_index), batch.batch)
        losses.append(pooled.logsumexp(1).mean().item())
    return losses, pooled, degree(data.edge_index[0], data.num_nodes), model(data.x, data.edge_index)

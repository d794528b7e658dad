"""A Learner finds a learning rate and trains a table's network and one for pictures."""

import numpy as np
import pandas as pd
import torch
from fastai.data.all import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from fastai.tabular.all import Categorify, CategoryBlock, Normalize, TabularDataLoaders, tabular_learner
from fastai.torch_core import default_device, set_seed
from torch import nn

LIBRARY = "fastai"


def train(device):
    if device == "cpu":
        default_device(use=False)
    set_seed(0, reproducible=False)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=80), "kind": rng.choice(["a", "b"], 80)})
    rows["label"] = np.where(rows["x"] > 0, "yes", "no")
    loaders = TabularDataLoaders.from_df(
        rows,
        procs=[Categorify, Normalize],
        cat_names=["kind"],
        cont_names=["x"],
        y_names="label",
        y_block=CategoryBlock(),
        valid_idx=list(range(16)),
        bs=16,
        num_workers=0,
    )
    table = tabular_learner(loaders, layers=[8], metrics=accuracy)
    with table.no_bar(), table.no_logging():
        table.fit_one_cycle(2, 1e-2)
    assert next(table.model.parameters()).device.type == device

    data = [(torch.randn(3, 8, 8), i % 2) for i in range(16)]
    loaders = DataLoaders.from_dsets(data, data, bs=8, num_workers=0, device=table.dls.device)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    pictures = Learner(loaders, network, loss_func=nn.CrossEntropyLoss(), metrics=accuracy)
    with pictures.no_bar(), pictures.no_logging():
        pictures.fit(2, 1e-2)
        predictions, _ = pictures.get_preds()
    return table.recorder.values, table.validate(), pictures.recorder.values, predictions

"""A temporal fusion transformer and N-BEATS learn to go on with time series."""

import lightning as L
import numpy as np
import pandas as pd
import torch
from pytorch_forecasting import NBeats, QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet

LIBRARY = "pytorch-forecasting"


def train(device):
    L.seed_everything(0, verbose=False)
    steps = np.tile(np.arange(40), 2)
    rows = pd.DataFrame({"step": steps, "series": np.repeat(["a", "b"], 40), "value": np.sin(steps / 3)})
    columns = {"time_idx": "step", "target": "value", "group_ids": ["series"]}
    lengths = {"max_encoder_length": 12, "max_prediction_length": 4, "min_encoder_length": 12}
    results = []
    for kind, options in (
        (
            TemporalFusionTransformer,
            {"hidden_size": 8, "attention_head_size": 2, "dropout": 0.0, "loss": QuantileLoss()},
        ),
        (NBeats, {"widths": [8, 16], "backcast_loss_ratio": 0.1, "dropout": 0.0}),
    ):
        known = {"time_varying_known_reals": ["step"]} if kind is TemporalFusionTransformer else {}
        data = TimeSeriesDataSet(rows, **columns, **lengths, **known, time_varying_unknown_reals=["value"])
        loader = data.to_dataloader(train=False, batch_size=8, num_workers=0)
        torch.manual_seed(0)  # the first one's layers drew on the device
        model = kind.from_dataset(data, learning_rate=0.01, log_interval=-1, **options)
        trainer = L.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            max_steps=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
        results.append(trainer.callback_metrics["train_loss_step"])
        model.to(device).eval()
        inputs, _ = next(iter(loader))
        inputs = model.transfer_batch_to_device(inputs, torch.device(device), 0)
        with torch.no_grad():
            results.append(model(inputs)["prediction"])
    return results

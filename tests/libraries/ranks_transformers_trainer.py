"""The Trainer of transformers trains on two GPUs, or in two processes on the CPU."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

LIBRARY = "transformers"


class Sentences(Dataset):
    def __init__(self):
        self.ids, self.labels = torch.randint(100, (15, 10)), torch.randint(2, (15,))

    def __len__(self):
        return 15

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


folder = Path(sys.argv[1])
arguments = TrainingArguments(
    output_dir=str(folder / "out"),
    max_steps=4,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    logging_steps=1,
    save_steps=2,
    report_to=[],
    disable_tqdm=True,
)
set_seed(0)
config = DistilBertConfig(
    vocab_size=100, dim=32, hidden_dim=64, n_layers=2, n_heads=4, dropout=0.0, attention_dropout=0.0
)
config.seq_classif_dropout = 0.0
data = Sentences()
model = DistilBertForSequenceClassification(config)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
found = {
    "backend": dist.get_backend(),
    "device": str(trainer.args.device),
    "losses": [*losses, trainer.evaluate()["eval_loss"]],
    "weights": {name: value.cpu() for name, value in model.state_dict().items()},
}
torch.save(found, folder / f"{trainer.args.process_index}.pt")

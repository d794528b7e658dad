"""The library's Trainer trains and evaluates a small DistilBERT."""

import torch
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

LIBRARY = "transformers"


class Sentences(Dataset):
    def __init__(self):
        self.ids, self.labels = torch.randint(100, (16, 10)), torch.randint(2, (16,))

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def train(device):
    config = DistilBertConfig(
        vocab_size=100, dim=32, hidden_dim=64, n_layers=2, n_heads=4, dropout=0.0, attention_dropout=0.0
    )
    config.seq_classif_dropout = 0.0
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=device == "cpu",
    )
    data = Sentences()
    trainer = Trainer(
        DistilBertForSequenceClassification(config), arguments, train_dataset=data, eval_dataset=data
    )
    trainer.train()
    assert trainer.args.device.type == device
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.evaluate()["eval_loss"], trainer.predict(data).predictions.tolist()

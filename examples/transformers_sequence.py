"""Transformers: the Trainer with a loss of acls and calibration among its metrics, on a tiny model made here.

Run: python examples/transformers_sequence.py      Needs: pip install 'torch-acls[transformers]'
"""

import tempfile

import torch
from torch.utils.data import Dataset

import acls
from acls.integrations.transformers import compute_loss_func, compute_metrics  # before transformers itself

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # isort: skip


class Sentences(Dataset):
    """Random tokens; the class is that of the largest token, with some labels wrong."""

    def __init__(self, n, seed):
        random = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 30, (n, 8), generator=random)
        wrong = torch.rand(n, generator=random) < 0.15
        self.labels = torch.where(wrong, torch.randint(0, 3, (n,), generator=random), self.ids.amax(1) % 3)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            folder,
            num_train_epochs=3,
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            batch_eval_metrics=True,
        ),
        train_dataset=Sentences(600, seed=1),
        eval_dataset=Sentences(300, seed=2),
        compute_loss_func=compute_loss_func(acls.ACLS(margin=3.0)),
        compute_metrics=compute_metrics(),
    )
    trainer.train()
    found = trainer.evaluate()

for name in ("eval_accuracy", "eval_ece", "eval_ece_floor", "eval_nll"):
    print(f"{name:<15} {found[name]:.4f}")

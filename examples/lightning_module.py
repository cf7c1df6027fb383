"""Lightning: a loss of acls in the module, and a callback that logs calibration each epoch.

Run: python examples/lightning_module.py      Needs: pip install 'torch-acls[lightning,sklearn]'
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import acls
from acls.data.indexed import Indexed
from acls.integrations.lightning import CalibrationCallback  # first: it sees to it that Lightning can be imported

import lightning.pytorch as pl  # isort: skip


class Digits(pl.LightningModule):
    """A small network; only the line with the loss is about calibration."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.loss = acls.ACLS(margin=10.0)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y, index = batch
        return self.loss(self(x), y, index=index)  # index is for losses that remember samples, such as CRL

    def validation_step(self, batch, _):
        x, y = batch
        return {"logits": self(x), "target": y}  # what the callback measures

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


pl.seed_everything(0, verbose=False)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images, order = images.float().reshape(-1, 1, 8, 8) / 16, torch.randperm(len(labels))
train, val = (TensorDataset(images[part], labels[part]) for part in order.split([1200, 597]))
trainer = pl.Trainer(
    max_epochs=20, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[CalibrationCallback(save="lightning_val.npz")],
)  # fmt: skip
trainer.fit(Digits(), DataLoader(Indexed(train), batch_size=64, shuffle=True), DataLoader(val, batch_size=256))

for name in ("val/accuracy", "val/ece", "val/ece_floor", "val/nll"):
    print(f"{name:<14} {float(trainer.callback_metrics[name]):.4f}")
print("predictions: lightning_val.npz; next: acls evaluate lightning_val.npz")

"""timm: fine-tune a network with a loss of acls under Mixup, whose labels are soft.

Run: python examples/timm_finetune.py      Needs: pip install 'torch-acls[vision,sklearn]'
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import acls
from acls.integrations.timm import calibration, criterion  # before timm itself

import timm  # isort: skip
from timm.data import Mixup  # isort: skip
from timm.optim import create_optimizer_v2  # isort: skip

torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8).repeat_interleave(4, -1).repeat_interleave(4, -2) / 16  # 32x32
train, test = (
    TensorDataset(images[part], labels[part]) for part in torch.randperm(len(labels))[:1200].split([800, 400])
)
model = timm.create_model(
    "test_vit", num_classes=10, in_chans=1, img_size=32
)  # pretrained=True for a network that is any good

mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=10)  # smoothing is left to the loss
loss = criterion(acls.ACLS(margin=10.0), mixup)
optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3)

for _ in range(8):
    model.train()
    for x, y in DataLoader(train, batch_size=50, shuffle=True):  # Mixup wants an even number
        optimizer.zero_grad()
        mixed, target = mixup(x, y)
        loss(model(mixed), target).backward()
        optimizer.step()

for name, value in calibration(model, DataLoader(test, batch_size=200)).items():
    print(f"{name:<10} {value:.4f}")

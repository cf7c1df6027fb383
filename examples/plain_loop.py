"""A plain PyTorch loop with ACLS: one line differs from cross-entropy. Then measure, with noise floor, and fix.

Run: python examples/plain_loop.py      Needs: pip install 'torch-acls[sklearn]', for the images
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import acls

torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images, order = images.float().reshape(-1, 1, 8, 8) / 16, torch.randperm(len(labels))
train, val, test = (TensorDataset(images[part], labels[part]) for part in order.split([900, 300, 597]))

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

loss = acls.ACLS(margin=10.0)  # instead of nn.CrossEntropyLoss(); a larger margin smooths less

for _ in range(30):
    for x, y in DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

# Measure on the test images, beside what chance alone would show.
model.eval()
with torch.no_grad():
    val_logits, test_logits = (model(part.tensors[0]) for part in (val, test))
val_labels, test_labels = val.tensors[1], test.tensors[1]
found = acls.evaluate(test_logits, test_labels, kind="logits")
floor = found.floors["ece"].mean
print(f"accuracy {found['accuracy']:.2%}  ECE {found['ece']:.2%}  (a calibrated model would show {floor:.2%})")

# Fix by one temperature, fitted on the validation images.
temperature = acls.Temperature().fit(val_logits, val_labels)
after = acls.Suite.of(temperature(test_logits), test_labels, kind="log_probs").summary()
print(f"after T = {float(temperature.temperature):.3f}: ECE {after['ece']:.2%}")
print(f"NLL {found['nll']:.4f} -> {after['nll']:.4f}")

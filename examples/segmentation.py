"""Segmentation: any network with logits (N, K, H, W); pixels labelled 255 do not count.

Run: python examples/segmentation.py      Needs: pip install 'torch-acls[vision]' segmentation-models-pytorch
"""

import torch

import acls
from acls.data.synthetic import scenes
from acls.vision import torchvision

torchvision()  # before a package that imports it: torchvision's build need not fit this torch

import segmentation_models_pytorch as smp  # noqa: E402
from torchvision.models.segmentation import lraspp_mobilenet_v3_large  # noqa: E402

torch.manual_seed(0)
images, masks, _ = scenes(24, size=64, n_classes=4)  # labels are drawn from known probabilities
masks[:, :2] = 255  # a border that nobody labelled
train, test = slice(0, 16), slice(16, 24)

networks = {
    "segmentation_models_pytorch": smp.Unet("timm-mobilenetv3_small_minimal_100", encoder_weights=None, classes=4),
    "torchvision": lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4),
}
loss = acls.ACLS(margin=10.0, ignore_index=255)

for name, model in networks.items():
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def logits_of(x, model=model):
        found = model(x)
        return found["out"] if isinstance(found, dict) else found  # torchvision returns a dict

    for _ in range(4):
        for start in range(0, 16, 8):
            optimizer.zero_grad()
            loss(logits_of(images[start : start + 8]), masks[start : start + 8]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():  # counts merge: in a real loop, add up the batches
        counted = acls.Suite.of(logits_of(images[test]), masks[test], ignore_index=255, confusion=True)
    found = counted.summary()
    print(f"{name:<28} accuracy {found['accuracy']:.2%}  ECE {found['ece']:.2%}  of {counted.n:,} pixels")

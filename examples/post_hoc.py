"""Post-hoc calibration of saved logits: no model, no training code. The command line does the same in one word.

Run: python examples/post_hoc.py
"""

import torch

import acls
from acls.calibrators import judge
from acls.predictions import Predictions

# Saved outputs of an overconfident model: labels follow softmax(z), but the model says softmax(2.5 z).
torch.manual_seed(0)
z = 2 * torch.randn(4000, 10)
labels = torch.multinomial(z.softmax(1), 1)[:, 0]
Predictions(2.5 * z[:2000], labels[:2000], "logits").save("post_hoc_val.npz")
Predictions(2.5 * z[2000:], labels[2000:], "logits").save("post_hoc_test.npz")

val, test = Predictions.load("post_hoc_val.npz"), Predictions.load("post_hoc_test.npz")
print(f"{'uncalibrated':<14} ECE {acls.Suite.of(test.scores, test.labels).summary()['ece']:.2%}")
for name in ("Temperature", "Vector", "Isotonic"):
    calibrator = acls.make_calibrator(name).fit(val.scores, val.labels)
    found = acls.Suite.of(calibrator(test.scores), test.labels, kind="log_probs").summary()
    print(f"{name:<14} ECE {found['ece']:.2%}  NLL {found['nll']:.4f}")

# Is it worth it? Judged by cross-validation on the validation data alone.
print(judge(acls.Temperature(), val.scores, val.labels).why)
acls.Temperature().fit(val.scores, val.labels).save("temperature.safetensors")  # needs: pip install 'torch-acls[io]'
print("the same by command: acls calibrate post_hoc_val.npz --method Temperature --out temperature.safetensors")

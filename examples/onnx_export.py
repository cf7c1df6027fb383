"""Into production: the temperature folded into the last layer, or model and calibrator as one ONNX file.

Run: python examples/onnx_export.py      Needs: pip install 'torch-acls[export,io]'
"""

import torch
from torch import nn

import acls
from acls.calibrators import export_onnx, fold

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
x, y = torch.randn(2000, 8), torch.randint(0, 5, (2000,))
with torch.no_grad():
    temperature = acls.Temperature().fit(model(x), y)

# Nothing to compute at run time: the softmax of the folded model is the calibrated probability.
folded = fold(model, temperature, example=x[:4])
with torch.no_grad():
    apart = (folded(x).softmax(1) - temperature(model(x)).exp()).abs().max()
print(f"folded: probabilities agree to {float(apart):.1e}")

# Any calibrator, any runtime: checked in onnxruntime before the file is kept.
# Its input is "input", its output "probabilities"; without probabilities=True it is "log_probabilities".
apart = export_onnx(model, temperature, "calibrated.onnx", x[:4], probabilities=True)
print(f"calibrated.onnx: probabilities agree to {apart:.1e}")

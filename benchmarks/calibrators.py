"""Post-hoc calibrators against the libraries that have them: time and log-loss, same data, one run.

    python benchmarks/calibrators.py [--turns 5] [--only temperature|affine] [--networks resnet20,voc]

Temperature: fits of (5000, 10) and (25000, 1000) logits, interleaved with the peers', best of several turns, in units
of one forward cross-entropy. Vector, Matrix, Dirichlet: log-loss on the second half of real networks' outputs after a
fit to the first, beside the best peer's, with the time of each fit. Of vector scaling there are the default, of logits,
which a layer can hold, and what cross-validation takes of logits and of log-probabilities (``space="auto"``). Exits
with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from timing import best_times
from torch import Tensor

from acls.calibrators import Calibrator, Dirichlet, Matrix, Temperature, Vector
from acls.vision import torchvision

SHARED = Path(os.environ.get("ACLS_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "logits"
MOST_CROSS_ENTROPIES = 20.0
ROUNDING = 1e-9
"""Differences of NLL that mean nothing: peers return temperatures in float32."""


@dataclass(frozen=True)
class Data:
    """Logits with labels, the first ``n`` to fit to; ``group`` numbers what belongs together."""

    name: str
    logits: Tensor
    labels: Tensor
    n: int
    group: Tensor | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="turns of which the best time counts")
    parser.add_argument("--only", choices=("temperature", "affine"), help="one of the two comparisons")
    parser.add_argument("--networks", default="", help="of the affine maps: networks whose name holds one of these")
    args = parser.parse_args()
    torchvision()  # before the peers import it themselves, as its build may not fit torch's
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    passed = []
    if args.only != "affine":
        passed.append(compare_temperature(*small_logits(), turns=4 * args.turns))
        passed.append(compare_temperature(*large_logits(), turns=args.turns))
    if args.only != "temperature":
        passed.append(compare_affine(args.networks.split(",")))
    return 0 if all(passed) else 1


def met(what: str, value: float, limit: float) -> bool:
    """Print whether a value keeps its target, and return it."""
    print(f"{'PASS' if value <= limit else 'FAIL'} {what}: {value:.4g} (target {limit:.4g})")
    return value <= limit


# Temperature


def small_logits() -> tuple[Tensor, Tensor]:
    if SHARED.is_dir():
        arrays = np.load(SHARED / "cifar10_akamaster_resnets.npz")
        return torch.from_numpy(arrays["resnet56"][:5000]), torch.from_numpy(arrays["labels"][:5000]).long()
    return synthetic(5000, 10)


def large_logits() -> tuple[Tensor, Tensor]:
    return synthetic(25_000, 1000)


def synthetic(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Logits of an overconfident classifier: the labels follow them at temperature 2."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(n, k, generator=generator)
    logits[torch.arange(n), torch.randint(0, k, (n,), generator=generator)] += 9
    return 2 * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def compare_temperature(logits: Tensor, labels: Tensor, turns: int) -> bool:
    n, k = logits.shape
    print(f"\nTemperature at ({n}, {k}), best of {turns} turns\n")
    fits = {
        "acls": lambda: 1 / float(Temperature().fit(logits, labels).temperature),
        **temperature_peers(logits, labels),
    }
    found = {name: fit() for name, fit in fits.items()}  # also warms up
    times = best_times({"cross-entropy": lambda: F.cross_entropy(logits, labels), **fits}, turns=turns)
    unit = times.pop("cross-entropy")
    losses = {name: nll(logits, labels, beta) for name, beta in found.items()}
    print(f"{'':18}  {'ms':>9}  {'cross-entropies':>15}  {'T':>9}  {'NLL':>14}")
    for name, seconds in times.items():
        print(f"{name:18}  {1e3 * seconds:9.2f}  {seconds / unit:15.1f}  {1 / found[name]:9.5f}  {losses[name]:14.10f}")
    ours = times.pop("acls") / unit
    fastest = min(times, key=times.__getitem__)
    best = min(losses.values())
    passed = [
        met(f"({n}, {k}) faster than each, the fastest being {fastest}", ours, times[fastest] / unit),
        met(f"({n}, {k}) NLL above the least", losses["acls"] - best, ROUNDING),
    ]
    if k == 1000:
        passed.append(met(f"({n}, {k}) time in cross-entropies", ours, MOST_CROSS_ENTROPIES))
    return all(passed)


def nll(logits: Tensor, labels: Tensor, beta: float) -> float:
    return float(F.cross_entropy(logits.double() * beta, labels))


def temperature_peers(logits: Tensor, labels: Tensor) -> dict[str, Callable[[], float]]:
    """Each returns the inverse temperature it found; conversions that only the peer needs are made before."""
    from netcal.scaling import TemperatureScaling
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits
    from sklearn.calibration import _TemperatureScaling
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import TemperatureScaler

    plain, target = logits.numpy(), labels.numpy()
    probs = logits.double().softmax(1).numpy()
    loader = DataLoader(TensorDataset(logits, labels), batch_size=len(labels))

    def probmetrics() -> float:
        fitted = get_calibrator("temp-scaling").fit_torch(CategoricalLogits(logits), labels)
        return float(fitted.invtemp_)

    def netcal() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            return float(TemperatureScaling().fit(probs, target, tensorboard=False).weights[0])

    def torch_uncertainty() -> float:
        scaler = TemperatureScaler(model=None)
        scaler.fit(loader, progress=False)
        return float(scaler.inv_temperature[0])

    def scikit_learn() -> float:
        return float(_TemperatureScaling().fit(plain, target).beta_)

    def lbfgs() -> float:
        beta = torch.ones((), requires_grad=True)
        optimizer = torch.optim.LBFGS([beta], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(logits * beta, labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        return float(beta)

    return {
        "probmetrics": probmetrics,
        "netcal": netcal,
        "torch-uncertainty": torch_uncertainty,
        "scikit-learn": scikit_learn,
        "LBFGS": lbfgs,
    }


# Affine maps


def real_networks() -> Iterator[Data]:
    """Outputs of real networks; probabilities as their logs. CIFAR-10's test set is halved, VOC's images are."""
    arrays = np.load(SHARED / "cifar10_akamaster_resnets.npz")
    for name in ("resnet20", "resnet32", "resnet44", "resnet56"):
        yield halved(name, arrays[name], arrays["labels"])
    arrays = np.load(SHARED / "cifar10_widmann_14nets_probs.npz")
    for name, probs in zip(arrays["models"], arrays["probs"], strict=True):
        yield halved(f"w {name}", logs(probs), arrays["labels"])
    arrays = np.load(SHARED / "cifar10_netcal_probs.npz")
    for name in ("lenet_5_probs", "wideresnet_16_4_probs"):
        yield halved(name.removesuffix("_probs"), logs(arrays[name]), arrays["labels"])
    arrays = np.load(SHARED / "cifar10_vgg16_verified_probs.npz")
    yield halved("vgg16", logs(arrays["probs"]), arrays["labels"])
    arrays = np.load(SHARED / "voc2012_espnetv2_pixels.npz")
    image = torch.from_numpy(arrays["image_index"].astype(np.int64))
    first_half = int((image < 222).sum())
    logits = torch.from_numpy(arrays["logits"].astype(np.float32))
    labels = torch.from_numpy(arrays["labels"]).long()
    yield Data("voc espnetv2", logits, labels, first_half, image[:first_half])


def logs(probs: np.ndarray) -> np.ndarray:
    return np.log(np.clip(probs, np.finfo(np.float32).tiny, 1)).astype(np.float32)


def halved(name: str, logits: np.ndarray, labels: np.ndarray) -> Data:
    return Data(name, torch.from_numpy(logits), torch.from_numpy(labels).long(), len(labels) // 2)


def compare_affine(wanted: list[str]) -> bool:
    if not SHARED.is_dir():
        print("\nSKIP Vector, Matrix, Dirichlet: no real logits; set ACLS_SHARED to their folder")
        return True
    ours = {
        "Vector": Vector(),
        "Vector(auto)": Vector(space="auto"),
        "Matrix": Matrix(),
        "Dirichlet": Dirichlet(),
    }
    peers = {
        "Vector": ("probmetrics svs", "torch-uncertainty vector"),
        "Vector(auto)": ("probmetrics svs", "torch-uncertainty vector"),
        "Matrix": ("probmetrics sms", "torch-uncertainty matrix", "scikit-learn"),
        "Dirichlet": ("probmetrics sms", "torch-uncertainty dirichlet", "scikit-learn"),
    }
    losses: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    errors: dict[str, list[float]] = {name: [] for name in ours}
    for data in (data for data in real_networks() if any(part in data.name for part in wanted)):
        each: dict[str, Tensor] = {}
        took: dict[str, float] = {}
        for name, fit in {**{name: acls_fit(one) for name, one in ours.items()}, **affine_peers()}.items():
            start = time.perf_counter()
            log_probs = fit(data)
            took[name] = time.perf_counter() - start
            seconds[name] = seconds.get(name, 0.0) + took[name]
            each[name] = F.nll_loss(log_probs.double().clamp(min=-50), data.labels[data.n :], reduction="none")
            losses.setdefault(name, []).append(float(each[name].mean()))
        for name in ours:
            best = min(peers[name], key=lambda peer: losses[peer][-1])
            apart = each[name] - each[best]
            errors[name].append(float(apart.mean()) / (float(apart.std()) / len(apart) ** 0.5))
        told = "  ".join(f"{name} {values[-1]:.5f} ({took[name]:.1f} s)" for name, values in losses.items())
        print(f"{data.name}: {told}", flush=True)
    if not losses:
        raise SystemExit(f"no network's name holds any of {wanted}")
    print(f"\nlog-loss on the second half, mean over {len(errors['Vector'])} networks\n")
    for name, values in losses.items():
        print(f"{name:28}  {sum(values) / len(values):.5f}  {seconds[name]:8.1f} s")
    print()
    passed = []
    for name in ours:
        means = {peer: sum(losses[peer]) / len(losses[peer]) for peer in peers[name]}
        best = min(means, key=means.__getitem__)
        passed.append(met(f"{name} mean log-loss against {best}", sum(losses[name]) / len(losses[name]), means[best]))
        lower = sum(one <= 0 for one in errors[name])
        worst = max(errors[name])
        print(f"     no higher than the best peer of each network on {lower} of {len(errors[name])}")
        passed.append(met(f"{name} standard errors above the best peer of a network, at worst", worst, 2.0))
    return all(passed)


def acls_fit(calibrator: Calibrator) -> Callable[[Data], Tensor]:
    def fit(data: Data) -> Tensor:
        calibrator.fit(data.logits[: data.n], data.labels[: data.n], group=data.group)
        return calibrator(data.logits[data.n :])

    return fit


def affine_peers() -> dict[str, Callable[[Data], Tensor]]:
    from probmetrics.calibrators import get_calibrator
    from sklearn.linear_model import LogisticRegression
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import DirichletScaler, MatrixScaler, VectorScaler

    def probmetrics(name: str) -> Callable[[Data], Tensor]:
        def fit(data: Data) -> Tensor:
            probs = data.logits.double().softmax(1).numpy()
            fitted = get_calibrator(name)
            fitted.fit(probs[: data.n], data.labels[: data.n].numpy())
            return torch.from_numpy(fitted.predict_proba(probs[data.n :])).log()

        return fit

    def torch_uncertainty(kind: type) -> Callable[[Data], Tensor]:
        def fit(data: Data) -> Tensor:
            scaler = kind(num_classes=data.logits.shape[1])
            part = TensorDataset(data.logits[: data.n], data.labels[: data.n])
            scaler.fit(DataLoader(part, batch_size=data.n), progress=False)
            return scaler(data.logits[data.n :]).detach().log_softmax(1)

        return fit

    def scikit_learn(data: Data) -> Tensor:
        """Multinomial logistic regression on log-probabilities: matrix scaling with scikit-learn's own ridge."""
        features = data.logits.double().log_softmax(1).clamp(min=-50).numpy()
        model = LogisticRegression(max_iter=1000).fit(features[: data.n], data.labels[: data.n].numpy())
        log_probs = torch.full((len(features) - data.n, features.shape[1]), -torch.inf, dtype=torch.float64)
        log_probs[:, model.classes_] = torch.from_numpy(model.predict_log_proba(features[data.n :]))
        return log_probs  # it knows nothing of classes that it has not seen

    return {
        "probmetrics svs": probmetrics("svs"),
        "probmetrics sms": probmetrics("sms"),
        "torch-uncertainty vector": torch_uncertainty(VectorScaler),
        "torch-uncertainty matrix": torch_uncertainty(MatrixScaler),
        "torch-uncertainty dirichlet": torch_uncertainty(DirichletScaler),
        "scikit-learn": scikit_learn,
    }


if __name__ == "__main__":
    raise SystemExit(main())

"""Post-hoc calibrators against the libraries that have them: time and log-loss, same data, one run.

    python benchmarks/calibrators.py [--turns 5] [--halvings 3] [--networks resnet20,voc] [--draws 20]
                                     [--only temperature|affine|advice]

Temperature: fits of (5000, 10) and (25000, 1000) logits, interleaved with the peers', best of several turns, in units
of one forward cross-entropy. Vector, Matrix, Dirichlet: log-loss of real networks' outputs, each half after a fit to
the other, over several halvings, beside the best peer's, with the time of the fits. The default Vector scales logits,
as torch-uncertainty's does and a layer can; that of log-probabilities is held against all vector scalings. Advice: how
often `acls calibrate`, shown 200 rows of a network, is wrong to keep the model or to recommend a temperature, by the
NLL of the other rows. Exits with 1 if a target is missed.
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
from acls.predictions import Predictions
from acls.results import recommend
from acls.vision import torchvision

SHARED = Path(os.environ.get("ACLS_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "logits"
MOST_CROSS_ENTROPIES = 20.0
SAME = 5e-5
"""Log-losses that differ by so small a part are equal: so far from its minimum a peer's solver may stop."""
SHOWN = 200
"""Rows from which the advice to use a temperature, or none, is given."""
MOST_LOST = 1e-3
"""NLL that the advice may lose against the better choice, on average."""
ROUNDING = 1e-9
"""Differences of NLL that mean nothing: peers return temperatures in float32."""


@dataclass(frozen=True)
class Data:
    """Logits with labels; ``group`` numbers what belongs together, as the pixels of an image."""

    name: str
    logits: Tensor
    labels: Tensor
    group: Tensor

    def __getitem__(self, chosen: Tensor) -> Data:
        return Data(self.name, self.logits[chosen], self.labels[chosen], self.group[chosen])


Fit = Callable[[Data, Tensor], Tensor]
"""Fits to data and returns the log-probabilities of other logits."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="turns of which the best time counts")
    parser.add_argument("--halvings", type=int, default=3, help="of the affine maps: how often the outputs are halved")
    parser.add_argument("--draws", type=int, default=20, help="of the advice: random draws of 200 rows")
    parser.add_argument("--only", choices=("temperature", "affine", "advice"), help="one of the comparisons")
    parser.add_argument("--networks", default="", help="of real networks, those whose name holds one of these")
    args = parser.parse_args()
    torchvision()  # before the peers import it themselves, as its build may not fit torch's
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    passed = []
    if args.only in (None, "temperature"):
        passed.append(compare_temperature(*small_logits(), turns=4 * args.turns))
        passed.append(compare_temperature(*large_logits(), turns=args.turns))
    if args.only in (None, "affine"):
        passed.append(compare_affine(args.networks.split(","), args.halvings))
    if args.only in (None, "advice"):
        passed.append(check_advice(args.networks.split(","), args.draws))
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
    """Outputs of real networks; probabilities as their logs."""
    arrays = np.load(SHARED / "cifar10_akamaster_resnets.npz")
    for name in ("resnet20", "resnet32", "resnet44", "resnet56"):
        yield images(name, arrays[name], arrays["labels"])
    arrays = np.load(SHARED / "cifar10_widmann_14nets_probs.npz")
    for name, probs in zip(arrays["models"], arrays["probs"], strict=True):
        yield images(f"w {name}", logs(probs), arrays["labels"])
    arrays = np.load(SHARED / "cifar10_netcal_probs.npz")
    for name in ("lenet_5_probs", "wideresnet_16_4_probs"):
        yield images(name.removesuffix("_probs"), logs(arrays[name]), arrays["labels"])
    arrays = np.load(SHARED / "cifar10_vgg16_verified_probs.npz")
    yield images("vgg16", logs(arrays["probs"]), arrays["labels"])
    arrays = np.load(SHARED / "voc2012_espnetv2_pixels.npz")
    logits = torch.from_numpy(arrays["logits"].astype(np.float32))
    image = torch.from_numpy(arrays["image_index"].astype(np.int64))
    yield Data("voc espnetv2", logits, torch.from_numpy(arrays["labels"]).long(), image)


def logs(probs: np.ndarray) -> np.ndarray:
    return np.log(np.clip(probs, np.finfo(np.float32).tiny, 1)).astype(np.float32)


def images(name: str, logits: np.ndarray, labels: np.ndarray) -> Data:
    return Data(name, torch.from_numpy(logits), torch.from_numpy(labels).long(), torch.arange(len(labels)))


def halved(group: Tensor, seed: int) -> Tensor:
    """Which rows are in the first half: for seed 0 the half that comes first, else half of the groups at random."""
    n = int(group.max()) + 1
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) if seed else torch.arange(n)
    return torch.isin(group, order[: n // 2])


def compare_affine(wanted: list[str], halvings: int) -> bool:
    if not SHARED.is_dir():
        print("\nSKIP Vector, Matrix, Dirichlet: no real logits; set ACLS_SHARED to their folder")
        return True
    peers = {
        "Vector": ("torch-uncertainty vector",),
        "Vector(log_probs)": ("probmetrics svs", "torch-uncertainty vector"),
        "Matrix": ("probmetrics sms", "torch-uncertainty matrix", "scikit-learn"),
        "Dirichlet": ("probmetrics sms", "torch-uncertainty dirichlet", "scikit-learn"),
    }
    ours = dict(zip(peers, (Vector(), Vector(space="log_probs"), Matrix(), Dirichlet()), strict=True))
    fits = {**{name: acls_fit(one) for name, one in ours.items()}, **affine_peers()}
    losses: dict[str, list[float]] = {name: [] for name in fits}
    seconds = dict.fromkeys(fits, 0.0)
    above: dict[str, list[tuple[float, str]]] = {name: [] for name in ours}
    for data in (data for data in real_networks() if any(part in data.name for part in wanted)):
        for name, fit in fits.items():
            start = time.perf_counter()
            losses[name].append(cross_fitted(fit, data, halvings))
            seconds[name] += time.perf_counter() - start
        for name in ours:
            above[name].append((losses[name][-1] / min(losses[peer][-1] for peer in peers[name]) - 1, data.name))
        told = (f"{name} {values[-1]:.5f}" for name, values in losses.items())
        print(f"{data.name}: {'  '.join(told)}", flush=True)
    n = len(losses["Matrix"])
    if not n:
        raise SystemExit(f"no network's name holds any of {wanted}")
    print(
        f"\nlog-loss after a fit to the other half, mean over {n} networks and {halvings} halvings; time of all fits\n"
    )
    means = {name: sum(values) / n for name, values in losses.items()}
    for name, mean in means.items():
        print(f"{name:28}  {mean:.5f}  {seconds[name]:8.1f} s")
    print()
    passed = []
    for name in ours:
        best = min(peers[name], key=means.__getitem__)
        passed.append(met(f"{name} mean log-loss against {best}", means[name], means[best]))
        worst, where = max(above[name])
        lower = sum(one < SAME for one, _ in above[name])
        print(f"     no higher than the best peer of each network on {lower} of {n}, at worst {worst:+.2%} ({where})")
    price = means["Vector"] / means["Vector(log_probs)"] - 1
    print(f"     what it costs that a layer can hold the map: Vector is {price:+.2%} from Vector(log_probs)")
    return all(passed)


def cross_fitted(fit: Fit, data: Data, halvings: int) -> float:
    """Return the mean log-loss of rows after fits to the half they are not in, over the halvings."""
    total = 0.0
    for seed in range(halvings):
        first = halved(data.group, seed)
        for one, other in ((first, ~first), (~first, first)):
            log_probs = fit(data[one], data.logits[other]).double().clamp(min=-50)
            total += float(F.nll_loss(log_probs, data.labels[other], reduction="sum"))
    return total / halvings / len(data.labels)


def acls_fit(calibrator: Calibrator) -> Fit:
    def fit(data: Data, logits: Tensor) -> Tensor:
        return calibrator.fit(data.logits, data.labels, group=data.group)(logits)

    return fit


def affine_peers() -> dict[str, Fit]:
    from probmetrics.calibrators import get_calibrator
    from sklearn.linear_model import LogisticRegression
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import DirichletScaler, MatrixScaler, VectorScaler

    def probmetrics(name: str) -> Fit:
        def fit(data: Data, logits: Tensor) -> Tensor:
            fitted = get_calibrator(name)
            fitted.fit(data.logits.double().softmax(1).numpy(), data.labels.numpy())
            return torch.from_numpy(fitted.predict_proba(logits.double().softmax(1).numpy())).log()

        return fit

    def torch_uncertainty(kind: type) -> Fit:
        def fit(data: Data, logits: Tensor) -> Tensor:
            scaler = kind(num_classes=logits.shape[1])
            part = TensorDataset(data.logits, data.labels)
            scaler.fit(DataLoader(part, batch_size=len(part)), progress=False)
            return scaler(logits).detach().log_softmax(1)

        return fit

    def scikit_learn(data: Data, logits: Tensor) -> Tensor:
        """Multinomial logistic regression on log-probabilities: matrix scaling with scikit-learn's own ridge."""
        seen, new = (z.double().log_softmax(1).clamp(min=-50).numpy() for z in (data.logits, logits))
        model = LogisticRegression(max_iter=1000).fit(seen, data.labels.numpy())
        log_probs = torch.full(logits.shape, -torch.inf, dtype=torch.float64)
        log_probs[:, model.classes_] = torch.from_numpy(model.predict_log_proba(new))
        return log_probs  # it knows nothing of classes that it has not seen

    return {
        "probmetrics svs": probmetrics("svs"),
        "probmetrics sms": probmetrics("sms"),
        "torch-uncertainty vector": torch_uncertainty(VectorScaler),
        "torch-uncertainty matrix": torch_uncertainty(MatrixScaler),
        "torch-uncertainty dirichlet": torch_uncertainty(DirichletScaler),
        "scikit-learn": scikit_learn,
    }


# Advice


def check_advice(wanted: list[str], draws: int) -> bool:
    if not SHARED.is_dir():
        print("\nSKIP advice: no real logits; set ACLS_SHARED to their folder")
        return True
    found: dict[str, list[tuple[bool, float]]] = {"the first": [], "random": [], "calibrated": []}
    for data in (data for data in real_networks() if any(part in data.name for part in wanted)):
        if len(data.group[:SHOWN].unique()) > 1:  # the first rows of VOC are pixels of one image, which make no folds
            found["the first"].append(advised(data, torch.arange(SHOWN)))
        for seed in range(1, draws + 1):
            generator = torch.Generator().manual_seed(seed)
            own = torch.randperm(len(data.labels), generator=generator)[:SHOWN]
            found["random"].append(advised(data, own))
            found["calibrated"].append(advised(redrawn(data, generator), own))
    lost = {}
    print(f"\nadvice from {SHOWN} rows: how often it is wrong by the NLL of the other rows\n")
    print(f"{'rows':10}  cases  keep  wrongly  use  wrongly  NLL lost  lost by always using, by always keeping")
    for name, cases in found.items():
        kept, used = ([change for use, change in cases if use == one] for one in (False, True))
        changes = kept + used
        # Keeping loses what a temperature would gain; using it loses what it costs.
        gains, costs = (sum(max(0.0, sign * change) for change in changes) / len(changes) for sign in (-1, 1))
        lost[name] = (sum(max(0.0, -change) for change in kept) + sum(max(0.0, change) for change in used)) / len(cases)
        print(
            f"{name:10}  {len(cases):5}  {len(kept):4}  {sum(change < 0 for change in kept):7}  {len(used):3}  "
            f"{sum(change >= 0 for change in used):7}  {lost[name]:8.5f}  {costs:20.5f}  {gains:17.5f}"
        )
    return met("NLL lost by the advice, random rows", lost["random"], MOST_LOST)


def redrawn(data: Data, generator: torch.Generator) -> Data:
    """Return the network at its best temperature, with labels drawn from its own probabilities: it is calibrated."""
    logits = data.logits / float(Temperature().fit(data.logits, data.labels).temperature)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Data(data.name, logits, labels, data.group)


def advised(data: Data, own: Tensor) -> tuple[bool, float]:
    """Return whether a temperature is recommended from these rows, and how it changes the NLL of other groups' rows."""
    part = data[own]
    [candidate] = (advice := recommend(Predictions(part.logits, part.labels, "logits", image=part.group))).candidates
    rest = data[~torch.isin(data.group, part.group)]
    beta = 1 / float(candidate.calibrator.temperature)
    return advice.chosen is not None, nll(rest.logits, rest.labels, beta) - nll(rest.logits, rest.labels, 1.0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Every metric once more, slowly and plainly, in NumPy: the second opinion."""

import itertools
import math

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def top(probs, labels):
    return probs.max(1), (probs.argmax(1) == labels).astype(float)


def accuracy(probs, labels):
    return float(np.mean(probs.argmax(1) == labels))


def top5(probs, labels):
    """Fewer than five other classes are at least as probable; the first of the most probable always counts."""
    hits = 0
    for p, y in zip(probs, labels, strict=True):
        others = sum(p[k] >= p[y] for k in range(len(p)) if k != y)
        hits += others < 5 or p.argmax() == y
    return hits / len(labels)


def nll(probs, labels):
    return float(np.mean([-math.log(p[y]) for p, y in zip(probs, labels, strict=True)]))


def brier(probs, labels):
    onehot = np.eye(probs.shape[1])[labels]
    return float(((probs - onehot) ** 2).sum(1).mean())


def in_bins(confidence, bins):
    """For each bin (lo, hi], with 0 in the first, a mask."""
    edges = np.linspace(0, 1, bins + 1)
    for b in range(bins):
        inside = (confidence > edges[b]) & (confidence <= edges[b + 1])
        yield inside | (confidence == 0) if b == 0 else inside


def gaps(confidence, right, bins):
    """Share of samples and mean confidence minus accuracy of each bin that is not empty, and its counts."""
    for inside in in_bins(confidence, bins):
        if inside.any():
            yield inside.mean(), confidence[inside].mean() - right[inside].mean(), inside.sum(), right[inside].mean()


def ece(confidence, right, bins):
    return sum(share * abs(gap) for share, gap, _, _ in gaps(confidence, right, bins))


def overconfidence(confidence, right, bins):
    return sum(share * gap for share, gap, _, _ in gaps(confidence, right, bins) if gap > 0)


def mce(confidence, right, bins):
    return max(abs(gap) for _, gap, _, _ in gaps(confidence, right, bins))


def rmsce(confidence, right, bins):
    return math.sqrt(sum(share * gap**2 for share, gap, _, _ in gaps(confidence, right, bins)))


def rmsce_debiased(confidence, right, bins):
    squared = sum(
        share * (gap**2 - accuracy * (1 - accuracy) / (count - 1))
        for share, gap, count, accuracy in gaps(confidence, right, bins)
        if count > 1
    )
    return math.sqrt(max(squared, 0))


def share_ties(confidence, right):
    """Sorted, with everyone in a tie given the tie's mean hit."""
    order = np.argsort(confidence, kind="stable")
    confidence, right = confidence[order], right[order].astype(float)
    for value in np.unique(confidence):
        tied = confidence == value
        right[tied] = right[tied].mean()
    return confidence, right


def aece(confidence, right, bins):
    confidence, right = share_ties(confidence, right)
    parts = zip(np.array_split(confidence, bins), np.array_split(right, bins), strict=True)
    return sum(abs((c - r).sum()) for c, r in parts) / len(confidence)


def aece_reference(confidence, right, bins):
    n = len(confidence)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))
    total = 0.0
    for lo, hi in itertools.pairwise(edges):
        inside = (confidence > lo) & (confidence <= hi)
        total += abs((confidence[inside] - right[inside]).sum())
    return total / n


def ece_left_closed(confidence, right, bins):
    """Bins [lo, hi), and one more for confidences of exactly 1."""
    edges = np.linspace(0, 1, bins + 1)
    masks = [(confidence >= lo) & (confidence < hi) for lo, hi in itertools.pairwise(edges)]
    return sum(abs((confidence[m] - right[m]).sum()) for m in [*masks, confidence == 1]) / len(confidence)


def classwise_ece(probs, labels, bins):
    classes = range(probs.shape[1])
    return np.mean([ece(probs[:, k], (labels == k).astype(float), bins) for k in classes])


def brier_calibration(probs, labels, bins):
    return sum(rmsce(probs[:, k], (labels == k).astype(float), bins) ** 2 for k in range(probs.shape[1]))


def ace(probs, labels, bins, threshold=0.0):
    """Over bins of equal mass, class by class; with a threshold, of the probabilities from it on."""
    n, errors = len(labels), []
    for k in range(probs.shape[1]):
        kept = probs[:, k] >= threshold
        p, event = probs[kept, k], (labels[kept] == k).astype(float)
        errors.append(aece(p, event, bins) * kept.sum() / n if kept.any() else 0.0)
    return np.mean(errors)


def ks(confidence, right):
    worst = 0.0
    for value in np.unique(confidence):
        up_to = confidence <= value
        worst = max(worst, abs((confidence[up_to] - right[up_to]).sum()))
    return worst / len(confidence)


def auroc(confidence, right):
    hits, misses = confidence[right == 1], confidence[right == 0]
    return np.mean([(h > m) + 0.5 * (h == m) for h in hits for m in misses])


def aurc(confidence, right):
    """Errors of ties are spread evenly over them, as they are on average over all their orders."""
    _, shared = share_ties(confidence, right)
    wrong = 1 - shared[::-1]
    return np.mean([wrong[:k].sum() / k for k in range(1, len(wrong) + 1)])


def smooth_ece_at(confidence, right, s):
    points = max(2000, round(20 / s)) // 4 * 2 + 1
    grids = []
    for values in (confidence - right, np.ones_like(confidence)):
        grid = np.zeros(points)
        for x, v in zip(confidence, values, strict=True):
            left = min(int(x * (points - 1)), points - 2)
            beyond = x * (points - 1) - left
            grid[left] += v * (1 - beyond)
            grid[left + 1] += v * beyond
        mirrored = np.concatenate([grid[::-1][:-1], grid, grid[::-1][1:]])
        t = np.linspace(-0.5, 0.5, points)
        kernel = np.exp(-(t**2) / (2 * s * s)) / (math.sqrt(2 * math.pi) * s)
        grids.append(np.convolve(mirrored, kernel, "same")[points - 1 : 2 * points - 1])
    mesh = np.linspace(0, 1, max(round(10 / s), 200))
    residual, density = (np.interp(mesh, np.linspace(0, 1, points), grid) for grid in grids)
    return np.abs(residual).sum() / (density + 1e-4).sum()


def smooth_ece(confidence, right):
    """The value at the smallest multiple of 1/1024 above 0.001 that is no less than it, found one by one."""
    for step in range(2, 1025):
        value = smooth_ece_at(confidence, right, step / 1024)
        if value <= step / 1024:
            return value
    raise AssertionError("an error cannot be above 1")


def confusion(predicted, labels, n_classes):
    matrix = np.zeros((n_classes, n_classes), dtype=int)
    for y, k in zip(labels, predicted, strict=True):
        matrix[y, k] += 1
    return matrix


def miou(predicted, labels, n_classes):
    values = []
    for k in range(n_classes):
        union = ((predicted == k) | (labels == k)).sum()
        if union:
            values.append(((predicted == k) & (labels == k)).sum() / union)
    return np.mean(values)


def class_accuracy(predicted, labels):
    return np.mean([(predicted[labels == k] == k).mean() for k in np.unique(labels)])

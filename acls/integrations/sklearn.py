"""A scikit-learn classifier with probabilities calibrated by an acls calibrator."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import numpy as np
import torch

from acls.arrays import two_scores
from acls.calibrators import make_calibrator
from acls.errors import InputError
from acls.integrations import importing
from acls.options import check_range
from acls.predictions import to_logits

with importing("sklearn", extra="sklearn", vision=False):
    from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.utils import assert_all_finite
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        validate_data,
    )


class CalibratedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated ``predict_proba``.

    ``scores="estimator"``: fit the estimator (default: `LogisticRegression`), and fit the calibrator to its out-of-fold
    scores from ``cv`` folds (a number or a scikit-learn splitter), so both use all data. With ``cv="prefit"``, the
    estimator is already fitted and the data is only used for the calibrator. X can be any input that the estimator
    accepts: arrays, data frames, texts. The scores are the logarithms of ``predict_proba``, or else the values of
    ``decision_function``. ``scores="logits"`` or ``"probs"``: X holds the scores of a model, one column per class, in
    the order of the sorted labels.

    ``method`` is the name of a calibrator, ``method_params`` are its fields.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "temperature",
        method_params: dict[str, Any] | None = None,
        scores: str = "estimator",
        cv: Any = 5,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.method_params = method_params
        self.scores = scores
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CalibratedClassifier:
        """Fit the estimator, if there is one, and the calibrator; weights are passed if the estimator accepts them."""
        check_range(type(self).__name__, "scores", self.scores, {"choices": ("estimator", "logits", "probs")})
        if self.scores == "estimator":  # the estimator checks X, because only it knows which inputs are valid
            check_consistent_length(X, y)
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
        else:
            X, y = validate_data(self, X, y, accept_sparse=True, dtype=None, ensure_all_finite=False)
        check_classification_targets(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self.classes_, target = np.unique(y, return_inverse=True)
        calibrator = make_calibrator(self.method, **(self.method_params or {}))
        logits = None
        if self.scores == "estimator":
            logits = self._fit_estimator(X, y, target, sample_weight)
        elif X.shape[1] != len(self.classes_):
            raise InputError(
                f"expected one column of X per class of y with scores={self.scores!r}, got {X.shape[1]} columns "
                f"and {len(self.classes_)} classes"
            )
        logits = self._logits(X) if logits is None else logits
        weight = None if sample_weight is None else torch.from_numpy(sample_weight)
        self.calibrator_ = calibrator.fit(logits, torch.from_numpy(target.astype(np.int64)), weight)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return calibrated probabilities, one column per class of ``classes_``."""
        check_is_fitted(self, "calibrator_")
        if self.scores != "estimator":
            X = validate_data(self, X, accept_sparse=True, dtype=None, ensure_all_finite=False, reset=False)
        with torch.no_grad():
            return self.calibrator_(self._logits(X)).exp().numpy()

    def predict(self, X: Any) -> Any:
        """Return the most probable class."""
        chosen = self.predict_proba(X).argmax(1)  # first, because it raises an error if nothing is fitted
        return self.classes_[chosen]

    def _fit_estimator(self, X: Any, y: Any, target: Any, sample_weight: Any) -> torch.Tensor | None:
        """Fit the estimator, unless it is fitted, and return its out-of-fold scores as logits if there are any."""
        if self.cv == "prefit":
            check_is_fitted(self.estimator)
            if not np.array_equal(self.estimator.classes_, self.classes_):
                raise InputError("expected y to hold the classes that the estimator was fitted to, got others")
            self._take(self.estimator)
            return None
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if not is_classifier(estimator):
            raise InputError(f"expected a classifier with predict_proba, got {type(estimator).__name__}")
        if len(self.classes_) < 2:
            raise ValueError("this classifier needs samples of at least 2 classes, but the data has one class")
        params = {} if sample_weight is None else {"sample_weight": sample_weight}
        if params and not has_fit_parameter(estimator, "sample_weight"):
            warnings.warn(
                f"{type(estimator).__name__} does not support sample_weight: only the calibrator uses it", stacklevel=3
            )
            params = {}
        self._take(clone(estimator).fit(X, y, **params))
        fewest = int(np.bincount(target).min())
        if fewest < 2:  # a fold would miss a class, so out-of-fold scores are not possible
            return None
        method, kind = _method(estimator)
        cv = min(int(self.cv), fewest) if isinstance(self.cv, Integral) else self.cv
        return _as_logits(cross_val_predict(clone(estimator), X, y, cv=cv, method=method, params=params), kind)

    def _take(self, estimator: Any) -> None:
        """Store a fitted estimator; copy its feature attributes if it has them (it has none for texts)."""
        self.estimator_ = estimator
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
            elif hasattr(self, name):  # from an earlier fit
                delattr(self, name)

    def _logits(self, X: Any) -> torch.Tensor:
        if self.scores != "estimator":
            return _as_logits(X, self.scores)
        method, kind = _method(self.estimator_)
        return _as_logits(getattr(self.estimator_, method)(X), kind)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        if self.scores == "estimator":
            from sklearn.utils import get_tags

            tags.input_tags = get_tags(LogisticRegression() if self.estimator is None else self.estimator).input_tags
        return tags


def _method(estimator: Any) -> tuple[str, str]:
    """Return the name of the method that computes the scores of an estimator, and the kind of the scores."""
    return ("predict_proba", "probs") if hasattr(estimator, "predict_proba") else ("decision_function", "logits")


def _as_logits(scores: Any, kind: str) -> torch.Tensor:
    values = torch.from_numpy(np.array(scores, dtype=np.float64))
    if values.ndim == 1:  # the score of the second of two classes
        values = two_scores(values, "logits")
    return to_logits(values, "probs" if kind == "probs" else "logits")

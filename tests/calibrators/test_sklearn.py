"""The scikit-learn face behaves as scikit-learn's own estimators do."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import estimator_checks_generator

from acls.errors import InputError
from acls.integrations.sklearn import CalibratedClassifier


@pytest.fixture(scope="module")
def digits():
    return train_test_split(*load_digits(return_X_y=True), random_state=0)


CHECKS = list(estimator_checks_generator(CalibratedClassifier()))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=lambda one: getattr(getattr(one, "func", one), "__name__", "")
)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic", "beta"])
def test_overconfident_naive_bayes_gets_better(digits, method):
    x, x_test, y, y_test = digits
    plain = GaussianNB().fit(x, y)
    calibrated = CalibratedClassifier(GaussianNB(), method=method).fit(x, y)
    assert log_loss(y_test, calibrated.predict_proba(x_test)) < 0.5 * log_loss(y_test, plain.predict_proba(x_test))


def test_prefit_estimator_is_left_as_it_is(digits):
    x, x_test, y, y_test = digits
    fitted = GaussianNB().fit(x[:700], y[:700])
    calibrated = CalibratedClassifier(fitted, cv="prefit").fit(x[700:], y[700:])
    assert calibrated.estimator_ is fitted
    assert (calibrated.predict(x_test) == fitted.predict(x_test)).all()  # temperature keeps the ranking
    assert log_loss(y_test, calibrated.predict_proba(x_test)) < log_loss(y_test, fitted.predict_proba(x_test))


def test_scores_may_be_given_directly(digits):
    x, x_test, y, y_test = digits
    model = make_pipeline(StandardScaler(), LogisticRegression(C=100, max_iter=1000)).fit(x[:700], y[:700])
    names = np.array(list("abcdefghij"))
    by_logits = CalibratedClassifier(scores="logits").fit(model.decision_function(x[700:]), names[y[700:]])
    by_probs = CalibratedClassifier(scores="probs").fit(model.predict_proba(x[700:]), names[y[700:]])
    one = by_logits.predict_proba(model.decision_function(x_test))
    other = by_probs.predict_proba(model.predict_proba(x_test))
    assert np.allclose(one, other, atol=1e-6)
    assert set(by_logits.predict(model.decision_function(x_test))) <= set(names)
    assert log_loss(y_test, one) < log_loss(y_test, model.predict_proba(x_test))


def test_an_estimator_without_probabilities_will_do(digits):
    x, x_test, y, _ = digits
    probs = CalibratedClassifier(LinearSVC(), method="vector").fit(x, y).predict_proba(x_test)
    assert np.allclose(probs.sum(1), 1, atol=1e-6)


def test_methods_can_be_searched(digits):
    x, _, y, _ = digits
    search = GridSearchCV(
        CalibratedClassifier(GaussianNB(), cv=2), {"method": ["temperature", "vector"]}, cv=2, scoring="neg_log_loss"
    ).fit(x[:400], y[:400])
    assert search.best_params_["method"] in ("temperature", "vector")


@pytest.mark.parametrize("scores", ["logits", "probs"])
def test_a_whole_weight_is_that_many_equal_rows(digits, scores):
    x, _, y, _ = digits
    model = GaussianNB().fit(x[:300], y[:300])
    given = model.predict_proba(x[300:]) if scores == "probs" else model.predict_log_proba(x[300:]).clip(-50)
    weight = np.random.default_rng(0).integers(0, 3, len(given))
    weighted = CalibratedClassifier(scores=scores).fit(given, y[300:], sample_weight=weight)
    repeated = CalibratedClassifier(scores=scores).fit(given.repeat(weight, 0), y[300:].repeat(weight))
    plain = CalibratedClassifier(scores=scores).fit(given, y[300:])
    assert np.allclose(weighted.predict_proba(given), repeated.predict_proba(given), atol=1e-6)
    assert not np.allclose(weighted.predict_proba(given), plain.predict_proba(given), atol=1e-4)


def test_weights_reach_the_estimator_and_the_calibrator_alone_where_it_takes_none(digits):
    x, x_test, y, _ = digits
    weight = np.where(y < 5, 5.0, 0.2)
    weighted = CalibratedClassifier(GaussianNB()).fit(x, y, weight)
    own = GaussianNB().fit(x, y, weight)
    assert np.array_equal(weighted.estimator_.class_prior_, own.class_prior_)
    pipeline = make_pipeline(StandardScaler(), GaussianNB())
    with pytest.warns(UserWarning, match="Pipeline does not support sample_weight"):
        calibrated = CalibratedClassifier(pipeline, method="vector").fit(x, y, weight)
    plain = CalibratedClassifier(pipeline, method="vector").fit(x, y)
    assert np.array_equal(calibrated.estimator_.predict_proba(x_test), plain.estimator_.predict_proba(x_test))
    assert calibrated.predict_proba(x_test)[:, :5].sum() > plain.predict_proba(x_test)[:, :5].sum()


def test_wrong_number_of_columns_is_refused():
    with pytest.raises(InputError, match="got 3 columns and 2 classes"):
        CalibratedClassifier(scores="logits").fit(np.zeros((4, 3)), [0, 1, 0, 1])


def test_columns_of_a_data_frame_reach_the_estimator_by_their_names():
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(random.normal(size=(60, 3)), columns=["a", "b", "c"])
    y = (frame["a"] + random.normal(size=60) > 0).to_numpy()
    picked = ColumnTransformer([("scaled", StandardScaler(), ["a", "b"])])
    model = CalibratedClassifier(make_pipeline(picked, LogisticRegression())).fit(frame, y)
    assert model.predict_proba(frame).shape == (60, 2)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.n_features_in_ == 3


def test_texts_reach_the_estimator_as_they_are():
    texts, y = ["good film", "bad film", "fine good", "awful bad"] * 5, ["up", "down"] * 10
    model = CalibratedClassifier(LogisticRegression()).fit(np.eye(20), y)
    assert model.n_features_in_ == 20
    model.set_params(estimator=make_pipeline(TfidfVectorizer(), LogisticRegression())).fit(texts, y)
    assert model.predict(["good", "bad"]).tolist() == ["up", "down"]
    assert not hasattr(model, "n_features_in_"), "that of an earlier fit is no longer true"
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(texts, y[:-1])


def test_a_splitter_says_what_the_folds_are(digits):
    x, x_test, y, _ = digits
    one, same, other = (
        CalibratedClassifier(GaussianNB(), cv=cv).fit(x, y).predict_proba(x_test)
        for cv in (3, StratifiedKFold(3), StratifiedKFold(3, shuffle=True, random_state=0))
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)

"""Small fitted models and their report data, cached for the tests of the report."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ilsvm_estimator_tools import digits, ibp, ilsvm, overlapping
from multitask_tools import classifier, groups, holes, labels, numbers, regressor
from regbayes import MedLDARegressor
from regbayes.report import ReportData, collect

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"><svg onload='window.hacked = 3'>",
    "{{script}} {{data}} {{title}}",
    "javascript:window.hacked = 4",
    "<!-- <script> \u2028 \u2029 &lt;b&gt; \ud800 \x00",
)


@cache
def fitted(name: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return a fitted estimator, X, targets, and options of `collect`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FITS[name]()


def data_of(name: str, **options: Any) -> ReportData:
    estimator, X, y, own = fitted(name)
    return collect(estimator, X, y, **own | options)


def payload(page: str) -> Any:
    """Return the JSON data embedded in an HTML report."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found, "the page has no data"
    return json.loads(found[1])


@cache
def hostile_data() -> ReportData:
    """Return report data in which every name is a script injection."""
    X, y = overlapping(90)
    named = np.array(HOSTILE[:3])[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ilsvm(4).fit(X, named)
    return collect(
        model,
        X,
        named,
        feature_names=HOSTILE[3:6],
        texts=[HOSTILE[i % 6] for i in range(90)],
        row_names=[HOSTILE[i % 6] for i in range(90)],
        data_name=HOSTILE[0],
        title=HOSTILE[0] + HOSTILE[3],
        prediction_note=HOSTILE[1],
        scores={HOSTILE[2]: 1.0},
    )


def _images():
    X, y = digits()
    return ilsvm(8).fit(X, y), X, y, {"image_shape": (8, 8)}


def _table():
    X, y = overlapping()
    names = np.array(["ash", "hue", "proline"])
    return make_pipeline(StandardScaler(), ilsvm(5)).fit(X, y), X, y, {"feature_names": names}


def _two_classes():
    X, y = digits(n_classes=2)
    return ilsvm(5).fit(X, y == 1), X, y == 1, {}


def _unsupervised():
    X, _ = digits()
    return ibp(6).fit(X), X, None, {"image_shape": (8, 8)}


def _text():
    X, y = overlapping(120)
    counts = np.abs(np.round(3 * X))
    documents = [f"document {i} about ash and hue" for i in range(len(X))]
    return ilsvm(5).fit(counts, y), counts, y, {"texts": documents, "feature_names": ["ash", "hue", "proline"]}


def _topics():
    rng = np.random.default_rng(0)
    words = ["ball", "goal", "law", "vote", "with"]
    rates = np.array([[4, 4, 0.2, 0.2, 9], [0.2, 0.2, 4, 4, 9]])
    sport = rng.uniform(size=60)
    counts = scipy.sparse.csr_array(rng.poisson(np.column_stack([sport, 1 - sport]) @ rates))
    model = MedLDARegressor(3, max_iter=20, random_state=0).fit(counts, sport)
    return model, counts, sport, {"texts": ["ball and law"] * 60, "feature_names": words}


def _labels():
    X, Y = labels(n_rows=90, n_tasks=5)
    return classifier().fit(X, holes(Y)), X, holes(Y), {"target_names": ["sea", "sky", "sun", "tree", "town"]}


def _groups():
    X, y, task = groups()
    return regressor().fit(X, y, task=task), X, y, {"task": task}


def _group_labels():
    X, y, task = groups()
    answer = np.where(y > np.median(y), "yes", "no")
    return classifier().fit(X, answer, task=task), X, answer, {"task": task}


def _numbers():
    X, Y = numbers(n_rows=90)
    return regressor().fit(X, holes(Y)), X, holes(Y), {}


FITS = {
    "images": _images,
    "table": _table,
    "two classes": _two_classes,
    "unsupervised": _unsupervised,
    "text": _text,
    "topics": _topics,
    "labels": _labels,
    "groups": _groups,
    "labels of groups": _group_labels,
    "numbers": _numbers,
}

"""Test the code of docs/how_sure.md and the coverage of its prediction sets."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mapie")

PAGE = (Path(__file__).parents[2] / "docs" / "how_sure.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found():
    """Run the code of the page and return its variables by name."""
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)), names)
    return names


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_prediction_sets_have_nominal_coverage(found):
    # Coverage given the calibration set is beta distributed with mean 0.9; the bound is five standard deviations.
    n = len(found["y_conform"])
    assert n > 100
    for coverage in (found["holds_truth"], found["inside"]):
        assert abs(coverage - 0.9) < 5 * np.sqrt(0.9 * 0.1 * 2 / n)
    assert 0.8 < found["size"] < 3


def test_prediction_sets_match_split_conformal(found):
    # Split conformal: classes whose score 1 - p is at most the corrected quantile of the calibration scores.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    _, X_rest, _, y_rest = train_test_split(X / 16, y, train_size=600, stratify=y, random_state=0)
    rows, new, truth, _ = train_test_split(X_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0)
    scores = 1 - found["search"].predict_proba(rows)[np.arange(len(truth)), truth]
    cut = np.sort(scores)[int(np.ceil((len(truth) + 1) * 0.9)) - 1]
    by_hand = 1 - found["search"].predict_proba(new) <= cut
    np.testing.assert_array_equal(found["sets"][:, :, 0], by_hand)

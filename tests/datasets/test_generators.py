"""Data drawn from the priors: what they are made of is what they say."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.datasets import make_ibp_classification, make_ibp_multitask
from regbayes.datasets.generators import draw_indian_buffet


def test_the_indian_buffet_has_the_expected_use():
    alpha, n_components = 3.0, 6
    rng = np.random.default_rng(0)
    use = np.mean([draw_indian_buffet(50, n_components, alpha, rng)[0].mean(axis=0) for _ in range(4000)], axis=0)
    # E pi_k is a product of k means of Beta(alpha, 1).
    np.testing.assert_allclose(use, (alpha / (alpha + 1)) ** np.arange(1, n_components + 1), atol=0.015)


def test_classes_follow_from_the_features():
    found = make_ibp_classification(200, 12, n_classes=4, noise=0.0, label_noise=0.0, random_state=0)
    np.testing.assert_allclose(found.data, found.features @ found.components)
    assert set(np.unique(found.target)) <= {0, 1, 2, 3}
    rows = {tuple(z): label for z, label in zip(found.features.tolist(), found.target.tolist(), strict=True)}
    assert all(rows[tuple(z)] == label for z, label in zip(found.features.tolist(), found.target, strict=True))


def test_tasks_share_their_features():
    found = make_ibp_multitask(150, 10, 5, noise=0.0, random_state=1)
    scores = found.data @ found.features @ found.coef.T
    np.testing.assert_allclose(found.target, scores / scores.std(axis=0))
    classes = make_ibp_multitask(150, 10, 5, noise=0.0, classes=True, missing=0.3, random_state=1)
    seen = ~np.isnan(classes.target)
    assert 0.6 < seen.mean() < 0.8
    np.testing.assert_array_equal(classes.target[seen], (found.target > np.median(found.target, axis=0))[seen])


@pytest.mark.parametrize("make", [make_ibp_classification, make_ibp_multitask])
def test_a_seed_is_a_data_set(make):
    one, same, other = make(random_state=3), make(random_state=3), make(random_state=4)
    np.testing.assert_array_equal(one.data, same.data)
    np.testing.assert_array_equal(one.target, same.target)
    assert not np.array_equal(one.data, other.data)


@pytest.mark.parametrize(("option", "value"), [("n_samples", 0), ("alpha", -1.0), ("noise", -0.1), ("missing", 1.0)])
def test_bad_options_are_named(option, value):
    with pytest.raises(ValueError, match=f"'{option}' parameter"):
        make_ibp_multitask(**{option: value})

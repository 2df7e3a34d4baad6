"""Row work by array operations against the NumPy code, on every array library that is installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from array_namespaces import Place, list_places
from reference.binary import reference_reverse_features, reference_sweep_features
from regbayes.kernels import arrays, arrays_atoms, arrays_losses, binary
from regbayes.kernels.arrays import to_host
from regbayes.kernels.arrays_losses import ClassRows, HingeRows, TubeRows
from regbayes.margins.device import DeviceBlock, DeviceColumns, DeviceInputs
from regbayes.margins.head import Columns, MarginHead
from regbayes.margins.newton import SimplexBlock
from regbayes.margins.targets import Classes, Numbers, Signs, zero_one_cost
from regbayes.regularization.log_partition import WeightedAtoms
from row_boxes import RowBoxes

PLACES = list_places()


@pytest.fixture(params=PLACES, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found), dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= tol * max(1.0, np.abs(expected).max(initial=0.0))


# --- sweeps


@pytest.mark.parametrize("n_sweeps", [1, 3])
@pytest.mark.parametrize("K", [1, 9, 23])
def test_sweep_and_its_reverse_match_the_reference(place: Place, n_sweeps: int, K: int) -> None:
    rng = np.random.default_rng(K)
    theta, grad = rng.normal(size=(2, 57, K)) * 2
    coupling, start = rng.normal(size=(K, K)), rng.random((1, K))
    psi, by_theta = np.empty_like(theta), np.empty_like(theta)
    reference_sweep_features(theta, coupling, start, n_sweeps, psi)
    expected = reference_reverse_features(grad, psi, theta, coupling, start, n_sweeps, by_theta)

    found = binary.sweep_features(place(theta.T).T, coupling, start, n_sweeps)
    assert_close(found, psi, place.tol)
    given = place(theta.T).T if n_sweeps > 1 else None
    sums = binary.reverse_features(place(grad.T).T, found, given, coupling, start, n_sweeps)
    assert_close(sums.theta, by_theta, place.tol)
    assert_close(sums.coupling, expected.coupling, place.tol)
    assert_close(sums.theta_sum, expected.theta_sum, place.tol)


def test_sweeps_of_extreme_logits_are_zero_and_one(place: Place) -> None:
    logits, none = place(np.array([[-2000.0], [2000.0], [0.0]])), np.zeros((1, 1))
    psi = binary.sweep_features(logits, none, none, 1)
    assert_close(psi, [[0.0], [1.0], [0.5]], 1e-15)
    sums = binary.sum_features(psi, logits, None)
    assert sums.entropy == pytest.approx(np.log(2.0), rel=10 * place.tol)
    assert sums.by_theta == 2000.0


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_features_are_those_of_numpy(place: Place, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    psi, theta = rng.random((13, 40)), rng.normal(size=(13, 40))
    psi[0, :3] = 0.0, 1.0, 1e-300  # 0 log 0 = 0
    weights = rng.random(40) if weighted else np.ones(40)
    found = binary.sum_features(place(psi).T, place(theta).T, place(weights) if weighted else None)
    assert_close(found.counts, psi @ weights, place.tol)
    assert_close(found.gram, (psi * weights) @ psi.T, place.tol)
    assert found.by_theta == pytest.approx(float(np.sum(psi * theta * weights)), abs=100 * place.tol)
    inner = psi[(psi > 1e-200) & (psi < 1)]
    counts = np.broadcast_to(weights, psi.shape)[(psi > 1e-200) & (psi < 1)]
    entropy = -np.sum(counts * (inner * np.log(inner) + (1 - inner) * np.log(1 - inner)))
    assert found.entropy == pytest.approx(entropy, rel=10 * place.tol)


def test_single_precision_sums_are_taken_in_pieces() -> None:
    n = 3 * arrays.PIECE + 5
    left, right = np.ones((1, n), dtype=np.float32), np.full((1, n), 0.1, dtype=np.float32)
    found = arrays.multiply_rows(left, right)
    assert found.dtype == np.float64
    assert float(found[0, 0]) == pytest.approx(n * float(np.float32(0.1)), rel=1e-5)


@pytest.mark.parametrize("n", [3, 8, 16, 29])
@pytest.mark.parametrize("room", [1, 15, 1000])
def test_products_over_rows_are_sums_of_pieces(
    place: Place, n: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "PIECE", 8)
    monkeypatch.setattr(arrays, "ROOM", room)
    rng = np.random.default_rng(n)
    left, rows = rng.normal(size=(3, n)), rng.normal(size=(n, 5))
    found = arrays.multiply_rows(place(left), place(rows).T)
    assert str(found.dtype).endswith("float64")
    assert_close(found, left @ rows, place.tol)


# --- margins


def head_case(kind: str, with_inputs: bool, rng: np.random.Generator):
    """Return a block of NumPy's, the same rows as the device takes them, and weights to look at."""
    n, K, L, D = 83, 6, 4, 3
    features, X = rng.random((n, K)), rng.normal(size=(n, D))
    labels, C = rng.integers(L, size=n), rng.random(n) + 0.5
    C[:5] = 0.0
    centre, mean, factor, scale = features.mean(axis=0), X.mean(axis=0), 0.7, 1.3
    inputs = factor * (X - mean) if with_inputs else None
    columns = Columns(features, centre, inputs, True, scale)
    cost = zero_one_cost(L) * (rng.integers(1, 4, size=(L, L)) if kind == "costs" else 1.0)
    values = rng.normal(size=(n, L))
    targets = {
        "ovr": Classes(labels, cost, C).one_vs_rest(),
        "signs": Signs(np.sign(values), np.outer(C, np.arange(1.0, L + 1))),
        "tube": Numbers(values, np.outer(C, np.ones(L)), 0.3),
        "numbers": Numbers(values, np.outer(C, np.ones(L)), 0.0),
    }.get(kind, Classes(labels, cost, C))
    head = MarginHead(targets, squared=True)
    host = (
        SimplexBlock(columns, head.form, labels, 0.1) if kind in ("classes", "costs") else RowBoxes(columns, head.form)
    )

    def there(place: Place) -> DeviceBlock:
        seen = DeviceInputs(place(X), mean, factor) if with_inputs else None
        rows = {
            "ovr": lambda: HingeRows(place(C), labels=place(labels)),
            "signs": lambda: HingeRows(place(targets.C.T), signs=place(targets.signs.T)),
            "tube": lambda: TubeRows(place(targets.C.T), place(values.T), 0.3),
            "numbers": lambda: TubeRows(place(C), place(values.T), 0.0),
            "classes": lambda: ClassRows(place(C), place(labels), None, 0.1),
            "costs": lambda: ClassRows(place(C), place(labels), place(cost[labels].T), 0.1),
        }[kind]()
        return DeviceBlock(DeviceColumns(place(features.T), centre, seen, True, scale), rows)

    weights = rng.normal(size=(2, L, K + (D if with_inputs else 0) + 1))
    return host, there, weights


@pytest.mark.parametrize("with_inputs", [False, True])
@pytest.mark.parametrize("kind", ["ovr", "signs", "tube", "numbers", "classes", "costs"])
def test_blocks_on_a_device_match_the_blocks_of_numpy(place: Place, kind: str, with_inputs: bool) -> None:
    host, there, (weights, direction) = head_case(kind, with_inputs, np.random.default_rng(3))
    block = there(place)
    assert len(block) == len(host.features)
    assert block.mixes == host.mixes
    expected, found = host.sums(weights), block.sums(weights)
    scale = 10.0 * abs(expected.loss)
    for name in ("loss", "excess", "bias"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=place.tol * scale)
    assert_close(found.pulled, expected.pulled, 10 * place.tol)
    assert_close(block.multipliers(weights), host.multipliers(weights).T, 10 * place.tol)
    assert_close(block.curvature(weights), host.curvature(weights), 10 * place.tol)
    assert_close(block.product(weights, direction), host.product(weights, direction), 10 * place.tol)
    eased, eased_host = block.ease(), host.ease()
    assert len(eased) == len(eased_host)
    for one, other in zip(eased[::3], eased_host[::3], strict=True):
        assert_close(one.sums(weights).pulled, other.sums(weights).pulled, 10 * place.tol)


@pytest.mark.parametrize("kind", ["ovr", "signs", "tube", "numbers", "classes", "costs"])
def test_a_constant_is_added_and_multipliers_say_where_losses_bend(place: Place, kind: str) -> None:
    host, there, (weights, direction) = head_case(kind, False, np.random.default_rng(8))
    block, tol = there(place), 10 * place.tol
    columns, rows = block.columns, block.rows
    scores, change = (to_host(columns.scores(w)).astype(np.float64) for w in (weights, direction))
    constant = np.arange(len(scores)) - 1.0
    seen = rows.evaluate(place(scores - constant[:, None]), place(constant))
    assert_close(seen.multipliers, host.multipliers(weights).T, tol)
    assert_close(seen.totals, host.multipliers(weights).sum(axis=0), tol)
    assert str(seen.totals.dtype).endswith("float64")
    bent = rows.multiply_curvature(place(change - constant[:, None]), seen.multipliers, place(constant))
    assert_close(columns.combine(bent.coefficients), host.product(weights, direction), tol)
    assert_close(bent.totals, np.asarray(to_host(bent.coefficients), np.float64).sum(axis=1), tol)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (50,), (3, 50)])
def test_signs_of_a_byte_are_zero_where_nothing_is_asked(place: Place, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(9)
    signs, C, scores = rng.integers(-1, 2, size=(3, 50)), rng.random(shape) + 0.5, rng.normal(size=(3, 50))
    small, wide = HingeRows(place(C), signs=place(signs.astype(np.int8))), place(C * np.abs(signs))
    dense = HingeRows(wide, signs=place(signs.astype(np.float64)))
    found, expected = (rows.evaluate(place(scores.copy())) for rows in (small, dense))  # scores may be overwritten
    for one, other in zip(found, expected, strict=True):
        assert_close(one, to_host(other), 10 * place.tol)
    change = rng.normal(size=(3, 50))
    bent, wanted = (rows.multiply_curvature(place(change.copy()), expected.multipliers) for rows in (small, dense))
    assert_close(bent.coefficients, to_host(wanted.coefficients), place.tol)


def test_losses_at_scores_that_are_not_numbers_are_not_numbers(place: Place) -> None:
    labels, ones = place(np.array([1, 1])), place(np.ones(2))
    for rows in (HingeRows(ones, labels=labels), ClassRows(ones, labels, None, 0.1)):
        scores = place(np.array([[0.0, np.nan], [1.0, 2.0], [0.5, 0.1]]))
        assert np.isnan(float(to_host(rows.evaluate(scores).loss)))


def test_curvature_of_many_weights_has_its_diagonal_blocks(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    for module in ("margins.newton", "margins.device"):
        monkeypatch.setattr(f"regbayes.{module}.MAX_DENSE", 1)
    monkeypatch.setattr(arrays_losses, "ROOM", 600)  # an output at a time
    host, there, (weights, _) = head_case("costs", True, np.random.default_rng(4))
    assert_close(there(place).curvature(weights), host.curvature(weights), 10 * place.tol)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.001])
def test_smoothed_multipliers_are_those_found_by_sorting(place: Place, smoothing: float) -> None:
    host, there, (weights, _) = head_case("costs", False, np.random.default_rng(5))
    block = there(place)
    block = replace(block, rows=replace(block.rows, smoothing=smoothing))
    tol = place.tol / min(smoothing, 0.1)
    assert_close(block.multipliers(weights), replace(host, smoothing=smoothing).multipliers(weights).T, 10 * tol)


# --- atoms


def test_sums_of_atoms_give_the_log_partition(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_atoms, "ROOM", 100)  # several pieces
    rng = np.random.default_rng(6)
    features, phi = rng.normal(size=(200, 3)), rng.normal(size=3)
    log_weights = rng.normal(size=200)
    log_weights -= np.logaddexp.reduce(log_weights)
    host = WeightedAtoms(features, log_weights)
    logs = place.make(log_weights)
    sums = arrays_atoms.sum_atoms(place(features), logs, phi, host.mean, True)
    assert sums.top + np.log(sums.total) == pytest.approx(host.evaluate(phi)[0], rel=10 * place.tol)
    away = sums.first / sums.total
    assert_close(host.mean + away, host.evaluate(phi)[1], 10 * place.tol)
    assert_close(sums.second / sums.total - np.outer(away, away), host.covariance(phi), 10 * place.tol)

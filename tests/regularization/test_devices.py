"""`regularize` on arrays on a device agrees with NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest

import regbayes
from array_namespaces import Place, list_places
from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes.kernels import arrays
from regbayes.regularization.log_partition import WeightedAtoms
from regbayes.regularizers import Equal

PLACES = [place for place in list_places() if place.name not in ("numpy",)]


@pytest.fixture(params=PLACES, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    # Arrays that NumPy can read stand for arrays on a GPU.
    monkeypatch.setattr(arrays, "lies_elsewhere", lambda array: not arrays.is_plain(array))
    return request.param


def make_draws(n: int = 2000, m: int = 4) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, m)) @ rng.normal(size=(m, m)) + rng.normal(size=m)).astype(np.float32).astype(float)


def constrain(draws: np.ndarray):
    means, spread = draws.mean(axis=0), draws.std(axis=0)
    aims = means + 0.1 * spread
    return [E(lambda x: x[:, :2]) == aims[:2], E(lambda x: x[:, 2]) <= float(means[2] - 0.05 * spread[2])]


def test_samples_on_device_agree_with_numpy(place: Place) -> None:
    draws = make_draws()
    here = regularize(Samples(draws), constrain(draws))
    there = regularize(Samples(place(draws)), constrain(draws))
    assert here.status == there.status
    np.testing.assert_allclose(there.multipliers, here.multipliers, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(there.after, here.after, rtol=1e-9)
    assert there.kl == pytest.approx(here.kl, rel=1e-8)
    assert there.gap <= 1e-8
    assert isinstance(there.features.values, type(place(draws)))  # arrays with one row per draw stay on the device
    for ask in (lambda x: x[:, 3], lambda x: x[:, 3] * x[:, 0]):
        assert float(there.expectation(ask)) == pytest.approx(float(here.expectation(ask)), rel=1e-6)
        np.testing.assert_allclose(there.sd(ask), here.sd(ask), rtol=1e-5)
        np.testing.assert_allclose(there.mcse(ask), here.mcse(ask), rtol=1e-4)
        np.testing.assert_allclose(there.interval(ask), here.interval(ask), rtol=1e-5)
    np.testing.assert_allclose(there.multipliers_mcse, here.multipliers_mcse, rtol=1e-5)
    assert "optimal" in there.summary()
    assert isinstance(there.sample(0, 7), type(place(draws)))
    np.testing.assert_allclose(arrays.to_host(there.sample(0, 7)), here.sample(0, 7), rtol=1e-6)


def test_torch_sparse_raises_and_gradients_are_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse draws and scalars raise; draws that require gradients are detached."""
    torch = pytest.importorskip("torch")
    draws = torch.asarray(make_draws(200))
    here = regularize(Samples(draws), [E(lambda x: x[:, 0]) >= 1.0])
    for elsewhere in (False, True):
        if elsewhere:
            monkeypatch.setattr(arrays, "lies_elsewhere", lambda array: not arrays.is_plain(array))
        there = regularize(Samples(draws.clone().requires_grad_()), [E(lambda x: x[:, 0]) >= 1.0])
        np.testing.assert_allclose(there.multipliers, here.multipliers, rtol=1e-8)
        assert not getattr(there.features.values, "requires_grad", False)
        with pytest.raises(TypeError, match="sparse; give it as a dense"):
            Samples(draws.to_sparse())
    with pytest.raises(TypeError, match=r"single number on cpu; it may be an array of shape"):
        regularize(Samples(draws), [E(lambda x: x.mean()) >= 1.0])


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
def test_named_draws_weights_and_events_on_device(place: Place) -> None:
    draws = make_draws()
    log_weights = np.random.default_rng(1).normal(size=len(draws))
    log_weights[:7] = -np.inf
    named = {"mu": draws[:, 0], "theta": draws[:, 1:]}
    asked = [E("mu") == float(draws[:, 0].mean()), E("theta")[1] <= float(draws[:, 2].mean())]
    asked.append(E("mu").given(lambda v: v["theta"][:, 0] > 0) >= float(draws[:, 0].mean() - 0.1))
    here = regularize(Samples(named, log_weights), asked)
    there = regularize(Samples({name: place(values) for name, values in named.items()}, place.make(log_weights)), asked)
    np.testing.assert_allclose(there.multipliers, here.multipliers, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there.posterior.weights, here.posterior.weights, rtol=1e-6, atol=1e-15)


def test_finite_and_gaussian_on_device_agree_with_numpy(place: Place) -> None:
    faces = np.arange(1.0, 7.0)
    here, there = (
        regularize(Finite(models, log_weights=weights), E(lambda x: x) == 4.5)
        for models, weights in ((faces, np.zeros(6)), (place(faces), place.make(np.zeros(6))))
    )
    assert there.multipliers[0] == pytest.approx(here.multipliers[0], rel=1e-10)
    mean, covariance, F = np.ones(3), np.diag([1.0, 2.0, 3.0]), np.eye(3)[:2]
    here = regularize(Gaussian(mean, covariance), F, Equal(np.zeros(2)))
    there = regularize(Gaussian(place(mean), place(covariance)), place(F), Equal(np.zeros(2)))
    np.testing.assert_allclose(there.multipliers, here.multipliers, rtol=1e-10)


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_log_partition_on_device_agrees_with_numpy(place: Place, far: float) -> None:
    draws = (make_draws() + far).astype(np.float32).astype(float)  # a large offset cancels most digits
    logs = np.full(len(draws), -np.log(len(draws)))
    here, there = WeightedAtoms(draws, logs), WeightedAtoms(place(draws), logs)
    phi = np.array([0.1, -0.2, 0.05, 0.0])
    tol = 1e-10 * (1.0 + far)
    assert there.evaluate(phi)[0] == pytest.approx(here.evaluate(phi)[0], abs=tol)
    np.testing.assert_allclose(there.evaluate(phi)[1], here.evaluate(phi)[1], atol=tol)
    np.testing.assert_allclose(there.covariance(phi), here.covariance(phi), atol=1e-9 * (1.0 + far) ** 0.5)
    assert there.span(phi) == pytest.approx(here.span(phi), abs=tol)
    np.testing.assert_allclose(there.tilt(phi)[0], here.tilt(phi)[0], atol=tol)
    blocks = np.arange(4)
    moved, wanted = there.standardized(blocks), here.standardized(blocks)
    assert (moved is None) == (wanted is None)
    if moved is not None and wanted is not None:
        np.testing.assert_allclose(moved[1], wanted[1], rtol=1e-12)
        np.testing.assert_allclose(moved[0].covariance(np.zeros(4)), wanted[0].covariance(np.zeros(4)), rtol=1e-8)


def test_invalid_draws_on_device_raise(place: Place) -> None:
    draws = make_draws()
    with pytest.raises(TypeError, match="one kind on one device"):
        regularize(Samples(place(draws)), [E(lambda x: x[:, 0]) == 0.0, E(draws[:, 1]) == 0.0])
    bad = draws.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="1 NaN or infinite"):
        Samples(place(bad))


def test_infeasible_and_boundary_problems_on_device(place: Place, tmp_path) -> None:
    draws = make_draws()
    with pytest.raises(regbayes.InfeasibleError, match="cannot be met"):
        regularize(Samples(place(draws)), E(lambda x: x[:, 0]) == 1e3)
    edge = regularize(Finite(place(np.arange(1.0, 7.0))), E(lambda x: x) >= 6.0)  # copies features to the host
    assert edge.status == "boundary"
    np.testing.assert_allclose(edge.posterior.weights, [0, 0, 0, 0, 0, 1.0], atol=1e-12)
    edge.save(tmp_path / "edge")
    assert isinstance(regbayes.load(tmp_path / "edge").posterior.draws.variables["x"], np.ndarray)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_simplex_shares_on_device_are_optimal(place: Place, dtype: str) -> None:
    """The shares sum to one, so that one constraint is redundant up to rounding."""
    shares = np.random.default_rng(0).dirichlet([2.0, 3.0, 4.0], size=3000).astype(dtype)
    wanted = E("share") == [0.25, 0.35, 0.4]
    here, there = (regularize(Samples({"share": held}), [wanted]) for held in (shares, place(shares)))
    assert here.status == there.status == "optimal"
    np.testing.assert_allclose(there.multipliers, here.multipliers, rtol=1e-6)
    assert there.multipliers[2] == 0.0


def test_out_of_memory_error_reports_number_of_draws(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        """Named like the exceptions of PyTorch and CuPy."""

    def fail(*_: object) -> None:
        raise OutOfMemoryError

    draws = make_draws(200)
    size = 4 if "single" in place.name else 8
    monkeypatch.setattr("regbayes.regularization.posteriors.weighted.free_bytes", lambda _: 200 * 4 * size)
    monkeypatch.setattr(WeightedAtoms, "_moments", fail)
    with pytest.raises(MemoryError, match=r"does not hold 200 draws .*About 133 such draws fit.*copy them to the host"):
        regularize(Samples(place(draws)), constrain(draws))

"""`regularize` with draws on a cluster agrees with draws in memory."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import regbayes
from dask_tools import cut, quiet_marks
from regbayes import E, InfeasibleError, UnreliableWeightsWarning, regularize
from regbayes.dask import Samples
from regbayes.dask.draws import BlockAtoms
from regbayes.kernels import arrays
from regbayes.regularization.log_partition import WeightedAtoms

N = 3000
CUTS = (1, 1200, 0, 999, 800)

pytestmark = quiet_marks()


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=N)
    return {"mu": mu, "theta": 0.5 * mu[:, None] + rng.normal(size=(N, 3)), "tau": rng.gamma(3.0, size=N)}


def positive(mu):
    return mu > 0


CONSTRAINTS = {
    "bound": E("mu") >= 0.3,
    "several": [E("theta") == np.array([0.1, -0.2, 0.05]), (E("tau") <= 2.5).soft(3.0), E(positive) >= 0.55],
    "functions": [E(lambda v: v["mu"] * v["tau"]).between(0.1, 0.4), E(lambda mu, tau: mu / tau) == 0.05],
    "picked": [E("theta")[1] >= 0.2, E(lambda tau: tau).given(lambda mu: mu > 0) == 2.8],
    "far": [E(lambda mu: 1e7 + mu) == 1e7 + 0.2, E(lambda tau: 1e30 * tau) <= 2.9e30],
    "a ball": E("theta").within(0.05, of=[0.1, 0.1, 0.1]),
    "many": E(lambda mu: np.cos(np.outer(mu, np.arange(1, 21)))) <= 0.05,
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_solution_matches_draws_in_memory(client, draws, name, weighted):
    log_weights = None
    if weighted:
        log_weights = np.random.default_rng(1).normal(size=N)
        log_weights[:50] = -np.inf
    lazy = {key: cut(values, CUTS) for key, values in draws.items()}
    there = Samples(lazy, None if log_weights is None else cut(log_weights, CUTS))
    here = regbayes.Samples(draws, log_weights, chains=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableWeightsWarning)
        found, expected = (regularize(posterior, CONSTRAINTS[name]) for posterior in (there, here))
    assert found.labels == expected.labels
    assert found.status is expected.status
    unit = here.sd(expected.features)  # scale of multipliers and expectations
    np.testing.assert_allclose(found.multipliers * unit, expected.multipliers * unit, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.after / unit, expected.after / unit, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.before / unit, expected.before / unit, rtol=1e-10, atol=1e-10)
    assert found.kl == pytest.approx(expected.kl, rel=1e-8, abs=1e-10)
    others = found.expectation(["mu", "tau"]), expected.expectation(["mu", "tau"])
    np.testing.assert_allclose(*others, rtol=1e-8, atol=1e-8)
    assert np.all(np.isnan(found.after_mcse))


@pytest.fixture
def elsewhere(monkeypatch):
    """Cluster in this process, where PyTorch tensors stand for GPU arrays."""
    monkeypatch.setattr(arrays, "lies_elsewhere", lambda array: not arrays.is_plain(array))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def cut_there(array, others=()):
    """Blocks of an array as tensors, some converted by other functions."""
    torch = pytest.importorskip("torch")

    def make(block, block_info=None):
        place = block_info[0]["chunk-location"][0]
        return dict(others).get(place, lambda tensor: tensor)(torch.asarray(np.array(block)))

    return cut(array, CUTS).map_blocks(make, dtype=array.dtype, meta=array[:0])


ON_DEVICES = [
    [E("mu") >= 0.3],
    [E("theta") == np.array([0.1, -0.2, 0.05]), (E("tau") <= 2.5).soft(3.0), E(positive) >= 0.55],
    [E("theta")[1] >= 0.2, E(lambda mu, tau: mu / tau) == 0.05],
    [E(lambda mu: 1e7 + mu) == 1e7 + 0.2],
]


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
@pytest.mark.parametrize("constraints", ON_DEVICES)
@pytest.mark.parametrize("weighted", [False, True])
def test_draws_on_gpu_stay_on_gpu(elsewhere, draws, monkeypatch, constraints, weighted):
    log_weights = 0.5 * np.random.default_rng(1).normal(size=N) if weighted else None
    there = Samples(
        {key: cut_there(values) for key, values in draws.items()}, None if not weighted else cut_there(log_weights)
    )
    here = regbayes.Samples(draws, log_weights, chains=False)
    # Problems at a face of the support, or that stall, evaluate features on the CPU.
    monkeypatch.setattr(
        WeightedAtoms, "features", property(lambda atoms: pytest.fail("features were read to the host"))
    )
    found, expected = (regularize(posterior, constraints) for posterior in (there, here))
    assert found.status is expected.status
    unit = here.sd(expected.features)
    np.testing.assert_allclose(found.multipliers * unit, expected.multipliers * unit, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.after / unit, expected.after / unit, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.before / unit, expected.before / unit, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.expectation("tau"), expected.expectation("tau"), rtol=1e-8)
    np.testing.assert_allclose(found.posterior.log_weights, expected.posterior.log_weights, rtol=1e-6, atol=1e-6)
    drawn = found.sample(0, 500)
    assert all(isinstance(values, np.ndarray) for values in drawn.values())
    assert np.isin(drawn["mu"], draws["mu"]).all()


def test_draws_of_several_array_kinds_raise(elsewhere, draws):
    mixed = Samples(cut_there(draws["mu"], [(3, np.asarray)]))
    with pytest.raises(TypeError, match=r"features has blocks of numpy and of torch\.float64"):
        regularize(mixed, E(lambda x: x) >= 0.1)
    half = Samples(cut_there(draws["mu"], [(3, lambda tensor: tensor.half())]))
    with pytest.raises(TypeError, match=r"float16.*give it as float32 or float64"):
        regularize(half, E(lambda x: x) >= 0.1)


def test_log_partition_and_covariance_match_whole_draws(client, draws):
    features = np.column_stack([draws["mu"], draws["theta"]])
    there = Samples(cut(features, CUTS))
    atoms = there.bind(there.evaluate(lambda x: x))
    assert isinstance(atoms, BlockAtoms)
    here = WeightedAtoms(features, np.full(N, -np.log(N)))
    np.testing.assert_allclose(atoms.unit, here.unit, rtol=1e-12)
    np.testing.assert_array_equal(atoms.lowest, here.lowest)
    for phi in (np.zeros(4), np.array([0.5, -1.0, 2.0, 0.1]), np.array([30.0, 0.0, -20.0, 9.0])):
        assert atoms.evaluate(phi)[0] == pytest.approx(here.evaluate(phi)[0], rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(atoms.evaluate(phi)[1], here.evaluate(phi)[1], rtol=1e-11)
        np.testing.assert_allclose(atoms.covariance(phi), here.covariance(phi), rtol=1e-9, atol=1e-11)


def test_features_may_be_dask_arrays(client, draws):
    lazy = Samples({"mu": cut(draws["mu"], CUTS)})
    features = cut(draws["theta"], (1500, 1500))  # chunks differ from those of the draws
    found = regularize(lazy, [E(features) >= 0.1, E([lambda mu: mu**2, features[:, 0]]) <= [1.2, 0.5]])
    here = regbayes.Samples({"mu": draws["mu"]})
    theta = draws["theta"]
    expected = regularize(here, [E(theta) >= 0.1, E([lambda mu: mu**2, theta[:, 0]]) <= [1.2, 0.5]])
    np.testing.assert_allclose(found.multipliers, expected.multipliers, atol=1e-9)
    np.testing.assert_allclose(found.after, expected.after, atol=1e-10)


def test_distant_constraint_is_unreliable(client, draws):
    lazy, here = Samples(cut(draws["mu"], CUTS)), regbayes.Samples(draws["mu"])
    found = []
    for posterior in (lazy, here):
        with pytest.warns(UnreliableWeightsWarning, match="The draws are unreliable"):
            found.append(regularize(posterior, E(lambda x: x) >= 2.8))
    np.testing.assert_allclose(found[0].posterior.log_weights, found[1].posterior.log_weights, rtol=1e-8)
    assert lazy.pareto_k == -np.inf
    assert lazy.effective_sample_size == pytest.approx(N)


def test_sample_resamples_by_weight(client, draws):
    result = regularize(Samples({key: cut(values, CUTS) for key, values in draws.items()}), E("mu") >= 0.5)
    drawn = result.sample(0, 4000)
    assert drawn["theta"].shape == (4000, 3)
    assert drawn["mu"].mean() == pytest.approx(0.5, abs=5 / np.sqrt(4000))
    place = np.searchsorted(np.sort(draws["mu"]), drawn["mu"])
    np.testing.assert_array_equal(draws["theta"][np.argsort(draws["mu"])[place]], drawn["theta"])  # rows stay together
    with pytest.raises(TypeError, match="one place"):
        result.interval("mu")


def test_invalid_draws_raise(client, draws):
    mu = cut(draws["mu"], CUTS)
    with pytest.raises(TypeError, match=r"regbayes\.Samples"):
        Samples(draws["mu"])
    with pytest.raises(ValueError, match="tau has 2000"):
        Samples({"mu": mu, "tau": cut(draws["tau"], CUTS)[:2000]})
    with pytest.raises(InfeasibleError, match="cannot be met"):
        regularize(Samples(mu), E(lambda x: x) >= 10.0)
    with pytest.raises(ValueError, match="no draw any weight"):
        regularize(Samples(mu, da.full(N, -np.inf)), E(lambda x: x) >= 0.1)
    with pytest.raises(ValueError, match=r"NaN or \+inf in block"):
        regularize(Samples(mu, da.full(N, np.nan)), E(lambda x: x) >= 0.1)
    with pytest.raises(ValueError, match="'nu'"):
        regularize(Samples({"mu": mu}), E("nu") >= 0.1)
    holes = mu.map_blocks(lambda block: np.where(block > 1, np.nan, block), dtype=float)
    with pytest.raises(ValueError, match="NaN or infinite"):
        regularize(Samples(holes), E(lambda x: x) >= 0.1)

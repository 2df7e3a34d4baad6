"""Regularized SVI: exact answers for Gaussians and linear classifiers, margins in batches, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from regbayes import E, Gaussian, regularize
from regbayes.margins.head import MarginHead, Tolerance
from regbayes.margins.targets import Classes, Signs, zero_one_cost
from regbayes.ppl import EachRow, RegularizedELBO
from regbayes.regularizers import KL, Ball, Equal, Hinge, MultiClassHinge, MultiClassSquaredHinge, Ridge, Shifted

pytestmark = pytest.mark.numpyro


@pytest.fixture(autouse=True)
def _x64():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)  # not jax.enable_x64, which callbacks in other threads do not see
    yield
    jax.config.update("jax_enable_x64", before)


def sample(name, distribution, *parameters, **options):
    import numpyro
    from numpyro import distributions as dist

    return numpyro.sample(name, getattr(dist, distribution)(*parameters, **options))


def param(name, start, constraint=None):
    import jax.numpy as jnp
    import numpyro

    options = {} if constraint is None else {"constraint": constraint}
    return numpyro.param(name, jnp.asarray(start, dtype=float), **options)


def mean_field():
    from numpyro.infer import TraceMeanField_ELBO

    return TraceMeanField_ELBO()


def descend(loss, model, guide, *args, tol=1e-12, **kwargs):
    """Minimise the loss over the guide's parameters by L-BFGS, through SVI's own view of them; return them."""
    import jax
    from jax.flatten_util import ravel_pytree
    from numpyro.infer import SVI
    from numpyro.optim import Adam

    svi = SVI(model, guide, Adam(0.1), loss)
    state = svi.init(jax.random.key(0), *args, **kwargs)
    start, unravel = ravel_pytree(svi.optim.get_params(state.optim_state))

    @jax.jit
    def value_and_gradient(flat):
        return jax.value_and_grad(
            lambda flat: loss.loss(jax.random.key(1), svi.constrain_fn(unravel(flat)), model, guide, *args, **kwargs)
        )(flat)

    def function(flat):
        value, gradient = value_and_gradient(flat)
        return float(value), np.asarray(gradient, dtype=float)

    found = minimize(function, start, jac=True, method="L-BFGS-B", options={"ftol": tol, "gtol": 1e-9, "maxiter": 2000})
    return svi.constrain_fn(unravel(found.x)), found.fun


MEAN = np.array([1.0, -1.0, 0.5])
COVARIANCE = np.array([[1.5, 0.4, -0.3], [0.4, 1.0, 0.2], [-0.3, 0.2, 0.8]])


def gaussian_model():
    sample("theta", "MultivariateNormal", MEAN, COVARIANCE)


def gaussian_guide():
    from numpyro.distributions import constraints

    sample(
        "theta",
        "MultivariateNormal",
        param("loc", np.zeros(3)),
        scale_tril=param("tril", np.eye(3), constraints.lower_cholesky),
    )


def constraints_on(total, last, every):
    return [
        (E(total) >= 2.0).soft(3.0),
        (E(last) <= 0.0).soft(0.7, power=2),
        E(every).regularized(Ball([1.0, 0.0, 0.0], 0.1, 2, C=0.4)),
    ]


@pytest.mark.parametrize("soft_only", [True, False])
def test_where_all_is_gaussian_it_is_regularize(soft_only):
    """Guide and model are Gaussian and features affine: the exact answer is in the family."""
    ours = constraints_on(lambda v: v.theta[:, 0] + v.theta[:, 1], "theta[2]", "theta")
    theirs = constraints_on(np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]), np.eye(3))
    if not soft_only:
        ours, theirs = (
            [c[0], E(f).regularized(Ridge(0.2, 0.5) + Shifted(Hinge(0.3), 0.1))]
            for c, f in ((ours, lambda theta: theta[:, 1]), (theirs, np.array([0.0, 1.0, 0.0])))
        )
    exact = regularize(Gaussian(MEAN, COVARIANCE), theirs)
    loss = RegularizedELBO(ours, elbo=mean_field(), smoothing=1e-5)
    params, value = descend(loss, gaussian_model, gaussian_guide)
    assert value == pytest.approx(exact.primal, abs=1e-4)
    np.testing.assert_allclose(params["loc"], exact.posterior.mean, atol=1e-4)
    np.testing.assert_allclose(params["tril"] @ params["tril"].T, COVARIANCE, atol=1e-4)
    found = loss.evaluate(params, gaussian_model, gaussian_guide)
    multipliers = np.concatenate([part.multipliers for part in found])
    np.testing.assert_allclose(multipliers, exact.multipliers, atol=1e-3)
    assert found[0].label == "soft E(psi) >= 2"


def linear_classifier(X, y, n_classes=None):
    shape = (X.shape[1],) if n_classes is None else (n_classes, X.shape[1])
    sample("w", "Normal", np.zeros(shape), 1.0)


def linear_guide(X, y, n_classes=None):
    from numpyro.distributions import constraints

    shape = (X.shape[1],) if n_classes is None else (n_classes, X.shape[1])
    sample("w", "Normal", param("loc", np.zeros(shape)), param("sd", np.full(shape, 0.7), constraints.positive))


def classes_data(n=40, n_classes=2):
    rng = np.random.default_rng(0)
    y = np.arange(n) % n_classes
    return rng.standard_normal((n, 3)) + 0.8 * np.eye(3)[y], y


TIGHT = Tolerance(gap=1e-10, max_epochs=100_000.0)
PLAIN = {"fit_intercept": False, "centred": False}


def scores_above(v, X, y):
    return y * (X @ v.w)


@pytest.mark.parametrize("squared", [False, True])
def test_a_bayesian_linear_classifier_is_the_large_margin_step(squared):
    """Its posterior is N(w, I) with the weights of the margin head, to 1e-4; the spread stays that of the prior."""
    X, y = classes_data()
    signs, C = 2.0 * y - 1.0, 0.6
    hinge = Shifted(Hinge(C, 2.0 if squared else 1.0), by=-1.0)
    loss = RegularizedELBO(
        EachRow(lambda v, X, y: -scores_above(v, X, y), lambda X, y: hinge), elbo=mean_field(), smoothing=1e-5
    )
    params, _ = descend(loss, linear_classifier, linear_guide, X, signs, tol=1e-15)
    head = MarginHead(Signs(signs[:, None], np.full((len(y), 1), C)), squared=squared, **PLAIN)
    solved = head.solve(X, None, TIGHT)
    np.testing.assert_allclose(params["loc"], solved.head.weights[0], atol=1e-4)
    np.testing.assert_allclose(params["sd"], 1.0, atol=1e-4)
    found = loss.evaluate(params, linear_classifier, linear_guide, X, signs)[0]
    assert found.value == pytest.approx(solved.terms["margin"], abs=1e-4)
    if squared:  # for hinges, multipliers inside their bounds are decided at kinks
        np.testing.assert_allclose(-signs * found.multipliers, solved.multipliers[:, 0], atol=1e-3)


def differences(v, X, y):
    import jax.numpy as jnp

    scores = X @ v.w.T
    return scores - jnp.take_along_axis(scores, y[:, None], axis=1)


def test_several_classes_are_the_large_margin_step_too():
    X, y = classes_data(60, 3)
    cost = zero_one_cost(3)
    loss = RegularizedELBO(
        EachRow(differences, lambda X, y: MultiClassSquaredHinge(0.5, cost, y)), elbo=mean_field(), smoothing=1e-6
    )

    def model(X, y):
        linear_classifier(X, y, 3)

    def guide(X, y):
        linear_guide(X, y, 3)

    params, _ = descend(loss, model, guide, X, y)
    solved = MarginHead(Classes(y, cost, np.full(len(y), 0.5)), squared=True, **PLAIN).solve(X, None, TIGHT)
    np.testing.assert_allclose(params["loc"], solved.head.weights, atol=1e-4)


def test_the_block_of_the_page_is_a_support_vector_machine():
    page = (Path(__file__).parents[2] / "docs" / "own_model.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page.partition("## In NumPyro")[2].partition("## What")[0], re.DOTALL)
    names = {}
    exec(block, names)
    X, signs, params = names["X"], names["signs"], names["params"]
    head = MarginHead(Signs(signs[:, None], np.full((len(X), 1), 0.1)), squared=False, **PLAIN).solve(X, None, TIGHT)
    np.testing.assert_allclose(params["w_auto_loc"], head.head.weights[0], atol=0.02)
    np.testing.assert_allclose(params["w_auto_scale"], 1.0, atol=0.02)


def test_batches_are_unbiased():
    """Rows in batches, each of which counts n_rows / n times: the mean gradient over batches is that of all rows."""
    import jax

    X, y = classes_data(60, 3)
    cost = zero_one_cost(3)
    rows = EachRow(differences, lambda X, y: MultiClassHinge(0.5, cost, y), n_rows=60)
    loss = RegularizedELBO(rows, elbo=mean_field())
    params = {"loc": 0.3 * np.random.default_rng(1).standard_normal((3, 3)), "sd": np.ones((3, 3))}

    @jax.jit
    def gradient(X, y):
        def value(params):
            model, guide = (lambda X, y: linear_classifier(X, y, 3)), (lambda X, y: linear_guide(X, y, 3))
            return loss.loss(jax.random.key(0), params, model, guide, X, y)

        return jax.grad(value)(params)["loc"]

    batches = [gradient(X[i::4], y[i::4]) for i in range(4)]
    np.testing.assert_allclose(np.mean(batches, axis=0), gradient(X, y), rtol=1e-6, atol=1e-9)


def test_svi_learns_per_row_features_in_batches():
    """NumPyro's own SVI with Adam, one jitted step for all batches: factor analysis with margins on its features."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import SVI

    X, y = classes_data(120, 3)
    n, K = len(X), 2

    def model(X, y):
        loadings = param("loadings", np.ones((K, 3)) * [[0.5], [-0.5]])
        sample("eta", "Normal", np.zeros((3, K + 1)), 1.0)
        with numpyro.plate("rows", n, subsample_size=len(X)):
            z = numpyro.sample("z", numpyro.distributions.Normal(jnp.zeros(K), 1.0).to_event(1))
            numpyro.sample("x", numpyro.distributions.Normal(z @ loadings, 1.0).to_event(1), obs=X)

    def guide(X, y):
        encoder = param("encoder", 0.1 * np.random.default_rng(0).standard_normal((3, K)))
        sample("eta", "Normal", param("eta_loc", np.zeros((3, K + 1))), jnp.exp(param("eta_log_sd", 0.0)))
        with numpyro.plate("rows", n, subsample_size=len(X)):
            numpyro.sample("z", numpyro.distributions.Normal(X @ encoder, 0.7).to_event(1))

    def margins(v, X, y):
        scores = v.z @ v.eta[:, :K].T + v.eta[:, K]
        return scores - jnp.take_along_axis(scores, y[:, None], axis=1)

    cost = zero_one_cost(3)
    rows = EachRow(margins, lambda X, y: MultiClassHinge(1.0, cost, y), n_rows=n)
    svi = SVI(model, guide, numpyro.optim.Adam(0.03), RegularizedELBO(rows))
    state, step, rng = svi.init(jax.random.key(0), X[:30], y[:30]), jax.jit(svi.update), np.random.default_rng(0)
    for _ in range(60):
        for chosen in np.array_split(rng.permutation(n), 4):
            state, value = step(state, X[chosen], y[chosen])
    params = svi.get_params(state)
    scores = X @ params["encoder"] @ params["eta_loc"][:, :K].T + params["eta_loc"][:, K]
    plain = MarginHead(Classes(y, cost, np.ones(n)), squared=False).solve(X, None, TIGHT).head
    assert np.isfinite(value)
    assert np.mean(scores.argmax(1) == y) > np.mean(plain.scores(X).argmax(1) == y) - 0.05


def lognormal_guide():
    from numpyro.distributions import constraints

    sample("tau", "LogNormal", param("loc", 0.3), param("sd", 0.5, constraints.positive))


def test_an_average_of_draws_is_the_expectation_that_means_are_not():
    """The square of a standard normal has expectation one; at the mean it is zero."""
    import jax

    def model():
        sample("x", "Normal", 0.0, 1.0)

    def guide():
        sample("x", "Normal", param("loc", 0.0), 1.0)

    params = {"loc": np.array(0.0)}
    constraint = E(lambda v: v.x**2).regularized(Ridge(0.0, 1.0))
    at_mean = RegularizedELBO(constraint).evaluate(params, model, guide)[0]
    drawn = RegularizedELBO(constraint, draws=20_000).evaluate(params, model, guide)[0]
    assert at_mean.expectations == pytest.approx(0.0)
    assert drawn.expectations == pytest.approx(1.0, abs=0.1)
    losses = [RegularizedELBO(constraint, draws=8).loss(jax.random.key(s), params, model, guide) for s in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_a_mean_with_a_closed_form_is_taken_for_what_it_is():
    def model():
        sample("tau", "LogNormal", 0.0, 1.0)

    params = {"loc": np.array(0.3), "sd": np.array(0.5)}
    found = RegularizedELBO((E("tau") <= 1.0).soft(1.0)).evaluate(params, model, lognormal_guide)[0]
    assert found.expectations == pytest.approx(np.exp(0.3 + 0.125))


def test_the_value_is_that_of_the_regularizer_and_the_gradient_a_subgradient():
    """At points off the kinks, for every kind that is named as supported."""
    rng = np.random.default_rng(0)
    kinds = [
        Hinge(0.7),
        Hinge(0.7, 1.5),
        Ridge(0.3, 2.0),
        Ball([0.1, 0.2, 0.3], 0.1, 1, C=2.0),
        KL([0.2, 0.3, 0.5]),
        2.0 * KL([0.2, 0.3, 0.5]) + Hinge(0.1),
        MultiClassHinge(0.5, np.array([0.0, 1.0, 1.0])),
    ]
    for g in kinds:
        loss = RegularizedELBO(E("theta").regularized(g))
        for _ in range(3):
            x = rng.dirichlet(np.ones(3)) + 0.05
            value, slope = loss._envelope(loss.constraints[0], x, (), {})
            assert value == pytest.approx(g.value(x), abs=1e-4)
            for y in x + 0.03 * rng.standard_normal((5, 3)):
                assert g.value(y) >= value + slope @ (y - x) - 1e-4


# --- what is refused


def evaluate(constraint, guide=gaussian_guide, model=gaussian_model, **options):
    params = {"loc": np.zeros(3), "tril": np.eye(3)} if guide is gaussian_guide else {}
    return RegularizedELBO(constraint, **options).evaluate(params, model, guide)


def with_data():
    theta = sample("theta", "MultivariateNormal", MEAN, COVARIANCE)
    import numpyro
    from numpyro import distributions as dist

    numpyro.sample("y", dist.Normal(theta[0], 1.0), obs=0.3)
    numpyro.deterministic("total", theta.sum())


REFUSED = {
    "a hard bound": (lambda: E("theta") <= 1.0, ValueError, "soft"),
    "a hard equality": (lambda: E("theta").regularized(Equal(0.0)), ValueError, "soft"),
    "a hard ball": (lambda: E("theta").within(0.1, of=0.0), ValueError, "soft"),
    "an unknown site": (lambda: (E("mu") <= 1.0).soft(1.0), KeyError, "no site 'mu'"),
    "a place beyond the last": (lambda: (E("theta[3]") <= 1.0).soft(1.0), ValueError, "theta[2]"),
    "an indicator": (lambda: (E(lambda v: v.theta[:, 0] > 0) <= 1.0).soft(1.0), TypeError, "no gradient"),
    "an observed site": (lambda: (E("y") <= 1.0).soft(1.0), KeyError, "y is observed"),
    "an event": (lambda: E("theta").given("theta") == 0.0, TypeError, "no gradient"),
    "values of draws": (lambda: (E(np.ones(3)) <= 0.0).soft(1.0), TypeError, "names of sites"),
    "a feature of the wrong shape": (lambda: (E(lambda v: v.theta[0]) <= 0.0).soft(1.0), ValueError, "1 draws"),
    "too many expectations": (lambda: E("theta").regularized(KL([0.5, 0.5])), ValueError, "takes 2"),
    "a regularizer that is none": (lambda: EachRow(lambda v: v.theta, lambda: 3.0), TypeError, "regbayes.regularizers"),
    "a row feature with three axes": (lambda: EachRow(lambda v: v.theta[None, None], Hinge), ValueError, "(n, m)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_clear_errors(what):
    make, kind, message = REFUSED[what]
    with pytest.raises(kind) as caught:
        evaluate(make(), model=with_data)
    assert message in str(caught.value)


def test_rows_that_are_not_those_of_the_step_are_refused():
    """A batch counts n_rows / n times, so that n must be its rows."""
    X, y = classes_data(60, 3)
    params = {"loc": np.zeros((3, 3)), "sd": np.ones((3, 3))}
    model, guide = (lambda X, y: linear_classifier(X, y, 3)), (lambda X, y: linear_guide(X, y, 3))

    def few(v, X, y):
        return differences(v, X, y)[:7]

    def hinge(X, y):
        return Hinge(1.0)

    with pytest.raises(ValueError, match=r"returned 7, .* arrays of 60 rows"):
        RegularizedELBO(EachRow(few, hinge, n_rows=60)).evaluate(params, model, guide, X, y)
    with pytest.raises(ValueError, match="n_rows is 50, fewer than the 60 rows"):
        RegularizedELBO(EachRow(differences, hinge, n_rows=50)).evaluate(params, model, guide, X, y)


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="constraints must be"):
        RegularizedELBO([])
    with pytest.raises(TypeError, match="constraints must be"):
        RegularizedELBO(["mu"])
    with pytest.raises(TypeError, match=r"constraints must be .* got \[E\(mu\)\]"):
        RegularizedELBO(E("mu"))
    with pytest.raises(ValueError, match="draws"):
        RegularizedELBO((E("mu") <= 0.0).soft(1.0), draws=0)
    with pytest.raises(ValueError, match="smoothing"):
        RegularizedELBO((E("mu") <= 0.0).soft(1.0), smoothing=0.0)


def test_deterministic_sites_of_the_model_have_names():
    found = evaluate((E("total") >= 0.0).soft(1.0), model=with_data)
    assert found[0].expectations == pytest.approx(0.0)


@pytest.mark.parametrize("guide_name", ["AutoNormal", "AutoMultivariateNormal"])
def test_automatic_guides(guide_name):
    """The mean of a positive site has no closed form there: that is said, and draws serve."""
    import jax
    import numpyro
    from numpyro.infer import SVI, autoguide

    def model():
        sample("mu", "Normal", 0.0, 1.0)
        sample("tau", "HalfNormal", 1.0)

    guide = getattr(autoguide, guide_name)(model)
    price = 1.5
    svi = SVI(model, guide, numpyro.optim.Adam(0.03), RegularizedELBO((E("mu") >= 2.0).soft(price)))
    params = svi.run(jax.random.key(0), 800, progress_bar=False).params
    assert float(guide.median(params)["mu"]) == pytest.approx(price, abs=0.25)  # one draw of the ELBO a step is noisy
    spread = guide.quantiles(params, [0.16, 0.84])["mu"]
    assert (spread[1] - spread[0]) / (norm.ppf(0.84) - norm.ppf(0.16)) == pytest.approx(1.0, abs=0.2)
    with pytest.raises(ValueError, match="no closed form"):
        RegularizedELBO((E("tau") <= 1.0).soft(1.0)).evaluate(params, model, guide)
    drawn = RegularizedELBO((E("tau") <= 1.0).soft(1.0), draws=100).evaluate(params, model, guide)
    assert drawn[0].expectations > 0

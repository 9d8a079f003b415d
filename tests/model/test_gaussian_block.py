"""Gaussian blocks: their densities are those of the model as written, and what cannot be integrated out is refused.

Nothing here is random but positions at which densities are compared.  Scales are of NumPy: of one of Python PyMC takes
the logarithm in single precision.
"""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt
import pytest
from sampling_runs import Opaque
from scipy.stats import multivariate_normal

import pmm_mcmc as pmm
from pmm_mcmc.model import gaussian_block
from pmm_mcmc.model.block_choice import block_that_pays
from pmm_mcmc.model.block_draws import _drawn, drawn_back
from pmm_mcmc.model.functions import python_function
from pmm_mcmc.model.gaussian_block import gaussian_names, integrated_model
from pmm_mcmc.model.pymc_density import log_density

pytestmark = pytest.mark.pymc
RNG = np.random.default_rng(1)
TWO, FIVE = np.float64(2.0), np.float64(5.0)
GROUP = RNG.integers(4, size=30)
OTHER = RNG.integers(3, size=30)
X = RNG.normal(size=(30, 3))
Y = RNG.normal(size=30) + 0.5 * GROUP


def regression():
    pm.Normal("y", pm.Normal("a", 1, FIVE) + X @ pm.Normal("b", 0, TWO, shape=3), pm.HalfNormal("s"), observed=Y)
    return ["a", "b"]


def crossed():
    first = pm.Normal("first", 0, pm.HalfNormal("sd1"), shape=4)
    second = pm.Normal("second", pm.Normal("level", 0, FIVE), pm.HalfNormal("sd2"), shape=3)
    pm.Normal("y", first[GROUP] + second[OTHER], pm.HalfNormal("s"), observed=Y)
    return ["first", "second", "level"]


def partly():
    """A location of the block stays in the rest."""
    effect = pm.Normal("effect", pm.Normal("level", 0, FIVE), pm.HalfNormal("sd"), shape=4)
    pm.Normal("y", effect[GROUP], pm.HalfNormal("s"), observed=Y)
    return ["effect"]


def schools():
    theta = pm.Normal("theta", pm.Normal("mu", 0, FIVE), pm.HalfCauchy("tau", FIVE), shape=8)
    pm.Normal("y", theta, np.arange(9.0, 17.0), observed=np.arange(8.0))
    return ["mu", "theta"]


def heteroscedastic():
    """Noise that differs between rows, and coefficients that depend on the rest."""
    slope = pm.Normal("slope")
    pm.Normal(
        "y", pm.Normal("b", slope, 1, shape=3) @ (X.T * slope), pt.exp(X @ pm.Normal("c", 0, 1, shape=3)), observed=Y
    )
    return ["b"]


def process(n=12):
    x = np.linspace(0, 1, n)
    K = pm.HalfNormal("size") ** 2 * pt.exp(-((x[:, None] - x) ** 2) / pm.HalfNormal("length") ** 2)
    z = pm.Normal("z", shape=n)
    pm.Normal("y", pt.linalg.cholesky(K + 1e-4 * np.eye(n)) @ z, pm.HalfNormal("s"), observed=np.sin(5 * x))
    return ["z"]


def latent_process():
    """A Gaussian process as a prior with a dense covariance."""
    x = np.linspace(0, 1, 8)
    K = pm.HalfNormal("size") ** 2 * pt.exp(-((x[:, None] - x) ** 2)) + 1e-3 * np.eye(8)
    f = pm.MvNormal("f", pm.Normal("level"), K, shape=8)
    pm.Normal("y", f, pm.HalfNormal("s"), observed=np.sin(5 * x))
    return ["level", "f"]


def correlated():
    """Groups of an intercept and a slope, and an outcome of two that are correlated."""
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(shape=2))
    each = pm.MvNormal("each", pm.Normal("level", shape=2), chol=chol, shape=(4, 2))
    pm.Normal("y", each[GROUP, 0] + each[GROUP, 1] * X[:, 0], pm.HalfNormal("s"), observed=Y)
    pm.MvNormal("w", each[:, 0].sum() * np.ones(2), np.array([[2.0, 0.5], [0.5, 1.0]]), observed=[1.0, -1.0])
    return ["level", "each"]


def walk():
    steps = pm.Normal("steps", 0, pm.HalfNormal("sd"), shape=15)
    pm.Normal("y", pt.cumsum(steps), pm.HalfNormal("s"), observed=Y[:15])
    return ["steps"]


def random_walk():
    drift = pm.Normal("drift")
    start = pm.Normal.dist(pm.Normal("origin"), TWO)
    steps = pm.GaussianRandomWalk("walk", mu=drift, sigma=pm.HalfNormal("sd"), init_dist=start, shape=15)
    pm.Normal("y", steps, pm.HalfNormal("s"), observed=Y[:15])
    return ["origin", "drift", "walk"]


def zero_sum():
    each = pm.ZeroSumNormal("each", pm.HalfNormal("sd"), shape=(2, 4))
    pm.Normal("y", pm.Normal("level", 0, FIVE) + each[1, GROUP], pm.HalfNormal("s"), observed=Y)
    return ["level", "each"]


def long_groups():
    """Groups of more elements than are non-centred together."""
    root = pt.linalg.cholesky(np.eye(7) + 0.3)
    each = pm.MvNormal("each", np.zeros(7), chol=root * pm.HalfNormal("sd"), shape=(4, 7))
    pm.Normal("y", each[GROUP].sum(axis=1) + each[GROUP, 0], pm.HalfNormal("s"), observed=Y)
    return ["each"]


def flat():
    pm.Normal("y", pm.Flat("a") + X @ pm.Flat("b", shape=3), pm.HalfNormal("s"), observed=Y)
    return ["a", "b"]


def two_outcomes():
    effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=4)
    pm.Normal("y", effect[GROUP], pm.HalfNormal("s"), observed=Y)
    pm.Normal("w", pm.Normal("factor") * effect, 1.0, observed=np.arange(4.0))
    return ["effect"]


def shared_data():
    x = pm.Data("x", X)
    pm.Normal(
        "y", x @ pm.Normal("b", 0, TWO, shape=3), pm.HalfNormal("s"), observed=pm.Data("data", Y), shape=x.shape[0]
    )
    return ["b"]


MODELS = [
    regression, crossed, partly, schools, heteroscedastic, process, latent_process, correlated, walk, flat,
    two_outcomes, shared_data, random_walk, zero_sum, long_groups,
]  # fmt: skip


def density_of(model, gradient=False):
    """Return the log density of a model, or its gradient, as a function of a point: compilation would take minutes."""
    vars = model.value_vars
    logp = model.logp()
    graphs = pt.grad(logp, vars) if gradient else [logp]
    function = python_function(vars, graphs)

    def at(point):
        values = function(*(np.asarray(point[var.name], dtype=float) for var in vars))
        return np.concatenate([np.ravel(value) for value in values])

    return at


def built(build):
    with pm.Model() as model:
        return model, build()


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_marginal_and_conditional_are_the_joint_density(build):
    model, names = built(build)
    point = model.initial_point(0)
    block = integrated_model(model, point, names)
    joint = density_of(model)
    marginal = density_of(block.rest)
    inputs = block.rest.value_vars
    law = python_function(inputs, [block.precision, block.right])
    rng = np.random.default_rng(2)
    for _ in range(100):
        rest = {var.name: rng.normal(size=np.shape(point[var.name])) for var in inputs}
        precision, right = law(*(np.asarray(rest[var.name]) for var in inputs))
        drawn, _, density = _drawn(precision[None], right[None], rng.normal(size=(1, len(right))))
        whole = dict(rest)
        begin = 0
        for name in block.values:
            shape = np.shape(point[name])
            size = int(np.prod(shape))
            whole[name] = drawn[0, begin : begin + size].reshape(shape)
            begin += size
        together = joint(whole)[0]
        assert abs(marginal(rest)[0] + density[0] - together) < 1e-10 * max(1.0, abs(together), np.abs(precision).max())


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_gradient_is_that_of_the_marginal_density(build):
    model, names = built(build)
    point = model.initial_point(0)
    rest = integrated_model(model, point, names).rest
    logp = density_of(rest)
    gradient = density_of(rest, gradient=True)
    rng = np.random.default_rng(3)
    at = {var.name: 0.5 * rng.normal(size=np.shape(point[var.name])) for var in rest.value_vars}
    along = {name: rng.normal(size=np.shape(value)) for name, value in at.items()}
    h = 1e-5
    ahead, behind = (logp({name: at[name] + s * h * along[name] for name in at}) for s in (1, -1))
    slope = float(np.concatenate([np.ravel(along[name]) for name in at]) @ gradient(at))
    assert slope == pytest.approx(float(ahead[0] - behind[0]) / (2 * h), rel=1e-6, abs=1e-6)


def test_the_marginal_density_is_that_of_a_normal_law_of_the_data():
    model, names = built(regression)
    rest = integrated_model(model, model.initial_point(0), names).rest
    log_s = 0.3
    design = np.column_stack([np.ones(30), X])
    covariance = design @ np.diag([25.0, 4.0, 4.0, 4.0]) @ design.T + np.exp(2 * log_s) * np.eye(30)
    data = multivariate_normal(np.ones(30), covariance).logpdf(Y)
    with pm.Model() as prior:
        pm.HalfNormal("s")
    point = {"s_log__": np.array(log_s)}
    assert density_of(rest)(point)[0] == pytest.approx(data + density_of(prior)(point)[0], abs=1e-9)


def test_a_noise_near_0_loses_no_digits():
    """Far below what data allow: the sum of squares is 1e10 times its part within the design."""
    model, names = built(regression)
    rest = integrated_model(model, model.initial_point(0), names).rest
    design = np.column_stack([np.ones(30), X])
    within = Y - design @ np.linalg.lstsq(design, Y, rcond=None)[0]
    for log_s in (-6.0, -12.0):
        (slope,) = density_of(rest, gradient=True)({"s_log__": np.array(log_s)})
        # The prior of b has no part in it: slopes of -26 log(s), of the square, and of the Jacobian.
        assert slope == pytest.approx((within @ within) * np.exp(-2 * log_s) - 26 + 1, rel=1e-6)
    with np.errstate(all="ignore"):
        assert not np.isfinite(density_of(rest)({"s_log__": np.array(-400.0)})[0])


def test_draws_have_the_law_of_the_block_given_the_rest():
    """Exactly: a draw is an affine map of the noise, whose covariance is the inverse precision."""
    rng = np.random.default_rng(4)
    root = rng.normal(size=(5, 5))
    precision = root @ root.T + np.eye(5)
    right = rng.normal(size=5)
    noise = np.vstack([np.zeros(5), np.eye(5)])
    drawn, mean, density = _drawn(np.tile(precision, (6, 1, 1)), np.tile(right, (6, 1)), noise)
    law = multivariate_normal(np.linalg.solve(precision, right), np.linalg.inv(precision))
    directions = drawn[1:] - drawn[0]
    np.testing.assert_allclose(drawn[0], law.mean, atol=1e-12)
    np.testing.assert_allclose(mean, np.tile(law.mean, (6, 1)), atol=1e-12)
    np.testing.assert_allclose(directions.T @ directions, law.cov_object.covariance, atol=1e-12)
    np.testing.assert_allclose(density, law.logpdf(drawn), atol=1e-10)


def test_values_of_a_position_are_those_at_the_mean_of_the_block():
    model, names = built(crossed)
    block = integrated_model(model, model.initial_point(0), names)
    layout = drawn_back(block, model, "numba")
    values = layout.values(np.zeros((1, 2, 3)))
    precision, right = python_function(block.rest.value_vars, [block.precision, block.right])(*3 * [np.zeros(())])
    mean = np.linalg.solve(precision, right)
    in_order = np.concatenate([np.ravel(values[name][0, 1]) for name in block.names])
    np.testing.assert_allclose(in_order, mean, atol=1e-12)


def test_new_data_are_integrated_anew():
    model, names = built(shared_data)
    before = integrated_model(model, model.initial_point(0), names)
    assert integrated_model(model, model.initial_point(0), names) is before
    with model:
        pm.set_data({"x": X[:20], "data": 2 * Y[:20]})
    after = integrated_model(model, model.initial_point(0), names)
    assert after is not before
    joint = density_of(model)
    point = {"s_log__": np.zeros(())}
    precision, right = python_function(after.rest.value_vars, [after.precision, after.right])(np.zeros(()))
    drawn, _, density = _drawn(precision[None], right[None], np.zeros((1, 3)))
    together = joint({**point, "b": drawn[0]})[0]
    assert density_of(after.rest)(point)[0] + density[0] == pytest.approx(together, abs=1e-9)


REFUSED = {
    "a likelihood with heavy tails": (
        lambda b: pm.StudentT("y", 4, b, observed=np.ones(4)), "y, which depends on it, is not normal, but StudentT"
    ),
    "counts": (lambda b: pm.Poisson("y", pt.exp(b), observed=np.ones(4, int)), "y, .* not normal, but Poisson"),
    "a truncated likelihood": (
        lambda b: pm.Truncated("y", pm.Normal.dist(b, 1), lower=0, observed=np.ones(4)), "not normal, but Truncated"
    ),
    "a censored likelihood": (
        lambda b: pm.Censored("y", pm.Normal.dist(b, 1), lower=0, upper=9, observed=np.ones(4)), "normal, but Censored"
    ),
    "its scale": (lambda b: pm.Normal("y", 0, pt.exp(b), observed=np.ones(4)), "scale of y depends on it"),
    "a square": (lambda b: pm.Normal("y", b**2, 1, observed=np.ones(4)), "location of y is not affine in it"),
    "a potential": (lambda b: pm.Potential("bound", -(b**4).sum()), "the potential bound depends on it"),
    "a child that is not in it": (lambda b: pm.Normal("c", b, 1, shape=4), "c depends on it: integrate c out as well"),
    "a child that is not normal": (lambda b: pm.StudentT("c", nu=3, mu=b, shape=4), "c depends on it"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_gaussian_is_refused_with_the_reason(case):
    use, words = REFUSED[case]
    with pm.Model() as model:
        b = pm.Normal("b", 0, pm.HalfNormal("s"), shape=4)
        use(b)
    with pytest.raises(ValueError, match=rf"b cannot be integrated out: .*{words}"):
        pmm.sample(model=model, reparametrise={"b": "integrated"}, progressbar=False)


def of_dims():
    b = pmd.Normal("b", 0, pm.HalfNormal("s"), dims="group")
    pm.Normal("y", b.values, 1, observed=np.ones(4))


OTHERS = {
    "dims": (of_dims, "b is of pymc.dims: write it with pm.Normal"),
    "an autoregression": (
        lambda: pm.AR("b", [0.5], pm.HalfNormal("s"), init_dist=pm.Normal.dist(), shape=4), "not normal, but AutoReg"
    ),
    "several walks": (
        lambda: pm.GaussianRandomWalk("b", 0, pm.HalfNormal("s"), init_dist=pm.Normal.dist(), shape=(2, 4)),
        "b is a batch of walks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_there_yet_is_refused_with_the_reason(case):
    build, words = OTHERS[case]
    with pm.Model(coords={"group": range(4)}) as model:
        build()
    point = model.initial_point(0)
    assert gaussian_names(model, point) == []
    with pytest.raises(ValueError, match=rf"b cannot be integrated out: .*{words}"):
        integrated_model(model, point, ["b"])


@pytest.mark.filterwarnings("ignore:.*missing values:pymc.exceptions.ImputationWarning")
def test_imputed_data_are_no_normal_likelihood():
    with pm.Model() as model:
        b = pm.Normal("b", 0, pm.HalfNormal("s"), shape=3)
        pm.Normal("y", b, 1, observed=np.array([1.0, np.nan, 2.0]))
    with pytest.raises(ValueError, match="b cannot be integrated out: y_unobserved depends on it"):
        pmm.sample(model=model, reparametrise={"b": "integrated"}, progressbar=False)


def test_flat_priors_that_data_do_not_identify_are_improper():
    with pm.Model() as model:
        b = pm.Flat("b", shape=2)
        pm.Normal("y", b.sum(), pm.HalfNormal("s"), observed=np.ones(4))
    with pytest.raises(ValueError, match=r"the posterior is improper.*flat"):
        pmm.sample(model=model, reparametrise={"b": "integrated"}, progressbar=False)


def test_what_has_no_derivative_is_refused_and_stops_nobody_who_has_not_asked():
    with pm.Model() as model:
        b = pm.Normal("b", 0, pm.HalfNormal("s"), shape=6)
        pm.Normal("y", Opaque()(b), 1, observed=np.ones(6))
    point = model.initial_point(0)
    assert gaussian_names(model, point) == []
    assert block_that_pays(model, point, []) is None
    with pytest.raises(ValueError, match="b cannot be integrated out: "):
        integrated_model(model, point, ["b"])


def test_blocks_of_too_many_coefficients_are_not_looked_at(monkeypatch):
    model, _ = built(process)
    monkeypatch.setattr(gaussian_block, "_MOST_NUMBERS", 10)
    monkeypatch.setattr(gaussian_block, "_integrated", lambda *_: pytest.fail("is built"))
    assert gaussian_names(model, model.initial_point(0)) == []


def test_a_block_is_integrated_out_by_itself_where_its_shape_follows_the_rest():
    """A Gaussian process; not a regression, effects of one factor, or what the user wants otherwise."""
    model, names = built(lambda: process(40))
    point = model.initial_point(0)
    assert block_that_pays(model, point, []).names == names
    assert block_that_pays(model, point, ["z"]) is None
    for build in (regression, schools, partly):
        other, _ = built(build)
        assert block_that_pays(other, other.initial_point(0), []) is None


def horseshoe():
    sd = pm.HalfCauchy("global", np.float64(1.0)) * pm.HalfNormal("local", shape=3)
    pm.Normal("y", X @ pm.Normal("b", 0, sd, shape=3), pm.HalfNormal("s"), observed=Y)
    return ["b"]


def variance():
    """A scale that is the square root of a parameter, in which the density is not even."""
    pm.Normal("y", pm.Normal("b", 0, pt.sqrt(pm.HalfNormal("v")), shape=4)[GROUP], pm.HalfNormal("s"), observed=Y)
    return ["b"]


def entered():
    """A scale of the block that is a scale of the rest, too."""
    sd = pm.HalfNormal("sd")
    c = pm.StudentT("c", nu=4, mu=0, sigma=pt.exp(sd))
    pm.Normal("y", c + pm.Normal("b", 0, sd, shape=4)[GROUP], pm.HalfNormal("s"), observed=Y)
    return ["b"]


@pytest.mark.parametrize(
    ("build", "signed"),
    [
        (crossed, ["sd1", "sd2"]), (schools, ["tau"]), (process, ["size", "s"]), (two_outcomes, ["sd"]),
        (walk, ["sd", "s"]), (regression, []), (horseshoe, []), (variance, []), (entered, []),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_scales_of_a_block_in_which_the_density_is_even_have_a_sign(build, signed):
    """Where there are as many variables as data the noise has one, too."""
    model, names = built(build)
    point = model.initial_point(0)
    rest = integrated_model(model, point, names).rest
    at = {var.name: point[var.name] for var in rest.value_vars}
    structure = log_density(rest.value_vars, rest, at, {}).structure
    labels = [var.name for var in rest.value_vars for _ in range(np.size(at[var.name]))]
    assert [labels[i].removesuffix("_log__") for i in structure.signed] == signed

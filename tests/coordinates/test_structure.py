"""What is read of a model, what is said of it, what is refused, and that sites are learnt exactly where they can be."""

import numpy as np
import pymc as pm
import pytest
from hierarchy_models import build, densities, eight_schools, some_sites

import pmm_mcmc as pmm

pytestmark = pytest.mark.pymc


def structure_of(model, choices=None):
    return densities(model, choices)[1].structure


def test_what_is_said_is_in_the_models_names():
    assert structure_of(eight_schools()).words == "theta is sampled non-centred about mu, scaled by tau"
    assert structure_of(build("nested")).words == (
        "a is sampled non-centred about mu, scaled by tau; b is sampled non-centred about centre, scaled by omega"
    )
    assert "f is sampled non-centred scaled by eta and length" == structure_of(build("Gaussian process")).words


def test_scales_have_a_sign_where_it_does_not_matter():
    """One that scales its children alone has; factors of a product, and scales of noise with a direction, have not."""
    assert structure_of(eight_schools()).signed.tolist() == [1]
    assert structure_of(build("regularised horseshoe")).signed.size == 0
    assert structure_of(build("Gumbel")).signed.size == 0
    assert structure_of(build("Exponential")).signed.size == 0
    nested = structure_of(build("nested"))
    assert [child.signs[0].tolist() for child in nested.children] == [[1] * 3, [2] * 6]


def test_nothing_is_done_where_there_is_nothing_to_do():
    with pm.Model() as by_hand:
        mu, tau, z = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Normal("z", shape=3)
        pm.Normal("y", mu + tau * z, 1.0, observed=np.zeros(3))
    assert structure_of(by_hand) is None
    assert structure_of(eight_schools(), {"theta": "centred"}) is None


def test_choices_are_checked_against_the_model():
    for choices, message in (
        ({"teta": "centred"}, "'teta' is not a free variable of the model, which has mu, tau, theta"),
        ({"mu": "noncentred"}, "'mu' has no parents to be non-centred about"),
    ):
        with pytest.raises(ValueError, match=message):
            structure_of(eight_schools(), choices)
    with pytest.raises(ValueError, match="reparametrise='yes': must be 'auto', False, or a dict"):
        pmm.PoissonULMC(reparametrise="yes")
    with pytest.raises(ValueError, match="'theta': 'center' must be the name of a variable with 'centred'"):
        pmm.PoissonULMC(reparametrise={"theta": "center"})


def test_what_is_asked_for_is_never_dropped_in_silence():
    asked = {"theta": "noncentred"}
    with pytest.raises(ValueError, match="scaling with reparametrise="):
        pmm.sample(pmm.PoissonULMC(reparametrise=asked, scaling=np.ones(10)), model=eight_schools(), draws=10)
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * (x**2).sum(), 3)
    with pytest.raises(ValueError, match="a LogDensity does not say which variables it has"):
        pmm.sample(pmm.PoissonULMC(reparametrise=asked), model=density, draws=10)
    with eight_schools() as model, pytest.raises(ValueError, match="only by a step that moves all of the model"):
        pmm.PoissonULMC([model["theta"]], reparametrise=asked)


@pytest.mark.parametrize("case", ["elementwise", "grouped", "dense", "walk"])
def test_a_gaussian_site_is_learnt_exactly(case):
    """Draws of no law at all: the regression is linear, and its noise is none where the rest is a Gaussian."""
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        if case == "elementwise":
            x = pm.Normal("x", pm.Normal("mu"), s, shape=5)
            H = np.diag(rng.exponential(size=5))
        elif case == "grouped":
            x = pm.MvNormal("x", np.zeros(2), cov=s**2 * np.array([[1.0, 0.4], [0.4, 2.0]]), shape=(3, 2))
            roots = rng.normal(size=(3, 2, 2))
            H = np.zeros((6, 6))
            for i in range(3):
                H[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = roots[i] @ roots[i].T
        elif case == "dense":
            apart = np.abs(np.subtract.outer(np.arange(7.0), np.arange(7.0)))
            x = pm.MvNormal("x", np.zeros(7), cov=s**2 * np.exp(-apart))
            H = np.diag(rng.exponential(size=7))
        else:
            x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0.0, 1.0), steps=6)
            H = np.diag(rng.exponential(size=7))
        a = rng.normal(size=len(H))
        flat = x.reshape((-1,))
        pm.Potential("rest", (a * flat).sum() - 0.5 * (flat * (H @ flat)).sum())
    plain, mapped, start = densities(model)
    structure, d = mapped.structure, start.size
    f = model.compile_dlogp()
    at = start + rng.normal(size=(40_000 if case == "grouped" else 4000, d)) * 0.8
    at = at[:4000]
    layout = [(name, shape) for name, shape, _, _ in plain.layout]
    gradients = []
    for row in at:
        point, begin = {}, 0
        for name, shape in layout:
            size = int(np.prod(shape, dtype=int))
            point[name] = row[begin : begin + size].reshape(shape)
            begin += size
        gradients.append(f(point))
    slope, sites = np.array(gradients), some_sites(structure, rng)
    z, _ = structure.to_z(at, sites)
    _, gradient = structure.pull_back(z, slope, sites)
    learnt = structure.learn(at, slope, gradient, sites)
    (child,) = structure.children
    found_a, found_h = child.site(learnt[: child.n_sites])
    # But for the four draws that the prior guess counts for.
    np.testing.assert_allclose(np.ravel(found_a), a, atol=0.02, rtol=0.02)
    if case == "grouped":
        found_h = np.block([[found_h[i] if i == j else np.zeros((2, 2)) for j in range(3)] for i in range(3)])
        np.testing.assert_allclose(found_h, H, atol=0.02, rtol=0.03)
    else:
        np.testing.assert_allclose(found_h, np.diag(H), atol=0.02, rtol=0.03)

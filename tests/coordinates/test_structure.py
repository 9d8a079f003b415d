"""What is read of a model, what is said of it, what is refused, and what is learnt exactly."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from hierarchy_models import build, by_hand, densities, eight_schools, some_noncentring, two_scales

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.child import Child, made_up_for, or_nan

pytestmark = [pytest.mark.pymc, pytest.mark.quick]


def structure_of(model, choices=None):
    return densities(model, choices)[1].structure


def test_a_matrix_that_is_refused_makes_its_position_nan_and_no_other():
    """As far out as searches go, rounding made a correlated hierarchy end in LinAlgError: not positive definite."""
    good = np.array([[4.0, 2.0], [2.0, 5.0]])
    matrices = np.stack([good, -good, good])
    factors = or_nan(np.linalg.cholesky, matrices)
    assert np.isnan(factors[1]).all()
    np.testing.assert_array_equal(factors[[0, 2]], np.linalg.cholesky(matrices[[0, 2]]))
    solved = or_nan(np.linalg.solve, np.stack([good, 0.0 * good]), np.ones((2, 2, 1)))
    np.testing.assert_array_equal(solved[0], np.linalg.solve(good, np.ones((2, 1))))
    assert np.isnan(solved[1]).all()


def test_what_is_said_is_in_the_models_names():
    assert structure_of(eight_schools()).words == "theta is sampled non-centred about mu, scaled by tau"
    assert structure_of(build("nested")).words == (
        "a is sampled non-centred about mu, scaled by tau; b is sampled non-centred about centre, scaled by omega"
    )
    assert "f is sampled non-centred, scaled by eta and length" == structure_of(build("Gaussian process")).words


def test_scales_have_a_sign_where_it_does_not_matter():
    """One that scales its children alone has; factors of a product, and scales of noise with a direction, have not."""
    assert structure_of(eight_schools()).signed.tolist() == [1]
    assert structure_of(build("regularised horseshoe")).signed.size == 0
    assert structure_of(build("Gumbel")).signed.size == 0
    assert structure_of(build("Exponential")).signed.size == 0
    nested = structure_of(build("nested"))
    z = np.arange(1.0, 13.0)  # mu, tau, omega, a (3), b (6)
    z[1] = -z[1]
    assert np.sign(nested.folded(z, z)[0]).tolist() == [1, 1, 1] + [-1] * 3 + [1] * 6
    z[2] = -z[2]
    assert np.sign(nested.folded(z, z)[0]).tolist() == [1, 1, 1] + [-1] * 9


def test_with_a_standard_deviation_its_correlations_change_sign():
    """Where their prior does not mind and nothing else sees them."""
    both = structure_of(two_scales())
    z = np.ones(11)  # a, b, r, mu (2), x (3, 2)
    assert both.signed.tolist() == [0, 1]
    z[0] = -1.0
    assert both.folded(z, z)[0].tolist() == [1, 1, -1, 1, 1] + [-1, 1] * 3
    z[1] = -1.0
    assert both.folded(z, z)[0].tolist() == [1, 1, 1, 1, 1] + [-1, -1] * 3
    assert structure_of(two_scales((3.0, 2.0))).signed.size == 0
    assert structure_of(two_scales(seen=True)).signed.size == 0
    three = structure_of(build("lkj of three"))
    z = np.ones(18)  # packed factor (6), mu (3), x (3, 3): standard deviations are 0, 2 and 5
    assert three.signed.tolist() == [0, 2, 5]
    z[2] = -1.0
    assert three.folded(z, z)[0].tolist() == [1, -1, 1, 1, -1, 1, 1, 1, 1] + [1, -1, 1] * 3
    assert structure_of(build("lkj of gammas")).signed.size == 0
    assert structure_of(build("Gaussian process")).signed.size == 0


def test_scales_of_a_model_that_is_non_centred_by_hand_have_a_sign():
    """With it their offsets change sign; factors of a product, and scales of what is not even, keep their logarithm."""

    def of(**arguments):
        with pm.Model() as model:
            by_hand(**arguments)
        return densities(model)[1].structure

    structure = of()
    z = np.ones(12)  # scales (2), mu, offset (3, 2), shift, own, noise
    assert structure.signed.tolist() == [0, 1, 10] and not structure.children
    assert structure.words == "scales and own are sampled with a sign"
    z[0] = -1.0
    assert structure.folded(z, z)[0].tolist() == [1, 1, 1] + [-1, 1] * 3 + [1, 1, 1]
    z[10] = -1.0
    assert structure.folded(z, z)[0].tolist() == [1, 1, 1] + [-1, 1] * 3 + [-1, 1, 1]
    assert of(product=True).is_identity
    assert of(symmetric=False).signed.tolist() == [0, 1]
    assert of(also_noise=True).signed.tolist() == [0, 1], "noise that vanishes with a scale is no smooth function of it"


def test_nothing_is_done_where_there_is_nothing_to_do():
    with pm.Model() as by_hand:
        mu, tau, z = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Normal("z", shape=3)
        pm.Normal("y", mu + tau * z, 1.0, observed=np.zeros(3))
    assert structure_of(by_hand).is_identity
    assert structure_of(eight_schools(), {"theta": "centred"}).is_identity


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
        pmm.sample(step=pmm.PoissonULMC(reparametrise=asked, scaling=np.ones(10)), model=eight_schools(), draws=10)
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * (x**2).sum(), 3)
    with pytest.raises(ValueError, match="a LogDensity does not say which variables it has"):
        pmm.sample(step=pmm.PoissonULMC(reparametrise=asked), model=density, draws=10)
    with eight_schools() as model, pytest.raises(ValueError, match="only by a step that moves all of the model"):
        pmm.PoissonULMC([model["theta"]], reparametrise=asked)


CASES = ["elementwise", "grouped", "dense", "walk"]


def with_a_gaussian_rest(case):
    """Return a model of one child, and the ``a`` and ``H`` of all else that depends on the child."""
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
    return model, a, H


@pytest.mark.parametrize("case", CASES)
def test_a_gaussian_rest_is_learnt_exactly(case):
    """Draws of no law at all: gradients of a Gaussian rest are linear, so that their changes are its curvature."""
    model, a, H = with_a_gaussian_rest(case)
    plain, mapped, start = densities(model)
    structure, d, rng = mapped.structure, start.size, np.random.default_rng(5)
    f = model.compile_dlogp()
    layout = [(name, shape) for name, shape, _, _ in plain.layout]

    def slopes_at(positions):
        gradients = []
        for row in positions:
            point, begin = {}, 0
            for name, shape in layout:
                size = int(np.prod(shape, dtype=int))
                point[name] = row[begin : begin + size].reshape(shape)
                begin += size
            gradients.append(f(point))
        return np.array(gradients)

    at = start + rng.normal(size=(4000, d)) * 0.8
    slope, noncentring = slopes_at(at), some_noncentring(structure, rng)
    (child,) = structure.children
    nearby = structure.to_x(structure.displaced(at[:8], child, noncentring, rng), noncentring)
    pairs = np.stack([at[:8], slope[:8], nearby, slopes_at(nearby)])
    learnt = structure.learn(at, slope, [pairs], noncentring)
    found_a, found_h, *_ = child.split(learnt[: child.n_parameters])
    # But for the four draws that the prior guess counts for.
    np.testing.assert_allclose(np.ravel(found_a), a, atol=0.02, rtol=0.02)
    if case == "grouped":
        found_h = np.block([[found_h[i] if i == j else np.zeros((2, 2)) for j in range(3)] for i in range(3)])
    expected = H if case in ("grouped", "dense") else np.diag(H)
    np.testing.assert_allclose(found_h[0] if case == "dense" else found_h, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("K", [1, 2])
def test_an_intercept_follows_what_effects_have_in_common_which_is_left_to_their_prior(K):
    """It hides from draws that data hold each of them: the precision of three effects is ``100 (I - 1 1' / 3)``.

    Groups of effects are turned, so that the first is what all have in common, of which data say nothing.
    """
    with pm.Model() as model:
        level, s = pm.Normal("level", 0.0, 10.0, shape=K), pm.HalfNormal("s")
        cov = s**2 * (0.6 * np.eye(K) + 0.4)
        u = pm.MvNormal("u", np.zeros(K), cov=cov, shape=(3, K)) if K > 1 else pm.Normal("u", 0.0, s, shape=3)
        pm.Normal("y", level + u.reshape((3, K)), 0.1, observed=np.zeros((3, K)))
    _, mapped, start = densities(model)
    structure, rng = mapped.structure, np.random.default_rng(0)
    flat, outputs = mapped.graph
    of_z = pytensor.function([flat], outputs, mode="FAST_COMPILE")
    common = rng.normal(size=(500, K))
    effects = 0.1 * rng.normal(size=(500, 3, K)) - common[:, None]
    x = np.hstack([common, np.zeros((500, 1)), effects.reshape(500, -1)])
    noncentring = structure.initial_noncentring()

    def slopes_at(positions):
        z, _ = structure.to_z(positions, noncentring)
        return np.array([of_z(row)[1][2 * start.size : 3 * start.size] for row in z])

    (child,) = structure.children
    nearby = structure.to_x(structure.displaced(x[:12], child, noncentring, rng), noncentring)
    pairs = np.stack([x[:12], slopes_at(x[:12]), nearby, slopes_at(nearby)])
    learnt = structure.learn(x, slopes_at(x), [pairs], noncentring)
    a, H, rho = child.split(learnt[: child.n_parameters])
    weights = learnt[child.n_parameters : -1].reshape(K, K)  # the last is of the sign
    if K == 1:
        np.testing.assert_allclose(H, 100.0, rtol=0.05)
    else:
        np.testing.assert_allclose(H[1:], 100.0 * np.eye(K)[None].repeat(2, axis=0), atol=5.0)
        assert np.abs(H[0]).max() < 2.0 and np.abs(a[0]).max() < 1.0
    np.testing.assert_allclose(weights, np.eye(K), atol=0.05)
    np.testing.assert_allclose(rho, 1.0, atol=0.02)
    assert not structure.learn(x[:20], slopes_at(x[:20]), [pairs], noncentring)[child.n_parameters - 1 : -1].any()


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_turned_groups_are_a_reflection_whose_first_is_what_all_have_in_common(rho):
    child, rng = Child("x", "grouped", 0, (5, 2), False), np.random.default_rng(0)
    groups, blocks = rng.normal(size=(5, 2)), rng.normal(size=(5, 3))
    np.testing.assert_allclose(child.turned(child.turned(groups, rho), rho), groups, atol=1e-14)
    np.testing.assert_allclose(child.turned(groups)[0], groups.sum(axis=0) / np.sqrt(5), atol=1e-14)
    reflection = child.turned(np.eye(5), rho)
    of_blocks = [np.diagonal(reflection @ np.diag(column) @ reflection.T) for column in blocks.T]
    np.testing.assert_allclose(child.turned_blocks(blocks, rho), np.transpose(of_blocks), atol=1e-14)


def test_a_noise_makes_up_for_no_effects():
    """By chance its logarithm follows them in the few draws that there are in warm-up."""
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("s"), shape=3)
        pm.Normal("y", u, pm.HalfNormal("noise"), observed=np.zeros(3))
    _, mapped, _ = densities(model)
    (child,) = mapped.structure.children
    assert mapped.structure.n_parameters == child.n_parameters + len(mapped.structure.signed)


def test_few_draws_do_not_tell_what_others_make_up_for():
    rng = np.random.default_rng(0)
    r, x = rng.normal(size=(2, 24, 2))
    assert not made_up_for(r, x, np.ones((24, 2)), np.ones(2)).any()
    assert made_up_for(np.repeat(r, 2, axis=0), np.repeat(x, 2, axis=0), np.ones((48, 2)), np.ones(2)).all()


@pytest.mark.parametrize("case", CASES)
def test_under_exact_parameters_the_child_is_standard_normal_whatever_its_parents(case):
    model, a, H = with_a_gaussian_rest(case)
    _, mapped, start = densities(model)
    flat, outputs = mapped.graph
    of_z = pytensor.function([flat], outputs, mode="FAST_COMPILE")
    (child,) = mapped.structure.children
    h = np.stack([H[i : i + 2, i : i + 2] for i in (0, 2, 4)]) if case == "grouped" else np.diag(H)
    noncentring = mapped.structure.initial_noncentring()
    noncentring[: a.size + h.size] = np.concatenate([a, h.ravel()])
    mapped.density_parameters.set_value(noncentring)
    rng = np.random.default_rng(6)
    for _ in range(5):
        z = start + rng.normal(size=start.size)
        slope = of_z(z)[1][: start.size]
        np.testing.assert_allclose(slope[child.at], -z[child.at], rtol=1e-6, atol=1e-6)


def test_matrices_of_draws_are_made_a_part_at_a_time():
    """What all at a time are, however many draws there are."""
    for name in ("lkj of three", "Gaussian process", "walks"):
        structure = structure_of(build(name))
        rng, noncentring = np.random.default_rng(7), some_noncentring(structure, np.random.default_rng(8))
        x, slope = rng.normal(size=(2, 40, structure.d)) * 0.3
        pairs = [rng.normal(size=(4, 8, structure.d)) * 0.3 for _ in structure.children]
        results = []
        for rows in (40, 7):
            structure._draws_of_block = rows
            z, log_det = structure.to_z(x, noncentring)
            _, gradient = structure.pull_back(z, slope, noncentring)
            results.append([z, log_det, gradient, structure.learn(x, slope, pairs, noncentring)])
            results[-1] += structure.degree(x, noncentring).values()
        for whole, parts in zip(*results, strict=True):
            np.testing.assert_allclose(parts, whole, rtol=1e-10, atol=1e-10)

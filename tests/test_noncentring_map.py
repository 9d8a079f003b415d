"""The map of funnels against its formula in JAX, differentiated by JAX; exact to rounding."""

import json
import pickle

import numpy as np
import pytest

from pmm_mcmc.noncentring import loops
from pmm_mcmc.noncentring.funnel_map import FunnelMap, saturate

D = 12


def three_levels():
    """Sinks of sinks of sinks, of both kinds, with one to four sources each."""
    sink = [3, 5, 4, 7, 8, 9, 11]
    sources = [[0], [0, 1], [3, 2], [4], [5, 3, 0, 1], [4, 0], [8, 6]]
    rng = np.random.default_rng(1)
    m, p = len(sink), sum(map(len, sources))
    ceiling = np.where(np.arange(m) % 2, rng.normal(0.5, 0.5, m), np.inf)
    start = np.concatenate([[0], np.cumsum([len(s) for s in sources])])
    slope, load, log_scale, location = (rng.normal(size=n) for n in (p, p, m, m))
    anchor, anchor_load = rng.normal(size=m), rng.normal(size=p)
    linear = np.isinf(ceiling)
    return FunnelMap(
        np.array(sink),
        start,
        np.concatenate(sources),
        slope,
        load,
        np.where(np.repeat(linear, np.diff(start)), 0.0, anchor_load),
        log_scale,
        location,
        ceiling,
        np.where(linear, 0.0, anchor),
    ).checked(D)


def points(*shape):
    return 0.5 * np.random.default_rng(2).normal(size=(*shape, D))


@pytest.fixture(scope="module")
def jax():
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


def plain(found, jnp):
    """Return the map of one point as its formula says, for JAX."""

    def place(z):
        x = z
        for k, i in enumerate(found.sink):
            inside = slice(found.start[k], found.start[k + 1])
            at = x[found.source[inside]]
            v = found.log_scale[k] + jnp.sum(found.slope[inside] * at)
            precision = jnp.exp(-2.0 * v) + np.exp(-2.0 * found.ceiling[k])
            w = jnp.exp(-2.0 * v) / precision
            mean = found.location[k] + jnp.sum(found.load[inside] * at)
            anchor = found.anchor[k] + jnp.sum(found.anchor_load[inside] * at)
            x = x.at[i].set(w * mean + (1.0 - w) * anchor + z[i] / jnp.sqrt(precision))
        return x

    return place


def log_density(jnp):
    """Return a density without symmetries."""
    a = np.random.default_rng(3).normal(size=(D, D))
    return lambda x: -jnp.sum(jnp.cosh(0.3 * a @ x)) + jnp.sum(jnp.sin(x))


def test_the_map_is_its_formula_and_its_inverse_undoes_it(jax):
    found, z = three_levels(), points(50)
    x = found.to_x(z)
    np.testing.assert_allclose(x, jax.vmap(plain(found, jax.numpy))(z), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.to_z(x), z, rtol=1e-12, atol=1e-12)


def test_the_determinant_is_that_of_the_derivative(jax):
    found, z = three_levels(), points(20)
    jacobians = jax.vmap(jax.jacobian(plain(found, jax.numpy)))(z)
    np.testing.assert_allclose(found.log_det(z), np.linalg.slogdet(jacobians)[1], rtol=1e-10, atol=1e-10)


def test_gradients_are_pulled_back_with_that_of_the_determinant_and_pushed_forward_again(jax):
    jnp = jax.numpy
    found, z = three_levels(), points(20)
    place, log_p = plain(found, jnp), log_density(jnp)

    def of_z(z):
        return log_p(place(z)) + jnp.linalg.slogdet(jax.jacobian(place)(z))[1]

    g = np.asarray(jax.vmap(jax.grad(log_p))(found.to_x(z)))
    g_z = found.pull_back(z, g)
    np.testing.assert_allclose(g_z, jax.vmap(jax.grad(of_z))(z), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.push_forward(z, g_z), g, rtol=1e-10, atol=1e-10)


def test_loops_over_one_point_do_the_same():
    found, z = three_levels(), points(5)
    g = np.random.default_rng(4).normal(size=z.shape)
    x, g_z, work = z.copy(), g.copy(), np.empty((4, len(found.sink)))
    for n in range(len(z)):
        total = loops.place(*found, x[n], work)
        loops.pull_back(*found[:6], g_z[n], work)
        assert total == pytest.approx(found.log_det(z[n]), rel=1e-13)
    np.testing.assert_allclose(x, found.to_x(z), rtol=1e-13)
    np.testing.assert_allclose(g_z, found.pull_back(z, g), rtol=1e-11, atol=1e-13)


def test_any_leading_shape_and_inputs_are_left_alone():
    found, z = three_levels(), points(2, 3)
    g, kept = points(2, 3) + 1.0, z.copy()
    flat = z.reshape(-1, D)
    for name in ("to_x", "to_z"):
        np.testing.assert_array_equal(getattr(found, name)(z), getattr(found, name)(flat).reshape(z.shape))
    assert found.log_det(z).shape == (2, 3)
    assert found.log_det(z[0, 0]).shape == ()
    for name in ("pull_back", "push_forward"):
        expected = getattr(found, name)(flat, g.reshape(-1, D)).reshape(z.shape)
        np.testing.assert_array_equal(getattr(found, name)(z, g), expected)
    np.testing.assert_array_equal(z, kept)
    np.testing.assert_array_equal(g, kept + 1.0)


def test_coordinates_that_are_no_sinks_stay_as_they_are():
    found, z = three_levels(), points(4)
    rest = np.setdiff1d(np.arange(D), found.sink)
    np.testing.assert_array_equal(found.to_x(z)[:, rest], z[:, rest])
    np.testing.assert_array_equal(found.to_z(z)[:, rest], z[:, rest])


def test_a_map_without_sinks_is_the_identity():
    nothing = FunnelMap(*(np.zeros(n) for n in (0, 1, 0, 0, 0, 0, 0, 0, 0, 0))).checked(D)
    z = points(3)
    np.testing.assert_array_equal(nothing.to_x(z), z)
    np.testing.assert_array_equal(nothing.pull_back(z, z), z)
    np.testing.assert_array_equal(nothing.log_det(z), np.zeros(3))


def test_scales_saturate_without_overflow():
    v = np.array([-800.0, -1.0, 800.0, 800.0, -800.0])
    ceiling = np.array([2.0, np.inf, 2.0, np.inf, np.inf])
    log_scale, w = saturate(v, ceiling)
    np.testing.assert_array_equal(log_scale, [-800.0, -1.0, 2.0, 800.0, -800.0])
    np.testing.assert_array_equal(w, [1.0, 1.0, 0.0, 1.0, 1.0])


def test_a_map_of_other_units_is_the_same_map():
    found, u = three_levels(), points(30)
    rng = np.random.default_rng(5)
    centre, scale = rng.normal(size=D), np.exp(rng.normal(size=D))
    x = centre + scale * found.to_x(u)
    moved = found.rescaled(centre, scale).checked(D)
    rest = np.setdiff1d(np.arange(D), found.sink)
    z = u.copy()
    z[:, rest] = centre[rest] + scale[rest] * u[:, rest]
    np.testing.assert_allclose(moved.to_x(z), x, rtol=1e-12, atol=1e-12)


def finite_difference(function, z, h=1e-5):
    moves = h * np.eye(D)
    return (function(z[:, None] + moves) - function(z[:, None] - moves)) / (2 * h)


def test_the_derivatives_are_those_of_finite_differences():
    found, z = three_levels(), points(10)
    jacobians = finite_difference(found.to_x, z).swapaxes(1, 2)
    np.testing.assert_allclose(found.log_det(z), np.linalg.slogdet(jacobians)[1], rtol=1e-6, atol=1e-6)

    def log_density(z):
        return -np.cosh(found.to_x(z)).sum(axis=-1) + found.log_det(z)

    g_z = found.pull_back(z, -np.sinh(found.to_x(z)))
    np.testing.assert_allclose(g_z, finite_difference(log_density, z), rtol=1e-5, atol=1e-5)


def test_where_the_scale_is_at_its_ceiling_a_sink_is_shifted_by_its_anchor_alone():
    found = three_levels()
    wide = found._replace(log_scale=np.where(np.isinf(found.ceiling), found.log_scale, 60.0))
    z = points(6)
    x, moved = (part.to_x(z) for part in (wide, wide._replace(location=found.location + 1.0, load=found.load + 1.0)))
    np.testing.assert_allclose(moved[:, 5], x[:, 5], rtol=1e-12)
    inside = slice(found.start[1], found.start[2])
    anchor = found.anchor[1] + x[:, found.source[inside]] @ found.anchor_load[inside]
    np.testing.assert_allclose(x[:, 5], anchor + np.exp(found.ceiling[1]) * z[:, 5], rtol=1e-12, atol=1e-12)


def test_texts_keep_the_anchor_loads_and_old_ones_have_none():
    found = three_levels()
    again = FunnelMap.from_json(found.to_json())
    for one, other in zip(again, found, strict=True):
        np.testing.assert_array_equal(one, other)
    old = json.loads(found.to_json())
    del old["anchor_load"]
    np.testing.assert_array_equal(FunnelMap.from_json(json.dumps(old)).anchor_load, np.zeros(14))


def test_levels_hold_no_source_of_their_own():
    found = three_levels()
    assert [(at.start, at.stop) for at in found.levels()] == [(0, 2), (2, 3), (3, 6), (6, 7)]
    for at in found.levels():
        inside = found.source[found.start[at.start] : found.start[at.stop]]
        assert not set(found.sink[at].tolist()) & set(inside.tolist())
    assert found.levels()[0].start == 0 and found.levels()[-1].stop == len(found.sink)


def test_it_is_plain_data():
    found = three_levels()
    for one, other in zip(pickle.loads(pickle.dumps(found)), found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.kinds == tuple("saturating" if k % 2 else "linear" for k in range(7))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope": np.zeros(3)}, r"slope has shape \(3,\), but for 7 sinks it must be \(14,\)"),
        ({"anchor_load": np.zeros(7)}, r"anchor_load has shape \(7,\), but for 7 sinks it must be \(14,\)"),
        ({"anchor_load": np.full(14, np.nan)}, r"anchor_load\[0\]=nan: must be a finite number"),
        ({"log_scale": np.full(7, np.inf)}, r"log_scale\[0\]=inf: must be a finite number"),
        ({"ceiling": np.full(7, -np.inf)}, r"ceiling\[0\]=-inf: must be a finite number"),
        ({"ceiling": np.full(7, np.nan)}, r"ceiling\[0\]=nan"),
        ({"sink": np.array([3, 5, 4, 7, 8, 9, 12])}, r"sink\[6\]=12: the model has 12 coordinates"),
        ({"sink": np.array([3, 5, 4, 7, 8, 9, 9])}, "twice in sink"),
        ({"sink": np.array([4, 5, 3, 7, 8, 9, 11])}, "coordinate 3 is a source of a sink that comes before it"),
        ({"start": np.array([0, 1, 1, 5, 6, 10, 12, 14])}, "with a source for every sink"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        three_levels()._replace(**change).checked(D)

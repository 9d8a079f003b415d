"""A turn of an angle and a sign of a scale are no other modes; two places of one circle are."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pmm_mcmc as pmm

pytestmark = pytest.mark.pymc

QUIET = {"progressbar": False, "compute_convergence_checks": True}


def an_angle():
    pm.VonMises("angle", 0.5, 4.0)


def an_angle_to_learn():
    """Seed 3 has a place that a sign of the scale makes a copy of."""
    mean = pm.VonMises("mean", 0.0, 0.5)
    concentration = pm.HalfNormal("concentration", 5.0)
    directions = np.random.default_rng(0).vonmises(1.0, 3.0, 40)
    pm.VonMises("y", mean, concentration, observed=directions)


def angles_beside_a_mean():
    mean = pm.Normal("mean")
    angles = pm.VonMises("angles", 3.0, 8.0, shape=4)
    pm.Normal("y", mean + pt.cos(angles).sum(), 0.5, observed=-2.0)


@pytest.mark.parametrize("function", [an_angle, an_angle_to_learn, angles_beside_a_mean])
def test_copies_are_not_other_modes(function):
    with pm.Model() as model:
        function()
    for seed in (1, 2, 3):
        verdict = pmm.verdict(pmm.sample(model=model, random_seed=seed, **QUIET))
        assert verdict.trusted, verdict.sentence


def test_two_places_of_a_circle_are_two_modes():
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0.0, 0.01)
        near, far = (pt.exp(20.0 * (pt.cos(angle - place) - 1.0)) for place in (1.0, -2.0))
        pm.Potential("places", pt.log(near + far))
    for seed in (1, 2, 3):
        verdict = pmm.verdict(pmm.sample(model=model, random_seed=seed, **QUIET))
        assert not verdict.trusted and {reason.code for reason in verdict.reasons} & {"modes", "r_hat"}

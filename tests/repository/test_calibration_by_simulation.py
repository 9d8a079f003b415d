"""Simulation-based calibration: its tests of ranks against exact and biased draws, and its parts on a small run.

Statistical: of 400 studies with exact draws so many may be rejected as chance at the declared rate brings about with
probability 1e-6; other z-scores are within 5 (6e-7 each, two sides).  Detections are at fixed seeds, of effects
whose tests have a power above 0.99.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm, weibull_min

from pmm_mcmc.diagnostics.reasons import (
    Measured,
    bias_reasons,
    disagreement_reasons,
    identity_reasons,
    length_reasons,
    unstable_reasons,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import calibration_by_simulation as calibration
from simulated_models import SIMULATED

DRAWS = 100


def study(rng, replicates, quantities=4, off=0.0, wide=1.0):
    """Ranks of truths among draws of correlated normal posteriors, shifted by ``off`` posterior sds or stretched."""
    mix = np.eye(quantities) + 0.4
    truth = rng.normal(size=(replicates, quantities)) @ mix
    draws = rng.normal(size=(replicates, DRAWS, quantities)) @ mix
    sd = np.sqrt((mix**2).sum(axis=0))
    return (off * sd + wide * draws < truth[:, None]).sum(axis=1)


def test_exact_draws_are_rejected_as_rarely_as_declared():
    rng = np.random.default_rng(1)
    found = [calibration.uniformity(study(rng, 60), DRAWS) for _ in range(400)]
    assert sum(each.rejected for each in found) <= binom.isf(1e-6, 400, calibration.CHANCE)
    assert sum(each.bins < 0.05 for each in found) <= binom.isf(1e-6, 400, 0.05)
    # The part of the means, by itself, is exact: its p-values are uniform.
    joint = np.array([each.joint for each in found])
    assert abs(joint.mean() - 0.5) * np.sqrt(12 * 400) < 5.0
    biases = np.array([each.bias for each in found])
    assert np.all(np.abs(biases.mean(axis=0)) < 5.0 * found[0].bias_se / 20.0)
    # And the standard error is that of the estimates: their variance is known to a tenth.
    assert np.allclose(biases.std(axis=0), found[0].bias_se, rtol=0.18)


@pytest.mark.parametrize("off", [-0.3, 0.3])
def test_a_bias_of_a_third_of_a_posterior_sd_is_found(off):
    found = calibration.uniformity(study(np.random.default_rng(2), 300, off=off), DRAWS)
    assert found.rejected and found.joint < calibration.CHANCE / 2
    assert np.all(np.abs(found.bias - off) < 5.0 * found.bias_se)
    assert np.all(np.sign(found.bias) == np.sign(off))


def test_a_bias_of_one_quantity_among_many_is_found():
    rng = np.random.default_rng(3)
    off = np.zeros(10)
    off[7] = 0.5
    found = calibration.uniformity(study(rng, 200, 10, off), DRAWS)
    assert found.rejected and int(np.argmax(np.abs(found.bias))) == 7


@pytest.mark.parametrize("wide", [0.75, 1.4])
def test_a_wrong_width_is_found_by_the_bins(wide):
    found = calibration.uniformity(study(np.random.default_rng(4), 300, wide=wide), DRAWS)
    assert found.bins < calibration.CHANCE / 2
    # 100 draws hold no scores beyond 2.6, which flattens the narrow ones.
    assert np.all(np.abs(found.spread - wide) < 0.2 * wide)


def test_too_few_ranks_are_not_tested():
    assert calibration.uniformity(study(np.random.default_rng(5), 49), DRAWS) is None


def test_ranks_are_among_every_fortieth_draw():
    values = np.zeros((2, 80, 1))
    values[0, 39], values[0, 79], values[1, 39], values[1, 79] = 1.0, 2.0, 3.0, 4.0
    for truth, rank in ((0.5, 0), (1.5, 1), (3.5, 3), (9.0, 4)):
        assert calibration.thinned_ranks(values, np.array([truth])) == [rank]


def test_corrected_draws_have_the_corrected_moments():
    values = np.random.default_rng(6).gamma(2.0, size=(4, 500, 3))
    mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
    better, better_sd = mean + np.array([0.1, 0.0, -0.3]), sd * np.array([1.0, 1.2, 0.8])
    found = calibration.corrected_draws(values, mean, sd, better, better_sd)
    assert np.allclose(found.mean(axis=(0, 1)), better) and np.allclose(found.std(axis=(0, 1)), better_sd)


def test_every_reason_of_a_verdict_has_a_kind():
    measured = Measured(["a"], *(np.array([v]) for v in (0.5, 0.01, 0.1, 0.5, 0.01)), np.array([True]), np.array([0.1]))
    stats = {"expected_bias": type("Values", (), {"values": np.array([1.0])})}
    reasons = [
        *unstable_reasons(100, np.array([0.1]), 1000, 0),
        *identity_reasons(np.array([0.5]), np.array([50.0]), 0.1, 50, lambda i: "a"),
        *bias_reasons(measured, 50),
        *length_reasons(stats, False),
        *disagreement_reasons(["a"], np.array([1.2]), np.array([0.1])),
        *disagreement_reasons(["a"], np.array([1.0]), np.array([0.1])),
    ]
    kinds = [calibration.kind(str(reason)) for reason in reasons]
    assert len(set(kinds)) == len(reasons) == 7
    assert not any(any(letter.isdigit() for letter in words) for words in kinds)


def test_simulated_data_belong_to_their_truths():
    model = SIMULATED["linear"].build()
    truths, data = calibration.simulated(model, 200, 1)
    x = np.random.default_rng(1).normal(size=(30, 3))
    mean, sigma = truths["intercept"][:, None] + truths["slope"] @ x.T, truths["sigma"][:, None]
    assert np.allclose(truths["log_likelihood"], norm.logpdf(data, mean, sigma).sum(axis=1))
    z = (data - mean) / sigma
    assert abs((z**2).mean() - 1.0) / np.sqrt(2.0 / z.size) < 5.0
    assert abs((truths["slope"] ** 2).mean() - 1.0) / np.sqrt(2.0 / truths["slope"].size) < 5.0
    again, other = calibration.simulated(model, 3, 1), calibration.simulated(model, 3, 2)
    assert np.array_equal(again[1], data[:3]) and not np.array_equal(other[1], data[:3])


def test_log_likelihood_of_censored_data():
    model = SIMULATED["survival"].build()
    truths, data = calibration.simulated(model, 50, 1)
    x = np.random.default_rng(5).normal(size=(40, 2))
    law = weibull_min(truths["shape"][:, None], scale=np.exp(truths["intercept"][:, None] + truths["slope"] @ x.T))
    expected = np.where(data < 6.0, law.logpdf(data), law.logsf(6.0)).sum(axis=1)
    assert (data == 6.0).any() and np.allclose(truths["log_likelihood"], expected)


@pytest.mark.parametrize("name", SIMULATED)
def test_every_model_draws_finite_truths_and_data(name):
    truths, data = calibration.simulated(SIMULATED[name].build(), 20, 3)
    assert np.isfinite(data).all() and all(np.isfinite(values).all() for values in truths.values())


def test_a_few_replicates():
    model = SIMULATED["linear"].build()
    part = calibration.replicates(model, "recycled", 3, 1)
    assert part["quantities"] == ["intercept", "slope[0]", "slope[1]", "slope[2]", "sigma", "log_likelihood"]
    assert part["draws"] == DRAWS
    for ranks in (np.array(part["raw"]), np.array(part["corrected"])):
        assert ranks.shape == (3, 6) and ranks.min() >= 0 and ranks.max() <= DRAWS and ranks.std() > 5
    # A correction of a few hundredths of a posterior sd moves ranks by little.
    assert 0 < np.abs(np.array(part["raw"]) - part["corrected"]).max() < 15
    assert len(part["reasons"]) == 3 and part["gradients"] > 100
    assert np.abs(part["measured"]).max() < 0.2


def part_of(seed, refused=0):
    rng = np.random.default_rng(seed)
    ranks = study(rng, 60, 3)
    return {
        "seed": seed, "quantities": ["a", "b", "c"], "draws": DRAWS, "raw": ranks.tolist(), "corrected": ranks.tolist(),
        "measured": [0.01, -0.02, 0.0], "measured_se": [0.003, 0.003, 0.003],
        "reasons": [["chains disagree: r_hat of a is 1.2 (draw more)"] if i < refused else [] for i in range(60)],
        "seconds": 0.5, "gradients": 4000,
    }  # fmt: skip


def test_seeds_are_put_together():
    record = calibration.joined([part_of(1), part_of(2, refused=3)])
    assert record["raw"].shape == (120, 3) and len(record["reasons"]) == 120 and record["seeds"] == [1, 2]
    assert np.allclose(record["measured_se"], 0.003 / np.sqrt(2))


def test_report_and_picture_of_what_is_stored(tmp_path):
    stored = {"made": "today", "models": {"linear": {"paper": [part_of(1), part_of(2, refused=70)]}}}
    text = "\n".join(calibration.report(stored))
    assert "60 of 120 trusted" in text and "refused for: chains disagree 60" in text
    assert text.count("raw, trusted") == text.count("corrected, refused") == 1
    assert "measured -0.0200 +- 0.0021 [b]" in text
    calibration.picture(stored, tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 5000


def test_stored_tables_are_those_of_the_stored_ranks():
    kept = calibration.RESULTS / "calibration_by_simulation.json"
    text = kept.with_suffix(".txt").read_text()
    assert text == "\n".join(calibration.report(json.loads(kept.read_text()))) + "\n"


def test_unknown_models_are_refused(capsys):
    with pytest.raises(SystemExit):
        calibration.main(["line"])
    assert "unknown model line" in capsys.readouterr().err

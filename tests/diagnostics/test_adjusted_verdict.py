"""``pmm.verdict`` of draws of an adjusted kernel, and of other samplers: each check by itself."""

import json

import arviz as az
import numpy as np
import pytest
import xarray as xr
from results import gaussian, grid, tree

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.checks import errors_of_mean, standstill
from pmm_mcmc.diagnostics.convergence import nested
from pmm_mcmc.diagnostics.parameters import Parameters
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.verdict import checks_of


def adjusted(position, ended=1, gradient=None, posterior=None, **statistics):
    """Return a result of an adjusted kernel, as ``pmm.sample`` makes it."""
    shape = position.shape[:2]
    stats = {"n_grad": np.ones(shape, int), "acceptance_rate": np.full(shape, 0.9), "diverging": np.zeros(shape, bool)}
    if posterior is None:
        posterior = {"a": position[..., 0], "b": position[..., 1:]}
    dt = tree(posterior, position, -position if gradient is None else gradient, **(stats | statistics))
    dt["posterior"].attrs["adjusted"] = 1
    chains = np.arange(shape[0])
    numbers = {"transitions": 200, "gradients": 210.0, "acceptance_rate": 0.9, "step_size": 0.5, "ended": ended}
    report = xr.Dataset(numbers | {"acceptance": ("chain", np.full(shape[0], 0.9))}, {"chain": chains})
    dt["equilibration"] = xr.DataTree(report)
    return dt


def codes(dt):
    return [reason.code for reason in pmm.verdict(dt).reasons]


def without_gradients(dt):
    """Return a result whose gradients were not kept."""
    stats = dt["sample_stats"].to_dataset().drop_vars(["gradient", "unconstrained"])
    return dt.assign({"sample_stats": xr.DataTree(stats)})


def test_the_sentence_of_a_good_run_says_how_well_all_means_are_known():
    x = grid(3)
    sentence = pmm.verdict(adjusted(x)).sentence
    told = "Trusted: all means are within {:.0f} % of a posterior sd, with 95 % confidence each; {} is known least."

    def errors(dt):
        table = read(dt).table
        return table["mcse_cv"] / table["sd_cv"]

    assert sentence == told.format(1, errors(adjusted(x)).idxmax())
    plain = without_gradients(adjusted(x))
    assert 200 * errors(plain).max() > 2
    assert pmm.verdict(plain).sentence == told.format(np.ceil(200 * errors(plain).max()), errors(plain).idxmax())
    assert (errors(plain) > (1 - 1e-9) * errors_of_mean(read(plain))).all(), "no less than ArviZ's"


def test_a_mean_that_gradients_do_not_explain_has_its_plain_error():
    x = grid(2)
    noise = grid(1, seed=2)[..., 0]
    dt = adjusted(x, posterior={"x": x, "noise": noise})
    error = read(dt).table.loc["noise", "mcse_cv"] / noise.std()
    assert error > (1 - 1e-9) * errors_of_mean(read(dt))["noise"]
    assert pmm.verdict(dt).sentence == (
        f"Trusted: all means are within {np.ceil(200 * error):.0f} % of a posterior sd, with 95 % confidence each; "
        "noise is known least."
    )
    table = pmm.summary(dt, round_to="none")
    assert table.loc["noise", "mean_cv"] == pytest.approx(noise.mean(), abs=1e-12)


@pytest.mark.parametrize("size", [0.15, 0.3])
def test_nothing_is_said_of_a_bias(size):
    """What a correction removes of adjusted draws is noise: nothing is added to its error for what it leaves."""
    x = grid(3, draws=2000) + size * np.array([0.0, 1.0, 0.0])
    dt = adjusted(x)
    assert codes(dt) == [] and "bias" not in pmm.verdict(dt).sentence
    assert not {"bias", "bias_se"} & set(pmm.summary(dt))
    assert not {"bias", "bias_se"} & set(pmm.summary(dt, kind="all"))
    assert {"bias", "bias_se"} <= set(pmm.summary(gaussian(x)))


def test_errors_of_corrected_means_are_those_of_control_variates():
    """An eighth of the variance is noise: of unadjusted draws a share of the shift counts as an error."""
    x = grid(2, draws=2000) + np.array([0.15, 0.0])
    noise = grid(1, draws=2000, seed=2)[..., 0]
    posterior = {"partly": x[..., 0] + 0.4 * noise, "x": x[..., 1]}
    error = read(adjusted(x, posterior=posterior)).table.loc["partly", "mcse_cv"]
    assert error < 0.5 * read(tree(posterior, x, -x)).table.loc["partly", "mcse_cv"]


def test_unadjusted_checks_are_not_asked():
    shape = (4, 600)
    many = {"unstable": np.ones(shape, int), "steps_per_draw": np.ones(shape, int)}
    dt = adjusted(grid(3), **many)
    assert pmm.verdict(dt).trusted and pmm.verdict(without_gradients(dt)).trusted
    del dt["posterior"].attrs["adjusted"]
    assert codes(dt) == ["divergences"], "of an unadjusted step beside one with an acceptance rate"
    del dt["sample_stats"]["unstable"]
    assert pmm.verdict(dt).trusted, "our kernels with an acceptance are adjusted"
    dt = adjusted(grid(3), **many)
    dt["posterior"].attrs["adjusted"] = 0
    assert codes(dt) == ["divergences"]


def test_an_equilibration_that_did_not_end_leaves_a_run_undecided():
    verdict = pmm.verdict(adjusted(grid(3), ended=0))
    assert verdict.state == "undecided" and [reason.code for reason in verdict.reasons] == ["equilibration"]
    assert verdict.sentence == (
        "Undecided: equilibration did not end: chains had not forgotten their starts after 200 transitions. Raise "
        "tune, or start nearer with initvals=."
    )


def test_a_scale_that_is_still_on_its_way_is_named_and_is_no_edge():
    """Chains that walk down a ridge from a wide prior."""
    x = grid(3)
    x[..., 0] += 80.0 * np.exp(-np.linspace(0.0, 2.0, x.shape[1])) * np.linspace(0.8, 1.2, len(x))[:, None]
    sentence = pmm.verdict(adjusted(x, ended=0)).sentence
    assert "a is still on its way, from " in sentence and "edge" not in sentence
    assert "Start nearer, with initvals={'a': " in sentence
    assert "on its way" not in pmm.verdict(adjusted(x, ended=1)).sentence


@pytest.mark.filterwarnings("ignore:Found chain dimension:UserWarning")
def test_one_draw_of_each_of_many_chains_is_enough_after_an_equilibration():
    x = np.random.default_rng(1).normal(size=(500, 1, 3))
    assert pmm.verdict(adjusted(x)).sentence.startswith("Trusted: all means are within 9 % of a posterior sd")
    assert codes(adjusted(x[:100])) == ["mcse"]
    assert codes(adjusted(x[:19])) == ["few_draws"]
    assert codes(adjusted(x, ended=0)) == ["equilibration"]
    assert codes(gaussian(x)) == ["few_draws"]


def test_r_hat_of_superchains_is_arviz_s_and_of_one_draw_the_formula():
    x = np.random.default_rng(1).normal(size=(64, 40, 2))
    values = nested(Parameters(xr.Dataset({"x": (("chain", "draw", "i"), x)})), 16)
    for i in range(2):
        assert values.iloc[i] == az.rhat_nested(x[..., i], superchain_ids=np.arange(64) // 4)
    one = nested(Parameters(xr.Dataset({"x": (("chain", "draw", "i"), x[:, :1])})), 16)
    # Definition 2.2 of Margossian et al.: variances between superchains and, within them, between chains.
    groups = x[:, 0].reshape(16, 4, 2)
    ratio = groups.mean(axis=1).var(axis=0, ddof=1) / groups.var(axis=1, ddof=1).mean(axis=0)
    np.testing.assert_allclose(one, np.sqrt(1.0 + ratio))


@pytest.mark.parametrize(("same", "count", "refused"), [(1, 4, False), (1, 6, True), (8, 1, False), (8, 3, True)])
def test_divergences(same, count, refused):
    """As many as unstable transitions: one of 1,000 effective draws is harmless."""
    x = np.repeat(grid(3)[:, ::same], same, axis=1)
    diverging = np.zeros((4, 600), bool)
    diverging[2, :count] = True
    dt = adjusted(x, diverging=diverging)
    assert ("divergences" in codes(dt)) == refused
    if refused:
        (reason,) = [reason for reason in pmm.verdict(dt).reasons if reason.code == "divergences"]
        assert reason.words.startswith(f"{count} of 2400 draws followed a divergence") and reason.value == count


def test_the_place_of_divergences_is_said():
    x = grid(3)
    dt = adjusted(x, diverging=x[..., 2] > 2.0)
    assert ", most of all where b[1] is 2.4 sd above its mean, limit " in pmm.verdict(dt).sentence


def test_a_chain_that_stands_still_is_not_trusted():
    accept = np.full((4, 600), 0.9)
    accept[1] = 0.46
    assert pmm.verdict(adjusted(grid(3), acceptance_rate=accept)).trusted
    accept[1] = 0.4
    verdict = pmm.verdict(adjusted(grid(3), acceptance_rate=accept))
    assert verdict.state == "not trusted"
    assert verdict.sentence.startswith("Not trusted: chain 1 stands still: it accepts 0.40, the middle one 0.90.")


def test_of_two_adjusted_steps_each_is_asked():
    accept = np.full((4, 600, 2), 0.9)
    dt = adjusted(grid(3))
    dt["sample_stats"] = dt["sample_stats"].to_dataset().assign(acceptance_rate=(("chain", "draw", "step"), accept))
    assert pmm.verdict(dt).trusted
    accept[1, :, 1] = 0.4
    assert "chain 1 stands still: it accepts 0.40" in pmm.verdict(dt).sentence


@pytest.mark.statistical
@pytest.mark.parametrize(("chains", "draws"), [(4, 4), (4, 100), (1000, 4), (1000, 20)])
def test_good_chains_are_not_said_to_stand_still(chains, draws):
    """At an acceptance of .6, by the law of log ratios of many coordinates: none of 200 runs."""
    rng = np.random.default_rng(4)
    posterior = xr.Dataset({"x": (("chain", "draw"), np.zeros((chains, draws)))}, attrs={"adjusted": 1})
    for _ in range(200):
        accept = np.minimum(1.0, np.exp(rng.normal(-0.55, 1.05, size=(chains, draws))))
        stats = xr.Dataset({"acceptance_rate": (("chain", "draw"), accept)})
        assert standstill(Run(posterior, stats)) is None


def test_other_samplers_are_judged_by_draws_and_divergences():
    x = grid(3)
    posterior = {"a": x[..., 0], "b": x[..., 1:]}
    shape = x.shape[:2]
    dt = tree(posterior, x, -x, acceptance_rate=np.full(shape, 0.9), diverging=np.zeros(shape, bool))
    dt = without_gradients(dt)
    assert pmm.verdict(dt).sentence.startswith("Trusted: all means are within 5 % of a posterior sd")
    assert list(pmm.summary(dt)) == ["mean_cv", "mcse_cv", "sd", "r_hat", "ess_bulk"]
    dt["sample_stats"]["diverging"][0, 0] = True
    assert pmm.verdict(dt).sentence == (
        "Not trusted: 1 of 2400 transitions diverged. Raise target_accept, or reparametrise."
    )


def test_a_density_with_an_edge_is_said_to_be_one_cause_of_two():
    sentence = pmm.verdict(adjusted(1.6 * grid(3))).sentence
    assert "arm or a tail: draw more, or reparametrise; or the density has an edge or a jump there" in sentence
    assert "edge" not in pmm.verdict(adjusted(np.sqrt(1.2) * grid(3, draws=4000))).sentence


def test_where_the_density_jumps_the_identity_is_not_asked_and_plain_means_are_kept():
    """It lacks a boundary term there."""
    x = np.sqrt(1.2) * grid(3, draws=4000)
    dt = adjusted(x)
    assert codes(dt) == ["identity"] and read(dt).table["bias"].notna().all()
    dt["posterior"].attrs["findings"] = json.dumps({"jump": 1.5})
    assert codes(dt) == [] and read(dt).table["bias"].isna().all()


@pytest.mark.filterwarnings("ignore:Found chain dimension:UserWarning")
def test_every_check_is_in_the_list_of_those_who_are_asked():
    x = grid(3)

    def asked(dt):
        return {check.__name__ for check in checks_of(read(dt))}

    every = {"one_chain", "r_hat", "mcse_of_mean", "mcse_of_sd", "divergences", "standstill"}
    every |= {"modes", "unfinished_search", "labels", "heavy_tails"}
    ours = every | {"improper", "equilibration", "identity", "neck"}
    assert asked(adjusted(x)) == ours
    assert asked(gaussian(x)) == ours | {"unstable", "bias_of_mean", "bias_of_sd", "unbounded_bias_of_sd", "unmeasured"}
    assert asked(without_gradients(gaussian(x))) == every
    dt = adjusted(x)
    dt["ladder"] = xr.DataTree(xr.Dataset({"restarts": 1}))
    assert asked(dt) == ours | {"restarts", "evidence"}
    assert asked(gaussian(x[:, :3])) == {"few_draws"}


# -- runs of PyMC's loop, whose steps the statistic ``sampler`` names --------------------------------------------------


SHAPE = (4, 600)


def made_by(*steps):
    """Return the statistic of steps, each a method with its arguments."""
    texts = []
    for name, arguments in steps:
        made = {"sampler": name, "adjusted": int(name == "GHMC"), "vars": ["a"], "arguments": arguments}
        texts.append(json.dumps(made | {"keep_gradients": 1}))
    return {"sampler": np.broadcast_to(np.array(texts, dtype=object), (*SHAPE, len(texts)))}


def test_an_unadjusted_step_beside_one_with_an_acceptance_rate_is_asked_for_its_bias():
    accept = {"acceptance_rate": np.ones(SHAPE), "n_grad_total": np.ones(SHAPE, int)}
    wide = 1.2 * grid(3)
    dt = gaussian(wide, **accept, **made_by(("ULMC", {"step_size": 0.5}), ("GHMC", {})))
    assert {reason.code for reason in pmm.verdict(dt).reasons} >= {"identity", "bias"}
    assert "Take adjusted draws: give a to pmm.GHMC" in pmm.verdict(dt).sentence
    assert pmm.verdict(gaussian(grid(3), **accept, **made_by(("GHMC", {}), ("GHMC", {})))).trusted


def test_too_long_a_step_is_called_that_where_its_law_on_a_gaussian_explains_the_excess():
    """A step of 1.2 of ULMC makes a variance of 2.2 of one of 1."""
    stats = {"step_size": np.full(SHAPE, 1.2), "friction": np.ones(SHAPE), "n_grad_total": np.ones(SHAPE, int)}
    wide = np.sqrt(2.2) * grid(3)
    given = gaussian(wide, **stats, **made_by(("ULMC", {"step_size": 1.2, "scaling": [1.0] * 3})))
    assert "Take adjusted draws" in pmm.verdict(given).sentence
    automatic = gaussian(wide, **stats, **made_by(("ULMC", {})))
    assert "edge or a jump" in pmm.verdict(automatic).sentence

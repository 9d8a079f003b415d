"""``pmm.verdict``: each of its reasons is set off alone, and chance does not set off any.

Draws made by hand are permuted grids of quantiles, whose chains agree but for what a test changes.  False alarms of the
verdict on exact draws are counted: a correct one goes above the bounds here once in 1e5.
"""

from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pytest
from results import gaussian, grid, tree
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.checks import identity, unmeasured
from pmm_mcmc.diagnostics.control_variates import identity_of
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.statement import ADJUST, format_with_limit
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.warmup.stein_identity import Identity, degrees_of_freedom, stein_identity

pytestmark = pytest.mark.quick

RARE = 1e-5
MORE = "draw more"
MODEL = (
    "the model is not finite there, and a shorter step will not help: look at model.debug(), and bound parameters by "
    "their priors"
)


def times_of(reason):
    """How many times as many draws end a reason: an error falls with their root, the excess of r_hat with them."""
    if reason.code == "r_hat":
        return (reason.value - 1.0) / (reason.limit - 1.0)
    if reason.code == "few_draws":
        return reason.limit / reason.value
    return (reason.value / reason.limit) ** 2 if reason.code == "mcse" else 1.0


def only_reason(dt, remedy=None, state="not trusted"):
    """Return the words of the only reason of a run's state, which the sentence is made of."""
    found = pmm.verdict(dt)
    assert found.state == state and not found.trusted
    (reason,) = [reason for reason in found.reasons if reason.state == state]
    advice = f" {reason.remedy[0].upper()}{reason.remedy[1:]}." if reason.remedy else ""
    if reason.remedy == MORE:
        wanted = [times_of(each) for each in found.reasons if each.remedy == MORE]
        if max(wanted) > 1.0:
            said = float(found.sentence.partition(" Draw more: at least ")[2].partition(" times as many")[0])
            assert max(wanted) <= said <= max(wanted) + 0.1
            reparametrise = ", or reparametrise" if "r_hat" in {each.code for each in found.reasons} else ""
            modes = "; if there are several modes, use pmm.temper()" * (said > 10.0 and bool(reparametrise))
            advice = f" Draw more: at least {said:.1f} times as many{reparametrise}{modes}."
    assert found.sentence == f"{state.capitalize()}: {reason}.{advice}" and str(reason) == reason.words
    assert remedy in (None, reason.remedy)
    return reason.words


def percent(found):
    """The figure of a good sentence."""
    return float(found.sentence.partition("within ")[2].split()[0])


def test_a_good_run_is_trusted():
    found = pmm.verdict(gaussian(grid(3)))
    assert found.trusted and found.state == "trusted" and found.reasons == ()
    assert (
        found.sentence
        == str(found)
        == ("Trusted: all corrected means are within 1 % of a posterior sd, with 95 % confidence each.")
    )


def identity_reason(each, degrees, whitened=None):
    """Return the reason of identities of unadjusted draws."""
    run = SimpleNamespace(
        adjust=ADJUST,
        identity=each, whitened_identity=whitened, identity_degrees=degrees, has_edge=False, adjusted=False,
        jumps=False, gradient=True, sampled_position=None, closest_parameter=lambda positions, number: str(number),
    )  # fmt: skip
    return identity(run)


@pytest.mark.statistical
def test_chance_among_many_parameters_does_not_refuse_a_run():
    """Short runs of exact draws, at fixed seeds: each of three checks lets one in a hundred through."""
    suspicious = 0
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(4, 250, 100))
        excess, z, *_ = stein_identity(x, -x)
        suspicious += np.sum((np.abs(excess) > 0.075) & (np.abs(z) > 2.0))
        assert pmm.verdict(tree({"x": x}, x, -x)).trusted
    assert suspicious


@pytest.mark.parametrize(("same", "count", "refused"), [(1, 4, False), (1, 6, True), (8, 1, False), (8, 3, True)])
def test_unstable_transitions(same, count, refused):
    """Of 1000 effective draws 1 is harmless, however many transitions: 6 of 2400 are not chance (level .05).

    Where each draw is there eight times, of which 300 are effective, 3 are not.
    """
    unstable = np.zeros((4, 600), dtype=int)
    unstable[2, :count] = 1
    statistics = {"unstable": unstable, "steps_per_draw": np.full((4, 600), 2)}
    x = np.repeat(grid(3)[:, ::same], same, axis=1)
    dt = gaussian(x, **statistics)
    reasons = [reason for reason in pmm.verdict(dt).reasons if reason.code == "divergences"]
    assert len(reasons) == refused
    for reason in reasons:
        assert reason.words.startswith(f"{count} of 4800 transitions were unstable, ")
        assert reason.remedy == ADJUST and reason.value == count > reason.limit
    adjusted = gaussian(x, acceptance_rate=np.ones((4, 600)), **statistics)
    beside = [reason.code for reason in pmm.verdict(adjusted).reasons]
    assert ("divergences" in beside) == refused, "those of an unadjusted step beside one with an acceptance rate"
    adjusted["posterior"].attrs["adjusted"] = 1
    assert "divergences" not in [reason.code for reason in pmm.verdict(adjusted).reasons], "they are rejected"


def test_unstable_transitions_are_said_once_with_their_place():
    unstable = np.zeros((4, 600), dtype=int)
    x = grid(3)
    unstable[x[..., 2] > 2.0] = 1
    statistics = {"steps_per_draw": np.full((4, 600), 2), "step_size": np.full((4, 600), 0.42)}
    found = pmm.verdict(gaussian(x, unstable=unstable, **statistics))
    assert found.sentence == (
        f"Not trusted: {unstable.sum()} of 4800 transitions were unstable, most of all where b[1] is 2.4 sd above its "
        "mean, limit 5. Take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC())."
    )


@pytest.mark.parametrize(
    ("by_model", "remedy"),
    [
        (0, ADJUST),
        (10, ADJUST),
        (11, MODEL),
    ],
)
def test_transitions_that_the_model_is_to_blame_for(by_model, remedy):
    """The half of them or fewer: a shorter step is the remedy.  More: it is not."""
    unstable, failures = (np.zeros((4, 600), dtype=int) for _ in range(2))
    unstable[1, :10], unstable[3, :5] = 1, 2
    failures[1, :by_model] = 1
    steps = np.ones((4, 600), dtype=int)
    dt = gaussian(grid(3), unstable=unstable, model_failures=failures, steps_per_draw=steps)
    assert only_reason(dt, remedy).startswith("20 of 2400 transitions were unstable, ")


def test_chains_in_different_modes_disagree():
    x = grid(3)
    mode = np.zeros((4, 1, 3))
    mode[3, 0, 2] = 6.0
    dt = tree({"a": x[..., 0], "b": (x + mode)[..., 1:]}, x + mode, -x)
    assert only_reason(dt).startswith("r_hat of b[1] is ")
    assert pmm.verdict(dt).reasons[0].remedy.startswith("chains keep apart: use pmm.temper()")
    mode[3, 0, 2] = 2.0
    overlapping = tree({"a": x[..., 0], "b": (x + mode)[..., 1:]}, x + mode, -x)
    assert only_reason(overlapping, MORE).startswith("r_hat of b[1] is ")


def test_a_run_that_pymc_warns_of_is_not_trusted():
    x = grid(3)
    x[..., 1] += np.array([0.16, -0.16, 0.16, -0.16])[:, None]
    assert 1.01 < float(az.rhat(x[..., 1])) < 1.02
    near = pmm.verdict(gaussian(x))
    assert near.state == "undecided" and near.sentence.startswith("Undecided: r_hat of b[0] is 1.013, limit 1.010")
    x[..., 1] += np.array([0.16, -0.16, 0.16, -0.16])[:, None]
    assert only_reason(gaussian(x)).startswith("r_hat of b[0] is 1.0")


def test_a_figure_does_not_look_equal_to_its_limit():
    assert format_with_limit(1.01003, 1.01, 3) == ("1.01003", "1.01000")


def test_chains_that_are_not_long_enough():
    x = grid(3)
    assert pmm.verdict(gaussian(x)).trusted
    # Neighbours in groups of ten, in random order: a tenth as many independent draws.
    groups = np.sort(x[..., 1].reshape(8, 300), axis=1).reshape(8, 30, 10)
    x[..., 1] = np.random.default_rng(2).permutation(groups, axis=1).reshape(4, 600)
    reason = only_reason(gaussian(x), MORE, "undecided")
    assert reason.startswith("the mean of b[0] is known to 0.0") and reason.endswith(" posterior sd only, limit 0.05")


def test_chains_that_differ_by_more_than_chance():
    x = grid(3, draws=4000)
    x[..., 1] += np.array([0.12, -0.12, 0.12, -0.12])[:, None]
    assert only_reason(gaussian(x), MORE, "undecided") == (
        "the mean of b[0] is known to 0.07 posterior sd only, limit 0.05"
    )


def test_a_coordinate_that_is_too_wide():
    x = grid(4, draws=4000)
    x[..., 2] *= np.sqrt(1.13)
    assert only_reason(gaussian(x), ADJUST) == "E[x dF/dx] of b[1] is 1.130, limit 1.075"
    x[..., 2] *= np.sqrt(0.87 / 1.13)
    assert only_reason(gaussian(x)) == "E[x dF/dx] of b[1] is 0.870, limit 0.925"
    x[..., 2] *= np.sqrt(1.06 / 0.87)
    assert pmm.verdict(gaussian(x)).trusted


def test_a_long_step_is_not_blamed_for_what_is_too_narrow():
    for excess, advice in (
        (0.1, ADJUST),
        (-0.1, "long steps widen, and this is too narrow: draw more, or reparametrise"),
    ):
        z = np.array([np.sign(excess) * 5.0, 0.0])
        reason = identity_reason(Identity(np.array([excess, 0.0]), z, 0.0, 2.0), 1000)
        assert reason.remedy == advice


def test_a_coordinate_too_wide_is_named_by_the_parameter_that_follows_it():
    x = grid(3, draws=4000)
    x[..., 2] *= np.sqrt(1.12)
    posterior = {
        "noise": grid(1, draws=4000, seed=2)[..., 0],
        "constant": np.ones((4, 4000)),
        "scale": np.exp(x[..., 2] / 4),
    }
    assert only_reason(tree(posterior, x, -x)).startswith("E[x dF/dx] of scale is 1.1")


def test_many_coordinates_that_are_all_a_little_too_wide():
    """None of them beyond chance alone, but all together, if the noise allows."""
    halves = np.sqrt(1.15) * grid(20).reshape(4, 2, 300, 20)
    for disorder, significant in ((3.0, True), (1.0, False)):
        # Far draws after near ones, more or less: the same variances, known less well from the pieces of a chain.
        order = (np.abs(halves) + disorder * np.random.default_rng(2).normal(size=halves.shape)).argsort(axis=2)
        x = np.take_along_axis(halves, order, axis=2).reshape(4, 600, 20)
        _, z, mean_square, _ = identity_of(x, -x)
        # All are far at the same times: they are worth one or two independent ones.
        assert np.abs(z).max() < 4.0 and (np.mean(z**2) > 7.5) == significant
        assert mean_square == pytest.approx(0.5 * 0.15**2)
        if significant:
            found = only_reason(gaussian(x))
            assert found.startswith("E[y dF/dy] of whitened coordinates y is 1.15 for ") and found.endswith(
                " off 1 by 0.15 on average, limit 0.14"
            )
            assert pmm.verdict(gaussian(np.sqrt(1.1 / 1.15) * x)).trusted, "by less"
        else:
            assert pmm.verdict(gaussian(x)).trusted


# name: exact draws, gradient of the log density
EXACT = {
    "normal": (lambda rng, s: rng.normal(size=s), lambda x: -x),
    "log gamma": (lambda rng, s: np.log(rng.gamma(4, size=s)), lambda x: 4 - np.exp(x)),
}


@pytest.mark.statistical
@pytest.mark.parametrize(("d", "draws"), [(1, 50), (3, 50), (20, 50)])
@pytest.mark.parametrize("name", EXACT)
def test_short_exact_runs_are_rarely_refused_for_the_identity(name, d, draws):
    """Of one coordinate or of all together: chance may bring about each once in a hundred runs, hence twice."""
    rng, runs, refused = np.random.default_rng(20), 1000, 0
    draw, gradient = EXACT[name]
    for run in range(runs):
        x = draw(rng, (4, draws, d))
        alarmed = identity(read(tree({"x": x}, x, gradient(x)))) is not None
        if alarmed or run < 5:  # the rest of a verdict takes longest, and says nothing of the identity
            reasons = pmm.verdict(tree({"x": x}, x, gradient(x))).reasons
            assert any(reason.code == "identity" for reason in reasons) == alarmed
        refused += alarmed
    assert refused <= stats.binom.isf(RARE, runs, 0.02), refused


def collinear(correlation, runs, draws=500, d=2, seed=21):
    """Yield the identities of exact normal draws with equal correlations."""
    covariance = (1.0 - correlation) * np.eye(d) + correlation
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    for x in np.random.default_rng(seed).normal(size=(runs, 4, draws, d)) @ root.T:
        yield identity_of(x, -x @ precision)


@pytest.mark.statistical
@pytest.mark.parametrize("correlation", [0.0, 0.99, 0.999])
def test_collinear_coordinates_do_not_count_as_independent_ones(correlation):
    """Their excesses are one excess: all together are refused by chance once in a hundred runs, not twice as often."""
    refused, runs = 0, 4000
    for each in collinear(correlation, runs):
        assert 1.0 <= each.independent <= (1.5 if correlation else 2.0)
        refused += "on average" in str(identity_reason(each, degrees_of_freedom(4, 500, 64)))
    assert refused <= stats.binom.isf(RARE, runs, 0.01), refused


def of_covariance(covariance, runs, draws, wide=1.0):
    """Yield normal runs of ``wide`` times the right variance."""
    root, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)
    for x in np.random.default_rng(22).normal(size=(runs, 4, draws, len(root))) @ root.T * np.sqrt(wide):
        yield read(tree({"x": x}, x, -x @ precision))


@pytest.mark.statistical
def test_the_noise_of_collinear_coordinates_refuses_no_run_and_hides_no_bias():
    """The average is over whitened coordinates: the model's, once in a hundred runs by chance, and blind."""

    def on_average(runs):
        each = [
            [str(identity_reason(run.identity, run.identity_degrees, of)) for of in (None, run.whitened_identity)]
            for run in runs
        ]
        return np.sum([["on average" in words for words in both] for both in each], axis=0)

    line = np.eye(3)
    line[0, 1] = line[1, 0] = -0.9985  # intercept and slope of a regression on heights of 170 cm with an sd of 9
    model, whitened = on_average(of_covariance(line, 600, 500))
    assert model > 0 and whitened == 0
    model, whitened = on_average(of_covariance(0.001 * np.eye(10) + 0.999, 20, 300, wide=1.2))
    assert model < 3 and whitened > 15


def test_the_mean_square_of_excesses_is_held_against_that_of_so_many_independent_ones():
    two, copies = np.full(2, 0.07), np.full(2, 2.7)
    for independent, refused in ((2.0, True), (1.0, False)):
        assert (identity_reason(Identity(two, copies, 0.02, independent), 15) is not None) == refused
    (seen,) = collinear(0.0, 1, draws=4000, d=100)
    assert 90.0 < seen.independent <= 100.0


def test_a_mean_that_is_off():
    shift = np.array([0.0, 1.0, 0.0])
    reason = only_reason(gaussian(grid(3) - 0.15 * shift))
    assert reason == "the mean of b[0] is off by 15.0 % of a posterior sd, limit 7.5 %"
    assert pmm.verdict(gaussian(grid(3) + 0.065 * shift)).trusted


def together(correlation, draws=2000, **statistics):
    """Twenty coordinates with the variances that they should have, but correlated; and their sum."""
    z = grid(21, draws=draws)
    x = np.sqrt(1.0 - correlation) * z[..., 1:] + np.sqrt(correlation) * z[..., :1]
    return tree({"x": x, "total": x.sum(axis=-1)}, x, -x, **statistics)


def test_a_standard_deviation_that_is_off():
    """Which no coordinate's own identity sees."""
    dt = together(0.02)
    row = bias_table(dt).loc["total"]
    off = 100 * row["bias_of_sd"] / row["sd_cv"]
    assert 14 < off < 20  # sqrt(1 + 19 * 0.02) = 1.175
    shown = 100 * read(dt).table.loc["total", "whole_bias_of_sd"] / row["sd_cv"]
    assert off < shown < 1.1 * off, "over the share that the correction explains"
    assert only_reason(dt) == f"the sd of total is off by {shown:.1f} % of a posterior sd, limit 7.5 %"
    words = only_reason(together(0.014, 150), ADJUST, "undecided")
    assert words.startswith("the sd of total may be off by ") and words.endswith(" % of a posterior sd, limit 7.5 %")
    row = bias_table(together(0.006)).loc["total"]
    assert 0.04 < row["bias_of_sd"] / row["sd_cv"] < 0.075
    assert pmm.verdict(together(0.006)).trusted


def partly_explained(shift):
    """A parameter an eighth of whose variance the gradients do not explain, with this bias of its mean."""
    x, noise = grid(2, draws=2000), grid(1, draws=2000, seed=2)[..., 0]
    x[..., 0] += shift
    return tree({"partly": x[..., 0] + 0.4 * noise, "x": x[..., 1]}, x, -x)


def test_what_a_correction_leaves_counts_too():
    """Of 0.08 in 1.08 standard deviations a third is thought to be left: in all it may be more than the limit."""
    dt = partly_explained(0.08)
    row = bias_table(dt).loc["partly"]
    assert 0.06 < row["bias_sd_units"] < 0.09 and 0.3 < row["unexplained"] < 0.45
    whole = 100 * row["bias_sd_units"] / (1.0 - row["unexplained"])
    assert only_reason(dt) == f"the mean of partly is off by {whole:.1f} % of a posterior sd, limit 7.5 %"
    x = grid(2, draws=2000) + np.array([0.07, 0.0])
    assert pmm.verdict(tree({"x": x}, x, -x)).trusted, "nothing is left"


def test_the_figure_is_two_errors_of_the_worst_mean_with_what_a_correction_leaves():
    dt = partly_explained(0.05)
    table = bias_table(dt)
    row = table.loc["partly"]
    size, error, left = row["bias_sd_units"], row["bias_se"] / row["sd_cv"], row["unexplained"]
    assert size > 2.5 * error and size / (1.0 - left) < 0.075
    known = (2.0 * table["mcse_cv"] / table["sd_cv"]).max()
    assert percent(pmm.verdict(dt)) == np.ceil(100 * known) > 2


def test_a_mean_that_is_not_known_well_enough_leaves_a_run_undecided():
    """Enough draws for plain means, but what a correction may have left is not small."""
    columns = {"sd": 1.0, "sd_cv": 1.0, "bias": 0.0, "mcse_cv": 0.06}
    run = SimpleNamespace(gradient=np.zeros(1), table=pd.DataFrame(columns, ["x"]))
    reason = unmeasured(run)
    assert reason.code == "unmeasured" and reason.remedy == MORE
    assert reason.words == "the corrected mean of x is known to 12 % of a posterior sd only, limit 10 %"
    run.table["mcse_cv"] = 0.049
    assert unmeasured(run) is None


@pytest.mark.parametrize(("draws", "state"), [(150, "undecided"), (2000, "trusted")])
def test_a_standard_deviation_is_known_where_gradients_do_not_bound_its_bias(draws, state):
    """Of a Student law they explain the mean; the square has heavy tails."""
    x = stats.t(3.5).ppf(np.random.default_rng(3).permuted((np.arange(4 * draws) + 0.5) / (4 * draws)))
    x = x.reshape(4, draws, 1)
    dt = tree({"x": x}, x, -4.5 * x / (3.5 + x**2))
    assert pmm.verdict(dt).state == state
    if state == "undecided":
        words = only_reason(dt, MORE, state)
        assert words.startswith("the bias of the sd of x[0] is not measurable, and its error is ")
        assert words.endswith(" %, limit 4.0 %")


def test_noise_is_not_called_bias():
    x = np.random.default_rng(4).normal(size=(1, 100, 3))
    x = (x - x.mean(axis=1)) / x.std(axis=1)
    assert pmm.verdict(gaussian(x + 0.12)).state == "undecided", "one standard error and a little"
    assert only_reason(gaussian(x + 0.7)).endswith(" is off by 70.0 % of a posterior sd, limit 7.5 %")


def test_one_chain_is_undecided():
    words = only_reason(gaussian(grid(3, chains=1)), "run four chains", "undecided")
    assert words == "one chain cannot be compared with others"


@pytest.mark.filterwarnings("ignore:Found chain dimension:UserWarning")
def test_few_draws_are_undecided():
    for chains, draws in ((1, 19), (8, 3), (1, 1), (2, 2)):
        x = np.random.default_rng(1).normal(size=(chains, draws, 3))
        words = only_reason(gaussian(x), "draw more", "undecided")
        assert words.startswith(f"{chains} x {draws} draws are too few to judge, limit 20")
        assert pmm.summary(gaussian(x), kind="bias")["bias"].isna().all()


def test_not_measurable_is_said():
    x, noise = grid(2), grid(1, seed=2)[..., 0]
    table = bias_table(tree({"x": x, "noise": noise}, x, -x))
    assert table.loc["noise", ["bias", "bias_se", "bias_sd_units", "bias_of_sd", "bias_of_sd_se"]].isna().all()
    assert table.loc["noise", "mean_cv"] == table.loc["noise", "mean"]
    assert table.loc["noise", "sd_cv"] == table.loc["noise", "sd"]
    found = pmm.verdict(tree({"x": x, "noise": noise}, x, -x))
    assert found.sentence == (
        "Trusted: corrected means are within 1 % of a posterior sd, with 95 % confidence each; the bias of noise is "
        f"not measurable: {ADJUST}."
    )
    # Those come first that are known least: their values are repeated.
    for repeats, names in (((1, 4), "b and a"), ((1, 2, 4), "c, b and a"), ((1, 1, 1, 2, 4), "e, d and 3 more")):
        some = {}
        for i, n in enumerate(repeats):
            values = np.random.default_rng(5 + i).normal(size=(4, 600 // n))
            some["abcde"[i]] = np.repeat(values - values.mean(axis=1, keepdims=True), n, axis=1)
        assert f"; the bias of {names} is not measurable: " in pmm.verdict(tree({"x": x, **some}, x, -x)).sentence
    words = only_reason(tree({"noise": noise}, x, -x), ADJUST, "undecided")
    assert words == "the bias could not be measured for any of the parameters"


def test_a_width_that_rests_on_few_excursions():
    """Chains agree, the mean is known and nothing is measurable: the standard deviation has to be known too."""
    x, noise = grid(2), grid(1, seed=2)[..., 0]

    def run_of(tail):
        """A free variable of which gradients say next to nothing."""
        slope = (tail.mean() - tail) / tail.var() + 9.0 * grid(1, seed=3)[..., 0]
        position, gradient = (np.concatenate([a, b[..., None]], axis=-1) for a, b in ((x, tail), (-x, slope)))
        return tree({"x": x, "tail": tail}, position, gradient)

    dt = run_of(noise**6)
    words = only_reason(dt, MORE, "undecided")
    assert words.startswith("the sd of tail is known to ") and words.endswith(" % only, limit 5 %")
    assert pmm.verdict(run_of(noise**2)).trusted, "known better"
    assert pmm.verdict(tree({"x": x, "tail": noise**6}, x, -x)).trusted, "of a deterministic it may not exist"
    child = np.concatenate([x, noise[..., None]], axis=-1)
    position = np.concatenate([x, noise[..., None] ** 6], axis=-1)
    hierarchy = tree({"x": x, "tail": noise**6}, position, -child, noncentred=child)
    assert pmm.verdict(hierarchy).trusted, "nor of a child, whose scale is known"


def test_heavy_tails_whose_means_are_known():
    """Gradients explain the means of t variables and, of enough draws, their widths."""
    x = np.random.default_rng(1).standard_t(3.0, size=(4, 600, 2))
    dt = tree({"x": x[:, :300]}, x[:, :300], (-4.0 * x / (3.0 + x**2))[:, :300])
    table = bias_table(dt)
    assert table["bias"].notna().all() and (table["mean_cv"].abs() < 0.05 * table["sd"]).all()
    unsure = table["bias_of_sd"].isna() & (table["mcse_sd_cv"] > 0.05 * table["sd"])
    assert unsure.any()
    words = [reason.words for reason in pmm.verdict(dt).reasons]
    assert any("the bias of the sd of x[" in text and "is not measurable, and its error " in text for text in words)
    table = bias_table(tree({"x": x}, x, -4.0 * x / (3.0 + x**2)))
    np.testing.assert_allclose(table["sd_cv"], np.sqrt(3.0), rtol=1e-3)


def test_constants_and_values_that_are_not_finite():
    x = grid(2)
    odd = np.exp(x[..., 0])
    odd[3, 5] = np.inf
    posterior = {"x": x, "constant": np.full((4, 600), 0.1)}
    dt = tree(posterior, x, -x)
    assert pmm.verdict(dt).sentence.endswith(" with 95 % confidence each; constant is constant.")
    row = bias_table(dt).loc["constant"]
    assert row["mean"] == row["mean_cv"] == 0.1
    assert row["sd"] == row["sd_cv"] == row["bias"] == row["bias_se"] == row["unexplained"] == 0.0
    assert pmm.summary(dt).loc["constant", "mean_cv"] == 0.1
    dt = tree({**posterior, "odd": odd}, x, -x)
    assert bias_table(dt).loc["odd", ["bias", "sd", "mcse_cv"]].isna().all()
    assert pmm.verdict(dt).sentence.endswith(f"; the bias of odd is not measurable: {ADJUST}.")
    # What is wrong elsewhere is still found.
    x[0] += 1.0
    assert not pmm.verdict(tree({"odd": odd, "x": x}, x, -x)).trusted


def test_chains_that_never_moved():
    still = np.broadcast_to(grid(2)[:, :1], (4, 100, 2)).copy()
    assert "r_hat of x[" in pmm.verdict(tree({"x": still}, still, -still)).sentence
    assert pmm.verdict(tree({"x": still[:1]}, still[:1], -still[:1])).state == "not trusted"

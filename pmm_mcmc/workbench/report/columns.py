"""Meaning and number format of the columns in a report on a run."""

from __future__ import annotations

__all__ = ["BIASES", "ESTIMATES", "FORMS", "SAMPLING", "SETTING", "interval_meaning"]

ESTIMATES = {
    "mean": "Mean of the draws.",
    "mean_cv": "Mean corrected by the gradients at the draws: the number to report.",
    "mcse_cv": "Standard error of the corrected mean.",
    "sd": "Standard deviation of the draws, over all chains.",
    "sd_cv": "Standard deviation corrected by the gradients at the draws, where that is possible.",
}
BIASES = {
    "bias": "Mean of the draws minus corrected mean: the effect of the step size on it, with some error by chance.",
    "bias_se": "Standard error of the bias: a bias of less than two of them may be chance.",
    "bias_sd_units": "The bias in posterior standard deviations.",
    "bias_of_sd": "Standard deviation of the draws minus the corrected one.",
    "bias_of_sd_se": "Standard error of the bias of the standard deviation.",
}
SAMPLING = {
    "ess_bulk": "Effective sample size of the bulk: the number of independent draws with the same precision.",
    "ess_tail": "Effective sample size of the tails: the same for the 5 % and 95 % quantiles.",
    "ess_per_grad": "ess_bulk for each gradient spent, warm-up included.",
    "r_hat": "Variation between chains relative to that within them: 1 if the chains agree; above 1.01 draw more.",
    "nested_r_hat": (
        "The same for groups of chains that started together, for many chains of few draws: it approaches 1 as the "
        "groups forget their starts."
    ),
    "mcse_mean": "Standard error of the mean of the draws, by chance.",
    "mcse_sd": "Standard error of the standard deviation by chance.",
}
SETTING = {
    "step_size": ("step size", "Length of a step in whitened units, where every posterior scale is about 1."),
    "K": ("K", "Cells of a step, in one of which a midpoint may be drawn; 1 where the method has none."),
    "friction": ("friction", "Friction in whitened units."),
    "steps_per_draw": ("steps per draw", "Transitions between two draws that are kept."),
    "expected_bias": (
        "expected bias",
        "Bias that a step of this size may cause in a mean where the posterior is steepest, in posterior standard "
        "deviations. It is a bound rather than an estimate: the bias is mostly much smaller.",
    ),
    "halving_cost": ("cost of half the bias", "Factor in gradients that half the target bias would cost."),
    "acceptance_rate": ("acceptance", "Mean probability that a proposal was accepted."),
    **dict.fromkeys(("n_grad", "n_steps"), ("gradients after warm-up", "Gradients of the log density after warm-up.")),
    "n_grad_total": ("gradients", "Gradients of the log density that a chain has spent, warm-up included."),
}
FORMS = {
    **dict.fromkeys(("bias", "bias_se", "mcse_mean", "mcse_sd", "mcse_cv", "bias_of_sd", "bias_of_sd_se"), ".2g"),
    **dict.fromkeys(("ess_bulk", "ess_tail"), ",.0f"),
    **dict.fromkeys(("r_hat", "nested_r_hat"), ".3f"),
    "bias_sd_units": ".3f",
    "ess_per_grad": ".2g",
}


def interval_meaning(column: str) -> str:
    """Return the meaning of a column such as ``eti89_lb`` or ``hdi94_ub`` of ArviZ's summary; empty for others."""
    for kind, words in (("eti", "central interval"), ("hdi", "shortest interval")):
        percent, _, side = column.removeprefix(kind).partition("_")
        if column.startswith(kind) and percent.isdigit() and side in ("lb", "ub"):
            which = "Lower" if side == "lb" else "Upper"
            return f"{which} end of the {words} that holds {percent} % of the draws, as they are."
    return ""

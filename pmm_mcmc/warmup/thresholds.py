"""The thresholds of warm-up: the meaning of each, and its measured effect.

Each was halved and doubled (near 1: its distance from 1) on an acceptance set of 12 or 24 runs, of which 11 or 16 are
trusted as they are (``benchmarks/frozen/thresholds.txt``).  "Changes 12, 10 of 12 runs, cost 1.09, 0.98" says: with
half the threshold 12 runs differ and their gradients, of warm-up and 400 effective draws, are 1.09 times as many; with
twice the threshold 10, and .98 times.  Costs, known to about .03, are given where they change by more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of warm-up and equilibration: lengths are in transitions of each chain, shares between 0 and 1."""

    # -- blocks: when they end (warm_up) -------------------------------------------------------------------------------

    first_block: int = 25
    """Length of the first block, and the shortest of an adapting one.  Changes 12, 12 of 12 runs, cost 1.01, 1.06."""
    growth: float = 0.3
    """Length of a later block over all transitions before it.  Changes 12, 12 of 12 runs, cost 1.04, 1.06."""
    freeze_at: float = 0.7
    """Share of the warm-up after which the setting is frozen, whether it has settled or not.  Changes 2, 2 of 12
    runs."""
    least_adapted: int = 100
    """Transitions before which nothing is frozen.  Of 130, half, double: 10, 10 of 12 runs differ, cost 0.96, 1.09."""
    least_check: int = 50
    """Length of the shortest check, and fewest transitions that determine steps per draw.  It matters from 16 chains
    on.  Changes no run."""
    checked_draws: int = 800
    """Draws of all chains together that a check looks at.  Changes 12, 10 of 12 runs, cost 0.99, 1.04, trusted 11,
    8."""
    stiff: float = 2.0
    """Whitened curvature above which adaptation and checks are longer in proportion.  Changes 12, 10 of 12 runs, cost
    1.09, 0.98."""
    stiffest: float = 4.0
    """Factor that this lengthens them by at most.  Changes 1, 0 of 24 runs."""
    most_extensions: int = 8
    """Checks beyond the end of the warm-up, after one that failed there.  A guard against endless warm-up.  Changes no
    run."""

    # -- what a window of draws must show (block_checks, noncentring, warm_up) -----------------------------------------

    window: float = 0.6
    """Share of the transitions so far, the newest, that estimates are made from.  Changes 12, 12 of 12 runs, cost 1.07,
    1.05."""
    window_numbers: int = 2_000_000
    """Numbers of the positions in a window that are expressed in new non-centred coordinates at most.  Bounds memory:
    16 MB for each array."""
    training_chains: int = 64
    """Chains that the setting is learnt from at most; the others follow it.  Bounds memory: their draws are kept for
    the window."""
    training_numbers: int = 65_536
    """Coordinates of these chains together, at most: in more than 1,024 coordinates fewer chains than 64 are learnt
    from, four at least.  Bounds memory: a window in 100,000 coordinates has 1 GB in place of 15."""
    stuck: float = 0.3
    """Share of rejected transitions in a block above which a chain is replaced by a copy of another.  Changes no
    run."""
    steady: float = 1.25
    """Change of the step size from block to block below which it has settled.  Changes 2, 0 of 24 runs."""
    misfit: float = 4.0
    """Mean of ``y_i^2 + g_i^2`` over whitened draws below which a preconditioner fits; on a Gaussian it is 2.  Changes
    13, 0 of 24 runs, cost 1.15, 1.00, trusted 12, 16."""
    slow_sd: float = 2.0
    """Largest whitened standard deviation of a preconditioner that fits.  Changes 21, 1
    of 24 runs, cost 1.04, 1.01, trusted 11, 16."""

    # -- the step ----------------------------------------------------------------------------------------------------

    failure_rate: float = 1e-3
    """Share of the transitions of a block that may fail because of the step.  A block of less than 1,000 may have no
    failure.  Changes no run."""
    shrink: float = 0.8
    """Factor of the step's cap after a block with failures or a visible bias, while adapting (after any other block the
    cap grows by its inverse, up to 1), and of the step after a failed check.  Changes 1, 1 of 24 runs."""
    energy_tolerance: float = 0.25
    """Energy that a step may gain beyond the guard's threshold while adapting, as a share of its kinetic energies: on
    the way down from a distant start the energy is large, and so are the errors that a step makes in it.  Not tested by
    the set, whose chains start near.  Changes no run."""
    places: float = 0.99
    """Share of pairs of successive draws whose curvature a step must bear; at steeper ones it is refined.  Changes 8, 8
    of 12 runs, cost 1.09, 0.98."""
    nearly_all_places: float = 0.999
    """The same for methods that do not see the curvature and cannot refine a step: GHMC, OLMC and ULMC.  Changes 3, 3
    of 24 runs."""
    curvature_points: int = 8
    """Draws of a block at which power iteration looks for the steepest direction.  Changes 10, 10 of 12 runs."""
    curvature_iterations: int = 4
    """Power iterations at each of them, one gradient each.  Changes 10, 10 of 12 runs."""
    curvature_width: float = 1e-4
    """Whitened distance over which gradients are differenced.  Changes 7, 7 of 24 runs."""

    # -- midpoints ---------------------------------------------------------------------------------------------------

    least_midpoints: int = 16
    """Smallest automatic ``K``; ``K`` costs no gradients.  Changes no run."""
    most_midpoints: int = 4096
    """Largest automatic ``K``.  Changes 2, 1 of 12 runs."""
    midpoints_share: float = 0.1
    """Share of the allowed error that a finite ``K`` may add.  Changes 2, 2 of 12 runs."""

    # -- a bias that draws show (stein_identity) -----------------------------------------------------------------------

    settled_share: float = 0.99
    """Share of the draws of a block that must be past the transient, for a bias to be looked for.  Changes no run."""
    identity_z: float = 4.0
    """Standard errors by which the Stein identity must fail in one coordinate, at least; the verdict's limit too.
    Changes 0, 1 of 24 runs."""
    identity_mean_square: float = 0.004
    """Half the mean squared excess of the identity over all coordinates, at a ``target_bias`` of 0.05.  Changes no
    run."""
    pieces: int = 16
    """Batches of all chains together that standard errors are computed from.  Changes 8, 6 of 24 runs."""
    chance: float = 0.01
    """Probability with which the largest of many ratios to a standard error exceeds its limit by chance.  Changes 2, 5
    of 24 runs."""

    # -- friction and steps per draw ---------------------------------------------------------------------------------

    most_steps_per_draw: int = 64
    """Largest automatic number of transitions for one draw.  Changes no run."""
    autocorrelation: float = 0.5
    """Autocorrelation between draws below which they are far enough apart.  Changes 12, 10 of 12 runs, cost 1.11, 1.03,
    trusted 10, 2."""

    # -- adjusted draws (equilibration) ------------------------------------------------------------------------------

    adjusted_step: float = 1.2
    """Step of adjusted draws over that of the unadjusted warm-up, before it is adapted.  Cost of an effective draw over
    unadjusted ones, median of the worst means and squares of 14 of the tuned models of ``python -m benchmarks gate``
    (64 chains, friction 0.5, not adapted): .80 and 1.04 at 1, .71 and .99 at 1.2, .78 and 1.00 at 1.4."""
    adjusted_friction: float = 0.5
    """Friction of adjusted draws over that of the warm-up, for short steps; for a step ``h`` it is ``1 + h/2`` times as
    much.  Means profit from less, squares of near Gaussians, whose steps are long, from more: at the step 1.2 .71 and
    .99 with 0.5, .88 and 1.13 with 0.7, in the same figures."""
    adjusted_acceptance: float = 0.9
    """Acceptance that a step is adapted to where that of the chain that accepts least is far from it.  In the same
    figures longer steps cost less down to .93 and as much at .9; at .76 two parameters a group cost twice as much."""
    fixed_step: float = 0.9
    """Change of the step by a round of adaptation from which on it is fixed.  Not measured."""
    most_shortening: float = 0.5
    """Change of the step by a round of adaptation at most, and the one that reopens the adaptation of a fixed step.
    Not measured."""
    most_lengthening: float = 1.25
    """The same for a step that grows.  Not measured."""
    most_rounds: int = 8
    """Rounds of adaptation at most.  A guard against endless adaptation."""
    adaptation_block: int = 16
    """Transitions of each chain in a block, at first; fewer where there are more than 16 chains.  Not measured."""
    forgetting_lags: int = 6
    """Lags of autocorrelation one half that equilibration lasts at least: the error of a start shrinks to a
    sixty-fourth."""
    ladder_span: float = 2.0
    """Time of a move on a ladder of temperatures at friction 1.  On badly whitened Gaussians (curvatures 0.4 to 2.7) in
    100 and 1,000 dimensions the start was forgotten (autocorrelation 0.1) after 24 and 20 gradients; after 32 and 27 at
    half of it."""

    # -- starts from a former run (warm_start) -----------------------------------------------------------------------

    candidates: int = 8
    """Former draws that are looked at for the starts, for each chain; four times as many at least.  Not measured."""
    most_candidates: int = 256
    """Former draws that are looked at, at most.  Bounds time."""
    pareto_k: float = 0.7
    """Pareto's ``k`` of the ratios of densities from which on draws are not resampled by them (Vehtari et al.)."""
    other_scale: float = 2.0
    """Factor of a whitened coordinate's scale, by positions and gradients, from which on a setting is refined; dropped
    where half of them have changed by its square.  With a group left out or added (``python -m benchmarks warm_start
    --group``) a few have changed by up to 10, and refined settings cost 170 gradients in place of 260."""
    least_accepted: float = 0.6
    """Acceptance of the chain that accepts least in the block that checks a setting, below which it is refined."""
    least_accepted_usable: float = 0.3
    """The same, below which it is dropped."""


THRESHOLDS = Thresholds()

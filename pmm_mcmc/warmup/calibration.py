"""The thresholds of warm-up, each with what it is and where it was measured.

``python benchmarks/thresholds.py`` halves and doubles each of them and prints what changes; its output is kept in
``benchmarks/results/thresholds.txt``.  "Not measured" says that no run has shown a difference yet.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CALIBRATION", "Calibration"]


@dataclass(frozen=True)
class Calibration:
    """Thresholds of warm-up: lengths are in transitions of each chain, shares between 0 and 1."""

    # -- blocks: when they end (timetable) ---------------------------------------------------------------------------

    first_block: int = 25
    """Length of the first block, and the shortest of an adapting one."""
    growth: float = 0.3
    """Length of a later block over all transitions before it."""
    trial_block: int = 50
    """Length of the trial of one friction."""
    trial_at: float = 0.5
    """Share of the warm-up after which frictions are tried, settled or not."""
    freeze_at: float = 0.7
    """Share of the warm-up after which the setting is frozen, settled or not."""
    least_adapted: int = 130
    """Transitions before which nothing is frozen, however settled it looks."""
    least_adapted_share: float = 0.3
    """The same as a share of the warm-up, for a chain that PyMC runs by itself."""
    least_check: int = 50
    """Length of the shortest check, and fewest transitions that steps per draw are found from."""
    checked_draws: int = 800
    """Draws of all chains together that a check looks at."""
    stiff: float = 2.0
    """Whitened curvature above which adaptation and checks are longer in proportion."""
    stiffest: float = 4.0
    """Factor that this lengthens them by at most."""
    most_extensions: int = 8
    """Checks beyond the end of the warm-up, after one that failed there."""

    # -- what a window of draws must show (evidence, transient, pooled) ----------------------------------------------

    window: float = 0.6
    """Share of the transitions so far, the newest, that estimates are made from."""
    window_numbers: int = 2_000_000
    """Numbers of the positions in a window that are expressed in new non-centred coordinates at most: bounds memory."""
    training_chains: int = 64
    """Chains that the setting is learnt from; the others follow it.  Bounds memory."""
    stuck: float = 0.3
    """Share of rejected transitions in a block above which a chain is replaced by a copy of another."""
    steady: float = 1.25
    """Change of the step size from block to block below which it has settled."""
    misfit: float = 4.0
    """Mean of ``y_i^2 + g_i^2`` over whitened draws below which a preconditioner fits; it is 2 on a Gaussian."""
    slow_sd: float = 2.0
    """Largest whitened standard deviation of a preconditioner that fits; above it, frictions are tried."""

    # -- the step ----------------------------------------------------------------------------------------------------

    failure_rate: float = 1e-3
    """Share of transitions that may fail because of the step, in a block."""
    cap_shrink: float = 0.8
    """Factor of the step's cap after a block with failures or a visible bias, while adapting."""
    cap_recover: float = 1.25
    """Factor of the cap after any other block."""
    frozen_shrink: float = 0.7
    """Factor of the step after a failed check."""
    energy_tolerance: float = 0.25
    """Share of the kinetic energies by which the energy may rise beyond the guard's threshold while adapting: on the
    way down from a distant start the energy is large, and so are the errors that a step makes in it."""
    places: float = 0.99
    """Share of pairs of successive draws whose curvature a step must bear, where steeper ones refine it."""
    nearly_all_places: float = 0.999
    """The same for methods that do not see the curvature, and cannot refine a step."""
    stable_margin: float = 0.95
    """Share of the largest stable curvature up to which the bias of a step is computed; beyond, it counts as 1."""
    acceptance: float = 0.574
    """Acceptance rate of MALA: optimal in high dimension (Roberts and Rosenthal, 1998)."""
    curvature_points: int = 8
    """Draws at which the steepest direction is looked for, in a block."""
    curvature_iterations: int = 4
    """Power iterations at each of them, one gradient each."""
    curvature_width: float = 1e-4
    """Whitened distance over which gradients are differenced."""

    # -- midpoints ---------------------------------------------------------------------------------------------------

    least_midpoints: int = 16
    """Smallest automatic ``K``."""
    most_midpoints: int = 4096
    """Largest automatic ``K``."""
    midpoints_share: float = 0.1
    """Share of the allowed error that a finite ``K`` may add."""
    many_midpoints: int = 64
    """``K`` above which the exact law of infinitely many midpoints is used, right to a few parts in a hundred."""

    # -- a bias that draws show (stein_identity, standard_errors) ----------------------------------------------------

    least_judged: int = 40
    """Draws of each chain below which no bias is looked for."""
    settled_share: float = 0.99
    """Share of them that must be past the transient."""
    identity_z: float = 4.0
    """Standard errors by which the Stein identity must fail in one coordinate, at least."""
    identity_mean_square: float = 0.004
    """Half the mean squared excess of the identity over all coordinates, at a ``target_bias`` of 0.05."""
    pieces: int = 16
    """Batches of all chains together that standard errors are computed from."""
    chance: float = 0.01
    """Probability with which the largest of many ratios to a standard error exceeds its limit by chance."""

    # -- friction and steps per draw ---------------------------------------------------------------------------------

    default_bonus: float = 1.1
    """Factor in favour of the default friction."""
    jump_lag: int = 15
    """Transitions over which the jumps of a friction are measured."""
    most_steps_per_draw: int = 64
    """Largest automatic number of transitions for one draw."""
    autocorrelation: float = 0.5
    """Autocorrelation between draws below which they are far enough apart."""


CALIBRATION = Calibration()

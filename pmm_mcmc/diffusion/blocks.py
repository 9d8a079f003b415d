r"""Blocks: which steps of the chain are taken at once, and where in them the network is called again.

A block leads from level ``t`` to ``t - K``.  Written out, its ``K`` updates with the network's output at ``t`` frozen
are :math:`X_{t-k} = A_k X_t + \sum_{i \le k} B_{k,i} f(X_t, t) + \sum_{i \le k} C_{k,i} Z_i`, and a midpoint
:math:`\tau \in \{1, \dots, K - 1\}` replaces the frozen prediction in one cell (erratum a; the paper's
:math:`i = \tau + 1`).  Laws of the midpoint:

- ``"uniform"``: Option 2, one midpoint, each with probability ``1 / (K - 1)``;
- ``"bernoulli"``: Option 1, each cell with probability ``1 / K``, independently;
- ``"importance"``: one midpoint with :math:`q_\tau \propto |B_{K,\tau+1}| \sqrt\tau`: a correction grows along the
  block with the path of its noise, as the root of the number of cells.

Whatever the law, a correction counts :math:`B_{K,\tau+1} / q_\tau`, and its mean is that of the chain with every cell
corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAWS = ("uniform", "bernoulli", "importance")


@dataclass(frozen=True)
class Blocks:
    r"""How the chain is cut into blocks, and the law of the midpoints in them.

    Parameters
    ----------
    edges
        Levels at which a block starts or ends, from that of the first state down to 0.
    midpoint
        ``"importance"``, or ``"uniform"`` (the paper's Option 2) or ``"bernoulli"`` (its Option 1).
    frozen
        Kind of prediction that is frozen over a block, whatever the network predicts: ``"epsilon"`` as in the paper,
        ``"score"``, ``"x0"``, ``"v"`` or a data variance, as of
        :meth:`~pmm_mcmc.diffusion.DiffusionSchedule.estimates`.  The chain that is approximated is the same;
        the default stays stable in long blocks, where the frozen noise does not.

    Raises
    ------
    ValueError
        If the edges do not decrease to 0, or the law is not known.
    """

    edges: tuple[int, ...]
    midpoint: str = "importance"
    frozen: str | float = "v"

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges)
        if edges.ndim != 1 or edges.size < 2 or edges[-1] != 0 or np.any(edges != np.round(edges)):
            raise ValueError(f"edges={self.edges!r}: give whole levels from that of the first state down to 0")
        if np.any(np.diff(edges) >= 0):
            raise ValueError(f"edges={self.edges!r} do not decrease strictly; leave repeated levels out")
        if self.midpoint not in LAWS:
            raise ValueError(f"midpoint={self.midpoint!r} is not known; use one of {', '.join(LAWS)}")
        object.__setattr__(self, "edges", tuple(int(edge) for edge in edges))

    @classmethod
    def shrinking(cls, N: int, n_steps: int, power: float = 2.0, **law: object) -> Blocks:
        r"""Return blocks with edges near :math:`N u^{power}`, ``u`` even from 1 to 0, and at least two steps each.

        Parameters
        ----------
        N
            Level of the first state: the number of steps of the chain.
        n_steps
            Number of blocks; the network is called twice in each.
        power
            1 makes equal blocks; above, they shrink towards the clean end, where little noise is left to hide an error.
        **law
            ``midpoint`` and ``frozen``, as of the class.
        """
        if not 1 <= n_steps <= N // 2:
            raise ValueError(
                f"n_steps={n_steps} for a chain of {N} steps: use 1 to {N // 2}, so that a block holds two steps or "
                "more; beyond that the chain itself is no dearer"
            )
        if not (np.isfinite(power) and power >= 1.0):
            raise ValueError(f"power={power} must be a number >= 1; 1 makes equal blocks")
        edges = [0]
        for i in range(1, n_steps + 1):
            edges.append(max(round(N * (i / n_steps) ** power), edges[-1] + 2))
        return cls(tuple(reversed(edges)), **law)  # type: ignore[arg-type]

    @classmethod
    def equal(cls, N: int, n_steps: int, **law: object) -> Blocks:
        """Return blocks of equal length, as in the paper (to rounding, if ``n_steps`` does not divide ``N``).

        The paper's method is ``Blocks.equal(N, n_steps, midpoint="uniform", frozen="epsilon")``.
        """
        return cls.shrinking(N, n_steps, 1.0, **law)

    @property
    def steps(self) -> int:
        """Number of blocks."""
        return len(self.edges) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Number of updates of the chain in each block."""
        return -np.diff(self.edges)

    @property
    def calls(self) -> float:
        """Expected network calls: two a block, ``2 - 1 / K`` under Option 1, and one where ``K`` is 1."""
        second = 1.0 / self.sizes if self.midpoint == "bernoulli" else self.sizes == 1
        return float(np.sum(2.0 - second))

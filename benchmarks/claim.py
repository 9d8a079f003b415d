"""The paper's claim on posteriors that are not log-concave: ``python -m benchmarks claim``.

The error at equal gradients, over seeds, of plain underdamped Langevin Monte Carlo (``K = 1``) and of the Poisson
midpoint method as the paper has it (two gradients a step) with more and more cells ``K``; each takes the longest step
that it holds to be as biased as the others'.  The figure has the error against gradients.
"""

from __future__ import annotations

import argparse

import pmm_mcmc as pmm

CELLS = (4, 16, 64, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="double_well", help=f"of {', '.join(pmm.workbench.targets.list())}")
    parser.add_argument("--gradients", type=int, default=100_000, help="of each run, all chains")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", help="for finished runs, to go on from there")
    parser.add_argument("--figure", help="file of the figure")
    parser.add_argument("--quick", action="store_true", help="two seeds of 10,000 gradients")
    asked = parser.parse_args()
    samplers = {"K = 1": pmm.ULMC()} | {f"K = {K}": pmm.PoissonULMC(scheme="paper", K=K) for K in CELLS}
    gradients, seeds = (10_000, 2) if asked.quick else (asked.gradients, asked.seeds)
    report = pmm.workbench.compare(asked.target, samplers, n_grad=gradients, seeds=seeds, folder=asked.folder)
    print(report)
    if asked.figure:
        report.figure().savefig(asked.figure)


if __name__ == "__main__":
    main()

"""What is looked for after the draws never loses them."""

import numpy as np
from sampling_runs import run

from pmm_mcmc.run import findings

pytest_plugins = ["sampling_fixtures"]


def test_an_error_in_a_look_after_the_draws_is_said_and_the_draws_are_kept(well, monkeypatch, caplog):
    def fails(*arguments, **options):
        raise NotImplementedError("vectorize with zero size")

    monkeypatch.setattr(findings.edges, "largest_jump", fails)
    dt = run(well, compute_convergence_checks=True)
    assert dt["posterior"].sizes["draw"] == 30 and np.isfinite(dt["posterior"]["x"]).all()
    assert "Other modes, jumps and necks were not looked for, for an error in it; the draws are kept" in caplog.text

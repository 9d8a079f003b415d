"""``pmm.sample``: the plan of a run, its driver, the recorders of its draws, and stores."""

"""``pmm.sample``: the plan of a run, the loop that drives it, and where its draws go."""

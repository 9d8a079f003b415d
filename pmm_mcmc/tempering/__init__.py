"""``pmm.temper``: separated modes and the evidence, by replicas of a ladder of temperatures."""

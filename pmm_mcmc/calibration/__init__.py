"""``pmm.refit`` and ``pmm.sbc``: one model sampled for many data sets, with one compilation."""

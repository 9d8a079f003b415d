def banded_sites(*a): raise NotImplementedError
def undo_banded_rows(*a): raise NotImplementedError
def innovation_gradient(*a): raise NotImplementedError

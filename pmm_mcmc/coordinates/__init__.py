"""Maps between a model's coordinates and those in which chains move: the affine one, and non-centring."""

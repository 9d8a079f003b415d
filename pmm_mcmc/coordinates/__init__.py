"""Maps between a model's coordinates and those that chains move in: the affine one, and non-centring site by site."""

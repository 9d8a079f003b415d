"""A learnt non-centring: funnels found in warm-up and straightened by a change of variables."""

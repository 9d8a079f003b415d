"""Covering arrays: few cases of an identity, in which every pair of values of two factors occurs together."""

from itertools import combinations, product


def pairs(*factors):
    """Return rows of one value of each factor, chosen greedily from all in their order."""
    factors = [list(factor) for factor in factors]
    rows = list(product(*(range(len(factor)) for factor in factors)))
    missing = {pair for row in rows for pair in combinations(enumerate(row), 2)}
    chosen = []
    while missing:
        row = max(rows, key=lambda row: len(missing.intersection(combinations(enumerate(row), 2))))
        missing -= set(combinations(enumerate(row), 2))
        chosen.append(tuple(factor[i] for factor, i in zip(factors, row, strict=True)))
    return chosen

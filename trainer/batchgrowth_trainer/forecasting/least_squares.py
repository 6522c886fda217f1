"""Least squares without negative unknowns, of a few unknowns.

scipy.optimize.nnls finds the same, but importing it takes a second of the processor: as long as everything else that
`batchgrowth forecast --fit` does, and, for a remaining time, beside a training that runs.
"""

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

TOLERANCE = 1e-10
"""A slope of this share of the largest moment counts as 0."""


def nonnegative(gram: Numbers, moments: Numbers) -> Numbers:
    """Return the x ≥ 0 with the least |A x - b|², where gram = AᵀA, shape (N, N), and moments = Aᵀb, shape (N,).

    The columns of A must be independent. By the active sets of Lawson and Hanson (1974), chapter 23.
    """
    sizes = np.sqrt(np.diag(gram))
    gram = gram / np.outer(sizes, sizes)
    moments = moments / sizes
    least = TOLERANCE * float(np.max(np.abs(moments)))
    found = np.zeros(len(moments))
    free: list[int] = []
    for _ in range(3 * len(moments)):  # rounding could let a column come and go for ever
        slopes = moments - gram @ found
        rising = [place for place in range(len(moments)) if place not in free and slopes[place] > least]
        if not rising:
            break
        free.append(max(rising, key=lambda place: float(slopes[place])))
        while True:
            wished = np.zeros(len(moments))
            wished[free] = np.linalg.solve(gram[np.ix_(free, free)], moments[free])
            negative = [place for place in free if wished[place] <= 0]
            if not negative:
                found = wished
                break
            # Go as far towards the wish as no unknown becomes negative, and hold the one that is 0 there.
            shares = {place: found[place] / max(found[place] - wished[place], 1e-300) for place in negative}
            first = min(shares, key=lambda place: shares[place])
            found = found + shares[first] * (wished - found)
            found[first] = 0.0
            free.remove(first)
    return np.asarray(found / sizes)

"""Least squares without negative unknowns are those that scipy finds."""

import numpy as np
import pytest
from batchgrowth_trainer.forecasting.fitting import nonnegative
from scipy.optimize import nnls


@pytest.mark.parametrize("seed", range(50))
def test_as_scipy(seed: int) -> None:
    """Columns of very different sizes, some of which an answer without bounds would have negative."""
    random = np.random.default_rng(seed)
    matrix = random.uniform(0, 1, (30, 6)) * 10.0 ** random.uniform(-3, 3, 6)
    right = matrix @ (random.standard_normal(6) / np.mean(matrix, axis=0)) + random.standard_normal(30)
    expected, _ = nnls(matrix, right)

    assert nonnegative(matrix.T @ matrix, matrix.T @ right) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_nothing_fits_what_is_negative() -> None:
    assert list(nonnegative(np.eye(3), np.array([-1.0, -2.0, -3.0]))) == [0, 0, 0]


def test_nothing_is_needed_for_0() -> None:
    assert list(nonnegative(np.eye(2), np.zeros(2))) == [0, 0]

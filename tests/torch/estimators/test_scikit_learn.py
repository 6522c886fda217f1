"""scikit-learn's own checks of an estimator, on a net with a hidden layer."""

from typing import Any

import pytest
import torch
from batchgrowth_trainer import DaskClassifier, DaskRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

EXPECTED: dict[str, str] = {}
"""Checks that fail, each with its reason; docs/estimators.md has the same."""


class Net(nn.Module):
    """One hidden layer; the estimator fills in both numbers."""

    def __init__(self, n_features_in: int, n_outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_features_in, 16)
        self.out = nn.Linear(16, n_outputs)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(torch.relu(self.hidden(x)))


def expected(_estimator: object) -> dict[str, str]:
    return EXPECTED


ESTIMATORS = [
    kind(Net, optimizer=torch.optim.Adam, optimizer__lr=0.05, max_epochs=8, device="cpu")
    for kind in (DaskClassifier, DaskRegressor)
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected)
@pytest.mark.filterwarnings("ignore")
def test_check(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, scikit-learn skips the check of array API input
    check(estimator)


def test_few_checks_fail() -> None:
    assert len(EXPECTED) <= 3

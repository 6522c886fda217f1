"""`python -m bench.scikit_learn_checks`: scikit-learn's own checks of an estimator, on ours and on skorch's.

All have a net with one hidden layer and as many epochs. skorch is no requirement of this project: the command installs
it into a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

os.environ["SCIPY_ARRAY_API"] = "1"  # without it, scikit-learn skips the check of array API input

import torch
import typer
from batchgrowth_trainer import DaskClassifier, DaskRegressor
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from bench.tables import show

SKORCH = "1.4.0"
EPOCHS = 8
CLASSES = 10
"""The outputs of skorch's classifiers, since skorch does not count the classes; no check has more."""
HIDDEN = 16


class Net(nn.Module):
    """A net for our estimators, which fill in both numbers."""

    def __init__(self, n_features_in: int, n_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_features_in, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_outputs))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


# skorch hands on data as they are, so its nets and its loss convert the numbers of 64 bits that most checks give.


class LazyClassifier(nn.Module):
    """The same net for skorch, whose classifier wants probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES), nn.Softmax(dim=-1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x.float())


class LazyRegressor(nn.Module):
    """The same net for skorch, with one output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x.float()).squeeze(-1)


class SquaredError(nn.MSELoss):
    """The loss of skorch's regressor."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return super().forward(input, target.float())


def main(
    skorch: Annotated[str, typer.Option(help="The version of skorch to install from the package index.")] = SKORCH,
) -> None:
    """Print how many checks each estimator passes, and which of them fail."""
    ours: dict[str, Any] = {"optimizer": torch.optim.Adam, "optimizer__lr": 0.05, "max_epochs": EPOCHS, "device": "cpu"}
    theirs: dict[str, Any] = {
        "optimizer": torch.optim.Adam,
        "lr": 0.05,
        "max_epochs": EPOCHS,
        "verbose": 0,
        "train_split": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        package = install(skorch, folder)
        estimators = {
            "DaskClassifier": DaskClassifier(Net, **ours),
            "DaskRegressor": DaskRegressor(Net, **ours),
            f"skorch {skorch}, NeuralNetClassifier": package.NeuralNetClassifier(LazyClassifier, **theirs),
            f"skorch {skorch}, NeuralNetRegressor": package.NeuralNetRegressor(
                LazyRegressor, criterion=SquaredError, **theirs
            ),
        }
        results = {name: outcomes(estimator) for name, estimator in estimators.items()}
    rows = []
    for name, found in results.items():
        counts = Counter(status for _, status in found)
        rows.append([name, *(str(counts[status]) for status in ("passed", "failed", "skipped"))])
    title = f"The checks of scikit-learn {version('scikit-learn')}, torch {torch.__version__}"
    show(title, ["estimator", "passed", "failed", "skipped"], rows)
    for name, found in results.items():
        failed = sorted({check for check, status in found if status == "failed"})
        if failed:
            print(f"\n{name} fails: {', '.join(failed)}")


def install(release: str, folder: str) -> Any:
    """Install skorch into a folder, and return the package."""
    wanted = [f"skorch=={release}", "tabulate", "tqdm"]
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, *wanted]
    subprocess.run(command, check=True)
    sys.path.append(folder)
    return import_module("skorch")


def outcomes(estimator: Any) -> list[tuple[str, str]]:
    """Return each check's name and status, in their order; some checks run several times, with other arguments."""
    found: list[tuple[str, str]] = []

    def keep(*, check_name: str, status: str, **_: Any) -> None:
        found.append((check_name, status))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator, on_fail=None, on_skip=None, callback=keep)
    return found


if __name__ == "__main__":
    typer.run(main)

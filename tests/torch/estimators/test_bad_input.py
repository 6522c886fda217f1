"""Bad parameters and data: the error names the parameter, what was given and what would do, before anything trains."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from batchgrowth_trainer import DaskClassifier, DaskRegressor
from batchgrowth_trainer.dampers import AdaDamp, Damper, GeoDamp, PadaDamp
from batchgrowth_trainer.estimators import fitting
from torch import nn
from torch.utils.data import TensorDataset

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting.training, "train", None)


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"module": 3}, "module: a int was given; give a class derived from torch.nn.Module"),
    ({"module": dict}, "module: the class dict was given; give a class derived from"),
    ({"module": nn.ReLU, "module__size": 3}, "module__size: ReLU takes no such argument; it takes inplace"),
    ({"module": nn.Linear(3, 2), "module__bias": False}, "module__bias: given with a module that is made already; "),
    ({"module__bias": False}, "module__bias: given with no module; give the module's class"),
    ({"loss": 3}, "loss: a int was given; give a class such as torch.nn.CrossEntropyLoss"),
    ({"loss": dict}, "loss: the class dict was given; "),
    ({"loss__weigth": 1}, "loss__weigth: CrossEntropyLoss takes no such argument; it takes weight, "),
    ({"loss__reduction": "mean"}, "loss__reduction: 'mean' was given; leave it out"),
    ({"loss": nn.BCEWithLogitsLoss, "classes": 3}, "loss: y has 3 classes, and this loss tells two apart; "),
    ({"optimizer": "Adm"}, "optimizer: 'Adm' was given; give one of SGD, "),
    ({"optimizer": nn.ReLU}, "optimizer: the class ReLU was given; give a class of torch.optim"),
    ({"optimizer__lr": "fast"}, "optimizer__lr: 'fast' was given; give a number more than 0"),
    ({"optimizer__lr": -1}, "optimizer__lr: "),
    ({"optimizer__momentun": 0.9}, "optimizer__momentun: SGD takes no such argument; it takes lr, momentum, "),
    ({"optimizer__momentum": 2}, "optimizer__momentum: "),
    ({"batch_size": 0}, "batch_size: "),
    ({"batch_size": 2.5}, "batch_size: a float was given; give a number of examples, or a rule such as GeoDamp"),
    ({"batch_size": dict}, "batch_size: dict was given; "),
    ({"batch_size": "Geo"}, "batch_size: the growth 'Geo' is unknown; give one of Constant, "),
    ({"batch_size": 8, "batch_size__delay": 2}, "batch_size__delay: 2 was given, and batch_size is the number 8; "),
    ({"batch_size": GeoDamp, "batch_size__dealy": 2}, "batch_size__dealy: GeoDamp has no such parameter; GeoDamp takes "
     "initial, delay, factor, dwell"),
    ({"batch_size": GeoDamp(factor=0)}, "batch_size__factor: "),
    ({"batch_size": GeoDamp(delay=0)}, "batch_size__delay: "),
    ({"batch_size": GeoDamp(delay=1, dwell=2)}, "batch_size__dwell: given beside delay=1; give one of the two"),
    ({"batch_size": PadaDamp(rate=-1)}, "batch_size__rate: "),
    ({"batch_size": AdaDamp(dwell=0)}, "batch_size__dwell: "),
    ({"batch_size": Damper("NoiseScale", 16, multiple=0)}, "batch_size__multiple: "),
    ({"batch_size": 64, "max_batch_size": 8}, "batch_size: "),
    ({"max_epochs": 0}, "max_epochs: 0 was given; give a whole number of at least 1"),
    ({"max_workers": 0}, "max_workers: "),
    ({"max_workers": 2, "min_workers": 3}, "min_workers: "),
    ({"grads_per_worker": 0}, "grads_per_worker: "),
    ({"device": "tpu"}, "device: 'tpu' was given; give auto, cpu or cuda"),
    ({"order": "random"}, "order: 'random' was given; give one of auto, given, sorted"),
    ({"spec": 3}, "spec: a int was given; "),
    ({"metrics": {"one": abs}}, "metrics: given without validation data, on which they would be computed; "),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), PARAMETERS, ids=lambda one: "-".join(one) if isinstance(one, dict) else "")
def test_a_parameter_with_a_fault(given: dict[str, Any], text: str) -> None:
    classes = given.pop("classes", 2) if "classes" in given else 2
    with pytest.raises(ValueError) as found:
        DaskClassifier(**given).fit(X, np.arange(12) % classes)

    assert str(found.value).startswith(text)


def test_a_name_that_is_no_parameter() -> None:
    with pytest.raises(
        ValueError, match="modul__size: 3 was given, and there is no such parameter; give one of batch_"
    ):
        DaskClassifier(modul__size=3).fit(X, Y)
    with pytest.raises(ValueError, match="Invalid parameter 'epochs' for estimator DaskClassifier"):
        DaskClassifier().set_params(epochs=3)


DATA: list[tuple[Any, Any, str]] = [
    ([[1, 2], [3, 4, 5]], [0, 1], "X: row 0 has 2 values and row 1 has 3; give rows of one length"),
    (X, [1.0, math.nan] * 6, "Input y contains NaN"),
    (X, np.array(["a", None] * 6, dtype=object), "y: row 1 has the label None, and 6 labels are missing; "),
    (X, pd.Series(["a", pd.NA] * 6, dtype="string"), "y: row 1 has the label <NA>, and 6 labels are missing; "),
    (X, ["a", np.str_("b"), pd.NA] * 4, "y: row 2 has the label <NA>, and 4 labels are missing; "),
    (X, np.zeros(12), "y: all examples have the class 0.0; "),
    (X, np.eye(2, dtype=int)[Y], "y: shape (12, 2), which has several labels for each example; give one label"),
    (TensorDataset(torch.ones(2, 3), torch.eye(2)), None, "y: shape (2, 2), which has several labels for each "),
    (X, Y[:-1], "Found input variables with inconsistent numbers of samples"),
    (X, None, "This DaskClassifier estimator requires y to be passed"),
    (np.where(X == X[0, 0], np.inf, X), Y, "Input X contains infinity"),
    (X[:0], Y[:0], "Found array with 0 sample"),
    (TensorDataset(torch.ones(2, 3), torch.tensor([0, 1])), Y, "y: given with a Dataset; leave it out"),
]


@pytest.mark.parametrize(("inputs", "labels", "text"), DATA, ids=lambda one: "")
def test_data_with_a_fault(inputs: Any, labels: Any, text: str) -> None:
    with pytest.raises(ValueError) as found:
        DaskClassifier().fit(inputs, labels)

    assert str(found.value).startswith(text)


def test_a_label_that_is_no_class() -> None:
    data = TensorDataset(torch.ones(3, 3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="y: row 2 has the label 2; give labels among 0, 1"):
        DaskClassifier().partial_fit(data, classes=[0, 1])


def test_ragged_arrays_of_a_regressor() -> None:
    with pytest.raises(ValueError, match="X: row 0 has 1 values and row 1 has 2"):
        DaskRegressor().fit([[1.0], [2.0, 3.0]], [1.0, 2.0])


@pytest.mark.parametrize(
    ("targets", "text"), [(np.array([0, 1e39] * 6), "1e+39"), ([[0, 1], [1e39, 2]] * 6, "[1e+39, 2.0]")]
)
def test_targets_beyond_float32(targets: Any, text: str) -> None:
    with pytest.raises(ValueError) as found:
        DaskRegressor().fit(X, targets)

    assert str(found.value).startswith(f"y: row 1 has {text}, which is not finite as float32; scale the targets")


def test_weights_with_a_fault() -> None:
    with pytest.raises(ValueError, match="at least one non-zero"):
        DaskRegressor().fit(X, Y, sample_weight=np.zeros(12))
    with pytest.raises(ValueError, match="Negative values"):
        DaskRegressor().fit(X, Y, sample_weight=-np.ones(12))


def test_a_cluster_that_is_none() -> None:
    with pytest.raises(ValueError, match="cluster: a int was given; give a Dask cluster such as LocalCluster"):
        DaskRegressor(cluster=3).fit(X, Y)

"""Estimators among scikit-learn's tools, and on every kind of data."""

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from batchgrowth_trainer import DaskClassifier, DaskRegressor, load
from batchgrowth_trainer.dampers import GeoDamp, NoiseScale
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

X, Y = make_blobs(60, 4, centers=3, random_state=0)
X = X.astype(np.float32)
NAMES = np.array(["oak", "elm", "ash"])[Y]


def estimator(**parameters: Any) -> DaskClassifier:
    given = {"optimizer__lr": 0.05, "batch_size": 16, "max_epochs": 2, "random_state": 1, "device": "cpu"}
    return DaskClassifier(**given | parameters)


@pytest.fixture(scope="module")
def fitted() -> DaskClassifier:
    """A linear classifier."""
    return estimator().fit(X, Y)


def test_every_kind_of_data_gives_the_same_weights(fitted: DaskClassifier) -> None:
    inputs = torch.from_numpy(X)
    kinds = [
        (pd.DataFrame(X), pd.Series(Y)),
        (inputs, torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        (da.from_array(X, chunks=(25, 4)), da.from_array(Y, chunks=20)),
        (dd.from_pandas(pd.DataFrame(X), npartitions=3), dd.from_pandas(pd.Series(Y), npartitions=2)),
        (TensorDataset(inputs, torch.from_numpy(Y)), None),
    ]
    assert {estimator().fit(*kind).weights_sha256_ for kind in kinds} == {fitted.weights_sha256_}


def test_a_dask_frame_has_names_of_features() -> None:
    frame = pd.DataFrame(X, columns=["height", "girth", "leaf", "bark"])
    parts = dd.from_pandas(frame, npartitions=3)
    est = estimator().fit(parts, NAMES)

    assert list(est.feature_names_in_) == list(frame.columns)
    assert np.array_equal(est.predict(parts), est.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        estimator().partial_fit(parts, Y).partial_fit(parts.rename(columns={"leaf": "nut"}), Y)


def test_labels_are_numbers_or_strings(fitted: DaskClassifier) -> None:
    named = estimator().fit(X, NAMES)
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y + 5))

    assert list(named.classes_) == ["ash", "elm", "oak"]
    assert set(named.predict(X)) <= set(NAMES)
    assert named.score(X, NAMES) == np.mean(named.predict(X) == NAMES)
    assert list(estimator().fit(dataset).classes_) == [5, 6, 7]
    assert estimator().fit(dataset).weights_sha256_ == fitted.weights_sha256_


class Renamed(Dataset[Any]):
    """Data as torchvision has them, whose `targets` are those before `target_transform`."""

    targets = Y.tolist()
    target_transform = staticmethod(lambda target: str(NAMES[list(Y).index(target)]))

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return torch.from_numpy(X[index]), self.target_transform(self.targets[index])


def test_the_labels_of_a_dataset_are_those_that_its_examples_have() -> None:
    est = estimator(max_epochs=1).fit(Renamed())

    assert list(est.classes_) == ["ash", "elm", "oak"]
    assert set(est.predict(X)) <= set(NAMES)


def test_the_order_of_examples_counts_only_if_it_is_given(fitted: DaskClassifier) -> None:
    shuffled = np.random.default_rng(0).permutation(60)
    sums = [
        estimator(order=order).fit(X[rows], Y[rows]).weights_sha256_
        for order in ("given", "sorted")
        for rows in (np.arange(60), shuffled)
    ]

    assert sums[0] == fitted.weights_sha256_
    assert len(set(sums)) == 3
    assert sums[2] == sums[3]


def test_weights_are_repetitions_or_scale_losses(fitted: DaskClassifier) -> None:
    twice = np.repeat([2, 1, 0], 20)

    repeated = estimator().fit(np.repeat(X, twice, axis=0), np.repeat(Y, twice))
    assert estimator().fit(X, Y, sample_weight=twice).weights_sha256_ == repeated.weights_sha256_
    assert estimator().fit(X, Y, sample_weight=np.full(60, 0.3)).weights_sha256_ == fitted.weights_sha256_

    scaled = estimator().fit(X, Y, sample_weight=np.where(Y == 0, 99.5, 0.5))
    assert np.mean(scaled.predict(X) == 0) > np.mean(fitted.predict(X) == 0)


def test_a_search_finds_the_same_whatever_runs_beside_it() -> None:
    grid = {"optimizer__lr": [0.1, 0.01], "batch_size": [8, 16]}
    found = []
    for jobs in (1, 2):
        with joblib.parallel_config("threading"):
            found.append(GridSearchCV(estimator(), grid, cv=2, n_jobs=jobs).fit(X, Y))
    columns = ["split0_test_score", "split1_test_score", "rank_test_score"]

    assert all(np.array_equal(found[0].cv_results_[name], found[1].cv_results_[name]) for name in columns)
    assert found[0].best_estimator_.weights_sha256_ == found[1].best_estimator_.weights_sha256_


def test_an_optuna_study_finds_the_same_whatever_runs_beside_it() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tried = []
    for workers in (1, 2):

        def score(trial: optuna.Trial, workers: int = workers) -> float:
            given = {
                "optimizer__lr": trial.suggest_float("lr", 1e-3, 0.5, log=True),
                "batch_size": trial.suggest_categorical("batch_size", [8, 16]),
            }
            return float(cross_val_score(estimator(max_workers=workers, **given), X, NAMES, cv=2).mean())

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(score, n_trials=4)
        tried.append([(trial.params, trial.value) for trial in study.trials])

    assert tried[0] == tried[1]
    assert len({value for _, value in tried[0]}) > 1


def test_a_pipeline_routes_its_metadata(fitted: DaskClassifier) -> None:
    with config_context(enable_metadata_routing=True):
        last = estimator().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        line = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), last)
        weights = np.repeat([2, 1, 0], 20)
        scores = cross_val_score(clone(line), X, NAMES, cv=2, params={"sample_weight": weights + 1})
        line.fit(X, Y, sample_weight=weights)

    scaled = StandardScaler().fit_transform(X)
    assert line[-1].weights_sha256_ == estimator().fit(scaled, Y, sample_weight=weights).weights_sha256_
    assert len(scores) == 2


def test_parameters_travel(fitted: DaskClassifier) -> None:
    given = estimator(module=nn.LazyLinear, module__out_features=3, batch_size=NoiseScale, batch_size__initial=16)
    again = clone(given)

    assert again.get_params() == given.get_params()
    assert again.get_params()["module__out_features"] == 3
    assert again.set_params(module__bias=False).get_params()["module__bias"] is False
    assert "module__bias" not in given.get_params()
    assert "module__out_features=3" in repr(given)
    same = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(same.predict_proba(X), fitted.predict_proba(X))


def test_metrics_are_of_validation_data() -> None:
    est = estimator().fit(X[:40], Y[:40], validation=(X[40:], Y[40:]))
    last = est.history_[-1]

    assert last["test_accuracy"] == pytest.approx(est.score(X[40:], Y[40:]))
    assert last["test_loss"] > 0
    assert [row["epoch"] for row in est.history_] == [1, 2]


def test_the_accuracy_of_probabilities_is_that_of_the_score() -> None:
    module = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    est = estimator(module=module, loss=nn.BCELoss).fit(X[:40], Y[:40] == 1, validation=(X[40:], Y[40:] == 1))

    assert est.history_[-1]["test_accuracy"] == pytest.approx(est.score(X[40:], Y[40:] == 1))
    assert set(est.predict(X[40:])) == {False, True}


LOSSES = [
    (nn.BCELoss, functional.binary_cross_entropy, nn.Sigmoid),
    (nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits, nn.Identity),
    (nn.NLLLoss, functional.nll_loss, nn.LogSoftmax),
]


@pytest.mark.parametrize(("kind", "function", "last"), LOSSES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_function_of_torch_is_the_loss_that_its_class_is(kind: Any, function: Any, last: Any) -> None:
    outputs = 2 if kind is nn.NLLLoss else 1
    module = nn.Sequential(nn.Linear(4, outputs), last(1) if kind is nn.NLLLoss else last())
    held_out = (X[40:], Y[40:] == 1)
    fits = [
        estimator(module=module, loss=loss).fit(X[:40], Y[:40] == 1, validation=held_out) for loss in (kind, function)
    ]

    assert fits[0].weights_sha256_ == fits[1].weights_sha256_
    assert np.array_equal(fits[0].predict_proba(X), fits[1].predict_proba(X))
    assert fits[0].history_[-1]["test_accuracy"] == fits[1].history_[-1]["test_accuracy"]


def test_the_output_of_a_loss_by_function_is_one_score() -> None:
    est = estimator(loss=functional.binary_cross_entropy_with_logits).fit(X, Y == 1)

    assert est.module_.out_features == 1
    with pytest.raises(ValueError, match="this loss tells two apart"):
        est.fit(X, Y)


def test_a_kept_run_with_a_lazy_module_has_its_model(tmp_path: Path) -> None:
    """The pickle has one example's inputs, from which the module takes its sizes."""
    rows = torch.from_numpy(X)
    for name, data in (("arrays", (X, Y)), ("dataset", (TensorDataset(rows, torch.from_numpy(Y)),))):
        est = estimator(module=nn.LazyLinear, module__out_features=3, output_dir=tmp_path / name).fit(*data)
        kept = load(tmp_path / name).model
        assert torch.equal(kept.weight, est.module_.weight)
        assert (tmp_path / name / "workload.pkl").stat().st_size < 10_000


def test_a_lazy_module_learns_from_examples_with_weights() -> None:
    weights = np.where(Y == 0, 1.5, 0.5)
    fits = [
        estimator(module=module, module__out_features=3, **more).fit(X, Y, sample_weight=weights)
        for module, more in ((nn.LazyLinear, {}), (nn.Linear, {"module__in_features": 4}))
    ]
    assert fits[0].weights_sha256_ == fits[1].weights_sha256_


def test_a_run_can_be_kept(fitted: DaskClassifier, tmp_path: Path) -> None:
    est = estimator(output_dir=tmp_path / "kept").fit(X, Y)
    run = load(tmp_path / "kept")

    assert run.summary is not None
    assert run.summary["weightsSha256"] == est.weights_sha256_ == fitted.weights_sha256_
    assert (tmp_path / "kept" / "workload.pkl").stat().st_size < X.nbytes + 10_000
    assert torch.equal(run.model.weight, est.module_.weight)


def test_a_measured_rule_and_a_loss_with_one_output() -> None:
    """Two shards a batch, so the noise can be measured; BCEWithLogitsLoss makes one output per example."""
    rule = NoiseScale(16, dwell=2, multiple=100)
    two = estimator(batch_size=rule, grads_per_worker=8, loss=nn.BCEWithLogitsLoss, max_workers=1).fit(X, Y == 1)

    assert two.module_.out_features == 1
    assert two.batch_size_ > 16
    assert np.allclose(two.predict_proba(X).sum(axis=1), 1)
    assert set(two.predict(X)) <= {False, True}


def test_a_regressor_predicts_as_its_target_was() -> None:
    inputs, one = make_regression(50, 3, random_state=0)
    two = np.stack([one, -one], axis=1)
    fits = [
        DaskRegressor(optimizer__lr=0.1, random_state=0, device="cpu").fit(inputs, y) for y in (one, two, two[:, :1])
    ]

    assert [est.predict(inputs).shape for est in fits] == [(50,), (50, 2), (50, 1)]
    assert all(est.predict(inputs).dtype == np.float64 for est in fits)
    assert fits[0].score(inputs, one) > 0.9


def test_arrays_that_may_not_be_written_are_examples() -> None:
    """As joblib's processes get large arrays."""
    inputs, target = np.ones((64, 3), dtype=np.float32), np.linspace(0, 1, 64, dtype=np.float32)
    shas = []
    for mode in (True, False):
        for array in (inputs, target):
            array.setflags(write=mode)
        shas.append(DaskRegressor(max_epochs=1, random_state=0, max_workers=1).fit(inputs, target).weights_sha256_)

    assert shas[0] == shas[1]


def test_another_number_of_examples_goes_on_at_the_epoch() -> None:
    est = estimator().partial_fit(X, Y).partial_fit(X[:30], Y[:30])

    assert est.n_iter_ == 2
    assert [row["updates"] for row in est.history_] == [4, 4]


def test_fewer_examples_than_the_batch_make_one_update_an_epoch() -> None:
    est = estimator(batch_size=64, max_workers=1).fit(X[:5], Y[:5])

    assert est.meta_["n_updates"] == 2
    assert est.score(X[:5], Y[:5]) > 0


def test_an_optimizer_by_name_and_one_of_torch_alone_are_one() -> None:
    """The class is in the manifest by its own name, which has the same bits as torch's."""
    fits = [
        estimator(optimizer=kind, optimizer__weight_decay=0.01).fit(X, Y).weights_sha256_
        for kind in ("AdamW", torch.optim.AdamW)
    ]
    given = estimator(optimizer=torch.optim.AdamW, optimizer__weight_decay=0.01, optimizer__amsgrad=False).fit(X, Y)

    assert set(fits) == {given.weights_sha256_}
    assert given.job_.spec.optimizer.type == "Torch"


def test_a_type_chosen_in_spec_replaces_that_of_the_parameters() -> None:
    growth = {"type": "Linear", "linear": {"examples_per_update": 2}}
    chosen = {"optimizer": {"type": "AdamW"}, "batch": {"growth": growth}}
    rule = GeoDamp(16, delay=1, factor=2)
    given = {"optimizer__momentum": 0.9, "batch_size": rule, "max_batch_size": 32, "max_epochs": 1}
    job = estimator(**given, spec=chosen).fit(X, Y).job_

    assert (job.spec.optimizer.type, job.spec.batch.growth.type) == ("AdamW", "Linear")
    assert job.spec.learning_rate.initial == "0.05"


class Examples(Dataset[Any]):
    """Examples as a function makes them of a row and a label."""

    def __init__(self, made: Any, labels: Any) -> None:
        self.made = made
        self.labels = labels

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return self.made(torch.from_numpy(X[index]), self.labels[index])


class Whole(nn.Module):
    """A linear layer over its inputs, put together, in the order of their names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(torch.cat([left, right], dim=1))
        return outputs


FORMS: dict[str, Any] = {
    "parts": lambda row, label: (row[:2], row[2:], label),
    "label": lambda row, label: {"left": row[:2], "right": row[2:], "label": label},
    "target": lambda row, label: {"left": row[:2], "right": row[2:], "target": label},
}


@pytest.mark.parametrize("form", FORMS)
def test_examples_have_the_forms_that_the_trainer_takes(form: str) -> None:
    data = [Examples(FORMS[form], labels) for labels in (Y.tolist(), (Y + 5).tolist(), [f"{y} trees" for y in Y])]
    fits = [estimator(module=Whole).fit(each, validation=each) for each in data]

    assert len({est.weights_sha256_ for est in fits}) == 1
    assert [list(est.classes_) for est in fits] == [[0, 1, 2], [5, 6, 7], ["0 trees", "1 trees", "2 trees"]]
    assert len({est.score(each) for est, each in zip(fits, data, strict=True)}) == 1


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_labels_are_whole_numbers_of_any_size(fitted: DaskClassifier, kind: torch.dtype) -> None:
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y).to(kind))

    assert estimator().fit(dataset, validation=dataset).weights_sha256_ == fitted.weights_sha256_

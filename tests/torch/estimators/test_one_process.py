"""Estimators that train in this process: the weights of a manifest, pieces, what they learn and how they predict."""

import multiprocessing
import pickle
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batchgrowth.errors import Interrupted, SpecError
from batchgrowth_trainer import DaskClassifier, train
from batchgrowth_trainer.building import model_seed
from batchgrowth_trainer.dampers import GeoDamp
from batchgrowth_trainer.estimators import job as estimator_job
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.workloads.digits import split
from sklearn.base import clone
from torch import nn

ROOT = Path(__file__).parents[3]
TRAIN, TEST = split()
X, Y = TRAIN.tensors
PARAMETERS: dict[str, Any] = {
    "optimizer": torch.optim.SGD, "optimizer__lr": 0.05, "optimizer__momentum": 0.9,
    "batch_size": GeoDamp, "batch_size__initial": 64, "batch_size__delay": 1, "batch_size__factor": 2,
    "max_batch_size": 128, "grads_per_worker": 64, "max_epochs": 3, "random_state": 0, "max_workers": 1,
}  # fmt: skip


def net(hidden: int = 128) -> nn.Module:
    """The net of batchgrowth_trainer.workloads.digits:mlp."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


@pytest.fixture(scope="module")
def fitted() -> DaskClassifier:
    """A classifier of digits, which no test changes."""
    return DaskClassifier(net, **PARAMETERS).fit(X, Y)


def test_the_weights_are_those_of_the_manifest(fitted: DaskClassifier, tmp_path: Path) -> None:
    run = train(
        "batchgrowth_trainer.workloads.digits:mlp",
        epochs=3,
        batch={"initial": 64, "maximum": 128, "growth": GeoDamp(delay=1, factor=2).block()},
        learning_rate={"initial": 0.05},
        optimizer={"type": "SGD", "sgd": {"momentum": 0.9}},
        workers={"examples_per_worker": 64},
        exchange={"type": "SingleProcess"},
        output_dir=tmp_path,
        progress=False,
    )  # fmt: skip
    assert run.summary is not None
    assert run.summary["weightsSha256"] == fitted.weights_sha256_
    weights = run.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in fitted.module_.state_dict().items())


def test_pieces_are_the_whole(fitted: DaskClassifier) -> None:
    """Also if the estimator has been another process's in between."""
    pieces = clone(fitted).partial_fit(X, Y)
    pieces = pickle.loads(pickle.dumps(pieces)).partial_fit(X, Y).partial_fit(X, Y)

    assert pieces.weights_sha256_ == fitted.weights_sha256_
    assert pieces.n_iter_ == 3
    assert [row["updates"] for row in pieces.history_] == [row["updates"] for row in fitted.history_]


def test_a_warm_start_goes_on(fitted: DaskClassifier) -> None:
    warm = clone(fitted).set_params(warm_start=True, max_epochs=2).fit(X, Y)
    warm.set_params(max_epochs=1).fit(X, Y)

    assert warm.weights_sha256_ == fitted.weights_sha256_


ENDED: list[dict[str, Any]] = [
    {"epochs": 2},
    {"evaluation": {"stop_early": {"metric": "loss", "mode": "Minimize", "patience": 1, "minimum_change": 9}}},
]


@pytest.mark.parametrize("spec", ENDED, ids=["at its last epoch", "early"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_warm_start_after_the_end_changes_nothing(spec: dict[str, Any], kept: bool, tmp_path: Path) -> None:
    folder = tmp_path / "kept" if kept else None
    warm = DaskClassifier(net, **PARAMETERS, warm_start=True, spec=spec, output_dir=folder)
    warm.fit(X, Y, validation=TEST)
    before = (warm.weights_sha256_, warm.n_iter_, warm.history_, warm.meta_)

    warm.fit(X, Y, validation=TEST)
    assert before == (warm.weights_sha256_, warm.n_iter_, warm.history_, warm.meta_)
    assert warm.n_iter_ == 2


@pytest.mark.parametrize("count", [600, 1437])
def test_pieces_of_other_lengths_are_the_same_in_a_folder(fitted: DaskClassifier, tmp_path: Path, count: int) -> None:
    pieces = [clone(fitted), clone(fitted).set_params(output_dir=tmp_path / "kept")]
    for rows in (1000, count, count):
        for piece in pieces:
            piece.partial_fit(X[:rows], Y[:rows])

    assert pieces[0].weights_sha256_ == pieces[1].weights_sha256_
    assert pieces[0].history_[-1]["updates"] == pieces[1].history_[-1]["updates"]
    assert (tmp_path / "kept" / "earlier" / "1" / "model.safetensors").is_file()


def test_an_estimator_goes_on_in_the_folder_of_another(fitted: DaskClassifier, tmp_path: Path) -> None:
    alone = clone(fitted).set_params(max_epochs=1).fit(X, Y)
    clone(fitted).set_params(output_dir=tmp_path, random_state=1).fit(X, Y)
    alone.set_params(output_dir=tmp_path, warm_start=True, max_epochs=2).fit(X, Y)

    assert alone.weights_sha256_ == fitted.weights_sha256_


class Interrupts:
    """A sink during which the user interrupts the fit twice."""

    def handle(self, event: Event) -> None:
        """See Sink."""
        if isinstance(event, HistoryRow):
            raise KeyboardInterrupt


@pytest.mark.parametrize("ends", [{"optimizer__lr": -1.0}, {"callbacks": [Interrupts()]}], ids=["refused", "stopped"])
def test_a_fit_that_fails_leaves_what_was_learned(fitted: DaskClassifier, ends: dict[str, Any]) -> None:
    """The module of one fit with the classes of another would predict wrong labels."""
    again = clone(fitted).fit(X, Y)

    with pytest.raises((SpecError, Interrupted)):
        again.set_params(**ends).fit(X, np.where(Y > 4, "many", "few"))

    assert again.weights_sha256_ == fitted.weights_sha256_
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_a_process_that_may_start_no_others_trains(fitted: DaskClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a worker of a Dask cluster that has the fits of a search."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    inside = clone(fitted).set_params(max_workers=2).fit(X, Y)

    assert inside.weights_sha256_ == fitted.weights_sha256_


def test_it_learns(fitted: DaskClassifier) -> None:
    images, labels = TEST.tensors

    assert fitted.score(images, labels) > 0.8
    assert fitted.score(TEST) == fitted.score(images, labels)
    assert list(fitted.classes_) == list(range(10))
    assert [row["epoch"] for row in fitted.history_] == [1, 2, 3]
    assert [row["batch_size"] for row in fitted.history_] == [64, 128, 128]
    assert fitted.history_[2]["loss"] < fitted.history_[0]["loss"]
    assert (fitted.batch_size_, fitted.n_workers_) == (128, 1)
    assert fitted.meta_["n_updates"] == fitted.history_[-1]["updates"] == 23 + 12 + 12


def test_a_module_that_draws_from_numpy_is_made_as_it_was_trained() -> None:
    """Whatever the seed: this one's has 32 bits."""
    drawn: list[float] = []

    def drawing() -> nn.Module:
        drawn.append(np.random.random())
        return net()

    est = DaskClassifier(drawing, **PARAMETERS | {"max_epochs": 1, "random_state": 2}).fit(X[:64], Y[:64])

    assert model_seed(est.job_.spec) >= 2**31
    assert len(drawn) > 1
    assert len(set(drawn)) == 1


def test_what_is_predicted_of_an_example_does_not_depend_on_the_others(fitted: DaskClassifier) -> None:
    images = TEST.tensors[0][:70]
    alone = np.concatenate([fitted.predict_proba(images[index : index + 1]) for index in range(0, 70, 23)])

    assert np.array_equal(fitted.predict_proba(images)[::23], alone)


def test_nothing_is_printed_and_nothing_stays(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DaskClassifier(net, **PARAMETERS | {"max_epochs": 1}).fit(X[:64], Y[:64])

    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_listing_of_the_paper_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As published, but for the imports."""
    monkeypatch.setattr(estimator_job, "CPU_COUNT", 1)
    est = runpy.run_path(str(ROOT / "examples" / "paper_listing.py"))["est"]

    assert est.n_iter_ == 10
    assert est.job_.spec.batch.growth.geometric.every_epochs == 60
    assert est.job_.spec.optimizer.torch.optimizer == "torch.optim:Adadelta"
    assert est.module_.hidden.in_features == 10


def test_the_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator_job, "CPU_COUNT", 1)
    page = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, {"__name__": "page"})
    accuracy, batch, digest = capsys.readouterr().out.split()

    assert float(accuracy) > 0.9
    assert (batch, len(digest)) == ("128", 64)


def test_scoring_is_in_eval_mode() -> None:
    """AdaDamp scored with dropout, and batch norm learned the test set."""
    layers = [nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10)]
    est = DaskClassifier(nn.Sequential(*layers), **PARAMETERS | {"max_epochs": 1}).fit(X, Y)
    before = {name: tensor.clone() for name, tensor in est.module_.state_dict().items()}
    scores = {est.score(X, Y) for _ in range(2)}

    assert len(scores) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in est.module_.state_dict().items())
    assert int(before["2.num_batches_tracked"]) == 23
    assert int(layers[2].num_batches_tracked) == 0

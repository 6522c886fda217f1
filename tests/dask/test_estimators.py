"""Estimators with several workers: the weights of one process, workers that are kept, clusters that are the user's."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import joblib  # noqa: F401  (it adds its start method)
import pytest
import torch
from batchgrowth_trainer import DaskClassifier
from batchgrowth_trainer.dampers import GeoDamp
from batchgrowth_trainer.pool.kept import KEPT
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.workloads.digits import split
from distributed import LocalCluster
from sklearn.base import clone
from torch import nn

X, Y = split()[0].tensors


class Net(nn.Module):
    """With dropout and batch norm, which could depend on who computes what."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(hidden, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


PARAMETERS: dict[str, Any] = {
    "optimizer": torch.optim.Adam, "optimizer__lr": 0.01, "batch_size": GeoDamp(32, delay=1, factor=4),
    "max_batch_size": 256, "grads_per_worker": 32, "max_epochs": 3, "random_state": 5, "device": "cpu",
    "spec": {"workers": {"wait_seconds": 120}},
}  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> DaskClassifier:
    """Trained in this process."""
    return DaskClassifier(Net, max_workers=1, **PARAMETERS).fit(X, Y)


@pytest.fixture(autouse=True)
def _closed(_nothing_left: None) -> Iterator[None]:
    yield
    KEPT.close()


class Killer:
    """A sink that kills a worker's process at an update, once there are two; `most` is the most that it has seen."""

    def __init__(self) -> None:
        self.killed = 0
        self.most = 0

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            self.most = max(self.most, event.workers)
        if isinstance(event, HistoryRow) and event.workers > 1 and not self.killed:
            cluster = KEPT._cluster
            assert cluster is not None
            self.killed = next(iter(cluster.workers.values())).pid
            os.kill(self.killed, signal.SIGKILL)


def test_workers_change_nothing_and_are_kept(alone: DaskClassifier) -> None:
    """Two and four workers, a worker that is killed, and a fit in pieces, all on one cluster."""
    two = DaskClassifier(Net, max_workers=2, **PARAMETERS).fit(X, Y)
    cluster = KEPT._cluster
    killer = Killer()
    four = clone(two).set_params(max_workers=4, callbacks=[killer]).fit(X, Y)
    pieces = clone(two).partial_fit(X, Y).partial_fit(X, Y).partial_fit(X, Y)

    assert {two.weights_sha256_, four.weights_sha256_, pieces.weights_sha256_} == {alone.weights_sha256_}
    assert [row["n_workers"] for row in two.history_] == [1, 2, 2]
    assert killer.most == 4  # when an epoch ends, there may be fewer, because one was killed
    assert killer.killed
    assert cluster is not None
    assert KEPT._cluster is cluster


def test_a_process_of_joblib_has_workers(alone: DaskClassifier) -> None:
    """As in a search with `n_jobs`: joblib gives its processes a start method of its own, "loky"."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("loky", force=True)
    try:
        two = DaskClassifier(Net, max_workers=2, **PARAMETERS).fit(X, Y)
        method = multiprocessing.get_start_method()
    finally:
        multiprocessing.set_start_method(before, force=True)

    assert two.weights_sha256_ == alone.weights_sha256_
    assert method == "loky"


@pytest.mark.long
def test_a_cluster_of_ones_own(alone: DaskClassifier) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        borrowed = DaskClassifier(Net, cluster=cluster, max_workers=2, **PARAMETERS).fit(X, Y)
        by_address = DaskClassifier(Net, cluster=cluster.scheduler_address, **PARAMETERS).fit(X, Y)

        assert borrowed.weights_sha256_ == by_address.weights_sha256_ == alone.weights_sha256_
        assert len(cluster.workers) == 2

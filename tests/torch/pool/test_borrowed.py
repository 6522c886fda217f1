"""A user's cluster as a run scales it."""

from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import SpecError
from batchgrowth_trainer.pool.kept import Borrowed, BorrowedScaler


class Cluster:
    """A cluster of so many workers, which notes what it is asked for."""

    scheduler_address = "tcp://10.0.0.1:8786"

    def __init__(self, present: int) -> None:
        self.scheduler_info = {"workers": dict.fromkeys(range(present))}
        self.asked: list[int] = []

    def scale(self, count: int) -> None:
        self.asked.append(count)


def test_it_is_asked_for_more_and_never_for_fewer() -> None:
    cluster = Cluster(2)
    scaler = BorrowedScaler(cluster)
    scaler.repair()
    for count in (1, 2, 3, 3, 1):
        scaler.scale(count, ())
    scaler.repair()

    assert cluster.asked == [3, 3]


def test_it_is_lent_as_it_is(small_job: Any) -> None:
    cluster = Cluster(1)
    with Borrowed(cluster).lent(small_job().spec, SimpleNamespace()) as (lent, _):
        assert lent is cluster


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"scheduler_address": "inproc://10.0.0.1/1"}, "cluster: its workers are threads of this process; make it"),
        ({"asynchronous": True}, "cluster: it is asynchronous; make it with asynchronous=False"),
        ({"scale": None}, "cluster: a Cluster was given; give a Dask cluster such as LocalCluster or KubeCluster"),
    ],
)
def test_another_cluster_is_refused(fields: dict[str, Any], text: str) -> None:
    cluster = Cluster(1)
    vars(cluster).update(fields)
    with pytest.raises(SpecError) as found:
        Borrowed(cluster)

    assert str(found.value).startswith(text)

"""The Dask cluster of a user, as an object of this process that can `scale`."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from batchgrowth.contract.logs import Logs
from batchgrowth.errors import Fault, SpecError
from batchgrowth.spec import JobSpec


class BorrowedScaler:
    """Asks the cluster for more workers, and never for fewer: its own choice could close one that trains."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._asked = 0

    def scale(self, count: int, keep: Collection[str]) -> None:  # noqa: ARG002
        """See Scaler."""
        present = len(self._cluster.scheduler_info.get("workers", {}))
        if count > max(self._asked, present):
            self._asked = count
            self._cluster.scale(count)

    def repair(self) -> None:
        """Repeat what was asked for, in case a worker was lost."""
        if self._asked:
            self._cluster.scale(self._asked)

    def check_starts(self, known: Collection[str]) -> None:
        """Do nothing: the cluster starts its workers."""

    def forget_starts(self) -> None:
        """Do nothing: the cluster starts its workers."""

    def worked_at(self) -> float:
        """Return the beginning of time: nothing is known of a worker that does not answer."""
        return 0.0


class Borrowed:
    """Lends a user's cluster to a run; a training.ClusterOf."""

    def __init__(self, cluster: Any) -> None:
        """Raise SpecError for an object that is no cluster whose number of workers can be set."""
        address = getattr(cluster, "scheduler_address", None)
        if not callable(getattr(cluster, "scale", None)) or not isinstance(address, str):
            given = f"a {type(cluster).__name__} was given"
            remedy = "give a Dask cluster such as LocalCluster or KubeCluster, or the address of a scheduler"
            raise SpecError([Fault("cluster", given, remedy)])
        if getattr(cluster, "asynchronous", False):
            raise SpecError([Fault("cluster", "it is asynchronous", "make it with asynchronous=False")])
        if address.startswith("inproc://"):
            given = "its workers are threads of this process"
            raise SpecError([Fault("cluster", given, "make it with processes=True: a worker needs a process")])
        self._cluster = cluster

    @contextmanager
    def lent(self, _spec: JobSpec, _logs: Logs) -> Iterator[tuple[Any, BorrowedScaler]]:
        """Lend the cluster for the block, and leave it as it is then."""
        yield self._cluster, BorrowedScaler(self._cluster)

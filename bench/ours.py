"""Our systems: `train`, as `batchgrowth run` calls it, on ready workers of a LocalCluster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from batchgrowth.position import Position
from batchgrowth.schedule.plan import make_plan
from batchgrowth.schedule.stages import Plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Sink
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workers.local_cluster import local_cluster
from distributed.security import Security

from bench.baselines import Sample, sample_of
from bench.cases import cases
from bench.loopback import sent_bytes


class Rows:
    """A sink that collects the rows of the history."""

    def __init__(self) -> None:
        self.rows: list[HistoryRow] = []

    def handle(self, event: Event) -> None:
        """See Sink."""
        if isinstance(event, HistoryRow):
            self.rows.append(event)

    def sample(self, warm: int, sent: float) -> Sample:
        """The sample of the updates from the commit of update `warm` to the last, by the reporter's clock."""
        return sample_of([row.seconds for row in self.rows[warm - 1 :]], sent)


@dataclass(frozen=True, slots=True)
class Trained:
    """One run: its rows, and the bytes sent from before its driver connects until after it disconnects."""

    rows: Rows
    sent: int


@contextmanager
def workers_ready(count: int, *, tls: bool = False) -> Iterator[str]:
    """The scheduler's address of a local cluster with `count` workers, which speaks TLS if wanted, as pods do."""
    with dask.config.set(_tls() if tls else {}), local_cluster(cases(quick=True)[0].job().spec) as cluster:
        cluster.scale(count)
        cluster.wait_for_workers(count, timeout=120)
        yield cluster.scheduler_address


def _tls() -> dict[str, Any]:
    """Settings of Dask with which every role speaks TLS with one certificate, as in pods."""
    made = Security.temporary()
    tls, roles = "distributed.comm.tls", ("scheduler", "worker", "client")
    certificates = {f"{tls}.{role}.cert": made.tls_client_cert for role in roles}
    keys = {f"{tls}.{role}.key": made.tls_client_key for role in roles}
    return {"distributed.comm.require-encryption": True, f"{tls}.ca-file": made.tls_ca_file, **certificates, **keys}


def measure(job: BatchGrowthJob, scheduler: str) -> Trained:
    """A run with the job's maximum of workers throughout."""
    kept, before, workers = Rows(), sent_bytes(), job.spec.workers.maximum
    summary = run(job, scheduler, lambda _plan, _position: workers, [kept])
    assert summary["recoveries"] == 0, "a worker was lost, so the times cannot be compared"
    assert {row.workers for row in kept.rows} == {workers}
    assert [row.update for row in kept.rows] == list(range(1, make_plan(job.spec).updates + 1))
    return Trained(kept, sent_bytes() - before)


def run(
    job: BatchGrowthJob, scheduler: str, wanted: Callable[[Plan, Position], int], sinks: Sequence[Sink] = ()
) -> dict[str, Any]:
    """The summary of a run whose files are deleted."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        return train(job, Options(output_dir=Path(folder) / "run", scheduler=scheduler, wanted=wanted), sinks)

"""Our systems: `train`, as `batchgrowth run` calls it, on ready workers of a LocalCluster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.pool.local_cluster import local_cluster
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Sink
from batchgrowth_trainer.training import Options, train
from distributed.security import Security

from bench.cases import cases
from bench.loopback import sent_bytes


class Rows:
    """A sink that collects the rows of the history."""

    def __init__(self) -> None:
        self.rows: list[HistoryRow] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            self.rows.append(event)


@contextmanager
def workers_ready(count: int, *, tls: bool = False) -> Iterator[str]:
    """Yield the scheduler's address of a local cluster with `count` workers, which speaks TLS if asked, as pods do."""
    security = Security(require_encryption=False)
    settings: dict[str, Any] = {}
    if tls:
        security = Security.temporary()
        prefix = "distributed.comm.tls"
        settings = {"distributed.comm.require-encryption": True, f"{prefix}.ca-file": security.tls_ca_file,
                    f"{prefix}.client.cert": security.tls_client_cert,
                    f"{prefix}.client.key": security.tls_client_key}  # fmt: skip
    with local_cluster(cases(quick=True)[0].job().spec, security=security) as cluster, dask.config.set(settings):
        cluster.scale(count)
        cluster.wait_for_workers(count, timeout=120)
        yield cluster.scheduler_address


def measure(job: BatchGrowthJob, scheduler: str | None) -> tuple[list[HistoryRow], int]:
    """Train with the job's maximum of workers throughout, in a cluster of the run's own without a `scheduler`.

    Returns:
        The rows of the history, and the bytes sent from before the driver connects until after it disconnects.
    """
    kept = Rows()
    before = sent_bytes()
    workers = job.spec.workers.maximum
    summary = run(job, scheduler, lambda _plan, _position: workers, [kept])
    assert summary["recoveries"] == 0, "a worker was lost, so the times cannot be compared"
    assert {row.workers for row in kept.rows} == {workers}
    assert [row.update for row in kept.rows] == list(range(1, make_plan(job.spec).updates + 1))
    return kept.rows, sent_bytes() - before


def run(
    job: BatchGrowthJob,
    scheduler: str | None,
    desired_workers: Callable[[Plan, Position], int],
    sinks: Sequence[Sink] = (),
) -> dict[str, Any]:
    """Return the summary of a run whose files are deleted."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder:
        return train(
            job, Options(output_dir=Path(folder) / "run", scheduler=scheduler, desired_workers=desired_workers), sinks
        )

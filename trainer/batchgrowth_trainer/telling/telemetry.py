"""The trainer's metrics, made from the table in `batchgrowth.metrics`, and the endpoint that Prometheus scrapes."""

from __future__ import annotations

import socket
import time
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

from batchgrowth.errors import PortError
from batchgrowth.metrics import TRAINER, Metric
from batchgrowth.plan import Plan
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow


class Telemetry:
    """Every metric of the trainer, in a registry of its own, so that two runs in one process do not meet."""

    def __init__(self, plan: Plan, epochs: float = 0.0) -> None:
        """`epochs` are done already, where a run goes on: counters begin at 0 all the same, as after any restart."""
        self.registry = CollectorRegistry()
        self._plan = plan
        self._metrics: dict[str, Any] = {metric.name: _made(metric, self.registry) for metric in TRAINER}
        self._epoch = epochs

    def row(self, row: HistoryRow) -> None:
        """An update was committed."""
        told = self._metrics
        told["batchgrowth_updates_total"].inc()
        told["batchgrowth_examples_total"].inc(max(0.0, row.epoch - self._epoch) * self._plan.examples_per_epoch)
        self._epoch = row.epoch
        told["batchgrowth_batch_size"].set(row.batch_size)
        told["batchgrowth_epochs"].set(row.epoch)
        told["batchgrowth_learning_rate"].set(row.learning_rate)
        told["batchgrowth_loss"].set(row.loss)
        told["batchgrowth_stage"].set(row.stage)
        told["batchgrowth_progress_ratio"].set(row.update / self._plan.updates)
        told["batchgrowth_workers"].labels("wanted").set(self._plan.stage_at(row.update - 1).workers)
        told["batchgrowth_workers"].labels("training").set(row.workers)
        told["batchgrowth_last_progress_timestamp_seconds"].set(time.time())
        spent = told["batchgrowth_update_duration_seconds"]
        spent.labels("compute").observe(row.compute_seconds)
        spent.labels("exchange").observe(row.exchange_seconds)
        spent.labels("wait").observe(row.wait_seconds)

    def evaluation(self, row: EvaluationRow) -> None:
        """The model was evaluated."""
        for name, value in (("loss", row.loss), *row.metrics.items()):
            self._metrics["batchgrowth_evaluation"].labels(name).set(value)

    def resize(self, before: int, after: int, pause_seconds: float) -> None:
        """Members joined or left."""
        direction = "up" if after > before else "down"
        self._metrics["batchgrowth_resize_duration_seconds"].labels(direction).observe(pause_seconds)

    def recovery(self) -> None:
        """A member was lost."""
        self._metrics["batchgrowth_recoveries_total"].inc()

    def sent(self, count: float) -> None:
        """Members sent so many bytes to each other."""
        self._metrics["batchgrowth_exchange_bytes_total"].inc(count)

    def checkpoint(self, seconds: float, size: int) -> None:
        """A checkpoint of `size` bytes was written."""
        self._metrics["batchgrowth_checkpoint_duration_seconds"].observe(seconds)
        self._metrics["batchgrowth_checkpoint_size_bytes"].set(size)
        self._metrics["batchgrowth_checkpoint_last_success_timestamp_seconds"].set(time.time())

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be written."""
        self._metrics["batchgrowth_checkpoint_failures_total"].inc()


class Endpoint:
    """Serves a registry at http://HOST:PORT/metrics until it is closed."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises PortError where the port is taken."""
        self._server: WSGIServer
        self._thread: Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise PortError(
                f"--metrics-port {port}: {host}:{port} cannot be opened ({error.strerror}). "
                "Another run may be using it: give another port, or 0 for any free one."
            ) from error
        self._address = host, self._server.server_port
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving. The server looks up only every half second, or when somebody calls: so somebody calls."""
        ending = Thread(target=self._server.shutdown)
        ending.start()
        socket.create_connection(self._address, timeout=1).close()
        ending.join()
        self._server.server_close()
        self._thread.join()


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, metric.help, metric.labels, registry=registry)

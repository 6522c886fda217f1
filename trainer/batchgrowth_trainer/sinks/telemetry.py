"""The trainer's metrics, from the table in `batchgrowth.contract.metrics`, and the endpoint that Prometheus scrapes."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

from batchgrowth.contract.metrics import TRAINER, ExchangeFigures, Metric
from batchgrowth.errors import PortError
from batchgrowth.plan import Plan
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.worker.addresses import bracketed

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

LIVENESS_PATH = "/livez"
_OF_EXCHANGES = tuple(metric for metric in TRAINER if metric.figures)


class Telemetry:
    """Every metric of the trainer, in its own registry, so that two runs in one process share no metric."""

    def __init__(self, plan: Plan, epochs: float = 0.0, registry: CollectorRegistry | None = None) -> None:
        """Make the metrics; `epochs` were done before a resume, but counters begin at 0, as after any restart."""
        self.registry = registry or CollectorRegistry()
        self._plan = plan
        self._metrics: dict[str, Any] = {
            metric.name: _collector(metric, None if metric.begins_later else self.registry) for metric in TRAINER
        }
        self._absent = {metric.name for metric in TRAINER if metric.begins_later}
        self._epoch = epochs
        # Each label has a value from the start, so that a query finds the series before its first event.
        self._show(ExchangeFigures(largest_staleness=0, mean_staleness=0.0))

    def handle(self, event: events.Event) -> None:
        metrics = self._metrics
        match event:
            case HistoryRow():
                plan = self._plan
                # A counter per row, not the row's number: after a restart counters begin at 0, as Prometheus expects.
                metrics["batchgrowth_updates_total"].inc()
                metrics["batchgrowth_examples_total"].inc(max(0.0, event.epoch - self._epoch) * plan.examples_per_epoch)
                self._epoch = event.epoch
                metrics["batchgrowth_batch_size"].set(event.batch_size)
                metrics["batchgrowth_epochs"].set(event.epoch)
                self._set("batchgrowth_learning_rate", event.learning_rate)
                self._set("batchgrowth_loss", event.loss)
                metrics["batchgrowth_stage"].set(event.stage)
                metrics["batchgrowth_progress_ratio"].set(event.update / plan.updates)
                metrics["batchgrowth_workers"].labels("wanted").set(plan.stage_at(event.update - 1).workers)
                metrics["batchgrowth_workers"].labels("training").set(event.workers)
                metrics["batchgrowth_last_progress_timestamp_seconds"].set(time.time())
                if event.outlook is not None:
                    remaining = event.outlook.remaining
                    bounds = {"expected": remaining.value, "low": remaining.low, "high": remaining.high}
                    for bound, seconds in bounds.items():
                        metrics["batchgrowth_remaining_seconds"].labels(bound).set(seconds)
                    metrics["batchgrowth_update_forecast_seconds"].set(event.outlook.update_seconds)
                spent = metrics["batchgrowth_update_duration_seconds"]
                spent.labels("compute").observe(event.compute_seconds)
                spent.labels("exchange").observe(event.exchange_seconds)
                spent.labels("wait").observe(event.wait_seconds)
            case ExchangeFigures():
                self._show(event)
            case EvaluationRow():
                for name, value in (("loss", event.loss), *event.metrics.items()):
                    metrics["batchgrowth_evaluation"].labels(name).set(value)
            case ResizeRow():
                direction = "up" if event.to_workers > event.from_workers else "down"
                metrics["batchgrowth_resize_duration_seconds"].labels(direction).observe(event.pause_seconds)
            case events.Looked(row, quantity, _, plan):
                self._plan = plan
                metrics["batchgrowth_growth_quantity"].labels(quantity).set(row.value)
            case events.Undone(position=position, plan=plan):
                self._plan = plan
                self._epoch = position.epoch + position.offset / plan.examples_per_epoch
            case events.EndedEarly():
                metrics["batchgrowth_progress_ratio"].set(1.0)
            case events.Recovered():
                metrics["batchgrowth_recoveries_total"].inc()
            case events.CheckpointSaved():
                metrics["batchgrowth_checkpoint_duration_seconds"].observe(event.seconds)
                self._set("batchgrowth_checkpoint_size_bytes", event.size)
                metrics["batchgrowth_checkpoint_last_success_timestamp_seconds"].set(time.time())
            case events.CheckpointFailed():
                metrics["batchgrowth_checkpoint_failures_total"].inc()

    def _set(self, name: str, value: float) -> None:
        """Set a metric that begins with its first value."""
        self._metrics[name].set(value)
        if name in self._absent:
            self.registry.register(self._metrics[name])
            self._absent.remove(name)

    def _show(self, figures: ExchangeFigures) -> None:
        """Add or set each known figure in its metric, as the table of metrics assigns them."""
        for metric in _OF_EXCHANGES:
            for label, name in metric.figures.items():
                value = getattr(figures, name)
                if value is None:
                    continue
                shown = self._metrics[metric.name]
                if label:
                    shown = shown.labels(label)
                if metric.kind == "counter":
                    shown.inc(value)
                else:
                    shown.set(value)


class Endpoint:
    """Serves a registry at http://HOST:PORT/metrics until it is closed, and at /livez whether the process lives."""

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, trouble: Callable[[], str] = lambda: ""
    ) -> None:
        """Listen on the port; 0 is any free port. `trouble` returns a line about what hangs, empty if nothing does.

        Raises PortError if the port is taken.
        """
        self.registry = registry
        self._server: WSGIServer
        self._thread: Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise PortError(
                f"--metrics-port {port}: {host}:{port} cannot be opened ({error.strerror}). "
                "Another run may be using it: give another port, or 0 for any free one."
            ) from error
        self._server.set_app(_with_liveness(self._server.get_app(), trouble))  # type: ignore[arg-type]
        self._address = host, self._server.server_port
        self.url = f"http://{bracketed(host)}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving. This connects once, since the server notices the stop only at a connection or every half
        second.
        """
        ending = Thread(target=self._server.shutdown)
        ending.start()
        with suppress(OSError):
            socket.create_connection(self._address, timeout=1).close()
        ending.join()
        self._server.server_close()
        self._thread.join()


def _with_liveness(metrics: "WSGIApplication", trouble: Callable[[], str]) -> "WSGIApplication":
    def answer(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] != LIVENESS_PATH:
            return metrics(environ, start_response)
        hung = trouble()
        start_response("503 Service Unavailable" if hung else "200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return [(hung or "ok").encode()]

    return answer


def _collector(metric: Metric, registry: CollectorRegistry | None) -> Counter | Gauge | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, metric.help, metric.labels, registry=registry)

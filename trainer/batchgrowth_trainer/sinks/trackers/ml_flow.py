"""MLflow: a tracking server, or files in the run's output folder."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from batchgrowth_trainer.record.output import MLFLOW_FOLDER
from batchgrowth_trainer.sinks.trackers.tracking import Point, Status, Training, Value

_ENDED = {Status.FINISHED: "FINISHED", Status.INTERRUPTED: "KILLED", Status.FAILED: "FAILED"}
_MOST_METRICS = 1000
_MOST_PARAMETERS = 100  # in one request, as MLflow's API says
_LONGEST_PARAMETER = 6000
_DEFAULT_EXPERIMENT = "Default"
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")


class MLflow:
    """One run of an experiment: MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME or MLflow's default."""

    def __init__(self) -> None:
        self._run = ""

    def open(self, training: Training, run: str) -> str:
        # A failed request is made again later, with those that came after it.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or _local(training.folder)
        self._client = MlflowClient(tracking_uri=uri)
        self._run = run or self._run or os.environ.get("MLFLOW_RUN_ID", "")
        if self._run:
            self._client.update_run(self._run, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_RUN_NAME") or training.name
            self._run = self._client.create_run(_experiment(self._client), run_name=name).info.run_id
        if not run:
            parameters = [
                Param(_named(name), str(value)[:_LONGEST_PARAMETER]) for name, value in training.parameters.items()
            ]
            for first in range(0, len(parameters), _MOST_PARAMETERS):
                self._client.log_batch(self._run, params=parameters[first : first + _MOST_PARAMETERS])
        return self._run

    def write(self, points: Sequence[Point]) -> None:
        metrics = [
            Metric(_named(name), value, round(point.at * 1000), point.update)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST_METRICS])

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        tags = [
            RunTag(_named(f"batchgrowth.{name}"), str(value)) for name, value in {"status": status, **summary}.items()
        ]
        self._client.log_batch(self._run, tags=tags)
        self._client.set_terminated(self._run, _ENDED[status])


def _named(name: str) -> str:
    """Return the name as MLflow accepts it; a workload's metric may have any name."""
    return _NOT_IN_NAMES.sub("_", name)


def _local(folder: Path) -> str:
    # Without this, MLflow refuses its file store; its other local store is a database, for which skinny has no driver.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (folder / MLFLOW_FOLDER).absolute().as_uri()


def _experiment(client: MlflowClient) -> str:
    if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_EXPERIMENT
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id) if known is not None else str(client.create_experiment(name))

"""Trackers: what the real libraries record in local stores, and how training lives with one that fails."""

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from batchgrowth.errors import Interrupted, SpecError, Superseded
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth.spec.job import TrackerName
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.sinks.events import Event, Finished, Note, Started, Stopped
from batchgrowth_trainer.sinks.trackers import tracking
from batchgrowth_trainer.sinks.trackers.tracking import (
    TRACKERS,
    Point,
    Status,
    TrackerLibrary,
    Tracking,
    Training,
    Value,
    period_seconds,
)
from batchgrowth_trainer.training import Options, train

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, which warn of each other
ENVIRONMENT = ("MLFLOW_", "WANDB_")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of the libraries' variables is set, and those that a tracker sets are removed at the end."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT)]:
        monkeypatch.delenv(name)
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))


@pytest.fixture
def _no_service() -> Iterator[None]:
    """Ends the process that wandb keeps until its own process ends, if a test has not come so far as to read."""
    yield
    import wandb

    wandb.teardown()


# --- the real libraries -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What a library has of a run: (name, update) -> values in the order in which they came."""

    parameters: Mapping[str, str]
    values: Mapping[tuple[str, int], list[float]]
    ended: Sequence[str]
    summary: Mapping[str, str]
    runs: int


def from_tensorboard(folder: Path) -> Read:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values: dict[tuple[str, int], list[float]] = {}
    texts: dict[str, list[str]] = {"spec": [], "summary": []}
    for path in sorted((folder / "tensorboard").iterdir()):
        read = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
        read.Reload()
        for name in read.Tags()["scalars"]:
            for event in read.Scalars(name):
                values.setdefault((name, event.step), []).append(event.value)
        for name in read.Tags()["tensors"]:
            texts[name.removesuffix("/text_summary")] += [
                event.tensor_proto.string_val[0].decode() for event in read.Tensors(name)
            ]
    tables = {name: [_table(text) for text in each] for name, each in texts.items()}
    [spec] = tables["spec"]
    ends = tables["summary"]
    return Read(spec, values, [end["status"] for end in ends], ends[-1], 1)


def _table(text: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: str(json.loads(value)) for name, value in rows}


def from_mlflow(folder: Path) -> Read:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    runs = client.search_runs(["0"])
    run = runs[0]
    values: dict[tuple[str, int], list[float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            values.setdefault((name, metric.step), []).append(metric.value)
    summary = {name.removeprefix("batchgrowth."): value for name, value in run.data.tags.items()}
    assert run.data.tags["mlflow.runName"] == "small"
    return Read(run.data.params, values, [run.info.status], summary, len(runs))


def from_wandb(folder: Path) -> Read:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # wandb's own process may write the rest of a finished run's file when it ends, not before
    values: dict[tuple[str, int], list[float]] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    ended: list[str] = []
    identifiers = set()
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                identifiers.add(record.run.run_id)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert record.run.display_name == "small"
            elif kind == "history":
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                for name, value in row.items():
                    if "/" in name:
                        values.setdefault((name, row["_step"]), []).append(value)
            elif kind == "summary":
                summary |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.summary.update}
            elif kind == "exit":
                ended.append(str(record.exit.exit_code))
    parameters = Training(name="", folder=folder, spec=config).parameters
    texts = {name: str(value) for name, value in parameters.items()}
    return Read(texts, values, ended, {name: str(value) for name, value in summary.items()}, len(identifiers))


def records(data: bytes) -> Iterator[bytes]:
    """The records of wandb's file, which is a log of LevelDB behind seven bytes: blocks of 32 KiB, with pieces of
    (checksum, length, whole or first or middle or last).
    """
    whole, at = b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


LIBRARIES: dict[str, tuple[Callable[[Path], Read], list[str]]] = {
    "TensorBoard": (from_tensorboard, ["interrupted", "finished"]),
    "MLflow": (from_mlflow, ["FINISHED"]),
    "WeightsAndBiases": (from_wandb, ["130", "0"]),
}


@pytest.mark.usefixtures("_no_service")
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_run_that_is_interrupted_and_resumed_is_one_run_in_the_library(
    name: str, small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each update at most once, the values of the history, every evaluation, the spec, the end and the summary."""
    monkeypatch.setattr(tracking, "_STOP_SECONDS", 120.0)  # the library is imported for the first time
    monkeypatch.setattr(tracking, "_HURRIED_STOP_SECONDS", 120.0)
    monkeypatch.setattr(tracking, "period_seconds", lambda _: 0.0)
    job, read, ended = small_job(f"trackers=[{name}]"), *LIBRARIES[name]
    stop = AfterUpdates(10)
    with pytest.raises(Interrupted):
        train(job, Options(output_dir=tmp_path), [stop], stop.reached)

    summary = train(job, Options(output_dir=tmp_path, resume=True))

    found, recorded = read(tmp_path), read_run(tmp_path)
    expected = {("train/loss", row.update): [row.loss] for row in recorded.history}
    expected |= {("train/learning_rate", row.update): [row.learning_rate] for row in recorded.history}
    expected |= {("train/batch_size", row.update): [row.batch_size] for row in recorded.history}
    expected |= {("test/accuracy", row.update): [row.metrics["accuracy"]] for row in recorded.evaluations}
    assert {key: pytest.approx(values) for key, values in expected.items()} == {
        key: found.values[key] for key in expected
    }
    assert {update for name, update in found.values if name == "train/workers"} == set(range(1, summary["updates"] + 1))
    assert tuple(found.parameters[name] for name in ("batch.initial", "batch.growth.type", "learningRate.initial")) == (
        "8",
        "Geometric",
        "0.05",
    )
    assert summary["weightsSha256"] == found.summary["weightsSha256"]
    assert str(summary["updates"]) == found.summary["updates"]
    assert found.summary["status"] == "finished"
    assert (1, ended) == (found.runs, found.ended)


def test_a_server_that_is_away_stops_nothing(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user is warned once; the variables of the library are read."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(tracking, "_STOP_SECONDS", 120.0)
    monkeypatch.setattr(tracking, "_HURRIED_STOP_SECONDS", 120.0)
    plain, notes = train(small_job(), Options(output_dir=tmp_path / "plain")), Notes()

    summary = train(small_job("trackers=[MLflow]"), Options(output_dir=tmp_path / "tracked"), [notes])

    assert plain["weightsSha256"] == summary["weightsSha256"]
    [warning] = [text for text in notes.texts if "MLflow" in text]
    assert warning.startswith("spec.trackers: MLflow cannot record the run now (")
    assert not (tmp_path / "tracked" / "mlflow").exists()


# --- which there are --------------------------------------------------------------------------------------------------


def test_every_name_of_the_manifest_has_a_tracker() -> None:
    assert set(get_args(TrackerName)) == set(TRACKERS)


def test_a_missing_library_is_refused_before_anything_is_created(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if there is a folder of that name, which Python takes for a package."""
    (tmp_path / "here" / "no_such_tracker").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "here")
    monkeypatch.setitem(TRACKERS, "MLflow", TrackerLibrary("mlflow", "no_such_tracker", ""))
    monkeypatch.setitem(TRACKERS, "WeightsAndBiases", TrackerLibrary("wandb", "neither_this_one", ""))

    with pytest.raises(SpecError) as refused:
        train(small_job("trackers=[MLflow, WeightsAndBiases]"), Options(output_dir=tmp_path / "run"))

    assert [fault.path for fault in refused.value.faults] == ["spec.trackers"] * 2
    assert "MLflow needs the package no_such_tracker, which is not installed" in str(refused.value)
    assert "pip install 'batchgrowth[mlflow]'" in str(refused.value)
    assert "pip install 'batchgrowth[wandb]'" in str(refused.value)
    assert not (tmp_path / "run").exists()


# --- the sink ---------------------------------------------------------------------------------------------------------


class AfterUpdates:
    """A stop request after this many updates."""

    def __init__(self, most: int) -> None:
        self._most, self._update = most, 0

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            self._update = event.update

    def reached(self) -> bool:
        return self._update >= self._most


class Notes:
    """The notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Note):
            self.texts.append(event.text)


class MadeUp:
    """A tracker that remembers; its next calls raise `faults`, or wait for `hangs`."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.points: list[Point] = []
        self.ends: list[tuple[Status, Mapping[str, Value]]] = []
        self.faults: list[Exception] = []
        self.spent = threading.Event()  # the last of them was raised
        self.hangs: threading.Event | None = None

    def _meet_faults(self) -> None:
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.faults:
            fault = self.faults.pop(0)
            if not self.faults:
                self.spent.set()
            raise fault

    def open(self, training: Training, run: str) -> str:
        self._meet_faults()
        self.opened.append(run)
        return run or "run 1"

    def write(self, points: Sequence[Point]) -> None:
        self._meet_faults()
        self.points += points

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        self._meet_faults()
        self.ends.append((status, summary))

    @property
    def updates(self) -> list[int]:
        return [point.update for point in self.points if "train/loss" in point.values]


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A sink with a made-up tracker, and what it has noted."""

    folder: Path
    job: Any
    tracker: MadeUp
    clock: Clock
    notes: list[str]

    def start(self) -> Tracking:
        training = Training(name="small", folder=self.folder, spec={})
        sink = Tracking("MLflow", lambda: self.tracker, training, self.notes.append, self.clock)
        sink.handle(Started("small", make_plan(self.job.spec), Position()))
        return sink


@pytest.fixture
def world(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(tracking, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.01)
    return World(tmp_path, small_job(), MadeUp(), Clock(), [])


def row(update: int, stage: int = 0, workers: int = 1) -> HistoryRow:
    return HistoryRow(update, update / 10, stage, 25, 0.05, 1.0, workers, 0.1, 0.0, 0.0, update / 10)


def evaluation(update: int) -> EvaluationRow:
    return EvaluationRow(update, 1.0, 0.1, 0.5, {"accuracy": 0.75})


def feed(sink: Tracking, world: World, updates: Sequence[int]) -> None:
    """One update every ten seconds, so that none is left out."""
    for update in updates:
        world.clock.now += 10.0
        sink.handle(row(update))


def test_updates_are_thinned_but_not_changes_evaluations_and_the_last(world: World) -> None:
    sink = world.start()
    for update in range(1, 10_001):
        world.clock.now = update / 1000  # ten seconds in all
        sink.handle(row(update, stage=update // 5003, workers=1 if update < 7001 else 2))
    sink.handle(evaluation(9_999))
    sink.handle(Stopped())

    assert {1, 5003, 7001, 10_000} <= set(world.tracker.updates)
    assert 40 <= len(world.tracker.updates) <= 45
    assert [point.update for point in world.tracker.points if "test/accuracy" in point.values] == [9_999]
    assert 1500 < sum(1 / period_seconds(second) for second in range(3600)) < 2000, "of an hour"


def test_what_a_failing_tracker_does_not_take_is_sent_later_and_reported_once(world: World) -> None:
    world.tracker.faults = [ConnectionError("away")] * 3
    sink = world.start()
    feed(sink, world, [1])
    assert world.tracker.spent.wait(60)
    feed(sink, world, [2, 3])
    world.tracker.spent.clear()
    world.tracker.faults = [ValueError("again")]
    feed(sink, world, [4])
    assert world.tracker.spent.wait(60)
    sink.handle(Finished("abc"))
    sink.handle(Stopped())

    assert world.tracker.updates == [1, 2, 3, 4]
    assert world.tracker.opened == [""]
    [(status, summary)] = world.tracker.ends
    assert (Status.FINISHED, "abc", 4) == (status, summary["weightsSha256"], summary["updates"])
    assert world.notes == [
        "spec.trackers: MLflow cannot record the run now (ConnectionError: away); training goes on, and what it lacks "
        "is in history.csv"
    ]


def test_one_that_hangs_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_STOP_SECONDS", 0.1)
    world.tracker.hangs = threading.Event()
    sink = world.start()
    feed(sink, world, range(1, 50))
    sink.handle(Stopped())
    world.tracker.hangs.set()

    [note] = world.notes
    assert "MLflow has not taken everything in time" in note


def evaluated(tracker: MadeUp) -> list[int]:
    """The updates of the evaluations that the tracker has."""
    return [point.update for point in tracker.points if "test/loss" in point.values]


def test_what_a_killed_trainer_has_sent_is_not_sent_again(world: World) -> None:
    """It goes on from an earlier checkpoint, whose later updates are repeated, with the tracker's run."""
    killed = world.start()
    feed(killed, world, [1, 2, 3])
    killed.handle(evaluation(3))
    end = time.monotonic() + 60
    while not (world.tracker.updates == [1, 2, 3] and evaluated(world.tracker)) and time.monotonic() < end:
        time.sleep(0.005)
    killed.handle(Stopped(Superseded("killed, as far as the tracker can see")))
    assert (world.tracker.updates, evaluated(world.tracker)) == ([1, 2, 3], [3])

    resumed = world.start()
    feed(resumed, world, [2, 3, 4])
    resumed.handle(evaluation(3))
    resumed.handle(Stopped(RuntimeError("broken")))

    assert (world.tracker.updates, evaluated(world.tracker)) == ([1, 2, 3, 4], [3])
    assert world.tracker.opened == ["", "run 1"]
    assert [Status.FAILED] == [status for status, _ in world.tracker.ends]


def test_a_new_run_in_the_folder_is_a_new_one_for_the_tracker(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the earlier run is kept with it."""
    made: list[MadeUp] = []
    monkeypatch.setattr(TrackerLibrary, "load", lambda _: made.append(MadeUp()) or made[-1])
    for _ in range(2):
        train(small_job("trackers=[MLflow]"), Options(output_dir=tmp_path))

    assert [tracker.opened for tracker in made] == [[""], [""]]
    assert made[1].updates[0] == 1
    assert (tmp_path / "earlier" / "1" / "trackers" / "MLflow.json").is_file()

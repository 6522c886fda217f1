"""Trackers of a run, and the sink that sends to one of them in a thread of its own."""

import json
import pkgutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from batchgrowth.errors import Fault, Interrupted, SpecError, Superseded
from batchgrowth.manifest.files import read_regular
from batchgrowth.spec import BatchGrowthJob

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.record.output import TRACKING_FOLDER
from batchgrowth_trainer.record.storage import replace_file
from batchgrowth_trainer.sinks.events import Event, Finished, Started, Stopped

# --- What a tracker records, and what it has to be able to do ---

Value = str | int | float | bool


class Status(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The run to record: the job's name, its spec as plain JSON, and the output folder."""

    name: str
    folder: Path
    spec: Mapping[str, Any]

    @property
    def parameters(self) -> dict[str, Value]:
        """Return the spec's values by path, such as `batch.initial`; an item of a list has its index in the path."""
        return dict(_leaves("", self.spec))


@dataclass(frozen=True, slots=True)
class Point:
    """Values after `update` updates, by name, such as `train/loss`; `at` is wall-clock time in seconds."""

    update: int
    at: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """A library that records runs. Its methods may raise any error; the call is then repeated later.

    All methods are called in one thread, which is not that of the training.
    """

    def open(self, training: Training, run: str) -> str:
        """Begin a run, or continue the run of that identifier if it is not empty. Return its identifier."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Record points, in the order of their updates."""
        ...

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        """Record how the run ended, and close it."""
        ...


def _leaves(path: str, value: Any) -> list[tuple[str, Value]]:
    if isinstance(value, Mapping):
        items = [(f"{path}.{name}" if path else str(name), child) for name, child in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}.{number}", child) for number, child in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for name, child in items for leaf in _leaves(name, child)]


# --- Which trackers there are, and whether their libraries are installed ---


@dataclass(frozen=True, slots=True)
class TrackerLibrary:
    """A tracker: the extra and the package that it needs, and its class, "package.module:name"."""

    extra: str
    package: str
    implementation: str

    def load(self) -> Tracker:
        """Make the tracker. Raises the errors of importing its library."""
        made: Tracker = pkgutil.resolve_name(f"{__package__}.{self.implementation}")()
        return made


TRACKERS = {
    "TensorBoard": TrackerLibrary("tensorboard", "tensorboard", "tensor_board:TensorBoard"),
    "MLflow": TrackerLibrary("mlflow", "mlflow", "ml_flow:MLflow"),
    "WeightsAndBiases": TrackerLibrary("wandb", "wandb", "weights_and_biases:WeightsAndBiases"),
}
"""The names that spec.trackers takes."""


def check_installed(names: Sequence[str]) -> None:
    """Raise SpecError, which names the extra, if the library of one of these trackers is missing."""
    missing = [name for name in names if not _is_there(TRACKERS[name].package)]
    if missing:
        raise SpecError([_fault(name, TRACKERS[name]) for name in missing])


def _is_there(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # a folder `wandb` in the current one is a package too


def _fault(name: str, entry: TrackerLibrary) -> Fault:
    given = f"{name} needs the package {entry.package}, which is not installed"
    remedy = (
        f"pip install 'batchgrowth[{entry.extra}]', use an image that has it (docs/trackers.md), or remove {name} here"
    )
    return Fault("spec.trackers", given, remedy)


# --- The sink of one tracker: a thread of its own opens it and sends; training never waits for it ---
# It records some updates, all evaluations, and how the run ended. What cannot be sent waits in memory and is tried
# again. How far the tracker has come is kept in the output folder, so a resume neither begins another run of the
# tracker nor repeats an update there.

SHORTEST_SECONDS = 0.25
LONGEST_SECONDS = 10.0
PERIODS = 400
"""Between two updates that are recorded: a 400th of the time since the start, within these bounds."""
PERIOD_SECONDS = 1.0
RETRY_SECONDS = 10.0
"""Seconds between two times that points are sent, and after one that failed."""
_STOP_SECONDS = 30.0  # the longest that the end of a run waits for what was not sent yet
_HURRIED_STOP_SECONDS = 3.0  # the same if the tracker has failed before, or if a user stops the run at once
_LAST_TRIES = 2
_MOST_WAITING = 20_000  # points in memory; the oldest are dropped


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The tracker's identifier of the run, and the last update and the last evaluation that the tracker has."""

    run: str = ""
    update: int = 0
    evaluation: int = 0


class Tracking:
    """Records the run with one tracker; if that fails, it tells the user once."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Tracker],
        training: Training,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the arguments. The thread calls `load`, since importing a library may take seconds; `note` tells the
        user.
        """
        self._name = name
        self._load = load
        self._training = training
        self._note = note
        self._clock = clock
        self._path = training.folder / TRACKING_FOLDER / f"{name}.json"
        self._recorded = _read(self._path)
        self._known = self._recorded  # of an earlier start: what must not be repeated
        self._tracker: Tracker | None = None
        self._is_open = False
        self._waiting: deque[Point] = deque(maxlen=_MOST_WAITING)
        self._last: HistoryRow | None = None
        self._noted = 0
        self._began = 0.0
        self._due = 0.0
        self._status: Status | None = None
        self._summary: dict[str, Value] = {}
        self._trouble = ""
        self._told = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)

    def handle(self, event: Event) -> None:
        match event:
            case HistoryRow():
                self._row(event)
            case EvaluationRow():
                self._evaluation(event)
            case Started():
                self._began = self._clock()
                self._thread.start()
            case Finished(sha256):
                self._status = Status.FINISHED
                self._summary["weightsSha256"] = sha256
            case Stopped(error):
                self._stop(error)
        self._tell()

    def _row(self, row: HistoryRow) -> None:
        last = self._last
        self._last = row
        now = self._clock()
        if now >= self._due or last is None or (row.stage, row.workers) != (last.stage, last.workers):
            self._due = now + period_seconds(now - self._began)
            self._add_row(row)

    def _add_row(self, row: HistoryRow) -> None:
        self._noted = row.update
        if row.update > self._known.update:
            values = {
                "loss": row.loss, "learning_rate": row.learning_rate, "batch_size": row.batch_size,
                "workers": row.workers, "epoch": row.epoch, "seconds": row.seconds,
                "update_seconds": row.update_seconds,
            }  # fmt: skip
            self._add("train", row.update, values)

    def _evaluation(self, row: EvaluationRow) -> None:
        values = {"loss": row.loss, **row.metrics}
        self._summary |= {f"test/{name}": value for name, value in values.items()}
        if row.update > self._known.evaluation:
            self._add("test", row.update, values)

    def _add(self, kind: str, update: int, values: Mapping[str, float]) -> None:
        self._waiting.append(Point(update, time.time(), {f"{kind}/{name}": value for name, value in values.items()}))

    def _stop(self, error: BaseException | None) -> None:
        if self._over.is_set():
            return
        if self._last is not None:
            if self._noted < self._last.update:
                self._add_row(self._last)
            self._summary |= {"updates": self._last.update, "train/loss": self._last.loss}
        at_once = isinstance(error, KeyboardInterrupt)
        if self._status is None and not isinstance(error, Superseded):  # then the run is that of the later trainer
            self._status = Status.INTERRUPTED if at_once or isinstance(error, Interrupted) else Status.FAILED
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_HURRIED_STOP_SECONDS if at_once or self._trouble or self._told else _STOP_SECONDS)
        if self._thread.is_alive():
            self._trouble = self._trouble or "has not taken everything in time"

    def _tell(self) -> None:
        # Told in the training's thread, in which all sinks are called; the tracker's own only leaves the text.
        trouble = self._trouble
        self._trouble = ""
        if trouble and not self._told:
            self._told = True
            self._note(f"spec.trackers: {self._name} {trouble}; training goes on, and what it lacks is in history.csv")

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = 0.0
        while not self._over.wait(wait):
            wait = PERIOD_SECONDS if self._tried(self._send) else RETRY_SECONDS
        if self._status is not None:
            any(self._tried(self._end) for _ in range(_LAST_TRIES))

    def _tried(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a library may raise anything, and it must not end the training
            self._trouble = f"cannot record the run now ({type(error).__name__}: {str(error).strip()[:300]})"
            return False
        return True

    def _send(self) -> None:
        if self._tracker is None:
            self._tracker = self._load()
        if not self._is_open:
            self._keep(replace(self._recorded, run=self._tracker.open(self._training, self._recorded.run)))
            self._is_open = True
        points = list(self._waiting)
        before = self._recorded
        if not points:
            return
        self._keep(_after(before, points))  # first: a trainer that is killed here must not send them again
        try:
            self._tracker.write(points)
        except BaseException:
            self._keep(before)
            raise
        for point in points:
            if self._waiting and self._waiting[0] is point:  # else the full deque has dropped it
                self._waiting.popleft()

    def _end(self) -> None:
        self._send()
        assert self._tracker is not None
        assert self._status is not None
        self._tracker.end(self._status, self._summary)

    def _keep(self, recorded: _Recorded) -> None:
        self._recorded = recorded
        with suppress(OSError):  # a full disk; at worst a resume repeats what it records
            self._path.parent.mkdir(exist_ok=True)
            replace_file(self._path, json.dumps(asdict(recorded)).encode(), durable=False)


def period_seconds(running: float) -> float:
    """Return the minimum time between two recorded updates, `running` seconds after the start."""
    return min(max(running / PERIODS, SHORTEST_SECONDS), LONGEST_SECONDS)


def _after(recorded: _Recorded, points: list[Point]) -> _Recorded:
    updates = [point.update for point in points if "train/loss" in point.values]
    evaluations = [point.update for point in points if "test/loss" in point.values]
    return replace(
        recorded,
        update=max(recorded.update, *updates, 0),
        evaluation=max(recorded.evaluation, *evaluations, 0),
    )


def _read(path: Path) -> _Recorded:
    try:
        return _Recorded(**json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError):
        return _Recorded()


def tracking(job: BatchGrowthJob, folder: Path, note: Callable[[str], None]) -> tuple[Tracking, ...]:
    """Make a sink for each of spec.trackers."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    training = Training(name=job.metadata.name, folder=folder, spec=spec)
    return tuple(Tracking(name, TRACKERS[name].load, training, note) for name in job.spec.trackers or ())

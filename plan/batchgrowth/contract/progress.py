"""What the exchange of a training did, since its trainer started or lately."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any, Self, get_args

from batchgrowth.measured.forecast import Forecast
from batchgrowth.schedule.plan import BatchDecision

# --- What the exchange of a training did, since its trainer started or lately ---

LARGEST = 2**53
"""The largest number that a report may give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Totals since the start of the trainer, and the last values of what belongs to some exchanges only.

    `bytes_sent` is what the workers have sent each other; of `backups` parts of updates that were repeated, in
    `backups_first` the backup came first. `replica_distance` is the root mean square distance of the logical replicas
    from their mean, `compression_error` the part of its norm by which a sum of gradients was changed, or that was left
    for later, and the staleness is in updates. None means that the exchange has no such thing, or that it is not known
    yet.
    """

    bytes_sent: int = 0
    replica_distance: float | None = None
    compression_error: float | None = None
    largest_staleness: int | None = None
    mean_staleness: float | None = None
    backups: int = 0
    backups_first: int = 0

    def is_possible(self) -> bool:
        """Whether a training can have done this."""
        return all(0 <= (value or 0) <= LARGEST for value in astuple(self)) and self.backups_first <= self.backups


# --- A trainer's progress report: one small document, from the trainer to the operator ---

LARGEST_START = 2**53
"""The largest number of a start: that of older trainers was a time."""
MOST_DIFFERING = 8
"""The most workers of another arithmetic that a report lists."""
LONGEST_PERIOD_SECONDS = 10.0
"""Longest time between two reports of a trainer that commits updates."""

_PARTS: dict[str, Any] = {"forecast": Forecast, "exchanged": Exchanged}
"""Fields on which nothing else in a report depends, so that a bad one is ignored."""

KINDS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    float | None: (float, int, type(None)),
    int | None: (int, type(None)),
    str | None: (str, type(None)),
    str: (str,),
    Mapping[str, float]: (dict,),
    Mapping[str, str]: (dict,),
    tuple[BatchDecision, ...]: (list,),
}
"""Type of a field -> the types that JSON gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The position and state of a training.

    `update` of `updates` updates and `epoch` of `epochs` epochs are done; `start` grows with each start of the trainer;
    `loss` is the mean over the examples since the last report; times are in seconds. None means unknown: the loss
    before the first update, the remaining time before a pace is measured, the checkpoint before the first one, the
    digest of the weights before the end. `workers` is the number that train, `ready` the number that could: they have
    joined and loaded their data. `waiting_for` names what a paused training waits for.
    By stage index, `crews` holds the most workers that trained at once, and `pauses` the longest pause while workers
    joined or left. `decisions` are those of a measured growth so far, and `forecast` is what its next look will
    probably decide, if that is another batch. `ended_at_epoch` is where stopEarly ended the training, which has no
    update after it. `differing` are the workers that add differently than the job, by name, with the reason, at most
    MOST_DIFFERING. `exchanged` is what the exchange did; None if the trainer is of an earlier version.
    """

    update: int
    updates: int
    epoch: float
    epochs: int
    stage: int
    batch_size: int
    learning_rate: float
    workers: int
    start: int = 0
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds_per_update: float | None = None
    eta_seconds: float | None = None
    checkpoint_update: int | None = None
    ready: int | None = None
    waiting_for: str | None = None
    crews: Mapping[str, float] = field(default_factory=dict)
    pauses: Mapping[str, float] = field(default_factory=dict)
    weights_sha256: str | None = None
    decisions: tuple[BatchDecision, ...] = ()
    forecast: Forecast | None = None
    ended_at_epoch: int | None = None
    differing: Mapping[str, str] = field(default_factory=dict)
    exchanged: Exchanged | None = None

    @property
    def fraction(self) -> float:
        """The share of the updates that are done, from 0 to 1."""
        return self.update / self.updates if self.updates else 1.0

    def to_json(self) -> str:
        """One line of JSON; a loss that is not finite becomes null, since JSON has no NaN."""
        values = {f.name: _finite(getattr(self, f.name)) for f in fields(self)}
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report in the text. Raises ValueError, naming the field, if the text is not a report.

        Ignores unknown fields, since trainer and operator may differ by a version, and a forecast or an exchange that
        no such training can have, since the rest of the report does not depend on them.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"progress: not JSON ({error}); give a trainer's report") from error
        if not isinstance(given, dict):
            raise ValueError(f"progress: {type(given).__name__}; give a JSON object")
        known = {f.name: f for f in fields(cls) if f.name not in _PARTS}
        values = {name: _checked(name, known[name].type, value) for name, value in given.items() if name in known}
        try:
            made = cls(**values)
        except TypeError as error:
            raise ValueError(f"progress: {error}; give every field of a report") from error
        forecast, exchanged = (_part(kind, given.get(name)) for name, kind in _PARTS.items())
        return replace(
            made,
            forecast=forecast if forecast is not None and forecast.is_possible(made.update, made.updates) else None,
            exchanged=exchanged if exchanged is not None and exchanged.is_possible() else None,
        )


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return [[one.update, one.wanted, _finite(one.value)] for one in value]
    if isinstance(value, Forecast | Exchanged):
        return {name: _finite(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {name: each for name, each in value.items() if isinstance(each, str) or math.isfinite(each)}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _checked(name: str, kind: Any, value: Any) -> Any:
    if not isinstance(value, KINDS[kind]) or isinstance(value, bool):
        raise ValueError(f"progress.{name}: {value!r}; give {getattr(kind, '__name__', kind)}")
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError(f"progress.{name}: not finite; give a finite number")
    if isinstance(value, dict):
        return {key: _checked(f"{name}.{key}", get_args(kind)[1], item) for key, item in value.items()}
    return _decisions(value) if isinstance(value, list) else value


def _part(kind: Any, given: Any) -> Any:
    """The dataclass of a part of a report; None if the part is not there, or not every field has its type."""
    if not isinstance(given, dict):
        return None
    known = {f.name: f.type for f in fields(kind)}
    try:
        return kind(**{name: _checked(name, known[name], value) for name, value in given.items() if name in known})
    except (TypeError, ValueError):
        return None


def _decisions(rows: list[Any]) -> tuple[BatchDecision, ...]:
    try:
        made = tuple(BatchDecision(*_decision(*row)) for row in rows)
    except TypeError as error:
        raise ValueError(f"progress.decisions: {error}; give [update, wanted, value] for each") from error
    return made


def _decision(update: Any, wanted: Any, value: Any) -> tuple[int, int, float]:
    _checked("decisions", int, update)
    _checked("decisions", int, wanted)
    _checked("decisions", float | None, value)
    return update, wanted, math.inf if value is None else value

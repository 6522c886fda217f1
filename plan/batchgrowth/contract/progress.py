"""A trainer's progress report: one small JSON document, from the trainer to the operator.

The trainer makes it, with the remaining time, in sinks/report.py. The operator reads it in seen/progress.py and
checks it against the plan, and job/status.py copies it into the status.

The report comes from a pod that runs a user's code, so pydantic checks it strictly when it is read.
"""

import json
import math
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.plan import BatchDecision

LARGEST_START = 2**53
"""The largest start number; older trainers used a time as theirs."""
MOST_DIFFERING = 8
"""The most workers that a report lists as adding differently than the job, and the most as computing wrongly."""
LONGEST_CAUSE = 512
"""The most characters of the sentence about a worker that computed wrongly."""
LONGEST_PERIOD_SECONDS = 10.0
"""Longest time between two reports of a trainer, in seconds."""
MOST_BEGUN = 16
"""The most stages whose start times a report has."""


def _within_floats(number: int) -> int:
    if abs(number) > sys.float_info.max:
        raise PydanticCustomError("finite_number", "give a finite number")
    return number


def _decision(row: tuple[int, int, float | None]) -> BatchDecision:
    update, wanted, value = row
    return BatchDecision(update, wanted, math.inf if value is None else value)


def _or_none(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Return an optional part of a report, or None if it is invalid, because nothing else depends on it."""
    try:
        return check(given)
    except ValidationError:
        return None


Whole = Annotated[int, AfterValidator(_within_floats)]
"""A whole number within the range of floats; only the job's plan can say what is possible."""
_Row = Annotated[tuple[Whole, Whole, float | None], AfterValidator(_decision)]
Decisions = Annotated[tuple[BatchDecision, ...], GetPydanticSchema(lambda _, schema_of: schema_of(tuple[_Row, ...]))]
"""Decisions, which JSON lists as [update, wanted, value]; a value that is not finite is null there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack:
    """The last time that training went back, because a spot check found workers that compute wrongly.

    `times` counts how often it went back since the trainer's start. `workers` are the names of those that were wrong,
    at most MOST_DIFFERING; TRAINER stands for the trainer itself. `cause` says in which update, and what differed. The
    updates after `update`, up to `reached`, were undone.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True)

    times: Whole
    workers: tuple[str, ...]
    cause: str
    reached: Whole
    update: Whole


TRAINER = "trainer"
"""The name of the trainer among the workers that a report lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The position and state of a training.

    `update` of `updates` updates and `epoch` of `epochs` epochs are done. `start` grows with each start of the trainer.
    `loss` is the mean over the examples since the last report. Times are in seconds. None means unknown: the loss
    before the first update, the remaining time before the first fit, the checkpoint before the first one, the
    digest of the weights before the end. `workers` is the number that train, `ready` the number that could: they have
    joined and loaded their data. `waiting_for` names what a paused training waits for.
    By stage index, `crews` holds the most workers that trained at once, `pauses` the longest pause while workers joined
    or left, and `begun` the Unix time at which the stage began, for the newest MOST_BEGUN stages of this start. `beat`
    counts the reports of this start, which come at least every LONGEST_PERIOD_SECONDS even if nothing is new; None if
    the trainer is of an earlier version. `decisions` are those of a measured growth so far. `forecast` is what its next
    look will probably decide, if that is another batch. `ended_at_epoch` is the epoch after which stopEarly ended the
    training. `differing` are the workers that add differently than the job, by name, with the reason, at most
    MOST_DIFFERING. `exchanged` is what the exchange did since the trainer's start; None if the trainer is of an earlier
    version. `went_back` is the last finding of a spot check since the trainer's start; None without one.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, allow_inf_nan=False)

    update: Whole
    updates: Whole
    epoch: float
    epochs: Whole
    stage: Whole
    batch_size: Whole
    learning_rate: float
    workers: Whole
    start: Whole = 0
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds_per_update: float | None = None
    eta_seconds: float | None = None
    checkpoint_update: Whole | None = None
    ready: Whole | None = None
    waiting_for: str | None = None
    crews: Mapping[str, float] = field(default_factory=dict)
    pauses: Mapping[str, float] = field(default_factory=dict)
    begun: Mapping[str, float] = field(default_factory=dict)
    beat: Whole | None = None
    weights_sha256: str | None = None
    decisions: Decisions = ()
    forecast: Annotated[ExpectedBatch | None, WrapValidator(_or_none)] = None
    ended_at_epoch: Whole | None = None
    differing: Mapping[str, str] = field(default_factory=dict)
    exchanged: Annotated[ExchangeFigures | None, WrapValidator(_or_none)] = None
    went_back: WentBack | None = None

    @property
    def fraction(self) -> float:
        """Return the share of the updates that are done, from 0 to 1."""
        return self.update / self.updates if self.updates else 1.0

    @property
    def age(self) -> tuple[int, int, int]:
        """Return the key that orders reports. Updates alone do not, since training may go back within a start."""
        times = 0 if self.went_back is None else self.went_back.times
        return self.start, times, self.update

    def to_json(self) -> str:
        """Return one line of JSON; a number that is not finite becomes null, or is left out of a mapping."""
        values = {f.name: _finite(getattr(self, f.name)) for f in fields(self)}
        return json.dumps(values, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "Progress":
        """Return the report in the text. Raises ValueError, naming the field, if the text is not a report.

        Ignores unknown fields, since trainer and operator may differ by a version. Ignores a forecast or an exchange
        that is impossible, since the rest of the report does not depend on them.
        """
        try:
            report = _REPORT.validate_json(text)
        except ValidationError as error:
            raise ValueError(_first_fault(error)) from error
        forecast = report.forecast
        if forecast is not None and not report.update < forecast.update < report.updates:
            report = replace(report, forecast=None)
        exchanged = report.exchanged
        if exchanged is not None and not exchanged.is_possible():
            report = replace(report, exchanged=None)
        return report


_REPORT = TypeAdapter(Progress)


def _first_fault(error: ValidationError) -> str:
    """Return the first of pydantic's errors as one line: the field, the given value, and what would be valid."""
    found = error.errors(include_url=False)[0]
    path = ".".join(map(str, ("progress", *found["loc"])))
    if found["type"] == "json_invalid":
        return f"{path}: not JSON ({found['ctx']['error']}); give a trainer's report"
    if found["type"] == "missing":
        return f"{path}: missing; give every field of a report"
    return f"{path}: {reprlib.repr(found['input'])}; {found['msg'].replace('Input should be', 'give')}"


def _finite(value: Any) -> Any:
    """Return the value as JSON can hold it: a number that is not finite becomes null, or is left out of a mapping."""
    if isinstance(value, WentBack):
        return asdict(value)
    if isinstance(value, tuple):
        return [[one.update, one.wanted, _finite(one.value)] for one in value]
    if isinstance(value, ExpectedBatch | ExchangeFigures):
        return {name: _finite(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {name: each for name, each in value.items() if isinstance(each, str) or math.isfinite(each)}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

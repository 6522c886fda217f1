"""The messages between a member and its driver: frozen dataclasses, which Dask's events carry as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import BatchGrowthError
from batchgrowth.evaluations import BestEvaluation
from batchgrowth.plan import BatchDecision
from batchgrowth.position import Position
from pydantic import Discriminator, TypeAdapter

from batchgrowth_trainer.exchange.connections import RankAssignment
from batchgrowth_trainer.exchange.spot_check import Finding
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.history import HistoryRow

COMPUTE = "batchgrowth_compute"
"""The operation of a worker's server that a driver's requests ask for."""


@dataclass(frozen=True, slots=True)
class Order:
    """One generation, up to update `until`.

    The driver has the rows up to update `reported`, with these `decisions` of a measured growth, and the evaluations up
    to epoch `evaluated`.
    """

    assignment: RankAssignment
    generation: int
    until: int
    evaluated: int
    reported: int
    decisions: tuple[BatchDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A member that can join at the next update boundary; `gpu` is the UUID of its GPU, empty on a CPU.

    `listens_at` is the address at which other members connect to it; `arithmetic` is how its process adds;
    `code` has the digests of the user's sources, see `user_code.code_digests`. `state_bytes` is the size of its state.
    """

    name: str
    host: str
    gpu: str
    listens_at: tuple[str, int]
    arithmetic: Arithmetic
    code: Mapping[str, str] = field(default_factory=dict)
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """How a generation ended for one member: `lost` says why its group ended, `error` is any other fault that ended it.

    `is_judged` is false if its state lacks the evaluation after that update, which another member may have. `is_whole`
    is false if a step failed midway, or another member's state arrived only in part: training cannot continue from its
    state. `finding` is what a check of the members found, the same for all of them; their states are then in doubt.
    """

    update: int
    lost: str = ""
    error: BatchGrowthError | None = None
    is_judged: bool = True
    is_whole: bool = True
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """One row for each node of the fixed tree that a member computed, and the seconds that this took."""

    rows: list[np.ndarray]
    seconds: float


@dataclass(frozen=True, slots=True)
class RowsReport:
    """Committed updates, and the figures of their exchange since the report before.

    Every member reports the bytes that it has sent; only rank 0 reports the rows and the other figures. `is_of_alone`
    says that the member had no peers.
    """

    rows: tuple[HistoryRow, ...]
    figures: ExchangeFigures = field(default_factory=ExchangeFigures)
    is_of_alone: bool = False
    kind: Literal["rows"] = "rows"


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The mean loss and metrics over the test set, empty without one; `evaluated_at` in seconds since 1970.

    `end` is the best evaluation if the training ends early with this one, else None.
    """

    position: Position
    values: Mapping[str, float]
    evaluated_at: float
    end: BestEvaluation | None = None
    kind: Literal["evaluation"] = "evaluation"


@dataclass(frozen=True, slots=True)
class GenerationBegan:
    """A member is in its group, at `update`, `pause` seconds after it last computed; `pause` is None for a newcomer."""

    generation: int
    update: int
    rank: int
    pause: float | None
    kind: Literal["began"] = "began"


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker got SIGTERM and trains on until its driver has replaced it."""

    address: str
    kind: Literal["leaving"] = "leaving"


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has registered with the scheduler."""

    address: str
    kind: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is no longer registered with the scheduler, or the driver has given it up."""

    address: str
    kind: Literal["left"] = "left"


Report = RowsReport | EvaluationReport
Message = Report | GenerationBegan | Leaving | Joined | Left
_PLAIN: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Discriminator("kind")])


def encode(message: Message) -> dict[str, Any]:
    """Return the message as plain data, because a Dask event may hold nothing else."""
    plain: dict[str, Any] = _PLAIN.dump_python(message)
    return plain


def decode(plain: Mapping[str, Any]) -> Message:
    """Return the message that `encode` or the scheduler plugin made. Raise ValueError for other data."""
    return _PLAIN.validate_python(plain)

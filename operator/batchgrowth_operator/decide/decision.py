"""What one pass wants written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from batchgrowth_operator.seen.observed import Ref

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a user may want to read under `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The writes of one pass, in the order in which they are made: status, apply, delete, events, the job itself.

    The status comes first because it is the memory of what was decided: a pass that dies after it is finished by the
    next. `status` is None where it stays as it is; `look_again_seconds` None where only a change is worth a look.
    """

    status: Manifest | None = None
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Ref, ...] = ()
    events: tuple[Event, ...] = ()
    delete_job: bool = False
    look_again_seconds: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return self.status is None and not (self.apply or self.delete or self.events or self.delete_job)

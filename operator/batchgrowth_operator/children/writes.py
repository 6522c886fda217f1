"""The writes that one pass decides on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from batchgrowth_operator.seen.observed import PutBack, Ref

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the job, as `kubectl describe` shows it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What one pass writes, in this order: status, apply, delete, events, deletion of the job.

    The status comes first because it records what was decided: if the operator dies after it, the next pass writes the
    rest.
    """

    status: Manifest | None = None
    """The whole status; None if it does not change."""
    apply: tuple[Manifest, ...] = ()
    """Children to create or change."""
    delete: tuple[Ref, ...] = ()
    """Children to delete."""
    recreated: Mapping[Ref, str] = field(default_factory=dict)
    """Those of `delete` that a later pass makes again, each with the reason."""
    in_background: frozenset[Ref] = frozenset()
    """Those of `delete` that go at once, without waiting for the end of their pods."""
    events: tuple[Event, ...] = ()
    """Kubernetes events about the job."""
    delete_job: bool = False
    """Whether the job itself is deleted, because its time to live is over."""
    requeue_after_seconds: float | None = None
    """Seconds after which time alone may change what is written; None if only an event can."""
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    """Children that others changed lately, which the next pass must know."""
    is_conclusive: bool = False
    """Whether the only write is the progress in the status, which changes nothing that the next pass writes."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.status is None and not (self.apply or self.delete or self.events or self.delete_job)

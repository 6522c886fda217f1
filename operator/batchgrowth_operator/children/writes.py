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
class Decision:
    """The writes of one pass, in their order: status, apply, delete, events, deletion of the job.

    The status comes first because it records what was decided: if the pass dies after it, the next pass completes the
    rest. `status` is None if it does not change, `requeue_after_seconds` None if only an event can change the decision.
    `renewed` are those of `delete` that a later pass makes again, `abandoned` those that do not wait for the end of
    their pods. `put_backs` are an input of the next decision. `is_conclusive` says that the only write is that of
    progress in the status, on which neither the next decision nor its time depends.
    """

    status: Manifest | None = None
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Ref, ...] = ()
    renewed: frozenset[Ref] = frozenset()
    abandoned: frozenset[Ref] = frozenset()
    events: tuple[Event, ...] = ()
    delete_job: bool = False
    requeue_after_seconds: float | None = None
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    is_conclusive: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.status is None and not (self.apply or self.delete or self.events or self.delete_job)

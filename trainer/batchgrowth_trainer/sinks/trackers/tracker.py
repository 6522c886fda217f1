"""What a tracker records, and what it has to be able to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

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
        """The spec's values by their path, such as `batch.initial`; an item of a list has its index in the path."""
        return dict(_leaves("", self.spec))


@dataclass(frozen=True, slots=True)
class Point:
    """Values after `update` updates, by name, such as `train/loss`; `at` is wall-clock time in seconds."""

    update: int
    at: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """A library that records runs; any of its errors may be raised, and the call is then made again later.

    All methods are called in one thread, which is not that of the training.
    """

    def open(self, training: Training, run: str) -> str:
        """Begins a run, or goes on with the one of that identifier if it is not empty. Returns its identifier."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Records points, in the order of their updates."""
        ...

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        """Records how the run ended, and closes it."""
        ...


def _leaves(path: str, value: Any) -> list[tuple[str, Value]]:
    if isinstance(value, Mapping):
        items = [(f"{path}.{name}" if path else str(name), child) for name, child in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}.{number}", child) for number, child in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for name, child in items for leaf in _leaves(name, child)]

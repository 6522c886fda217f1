"""What a policy is asked, and what it may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from batchgrowth.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the training has seen of its loss and gradients; None where nothing was measured.

    The policies of a plan made beforehand look at none of it. Those that follow the gradient will.
    """

    first_loss: float | None = None
    last_loss: float | None = None
    first_gradient_norm: float | None = None
    last_gradient_norm: float | None = None
    gradient_diversity: float | None = None
    noise_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When to ask a policy again: at the start of an epoch, or before an update; by default never."""

    epoch: int | None = None
    update: int | None = None


class Policy(Protocol):
    """A rule of growth: what batch size is wanted here, and how long that answer holds."""

    def wanted(self, position: Position, measured: Measurements) -> int:
        """The wanted batch size ("damping", d) in examples; it may exceed the maximum of the spec."""
        ...

    def until(self, position: Position) -> Until:
        """How long the answer at `position` holds."""
        ...

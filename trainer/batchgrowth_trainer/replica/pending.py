"""Totals of gradients that wait for their update."""

import torch
from batchgrowth.exchanges.delayed import Delayed
from batchgrowth.spec import JobSpec
from torch import Tensor

_PREFIX = "pending."


class Pending:
    """A queue of at most `most` rows, each of shape (length,)."""

    def __init__(self, most: int, length: int, device: torch.device) -> None:
        self.most = most
        self._rows = torch.zeros(most, length, device=device)
        self._count = torch.zeros(1, dtype=torch.float64)

    def __len__(self) -> int:
        return int(self._count.item())

    def put(self, row: Tensor) -> None:
        """Add a row behind the others."""
        self._rows[len(self)] = row
        self._count += 1

    def take(self) -> Tensor:
        """Remove the first row, and return a copy."""
        first = self._rows[0].clone()
        self._rows[:-1] = self._rows[1:].clone()
        self._count -= 1
        return first

    def tensors(self) -> dict[str, Tensor]:
        """The live vectors, by name, each flat."""
        return {f"{_PREFIX}rows": self._rows.view(-1), f"{_PREFIX}count": self._count}


def pending_of(spec: JobSpec, length: int, device: torch.device) -> Pending | None:
    """The queue of a job whose exchange delays gradients."""
    settings = spec.exchange.settings
    return Pending(settings.updates, length, device) if isinstance(settings, Delayed) and settings.updates else None

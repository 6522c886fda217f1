"""The states of logical replicas that stay apart: every process has all of them, and trains some with its one model."""

from collections.abc import Mapping

import torch
from batchgrowth.spec import JobSpec
from torch import Tensor

_PREFIX, _WEIGHTS = "replicas.", "parameters"


class Copies:
    """R states, each made of the vectors `live` of the one model, and the number of exchanges so far.

    With `residuals`, the weights are not among them, since all replicas have the same: what each has not sent yet is,
    in a vector of their shape. `stacked` has shape (R, length) for each vector, as all replicas were at the last point
    that all processes share.
    """

    def __init__(self, replicas: int, live: Mapping[str, Tensor], *, residuals: bool = False) -> None:
        self.replicas = replicas
        self._live = {name: vector for name, vector in live.items() if not residuals or name != _WEIGHTS}
        kept = self._live | ({"residual": torch.zeros_like(live[_WEIGHTS])} if residuals else {})
        self.stacked = {name: vector.unsqueeze(0).repeat(replicas, 1) for name, vector in kept.items()}
        self._turn = torch.zeros(1, dtype=torch.float64)

    @property
    def turn(self) -> int:
        """Exchanges so far."""
        return int(self._turn.item())

    def tensors(self) -> dict[str, Tensor]:
        """All vectors, by name, each flat."""
        return {f"{_PREFIX}{name}": of_all.view(-1) for name, of_all in self.stacked.items()} | {
            f"{_PREFIX}turn": self._turn
        }

    def of(self, number: int) -> dict[str, Tensor]:
        """A copy of the state of one replica."""
        return {name: of_all[number].clone() for name, of_all in self.stacked.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Write that state into the model."""
        for name, vector in self._live.items():
            vector.copy_(state[name])

    def store(self, state: Mapping[str, Tensor]) -> None:
        """Read that state back from the model."""
        for name, vector in self._live.items():
            state[name].copy_(vector)

    def distance(self) -> float | None:
        """The root mean square distance of the replicas' weights from their mean; None if all have the same."""
        if _WEIGHTS not in self._live:
            return None
        weights = self.stacked[_WEIGHTS].double()
        return float((weights - weights.mean(dim=0)).square().sum(dim=1).mean().sqrt())

    def settle(self, turn: int) -> None:
        """Put the mean of all states into the model, after `turn` exchanges; what is not a weight becomes 0.

        So the model depends on the states alone, wherever they were trained.
        """
        self._turn.fill_(turn)
        for name, vector in self._live.items():
            if name.startswith("optimizer."):
                vector.zero_()
            else:
                vector.copy_(_mean(self.stacked[name]))


def _mean(of_all: Tensor) -> Tensor:
    """The mean over the replicas, added in order, shape (length,); rounded for whole numbers."""
    total = torch.zeros_like(of_all[0], dtype=torch.float64)
    for one in of_all:
        total += one
    mean = total / len(of_all)
    return (mean if of_all.is_floating_point() else mean.round()).to(of_all.dtype)


def copies_of(spec: JobSpec, live: Mapping[str, Tensor]) -> Copies | None:
    """The states of a job's logical replicas, if its exchange keeps them apart."""
    kept = spec.exchange.entry.keeps
    return None if kept == "Nothing" else Copies(spec.exchange.replicas, live, residuals=kept == "Residual")

"""The interface of strategies: what members do between two points at which all of them have the same state.

An exchange of another Python distribution is tried before the first update: a round is made twice from one state.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Protocol

import torch
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.exchange.compression import compression_for
from batchgrowth_trainer.exchange.group import Group, LoneGroup
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.replica.python_state import PythonState
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

NO_FIGURES = ExchangeFigures()
"""The figures of an exchange that has none, which is most of them: members do not add these up."""


@dataclass(frozen=True, slots=True)
class Round:
    """The committed updates of a round, their total seconds, and the figures of their exchange.

    `stop` is whether a member requested a stop. The group counts the bytes that were sent.
    """

    done: tuple[tuple[Step, Committed], ...]
    stop: bool
    compute_seconds: float
    exchange_seconds: float
    wait_seconds: float
    figures: ExchangeFigures = NO_FIGURES


@dataclass(frozen=True, slots=True)
class Setting:
    """What a strategy works with: the member's replica and group, its watchdog, and `check`.

    A strategy computes in the block of `watchdog`, which detects that the member hangs, and waits for others outside.
    `check()` raises PeerLost once the generation is over; a strategy calls it after it has sent nothing for a while.
    """

    replica: Replica
    group: Group
    watchdog: AbstractContextManager[object]
    check: Callable[[], None]


class Strategy(Protocol):
    """A way to exchange gradients or weights.

    It lives as long as a generation. State that must live longer is in tensors of the replica: a static method
    `register(replica)` of the strategy registers them before the replica gets a state.
    """

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Train by one update or more, from one point at which all members have the same state to the next.

        `stop_requested` is called once or more: its answer reaches every member as Round.stop. Raises PeerLost, and the
        errors of a replica; after an error, the replica has the state from before the round.
        """
        ...


def strategy_of(setting: Setting) -> Strategy:
    """Return the strategy that the registry names for the job's exchange: ours, or another distribution's."""
    strategy: Strategy = resolve_name(setting.replica.spec.exchange.entry.strategy)(setting)
    return strategy


def prepare_exchange(replica: Replica) -> None:
    """Register the tensors that the job's exchange keeps in the replica, and set the compression of its sums."""
    replica.quantize_node = compression_for(replica.spec)
    register = getattr(resolve_name(replica.spec.exchange.entry.strategy), "register", None)
    if register is not None:
        register(replica)


# --- The trial of an exchange of another distribution ---

_OURS = __name__.partition(".")[0]


def try_exchange(replica: Replica) -> None:
    """Make a round twice with a strategy that is not ours, in a group of one, and compare the states that it leaves.

    A Nondeterministic exchange is not tried. The replica stays as it was. Raises WorkloadError, and a round's errors.
    """
    entry = replica.spec.exchange.entry
    strategy = resolve_name(entry.strategy)
    if strategy.__module__.partition(".")[0] == _OURS or entry.promise == "Nondeterministic":
        return
    place = f"exchange {entry.name}"
    state = PythonState({place: strategy})
    with replica.beginning.with_only(()):  # state that the workload's code keeps from the round does not count
        one, other = (_after_a_round(replica, strategy, place) for _ in range(2))
    changes = state.changes()
    state.restore()
    for name, vector in one.items():
        if not torch.equal(vector, other[name]):
            changed = f"; {changes[0].path} changes with each round" if changes else ""
            raise WorkloadError(
                f"{place}: {strategy.__module__}:{strategy.__qualname__} leaves other {name} when a round is made "
                f"twice from one state{changed}, so the weights would depend on earlier rounds; keep what lasts in "
                "tensors that its method register(replica) registers, and draw from generators that you seed from the "
                f"job's seed and the update{changes[0].seen_at() if changes else seen_at(strategy.round)}"
            )


def _after_a_round(replica: Replica, strategy: type, place: str) -> dict[str, Tensor]:
    """Return copies of the state's vectors after a round, and its number of updates; put the state back."""
    start = {name: vector.clone() for name, vector in replica.tensors().items()}
    position = replica.position
    try:
        with reported_as_workload_error(f"{place}: a round"):
            strategy(Setting(replica, LoneGroup(), nullcontext(), lambda: None)).round(lambda: False)
        after = {name: vector.clone() for name, vector in replica.tensors().items()}
        return {**after, "updates": torch.tensor(replica.position.update)}
    finally:
        for name, vector in replica.tensors().items():
            vector.copy_(start[name])
        replica.moved_to(position)

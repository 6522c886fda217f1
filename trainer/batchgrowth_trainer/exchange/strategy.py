"""The interface of strategies: what members do between two points at which all of them have the same state."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Protocol

from batchgrowth.contract.figures import ExchangeFigures
from batchgrowth.plan import Step

from batchgrowth_trainer.exchange.compression import compression_for
from batchgrowth_trainer.exchange.group import Group
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.replica.replica import Replica


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
    figures: ExchangeFigures = field(default_factory=ExchangeFigures)


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

        `stop_requested` is asked once or more: the answer reaches every member as Round.stop. Raises PeerLost, and the
        errors of a replica; the replica then has the state before.
        """
        ...


def strategy_of(setting: Setting) -> Strategy:
    """Return the strategy of the job's exchange: what its entry in the registry names, ours or a distribution's."""
    strategy: Strategy = resolve_name(setting.replica.spec.exchange.entry.strategy)(setting)
    return strategy


def prepare_exchange(replica: Replica) -> None:
    """Register the tensors that the job's exchange keeps in the replica, and set the compression of its sums."""
    replica.quantize_node = compression_for(replica.spec)
    register = getattr(resolve_name(replica.spec.exchange.entry.strategy), "register", None)
    if register is not None:
        register(replica)

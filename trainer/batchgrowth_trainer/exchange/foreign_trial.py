"""Tries an exchange of another distribution before the first update: a round is made twice from one state."""

from contextlib import nullcontext
from pkgutil import resolve_name

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor

from batchgrowth_trainer.exchange.group import LoneGroup
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.replica.python_state import PythonState
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at

_OURS = __name__.partition(".")[0]


def try_exchange(replica: Replica) -> None:
    """Make a round twice with a strategy that is not ours, in a group of one, and compare the states that it leaves.

    The replica stays as it was. Raises WorkloadError, and what a round raises.
    """
    entry = replica.spec.exchange.entry
    strategy = resolve_name(entry.strategy)
    if strategy.__module__.partition(".")[0] == _OURS or entry.promise == "Nondeterministic":
        return
    place = f"exchange {entry.name}"
    state = PythonState({place: strategy})
    with replica.beginning.with_only(()):  # what the workload's code remembers of the round does not count
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

"""The trial of an exchange that is not ours."""

from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.exchange import all_reduce
from batchgrowth_trainer.exchange.all_reduce import AllReduce
from batchgrowth_trainer.exchange.strategy import try_exchange
from batchgrowth_trainer.replica.data import Reader
from small import net


class Relay(AllReduce):
    """The all-reduce under another name."""


class Damped(AllReduce):
    """Damps the weights the more rounds it has made, in this process."""

    rounds = 0

    def round(self, stop_requested: Any) -> Any:
        """Make a round, and damp."""
        made = super().round(stop_requested)
        Damped.rounds += 1
        self._replica.parameters.vector.data.mul_(1 / Damped.rounds)
        return made


@pytest.mark.fault("T01")
def test_a_round_is_made_twice_and_leaves_no_trace(
    small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = make_replica(small_job("exchange.type=AllReduce"), net())
    before = {name: vector.clone() for name, vector in replica.tensors().items()}
    monkeypatch.setattr(all_reduce, "AllReduce", Relay)
    try_exchange(replica)
    monkeypatch.setattr(all_reduce, "AllReduce", Damped)
    damped = r"exchange AllReduce: \S*test_foreign_trial:Damped leaves other parameters "
    named = damped + r".*Damped\.rounds changes.*in round"
    with pytest.raises(WorkloadError, match=named):
        try_exchange(replica)
    assert Damped.rounds == 0
    assert replica.position.update == 0
    assert all(torch.equal(vector, before[name]) for name, vector in replica.tensors().items())


def test_an_exchange_that_cannot_register_is_named_and_the_loaders_are_closed(
    small_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unprepared(AllReduce):
        @staticmethod
        def register(replica: Any) -> None:
            raise ValueError("no room")

    closed: list[Reader] = []
    monkeypatch.setattr(all_reduce, "AllReduce", Unprepared)
    monkeypatch.setattr(Reader, "close", lambda reader: closed.append(reader))
    with pytest.raises(WorkloadError, match=r"^exchange AllReduce: preparing it raised ValueError: no room \("):
        build_replica(small_job("exchange.type=AllReduce").spec)
    assert len(closed) == 1

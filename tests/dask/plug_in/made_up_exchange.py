"""Relay: the all-reduce under another name, from another distribution."""

from typing import Any

from batchgrowth.extend import ExchangeEntry


def train(run: Any, join: Any) -> Any:
    from batchgrowth_trainer.drivers.generations import GenerationsDriver

    with join() as workforce:
        return GenerationsDriver(run, workforce.pool, workforce.scaling, workforce.host).train()


ENTRY = ExchangeEntry(
    name="Relay",
    summary="passes gradients on as a relay team does",
    implementation="made_up_exchange:train",
)

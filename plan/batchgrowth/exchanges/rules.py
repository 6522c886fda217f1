"""Fields and rules that the exchanges with logical replicas share."""

from typing import Any

from pydantic import Field

from batchgrowth.extend import Rule

LONGEST_ROUND = 10_000
DEFAULT_REPLICAS = 4


def replicas_field(most: int) -> Any:
    """The field of a block for the number of logical replicas."""
    return Field(
        DEFAULT_REPLICAS,
        ge=2,
        le=most,
        description="Copies of the model that step by themselves: as many as batch.initial at most. The weights depend "
        "on it, and not on the workers, of which it is the largest useful number. Default: 4.",
    )


def every_updates_field(default: int, what: str) -> Any:
    """The field of a block for the updates between two exchanges."""
    return Field(
        default,
        ge=1,
        le=LONGEST_ROUND,
        description=f"Updates from one {what} to the next; the end of an epoch has one too. Default: {default}.",
    )


def replica_rules(name: str, block: str) -> dict[str, tuple[Rule, ...]]:
    """The outer rules of an exchange of that name, with its replicas in that block."""
    replicas = f"(has(self.exchange.{block}) ? self.exchange.{block}.replicas : {DEFAULT_REPLICAS})"
    return {
        "JobSpec": (
            Rule(
                "workers.maximum",
                f"give at most exchange.{block}.replicas workers: a replica cannot be divided",
                lambda s: s.exchange.type != name or s.workers.maximum <= s.exchange.replicas,
                f"self.exchange.type != '{name}' || self.workers.maximum <= {replicas}",
            ),
            Rule(
                f"exchange.{block}.replicas",
                "give at most batch.initial replicas: each takes a part of every batch",
                lambda s: s.exchange.type != name or s.exchange.replicas <= s.batch.initial,
                f"self.exchange.type != '{name}' || {replicas} <= self.batch.initial",
            ),
        ),
    }

"""Gossip: each replica averages with its neighbours in a graph. Lian et al., 2017; Assran et al., 2019."""

from collections.abc import Sequence
from hashlib import sha256
from typing import ClassVar, Literal

from pydantic import Field

from batchgrowth.exchanges.rules import every_updates_field, replica_rules, replicas_field
from batchgrowth.extend import ExchangeEntry, Model, Rule


class Gossip(Model):
    """Logical replicas, spread over the workers there are; their mean is evaluated and exported."""

    replicas: int = replicas_field(64)
    every_updates: int = every_updates_field(1, "exchange")
    graph: Literal["Exponential", "Ring", "Hypercube", "Random", "Complete"] = Field(
        "Exponential",
        description="Which replicas average: Exponential, in turn with those 1, 2, 4, … places before; Ring, with both "
        "neighbours; Hypercube, in turn along each dimension; Random, in pairs drawn from the seed; Complete, "
        "all with all. Default: Exponential.",
    )

    rules: ClassVar = (
        Rule(
            "replicas",
            "give a power of two with graph Hypercube",
            lambda g: g.graph != "Hypercube" or g.replicas & (g.replicas - 1) == 0,
            "self.graph != 'Hypercube' || self.replicas in [2, 4, 8, 16, 32, 64]",
        ),
    )


def circles(graph: str, replicas: int, turn: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """For each replica those whose mean it takes in exchange number `turn`, counted from 0: itself and its neighbours.

    Each is in as many circles as it has members, so the mean of all replicas stays as it is.
    """
    neighbours = _neighbours(graph, replicas, turn, seed)
    return tuple(tuple(sorted(others | {one})) for one, others in enumerate(neighbours))


def _neighbours(graph: str, replicas: int, turn: int, seed: int) -> Sequence[set[int]]:
    everyone = range(replicas)
    dimensions = (replicas - 1).bit_length()
    distance = 1 << turn % dimensions
    match graph:
        case "Exponential":
            return [{(one - distance) % replicas} for one in everyone]
        case "Ring":
            return [{(one - 1) % replicas, (one + 1) % replicas} for one in everyone]
        case "Hypercube":
            return [{one ^ distance} for one in everyone]
        case "Random":
            return _pairs(replicas, turn, seed)
        case _:
            return [set(everyone) for _ in everyone]


def _pairs(replicas: int, turn: int, seed: int) -> list[set[int]]:
    """Each replica's partner; one of an odd number has none."""
    order = sorted(range(replicas), key=lambda one: sha256(f"gossip {seed} {turn} {one}".encode()).digest())
    partners: list[set[int]] = [set() for _ in order]
    for left, right in zip(order[::2], order[1::2], strict=False):
        partners[left], partners[right] = {right}, {left}
    return partners


ENTRY = ExchangeEntry(
    name="Gossip",
    summary="has a fixed number of logical replicas average with their neighbours in a graph",
    source="Lian et al., 2017; Assran et al., 2019",
    block=Gossip,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Repeatable",
    replicas=lambda settings: settings.replicas,
    keeps="Weights",
    all_connected=True,
    longest_round=lambda settings: settings.every_updates,
    strategy="batchgrowth_trainer.exchange.gossip:Gossip",
    example={"replicas": 4, "graph": "Ring"},
    outer_rules=replica_rules("Gossip", "gossip"),
)

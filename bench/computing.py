"""`python -m bench.computing`: what measuring adds to the arithmetic of an update, without any exchange.

Two replicas of one process train in turns, one that measures and one that does not. Each computes one of the two shards
of an update of mlp-64 and commits; before each turn the caches are filled with something else, as they are when several
processes share a core.
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
import typer
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.replica import Replica
from rich.console import Console

from bench.cases import cases
from bench.report import Sheet, as_table, cells
from bench.rounds import spread

_CASE = "measuring-mlp-64"
_ELSE_BYTES = 16_000_000


def main(updates: Annotated[int, typer.Option(min=1, max=550, help="Updates of each replica.")] = 500) -> None:
    """Print the time of computing a shard and of committing, with and without measuring, in µs."""
    case = next(case for case in cases(quick=False) if case.name == _CASE)
    replicas = {system.name: build_replica(case.job(system).spec) for system in case.systems()}
    times: dict[str, list[float]] = {name: [] for name in replicas}
    something_else = torch.zeros(_ELSE_BYTES // 4)
    for _ in range(updates):
        for name, replica in replicas.items():
            something_else.add_(1)
            times[name].append(update(replica))
    rows = [(name, *cells(spread(found), 0)) for name, found in times.items()]
    columns = ("system", "µs: min", "median", "max")
    Console().print(as_table(Sheet(f"Computing and committing, {updates} updates in turns", columns, rows)))


def update(replica: Replica) -> float:
    """The duration of an update, in µs."""
    began = time.perf_counter()
    step = replica.plan.step_at(replica.position)
    partials = replica.partials(step, (0, 1))
    replica.commit(step, partials[0].row)
    replica.rows.release(partials)
    return (time.perf_counter() - began) * 1e6


if __name__ == "__main__":
    typer.run(main)

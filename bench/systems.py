"""The systems that the cases compare: baselines of plain torch, and exchanges of this project."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WORKERS = 2
LOADERS = 2  # processes that read, of ours and of the DataLoader
DDP = "torch DDP"
ONE = "one process"
GATHER = "gather/scatter per tensor"
REDUCE = "all_reduce per tensor"
TASKS = "a Dask task per gradient"
BASELINES = (DDP, ONE, GATHER, REDUCE, TASKS)
OUR_GATHER = "GatherScatter (ours)"
OUR_REDUCE = "AllReduce (ours)"
MEASURING = "AllReduce, measuring (ours)"
ENCRYPTED = "AllReduce, encrypted (ours)"
EXCHANGES = "exchanges"
ALL = "all"
PLAIN = "plain PyTorch loop"
OUR_ONE = "one worker (ours)"
DATALOADER = f"DataLoader loop, {LOADERS} processes"
OUR_LOADERS = f"one worker, {LOADERS} loaders (ours)"
ALONE = "alone"
LOADING = "loading"


@dataclass(frozen=True, slots=True)
class System:
    """One way to train: a baseline of plain torch, or an exchange of this project with its shard size.

    `measuring` measures the noise scale and looks at it in each epoch, within bounds that keep the batch as it is;
    `encrypted` encrypts the exchange. `settings` are those of the exchange, in JSON.
    """

    name: str
    exchange: str = ""
    shard: int = 0
    measuring: bool = False
    encrypted: bool = False
    settings: str = "{}"


def exchanges(shard: int) -> list[System]:
    """The exchanges among workers, AllReduce first, and those with logical replicas with as many as workers."""
    replicas = {"replicas": WORKERS}
    of_replicas: list[tuple[str, str, dict[str, Any]]] = [
        ("LocalSGD", "localSGD", {"everyUpdates": 8}),
        ("ElasticAveraging", "elasticAveraging", {"everyUpdates": 4}),
        ("Gossip", "gossip", {}),
        ("TopK", "topK", {}),
    ]
    return [
        System(OUR_REDUCE, "AllReduce", shard),
        System("Delayed (ours)", "Delayed", shard),
        System("ParameterServer (ours)", "ParameterServer", shard),
        *(
            System(f"AllReduce, {name} (ours)", "AllReduce", shard, settings=json.dumps({"compression": name}))
            for name in ("BFloat16", "Int8")
        ),
        System("Downpour (ours)", "Downpour", shard),
        *(
            System(f"{name} (ours)", name, shard, settings=json.dumps({block: replicas | more}))
            for name, block, more in of_replicas
        ),
    ]

"""The networks and the strategies that `bench.networks` compares, and the job that all of them train."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgrowth.exchanges import EXCHANGES
from batchgrowth.manifest import load_manifest
from batchgrowth.spec import BatchGrowthJob

from bench.emulator import NETWORK, Link
from bench.network_workload import __name__ as WORKLOAD

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
WORKERS = 4
SLOWEST = f"{NETWORK}{WORKERS + 1}"
"""The host that is slow, if one is: the last. The first has the scheduler and the driver, the others a worker each."""
PACE = 8
"""How many times as long as on a core of this machine computing takes on each host: with fewer, four hosts would
contend for two cores."""
BACKUPS_PACE = 12
"""The same where backups are compared: there a part must take more than half the time after which a backup begins."""
ACCURACY, QUICK_ACCURACY = 0.93, 0.8
EPOCHS, QUICK_EPOCHS = 8, 2
LEFT_OUT = {
    "Hogwild": "its threads share the memory of one host",
    "SingleProcess": "it has no exchange",
}
"""Exchanges that use no workers, and why they cannot be compared."""


@dataclass(frozen=True, slots=True)
class Network:
    """Equal links of all hosts, and how many `times` slower than the others the last host computes."""

    name: str
    title: str
    link: Link
    times: int = 1


@dataclass(frozen=True, slots=True)
class Strategy:
    """An exchange with its defaults, or with the settings that its name ends with."""

    name: str
    exchange: dict[str, Any]

    @property
    def promise(self) -> str:
        """What its weights depend on: those of compressed gradients are others than those of one process."""
        return "Repeatable" if "compression" in self.exchange else str(EXCHANGES[self.exchange["type"]].promise)


NETWORKS = (
    Network("fast", "no delay, no limit", Link()),
    Network("10ms", "10 ms of delay", Link(delay_seconds=0.01)),
    Network("100Mbit", "100 Mbit/s", Link(megabits=100)),
    Network("loss", "1 % of packets lost", Link(loss=0.01)),
    Network("all-three", "10 ms, 100 Mbit/s, 1 % lost", Link(delay_seconds=0.01, megabits=100, loss=0.01)),
    Network("slow-host", "one host 8 times slower", Link(), times=8),
)
STRATEGIES = (
    *(Strategy(name, {"type": name}) for name, entry in EXCHANGES.items() if entry.uses_workers),
    Strategy("AllReduce, Int8", {"type": "AllReduce", "compression": "Int8"}),
)
BACKUPS = "backups"
SLOWNESSES, QUICK_SLOWNESSES = (1, 4, 8, 16), (1, 8)
"""How many times slower one host is where GatherScatter with and without backups is compared; 1: as fast as all."""


def job(strategy: Strategy, network: Network, *, quick: bool) -> BatchGrowthJob:
    """The digits example with a net of 39,000 parameters and an accuracy after each epoch, on all workers.

    Its learning rate and momentum are those with which gradients of a few updates ago do no harm yet.
    """
    arguments = {"hidden": "512", **_pace(network.times)}
    growth = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 1 if quick else 4}}
    return _job(
        {
            "epochs": QUICK_EPOCHS if quick else EPOCHS,
            "workload.entrypoint": f"{WORKLOAD}:mlp",
            "workload.arguments": arguments,
            "batch": {"initial": 64, "maximum": 256, "shard": 16, "growth": growth},
            "learningRate.initial": "0.1",
            "optimizer.sgd.momentum": "0.7",
            "evaluation": {"everyEpochs": 1},
            "exchange": strategy.exchange,
        }
    )


def backups_job(times: int, *, backups: bool, quick: bool) -> BatchGrowthJob:
    """A job whose update has 12 shards, three for each of four workers or four for each of three, of equal size."""
    return _job(
        {
            "epochs": 1 if quick else 8,
            "workload.entrypoint": f"{WORKLOAD}:conv_net",
            "workload.arguments": {"hidden": "16", **_pace(times, BACKUPS_PACE)},
            "batch": {"initial": 360, "maximum": 360, "shard": 30, "growth": {"type": "Constant"}},
            "evaluation": {"everyEpochs": 1_000_000},
            "exchange": {"type": "GatherScatter", "gatherScatter": {"backups": backups}},
        }
    )


def _pace(times: int, pace: int = PACE) -> dict[str, str]:
    return {"pace": str(pace), "slowest": SLOWEST, "times": str(times)}


def _job(given: dict[str, Any]) -> BatchGrowthJob:
    spec = {"workload.device": "CPU", "workers": {"minimum": WORKERS, "maximum": WORKERS, "waitSeconds": 60}, **given}
    return load_manifest(EXAMPLE, [f"{path}={json.dumps(value)}" for path, value in spec.items()])

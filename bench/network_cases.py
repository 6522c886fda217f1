"""The networks and the strategies that `bench.networks` compares, and the job that all of them train."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgrowth.choices import EXCHANGES
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.spec import BatchGrowthJob

from bench.emulator import NETWORK, Link
from bench.network_workload import __name__ as WORKLOAD

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
WORKERS, BACKUPS_WORKERS = 4, 8
"""How many hosts have a worker each, beside the first, with the scheduler and the driver; the last is slow, if one is.

Where backups are compared there are more, since leaving one of P out makes an update take P / (P - 1) times as long.
"""
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
    arguments = {"hidden": "512", **_pace(network.times, PACE, WORKERS)}
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
        },
        WORKERS,
    )


def backups_job(times: int, *, backups: bool, quick: bool) -> BatchGrowthJob:
    """A job whose update has 56 shards of equal size, seven for each of eight workers or eight for each of seven.

    It has 20 updates; with a slow host 10, or 160 with backups, since its rests double with each time that it is late.
    """
    return _job(
        {
            "epochs": 1 if quick else 10 if times == 1 else 80 if backups else 5,
            "workload.entrypoint": f"{WORKLOAD}:conv_net",
            "workload.arguments": {"hidden": "16", **_pace(times, BACKUPS_PACE, BACKUPS_WORKERS)},
            "batch": {"initial": 720, "maximum": 720, "shard": 13, "growth": {"type": "Constant"}},
            "evaluation": {"everyEpochs": 1_000_000},
            "exchange": {"type": "GatherScatter", "gatherScatter": {"backups": backups}},
        },
        BACKUPS_WORKERS,
    )


def _pace(times: int, pace: int, workers: int) -> dict[str, str]:
    return {"pace": str(pace), "slowest": f"{NETWORK}{workers + 1}", "times": str(times)}


def _job(given: dict[str, Any], workers: int) -> BatchGrowthJob:
    spec = {"workload.device": "CPU", "workers": {"minimum": workers, "maximum": workers, "waitSeconds": 60}, **given}
    return load_manifest(EXAMPLE, [f"{path}={json.dumps(value)}" for path, value in spec.items()])

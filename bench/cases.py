"""The cases, each a model with a batch size, and the systems that train it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from batchgrowth.manifest import read_manifest
from batchgrowth.spec import BatchGrowthJob

WORKERS = 2
DIGITS = 1437  # examples in the training set of scikit-learn's digits

DDP = "torch DDP"
ONE = "one process"
GATHER = "gather/scatter per tensor"
REDUCE = "all_reduce per tensor"
BASELINES = (DDP, ONE, GATHER, REDUCE)
OUR_GATHER = "GatherScatter (ours)"
OUR_REDUCE = "AllReduce (ours)"
MEASURING = "AllReduce, measuring (ours)"
ENCRYPTED = "AllReduce, encrypted (ours)"
EXCHANGES = "exchanges"


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


def _exchanges(shard: int) -> list[System]:
    """AllReduce, with compression too, servers, and the exchanges with logical replicas, as many as workers."""
    replicas = {"replicas": WORKERS}
    of_replicas: list[tuple[str, str, dict[str, Any]]] = [
        ("LocalSGD", "localSGD", {"everyUpdates": 8}),
        ("ElasticAveraging", "elasticAveraging", {"everyUpdates": 4}),
        ("Gossip", "gossip", {}),
    ]
    return [
        System(OUR_REDUCE, "AllReduce", shard),
        System("Delayed (ours)", "Delayed", shard),
        System("ParameterServer (ours)", "ParameterServer", shard),
        *(
            System(f"AllReduce, {name} (ours)", "AllReduce", shard, settings=json.dumps({"compression": name}))
            for name in ("BFloat16", "Int8")
        ),
        *(
            System(f"{name} (ours)", name, shard, settings=json.dumps({block: replicas | more}))
            for name, block, more in of_replicas
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: every system trains `job`, and the updates after the first `warm_epochs` are timed.

    `shard` is the shard size of our systems, `fine_shard` a second size for our AllReduce (0: none). A case `of`
    MEASURING or ENCRYPTED compares our AllReduce with and without it, and nothing else; one of EXCHANGES compares it
    with our other exchanges among workers. Where it measures, `warm_epochs` is at least 2, since its first look ends
    epoch 1, and a job without a look is refused.
    """

    model: str
    batch: int
    shard: int
    entrypoint: str
    arguments: tuple[tuple[str, str], ...]
    examples: int
    epochs: int
    warm_epochs: int
    why_shard: str
    fine_shard: int = 0
    of: str = ""

    @property
    def name(self) -> str:
        """The name for --only."""
        prefix = {MEASURING: "measuring-", ENCRYPTED: "encrypted-", EXCHANGES: "exchanges-", "": ""}[self.of]
        return f"{prefix}{self.model}-{self.batch}"

    @property
    def warm(self) -> int:
        """The number of updates before the clock starts."""
        return self.warm_epochs * -(-self.examples // self.batch)

    def systems(self) -> list[System]:
        """The systems to compare, baselines first; ratios are to the first."""
        reduce = System(OUR_REDUCE, "AllReduce", self.shard)
        if self.of == EXCHANGES:
            return _exchanges(self.shard)
        if self.of:
            measuring, encrypted = self.of == MEASURING, self.of == ENCRYPTED
            return [reduce, System(self.of, "AllReduce", self.shard, measuring=measuring, encrypted=encrypted)]
        gather = System(OUR_GATHER, "GatherScatter", self.shard)
        fine = [System(f"AllReduce, shard {self.fine_shard} (ours)", "AllReduce", self.fine_shard)]
        return [*(System(name) for name in BASELINES), gather, reduce, *(fine if self.fine_shard else [])]

    def job(self, system: System | None = None, *, only_warm: bool = False) -> BatchGrowthJob:
        """The job that one of our systems trains; the baselines take model, data and order of examples from it."""
        growth = "NoiseScale" if system and system.measuring else "Constant"
        shard = system.shard if system else self.shard
        return make_job(
            self.name,
            workload={
                "entrypoint": self.entrypoint,
                "arguments": dict(self.arguments),
                "examples": self.examples,
            },
            epochs=self.warm_epochs if only_warm else self.epochs,
            batch={"initial": self.batch, "maximum": self.batch, "shard": shard, "growth": {"type": growth}},
            learningRate={"initial": "0.01", "rule": "Constant"},
            workers=_workers(WORKERS),
            exchange={
                "type": system.exchange if system else "AllReduce",
                "encryption": "Auto" if system and system.encrypted else "Disabled",
                **json.loads(system.settings if system else "{}"),
            },
        )


def _workers(maximum: int) -> dict[str, int]:
    return {"examplesPerWorker": 1, "minimum": 1, "maximum": maximum, "waitSeconds": 60}


def make_job(name: str, **spec: Any) -> BatchGrowthJob:
    """A job on CPUs with SGD and momentum, evaluated only at its end."""
    spec["workload"]["device"] = "CPU"
    manifest = {
        "apiVersion": "batchgrowth.dev/v1alpha1",
        "kind": "BatchGrowthJob",
        "metadata": {"name": name},
        "spec": {
            "learningRate": {"initial": "0.01", "rule": "DecayPastMaximum"},
            "optimizer": {"type": "SGD", "sgd": {"momentum": "0.9"}},
            "workers": _workers(4),
            "evaluation": {"everyEpochs": 1_000_000},
            **spec,
        },
    }
    return read_manifest(json.dumps(manifest))


def _mlp(batch: int, epochs: int, warm_epochs: int, why_shard: str, *, fine_shard: int = 0, of: str = "") -> Case:
    return Case(
        model="mlp",
        batch=batch,
        shard=batch // WORKERS,
        entrypoint="batchgrowth_trainer.workloads.digits:mlp",
        arguments=(("hidden", "128"),),
        examples=DIGITS,
        epochs=epochs,
        warm_epochs=warm_epochs,
        why_shard=why_shard,
        fine_shard=fine_shard,
        of=of,
    )


def _wrn(batch: int, epochs: int, warm_epochs: int, *, updates: int = 1, of: str = "") -> Case:
    """A case in which an epoch has that number of updates."""
    return Case(
        model="wrn",
        batch=batch,
        shard=batch // WORKERS,
        entrypoint="batchgrowth_trainer.workloads.synthetic:workload",
        arguments=(("model", "wrn"), ("examples", str(batch * updates)), ("test", "2")),
        examples=batch * updates,
        epochs=epochs,
        warm_epochs=warm_epochs,
        why_shard=_ONE_EACH,
        of=of,
    )


_ONE_EACH = "one shard for each worker"
_WHOLE_HALVES = (
    "one shard for each worker, so that each computes 256 examples at once, as a DDP process does; "
    "the row with shard 32 shows the cost of a finer grain, which up to 16 workers can use"
)


def cases(*, quick: bool) -> list[Case]:
    """The cases of a full run; with `quick`, tiny versions of them, to see that everything runs."""
    if quick:
        return [
            _mlp(64, 3, 2, _ONE_EACH),
            _mlp(512, 6, 2, _WHOLE_HALVES, fine_shard=32),
            _wrn(8, 4, 2),
            _mlp(64, 3, 2, _ONE_EACH, of=MEASURING),
            _wrn(8, 4, 2, of=MEASURING),
            _mlp(64, 3, 2, _ONE_EACH, of=ENCRYPTED),
            _wrn(8, 4, 2, of=ENCRYPTED),
            _mlp(64, 3, 2, _ONE_EACH, of=EXCHANGES),
            _wrn(8, 3, 1, updates=2, of=EXCHANGES),
        ]
    return [
        _mlp(64, 16, 2, _ONE_EACH),
        _mlp(512, 110, 10, _WHOLE_HALVES, fine_shard=32),
        _wrn(64, 8, 2),
        _mlp(64, 24, 2, _ONE_EACH, of=MEASURING),
        _wrn(64, 10, 2, of=MEASURING),
        _mlp(64, 24, 2, _ONE_EACH, of=ENCRYPTED),
        _wrn(64, 10, 2, of=ENCRYPTED),
        _mlp(64, 24, 2, _ONE_EACH, of=EXCHANGES),
        _wrn(64, 3, 1, updates=8, of=EXCHANGES),
    ]

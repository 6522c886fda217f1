"""The cases of `python -m bench`: a model with a batch size, and the systems that train it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchgrowth.manifest.reading import read_manifest
from batchgrowth.spec import BatchGrowthJob

from bench import loading

WORKERS = 2
LOADERS = 2
"""The processes that read examples, for our worker as for the DataLoader."""
DIGITS = 1437
"""The examples in the training set of scikit-learn's digits."""
CIFAR = 50_000
"""The examples in the training set of CIFAR-10."""
IMAGE_MS = 5
"""How long an example of the model `images` takes to read, in milliseconds."""

DDP = "torch DDP"
ONE = "one process"
TASKS = "a Dask task per gradient"
GATHERED = "gather and scatter per tensor (torch)"
REDUCED = "all_reduce per tensor (torch)"
BASELINES = (DDP, ONE, TASKS)
PER_TENSOR = (GATHERED, REDUCED)
"""The loops of a course's report, see bench/cs744.py."""
PLAIN = "plain PyTorch loop"
DATALOADER = f"DataLoader loop, {LOADERS} processes"
OUR_GATHER = "GatherScatter (ours)"
OUR_REDUCE = "AllReduce (ours)"
MEASURING = "AllReduce, measuring (ours)"
ENCRYPTED = "AllReduce, encrypted (ours)"
BARE_REDUCE = "AllReduce, no safeguards (ours)"
BARE_GATHER = "GatherScatter, no safeguards (ours)"
OUR_ONE = "one worker (ours)"
OUR_LOADERS = f"one worker, {LOADERS} loaders (ours)"

MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "mlp": ("batchgrowth_trainer.workloads.digits:mlp", {"hidden": "128"}),
    "digits": ("batchgrowth_trainer.workloads.digits:workload", {}),
    "wrn": ("batchgrowth_trainer.workloads.synthetic:workload", {"model": "wrn", "test": "2"}),
    "vgg11": ("batchgrowth_trainer.workloads.synthetic:workload", {"model": "vgg11", "test": "2"}),
    "synthetic-mlp": ("batchgrowth_trainer.workloads.synthetic:workload", {"model": "mlp", "test": "2"}),
    "images": ("bench.loading:workload", {}),
}
"""Model -> the entrypoint of its workload, and the arguments besides the number of examples."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to train: a baseline, or an exchange of this project with its shard size and settings.

    Growth NoiseScale measures and looks at it in each epoch, within bounds that keep the batch as it is.
    One that is `guarded` makes spot checks. One with its `own_cluster` starts one for each run, and if it is guarded,
    with a certificate, as `batchgrowth run` does.
    """

    name: str
    exchange: str = ""
    shard: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    growth: str = "Constant"
    encryption: str = "Disabled"
    loaders: int = 0
    guarded: bool = True
    own_cluster: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: every system trains the same job, and the updates after the first `warm_epochs` are timed.

    Ratios are to the first system. In a round each system runs `repeats` times, in turns with the others. A case with
    MEASURING needs two warm epochs, because its first look ends epoch 1 and a job without a look is refused.
    """

    name: str
    model: str
    batch: int
    epochs: int
    warm_epochs: int
    systems: tuple[System, ...]
    examples: int = DIGITS
    workers: int = WORKERS
    repeats: int = 1

    @property
    def warm(self) -> int:
        """The number of updates before the clock starts."""
        return self.warm_epochs * -(-self.examples // self.batch)

    @property
    def tls(self) -> bool:
        """Whether Dask and the exchanges of this case may speak TLS."""
        return any(system.encryption == "Auto" for system in self.systems)

    def compared(self, names: Sequence[str]) -> list[System]:
        """Return the first system and those with these names; all of them without names."""
        first, *others = self.systems
        return [first, *(system for system in others if not names or system.name in names)]

    def job(self, system: System | None = None, *, only_warm: bool = False) -> BatchGrowthJob:
        """Return the job that our system trains; the baselines take model, data and order of examples from it."""
        system = system or System("")
        entrypoint, arguments = MODELS[self.model]
        if self.examples != DIGITS:
            arguments = arguments | {"examples": str(self.examples)}
        if self.model == "images":
            arguments = arguments | {"repeats": str(loading.repeats(IMAGE_MS))}
        epochs = self.epochs
        if only_warm:
            epochs = self.warm_epochs
        return make_job(
            self.name,
            workload={"entrypoint": entrypoint, "arguments": arguments, "examples": self.examples},
            epochs=epochs,
            batch={
                "initial": self.batch,
                "maximum": self.batch,
                "shard": system.shard or self.batch,
                "growth": {"type": system.growth},
            },
            learningRate={"initial": "0.01", "rule": "Constant"},
            workers=_workers(self.workers) | {"loaders": system.loaders},
            exchange={"type": system.exchange or "AllReduce", "encryption": system.encryption, **system.settings},
            verify=system.guarded,
        )

    def quick(self) -> Case:
        """Return a tiny version of this case, which only shows that everything runs.

        It times at least four updates: TCP may send a few MB again on a busy machine, which would falsify the bytes of
        a single one.
        """
        timed_epochs = -(-4 * self.batch // self.examples)
        tiny = replace(self, epochs=self.warm_epochs + timed_epochs, repeats=1)
        if self.examples == DIGITS:
            return tiny
        systems = tuple(replace(system, shard=system.shard // 8) for system in self.systems)
        return replace(tiny, batch=self.batch // 8, examples=self.examples // 8, systems=systems)


def make_job(name: str, **spec: Any) -> BatchGrowthJob:
    """Return a job on CPUs with SGD and momentum, evaluated only at its end."""
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


def _workers(maximum: int) -> dict[str, int]:
    return {"examplesPerWorker": 1, "minimum": 1, "maximum": maximum, "waitSeconds": 60}


def cases(*, quick: bool) -> list[Case]:
    """Return the cases of a full run, or with `quick` their tiny versions."""
    found = list(_cases())
    if quick:
        return [case.quick() for case in found]
    return found


def epoch_end_cases(*, quick: bool) -> list[Case]:
    """Return the jobs whose epoch ends are measured: with few updates, and with as many examples as CIFAR-10 has."""
    few = Case("mlp-64", "mlp", 64, 100, 1, (System(OUR_ONE, "AllReduce", 64),), workers=1)
    if quick:
        return [replace(few, epochs=4)]
    many = Case("mlp-512", "synthetic-mlp", 512, 40, 1, (System(OUR_ONE, "AllReduce", 512),), CIFAR, workers=1)
    return [few, many]


def checked_cases(*, quick: bool) -> list[Case]:
    """Return the jobs whose spot checks are measured, each with several: after 200 shards of a worker comes one."""
    found = [
        Case("mlp-64", "mlp", 64, 100, 1, (_reduce(32),)),
        Case("wrn-64", "wrn", 64, 255, 2, (_reduce(8),), examples=64),
    ]
    if quick:
        return [replace(found[0], epochs=10)]
    return found


def start_cases(*, quick: bool) -> list[Case]:
    """Return the jobs whose trial is measured: one of a worker that shares each update with another."""
    found = [
        Case("mlp-64", "mlp", 64, 16, 2, (System(OUR_ONE, "AllReduce", 32),)),
        Case("wrn-64", "wrn", 64, 8, 2, (System(OUR_ONE, "AllReduce", 32),), examples=64),
    ]
    if quick:
        return [case.quick() for case in found]
    return found


def _cases() -> Iterator[Case]:
    baselines = tuple(System(name) for name in BASELINES)
    # One shard for each worker, so that each computes as many examples at once as a DDP process does.
    yield Case("mlp-64", "mlp", 64, 16, 2, (*baselines, _gather(32), _reduce(32)))
    yield Case("mlp-512", "mlp", 512, 110, 10, (*baselines, _gather(256), _reduce(256)))
    yield Case("wrn-64", "wrn", 64, 8, 2, (*baselines, _gather(32), _reduce(32)), examples=64)

    measuring = (_reduce(32), System(MEASURING, "AllReduce", 32, growth="NoiseScale"))
    yield Case("measuring-mlp-64", "mlp", 64, 24, 2, measuring)
    yield Case("measuring-wrn-64", "wrn", 64, 10, 2, measuring, examples=64)
    encrypted = (_reduce(32), System(ENCRYPTED, "AllReduce", 32, encryption="Auto"))
    yield Case("encrypted-mlp-64", "mlp", 64, 24, 2, encrypted)
    yield Case("encrypted-wrn-64", "wrn", 64, 10, 2, encrypted, examples=64)

    guarded = (_bare(_reduce(32), BARE_REDUCE), _guarded(_reduce(32)))
    yield Case("guarded-mlp-64", "mlp", 64, 50, 10, guarded, repeats=5)
    gathering = (_bare(_gather(32), BARE_GATHER), _guarded(_gather(32)))
    yield Case("guarded-gather-mlp-64", "mlp", 64, 16, 4, gathering, repeats=3)

    yield Case("all-wrn-64", "wrn", 64, 2, 1, (*baselines, _gather(32), *exchanges(32)), examples=64 * 8)
    per_tensor = tuple(System(name) for name in PER_TENSOR)
    vgg11 = (*baselines, *per_tensor, _gather(128), *exchanges(128))
    yield Case("all-vgg11-256", "vgg11", 256, 2, 1, vgg11, examples=256 * 8)

    # A shared machine changes its speed within seconds, which is as long as one of these runs, so each repeats.
    yield Case("alone-mlp-64", "mlp", 64, 50, 10, _alone(64), workers=1, repeats=9)
    yield Case("alone-digits-64", "digits", 64, 4, 1, _alone(64), workers=1, repeats=5)
    yield Case("alone-wrn-32", "wrn", 32, 3, 1, _alone(32), examples=64, workers=1, repeats=3)
    loaders = (System(DATALOADER), System(OUR_LOADERS, "AllReduce", 32, loaders=LOADERS))
    yield Case("loading-images-32", "images", 32, 3, 1, loaders, examples=32 * 20, workers=1)


def _gather(shard: int) -> System:
    return System(OUR_GATHER, "GatherScatter", shard)


def _reduce(shard: int) -> System:
    return System(OUR_REDUCE, "AllReduce", shard)


def _bare(system: System, name: str) -> System:
    """Return the system without spot checks, in a cluster of its own that anybody on this machine could join."""
    return replace(system, name=name, guarded=False, own_cluster=True)


def _guarded(system: System) -> System:
    return replace(system, own_cluster=True)


def _alone(batch: int) -> tuple[System, ...]:
    return System(PLAIN), System(OUR_ONE, "AllReduce", batch)


def exchanges(shard: int) -> tuple[System, ...]:
    """Return the exchanges among workers, AllReduce first; those with logical replicas have as many as workers."""
    replicas = {"replicas": WORKERS}
    given: list[tuple[str, str, dict[str, Any]]] = [
        (OUR_REDUCE, "AllReduce", {}),
        ("Delayed (ours)", "Delayed", {}),
        ("ParameterServer (ours)", "ParameterServer", {}),
        ("AllReduce, BFloat16 (ours)", "AllReduce", {"compression": "BFloat16"}),
        ("AllReduce, Int8 (ours)", "AllReduce", {"compression": "Int8"}),
        ("Downpour (ours)", "Downpour", {}),
        ("LocalSGD (ours)", "LocalSGD", {"localSGD": replicas | {"everyUpdates": 8}}),
        ("ElasticAveraging (ours)", "ElasticAveraging", {"elasticAveraging": replicas | {"everyUpdates": 4}}),
        ("Gossip (ours)", "Gossip", {"gossip": replicas}),
        ("TopK (ours)", "TopK", {"topK": replicas}),
    ]
    return tuple(System(name, exchange, shard, settings) for name, exchange, settings in given)

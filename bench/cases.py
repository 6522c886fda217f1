"""The cases, each a model with a batch size, and the systems that train it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchgrowth.manifest.reading import read_manifest
from batchgrowth.spec import BatchGrowthJob

from bench.loading import repeats
from bench.systems import (
    ALL,
    ALONE,
    BASELINES,
    DATALOADER,
    ENCRYPTED,
    EXCHANGES,
    LOADERS,
    LOADING,
    MEASURING,
    OUR_GATHER,
    OUR_LOADERS,
    OUR_ONE,
    OUR_REDUCE,
    PLAIN,
    WORKERS,
    System,
    exchanges,
)  # fmt: skip

DIGITS = 1437  # examples in the training set of scikit-learn's digits
CIFAR = 50_000  # examples in that of CIFAR-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: every system trains `job`, and the updates after the first `warm_epochs` are timed.

    `shard` is the shard size of our systems, `fine_shard` a second size for our AllReduce (0: none). A case `of`
    MEASURING or ENCRYPTED compares our AllReduce with and without it, and nothing else; one of EXCHANGES compares it
    with our other exchanges among workers, and one of ALL the baselines with all of these; one of ALONE or LOADING
    compares a single worker, with one shard a batch, with the loop of one process in plain PyTorch. Where it measures,
    `warm_epochs` is at least 2, since its first look ends epoch 1, and a job without a look is refused. `image_ms` is
    the time that bench.loading takes for an example. `repeats` is how often each system runs in a round, in turns.
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
    image_ms: int = 0
    repeats: int = 1

    @property
    def name(self) -> str:
        """The name for --only."""
        prefix = {MEASURING: "measuring-", ENCRYPTED: "encrypted-", "": ""}.get(self.of, f"{self.of}-")
        return f"{prefix}{self.model}-{self.batch}"

    @property
    def workers(self) -> int:
        """The number of workers of our systems."""
        return 1 if self.of in (ALONE, LOADING) else WORKERS

    @property
    def warm(self) -> int:
        """The number of updates before the clock starts."""
        return self.warm_epochs * -(-self.examples // self.batch)

    def systems(self) -> list[System]:
        """The systems to compare, baselines first; ratios are to the first."""
        reduce = System(OUR_REDUCE, "AllReduce", self.shard)
        if self.of == EXCHANGES:
            return exchanges(self.shard)
        if self.of == ALONE:
            return [System(PLAIN), System(OUR_ONE, "AllReduce", self.batch)]
        if self.of == LOADING:
            return [System(DATALOADER), System(OUR_LOADERS, "AllReduce", self.batch)]
        gather = System(OUR_GATHER, "GatherScatter", self.shard)
        if self.of in (MEASURING, ENCRYPTED):
            measuring, encrypted = self.of == MEASURING, self.of == ENCRYPTED
            return [reduce, System(self.of, "AllReduce", self.shard, measuring=measuring, encrypted=encrypted)]
        if self.of == ALL:
            return [*(System(name) for name in BASELINES), gather, *exchanges(self.shard)]
        fine = [System(f"AllReduce, shard {self.fine_shard} (ours)", "AllReduce", self.fine_shard)]
        return [*(System(name) for name in BASELINES), gather, reduce, *(fine if self.fine_shard else [])]

    def compared(self, names: Sequence[str]) -> list[System]:
        """The first of the systems, to which the ratios are, and those of these names; all of them without names."""
        first, *others = self.systems()
        return [first, *(system for system in others if not names or system.name in names)]

    def job(self, system: System | None = None, *, only_warm: bool = False) -> BatchGrowthJob:
        """The job that one of our systems trains; the baselines take model, data and order of examples from it."""
        growth = "NoiseScale" if system and system.measuring else "Constant"
        shard = system.shard if system else self.shard
        return make_job(
            self.name,
            workload={
                "entrypoint": self.entrypoint,
                "arguments": dict(self.arguments) | self._slowness(),
                "examples": self.examples,
            },
            epochs=self.warm_epochs if only_warm else self.epochs,
            batch={"initial": self.batch, "maximum": self.batch, "shard": shard, "growth": {"type": growth}},
            learningRate={"initial": "0.01", "rule": "Constant"},
            workers={**_workers(self.workers), "loaders": LOADERS if self.of == LOADING else 0},
            exchange={
                "type": system.exchange if system else "AllReduce",
                "encryption": "Auto" if system and system.encrypted else "Disabled",
                **json.loads(system.settings if system else "{}"),
            },
        )

    def _slowness(self) -> dict[str, str]:
        return {"repeats": str(repeats(self.image_ms))} if self.image_ms else {}


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


def _wrn(batch: int, epochs: int, warm_epochs: int, *, updates: int = 1, of: str = "", model: str = "wrn") -> Case:
    """A case in which an epoch has that number of updates."""
    return Case(
        model=model,
        batch=batch,
        shard=batch // WORKERS,
        entrypoint="batchgrowth_trainer.workloads.synthetic:workload",
        arguments=(("model", model), ("examples", str(batch * updates)), ("test", "2")),
        examples=batch * updates,
        epochs=epochs,
        warm_epochs=warm_epochs,
        why_shard=_ONE_EACH,
        of=of,
    )


def _alone(
    model: str, batch: int, epochs: int, warm_epochs: int, entrypoint: str, examples: int, /, **arguments: str
) -> Case:
    """A case with one worker, in which an epoch has that many examples."""
    return Case(
        model=model,
        batch=batch,
        shard=batch,
        entrypoint=entrypoint,
        arguments=tuple(arguments.items()),
        examples=examples,
        epochs=epochs,
        warm_epochs=warm_epochs,
        why_shard="the whole batch",
        of=ALONE,
    )


def _images(batch: int, epochs: int, updates: int, image_ms: int) -> Case:
    """A case whose examples take that long to read, in which an epoch has that number of updates."""
    examples = batch * updates
    case = _alone("images", batch, epochs, 1, "bench.loading:workload", examples, examples=str(examples))
    return replace(case, of=LOADING, image_ms=image_ms)


_ONE_EACH = "one shard for each worker"
_WHOLE_HALVES = (
    "one shard for each worker, so that each computes 256 examples at once, as a DDP process does; "
    "the row with shard 32 shows the cost of a finer grain, which up to 16 workers can use"
)
_MLP, _CONV = "batchgrowth_trainer.workloads.digits:mlp", "batchgrowth_trainer.workloads.digits:workload"
_SYNTHETIC = "batchgrowth_trainer.workloads.synthetic:workload"


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
            _wrn(8, 3, 1, updates=2, of=ALL, model="vgg11"),
            _alone("mlp", 64, 3, 1, _MLP, DIGITS),
            _alone("digits", 512, 2, 1, _CONV, DIGITS),
            _alone("wrn", 8, 2, 1, _SYNTHETIC, 16, model="wrn", examples="16", test="2"),
            _images(8, 2, 2, 1),
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
        _wrn(64, 2, 1, updates=8, of=ALL),
        _wrn(256, 2, 1, updates=8, of=ALL, model="vgg11"),
        replace(_alone("mlp", 64, 50, 10, _MLP, DIGITS), repeats=9),
        replace(_alone("digits", 64, 4, 1, _CONV, DIGITS), repeats=5),
        replace(_alone("wrn", 32, 3, 1, _SYNTHETIC, 64, model="wrn", examples="64", test="2"), repeats=3),
        _images(32, 3, 20, 5),
    ]


def epoch_end_cases(*, quick: bool) -> list[Case]:
    """The jobs whose epoch ends are measured: of few updates, and of as many examples as CIFAR-10 has."""
    if quick:
        return [_alone("mlp", 512, 4, 1, _MLP, DIGITS)]
    cifar = {"model": "mlp", "examples": str(CIFAR), "test": "2"}
    return [_alone("mlp", 64, 100, 1, _MLP, DIGITS), _alone("mlp", 512, 40, 1, _SYNTHETIC, CIFAR, **cifar)]

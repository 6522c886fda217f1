"""Jobs that ask for what they cannot get, and what is remarked on each: the corpus of notes.py and of the warnings."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import yaml
from batchgrowth import BatchGrowthJob, make_plan
from batchgrowth.choices import CHOICES, GROWTH, LEARNING_RATES
from batchgrowth.errors import SpecError
from batchgrowth.extend import always_acts
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.notes import remarks
from batchgrowth.registry import Registry

BASE: dict[str, Any] = {
    "workload": {"entrypoint": "small:net", "examples": 1024},
    "epochs": 12,
    "batch": {"initial": 32, "maximum": 64, "shard": 16},
    "learningRate": {"initial": "0.05"},
    "workers": {"examplesPerWorker": 16, "maximum": 4},
}
GEOMETRIC = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 2}}
FALLING = {"type": "Linear"}


def read(**changes: Any) -> BatchGrowthJob:
    """The base job with other fields: `batch__maximum` is the field `maximum` of the block `batch`."""
    spec = yaml.safe_load(yaml.safe_dump(BASE))
    for path, value in changes.items():
        *parents, field = path.split("__")
        block = spec
        for parent in parents:
            block = block.setdefault(parent, {})
        block[field] = deepcopy(value)  # a later change of the same call may be inside it
    head = {"apiVersion": "batchgrowth.dev/v1alpha1", "kind": "BatchGrowthJob", "metadata": {"name": "small"}}
    return read_manifest(yaml.safe_dump({**head, "spec": spec}))


def remarked(job: BatchGrowthJob) -> list[str]:
    """The remarks on a job, as `check` prints them."""
    return [str(remark) for remark in remarks(job.spec, make_plan(job.spec))]


def chosen(registry: Registry[Any], name: str, **changes: Any) -> BatchGrowthJob:
    """The base job, whose batch grows and whose learning rate falls, with the example of an entry."""
    spec: dict[str, Any] = {"batch__growth": GEOMETRIC}
    entry = registry[name]
    *parents, chooser = registry.field_path.split(".")
    block: dict[str, Any] = {chooser: name}
    if entry.block is not None and entry.example:
        block[entry.block_name] = dict(entry.example)
    if registry is LEARNING_RATES:
        block["initial"] = "0.05"
    spec["__".join(parents)] = block
    if name == "InsteadOfDecay":
        spec |= {"learningRate__rule": "Linear", "learningRate__schedule": FALLING}
    if name == "Milestones":
        spec["batch__maximum"] = 256
    if registry.field_path == "exchange.type":
        spec["workers__minimum"] = 2
    return read(**{**spec, **changes})


ENTRIES = [(registry, name) for registry in CHOICES for name in registry]
ACT_ONLY_SOMETIMES = [(registry, name) for registry, name in ENTRIES if registry[name].idle is not always_acts]


IDLE = {
    "batch.growth.type": {"batch__maximum": 32, "learningRate__rule": "Constant"},
    "learningRate.rule": {"batch__growth": {"type": "Constant"}, "batch__maximum": 32},
    "learningRate.schedule.type": {"epochs": 1, "batch__growth": {"type": "Constant"}},
    "GatherScatter": {"workers": {"examplesPerWorker": 128}},
    "Delayed": {"exchange__delayed": {"updates": 0}},
    "LocalSGD": {"exchange__localSGD": {"afterUpdates": 100_000}},
    "ElasticAveraging": {"exchange__elasticAveraging": {"elasticity": "0"}},
    "TopK": {"exchange__topK": {"density": "1"}},
    "Hogwild": {"exchange__hogwild": {"threads": 1}},
    "optimizer.type": {"optimizer__withoutDecay": {"belowDimensions": 2}},
}
"""What keeps an entry, or any entry of a registry, from acting."""


def kept_from_acting(registry: Registry[Any], name: str) -> BatchGrowthJob:
    """The example of an entry in a job in which it cannot act."""
    changes = dict(IDLE.get(name) or IDLE[registry.field_path])
    if registry is GROWTH and name == "InsteadOfDecay":
        changes["learningRate__rule"] = "Linear"
    if registry is GROWTH and name == "Milestones":
        changes["batch__growth"] = {"type": "Milestones", "milestones": {"steps": [{"epoch": 2, "batchSize": 64}]}}
    if registry.field_path == "optimizer.type":
        changes[f"optimizer__{registry[name].block_name}"] = {"weightDecay": "0"}
    return chosen(registry, name, **changes)


def idle_jobs() -> dict[str, BatchGrowthJob]:
    """A job in which it cannot act for each entry that acts only sometimes, by name, unless it is refused."""
    made = {}
    for registry, name in ACT_ONLY_SOMETIMES:
        with suppress(SpecError):
            made[f"{registry.field_path} {name}, idle"] = kept_from_acting(registry, name)
    return made


Changes = dict[str, Any]
NOISE = {"type": "NoiseScale"}

CASES: list[tuple[str, Changes, str, Changes]] = [
    # --- Growth: what is given, what is noted, and what the note says would do ---
    (
        "growth past the end",
        {"epochs": 3, "batch__growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 3}}},
        "spec.batch.growth.geometric.everyEpochs: 3, so Geometric never changes the batch or the learning rate; give a "
        "number below the 3 epochs of the plan",
        {"batch__growth": GEOMETRIC},
    ),
    (
        "growth in a single epoch",
        {"epochs": 1, "batch__growth": GEOMETRIC},
        "spec.batch.growth.geometric.everyEpochs: 2, so Geometric never changes the batch or the learning rate; give "
        "more epochs",
        {"epochs": 4},
    ),
    (
        "growth by updates past the end",
        {"batch__growth": {"type": "Linear", "linear": {"examplesPerUpdate": "1", "everyUpdates": 384}}},
        "spec.batch.growth.linear.everyUpdates: 384, so Linear never changes the batch or the learning rate; give a "
        "number below the 384 updates of the plan",
        {"batch__growth": {"type": "Linear", "linear": {"examplesPerUpdate": "1", "everyUpdates": 100}}},
    ),
    (
        "no room to grow",
        {"batch__growth": GEOMETRIC, "batch__maximum": 32, "learningRate__rule": "Constant"},
        "spec.batch.growth: Geometric never changes the batch or the learning rate, since batch.maximum is "
        "batch.initial; give a batch.maximum larger than 32",
        {"batch__maximum": 64},
    ),
    (
        "one shard for all the data",
        {"workload__examples": 16, "batch__growth": NOISE},
        "spec.batch.growth: NoiseScale never changes the batch or the learning rate, since each update takes the 16 "
        "examples in one shard; give a batch.shard below 16",
        {"batch__shard": 8},
    ),
    (
        "one example",
        {"workload__examples": 1, "batch__growth": NOISE},
        "spec.batch.growth: NoiseScale never changes the batch or the learning rate, since each update takes the 1 "
        "example in one shard; give more workload.examples: a single one cannot be divided into shards",
        {"workload__examples": 1024},
    ),
    (
        "less than a shard",
        {
            "batch__growth": {"type": "LossRatio", "looks": {"mostChange": "1.3"}},
            "batch__maximum": 256,
            "batch__shard": 128,
        },
        "spec.batch.growth.looks: LossRatio never changes the batch or the learning rate, since a look may not change "
        "the batch by a whole shard; give a larger mostChange, or a smaller batch.shard",
        {"batch__shard": 16},
    ),
    (
        "less than an example",
        {
            "batch__growth": {"type": "LossRatio", "looks": {"mostChange": "1.01", "leastChange": "1"}},
            "batch__shard": 1,
        },
        "spec.batch.growth.looks: LossRatio never changes the batch or the learning rate, since a look may not change "
        "the batch by a whole shard; give a larger mostChange",
        {"batch__growth": {"type": "LossRatio", "looks": {"mostChange": "1.1", "leastChange": "1"}}},
    ),
    (
        "steps past the maximum",
        {
            "learningRate__rule": "Linear",
            "batch__growth": {
                "type": "Milestones",
                "milestones": {"steps": [{"epoch": 2, "batchSize": 64}, {"epoch": 4, "batchSize": 128}]},
            },
        },
        "spec.batch.growth.milestones.steps[1].batchSize: 128 is more than batch.maximum, 64, which the batch has "
        "already; give a batch.maximum of 128, or leave the step out",
        {"batch__maximum": 128},
    ),
    (
        "steps that fall past the maximum",
        {
            "learningRate__rule": "Linear",
            "batch__growth": {
                "type": "Milestones",
                "milestones": {"steps": [{"update": 20, "batchSize": 128}, {"update": 40, "batchSize": 96}]},
            },
        },
        "spec.batch.growth.milestones.steps[1].batchSize: 96 is more than batch.maximum, 64, which the batch has "
        "already; give a batch.maximum of 128, or leave the step out",
        {"batch__maximum": 128},
    ),
    # --- Learning rates ---
    (
        "a rule without growth",
        {"learningRate__rule": "Linear", "batch__maximum": 32},
        "spec.learningRate.rule: Linear never changes the learning rate, since each batch has batch.initial, 32 "
        "examples; leave the rule out, or let the batch grow",
        {"learningRate__rule": "DecayPastMaximum"},
    ),
    (
        "a gain without noise",
        {"workload__examples": 16, "learningRate__rule": "AdaScale", "batch__growth": GEOMETRIC},
        "spec.learningRate.rule: AdaScale never changes the learning rate, since each update takes at most 16 "
        "examples, in one shard; give a batch.shard below 16",
        {"batch__shard": 8},
    ),
    (
        "a gain of one example",
        {"workload__examples": 1, "learningRate__rule": "AdaScale", "batch__growth": GEOMETRIC},
        "spec.learningRate.rule: AdaScale never changes the learning rate, since each update takes at most 1 example, "
        "in one shard; give more workload.examples: a single one cannot be divided into shards",
        {"workload__examples": 1024},
    ),
    (
        "a gain of batches that stay within a shard",
        {
            "batch__initial": 2,
            "learningRate__rule": "AdaScale",
            "batch__growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 5}},
        },
        "spec.learningRate.rule: AdaScale never changes the learning rate, since each update takes at most 8 "
        "examples, in one shard; give a batch.shard below 8",
        {"batch__shard": 7},
    ),
    (
        "a schedule without a step",
        {"epochs": 1, "learningRate__schedule": {"type": "Cosine"}},
        "spec.learningRate.schedule: Cosine never changes the learning rate, which is constant in an epoch; give 2 "
        "spec.epochs or more, or leave the schedule out",
        {"epochs": 2},
    ),
    (
        "a warm-up of one update",
        {"learningRate__warmup": {"updates": 1}},
        "spec.learningRate.warmup.updates: 1, so the first update has the whole learning rate; give 2 or more",
        {"learningRate__warmup": {"updates": 2}},
    ),
    (
        "a warm-up of one update in a plan of few",
        {"epochs": 1, "workload__examples": 32, "learningRate__warmup": {"updates": 1}},
        "spec.learningRate.warmup.updates: 1, so the first update has the whole learning rate; give more epochs, or "
        "leave the warm-up out",
        {"learningRate__warmup": None},
    ),
    (
        "a flat warm-up",
        {"learningRate__warmup": {"updates": 20, "initial": "0.050"}},
        "spec.learningRate.warmup.initial: 0.050 is learningRate.initial, so nothing rises; give less",
        {"learningRate__warmup": {"updates": 20, "initial": "0.04"}},
    ),
    (
        "a long warm-up",
        {"learningRate__warmup": {"updates": 200}},
        "spec.learningRate.warmup.updates: 200 is more than half of the 384 updates of the plan, so most of them have "
        "a smaller learning rate; give at most 192",
        {"learningRate__warmup": {"updates": 192}},
    ),
    (
        "a warm-up that a growing batch makes long",
        {"batch__growth": NOISE, "learningRate__warmup": {"updates": 110}},
        "spec.learningRate.warmup.updates: 110 is more than half of the 208 updates that remain if the batch grows as "
        "fast as it may, so most of them have a smaller learning rate; give at most 104",
        {"learningRate__warmup": {"updates": 104}},
    ),
    # --- What the plan does not reach ---
    (
        "a maximum without growth",
        {},
        "spec.batch.maximum: 64 is not reached: the largest batch is 32; give 32, or a growth that reaches more",
        {"batch__maximum": 32},
    ),
    (
        "more workers than examples of a batch",
        {"batch": {"initial": 2, "maximum": 2, "shard": 1}, "workers__examplesPerWorker": 1},
        "spec.workers.maximum: 4, but no stage requests more than 2 workers; give 2, or larger batches",
        {"batch": {"initial": 4, "maximum": 4, "shard": 1}},
    ),
    (
        "more workers than batches have",
        {"batch__maximum": 32, "workers__maximum": 4},
        "spec.workers.maximum: 4, but no stage requests more than 2 workers; give 2, or fewer examplesPerWorker",
        {"workers__maximum": 2},
    ),
    (
        "evaluations past the end",
        {"evaluation": {"everyEpochs": 13}},
        "spec.evaluation.everyEpochs: 13, so the model is evaluated only after the last epoch, 12; give at most 12",
        {"evaluation": {"everyEpochs": 12}},
    ),
    (
        "the best of one evaluation",
        {"evaluation": {"everyEpochs": 12, "keepBest": {"metric": "loss", "mode": "Minimize"}}},
        "spec.evaluation.keepBest: the only evaluation is the last one, so the best weights are the last; give "
        "everyEpochs below 12, or leave keepBest out",
        {"evaluation__everyEpochs": 11},
    ),
    (
        "the best of one epoch",
        {"epochs": 1, "evaluation": {"keepBest": {"metric": "loss", "mode": "Minimize"}}},
        "spec.evaluation.keepBest: the only evaluation is the last one, so the best weights are the last; give more "
        "epochs, or leave keepBest out",
        {"epochs": 2},
    ),
    (
        "a warm-up of few updates",
        {"epochs": 1, "workload__examples": 96, "learningRate__warmup": {"updates": 2}},
        "spec.learningRate.warmup.updates: 2 is more than half of the 3 updates of the plan, so most of them have a "
        "smaller learning rate; give more epochs, or leave the warm-up out",
        {"epochs": 2},
    ),
    (
        "a GPU's precision",
        {"workload__device": "CPU", "precision": "TensorFloat32"},
        "spec.precision: TensorFloat32 is Float32 on device CPU; give another device, or leave it out",
        {"precision": None},
    ),
    (
        "a GPU's kernels",
        {"workload__device": "CPU", "deterministic": False},
        "spec.deterministic: false changes nothing on device CPU, whose kernels are deterministic; give another "
        "device, or leave it out",
        {"workload__device": "Auto"},
    ),
    (
        "shards of no loader",
        {"workers__loadedAhead": 4},
        "spec.workers.loadedAhead: 4 shards of no loader, since workers.loaders is 0; give workers.loaders 1 or more, "
        "or leave it out",
        {"workers__loaders": 1},
    ),
    (
        "nothing to spare from decay",
        {"optimizer__withoutDecay": {"belowDimensions": 2}},
        "spec.optimizer.withoutDecay: it spares nothing, since sgd.weightDecay is 0; give sgd.weightDecay more than 0, "
        "or leave withoutDecay out",
        {"optimizer__sgd": {"weightDecay": "0.001"}},
    ),
    (
        "no delay in a plan of one update",
        {"epochs": 1, "workload__examples": 32, "exchange": {"type": "Delayed", "delayed": {"updates": 0}}},
        "spec.exchange.delayed.updates: 0, so Delayed does what AllReduce does; give exchange.type AllReduce",
        {"exchange": {"type": "AllReduce"}},
    ),
    (
        "gradients too late",
        {"epochs": 1, "workload__examples": 64, "exchange": {"type": "Delayed", "delayed": {"updates": 2}}},
        "spec.exchange.delayed.updates: 2, so the first gradient is due after the 2 updates of the plan; give fewer, "
        "or more epochs",
        {"epochs": 2},
    ),
    (
        "an outer optimizer that adds nothing",
        {"exchange": {"type": "LocalSGD", "localSGD": {"outer": {}}}},
        "spec.exchange.localSGD.outer: with learningRate 1 and momentum 0 it applies the mean change as it is; give "
        "other numbers, or leave outer out",
        {"exchange__localSGD": {"outer": {"momentum": "0.9"}}},
    ),
    (
        "nobody to repeat a slow worker",
        {"exchange": {"type": "GatherScatter", "gatherScatter": {"backups": True}}, "workers": {}},
        "spec.exchange.gatherScatter.backups: true, but each stage has 1 worker, which nobody can repeat; give "
        "workers.minimum and maximum 2 or more",
        {"workers": {"minimum": 2, "maximum": 2}},
    ),
    # --- Batches, shards and workers that do not fit each other ---
    (
        "a maximum past the data",
        {"workload__examples": 48, "batch__growth": GEOMETRIC},
        "spec.batch.maximum: 64 is more than the 48 examples of the data, so an epoch has 1 update, which takes them "
        "all; give at most 48",
        {"batch__maximum": 48},
    ),
    (
        "a first batch past the data",
        {"workload__examples": 16},
        "spec.batch.initial: 32 is more than the 16 examples of the data, so an epoch has 1 update, which takes them "
        "all; give at most 16, and maximum too",
        {"batch__initial": 16, "batch__maximum": 16},
    ),
    (
        "a first batch past the data, with shards as large as these",
        {"workload__examples": 16, "batch__growth": NOISE},
        "spec.batch.initial: 32 is more than the 16 examples of the data, so an epoch has 1 update, which takes them "
        "all; give at most 16, and maximum too, with a batch.shard below 16",
        {"batch__initial": 16, "batch__maximum": 16, "batch__shard": 15},
    ),
    (
        "batches past one example",
        {"workload__examples": 1, "batch__growth": NOISE},
        "spec.batch.initial: 32 is more than the 1 example of the data, so an epoch has 1 update, which takes them "
        "all; give at most 1, and maximum too, with a growth and a rule that compare no shards",
        {"batch__initial": 1, "batch__maximum": 1, "batch__growth": {"type": "Constant"}},
    ),
    (
        "a maximum past data of one shard, with a gain",
        {
            "workload__examples": 48,
            "batch__growth": GEOMETRIC,
            "batch__shard": 48,
            "learningRate__rule": "AdaScale",
        },
        "spec.batch.maximum: 64 is more than the 48 examples of the data, so an epoch has 1 update, which takes them "
        "all; give at most 48, with a batch.shard below 48",
        {"batch__maximum": 48, "batch__shard": 47},
    ),
    (
        "a maximum that a gain's shard does not leave",
        {
            "batch__growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 11}},
            "batch__maximum": 256,
            "batch__shard": 64,
            "learningRate__rule": "AdaScale",
        },
        "spec.batch.maximum: 256 is not reached: the largest batch is 64; give 64, with a batch.shard below 64, or a "
        "growth that reaches more",
        {"batch__maximum": 64, "batch__shard": 63},
    ),
    (
        "a minimum of workers",
        {"batch__shard": 32, "workers": {"minimum": 4, "maximum": 4}},
        "spec.workers.minimum: 4 requests 4 workers in stage 1, whose 32 examples are 1 shard of at most 32, so 3 "
        "never compute; give 1",
        {"workers__minimum": 1},
    ),
    (
        "workers of batches past the data",
        {"batch__initial": 8192, "batch__maximum": 8192, "workload__examples": 1437, "workers__maximum": 512},
        "spec.workers.maximum: 512 requests 512 workers in stage 1, whose 1,437 examples are 90 shards of at most 16, "
        "so 422 never compute; give 90",
        {"workers__maximum": 90},
    ),
    (
        "workers of large shards",
        {"batch__growth": GEOMETRIC, "batch__shard": 64, "workers__minimum": 3},
        "spec.workers.maximum: 4 requests 4 workers in stage 2 and 5 others, whose 64 examples are 1 shard of at most "
        "64, so 3 never compute; give 1, and minimum too",
        {"workers__maximum": 1, "workers__minimum": 1},
    ),
    (
        "workers with less than a shard",
        {"batch__growth": GEOMETRIC, "batch__shard": 32},
        "spec.workers.examplesPerWorker: 16 requests 4 workers in stage 2 and 5 others, whose 64 examples are 2 shards "
        "of at most 32, so 2 never compute; give 32, the size of a shard",
        {"workers__examplesPerWorker": 32},
    ),
    (
        "workers of one process",
        {"exchange__type": "SingleProcess"},
        "spec.workers.maximum: 4, but exchange SingleProcess trains in one process, without workers; give 1 with "
        "minimum 1, or another exchange",
        {"workers": {}},
    ),
    (
        "a last shard",
        {"batch__initial": 88, "batch__maximum": 88, "workers__maximum": 5},
        "spec.batch.shard: 16 makes 6 shards for 5 workers in stage 1, of whose time 40% is waiting for the worker "
        "with the most shards; give 18",
        {"batch__shard": 18},
    ),
    (
        "last shards that no shard avoids",
        {
            "batch__growth": {"type": "Milestones", "milestones": {"steps": [{"epoch": 1, "batchSize": 49}]}},
            "batch__initial": 48,
            "batch__maximum": 49,
            "batch__shard": None,
            "workers": {"examplesPerWorker": 24, "maximum": 2},
        },
        "spec.batch.shard: 24 makes 3 shards for 2 workers in stage 2, of whose time 25% is waiting for the worker "
        "with the most shards; give 25",
        {"batch__shard": 25},
    ),
]

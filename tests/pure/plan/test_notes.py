"""What a manifest asks for and its plan cannot give is noted: by each entry of each registry, and by further rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import BatchGrowthJob, make_plan
from batchgrowth.choices import CHOICES, GROWTH, LEARNING_RATES, SCHEDULES
from batchgrowth.choices.learning_rate_schedules import ConstantSchedule
from batchgrowth.errors import SpecError
from batchgrowth.extend import always_acts, nothing_coarser
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.notes import RULES, notes, remarks
from batchgrowth.registry import Registry

ROOT = Path(__file__).parents[3]
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
        block[field] = value
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


def named(value: object) -> str:
    return value.field_path if isinstance(value, Registry) else str(value)


def about(registry: Registry[Any], job: BatchGrowthJob) -> list[str]:
    """The remarks on the choice of that registry."""
    place = f"spec.{registry.field_path.rpartition('.')[0]}"
    return [
        text for text in remarked(job) if text.startswith(place) and not text.startswith("spec.learningRate.warmup")
    ]


@pytest.mark.fault("N15")
@pytest.mark.parametrize(("registry", "name"), ENTRIES, ids=named)
def test_every_choice_acts_in_its_example(registry: Registry[Any], name: str) -> None:
    assert about(registry, chosen(registry, name)) == []


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


@pytest.mark.fault("N15")
@pytest.mark.parametrize(("registry", "name"), ACT_ONLY_SOMETIMES, ids=named)
def test_every_choice_that_cannot_act_is_noted_by_name(registry: Registry[Any], name: str) -> None:
    """A new entry comes here by itself; its registry's answer covers it, or it gets a line above."""
    changes = dict(IDLE.get(name) or IDLE[registry.field_path])
    if registry is GROWTH and name == "InsteadOfDecay":
        changes["learningRate__rule"] = "Linear"
    if registry is GROWTH and name == "Milestones":
        changes["batch__growth"] = {"type": "Milestones", "milestones": {"steps": [{"epoch": 2, "batchSize": 64}]}}
    if registry.field_path == "optimizer.type":
        block = registry[name].block_name
        changes[f"optimizer__{block}"] = {"weightDecay": "0"}
    if name == "Step":  # the one that the API server refuses
        with pytest.raises(SpecError, match="so that there is a step"):
            chosen(registry, name, **changes)
        return
    job = chosen(registry, name, **changes)

    told = about(registry, job)
    assert len(told) == 1
    if registry in (GROWTH, LEARNING_RATES, SCHEDULES):
        assert f"{name} never changes the " in told[0]


def test_every_registry_says_when_a_choice_cannot_act() -> None:
    """Those whose entries act in each job are the optimizers and exchanges alone."""
    silent = {
        registry.field_path: [name for name in registry if registry[name].idle is always_acts] for registry in CHOICES
    }
    assert silent == {
        "batch.growth.type": ["Constant"],
        "learningRate.rule": ["DecayPastMaximum", "Constant"],
        "learningRate.schedule.type": ["Constant"],
        "optimizer.type": ["LAMB", "LARS", "Torch"],
        "exchange.type": ["AllReduce", "Downpour", "Gossip", "ParameterServer", "SingleProcess"],
    }


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
        "spec.learningRate.rule: AdaScale never changes the learning rate, since each update takes the 16 examples in "
        "one shard; give a batch.shard below 16",
        {"batch__shard": 8},
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
        "all; give at most 16",
        {"batch__initial": 16, "batch__maximum": 16},
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


@pytest.mark.fault("N07", "N15")
@pytest.mark.parametrize(("given", "note", "mended"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_cannot_act_is_noted_and_the_remedy_helps(given: Changes, note: str, mended: Changes) -> None:
    assert note in remarked(read(**given))
    field = note.partition(": ")[0]
    assert [text for text in remarked(read(**{**given, **mended})) if text.startswith(f"{field}:")] == []


@pytest.mark.fault("N15")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"evaluation": {"stopEarly": {"metric": "loss", "mode": "Minimize", "patience": 12}}}, "evaluation.stopEarly"),
        ({"batch__growth": {**NOISE, "looks": {"everyEpochs": 12}}}, "batch.growth.looks.everyEpochs"),
        ({"batch__growth": {**NOISE, "looks": {"everyUpdates": 384}}}, "batch.growth.looks.everyUpdates"),
        ({"learningRate__warmup": {"updates": 385}}, "learningRate.warmup.updates"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: Changes, field: str) -> None:
    with pytest.raises(ValueError, match=f"spec.{field}"):
        make_plan(read(**changes).spec)


def test_a_measured_batch_may_reach_its_maximum() -> None:
    """The looks are followed as if each asked for the most."""
    fast = read(batch__growth=NOISE, batch__maximum=256, workers__maximum=16)
    slow = read(batch__growth={**NOISE, "looks": {"mostChange": "1.3"}}, batch__maximum=1024, workers__maximum=64)
    assert remarked(fast) == []
    assert [text.partition(";")[0] for text in remarked(slow) if text.startswith("spec.batch.maximum")] == [
        "spec.batch.maximum: 1,024 is not reached: the largest batch is 736"
    ]


def test_a_slow_measured_batch_is_followed_to_its_end() -> None:
    """By more than a hundred looks; a false note would tell of a maximum that it reaches."""
    looks = {"mostChange": "1.05", "leastChange": "1.05"}
    batch = {"initial": 64, "maximum": 1024, "shard": 1, "growth": {"type": "LossRatio", "looks": looks}}
    slow = read(epochs=200, batch=batch, workers={"examplesPerWorker": 256, "maximum": 4})
    assert [text for text in remarked(slow) if "not reached" in text or "no stage" in text] == []


def test_an_entry_need_not_say_which_setting_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 12}}
    monkeypatch.setitem(GROWTH._entries, "Geometric", replace(GROWTH["Geometric"], coarser=nothing_coarser))
    assert remarked(read(batch__growth=late))[0] == (
        "spec.batch.growth: Geometric never changes the batch or the learning rate; give settings with which it "
        "changes before the end"
    )


def test_a_schedule_that_falls_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours all fall from the second epoch on, or are refused; another's may not."""
    flat = replace(SCHEDULES["Linear"], implementation=lambda *_: ConstantSchedule())
    monkeypatch.setitem(SCHEDULES._entries, "Linear", flat)
    assert remarked(read(learningRate__schedule=FALLING, batch__growth=GEOMETRIC)) == [
        "spec.learningRate.schedule: Linear never changes the learning rate in 12 epochs; give settings with which it "
        "falls earlier"
    ]


def test_one_cause_is_noted_once() -> None:
    """A rule of the learning rate follows a batch that never grows because of the growth."""
    for rule in ("Linear", "AdaScale"):
        job = read(batch__growth=GEOMETRIC, batch__maximum=32, learningRate__rule=rule)
        assert [text.partition(":")[0] for text in remarked(job) if "never changes" in text] == ["spec.batch.growth"]


def test_a_better_shard_leaves_two_where_noise_is_measured() -> None:
    growing = {"batch__growth": NOISE, "workers__maximum": 3}
    told = [text for text in remarked(read(**growing)) if text.startswith("spec.batch.shard: 16 makes 4 shards")]
    shard = int(told[0].rpartition("give ")[2])
    assert shard < 32
    assert "spec.batch.shard" not in " ".join(remarked(read(**growing, batch__shard=shard)))


def test_some_batches_suit_no_shard() -> None:
    five = read(batch={"initial": 5, "maximum": 5, "shard": 1}, workers={"examplesPerWorker": 1, "maximum": 4})
    assert [text.partition("; ")[2] for text in remarked(five)] == [
        "give batch sizes, or numbers of workers, that divide evenly"
    ]


def test_where_it_is() -> None:
    growth = {"type": "Milestones", "milestones": {"steps": [{"epoch": 4, "batchSize": 64}]}}
    job = read(batch={"initial": 32, "maximum": 64, "shard": 64, "growth": growth}, workers__minimum=3)
    assert "in stage 2 and 1 other, whose" in remarked(job)[0]


def test_a_job_without_fault_has_no_remark() -> None:
    assert remarked(read(batch__growth=GEOMETRIC)) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda path: path.stem)
def test_no_example_has_a_choice_that_cannot_act(path: Path) -> None:
    job = read_manifest(path.read_text())
    waste = ("spec.workers.maximum", "spec.batch.shard")
    assert [text for text in remarked(job) if not text.startswith(waste)] == []


def test_notes_say_also_what_is_no_fault() -> None:
    job = read(learningRate__rule="AdaScale", batch__growth=GEOMETRIC)
    assert [text[:34] for text in notes(job.spec, make_plan(job.spec))] == ["note: AdaScale multiplies these le"]
    assert len(RULES) == len(set(RULES))

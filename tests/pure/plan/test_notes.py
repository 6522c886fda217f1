"""What a manifest asks for and its plan cannot give is noted: by each entry of each registry, and by further rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import BatchGrowthJob, make_plan
from batchgrowth.choices import CHOICES, GROWTH, LEARNING_RATES, SCHEDULES
from batchgrowth.choices.learning_rate_schedules import ConstantSchedule
from batchgrowth.errors import SpecError
from batchgrowth.extend import always_acts, nothing_coarser
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.notes import RULES, notes
from batchgrowth.registry import Registry
from remarks import (
    ACT_ONLY_SOMETIMES,
    CASES,
    ENTRIES,
    FALLING,
    GEOMETRIC,
    NOISE,
    Changes,
    chosen,
    kept_from_acting,
    read,
    remarked,
)

ROOT = Path(__file__).parents[3]


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


@pytest.mark.fault("N15")
@pytest.mark.parametrize(("registry", "name"), ACT_ONLY_SOMETIMES, ids=named)
def test_every_choice_that_cannot_act_is_noted_by_name(registry: Registry[Any], name: str) -> None:
    """A new entry comes here by itself; its registry's answer covers it, or it gets a line in remarks.py."""
    if name == "Step":  # the one that is refused
        with pytest.raises(SpecError, match="so that there is a step"):
            kept_from_acting(registry, name)
        return
    job = kept_from_acting(registry, name)

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

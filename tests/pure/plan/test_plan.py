"""The plan: Table 1 to the digit, and what holds for every plan there is."""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import JobSpec, Plan, PlanError, Position, load_manifest, make_plan
from batchgrowth.extend import square_root
from hypothesis import given, reject, settings
from hypothesis import strategies as st

EXAMPLES = Path(__file__).parents[3] / "examples"

# maximum batch -> updates per epoch, learning rates and workers of the stages, and updates in all: seeds.md, section A
TABLE1 = {
    128: ([391, 391, 391, 391], [0.05, 0.01, 0.002, 0.0004], [1, 1, 1, 1], 78_200),
    640: ([391, 79, 79, 79], [0.05, 0.05, 0.01, 0.002], [1, 5, 5, 5], 34_520),
    3200: ([391, 79, 16, 16], [0.05, 0.05, 0.05, 0.01], [1, 5, 25, 25], 29_480),
    16000: ([391, 79, 16, 4], [0.05, 0.05, 0.05, 0.05], [1, 5, 25, 125], 29_240),
    5120: ([196, 40, 10, 10], [0.1, 0.1, 0.08, 0.016], [2, 10, 40, 40], 14_960),
}


def job(**changes: Any) -> JobSpec:
    """A small spec with changes on top."""
    given: dict[str, Any] = {
        "workload": {"entrypoint": "a:b", "examples": 100},
        "epochs": 10,
        "batch": {"initial": 8, "maximum": 64, "shard": 4},
        "learningRate": {"initial": "0.1"},
    }
    return JobSpec.model_validate(given | changes)


def batch(type_: str, block: dict[str, Any], initial: int = 8, maximum: int = 64) -> dict[str, Any]:
    """A spec.batch that grows."""
    growth = {"type": type_, type_.lower(): block}
    return {"initial": initial, "maximum": maximum, "shard": 4, "growth": growth}


@pytest.mark.parametrize("maximum", TABLE1)
def test_table1(maximum: int) -> None:
    plan = make_plan(load_manifest(EXAMPLES / "table1" / f"{maximum}.yaml").spec)
    per_epoch, rates, workers, updates = TABLE1[maximum]
    assert updates == plan.updates
    assert per_epoch == [stage.updates_per_epoch for stage in plan.stages]
    assert rates == [stage.learning_rate for stage in plan.stages]
    assert workers == [stage.workers for stage in plan.stages]
    assert [plan.stages[0].epoch_from, *(stage.epoch_to for stage in plan.stages)] == [0, 60, 120, 180, 200]


def test_digits() -> None:
    plan = make_plan(load_manifest(EXAMPLES / "digits.yaml").spec)
    assert [stage.batch_size for stage in plan.stages] == [32, 64, 128, 256, 512, 512]
    assert [stage.workers for stage in plan.stages] == [1, 1, 1, 2, 4, 4]
    assert plan.examples == 1437 * 30


def test_linear_is_exact_for_every_update() -> None:
    """d is looked at before each update; stages begin inside an epoch."""
    plan = make_plan(job(batch=batch("Linear", {"examplesPerUpdate": "0.5"})))
    wanted = [-(-(16 + update) // 2) for update in range(plan.updates)]
    assert [min(d, 64) for d in wanted] == [plan.stage_at(update).batch_size for update in range(plan.updates)]
    rates = [float(Fraction(1, 10) * min(d, 64) / d) for d in wanted]
    assert rates == [plan.stage_at(update).learning_rate for update in range(plan.updates)]
    assert any(stage.epoch_from.denominator > 1 for stage in plan.stages)


def test_linear_holds_between_looks() -> None:
    spec = job(batch=batch("Linear", {"examplesPerUpdate": "1", "everyUpdates": 7}))
    sizes = [make_plan(spec).stage_at(update).batch_size for update in range(21)]
    assert sizes == [8] * 7 + [15] * 7 + [22] * 7


def test_stages_that_do_the_same_are_one() -> None:
    """At the maximum and with a constant learning rate nothing changes any more."""
    growth = batch("Geometric", {"factor": "2", "everyEpochs": 1}, maximum=16)
    plan = make_plan(job(epochs=1_000_000, batch=growth, learningRate={"initial": "0.1", "rule": "Constant"}))
    assert [stage.batch_size for stage in plan.stages] == [8, 16]
    assert plan.updates == 13 + 999_999 * 7


def test_warmup_ramps_and_ends() -> None:
    rate = {"initial": "0.1", "warmup": {"updates": 4, "initial": "0.02"}}
    plan = make_plan(job(learningRate=rate))
    rates = [plan.step_at(plan.position_at(update)).learning_rate for update in range(6)]
    assert rates == pytest.approx([0.04, 0.06, 0.08, 0.1, 0.1, 0.1])
    assert rates[3] == 0.1


def test_linear_rule_follows_the_batch() -> None:
    growth = batch("Milestones", {"steps": [{"epoch": 5, "batchSize": 200}]})
    plan = make_plan(job(batch=growth, learningRate={"initial": "0.1", "rule": "Linear"}))
    assert [stage.learning_rate for stage in plan.stages] == [0.1, 0.8]


def test_json_keeps_whole_epochs_whole() -> None:
    plan = make_plan(job(batch=batch("Linear", {"examplesPerUpdate": "0.5"})))
    made = plan.to_json()
    assert made["stages"][0]["epochFrom"] == 0
    assert isinstance(made["stages"][0]["epochFrom"], int)
    assert made["stages"][0]["epochTo"] == 0.08
    assert sorted(made) == ["examples", "stages", "updates"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2000, "batch": batch("Linear", {"examplesPerUpdate": "1"})}, "linear.everyUpdates: 1 makes"),
        (
            {"epochs": 100_000, "batch": batch("Geometric", {"factor": "1.0001", "everyEpochs": 1})},
            "geometric.everyEpochs: 1 makes a plan of more than 1000 stages; 100 is surely enough",
        ),
        (
            {"epochs": 900, "batch": batch("Geometric", {"factor": "1000", "everyEpochs": 1})},
            "rate 0 from epoch 108 on",
        ),
        ({"learningRate": {"initial": "1", "warmup": {"updates": 131}}}, "warmup.updates: 131; give at most the 130"),
    ],
    ids=["linear", "geometric", "learning rate", "warmup"],
)
def test_no_sensible_plan(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(job(**changes))


def test_the_remedy_for_too_many_stages_works() -> None:
    growth = batch("Geometric", {"factor": "1.0001", "everyEpochs": 100})
    assert len(make_plan(job(epochs=100_000, batch=growth)).stages) <= 1000


def test_past_the_end_there_is_no_update() -> None:
    plan = make_plan(job())
    end = plan.position_at(plan.updates)
    assert (plan.updates, 10, 0) == (end.update, end.epoch, end.offset)
    assert plan.is_done(end)
    with pytest.raises(IndexError, match="ends after 10 epochs"):
        plan.step_at(end)


def test_a_plan_travels() -> None:
    """It is sent to the workers."""
    plan = make_plan(load_manifest(EXAMPLES / "digits.yaml").spec)
    copy = pickle.loads(pickle.dumps(plan))
    assert plan == copy
    assert plan.stage_at(300) == copy.stage_at(300)


decimals = st.decimals(min_value="1.01", max_value="9", places=2).map(str)
growths = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "type": st.just("Geometric"),
            "geometric": st.fixed_dictionaries({"factor": decimals, "everyEpochs": st.integers(1, 5)}),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("Linear"),
            "linear": st.fixed_dictionaries({"examplesPerUpdate": decimals, "everyUpdates": st.integers(1, 50)}),
        }
    ),
)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Small specs of every kind of growth."""
    initial = draw(st.integers(1, 40))
    maximum, shard = draw(st.integers(initial, 200)), draw(st.integers(1, 64))
    sizes = {"initial": initial, "maximum": maximum, "shard": shard, "growth": draw(growths)}
    rule = draw(st.sampled_from(["Constant", "DecayPastMaximum", "Linear", "SquareRoot"]))
    minimum = draw(st.integers(1, 4))
    return job(
        workload={"entrypoint": "a:b", "examples": draw(st.integers(1, 300))},
        epochs=draw(st.integers(1, 12)),
        batch=sizes,
        learningRate={"initial": "0.05", "rule": rule},
        workers={"minimum": minimum, "maximum": draw(st.integers(minimum, 9)), "examplesPerWorker": shard},
    )


def planned(spec: JobSpec) -> Plan:
    """The plan; hypothesis shall look elsewhere where there are too many stages."""
    try:
        return make_plan(spec)
    except PlanError:
        reject()


@pytest.mark.fault("A08", "A33", "D06")
@settings(max_examples=150, deadline=None)
@given(specs())
def test_a_walk_uses_every_example_of_every_epoch_once(spec: JobSpec) -> None:
    """Step by step from the start: all examples, in order, every update of the plan, and its stages agree."""
    plan, position, walked = planned(spec), Position(), 0
    while not plan.is_done(position):
        step = plan.step_at(position)
        assert position == step.position == plan.position_at(walked)
        assert plan.stage_at(walked).index == step.stage
        assert plan.stages[step.stage].batch_size == step.batch_size
        assert -(-step.examples // spec.batch.shard) == step.shards
        whole = step.after.epoch > position.epoch
        assert (plan.examples_per_epoch if whole else step.after.offset) == position.offset + step.examples
        assert 0 < step.examples <= step.batch_size
        assert whole or step.examples == step.batch_size
        position, walked = step.after, walked + 1
    assert plan.updates == walked
    assert Position(plan.updates, plan.epochs, 0) == position


@settings(max_examples=150, deadline=None)
@given(specs())
def test_stages_follow_each_other_and_never_shrink(spec: JobSpec) -> None:
    plan = planned(spec)
    for index, stage in enumerate(plan.stages):
        before = plan.stages[index - 1] if index else None
        assert index == stage.index
        assert (before.first_update + before.updates if before else 0) == stage.first_update
        assert (before.epoch_to if before else 0) == stage.epoch_from < stage.epoch_to
        assert (before.batch_size if before else spec.batch.initial) <= stage.batch_size <= spec.batch.maximum
        assert stage.batch_size <= stage.wanted
        assert spec.workers.minimum <= stage.workers <= spec.workers.maximum
    assert spec.epochs == plan.stages[-1].epoch_to


@settings(max_examples=150, deadline=None)
@given(specs())
def test_the_learning_rate_over_the_batch_is_exact(spec: JobSpec) -> None:
    """lr / B = lr0 / d under the default rule; the float is the nearest to the exact value."""
    for stage in planned(spec).stages:
        used = {
            "Constant": Fraction(1, 20),
            "DecayPastMaximum": Fraction(1, 20) * stage.batch_size / stage.wanted,
            "Linear": Fraction(1, 20) * stage.batch_size / spec.batch.initial,
            "SquareRoot": Fraction(1, 20) * square_root(Fraction(stage.batch_size, spec.batch.initial)),
        }
        assert float(used[spec.learning_rate.rule]) == stage.learning_rate


@settings(max_examples=50, deadline=None)
@given(specs())
def test_the_same_spec_gives_the_same_plan(spec: JobSpec) -> None:
    assert planned(spec) == planned(JobSpec.model_validate(spec.model_dump(by_alias=True, exclude_none=True)))

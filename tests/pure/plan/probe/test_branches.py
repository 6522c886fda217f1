"""Which batches a probe tries, where its branches end, and their plans."""

import pytest
from batchgrowth.errors import PlanError, SpecError
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth.probe import batches_at, between, branch_plan, stretch_from
from probed_job import planned, spec_of


def left_out(update: int, *overrides: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    plan = planned(*overrides)
    found = batches_at(plan, plan.position_at(update))
    return found.tried, found.left_out


def test_a_quarter_to_four_times_the_batch_is_tried() -> None:
    assert left_out(10) == ((8, 16, 32, 64, 128), ())


def test_what_no_branch_can_have_is_left_out() -> None:
    assert left_out(10, "batch.initial=30", "batch.shard=15", "batch.maximum=480") == (
        (15, 30, 60, 120),
        ("a batch of 7.5 is left out: it is no whole number",),
    )
    assert left_out(10, "batch.initial=48", "batch.shard=16", "batch.maximum=480") == (
        (12, 48, 96, 192),
        ("a batch of 24 is left out: it is no whole number of shards of 16",),
    )
    assert left_out(440) == ((128, 256, 512, 1024), ("a batch of 2048 is left out: an epoch has 1,437 examples",))


def test_a_batch_without_neighbours_is_refused() -> None:
    plan = planned("batch={initial: 1, maximum: 1, shard: 1, growth: {type: Constant}}", "workload.examples=1")

    with pytest.raises(SpecError) as refused:
        batches_at(plan, Position())
    assert str(refused.value) == (
        "spec.batch: 1, and nothing from a quarter to four times as many can be tried: a batch of 4 is left out: an "
        "epoch has 1 examples; train with a batch of several shards of 1, and below 1"
    )


@pytest.mark.parametrize(("pair", "middle"), [((32, 64), 48), ((32, 128), None), ((1, 2), None)])
def test_the_batch_between_two(pair: tuple[int, int], middle: int | None) -> None:
    assert between(*pair, planned()) == middle


def end_of(update: int, asked: int | None = None, *overrides: str) -> tuple[int, int, int]:
    plan = planned(*overrides)
    position = plan.position_at(update)
    stretch = stretch_from(plan, position, batches_at(plan, position), asked)
    return stretch.epoch, stretch.offset, stretch.examples


def test_a_branch_has_ended_wherever_it_passes_the_end() -> None:
    """The last update before the end may go past it, into the next epoch."""
    plan = planned()
    position = plan.position_at(45)
    stretch = stretch_from(plan, position, batches_at(plan, position), 400)
    ends = [Position(update=60, epoch=1, offset=at) for at in (383, 384)] + [Position(update=99, epoch=2, offset=0)]
    assert [False, True, True] == [stretch.has_ended(end) for end in ends]


def test_branches_end_where_all_of_them_end_an_update() -> None:
    """Each 12 batches of the run, or with an epoch; so does a batch halfway between two that are tried."""
    assert end_of(45, 400) == (1, 384, 384)
    assert end_of(45, 1437) == (2, 0, 1437)
    assert end_of(45, 1437 + 800) == (2, 768, 1437 + 768)
    assert end_of(47, 400) == (1, 64 + 384, 384)


def test_by_default_the_largest_batch_makes_36_updates() -> None:
    assert end_of(0) == (3, 0, 4311)
    assert end_of(45, None, "workload.examples=100000", "epochs=40") == (0, 45 * 32 + 4608, 4608)


def test_branches_end_before_the_batch_of_the_run_changes() -> None:
    assert end_of(180) == (5, 0, 1437)
    assert end_of(445) == (30, 0, 1437 * 5)


@pytest.mark.parametrize(
    ("update", "asked", "overrides", "message"),
    [
        (45, 100, (), "--examples: 100; give 384 or more, after which all branches end an update"),
        (
            70,
            None,
            ("batch.growth={type: Milestones, milestones: {steps: [{update: 75, batchSize: 64}]}}",),
            "160 examples are left until the run's own batch changes, after update 75, and a probe needs 384; "
            "probe an earlier checkpoint, or one after the change",
        ),
    ],
)
def test_a_stretch_that_is_too_short(update: int, asked: int | None, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError) as refused:
        end_of(update, asked, *overrides)
    assert str(refused.value) == message


@pytest.mark.parametrize("update", [0, 3, 45, 230, 459])
def test_the_branch_with_the_batch_of_the_run_is_the_run(update: int) -> None:
    """Update for update, with the same examples and learning rates."""
    spec = spec_of("learningRate.schedule={type: Cosine}")
    plan = make_plan(spec)
    position = plan.position_at(update)
    stage = plan.stage_at(update)
    branch = branch_plan(spec, plan, position, stage.batch_size)

    while position.update < stage.first_update + stage.updates:
        theirs = plan.step_at(position)
        assert branch.step_at(position) == theirs
        position = theirs.after
    assert branch.stages[0].updates_per_epoch == stage.updates_per_epoch


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        ("DecayPastMaximum", (0.05, 0.05)),
        ("Constant", (0.05, 0.05)),
        ("Linear", (0.05, 0.2)),
        ("SquareRoot", (0.05, 0.1)),
    ],
)
def test_the_learning_rate_follows_the_batch_by_the_rule_of_the_job(rule: str, rates: tuple[float, float]) -> None:
    spec = spec_of(f"learningRate.rule={rule}")
    plan = make_plan(spec)
    branches = [branch_plan(spec, plan, plan.position_at(7), batch) for batch in (32, 128)]

    assert tuple(branch.learning_rate_at(plan.position_at(7)) for branch in branches) == rates


def test_a_learning_rate_that_has_fallen_past_the_maximum_stays() -> None:
    """From epoch 25 on, the growth wants 1,024 and gets 512, so the learning rate is half."""
    spec = spec_of()
    plan = make_plan(spec)
    position = plan.position_at(450)

    rates = [branch_plan(spec, plan, position, batch).learning_rate_at(position) for batch in (128, 512, 1024)]
    assert rates == [0.025] * 3

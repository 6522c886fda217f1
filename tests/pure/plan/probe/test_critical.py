"""The critical batch of losses that are known, the block of the manifest that follows, and what is printed."""

import json
import math

import pytest
from batchgrowth.plan import make_plan
from batchgrowth.probe import (
    Branch,
    Critical,
    batch_block,
    batches_at,
    branch_table,
    compared,
    critical_of,
    critical_sentence,
    heading,
    no_block,
    remedy,
    stretch_from,
)
from probed_job import spec_of
from rich.console import Console


def branches(*losses: tuple[float, ...]) -> list[Branch]:
    """Branches with batches of 8, 16, 32 and so on."""
    return [
        Branch(batch_size=8 << place, learning_rate=0.05, updates=64 >> place, losses=several)
        for place, several in enumerate(losses)
    ]


def critical(*losses: tuple[float, ...], tolerance: float = 0.02) -> Critical:
    return critical_of(compared(branches(*losses)), tolerance)


def test_it_lies_between_the_last_within_the_tolerance_and_the_next() -> None:
    found = critical((1.0,), (1.01,), (1.03,), (1.5,))

    assert found == Critical(within=16, beyond=32, low=16, high=32)
    assert found.value == pytest.approx(22.6, abs=0.1)
    assert found.to_json() == {"value": found.value, "within": 16, "beyond": 32, "low": 16, "high": 32}


def test_each_is_compared_with_the_best_smaller_one() -> None:
    rows = compared(branches((1.0,), (0.5,), (0.505,), (0.51,)))

    assert [row.excess for row in rows] == pytest.approx([0, -0.5, 0.01, 0.02])


def test_if_all_are_within_it_is_the_largest_or_more() -> None:
    found = critical((1.0,), (0.9,), (0.8,))

    assert (found.within, found.beyond, found.high, found.value) == (32, None, None, 32)
    assert found.to_json()["value"] is None


def test_errors_of_the_losses_widen_the_interval() -> None:
    """Each mean of two losses has an error of 1 %, and a share above another one of 1.3 %."""
    rows = compared(branches((0.99, 1.01), (1.0, 1.02), (1.02, 1.04), (1.19, 1.21)))

    assert [row.error for row in rows] == pytest.approx([0.0095, 0.0096, 0.0098, 0.0114], abs=1e-4)
    assert [row.excess_error for row in rows] == pytest.approx([0, 0.0134, 0.0134, 0.0134], abs=1e-4)
    assert critical_of(rows, 0.02) == Critical(within=16, beyond=32, low=8, high=64)


def test_a_branch_that_fails_is_beyond() -> None:
    found = critical((1.0, 1.1), (1.0, 1.1), (math.inf,), (math.inf,))
    failed = compared(branches((1.0, 1.1), (math.inf,)))[1].to_json()

    assert (found.within, found.beyond) == (16, 32)
    assert (failed["loss"], failed["error"], failed["excess"]) == (None, None, None)


@pytest.mark.parametrize(
    ("losses", "excess"),
    [((0.0, 0.0), 0.0), ((0.0, 1.0), math.inf), ((0.0, -1.0), -math.inf), ((-2.0, -1.0), 0.5), ((-1.0, -2.0), -1.0)],
)
def test_losses_that_are_no_positive_numbers(losses: tuple[float, float], excess: float) -> None:
    second = compared(branches(*((loss,) for loss in losses)))[1]
    assert second.excess == excess
    assert json.loads(json.dumps(second.to_json(), allow_nan=False))["loss"] == losses[1]


def test_the_block_has_the_batches_so_far_and_then_the_new_one() -> None:
    spec = spec_of("batch.shard=32")
    plan = make_plan(spec)

    assert batch_block(spec, plan, plan.position_at(300), 1024) == {
        "initial": 32,
        "maximum": 1024,
        "shard": 32,
        "growth": {
            "type": "Milestones",
            "milestones": {"steps": [{"update": 225, "batchSize": 64}, {"update": 300, "batchSize": 1024}]},
        },
    }


def test_a_milestone_at_the_probe_is_replaced() -> None:
    spec = spec_of()
    plan = make_plan(spec)
    block = batch_block(spec, plan, plan.position_at(225), 128)

    assert block is not None
    assert block["growth"]["milestones"]["steps"] == [{"update": 225, "batchSize": 128}]


def test_a_batch_that_stays_needs_no_milestones() -> None:
    spec = spec_of()
    plan = make_plan(spec)

    assert batch_block(spec, plan, plan.position_at(100), 32) == {
        "initial": 32, "maximum": 512, "growth": {"type": "Constant"},
    }  # fmt: skip


def test_the_batch_does_not_fall_below_the_initial_one() -> None:
    spec = spec_of()
    plan = make_plan(spec)
    block = batch_block(spec, plan, plan.position_at(300), 16)

    assert block is not None
    assert block["growth"]["milestones"]["steps"] == [
        {"update": 225, "batchSize": 64},
        {"update": 300, "batchSize": 32},
    ]


def test_what_is_done_stays_the_same_with_the_block() -> None:
    spec = spec_of()
    plan = make_plan(spec)
    position = plan.position_at(300)
    later = make_plan(spec_of(f"batch={batch_block(spec, plan, position, 256)}"))

    assert [later.step_at(later.position_at(update)).examples for update in range(300)] == [
        plan.step_at(plan.position_at(update)).examples for update in range(300)
    ]
    assert later.position_at(300) == position
    assert later.stage_at(300).batch_size == 256


def test_no_block_follows_if_the_maximum_holds_the_batch() -> None:
    spec = spec_of()
    plan = make_plan(spec)

    assert batch_block(spec, plan, plan.position_at(455), 1024) is None
    assert no_block(spec).startswith("no milestones follow: batch.maximum holds the batch below what the growth wants")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("batch.growth={type: LossRatio}", "no milestones follow: the run's own growth, LossRatio, decides its next"),
        (
            "learningRate.rule=AdaScale",
            "no milestones follow: AdaScale measures while the batch grows, so a run cannot",
        ),
    ],
)
def test_no_block_follows_if_the_run_measures(change: str, why: str) -> None:
    """A resume with the block would be refused, since what is measured decided what is done."""
    spec = spec_of("batch.shard=8", change)
    plan = make_plan(spec)

    assert batch_block(spec, plan, plan.position_at(100), 64) is None
    assert no_block(spec).startswith(why)


def printed(*losses: tuple[float, ...], tolerance: float = 0.02) -> str:
    rows = compared(branches(*losses))
    return critical_sentence(rows, critical_of(rows, tolerance), tolerance)


def test_the_critical_batch_in_words() -> None:
    assert printed((1.0,), (1.01,), (1.03,)) == (
        "critical batch: 23, from 16 to 32 by the errors of the losses; 16 is within 2 % of the best smaller batch, "
        "and 32 is not"
    )
    assert printed((0.99, 1.01), (1.02, 1.04)) == (
        "critical batch: 11, from 8 to more by the errors of the losses, or less, since no smaller batch was tried; 16 "
        "is more than 2 % above it"
    )
    best = "no batch that was tried has a loss more than 2 % above that of the best smaller one"
    assert printed((1.0,), (1.0,)) == f"critical batch: 16 or more; {best}"
    assert printed((0.99, 1.01), (1.0, 1.02)) == (
        f"critical batch: 16 or more, or by the errors of the losses 8 or more; {best}"
    )


@pytest.mark.parametrize(
    ("of_run", "initial", "text"),
    [
        (8, 8, "the run could go on with a batch of 16, and lose nothing:"),
        (16, 8, "the run's batch of 16 is the largest tried that loses nothing; to keep it:"),
        (32, 8, "a batch of 16 would make more of the same examples:"),
        (32, 32, "a batch of 16 would make more of the same examples, but milestones start at batch.initial:"),
    ],
)
def test_what_the_run_can_do(of_run: int, initial: int, text: str) -> None:
    assert remedy(critical((1.0,), (1.0,), (2.0,)), of_run, initial) == text


def test_the_table() -> None:
    rows = compared(branches((0.99, 1.01), (math.inf,)))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(branch_table(rows))

    assert [line.split() for line in captured.get().splitlines()] == [
        ["batch", "learning", "rate", "updates", "loss", "above", "the", "best", "smaller"],
        ["8", "0.05", "64", "1", "±", "0.01"],
        ["16", "0.05", "32", "inf", "±", "inf", "+inf%", "±", "1.4%"],
    ]


def test_the_heading() -> None:
    spec = spec_of()
    plan = make_plan(spec)
    position = plan.position_at(50)
    stretch = stretch_from(plan, position, batches_at(plan, position), 800)

    assert heading(plan, stretch, 3) == (
        "from update 50, epoch 1.111, where the run has a batch of 32; each branch takes 768 examples, in 3 orders"
    )
    assert heading(plan, stretch, 1).endswith("each branch takes 768 examples, in one order")

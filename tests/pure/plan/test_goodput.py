"""Goodput: what is fitted to the clock, and that the batch of the largest goodput is found."""

import math
from collections.abc import Callable, Sequence

import pytest
from batchgrowth.choices.growth_measured import GoodputRule, candidates
from batchgrowth.looks import Look, Signals, Timing, Timings
from batchgrowth.position import Position
from hypothesis import given
from hypothesis import strategies as st

RULE = GoodputRule()


def timed(a: float, b: float, loads: Sequence[float]) -> Timings:
    """The sums over updates that take a + b · load seconds."""
    sums = Timings()
    for load in loads:
        sums = sums.plus(Timing(a + b * load, load))
    return sums


def look(
    timings: Timings,
    noise: float,
    *,
    wanted: int = 32,
    largest: int = 4096,
    shard: int = 1,
    workers: Callable[[int], int] = lambda batch: 1,
) -> Look:
    """A look at a training whose first batch had 32 examples; negative noise stands for one that cannot be measured."""
    signals = Signals(loss=1.0, batch_square=1.0, square=math.copysign(1.0, noise), trace=abs(noise))
    return Look(
        position=Position(100, 1, 0), start=signals, first=signals, now=signals, initial=32, wanted=wanted,
        largest=largest, shard=shard, workers=workers, learning_rate=0.1, timings=timings,
    )  # fmt: skip


def wanted(one: Look) -> float:
    return RULE.wanted(one, RULE.value(one))


# --- the line ---------------------------------------------------------------------------------------------------------


def test_a_line_is_found() -> None:
    assert pytest.approx(timed(0.25, 0.001, [32, 29, 64, 64]).line()) == (0.25, 0.001)


def test_neither_cost_is_negative() -> None:
    """The best line through the origin, and the best constant."""
    through_the_origin = Timings().plus(Timing(1.0, 10.0)).plus(Timing(4.0, 20.0))
    assert through_the_origin.line() == (0.0, pytest.approx(90 / 500))
    falling = Timings().plus(Timing(4.0, 10.0)).plus(Timing(1.0, 20.0))
    assert falling.line() == (2.5, 0.0)


def test_equal_loads_are_all_cost_of_examples() -> None:
    assert timed(0.3, 0.0, [32.1] * 10_000).line() == (0.0, pytest.approx(0.3 / 32.1))
    assert Timings().line() == (0.0, 0.0)


@pytest.mark.parametrize("timing", [Timing(), Timing(1.0, 0.0), Timing(math.nan, 1.0), Timing(math.inf, 1.0),
                                    Timing(-1.0, 1.0), Timing(1.0, math.nan)])  # fmt: skip
def test_a_timing_that_makes_no_sense_is_left_out(timing: Timing) -> None:
    known = timed(0.25, 0.001, [32, 64])
    assert known is known.plus(timing)


# --- the batch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b", "noise"), [(0.01, 1e-5, 64), (0.01, 1e-5, 1600), (0.4, 1e-4, 30), (1, 1e-3, 2000)])
def test_the_batch_is_that_of_the_closed_form(a: float, b: float, noise: float) -> None:
    """B / (a + b·B) · (φ + B0) / (φ + B) is largest at B = sqrt(a·φ / b); candidates are 2^(1/4) apart."""
    best = math.sqrt(a * noise / b)
    assert best / 2**0.25 < wanted(look(timed(a, b, [32, 64]), noise)) < best * 2**0.25


@pytest.mark.parametrize(
    ("a", "b", "noise", "batch"),
    [
        (1e6, 1e-6, 1000, 4096),  # an update costs the same for any batch
        (0, 0.01, 1000, 32),  # an example costs the same in any batch
        (0.01, 1e-5, 0, 32),  # without noise a second example shows nothing new
        (0.01, 1e-5, -1, 4096),  # too much noise to measure it: throughput alone
    ],
)
def test_the_ends(a: float, b: float, noise: float, batch: int) -> None:
    assert batch == wanted(look(timed(a, b, [32, 64]), noise))


def test_the_workers_of_a_batch_share_it() -> None:
    """A worker for each 128 examples, at most 4: with all costs by example, four workers train four times as fast."""
    shared = look(timed(0, 0.01, [32]), 1e9, shard=16, workers=lambda batch: min(max(batch // 128, 1), 4))
    assert wanted(shared) == 512
    assert wanted(look(timed(0, 0.01, [32]), 1e9, shard=16)) == 32


def test_the_value_is_in_examples_per_second() -> None:
    one = look(timed(0.25, 0.001, [32, 64]), 100, wanted=64)
    assert pytest.approx(RULE.value(one)) == 64 / (0.25 + 0.064) * 132 / 164


def test_without_a_clock_the_batch_stays() -> None:
    one = look(Timings(), 100, wanted=64)
    assert (RULE.value(one), wanted(one)) == (0.0, 64)


def test_candidates_are_whole_shards_between_the_bounds() -> None:
    assert candidates(look(Timings(), 1, largest=100, shard=16)) == [32, 48, 64, 80, 96, 100]
    widest = candidates(look(Timings(), 1, largest=2**24))
    assert tuple(widest[:5]) == (32, 38, 45, 54, 64)
    assert len(widest) <= 100
    assert candidates(look(Timings(), 1, largest=32)) == [32]


NUMBERS = st.sampled_from([0.0, 1e-38, 1e-3, 1.0, 64.0, 3e38, math.inf, math.nan])


@given(st.lists(st.builds(Timing, NUMBERS, NUMBERS), max_size=8), NUMBERS, st.integers(32, 10_000))
def test_any_clock_gives_a_candidate(timings: list[Timing], noise: float, largest: int) -> None:
    sums = Timings()
    for timing in timings:
        sums = sums.plus(timing)
    one = look(sums, noise, largest=largest, shard=16)
    assert wanted(one) in candidates(one)
    assert RULE.value(one) >= 0

"""When a shard is computed twice, and who is wrong if the answers differ."""

from collections.abc import Sequence

import pytest
from batchgrowth.contract.figures import ExchangeFigures
from batchgrowth.spot_check_verdicts import SHARDS_BETWEEN, SpotCheckVerdict, is_due, updates_between, verdict_of


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["a", "a", "a"], SpotCheckVerdict()),
        (["aa"], SpotCheckVerdict()),
        (["aaa", "aaa", "bbb"], SpotCheckVerdict(wrong=(2,))),
        (["aaa", "bbb", "aaa"], SpotCheckVerdict(wrong=(1,))),
        (["aaa", "aaa", "bcd"], SpotCheckVerdict(wrong=(2,))),
        (["aaa", "aaa", "bbb", "ccc", "aaa"], SpotCheckVerdict(is_code=True)),
        (["aaa", "baa"], SpotCheckVerdict(wrong=(1,))),
        (["aaa", "bbc"], SpotCheckVerdict(wrong=(1,))),
        (["bcd", "aaa"], SpotCheckVerdict(wrong=(0,))),
        (["aaa", "bbb"], SpotCheckVerdict(is_open=True)),
        (["aaa", "aaa", "bbb", "bbb"], SpotCheckVerdict(is_open=True)),
        (["aaa", "bbb", "cde"], SpotCheckVerdict(is_open=True)),
        (["abc", "def"], SpotCheckVerdict(is_code=True)),
        (["aab", "aab", "aab"], SpotCheckVerdict(is_code=True)),
        (["aaa", "bbb", "ccc"], SpotCheckVerdict(is_code=True)),
        (["abaaa"], SpotCheckVerdict(wrong=(0,))),
        (["abcde"], SpotCheckVerdict(is_code=True)),
        (["ababa"], SpotCheckVerdict(is_code=True)),
    ],
)
def test_a_worker_that_stands_alone_is_wrong_and_code_with_two_answers_is(
    answers: Sequence[str], expected: SpotCheckVerdict
) -> None:
    assert expected == verdict_of(answers)
    assert expected.is_same == (expected == SpotCheckVerdict())


@pytest.mark.parametrize("shards", [1, 3, 8, 64, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_a_check_costs_half_a_percent_of_the_shards(shards: int, workers: int) -> None:
    every = updates_between(shards, workers)
    longest = -(-shards // workers)
    computed = 1 if workers > 1 else 2
    assert every * longest >= SHARDS_BETWEEN * computed
    assert (every - 1) * longest < SHARDS_BETWEEN * computed
    assert [every, 2 * every] == [update for update in range(1, 2 * every + 1) if is_due(update - 1, update, every)]


def test_a_check_that_waits_for_loaders_comes_more_seldom() -> None:
    assert 5 * updates_between(4, 2) == updates_between(4, 2, read_ahead=4)


def test_a_round_of_many_updates_has_one_check_at_its_end() -> None:
    assert is_due(0, 16, 5)
    assert is_due(4, 5, 5)
    assert not is_due(5, 9, 5)


def test_checks_that_found_no_difference_are_counted() -> None:
    assert ExchangeFigures(checks=5, differences=2).checks_passed == 3

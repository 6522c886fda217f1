"""Who is wrong if the answers of a spot check differ."""

from collections.abc import Sequence

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth_trainer.exchange.spot_check import SpotCheckVerdict, verdict_of


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


def test_checks_that_found_no_difference_are_counted() -> None:
    assert ExchangeFigures(checks=5, differences=2).checks_passed == 3

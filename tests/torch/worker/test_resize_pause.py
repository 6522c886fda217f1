"""The pause at a resize, as its members measure it."""

from batchgrowth_trainer.drivers.generations import longest_pause
from batchgrowth_trainer.worker.member import PauseClock


def test_a_newcomer_has_no_pause() -> None:
    clock = PauseClock()
    assert clock.seconds(0) is None
    clock.start(7)
    assert clock.seconds(8) is None  # the state of update 8 came from another member
    pause = clock.seconds(7)
    assert pause is not None
    assert pause >= 0


def test_the_longest_pause_counts() -> None:
    assert longest_pause([0.5, None, 2.0], otherwise=9.0) == 2.0
    assert longest_pause([None, None], otherwise=9.0) == 9.0

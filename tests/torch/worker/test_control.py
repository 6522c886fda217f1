"""Requests of the driver to a member, and of a user to a run."""

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from batchgrowth.position import Position
from batchgrowth_trainer import stopping
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.stopping import interrupts
from batchgrowth_trainer.worker.member import Control


class State:
    """A state that counts its copies."""

    def __init__(self) -> None:
        self.update, self.taken = 0, 0

    def take(self) -> Snapshot:
        self.taken += 1
        return Snapshot(Position(self.update), {"parameters": torch.zeros(1)})


def test_a_snapshot_is_taken_at_once_if_nothing_trains() -> None:
    state = State()
    assert Control(state.take).request_snapshot().result(timeout=0).position.update == 0


def test_while_training_a_snapshot_waits_for_the_boundary_and_is_shared() -> None:
    state = State()
    control = Control(state.take)
    control.training(True)
    wanted = [control.request_snapshot(), control.request_snapshot()]
    assert not any(future.done() for future in wanted)
    state.update = 1
    control.at_boundary()
    assert [future.result(timeout=0).position.update for future in wanted] == [1, 1]
    assert state.taken == 1
    control.at_boundary()
    assert state.taken == 1


def test_a_snapshot_that_waits_is_served_when_training_ends() -> None:
    state = State()
    control = Control(state.take)
    control.training(True)
    wanted = control.request_snapshot()
    control.training(False)
    assert wanted.result(timeout=0).position.update == 0


def test_a_stop_holds_for_its_generation_and_earlier_ones() -> None:
    control = Control(State().take)
    assert not control.stop_requested(0)
    control.request_stop(3)
    assert [control.stop_requested(number) for number in (2, 3, 4)] == [True, True, False]
    control.request_stop(1)
    assert control.stop_requested(3)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time at which signals arrive, in seconds."""
    seconds = [0.0]
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_the_second_stops_at_once(
    number: signal.Signals, now: list[float]
) -> None:
    before, notes = signal.getsignal(number), []
    with interrupts(lambda: notes.append("stopping")) as requested:
        assert not requested()
        os.kill(os.getpid(), number)
        assert requested()
        assert notes == ["stopping"]
        now[0] = 1.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert notes == ["stopping"]
    assert before is signal.getsignal(number)


@pytest.mark.fault("G01")
def test_signals_to_a_process_and_its_group_count_once(now: list[float]) -> None:
    """As `timeout` sends them, or a service manager, or a shell whose connection is lost, however late."""
    notes: list[str] = []
    with interrupts(lambda: notes.append("stopping")) as requested:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        now[0] = 5.0
        os.kill(os.getpid(), signal.SIGHUP)
        assert requested()
    assert notes == ["stopping"]


@pytest.mark.fault("G01")
def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts(lambda: None) as requested:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_users_code_forks_ends_by_signals() -> None:
    """As `Pool.terminate` expects, which waits for its end."""
    with interrupts(lambda: None) as requested, multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(abs, (-1,)) == 1
    assert not requested()

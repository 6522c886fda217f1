"""One stream of events: a sink is one class with one method, and receives each row once, after the history."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record.checkpoint import CheckpointStore
from batchgrowth_trainer.record.history import Committed, EvaluationRow, History, HistoryRow
from batchgrowth_trainer.sinks.events import CheckpointSaved, Event, Finished, Held, Note, Sinks, Started, Stopped
from batchgrowth_trainer.training import Options, train


class MadeUp:
    """A sink that the trainer does not know."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_a_new_sink_is_one_class_and_receives_the_whole_run(small_job: Any, tmp_path: Path) -> None:
    sink, plan = MadeUp(), make_plan(small_job().spec)
    summary = train(small_job(), Options(output_dir=tmp_path), [sink])

    assert Started("small", plan, Position()) == sink.events[0]
    assert [Finished(summary["weightsSha256"]), Stopped()] == sink.events[-2:]
    assert list(range(1, plan.updates + 1)) == [row.update for row in sink.of(HistoryRow)]
    assert [row.epoch for row in sink.of(EvaluationRow)] == [1.0, 2.0, 3.0, 4.0]
    assert [plan.updates] == [saved.update for saved in sink.of(CheckpointSaved)]
    assert "metrics at http://" in sink.of(Note)[0].text


def test_a_failing_run_is_stopped_too(small_job: Any, tmp_path: Path) -> None:
    sink = MadeUp()
    with pytest.raises(Exception, match="is not finite"):
        train(small_job("workload.entrypoint=small:diverging"), Options(output_dir=tmp_path), [sink])
    assert Stopped() == sink.events[-1]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History(tmp_path)) as opened:
        yield opened


def make_run(job: Any, tmp_path: Path, history: History, sink: Any) -> RunState:
    return RunState(
        Course(job.spec), history=history, checkpoints=CheckpointStore(tmp_path / "checkpoints", {}, 1), sinks=[sink],
        desired_workers=lambda _plan, _position: 1, stop_requested=lambda: False,
    )  # fmt: skip


def update(job: Any, number: int) -> HistoryRow:
    plan = make_plan(job.spec)
    return HistoryRow.now(
        plan.step_at(plan.position_at(number - 1)), plan, Committed(0.5, 0.1, stop=False), 1, (0.1, 0.0, 0.0)
    )


def test_a_row_is_in_the_history_before_other_sinks_receive_it(
    small_job: Any, tmp_path: Path, history: History
) -> None:
    recorded: list[tuple[int, int]] = []

    class Watch:
        def handle(self, event: Event) -> None:
            if isinstance(event, HistoryRow):
                recorded.append((event.update, history.last_update))

    run = make_run(small_job(), tmp_path, history, Watch())
    run.record_rows([update(small_job(), number) for number in (1, 2, 3)])
    assert recorded == [(1, 1), (2, 2), (3, 3)]


def test_a_repeated_row_is_published_once(small_job: Any, tmp_path: Path, history: History) -> None:
    """After a recovery, updates are repeated, and a member reports rows that another has reported before."""
    sink, job = MadeUp(), small_job()
    run = make_run(job, tmp_path, history, sink)
    run.record_rows([update(job, 1), update(job, 2)])
    run.update = 1
    run.record_rows([update(job, 2), update(job, 3)])
    ends = Position(12, 1, 0)
    for _ in range(2):
        run.record_evaluation(ends, {"loss": 0.5, "accuracy": 0.75}, 1.7e9)

    assert [row.update for row in sink.of(HistoryRow)] == [1, 2, 3]
    assert [row.update for row in sink.of(EvaluationRow)] == [12]
    assert run.position.update == 3
    assert (run.totals.evaluated, run.totals.accuracy) == (1, 0.75)


def test_a_wait_is_published_once_until_the_next_update(small_job: Any, tmp_path: Path, history: History) -> None:
    sink, job = MadeUp(), small_job()
    run = make_run(job, tmp_path, history, sink)
    for _ in range(2):
        run.wait_for("a worker")
    run.record_rows([update(job, 1)])
    run.wait_for("a worker")
    assert [type(event).__name__ for event in sink.events] == ["Waiting", "HistoryRow", "Waiting"]


@pytest.mark.fault("G02")
@pytest.mark.parametrize("error", [ValueError("wrong"), OSError(28, "No space left on device"), SystemExit(1)])
def test_a_sink_that_fails_is_left_out_and_training_goes_on(
    small_job: Any, tmp_path: Path, error: BaseException
) -> None:
    class Failing:
        def __init__(self) -> None:
            self.rows = 0

        def handle(self, event: Event) -> None:
            self.rows += isinstance(event, HistoryRow)
            if self.rows == 3:
                raise error

    failing, other = Failing(), MadeUp()
    summary = train(small_job(), Options(output_dir=tmp_path), [failing, other])
    assert failing.rows == 3
    assert summary["updates"] == len(other.of(HistoryRow))
    [told] = [note.text for note in other.of(Note) if "left out" in note.text]
    assert told.startswith(f"Failing is left out from now on, since it raised {type(error).__name__}: {error}")


def test_an_event_that_comes_while_another_is_handed_out_waits_for_its_turn() -> None:
    """A signal handler may publish while a sink prints."""
    seen: list[tuple[str, Event]] = []

    class Sink:
        def __init__(self, name: str) -> None:
            self.name = name

        def handle(self, event: Event) -> None:
            seen.append((self.name, event))
            if self.name == "a" and event == Note("first"):
                sinks.handle(Note("second"))

    sinks = Sinks([Sink("a"), Sink("b")])
    sinks.add_to_next(Note("zeroth"))
    sinks.handle(Note("first"))
    assert [(name, event) for event in (Note("zeroth"), Note("first"), Note("second")) for name in "ab"] == seen


def test_a_sink_that_fails_at_what_it_missed_stays_left_out() -> None:
    seen: dict[str, list[Event]] = {name: [] for name in ("first", "failing", "late")}

    class Sink:
        def __init__(self, name: str) -> None:
            self.name = name

        def handle(self, event: Event) -> None:
            seen[self.name].append(event)
            if self.name == "failing":
                raise ValueError("wrong")

    audience = Sinks([Sink("first")])
    held = Held(lambda: [Sink("failing"), Sink("late")], audience)
    audience.put_first([held])
    audience.handle(Note("one"))
    held.release()
    audience.handle(Note("two"))

    assert seen["failing"] == [Note("one")]
    told = Note("Sink is left out from now on, since it raised ValueError: wrong; training goes on without it")
    kept = [note for note in seen["late"] if isinstance(note, Note)]
    assert [note.text.partition(" (")[0] for note in kept[1:2]] == [told.text.partition(";")[0]]
    assert seen["first"] == seen["late"] == [Note("one"), kept[1], Note("two")]

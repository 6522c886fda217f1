"""What a user sees while a run trains, on a terminal and in a log."""

import io
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.evaluations import BestEvaluation
from batchgrowth.plan import Plan, Stage
from batchgrowth.position import Position
from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks.display import Lines, Live, make_display
from batchgrowth_trainer.sinks.events import (
    CheckpointFailed,
    CheckpointSaved,
    EndedEarly,
    Finished,
    Looked,
    Note,
    Recovered,
    Sink,
    Started,
    Stopped,
    Undone,
    Waiting,
    WorkersReady,
)
from rich.console import Console


def stage(index: int, first_update: int, updates: int, batch_size: int, workers: int) -> Stage:
    return Stage(
        index=index,
        first_update=first_update,
        updates=updates,
        epoch_from=Fraction(index),
        epoch_to=Fraction(index + 1),
        wanted=batch_size,
        batch_size=batch_size,
        rate=Fraction(1, 20),
        learning_rate=0.05,
        learning_rate_to=0.05,
        workers=workers,
        updates_per_epoch=updates,
    )


PLAN = Plan(stages=(stage(0, 0, 4, 25, 1), stage(1, 4, 2, 50, 2)), examples_per_epoch=100, epochs=2, shard=25)


def rows(first: int = 1) -> Iterator[HistoryRow]:
    """The plan's updates from number `first` on, a tenth of a second each."""
    position = PLAN.position_at(first - 1)
    while not PLAN.is_done(position):
        step = PLAN.step_at(position)
        position = step.after
        epoch = position.epoch + position.offset / 100
        times = (0.08, 0.01, 0.01, position.update / 10)
        left = 0.5 * (PLAN.updates - position.update)
        yield HistoryRow(
            position.update, epoch, step.stage, step.batch_size, 0.05, 1 / position.update, step.workers, *times, left
        )


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_has_a_line_per_epoch_stage_and_note() -> None:
    console = Console(file=io.StringIO(), width=20)
    display = make_display(console)
    display.handle(Started("digits", PLAN, Position()))
    for row in rows():
        if row.update == 5:
            display.handle(Note("workers 1 → 2 after update 4,\n  pause 31 ms"))
        display.handle(row)
        if row.update == 4:
            display.handle(EvaluationRow(4, 1.0, 0.4, 0.5, {"accuracy": 0.875}))
        if row.update == 5:
            display.handle(EvaluationRow(5, 1.5, 0.5, 0.25, {}))
    display.handle(Stopped())
    display.handle(Stopped())
    expected = """\
digits starts: 2 epochs, 6 updates, 2 stages
stage 1 of 2: batch 25, learning rate 0.05, workers 1
epoch 1 of 2: update 4, loss 0.2500, test loss 0.5000, accuracy 0.8750, batch 25, workers 1, 0.4 s
workers 1 → 2 after update 4, pause 31 ms
stage 2 of 2: batch 50, learning rate 0.05, workers 2
update 5: test loss 0.2500
epoch 2 of 2: update 6, loss 0.1667, batch 50, workers 2, 0.6 s
done after update 6, 0.6 s
"""
    assert written(console) == expected


def test_a_log_says_where_a_resumed_run_goes_on_and_where_a_stopped_one_stood() -> None:
    console = Console(file=io.StringIO())
    display = make_display(console)
    display.handle(Started("digits", PLAN, PLAN.position_at(4)))
    display.handle(next(rows(first=5)))
    display.handle(Stopped())
    first, *_, last = written(console).splitlines()
    assert first == "digits goes on after update 4: 2 epochs, 6 updates, 2 stages"
    assert last == "stopped after update 5, 0.5 s"


def test_a_log_has_a_line_for_each_look_that_changed_the_batch() -> None:
    """After the line of the epoch that it ended, with the evaluation."""
    console = Console(file=io.StringIO(), width=20)
    display = make_display(console)
    display.handle(Started("digits", PLAN, Position()))
    first, *_, last = (row for row in rows() if row.update <= 4)
    for row, before in ((first, 25), (last, 50)):
        display.handle(row)
        display.handle(Looked(GrowthRow(row.update, row.epoch, 61.5, 50, 50), "noise scale", before, PLAN, ()))
    display.handle(EvaluationRow(4, 1.0, 0.4, 0.5, {}))
    display.handle(Looked(GrowthRow(4, 1.0, 61.5, 75, 75), "noise scale", 50, PLAN, ()))
    lines = written(console).splitlines()
    assert lines[2] == "update 1: batch 25 → 50, noise scale 61.5"
    assert lines[3].startswith("epoch 1 of 2: update 4, loss 0.2500, test loss 0.5000")
    assert lines[4:] == ["update 4: batch 50 → 75, noise scale 61.5"]


@pytest.mark.parametrize(
    ("judged", "why"),
    [
        (BestEvaluation(1, 0.5, 4, 1, 1), "in 1 evaluation, accuracy was not better than 0.5 of epoch 1"),
        (BestEvaluation(1, misses=3), "in 3 evaluations, accuracy was not finite"),
    ],
)
def test_a_log_says_why_a_run_ends_early(small_job: Any, judged: BestEvaluation, why: str) -> None:
    """And that it is done, since nothing is left of it."""
    console = Console(file=io.StringIO())
    display = make_display(console)
    display.handle(Started("digits", PLAN, Position()))
    for row in rows():
        if row.update <= PLAN.until(1).updates:
            display.handle(row)
    spec = small_job("evaluation.stopEarly={metric: accuracy, mode: Maximize, patience: 1}").spec
    display.handle(EndedEarly(PLAN.until(1), spec, judged))
    display.handle(Stopped())
    *_, reason, last = written(console).splitlines()
    assert f"ending early, after epoch 1 of 4: {why}" == reason
    assert last.startswith(f"done after update {PLAN.until(1).updates}, ")


def test_a_log_has_the_epochs_that_are_trained_again() -> None:
    console = Console(file=io.StringIO(), width=20)
    display = make_display(console)
    display.handle(Started("digits", PLAN, Position()))
    for row in rows():
        display.handle(row)
    display.handle(Undone("worker 1 differs", 6, Position(), PLAN))
    for row in rows():
        display.handle(row)
    display.handle(Undone("worker 1 differs", 6, Position(), PLAN))
    display.handle(Stopped())
    lines = [line.partition(":")[0] for line in written(console).splitlines()[1:]]
    trained = ["stage 1 of 2", "epoch 1 of 2", "stage 2 of 2", "epoch 2 of 2"]
    undone = "worker 1 differs; 6 updates are undone, back to the beginning"
    assert lines == [*trained, undone, *trained, undone], "and nothing is done after update 6"


def test_square_brackets_in_a_log_stay() -> None:
    console = Console(file=io.StringIO())
    make_display(console).handle(Note("worker [red]3[/red] was lost"))
    assert written(console) == "worker [red]3[/red] was lost\n"


def test_a_terminal_shows_a_bar_with_the_current_numbers() -> None:
    console, clock = terminal(), Clock()
    display = make_display(console, clock)
    display.handle(Started("digits", PLAN, Position()))
    for row in rows():
        clock.now += 1.0
        display.handle(row)
        if row.update == 4:
            display.handle(EvaluationRow(4, 1.0, 0.4, 0.5, {"accuracy": 0.875}))
    display.handle(Stopped())
    shown = written(console)
    for part in ("digits", "12%", "epoch 1.5/2", "update 5/6", "stage 2/2", "batch 50  workers 2", "loss 0.2000"):
        assert part in shown
    assert "test loss 0.5000, accuracy 0.8750" in shown
    assert "25 examples/s" in shown
    assert re.findall(r"[\d.]+ s left", shown)[:2] == ["2.5 s left", "2.0 s left"]
    assert "100%" in shown[shown.rindex("digits") :]


def test_a_terminal_is_redrawn_at_most_eight_times_a_second() -> None:
    console, clock = terminal(), Clock()
    display = Live(console, clock)
    display.handle(Started("digits", PLAN, Position()))
    row = next(rows())
    for _ in range(2000):
        clock.now += 0.001
        display.handle(row)
    display.handle(Stopped())
    assert 14 <= written(console).count("epoch 0.2/2") <= 18


def test_a_terminal_shows_the_pace_and_the_place_after_an_undo() -> None:
    console, clock = terminal(), Clock()
    display = make_display(console, clock)
    display.handle(Started("digits", PLAN, Position()))
    for row in rows():
        clock.now += 1.0
        display.handle(row)
    before = len(written(console))
    display.handle(Undone("worker 1 differs", 6, Position(), PLAN))
    clock.now += 0.5
    display.handle(next(rows()))
    display.handle(Stopped())
    shown = written(console)[before:]
    assert shown.index("0%") < shown.index("12%")
    assert "50 examples/s" in shown


def test_a_note_on_a_terminal_stays_above_the_bar() -> None:
    console, clock = terminal(), Clock()
    display = Live(console, clock)
    display.handle(Started("digits", PLAN, Position()))
    display.handle(Note("workers 1 → 2 after update 4, pause 31 ms"))
    display.handle(Stopped())
    assert written(console).count("workers 1 → 2 after update 4, pause 31 ms") == 1


def test_the_cursor_is_restored() -> None:
    console = terminal()
    display = Live(console, Clock())
    display.handle(Started("digits", PLAN, Position()))
    display.handle(Stopped())
    display.handle(Stopped())
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert written(console).count(hidden) == written(console).count(shown) == 1


def test_the_pace_follows_a_change() -> None:
    console, clock = terminal(), Clock()
    display = Live(console, clock)
    display.handle(Started("digits", PLAN, Position()))
    for row, seconds in zip(rows(), [1.0, 10.0, 10.0, 10.0, 10.0, 10.0], strict=True):
        clock.now += seconds
        display.handle(row)
    paces = [float(pace) for pace in re.findall(r"([\d.]+) examples/s", written(console))]
    display.handle(Stopped())
    assert paces[0] == 25.0
    assert 2.0 <= paces[3] <= 5.0


@pytest.mark.parametrize(
    ("console", "kind"), [(terminal(), Live), (Console(file=io.StringIO()), Lines)], ids=["terminal", "log"]
)
def test_the_display_fits_the_console(console: Console, kind: type[Sink]) -> None:
    assert isinstance(make_display(console), kind)


NOTES = [
    (Note("asked to stop,\n  twice"), "asked to stop, twice"),
    (ResizeRow(1090, 1, 2, 0.0684), "update 1,090: workers 1 → 2, a pause of 68 ms"),
    (
        Undone("worker 1 differs", 312, Position(1088, 2, 0), PLAN),
        "worker 1 differs; 312 updates are undone, back to update 1,088, which a check covers",
    ),
    (
        Undone("worker 1 differs", 12, Position(), PLAN),
        "worker 1 differs; 12 updates are undone, back to the beginning",
    ),
    (Recovered(1090, "lost\none"), "update 1,090: lost one; going on from the last committed update"),
    (CheckpointFailed("no room"), "checkpoint failed: no room"),
    (Waiting("a worker"), "waiting for a worker"),
]
SILENT = [ExchangeFigures(bytes_sent=9, backups=1), WorkersReady(2), CheckpointSaved(1, 0.1, 9),
          Finished("5f")]  # fmt: skip


@pytest.mark.parametrize("console", [terminal, lambda: Console(file=io.StringIO())], ids=["terminal", "log"])
def test_each_event_is_one_line_or_none(console: Callable[[], Console]) -> None:
    shown = console()
    display = make_display(shown)
    for event in (*SILENT, *(event for event, _ in NOTES)):
        display.handle(event)
    assert [line for _, line in NOTES] == written(shown).splitlines()

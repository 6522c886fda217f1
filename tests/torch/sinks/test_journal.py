"""What a run's journal holds, and how it lives with a disk that is full."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.record.history import HistoryRow, ResizeRow
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.sinks.events import Finished, Journal, Note, Recovered, Started, Stopped

Job = Callable[..., Any]


@pytest.fixture
def plan(small_job: Job) -> Plan:
    return make_plan(small_job().spec)


def row(update: int) -> HistoryRow:
    return HistoryRow(update, update / 10, 0, 25, 0.05, 1.0, 1, 0.1, 0.0, 0.0, update / 10)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_what_happened_and_when(tmp_path: Path, plan: Plan) -> None:
    written = Journal(tmp_path)

    for event in (
        Started("job", plan, Position()),
        row(1),
        row(2),
        ExchangeFigures(bytes_sent=5),
        Recovered(2, "a worker was lost"),
    ):
        written.handle(event)
    for event in (ResizeRow(2, 2, 1, 0.25), Stopped()):
        written.handle(event)
    again = Journal(tmp_path)
    for event in (Started("job", plan, plan.position_at(1)), row(2), Finished("abc"), Stopped()):
        again.handle(event)

    assert [(line["update"], line["event"], line["message"]) for line in lines(tmp_path)] == [
        (0, "Started", "started"),
        (2, "Recovered", "update 2: a worker was lost; going on from the last committed update"),
        (2, "ResizeRow", "update 2: workers 2 → 1, a pause of 250 ms"),
        (2, "Stopped", "the trainer ended"),
        (1, "Started", "resumed after update 1"),
        (2, "Finished", "finished; weights SHA-256 abc"),
        (2, "Stopped", "the trainer ended"),
    ]
    times = [line["time"] for line in lines(tmp_path)]
    assert times == sorted(times)
    assert times[0].endswith("Z")


def test_what_a_full_disk_does_not_take_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_RETRY_SECONDS", 0.0)
    written, folder = Journal(tmp_path / "away"), tmp_path / "away"

    written.handle(Note("first"))
    folder.mkdir()
    written.handle(Note("second"))

    assert [line["message"] for line in lines(folder)] == ["first", "second"]


def test_a_disk_that_takes_half_a_line_leaves_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_RETRY_SECONDS", 0.0)
    written = Journal(tmp_path)

    written.handle(Note("first"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "journal.jsonl").stat().st_size + 20, hard))
    try:
        written.handle(Note("second"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [line["message"] for line in lines(tmp_path)] == ["first"]
    written.handle(Note("third"))

    assert [line["message"] for line in lines(tmp_path)] == ["first", "second", "third"]


def test_the_file_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LONGEST_BYTES", 1000)
    written = Journal(tmp_path)

    for number in range(100):
        written.handle(Note(f"note {number}"))

    older = (tmp_path / "older-journal.jsonl").read_text().splitlines()
    numbers = [int(json.loads(line)["message"].split()[1]) for line in older] + [
        int(line["message"].split()[1]) for line in lines(tmp_path)
    ]
    assert numbers == [*range(numbers[0], 100)]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1200

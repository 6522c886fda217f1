"""The lines of the operator's log about a status that changes."""

from batchgrowth.contract.status import STAGE_BEGAN, JobStatus, StageRecord, WorkersStatus
from batchgrowth_operator.job.announcements import changes, events_between


def stage(index: int, batch_size: int, start_time: str = "2026-11-20T10:00:00Z") -> StageRecord:
    return StageRecord.model_construct(index=index, batch_size=batch_size, start_time=start_time)


def test_a_stage_has_one_line_when_it_begins() -> None:
    first = JobStatus.model_construct(phase="Running", history=(stage(0, 32),), conditions=(), restarts=0, workers=None)
    second = first.model_copy(update={"history": (stage(0, 32), stage(1, 64))})

    assert list(changes(first, second)) == ["stage 2 began with batch size 64"]
    assert list(changes(second, second)) == []


def test_a_stage_that_begins_again_has_another_line_as_it_has_another_event() -> None:
    first = JobStatus.model_construct(phase="Running", history=(stage(0, 32),), conditions=(), restarts=0, workers=None)
    again = first.model_copy(update={"history": (stage(0, 32, "2026-11-20T11:00:00Z"),)})

    assert list(changes(first, again)) == ["stage 1 began with batch size 32"]
    assert [event.reason for event in events_between(first, again)] == [STAGE_BEGAN]


def test_workers_that_are_requested_and_those_that_joined_each_have_a_line() -> None:
    few = WorkersStatus(requested=1, ready=1)
    before = JobStatus.model_construct(phase="Running", history=(), conditions=(), restarts=0, workers=few)
    asked = before.model_copy(update={"workers": few.model_copy(update={"requested": 4})})
    there = before.model_copy(update={"workers": WorkersStatus(requested=4, ready=4, resize_seconds="6.100")})

    assert list(changes(before, asked)) == ["requests 4 workers instead of 1"]
    assert list(changes(asked, there)) == ["4 workers joined within 6.100 s of the request"]


def test_progress_alone_has_no_line() -> None:
    before = JobStatus.model_construct(phase="Running", history=(), conditions=(), restarts=1, workers=None)

    assert list(changes(before, before.model_copy(update={"restarts": 2}))) == ["restart 2 of the trainer"]
    assert list(changes(before, before.model_copy())) == []

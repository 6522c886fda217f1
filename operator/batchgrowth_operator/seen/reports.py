"""The trainer's report as it lies in its ConfigMap or with an ended pod, before it is compared with the job."""

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from batchgrowth import names
from batchgrowth.progress import Progress

from batchgrowth_operator.seen.observed import TRAINER, Object, Observed, endings_of


def report_of(config_map: Object | None) -> Progress | None:
    """The report; None before the first one. Raises ValueError, naming the field, if the text is not a report."""
    text = _text_of(config_map)
    return None if text is None else _read(text)


def newest_report(seen: Observed) -> Progress | None:
    """The newest report of the job's trainers; None before the first one.

    A trainer that comes to its end repeats its last report as its pod's termination message, since just then the
    ConfigMap may be deleted, or the API server refuse the report. Raises ValueError, naming the field, if the
    ConfigMap's text is not a report.
    """
    written = report_of(seen.child("ConfigMap", names.progress(seen.name)))
    known = [*_repeated(seen), *([] if written is None else [written])]
    return max(known, key=lambda report: (report.start, report.update), default=None)


def mark_of(config_map: Object | None) -> Hashable:
    """What changes in a trainer's report when it has trained: the start and the update; None without a report."""
    try:
        report = report_of(config_map)
    except ValueError:
        return _text_of(config_map)
    return None if report is None else (report.start, report.update)


def news_of(config_map: Object) -> Hashable:
    """What a trainer's ConfigMap says besides how far its training is within a stage; equal as long as it goes on."""
    metadata = config_map["metadata"]
    marks = {name: metadata.get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    try:
        report = report_of(config_map)
    except ValueError:
        return str(marks), _text_of(config_map)
    return str(marks), None if report is None else str(_without_position(report))


def _without_position(report: Progress) -> Progress:
    """The report without what changes while a training goes on; that its pace is known remains."""
    return replace(
        report, update=0, epoch=0.0, learning_rate=0.0, loss=None, metrics={}, eta_seconds=None, checkpoint_update=None,
        exchanged=None,
        forecast=None if report.forecast is None else replace(report.forecast, due_seconds=None),
        seconds_per_update=None if report.seconds_per_update is None else 1.0,
    )  # fmt: skip


def _repeated(seen: Observed) -> Iterator[Progress]:
    for pod in seen.pods_of(TRAINER, deleted=True):
        for ending in endings_of(pod):
            if ending["exitCode"] == 0 and ending.get("message"):
                with suppress(ValueError):  # by a trainer of another version, or by a user's code
                    yield _read(ending["message"])


def _text_of(config_map: Object | None) -> str | None:
    return ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)


@lru_cache(maxsize=64)  # a pass reads a report several times, and few passes run at once
def _read(text: str) -> Progress:
    return Progress.from_json(text)

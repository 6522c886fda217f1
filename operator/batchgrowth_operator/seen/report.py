"""The trainer's report as it lies in its ConfigMap or with an ended pod.

seen/progress.py checks whether it fits the job, and job/status.py writes what it says into the status.
"""

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from batchgrowth import names
from batchgrowth.contract.progress import Progress

from batchgrowth_operator.seen.observed import Object, Observed, endings_of


def report_of(config_map: Object | None) -> Progress | None:
    """Return the report in the trainer's ConfigMap; None before the first one.

    Raises ValueError, naming the field, if the text is not a report.
    """
    text = text_of(config_map)
    if text is None:
        return None
    return _read(text)


def newest_report(seen: Observed) -> Progress | None:
    """Return the newest report of the job's trainers; None before the first one.

    A trainer that ends repeats its last report as its pod's termination message, in case its last write to the
    ConfigMap failed. Raises ValueError, naming the field, if the ConfigMap's text is not a report.
    """
    written = report_of(seen.child("ConfigMap", names.progress(seen.name)))
    known = []
    for pod in seen.trainer_pods:
        for ending in endings_of(pod):
            if ending["exitCode"] == 0 and ending.get("message"):
                with suppress(ValueError):  # by a trainer of another version, or by a user's code
                    known.append(_read(ending["message"]))
    if written is not None:
        known.append(written)
    return max(known, key=lambda report: report.age, default=None)


def mark_of(config_map: Object | None) -> Hashable:
    """Return the start and the position in the trainer's report, which change as it trains; None without a report.

    A report that cannot be read is its own mark.
    """
    try:
        report = report_of(config_map)
    except ValueError:
        return text_of(config_map)
    if report is None:
        return None
    return report.age


def news_of(config_map: Object) -> Hashable:
    """Return the content of a trainer's ConfigMap without mere progress: it changes only if something else is new."""
    metadata = config_map["metadata"]
    marks = {name: metadata.get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    try:
        report = report_of(config_map)
    except ValueError:
        return str(marks), text_of(config_map)
    if report is None:
        return str(marks), None
    # Without what changes while a training goes on; that its pace is known remains.
    lasting = replace(
        report, update=0, epoch=0.0, learning_rate=0.0, loss=None, metrics={}, eta_seconds=None, checkpoint_update=None,
        exchanged=None, beat=None,
        forecast=None if report.forecast is None else replace(report.forecast, due_seconds=None),
        seconds_per_update=None if report.seconds_per_update is None else 1.0,
    )  # fmt: skip
    return str(marks), str(lasting)


def text_of(config_map: Object | None) -> str | None:
    """Return the text of the report in the trainer's ConfigMap; None before the first one."""
    return ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)


@lru_cache(maxsize=64)  # a pass reads a report several times, and few passes run at once
def _read(text: str) -> Progress:
    return Progress.from_json(text)

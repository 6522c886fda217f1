"""The trainer's report as it lies in its ConfigMap, before it is compared with the job."""

from collections.abc import Hashable

from batchgrowth import names
from batchgrowth.progress import Progress

from batchgrowth_operator.seen.observed import Object


def mark_of(config_map: Object | None) -> Hashable:
    """What changes in a trainer's report when it has trained: the start and the update; None without a report."""
    text = ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)
    try:
        report = None if text is None else Progress.from_json(text)
    except ValueError:
        return str(text)
    return None if report is None else (report.start, report.update)

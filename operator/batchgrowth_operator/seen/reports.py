"""The trainer's report as it lies in its ConfigMap, before it is compared with the job."""

from collections.abc import Hashable
from functools import lru_cache

from batchgrowth import names
from batchgrowth.progress import Progress

from batchgrowth_operator.seen.observed import Object


def report_of(config_map: Object | None) -> Progress | None:
    """The report; None before the first one. Raises ValueError, naming the field, if the text is not a report."""
    text = _text_of(config_map)
    return None if text is None else _read(text)


def mark_of(config_map: Object | None) -> Hashable:
    """What changes in a trainer's report when it has trained: the start and the update; None without a report."""
    try:
        report = report_of(config_map)
    except ValueError:
        return _text_of(config_map)
    return None if report is None else (report.start, report.update)


def _text_of(config_map: Object | None) -> str | None:
    return ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)


@lru_cache(maxsize=64)  # a pass reads a report several times, and few passes run at once
def _read(text: str) -> Progress:
    return Progress.from_json(text)

"""Log levels and formats, the same for every command and every pod."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum


class LogLevel(StrEnum):
    """The least severe messages that are logged; debug also opens the logs of Dask and kopf."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"

    @property
    def number(self) -> int:
        """The level as the logging module counts it."""
        return logging.getLevelNamesMapping()[self.value.upper()]


class LogFormat(StrEnum):
    """One line of text per message, for people, or one JSON object, for log collectors."""

    text = "text"
    json = "json"


def configure_logs(level: LogLevel, log_format: LogFormat = LogFormat.text) -> None:
    """Sends every log of this process to stderr, in place of what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format))
    logging.basicConfig(level=level.number, handlers=[handler], force=True)


def _formatter(log_format: LogFormat) -> logging.Formatter:
    if log_format is LogFormat.text:
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    from pythonjsonlogger.json import JsonFormatter

    return JsonFormatter(
        "%(asctime)s%(levelname)s%(name)s%(message)s",
        rename_fields={"asctime": "timestamp", "levelname": "level", "name": "logger"},
    )

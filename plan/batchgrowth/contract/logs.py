"""Log levels and formats, the same for every command and every pod."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

LEVEL_VARIABLE, FORMAT_VARIABLE = "BATCHGROWTH_LOG_LEVEL", "BATCHGROWTH_LOG_FORMAT"


class LogLevel(StrEnum):
    """The least severe messages to log; debug and info include those of Dask and kopf."""

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


@dataclass(frozen=True, slots=True)
class Logs:
    """What a process logs, and in which format."""

    level: LogLevel = LogLevel.warning
    format: LogFormat = LogFormat.text

    @property
    def detailed(self) -> bool:
        """Whether the level is debug or info, at which Dask's log is opened."""
        return self.level.number <= logging.INFO

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which another process logs the same way."""
        return {LEVEL_VARIABLE: self.level.value, FORMAT_VARIABLE: self.format.value}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """The settings in the variables, defaults for those that are missing. Raises ValueError for any other value."""
        level = environment.get(LEVEL_VARIABLE, LogLevel.warning).lower()
        log_format = environment.get(FORMAT_VARIABLE, LogFormat.text).lower()
        try:
            return cls(LogLevel(level), LogFormat(log_format))
        except ValueError as error:
            raise ValueError(
                f"{LEVEL_VARIABLE}={level}, {FORMAT_VARIABLE}={log_format}; "
                f"give one of {', '.join(LogLevel)} and one of {', '.join(LogFormat)}"
            ) from error


DEFAULT_LOGS = Logs()


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

"""Log levels and formats, the same for every command and every pod."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

LEVEL_VARIABLE = "BATCHGROWTH_LOG_LEVEL"
FORMAT_VARIABLE = "BATCHGROWTH_LOG_FORMAT"
DASK_LEVEL_VARIABLE = "DASK_LOGGING__DISTRIBUTED"
"""Dask's own variable for the level of its log, which a scheduler without this package follows too."""


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"

    @property
    def number(self) -> int:
        """Return the level as the logging module counts it."""
        return logging.getLevelNamesMapping()[self.value.upper()]


class LogFormat(StrEnum):
    """One line of text per message, for people, or one JSON object, for log collectors."""

    text = "text"
    json = "json"


@dataclass(frozen=True, slots=True)
class Logs:
    """The level and the format of a process's log; Dask's messages have a separate level."""

    level: LogLevel = LogLevel.warning
    format: LogFormat = LogFormat.text
    dask_level: LogLevel = LogLevel.warning

    @property
    def detailed(self) -> bool:
        """Return whether one of the levels is debug or info; then workers of this machine log too."""
        return min(self.level.number, self.dask_level.number) <= logging.INFO

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that make another process log the same way."""
        return {
            LEVEL_VARIABLE: self.level.value,
            FORMAT_VARIABLE: self.format.value,
            DASK_LEVEL_VARIABLE: self.dask_level.value,
        }

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the settings in the variables, with defaults for missing variables. Raise ValueError for an unknown
        value.
        """
        level = environment.get(LEVEL_VARIABLE, LogLevel.warning).lower()
        log_format = environment.get(FORMAT_VARIABLE, LogFormat.text).lower()
        dask_level = environment.get(DASK_LEVEL_VARIABLE, LogLevel.warning).lower()
        try:
            return cls(LogLevel(level), LogFormat(log_format), LogLevel(dask_level))
        except ValueError as error:
            raise ValueError(
                f"{LEVEL_VARIABLE}={level}, {FORMAT_VARIABLE}={log_format}, {DASK_LEVEL_VARIABLE}={dask_level}; "
                f"give one of {', '.join(LogLevel)} and one of {', '.join(LogFormat)}"
            ) from error


DEFAULT_LOGS = Logs()


def configure_logs(level: LogLevel, log_format: LogFormat = LogFormat.text) -> None:
    """Send every log of this process to stderr, instead of where it went before."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormat.text:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        from pythonjsonlogger.json import JsonFormatter  # an installation of the plan alone does not have it

        handler.setFormatter(
            JsonFormatter(
                "%(asctime)s%(levelname)s%(name)s%(message)s",
                rename_fields={"asctime": "timestamp", "levelname": "level", "name": "logger"},
            )
        )
    logging.basicConfig(level=level.number, handlers=[handler], force=True)

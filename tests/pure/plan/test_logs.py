"""Logs, for people and for collectors."""

import json
import logging
from collections.abc import Iterator

import pytest
from batchgrowth.contract.logs import DEFAULT_LOGS, LogFormat, LogLevel, Logs, configure_logs


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.info)

    logging.getLogger("a.b").info("hello %s", "you")

    assert capsys.readouterr().err.endswith(" INFO a.b: hello you\n")


def test_json_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.debug, LogFormat.json)

    logging.getLogger("a.b").debug("hello")

    record = json.loads(capsys.readouterr().err)
    assert {k: record[k] for k in record if k != "timestamp"} == {"level": "DEBUG", "logger": "a.b", "message": "hello"}


def test_less_severe_messages_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.warning)

    logging.getLogger("a").info("hello")

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("logs", [DEFAULT_LOGS, Logs(LogLevel.debug, LogFormat.json), Logs(dask_level=LogLevel.error)])
def test_settings_travel_in_the_environment(logs: Logs) -> None:
    assert logs == Logs.of({"HOME": "/", **logs.environment})


def test_what_the_environment_leaves_out_is_the_default() -> None:
    assert Logs.of({}) == DEFAULT_LOGS
    assert Logs(LogLevel.info) == Logs.of({"BATCHGROWTH_LOG_LEVEL": "INFO"})


@pytest.mark.parametrize("variable", ["BATCHGROWTH_LOG_LEVEL", "BATCHGROWTH_LOG_FORMAT", "DASK_LOGGING__DISTRIBUTED"])
def test_an_unknown_setting_is_named(variable: str) -> None:
    with pytest.raises(ValueError, match=rf"{variable}=loud.*; give one of debug, .* one of text, json"):
        Logs.of({variable: "loud"})


def test_details_are_debug_and_info() -> None:
    assert [LogLevel.debug, LogLevel.info] == [level for level in LogLevel if Logs(level).detailed]
    assert [LogLevel.debug, LogLevel.info] == [level for level in LogLevel if Logs(dask_level=level).detailed]

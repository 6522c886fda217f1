"""Logs, for people and for collectors."""

import json
import logging
from collections.abc import Iterator

import pytest
from batchgrowth.logs import LogFormat, LogLevel, configure_logs


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
    assert {"level": "DEBUG", "logger": "a.b", "message": "hello"} == {k: record[k] for k in record if k != "timestamp"}


def test_less_severe_messages_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.warning)

    logging.getLogger("a").info("hello")

    assert "" == capsys.readouterr().err

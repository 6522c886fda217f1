"""The starts of a trainer in the ConfigMap of its reports: each has its own number, and the newest alone reports."""

import json
import time
import urllib.error
from email.message import Message
from typing import Any

import pytest
from batchgrowth.contract.progress import Progress
from batchgrowth.errors import ClusterError, Interrupted, Superseded
from batchgrowth.names import LAST_START, PROGRESS_KEY, START_KEY
from batchgrowth_trainer.sinks.report import Reporter, _Claims, numbered


class ConfigMap:
    """A ConfigMap of an API server, which refuses a patch of an outdated version, or one whose test fails."""

    def __init__(self) -> None:
        self.version, self.data, self.annotations = 1, dict[str, str](), dict[str, str]()

    def answer(self, method: str, body: Any = None, kind: str = "merge-patch") -> bytes:
        if method == "GET":
            metadata = {"resourceVersion": str(self.version), "annotations": self.annotations}
            return json.dumps({"metadata": metadata, "data": self.data}).encode()
        if kind == "json-patch":
            for step in body:
                key = step["path"].removeprefix("/data/")
                if step["op"] == "test" and self.data.get(key) != step["value"]:
                    raise urllib.error.HTTPError("", 422, "the test failed", Message(), None)
                self.data[key] = step["value"]
        else:
            if body["metadata"]["resourceVersion"] != str(self.version):
                raise urllib.error.HTTPError("", 409, "changed", Message(), None)
            self.data |= body["data"]
        self.version += 1
        return b""


@pytest.mark.fault("C25", "B14")
def test_only_the_newest_start_reports() -> None:
    kept = ConfigMap()
    first, second = _Claims(kept.answer), _Claims(kept.answer)
    assert first.make() == 0
    first.report("of the first")
    assert second.make() == 1, "though the first has reported no number that can be read"

    with pytest.raises(Superseded, match="start 1 of the trainer reports for the job; this one, start 0, ends"):
        first.report("too late")

    assert kept.data[PROGRESS_KEY] == "of the first"
    second.report("of the second")
    assert kept.data[PROGRESS_KEY] == "of the second"


@pytest.mark.fault("C25")
def test_two_that_count_at_once_get_two_numbers() -> None:
    kept = ConfigMap()
    first, second = _Claims(kept.answer), _Claims(kept.answer)
    config_map = first._read()
    assert second.make() == 0
    with pytest.raises(OSError, match="409"):
        first._write(config_map, 0)
    assert first.make() == 1


def test_a_config_map_that_was_lost_is_claimed_again() -> None:
    kept = ConfigMap()
    kept.annotations[LAST_START] = "4"
    claims = _Claims(kept.answer)
    assert claims.make() == 5
    kept.data.clear()
    claims.report("again")
    assert kept.data == {START_KEY: "5", PROGRESS_KEY: "again"}


def test_what_is_refused_otherwise_is_tried_again() -> None:
    def answer(method: str, body: Any = None, kind: str = "merge-patch") -> bytes:
        if kind == "json-patch":
            raise urllib.error.HTTPError("", 503, "busy", Message(), None)
        return kept.answer(method, body, kind)

    kept = ConfigMap()
    with pytest.raises(OSError, match="503"):
        _Claims(answer).report("never")


def test_a_start_without_a_number_drives_nothing() -> None:
    numbers = iter([OSError("away"), 3])

    def count() -> int:
        number = next(numbers)
        if isinstance(number, OSError):
            raise number
        return number

    def away() -> int:
        raise OSError("no route to host")

    assert numbered(count, lambda: False) == 3
    with pytest.raises(ClusterError, match="does not number this start"):
        numbered(away, lambda: False, patience=-1)
    with pytest.raises(Interrupted):
        numbered(away, lambda: True)


@pytest.mark.fault("C25")
def test_a_superseded_reporter_says_so_and_does_not_try_again() -> None:
    def refuse(text: str) -> None:
        raise Superseded("start 2 reports")

    said, began = list[Superseded](), time.monotonic()
    reporter = Reporter(refuse, lambda: 1, said.append)
    assert reporter._try(report(), tries=5)
    assert list(map(str, said)) == ["start 2 reports"]
    assert time.monotonic() - began < 1


def report() -> Progress:
    return Progress(update=1, updates=9, epoch=0.1, epochs=1, stage=0, batch_size=8, learning_rate=0.1, workers=1)

"""Messages survive both transports: Dask's events, and the results of calls."""

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import BatchDecision
from batchgrowth.position import Position
from batchgrowth_trainer.pool.membership import membership_plugin
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.worker.messages import (
    EvaluationReport,
    GenerationBegan,
    Joined,
    Leaving,
    Left,
    Message,
    RowsReport,
    decode,
    encode,
)
from distributed.protocol import dumps, loads

ROW = HistoryRow(
    update=7, epoch=1 / 3, stage=1, batch_size=16, learning_rate=0.1, loss=0.7, workers=2,
    compute_seconds=1e-3, exchange_seconds=2e-4, wait_seconds=0.0, seconds=0.0, committed_at=1.7e9 + 1 / 7,
)  # fmt: skip
LOOKED = replace(ROW, decision=BatchDecision(7, 32, 610.5))
MESSAGES = [
    RowsReport((ROW, LOOKED, replace(ROW, decision=BatchDecision(7, 32, float("inf"))))),
    RowsReport((ROW, ROW), ExchangeFigures(bytes_sent=1 << 40, mean_staleness=1.5, replica_distance=float("inf"))),
    RowsReport(()),
    EvaluationReport(Position(7, 1, 3), {"loss": float("inf"), "accuracy": 1 / 3}, 1.7e9),
    GenerationBegan(3, 7, 1, None),
    GenerationBegan(3, 7, 0, 0.25),
    Leaving("tcp://127.0.0.1:1"),
    Joined("tcp://127.0.0.1:1"),
    Left("tcp://127.0.0.1:1"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_an_event_or_a_call(message: Message) -> None:
    assert message == decode(loads(dumps(encode(message))))
    assert message == pickle.loads(pickle.dumps(message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_event_is_plain_data(message: Message) -> None:
    def check(value: Any) -> None:
        assert type(value) in (dict, tuple, str, int, float, bool, type(None)), value
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
            check(part)

    check(encode(message))


@pytest.mark.parametrize("foreign", [{"kind": "gone"}, {"address": "tcp://127.0.0.1:1"}, {"kind": "rows"}, 7])
def test_anything_else_is_refused(foreign: Any) -> None:
    with pytest.raises(ValueError):
        decode(foreign)


def test_the_scheduler_plugin_sends_what_the_driver_decodes() -> None:
    sent: list[Any] = []
    scheduler = SimpleNamespace(log_event=lambda topic, plain: sent.append((topic, decode(plain))))
    plugin = pickle.loads(cloudpickle.dumps(membership_plugin("topic")))
    plugin.add_worker(scheduler, "a")
    plugin.remove_worker(scheduler, "a", stimulus_id="why")
    assert [("topic", Joined("a")), ("topic", Left("a"))] == sent

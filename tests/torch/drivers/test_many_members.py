"""A thousand workers as the driver of AllReduce sees them: what a regrouping sends, and what a death costs."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.choices import EXCHANGES
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.generations import GenerationsDriver
from batchgrowth_trainer.pool.membership import Ended, Event
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.worker.messages import GenerationBegan, Left, MemberOutcome, Order, Prepared

EVERYONE = {
    f"tls://10.244.{k // 250}.{k % 250}:40000": Prepared(
        str(k), f"pod-{k}", "", (f"10.244.{k // 250}.{k % 250}", 4000), Arithmetic()
    )
    for k in range(1000)
}
DIES = list(EVERYONE)[40]
SPEC = SimpleNamespace(patience_seconds=60, exchange=SimpleNamespace(entry=EXCHANGES["AllReduce"]))


class OverError(Exception):
    """Ends the driver's loop."""


class WorkerPool:
    """Workers that begin at once and end at once; in generation `deadly` one dies and all others lose it."""

    run_id = "run"

    def __init__(self, deadly: int) -> None:
        self.ready, self.leaving, self.calls = dict(EVERYONE), set[str](), self
        self.orders: list[dict[str, Order]] = []
        self.noted = Counter[tuple[str, str]]()
        self.asked: list[set[str]] = []
        self._deadly = deadly

    def submit(self, address: str, _function: Any, _run_id: str, order: Order) -> Any:
        if len(self.orders) < order.generation:
            self.orders.append({})
        self.orders[-1][address] = order
        return SimpleNamespace(add_done_callback=lambda _: None, cancel=lambda: None, status="finished")

    def notify(self, function: Callable[..., Any], *_: Any, worker: str) -> None:
        self.noted[function.__name__, worker] += 1

    def drain_events(self, _seconds: float, handle: Callable[[Event], None]) -> None:
        for event in self._events():
            handle(event)

    def _events(self) -> Iterator[Event]:
        number, orders = len(self.orders), self.orders[-1]
        deadly = number == self._deadly
        for address, order in orders.items():
            if not (deadly and address == DIES):
                yield GenerationBegan(number, 0, order.assignment.rank, 0.5)
        if deadly:
            self.ready.pop(DIES)
            yield Left(DIES)
        done: Any = SimpleNamespace(status="finished")
        for address in orders:
            if not (deadly and address == DIES):
                yield Ended(address, number, done, MemberOutcome(0, lost="rank 40 is gone" if deadly else ""))

    def restart_unresponsive(self, addresses: list[str], _note: Any, _save: Any) -> None:
        self.asked.append(set(addresses))

    def on_outcome(self, _address: str, _generation: int) -> Callable[[Any], None]:
        return lambda _: None

    def follow(self, _event: Any) -> None: ...
    def admit_held(self, _update: int) -> None: ...
    def restart(self, addresses: Any, _note: Any) -> None:
        assert not addresses

    def hung(self) -> set[str]:
        return set()

    def answering(self, addresses: list[str]) -> set[str]:
        return set(addresses)


def test_a_thousand_workers_regroup() -> None:
    """250 of them, then all, of which one dies; each order is small, and each survivor is notified once."""
    pool, resizes, recoveries = WorkerPool(deadly=3), list[tuple[int, int]](), list[str]()
    run: Any = SimpleNamespace(
        spec=SPEC, where="run, update 0", totals=SimpleNamespace(evaluated=0),
        reported=0, decisions=(), saved_update=0, update=0, position=Position(),
        plan=SimpleNamespace(is_done=lambda _: False), stop_requested=lambda: False, checkpoint_due=lambda: False,
        checkpoint_after=lambda _: None, go_on_from=lambda _: None, evaluation_due=lambda _: False, note=lambda _: None,
        record_resize=lambda _update, old, new, _pause: resizes.append((old, new)), record_recovery=recoveries.append,
        try_saving=lambda _size: None, saved_before_errors=lambda _save: nullcontext(),
    )  # fmt: skip
    wanted = iter([250, 1000, 1000, 999])

    def gather(_handle: Any, _updates: Any) -> list[str]:
        if (count := next(wanted, None)) is None:
            raise OverError
        return list(pool.ready)[:count]

    scaling: Any = SimpleNamespace(
        gather=gather, tick=lambda _: None, reason_to_regroup=lambda _: "", ends_at=lambda _: 1000
    )

    with pytest.raises(OverError):
        GenerationsDriver(run, pool, scaling, "127.0.0.1").train()  # type: ignore[arg-type]

    assert [len(orders) for orders in pool.orders] == [250, 1000, 1000, 999]
    assert resizes == [(250, 1000), (1000, 999)]
    assert recoveries == ["1 of 1000 workers were lost"]
    survivors = [address for address in EVERYONE if address != DIES]
    assert Counter({("cancel_generation", address): 1 for address in survivors}) == pool.noted
    assert [set(survivors)] == pool.asked
    for orders in pool.orders:
        members = list(orders)
        for rank, (address, order) in enumerate(orders.items()):
            given = order.assignment
            assert (rank, len(members)) == (given.rank, given.size)
            assert all(EVERYONE[members[peer]].listens_at == address for peer, address in given.addresses.items())
            assert all(rank in orders[members[peer]].assignment.addresses for peer in given.addresses), address
        assert 2e6 > sum(len(pickle.dumps(order)) for order in orders.values())

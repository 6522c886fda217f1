"""One operator of the machine: the real store, observer, writer and pass, behind watches that lag, skip and repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_operator.api import cache, client, leader, observe
from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Key, Store, Sweep
from batchgrowth_operator.api.client import JOBS, WATCHED, Refused
from batchgrowth_operator.api.events import RETRY_SECONDS, EventPoster
from batchgrowth_operator.api.leader import Leadership
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.one_pass import Reconciler
from batchgrowth_operator.loop.queue import PassResult, ProgressRate
from batchgrowth_operator.seen.observed import Ref, ref_of
from batchgrowth_operator.settings import Defaults, LeaseLock
from controllers import JOB
from model_api import NAMESPACE, START, Body, Client, Killed, Server, is_watched

KEY = Key(NAMESPACE, JOB)
DEFAULT_IMAGE = "example/default:1"


class Clock:
    """The clocks that the operator's modules read: the true seconds, and the wall clock of the running instance."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.offset = timedelta()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(client, "time", self)
        patch.setattr(observe, "time", self)
        patch.setattr(leader, "time", self)
        patch.setattr(cache, "time", self)
        patch.setattr(cache, "GRACE_SECONDS", 0)

    def monotonic(self) -> float:
        return self.server.seconds

    def now(self, zone: Any = None) -> datetime:
        return START + timedelta(seconds=self.server.seconds) + self.offset

    def time(self) -> float:
        return self.now().timestamp()


class Inline(ThreadPoolExecutor):
    """Runs each call at once, in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*given, **named))
        except BaseException as error:  # noqa: BLE001  (the caller gets it)
            done.set_exception(error)
        return done


class Instance:
    """A process that is killed and started again under one name. Only the leader makes passes."""

    def __init__(
        self, name: str, server: Server, clock: Clock, runner: asyncio.Runner, telemetry: OperatorMetrics
    ) -> None:
        self.name, self.server, self.clock, self.runner = name, server, clock, runner
        self._telemetry = telemetry
        self.before_write: Callable[[Instance, str, Ref, Body], None] = lambda *_: None
        self.offset = timedelta()
        self.view = SimpleNamespace(job=None, children={})
        self.passes = 0
        server.watchers.append(self._watch)
        self.start()

    def start(self) -> None:
        """A new process, which has read every object before its first pass."""
        self.clock.offset = self.offset
        self.life = object()
        self.began: tuple[float, datetime] | None = None  # its first pass: the true seconds and the API server's time
        self.client = Client(self.server, lambda *write: self.before_write(self, *write))
        self.store, self.leads = Store(), False
        self.leadership = Leadership(needs_lease=True)
        self.failures: tuple[Any, ...] = ()
        self._seen_lease: tuple[Body | None, float] = (None, self.server.seconds)
        self.poster = EventPoster(self.client, lambda: self.leadership.seconds_left)  # type: ignore[arg-type]
        writer = Writer(self.client, self.store, self.poster, self.poster.seconds_left)  # type: ignore[arg-type]
        observer = Observer(self.client, self.store)  # type: ignore[arg-type]
        rate = ProgressRate(Defaults(image=DEFAULT_IMAGE, checkpoint_size="2Gi"))
        self._pass = Reconciler(observer, writer, rate, self._telemetry).make_pass
        self._sweep = Sweep(self.client, self.store)  # type: ignore[arg-type]
        self.pending: dict[Ref, list[tuple[str, Body]]] = {}
        for body in self.server.objects.values():
            if is_watched(body):
                self.store.update(body)

    def _watch(self, kind: str, body: Body) -> None:
        self.pending.setdefault(ref_of(body), []).append((kind, body))

    def deliver(self, ref: Ref | None = None) -> None:
        """Delivers the events of an object in their order, as its watch does, or of all objects."""
        for each in [ref] if ref is not None else list(self.pending):
            for kind, body in self.pending.pop(each, ()):
                if kind == "DELETED":
                    self.store.remove(body)
                else:
                    self.store.update(body)

    def lose(self, ref: Ref) -> None:
        """The watch was down while the object changed, and lists what is there when it is back."""
        self.pending.pop(ref, None)
        found = self.server.get(ref)
        if found is not None and is_watched(found):
            self.store.update(found)

    def sweep(self) -> None:
        """The sweep of every minute."""
        for kind in JOBS | WATCHED:
            self.runner.run(self._sweep.sweep(kind))

    def hold_lease(self) -> None:
        """One round of the election."""
        self.clock.offset = self.offset
        lock, held = LeaseLock(NAMESPACE, "operators", self.name), self.client.get_lease(NAMESPACE, "operators")
        if held != self._seen_lease[0]:
            self._seen_lease = held, self.server.seconds
        wanted = leader.lease_to_write(lock, held, self.server.seconds - self._seen_lease[1], self.clock.now())
        if wanted is None:
            if self.leads:
                self.start()
            return
        try:
            self._seen_lease = self.client.put_lease(wanted), self.server.seconds
        except Refused:
            return
        self.leadership.extend(self.server.seconds)
        self.leads = True

    def run_pass(self) -> PassResult:
        """One pass of the leader, until a kill that is due; does nothing for another instance."""
        if not self.leads:
            return PassResult()
        self.clock.offset = self.offset
        self.view = SimpleNamespace(job=self.store.job(KEY), children=self.store.children(KEY))
        self.passes += 1
        self.client.refusals = 0
        self.began = self.began or (self.server.seconds, self.server.now)
        try:
            result: PassResult = self.runner.run(self._pass(KEY, self.failures))
            pause: float | None = 0.0
            while pause is not None and pause < RETRY_SECONDS:
                pause = self.poster.post_next()
        except Killed:
            self.start()
            return PassResult()
        self.failures = result.failures
        return result

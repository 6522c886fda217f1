"""Trouble of every kind at random moments of a job that trains, and what it cost.

Each fault is something that a user, a node or another controller may do through the API. What explains it afterwards
is the run's own record: its history and its journal.
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

from real_job import Object, RealJob, until

from cluster.release import NAMESPACE

KILLED = ("--grace-period=0", "--force")
BACK_SECONDS = 300
"""The longest that a fault may keep a training from going on, in seconds."""
PRODUCTIVE = ("compute", "exchange", "wait")
LAST_SECONDS = 3600
"""The longest that a job may take to its end after the last fault, in seconds."""
MOST_WORKERS = 4
LONGEST_GAP = 3
"""A gap between two faults is at most this many times the mean."""
STALL_SECONDS = 6.0
"""A time without updates that needs an explanation; the history is written every other second."""
LATE_SECONDS = 10.0
"""A line of the journal explains a stall if it is at most so long before or after it."""


class Watch:
    """When the run's history file grew, as (wall-clock time, updates done)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: list[tuple[float, int]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches until the end of the block."""
        over = Event()
        thread = Thread(target=self._watch, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: Event) -> None:
        while not over.wait(0.2):
            update = self._last_update()
            if update and update != self.update:
                self.seen.append((time.time(), update))

    @property
    def update(self) -> int:
        """Updates in the file when it last grew; 0 before."""
        return self.seen[-1][1] if self.seen else 0

    def file(self, name: str) -> Path | None:
        """The run's file of that name; None if it is not there."""
        return next((path for path in self._folder.rglob(name) if "earlier" not in path.parts), None)

    def _last_update(self) -> int:
        path = self.file("history.csv")
        if path is None:
            return 0
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 400))
            rows = file.read().rpartition(b"\n")[0].splitlines()
        number = rows[-1].partition(b",")[0] if rows else b""
        return int(number) if number.isdigit() else 0

    def productive_seconds(self) -> float:
        """Time spent in the updates that count: computing, exchanging and waiting for each other."""
        path = self.file("history.csv")
        assert path is not None
        with path.open() as file:
            return sum(float(row[f"{part}Seconds"]) for row in csv.DictReader(file) for part in PRODUCTIVE)

    def journal(self) -> list[Object]:
        """The lines of the journal, each with its time in seconds since 1970."""
        path = self.file("journal.jsonl")
        assert path is not None
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line | {"time": datetime.fromisoformat(line["time"]).timestamp()} for line in lines]


class Chaos:
    """Faults of a job from a seed, for so many seconds and until `fewest` struck; `gap` is the mean time between two.

    At last the job may have all its workers again. There are that many suspensions, each after `between` other faults.
    `struck` are the faults with their times; `suspended` are the suspensions, each from its request until training went
    on.
    """

    def __init__(
        self,
        job: RealJob,
        watch: Watch,
        *,
        seed: int,
        gap: float,
        between: int,
        suspensions: int,
        seconds: float,
        fewest: int = 0,
    ) -> None:
        self.job, self.watch = job, watch
        self._gap, self._between, self._seconds, self._fewest = gap, between, seconds, fewest
        self.struck: list[tuple[float, str]] = []
        self.suspended: list[tuple[float, float]] = []
        self._chance, self._suspensions = random.Random(seed), suspensions

    def faults(self) -> dict[str, tuple[int, Callable[[], Any]]]:
        """The faults by name, each with its weight among the others."""
        name = self.job.name
        return {
            "a worker is deleted": (5, lambda: self._pod("worker")),
            "a worker is killed": (5, lambda: self._pod("worker", *KILLED)),
            "the trainer is deleted": (1, lambda: self._pod("trainer")),
            "the trainer is killed": (1, lambda: self._pod("trainer", *KILLED)),
            "the scheduler is killed": (1, lambda: self._pod("scheduler", *KILLED)),
            "the operator is killed": (3, self._operator),
            "the Dask cluster is deleted": (1, lambda: self._delete("daskcluster", name)),
            "the workers' Deployment is deleted": (1, lambda: self._delete("deployment", f"{name}-workers")),
            "the report is deleted": (1, lambda: self._delete("configmap", f"{name}-progress")),
            "the plan is deleted": (1, lambda: self._delete("configmap", f"{name}-plan")),
            "the certificates are deleted": (1, lambda: self._delete("secret", f"{name}-tls")),
            "another scales the workers": (2, self._scale),
            "the bounds change": (2, self._bounds),
        }

    def run(self) -> Object:
        """Injects faults, each kind once before any is repeated; returns the job's status at its end."""
        faults, end = self.faults(), time.monotonic() + self._seconds
        bag = self._chance.sample([*faults], len(faults))
        while self._trains_on(min(self._chance.expovariate(1 / self._gap), LONGEST_GAP * self._gap)):
            if time.monotonic() > end and len(self.struck) >= self._fewest:
                break
            due = self._between * (len(self.suspended) + 1)
            if len(self.suspended) < self._suspensions and len(self.struck) >= due:
                self._suspend()
                continue
            name = bag.pop() if bag else self._chance.choices([*faults], [weight for weight, _ in faults.values()])[0]
            self.struck.append((time.time(), name))
            faults[name][1]()
            self._goes_on()
        self.job.patch(workers={"maximum": MOST_WORKERS})
        return self.job.succeeds(LAST_SECONDS)

    def _trains_on(self, seconds: float) -> bool:
        """Waits; False once the job has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._over():
                return False
            time.sleep(0.5)
        return True

    def _over(self) -> bool:
        return self.job.status.get("phase") in ("Succeeded", "Failed")

    def _goes_on(self) -> None:
        """Waits until the history has grown twice, so that the fault had the time to act."""
        grown = len(self.watch.seen) + 2
        until("further updates", lambda: len(self.watch.seen) >= grown or self._over(), BACK_SECONDS, self.job.story)

    def _pod(self, role: str, *how: str) -> None:
        pods = until(f"a {role}", lambda: self.job.pods(role), BACK_SECONDS, self.job.story)
        self._delete("pod", self._chance.choice(pods)["metadata"]["name"], *how)

    def _delete(self, kind: str, name: str, *how: str) -> None:
        self.job.in_namespace("delete", kind, name, "--ignore-not-found", "--wait=false", *how)

    def _operator(self) -> None:
        selector = "--selector=app.kubernetes.io/name=batchgrowth"
        self.job.kubectl("--namespace", NAMESPACE, "delete", "pod", selector, "--wait=false", *KILLED)

    def _scale(self) -> None:
        replicas = self._chance.randint(0, 4)
        self.job.in_namespace("scale", f"deployment/{self.job.name}-workers", f"--replicas={replicas}")

    def _bounds(self) -> None:
        self.job.patch(workers={"maximum": self._chance.randint(1, MOST_WORKERS)})

    def _suspend(self) -> None:
        began = time.time()
        self.job.suspend()
        self.job.patch(suspend=False)
        grown = len(self.watch.seen)
        until("a resumed training", lambda: len(self.watch.seen) > grown, BACK_SECONDS, self.job.story)
        self.suspended.append((began, time.time()))

    # --- the reckoning ------------------------------------------------------------------------------------------------

    def goodput(self) -> float:
        """The share of the time since the first update in which updates that count were made; suspensions apart."""
        seen = self.watch.seen
        suspended = sum(end - began for began, end in self.suspended)
        return self.watch.productive_seconds() / (seen[-1][0] - seen[0][0] - suspended)

    def stalls(self) -> Iterator[tuple[float, float]]:
        """The times without updates, from the last that was seen to the next; suspensions apart."""
        for (before, _), (after, _) in pairwise(self.watch.seen):
            resumed = any(began - LATE_SECONDS < before and after <= end for began, end in self.suspended)
            if after - before > STALL_SECONDS and not resumed:
                yield before, after

    def unexplained(self) -> list[str]:
        """The stalls of which the run's journal says nothing."""
        times = [line["time"] for line in self.watch.journal()]
        return [
            f"{after - before:.0f} s after {self._fault_before(after)}"
            for before, after in self.stalls()
            if not any(before - LATE_SECONDS <= at <= after + LATE_SECONDS for at in times)
        ]

    def lost_by_suspensions(self) -> list[float]:
        """For each suspension, the seconds of work between the last update before it and where training resumed."""
        pace, journal = self.watch.productive_seconds() / self.watch.update, self.watch.journal()
        suspended = ([line for line in journal if began <= line["time"] <= end] for began, end in self.suspended)
        return [pace * self._lost(within) for within in suspended]

    @staticmethod
    def _lost(within: list[Object]) -> int:
        """The updates between the last one before training resumed and the one after which it did."""
        started = next(at for at in reversed(range(len(within))) if within[at]["event"] == "Started")
        return int(max(line["update"] for line in within[: started + 1]) - within[started]["update"])

    def _fault_before(self, at: float) -> str:
        return next((f"{name}, {at - when:.0f} s before" for when, name in reversed(self.struck) if when < at), "none")

    def account(self) -> str:
        """What was done and what it cost, for people."""
        seen = self.watch.seen
        lines = [f"{seen[-1][0] - seen[0][0]:.0f} s, {self.watch.update} updates, goodput {self.goodput():.3f}"]
        lines += [f"stall of {after - before:.1f} s: {self._fault_before(after)}" for before, after in self.stalls()]
        lines += [f"suspended for {end - began:.0f} s" for began, end in self.suspended]
        return "\n".join((*lines, *(f"{at - seen[0][0]:.0f} s: {name}" for at, name in self.struck)))

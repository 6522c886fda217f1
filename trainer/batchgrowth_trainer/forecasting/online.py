"""The remaining time of a run, from a fit to its own updates so far.

The fit is the same as in `batchgrowth forecast --fit`, so the remaining time counts the batches and workers of later
stages. Fits run in a thread of their own and take at most a hundredth of the time; training never waits for one, but
looks the time up in the newest.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from batchgrowth.forecast.course_time import NOTHING_LEFT, Outlook, RemainingTime, remaining_time
from batchgrowth.plan import Plan, Stage

from batchgrowth_trainer.forecasting.fitting import BLOCKS, WARM_UPDATES, Cell, constants_of
from batchgrowth_trainer.record.history import HistoryRow

NUM_DRAWS = 20
"""Fewer than for a forecast on the command line, since a run fits again and again."""
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
"""The longest pause between two fits; a pause is a tenth of the time since the first, FIRST_PAUSE_SECONDS or more."""
PAUSE_PER_FIT = 100
"""The least pause after a fit, as a multiple of the time that the fit took."""
LONG_UPDATE_SECONDS = 10.0
"""The time above which the first update of a run counts until there are others."""
MOST_EPOCH_ENDS = 64
"""Number of the newest epochs whose median gives the time between updates."""

log = logging.getLogger(__name__)

Kind = tuple[int, int, int]
"""Examples, shards and workers of an update."""


@dataclass(slots=True)
class RunPart:
    """The updates of a part of a run: by kind, their number, their seconds, and the seconds of these for computing."""

    updates: int = 0
    kinds: dict[Kind, tuple[int, float, float]] = field(default_factory=dict)

    def add(self, kind: Kind, updates: int, seconds: float, compute: float) -> None:
        """Add updates of one kind."""
        count, total, computing = self.kinds.get(kind, (0, 0.0, 0.0))
        self.kinds[kind] = count + updates, total + seconds, computing + compute
        self.updates += updates


class RunParts:
    """All updates of a run so far, in parts of equal length: at most twice `BLOCKS`, however many updates there are.

    The first updates, which load kernels and fill caches, count only until there are others; and the very first one,
    which may take a hundred times as long as any other, only if it takes more than LONG_UPDATE_SECONDS: then nobody
    would want to wait for the second.
    """

    def __init__(self) -> None:
        self._warming: list[tuple[Kind, float, float]] = []
        self._parts: list[RunPart] = [RunPart()]
        self._length = 1

    def add(self, kind: Kind, seconds: float, compute: float) -> None:
        """Add an update that took `seconds`, of them `compute` for computing."""
        if len(self._warming) < WARM_UPDATES:
            self._warming.append((kind, seconds, compute))
            return
        if self._parts[-1].updates == self._length:
            if len(self._parts) == 2 * BLOCKS:
                self._merge()
            self._parts.append(RunPart())
        self._parts[-1].add(kind, 1, seconds, compute)

    def _merge(self) -> None:
        """Make one part of every two."""
        pairs = zip(self._parts[::2], self._parts[1::2], strict=True)
        merged = []
        for first, second in pairs:
            for kind, sums in second.kinds.items():
                first.add(kind, *sums)
            merged.append(first)
        self._parts = merged
        self._length *= 2

    def cells(self, *, lone_exchange: bool = False) -> list[Cell]:
        """Return the mean times of each kind of update in each part; none after one update, unless it was long."""
        parts = self._parts
        if not parts[0].updates and self._warming:
            kind, seconds, compute = self._warming[-1]
            if len(self._warming) > 1 or seconds > LONG_UPDATE_SECONDS:
                parts = [RunPart(1, {kind: (1, seconds, compute)})]
        return [
            Cell(*kind, total / count, computing / count, lone_exchange)
            for part in parts
            for kind, (count, total, computing) in part.kinds.items()
            if total > 0
        ]


class Between:
    """The usual time per epoch between updates, for evaluations and checkpoints. A wait for workers is not usual."""

    def __init__(self) -> None:
        self._before: HistoryRow | None = None
        self._passed = 0.0
        self._epochs: list[float] = []

    def add(self, row: HistoryRow, took: float) -> None:
        """Add the time between this update, which took `took` seconds, and the one before."""
        before = self._before
        self._before = row
        if before is None:
            return
        self._passed += max(0.0, row.seconds - before.seconds - took)
        if before.epoch == int(before.epoch):  # an evaluation belongs to the epoch that has ended with it
            self._epochs = [*self._epochs[1 - MOST_EPOCH_ENDS :], self._passed]
            self._passed = 0.0

    @property
    def seconds(self) -> float:
        """Return the usual time between the updates of an epoch; 0 before the end of the first epoch."""
        return median(self._epochs) if self._epochs else 0.0


class OnlineForecast:
    """Fits constants to a run's updates while it trains, and says after each of them how much time is left."""

    def __init__(
        self,
        workers_of: Callable[[Plan, Stage], int],
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
        *,
        lone_exchange: bool = False,
    ) -> None:
        """Keep the arguments: `workers_of` says how many workers a stage of a plan is going to have.

        `start` begins a fit; by default it runs in a thread. `lone_exchange` says whether one worker exchanges, too.
        """
        self._lone_exchange = lone_exchange
        self._workers_of = workers_of
        self._clock = clock
        self._start = start or _in_a_thread
        self._parts = RunParts()
        self._between = Between()
        self._known: RemainingTime | None = None
        self._plan: Plan | None = None
        self._kind: tuple[int, int] | None = None  # stage and workers of the newest fit
        self._fitting = False
        self._began: float | None = None
        self._due = 0.0
        self._due_if_changed = 0.0

    def seen(self, row: HistoryRow, plan: Plan, *, is_newest: bool = True) -> Outlook | None:
        """Add an update, and return the time left after it by the newest fit; None before the first fit.

        `plan` is the one that is expected now. Rows come several at a time, and only the newest of them is worth a fit.
        """
        took = row.update_seconds
        self._parts.add((row.examples, row.shards, row.workers), took, row.compute_seconds)
        self._between.add(row, took)
        if row.update >= plan.updates:
            return Outlook(remaining=NOTHING_LEFT, update_seconds=took)
        now = self._clock()
        has_changed = plan is not self._plan or (row.stage, row.workers) != self._kind
        if is_newest and not self._fitting and now >= (self._due_if_changed if has_changed else self._due):
            self._fit(row, plan)
        known = self._known
        return None if known is None else known.after(row.update)

    def _fit(self, row: HistoryRow, plan: Plan) -> None:
        cells = self._parts.cells(lone_exchange=self._lone_exchange)
        if not cells:
            return
        between = self._between.seconds
        stage = plan.stage_at(row.update - 1).index

        def workers_of(ahead: Stage) -> int:
            # The workers that train now may be fewer than planned; those of later stages are yet to come.
            return row.workers if ahead.index == stage else self._workers_of(plan, ahead)

        def fit() -> None:
            began = self._clock()
            try:
                constants = constants_of(cells, between, "the run so far", NUM_DRAWS, lone_exchange=self._lone_exchange)
                self._known = remaining_time(plan, row.update, constants, workers_of)
            except Exception:  # no forecast is worth a traceback in the midst of a run
                log.debug("the time that is left is not forecast after update %d", row.update, exc_info=True)
            finally:
                now = self._clock()
                if self._began is None:
                    self._began = began
                pause = min(max((now - self._began) / 10, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                self._due_if_changed = now + PAUSE_PER_FIT * (now - began)
                self._due = max(now + pause, self._due_if_changed)
                self._fitting = False

        self._fitting = True
        self._plan = plan
        self._kind = (row.stage, row.workers)
        self._start(fit)


def _in_a_thread(fit: Callable[[], None]) -> None:
    threading.Thread(target=fit, name="forecast", daemon=True).start()

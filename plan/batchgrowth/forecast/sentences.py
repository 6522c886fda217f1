"""The answers of a forecast, gathered once: as tables and sentences for people, and as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from batchgrowth.errors import counted
from batchgrowth.forecast.answers import Candidates, ScalabilityLaw, laws, with_reclaims
from batchgrowth.forecast.course_time import HOUR, RunTime, StageTime, run_time
from batchgrowth.forecast.prices import Offer
from batchgrowth.forecast.step_time import Constants, Estimated
from batchgrowth.plan import Plan, constant_plan
from batchgrowth.spec import JobSpec
from batchgrowth.terminal import first_and_last

# --- Tables ---

_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time: its name, its abbreviation and its seconds."""

    name: str
    short: str
    seconds: float

    def text(self, seconds: Estimated) -> str:
        """Return the time with its interval: `69.4 (68.8–70)`."""
        return with_interval(seconds.times(1 / self.seconds))


UNITS = (Unit("seconds", "s", 1.0), Unit("minutes", "min", _MINUTE), Unit("hours", "h", HOUR))


def unit_of(seconds: float) -> Unit:
    """Return the unit in which this time is easy to read."""
    if seconds < 5 * _MINUTE:
        return UNITS[0]
    if seconds < 12 * HOUR:
        return UNITS[1]
    return UNITS[2]


def number(value: float) -> str:
    """Return a number to three significant digits or more: 0.0123, 1.23, 69.4, 1,234."""
    if value >= 100:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:.3g}"


def with_interval(estimated: Estimated) -> str:
    """Return a number with its interval."""
    return f"{number(estimated.value)} ({number(estimated.low)}–{number(estimated.high)})"


def forecast_columns(made: RunTime) -> list[str]:
    """Return the names of the columns."""
    names = ["stage", "epochs", "batch", "workers", "updates", "ms/update", unit_of(made.seconds.value).name]
    names.append("worker-h")
    if made.money is not None:
        names.append("$")
    return names


def forecast_table(made: RunTime) -> Table:
    """Return a table with a row per stage and one for the sum; a long plan shows its first and last stages only."""
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for name in forecast_columns(made):
        table.add_column(name, justify="right", no_wrap=True)
    for row in forecast_rows(made):
        table.add_row(*row)
    table.rows[-1].style = "bold"
    return table


def forecast_list(made: RunTime) -> str:
    """Return the rows below each other, for a terminal that is too narrow for the table."""
    names = forecast_columns(made)
    width = max(map(len, names))
    parts = []
    for row in forecast_rows(made):
        lines = zip(names, row, strict=False)
        parts.append("\n".join(f"{name:{width}} {value}" for name, value in lines if value))
    return "\n\n".join(parts)


def forecast_rows(made: RunTime) -> list[list[str]]:
    """Return a row per stage and one for the sum."""
    unit = unit_of(made.seconds.value)
    total = ["all", "", "", "", f"{made.updates:,}", f"{1000 * made.seconds.value / made.updates:.4g}"]
    total += [unit.text(made.seconds), *_costs(made.worker_hours, made.money)]
    return [*_rows(made, unit), total]


def _rows(made: RunTime, unit: Unit) -> list[list[str]]:
    first, hidden, last = first_and_last(made.stages)
    between = [["…", counted(hidden, "stage")]] if hidden else []
    return [*(_row(stage, unit) for stage in first), *between, *(_row(stage, unit) for stage in last)]


def _row(made: StageTime, unit: Unit) -> list[str]:
    stage = made.stage
    return [
        str(stage.index + 1),
        f"{float(stage.epoch_from):,.4g} – {float(stage.epoch_to):,.4g}",
        f"{stage.batch_size:,}",
        str(stage.workers),
        f"{stage.updates:,}",
        f"{1000 * made.update_seconds:.4g}",
        unit.text(made.seconds),
        *_costs(made.worker_hours, made.money),
    ]


def _costs(worker_hours: Estimated, money: Estimated | None) -> Sequence[str]:
    texts = [number(worker_hours.value)]
    if money is not None:
        texts.append(with_interval(money))
    return texts


# --- Sentences, and JSON ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a user asks of a forecast. Times in seconds; `worth` is the share of the time that a worker must save."""

    worth: float
    offer: Offer | None = None
    reclaim_every: float | None = None
    replaced_after: float

    @property
    def price(self) -> float | None:
        """Return what an hour of a worker costs, in dollars; None if the user named no price."""
        return None if self.offer is None else self.offer.worker_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasted:
    """A forecast with its answers.

    `constant` is the forecast of the same job with a constant batch; None if that takes as many updates. `knee` is the
    number of workers after which one more brings too little, and `laws` are fitted to the curve. `reclaimed` is the
    time with reclaimed workers; None if the user did not ask for it.
    """

    made: RunTime
    constant: RunTime | None
    candidates: Candidates
    knee: int
    laws: tuple[ScalabilityLaw, ...]
    reclaimed: Estimated | None
    questions: Questions

    @property
    def curve(self) -> Mapping[int, float]:
        """Return the seconds of the run by `workers.maximum`."""
        return self.candidates.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as `batchgrowth forecast --json` prints it."""
        found: dict[str, Any] = self.made.to_json()
        if self.questions.offer is not None:
            found["pricePerWorkerHour"] = self.questions.offer.worker_hour
        if self.constant is not None:
            found["constantBatch"] = {key: value for key, value in self.constant.to_json().items() if key in _TOTALS}
        found["knee"] = {
            "workers": self.knee,
            "seconds": self.curve[self.knee],
            "workerHours": self.candidates.worker_hours(self.knee),
        }
        found["curve"] = [{"workers": workers, "seconds": seconds} for workers, seconds in self.curve.items()]
        found["laws"] = [law.to_json() for law in self.laws]
        if self.reclaimed is not None:
            found["secondsWithReclaims"] = self.reclaimed.to_json()
        return found


_TOTALS = ("updates", "seconds", "workerHours", "money")


def forecasted(spec: JobSpec, plan: Plan, constants: Constants, questions: Questions) -> Forecasted:
    """Return the forecast of a job with all its answers."""
    price = questions.price
    candidates = Candidates(spec, plan, constants.step)
    never_grown = constant_plan(spec)
    constant = None
    if never_grown.updates != plan.updates:
        constant = run_time(never_grown, constants, price)
    reclaimed = None
    if questions.reclaim_every is not None:
        reclaimed = with_reclaims(spec, plan, constants, questions.reclaim_every, questions.replaced_after)
    return Forecasted(
        made=run_time(plan, constants, price),
        constant=constant,
        candidates=candidates,
        knee=candidates.knee(questions.worth),
        laws=laws(candidates.seconds),
        reclaimed=reclaimed,
        questions=questions,
    )


def sentences(found: Forecasted) -> Iterator[str]:
    """Yield what the table does not say, a sentence for each answer."""
    if found.constant is not None:
        yield _saving(found.made, found.constant)
    if len(found.curve) > 1:
        yield _knee(found)
    if found.reclaimed is not None:
        yield _reclaims(found, found.reclaimed)
    for law in found.laws:
        yield sentence_of(law, max(found.curve))
    if found.questions.offer is not None and found.questions.offer.instance is not None:
        yield f"price: {found.questions.offer}"
    batch = found.candidates.spec.batch
    if batch.growth.entry.quantity:
        yield (
            f"note: the batch follows the {batch.growth.entry.quantity}, which training measures; this is the forecast "
            f"of a batch that stays at {batch.initial:,}, with the most updates that the job may take"
        )
    yield f"constants: {found.made.constants.source}"
    for note in (*found.made.constants.notes, found.made.constants.exchange_note):
        if note:
            yield f"note: {note}"


def _saving(made: RunTime, constant: RunTime) -> str:
    unit = unit_of(made.seconds.value)
    ours = number(made.seconds.value / unit.seconds)
    theirs = number(constant.seconds.value / unit.seconds)
    money = ""
    if made.money is not None and constant.money is not None:
        money = f" and ${number(made.money.value)} instead of ${number(constant.money.value)}"
    first = constant.stages[0].stage
    return (
        f"growth: {ours} {unit.name} instead of {theirs}{money}; a constant batch of {first.batch_size:,} takes "
        f"{counted(constant.updates, 'update')} on {counted(first.workers, 'worker')}"
    )


def _knee(found: Forecasted) -> str:
    most = max(found.curve)
    unit = unit_of(found.made.seconds.value)
    percent = f"{100 * found.questions.worth:g} %"

    def of(maximum: int) -> str:
        hours = number(found.candidates.worker_hours(maximum))
        return f"{number(found.curve[maximum] / unit.seconds)} {unit.name} and {hours} worker-hours"

    if found.knee == most:
        return f"knee: none; up to workers.maximum {most}, one more worker shortens the run by {percent} or more"
    return (
        f"knee: workers.maximum {found.knee}, with {of(found.knee)}; beyond it, one more worker shortens the run by "
        f"less than {percent}, down to {of(most)} with {most}"
    )


def _reclaims(found: Forecasted, reclaimed: Estimated) -> str:
    unit = unit_of(found.made.seconds.value)
    every = (found.questions.reclaim_every or 0) / HOUR
    more = reclaimed.value / found.made.seconds.value - 1
    after = found.questions.replaced_after
    return (
        f"spot: {unit.text(reclaimed)} {unit.name}, {more:.1%} more, if each worker is reclaimed every {every:g} h and "
        f"replaced after {after:g} s"
    )


def sentence_of(law: ScalabilityLaw, most: int) -> str:
    """Return what a law says of up to `most` workers."""
    contention = with_interval(law.contention.times(100))
    told = f"{law.name}: contention {contention} %"
    if law.coherency.value > 0:
        low, high = law.peaks()
        told += (
            f", coherency {with_interval(law.coherency.times(100))} %, fastest with {number(law.peak)} workers "
            f"({number(low)} – {_number_or_more(high)})"
        )
    limit = "without bound"
    if not math.isinf(law.limit):
        low, high = law.limits()
        limit = f"at most {number(law.limit)} ({number(low)} – {_number_or_more(high)}) times as fast as one worker"
    efficiency = f"{with_interval(law.efficiencies(most).times(100))} % efficient with {most}"
    return f"{told}; {limit}, {efficiency}; the law misses the curve by {law.misfit:.1%}"


def _number_or_more(value: float) -> str:
    return "no bound" if math.isinf(value) else number(value)

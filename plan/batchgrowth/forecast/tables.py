"""What `batchgrowth forecast` prints for people."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from batchgrowth.errors import counted
from batchgrowth.forecast.course_time import HOUR, RunTime, StageTime
from batchgrowth.forecast.step_time import Estimated
from batchgrowth.streams import first_and_last

_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time: its name, its abbreviation and its seconds."""

    name: str
    short: str
    seconds: float

    def text(self, seconds: Estimated) -> str:
        """Return the time with its interval: `69.4 (68.8 – 70)`."""
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
    """Return a number of three digits or more: 0.0123, 1.23, 69.4, 1,234."""
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

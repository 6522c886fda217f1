"""Results as tables, on a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.results import Machine, Results, percentile, targets
from bench.rounds import Figures, Measured, Spread


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text: names in the first column, figures in the others."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def show(results: Results, console: Console) -> None:
    """Print the tables on a terminal."""
    console.print(about(results.machine, quick=results.quick), highlight=False)
    for sheet in _sheets(results):
        console.print(as_table(sheet), highlight=False)


def as_table(sheet: Sheet) -> Table:
    """The sheet for a terminal."""
    table = Table(title=sheet.title, caption=sheet.note or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(sheet.columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=not index)
    for row in sheet.rows:
        table.add_row(*row)
    return table


def markdown(results: Results) -> str:
    """The tables as Markdown, for docs/benchmarks.md."""
    return "\n\n".join([about(results.machine, quick=results.quick), *map(as_markdown, _sheets(results))])


def as_markdown(sheet: Sheet) -> str:
    """The sheet as Markdown."""
    rule = _line(["---", *("---:" for _ in sheet.columns[1:])])
    lines = [f"**{sheet.title}**", "", _line(sheet.columns), rule, *map(_line, sheet.rows)]
    return "\n".join([*lines, *(["", sheet.note] if sheet.note else [])])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def about(machine: Machine, *, quick: bool) -> str:
    """The first line of every output: where it was measured."""
    network = (
        "a loopback interface of its own" if machine.private_network else "the machine's shared loopback interface"
    )
    only = " Quick mode: these figures only say that everything runs." if quick else ""
    return (
        f"{machine.processor}, {machine.cores} cores; Python {machine.python}, torch {machine.torch}; {network}.{only}"
    )


def _sheets(results: Results) -> Iterator[Sheet]:
    for case in results.cases:
        yield _case_sheet(case)
    if results.epoch_ends:
        yield _epoch_end_sheet(results)
    if results.pauses:
        yield _pause_sheet(results)
    words = {True: "met", False: "missed", None: "-"}
    judged: list[tuple[str, ...]] = [(t.promise, t.measured, words[t.met]) for t in targets(results)]
    yield Sheet("Targets (medians over the rounds)", ("target", "measured", ""), judged)


def _case_sheet(case: Measured) -> Sheet:
    timed, rounds = case.updates - case.warm, "1 round" if case.rounds == 1 else f"{case.rounds} rounds"
    rounds += f" of {case.repeats} runs in turns" if case.repeats > 1 else ""
    workers = "1 worker" if case.workers == 1 else f"{case.workers} workers"
    title = f"{case.case}: batch {case.batch}, {workers}, {timed} timed updates after {case.warm}, {rounds}"
    first = case.figures[0].system
    columns: tuple[str, ...] = (
        "system", "shard", "ms per update: min", "median", "max", f"ratio to {first}: min", "median", "max",
    )  # fmt: skip
    rows = [_row(figures) for figures in case.figures]
    if case.workers > 1:
        columns = (*columns, "bytes per update")
        rows = [(*row, size(figures.sent)) for row, figures in zip(rows, case.figures, strict=True)]
    return Sheet(title, columns, rows, f"Shard: {case.why_shard}.")


def _row(figures: Figures) -> tuple[str, ...]:
    return (figures.system, str(figures.shard or "-"), *cells(figures.ms, 2), *cells(figures.ratio, 3))


def cells(numbers: Spread, digits: int) -> list[str]:
    """The minimum, the median and the maximum, as a table shows them."""
    return [f"{number:,.{digits}f}" for number in (numbers.least, numbers.middle, numbers.most)]


def size(number: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"


def _epoch_end_sheet(results: Results) -> Sheet:
    rows = [
        (f"{one.case}, {one.examples:,} examples", str(len(one.costs)), f"{one.update * 1e3:.2f}",
         *(f"{1e3 * percentile(one.costs, percent):.2f}" for percent in (0, 50, 95, 100)))
        for one in results.epoch_ends
    ]  # fmt: skip
    columns = ("one worker", "epoch ends", "an update", "more at an end: min", "median", "p95", "max")
    return Sheet("Epoch ends, without an evaluation, in ms", columns, rows)


def _pause_sheet(results: Results) -> Sheet:
    rows = []
    for one in results.pauses:
        for what, pauses in (("joins", one.joins), ("leaves", one.leaves)):
            figures = (*(percentile(pauses, p) for p in (50, 95, 99)), max(pauses))
            rows.append((f"{one.pattern}, {what}", str(len(pauses)), *(f"{1e3 * f:.1f}" for f in figures)))
    columns = ("workers", "resizes", "p50", "p95", "p99", "max")
    return Sheet("Pauses at joins and leaves, workers ready, in ms", columns, rows)

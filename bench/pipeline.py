"""`python -m bench.pipeline`: a pipeline of two stages beside one process and AllReduce, on the same shards.

The pipeline is a prototype: bench/stages.py. In a round every system runs once with each number of micro-batches, in
processes of its own, and all must end with the weights of one process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from batchgrowth.schedule.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from rich.console import Console

from bench import loopback
from bench.cases import Case, cases
from bench.report import Sheet, about, as_markdown, as_table, cells, size
from bench.results import Machine, this_machine, write
from bench.rounds import Spread, spread, turned
from bench.systems import ONE, OUR_REDUCE, System
from bench.trainers import WORLDS, Share, run


@dataclass(frozen=True, slots=True)
class Contest:
    """A case, the name of the module with which the second stage begins, and the numbers of micro-batches."""

    case: Case
    at: str
    micro_batches: tuple[int, ...] = (2, 4, 8)

    def job(self, micro_batches: int) -> BatchGrowthJob:
        """The job with as many shards in a whole batch."""
        return self.case.job(System(OUR_REDUCE, "AllReduce", self.case.batch // micro_batches))


@dataclass(frozen=True, slots=True)
class Entry:
    """A system with a number of micro-batches over all rounds; `ratio` is to one process in the same round.

    Of each process, `idle` is the part of the time in which it waited for the other one, `cpu_ms` the processor's time
    per update, `peak_mib` the memory. `sha256` are those of the weights, one if all rounds agree, and `is_same` says
    whether one process has the same.
    """

    system: str
    micro_batches: int
    ms: Spread
    ratio: Spread
    sent: float
    idle: list[Spread]
    cpu_ms: list[Spread]
    peak_mib: list[Spread]
    sha256: list[str]
    is_same: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """One model: its settings and its entries."""

    model: str
    at: str
    batch: int
    updates: int
    warm: int
    rounds: int
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Found:
    """All results; `quick` figures only say that everything runs."""

    machine: Machine
    quick: bool
    compared: list[Compared]


def contests(*, quick: bool) -> list[Contest]:
    """The models, cut so that both stages take about the same time; with `quick`, a few updates of small ones."""
    known = {case.name: case for case in cases(quick=False)}
    if quick:
        digits = replace(known["alone-digits-64"], of="", batch=512, epochs=2)  # with batch norm and dropout
        return [Contest(replace(known["mlp-64"], epochs=2, warm_epochs=1), "3", (4,)), Contest(digits, "3", (4,))]
    vgg = {"model": "vgg11", "examples": "128", "test": "2"}
    return [
        Contest(replace(known["mlp-64"], epochs=10), "3"),
        Contest(replace(known["wrn-64"], epochs=5, warm_epochs=1), "2.1"),
        Contest(
            replace(
                known["wrn-64"], model="vgg11", arguments=tuple(vgg.items()), examples=128, epochs=4, warm_epochs=1
            ),
            "15",
        ),
    ]


def main(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds per model; --quick takes 1.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A few updates, to see that everything runs.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="MODEL", help="mlp, wrn or vgg11; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
) -> None:
    """Measure a pipeline beside AllReduce and one process. The exit code is 1 if the weights differ."""
    every = {contest.case.model: contest for contest in contests(quick=quick)}
    if unknown := [name for name in only or [] if name not in every]:
        raise typer.BadParameter(f"--only {unknown[0]}: no such model; give one of {', '.join(every)}")
    progress = Console(stderr=True)

    def report(text: str) -> None:
        progress.print(text, style="dim", highlight=False)

    chosen = [contest for name, contest in every.items() if name in (only or every)]
    found = Found(this_machine(), quick, [compare(contest, 1 if quick else rounds, report) for contest in chosen])
    if output:
        write(found, output)
    first, sheets = about(found.machine, quick=quick), [_sheet(one) for one in found.compared]
    if markdown:
        print("\n\n".join([first, *map(as_markdown, sheets)]))
    else:
        console = Console(width=None if sys.stdout.isatty() else 180)
        console.print(first, highlight=False)
        for sheet in sheets:
            console.print(as_table(sheet), highlight=False)
    if not all(entry.is_same for one in found.compared for entry in one.entries):
        raise typer.Exit(1)


def compare(contest: Contest, rounds: int, report: Callable[[str], None]) -> Compared:
    """Every system with every number of micro-batches, once in each round; see bench.rounds for the order."""
    keys = list(product(contest.micro_batches, WORLDS))
    shares: dict[tuple[int, str], list[list[Share]]] = {key: [] for key in keys}
    for number in range(rounds):
        for count, system in turned(keys, number):
            found = run(system, contest.job(count).spec, contest.at, contest.case.warm)
            shares[count, system].append(found)
            ms = _ms(found)
            report(f"{contest.case.name}, round {number + 1} of {rounds}: {system}, {count} micro-batches {ms:.2f} ms")
    updates, case = make_plan(contest.job(1).spec).updates, contest.case
    entries = [_entry(system, count, shares[count, system], shares[count, ONE]) for count, system in keys]
    return Compared(case.model, contest.at, case.batch, updates, case.warm, rounds, entries)


def _entry(system: str, micro_batches: int, mine: list[list[Share]], alone: list[list[Share]]) -> Entry:
    by_process = list(zip(*mine, strict=True))
    digests, right = {one[0].sha256 for one in mine}, {one[0].sha256 for one in alone}
    return Entry(
        system=system,
        micro_batches=micro_batches,
        ms=spread([_ms(one) for one in mine]),
        ratio=spread([_ms(one) / _ms(other) for one, other in zip(mine, alone, strict=True)]),
        sent=min(one[0].sent for one in mine),
        idle=[spread([share.idle for share in shares]) for shares in by_process],
        cpu_ms=[spread([share.cpu_ms for share in shares]) for shares in by_process],
        peak_mib=[spread([share.peak_mib for share in shares]) for shares in by_process],
        sha256=sorted(digests),
        is_same=len(digests) == 1 and digests == right,
    )


def _ms(shares: list[Share]) -> float:
    """Milliseconds per update, by the clock of the process that ends last."""
    return max(share.ms for share in shares)


def _sheet(one: Compared) -> Sheet:
    rounds = "1 round" if one.rounds == 1 else f"{one.rounds} rounds"
    title = f"{one.model}: batch {one.batch}, {one.updates - one.warm} timed updates after {one.warm}, {rounds}"
    columns = (
        "system", "micro-batches", "ms per update: min", "median", "max", "ratio to one process: min", "median", "max",
        "bytes per update", "waits, %", "processor, ms", "peak memory, MiB", "same weights",
    )  # fmt: skip
    note = f"The second stage begins with the module {one.at}. Waits, processor and memory: the median of each process."
    return Sheet(title, columns, [_row(entry) for entry in one.entries], note)


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        entry.system,
        str(entry.micro_batches),
        *cells(entry.ms, 2),
        *cells(entry.ratio, 3),
        size(entry.sent),
        " / ".join(f"{100 * each.middle:.0f}" for each in entry.idle),
        " / ".join(f"{each.middle:.2f}" for each in entry.cpu_ms),
        " / ".join(f"{each.middle:.0f}" for each in entry.peak_mib),
        "yes" if entry.is_same else "NO",
    )


if __name__ == "__main__":
    loopback.enter_private_network("bench.pipeline", sys.argv[1:])
    typer.run(main)

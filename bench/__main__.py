"""`python -m bench`: measures, and prints tables with the targets last. The exit code does not depend on speed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from batchgrowth.errors import BatchGrowthError
from rich.console import Console

from bench import loopback

if TYPE_CHECKING:
    from bench.results import Results

PAUSES, EPOCH_ENDS = "pauses", "epoch-ends"

Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Rounds per case; --quick takes 1.")]
Repeats = Annotated[
    int | None,
    typer.Option(
        min=1, max=100, help="Runs of each system in a round, in turns; as many as the case has, if not given."
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny counts, to see that everything runs.")]
Only = Annotated[
    list[str] | None, typer.Option(metavar="CASE", help="A case's name, pauses or epoch-ends; may be repeated.")
]
System = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Compare this system with the first of a case, and no others; may be repeated."),
]
Output = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here.")]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE.json", help="Show these results instead of measuring.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")]


def bench(
    rounds: Rounds = 5,
    repeats: Repeats = None,
    quick: Quick = False,
    only: Only = None,
    system: System = None,
    output: Output = None,
    input_: Input = None,
    markdown: Markdown = False,
) -> None:
    """Measure this project beside plain torch, DDP and others: time and bytes per update, epoch ends, resizes."""
    from bench import report, results

    try:
        if input_:
            found = results.read(input_)
        else:
            found = _measure(1 if quick else rounds, repeats, quick, only or [], system or [])
    except BatchGrowthError as error:
        raise typer.BadParameter(str(error)) from error
    if output:
        results.write(found, output)
    if markdown:
        print(report.markdown(found))
    else:
        report.show(found, Console(width=None if sys.stdout.isatty() else 140))


def _measure(rounds: int, repeats: int | None, quick: bool, only: list[str], systems: list[str]) -> Results:
    from bench.cases import cases, epoch_end_cases
    from bench.results import Results, this_machine
    from bench.rounds import measure_cases, measure_epoch_ends, measure_pauses

    every = {case.name: replace(case, repeats=repeats or case.repeats) for case in cases(quick=quick)}
    names = [*every, EPOCH_ENDS, PAUSES]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise BatchGrowthError(f"--only {unknown[0]}: no such case; give one of {', '.join(names)}")
    only = only or names
    chosen = [case for name, case in every.items() if name in only]
    known = dict.fromkeys(system.name for case in chosen for system in case.systems())
    if strange := [name for name in systems if name not in known]:
        raise BatchGrowthError(f"--system {strange[0]}: no case has it; give one of {', '.join(known)}")
    progress = Console(stderr=True)

    def report(text: str) -> None:
        progress.print(text, style="dim", highlight=False)

    measured = measure_cases(chosen, rounds, report, systems)
    ends = measure_epoch_ends(epoch_end_cases(quick=quick), report) if EPOCH_ENDS in only else []
    pauses = measure_pauses(4 if quick else 44, report) if PAUSES in only else []
    return Results(this_machine(), quick, measured, pauses, ends)


if __name__ == "__main__":
    loopback.enter_private_network("bench", sys.argv[1:])
    typer.run(bench)

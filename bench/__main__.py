"""`python -m bench`: measure, and print tables with the targets last. The exit code does not depend on speed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench import loopback

PAUSES = "pauses"
EPOCH_ENDS = "epoch-ends"
STARTS = "starts"
CHECKS = "checks"

Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Rounds per case; --quick takes 1.")]
Repeats = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Runs of each system in a round, in turns; by default as many as the case has."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny counts, to see that everything runs.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="CASE", help="A case's name, starts, checks, pauses or epoch-ends; may be repeated."),
]
Systems = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Compare this system with the first of a case, and no others; may be repeated."),
]
Output = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here, too.")]


def main(
    rounds: Rounds = 5,
    repeats: Repeats = None,
    quick: Quick = False,
    only: Only = None,
    system: Systems = None,
    output: Output = None,
) -> None:
    """Measure this project beside plain torch, DDP and others: time and bytes per update, starts, checks, resizes."""
    from bench import checks, epoch_ends, pauses, starts
    from bench.cases import cases, checked_cases, epoch_end_cases, start_cases
    from bench.ours import workers_ready
    from bench.results import Results, show_results
    from bench.rounds import measure_cases
    from bench.tables import write

    every = {case.name: replace(case, repeats=repeats or case.repeats) for case in cases(quick=quick)}
    names = _checked("--only", only, [*every, STARTS, CHECKS, EPOCH_ENDS, PAUSES])
    chosen = [case for name, case in every.items() if name in names]
    if system:
        _checked("--system", system, list(dict.fromkeys(each.name for case in chosen for each in case.systems)))
    resizes = 44
    if quick:
        rounds = 1
        resizes = 4

    def report(text: str) -> None:
        print(text, file=sys.stderr)

    found = Results(quick, measure_cases(chosen, rounds, report, system or []))
    if STARTS in names:
        found.starts.extend(starts.measure(start_cases(quick=quick), rounds, report))
    if CHECKS in names:
        for case in checked_cases(quick=quick):
            report(f"checks: {case.name}")
            found.checks.append(checks.measure(case))
    if EPOCH_ENDS in names:
        with workers_ready(1) as scheduler:
            for case in epoch_end_cases(quick=quick):
                report(f"epoch ends: {case.name}")
                found.epoch_ends.append(epoch_ends.measure(case, scheduler))
    if PAUSES in names:
        for pattern in pauses.PATTERNS:
            report(f"pauses: {pattern.name}, {resizes} resizes")
            with workers_ready(pattern.most) as scheduler:
                found.pauses.append(pauses.measure(pattern, scheduler, resizes))
    if output:
        write(found, output)
    show_results(found)


def _checked(option: str, given: list[str] | None, known: list[str]) -> list[str]:
    for name in given or []:
        if name not in known:
            raise typer.BadParameter(f"{option} {name}: there is none; give one of {', '.join(known)}")
    return given or known


if __name__ == "__main__":
    loopback.enter_private_network("bench", sys.argv[1:])
    typer.run(main)

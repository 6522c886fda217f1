"""`python -m bench.cs744`: the four tasks of a report on distributed training, its published speed-ups beside ours.

A. Navani, J. Weile and R. U. Chakwate, CS744 Big Data Systems, assignment 2, University of Wisconsin-Madison, 2022.
VGG-11 on CIFAR-10 with a batch of 256: one machine, then four machines over gloo in three ways, without GPUs. Here it
is one process, then two processes of one machine with one thread each, on images of noise in the shape of CIFAR-10's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench import loopback
from bench.cases import DDP, GATHERED, ONE, OUR_GATHER, OUR_REDUCE, REDUCED, cases
from bench.rounds import Figures, Measured, measure_cases
from bench.tables import about, show, write

CASE = "all-vgg11-256"


@dataclass(frozen=True, slots=True)
class ReportTask:
    """A task of the report: its published seconds per update, and the systems that do the same here."""

    number: str
    what: str
    published: float
    torch: str
    ours: str = ""


REPORT_TASKS = (
    ReportTask("1", "one machine", 1.855, ONE),
    ReportTask("2a", "gather and scatter", 1.304, GATHERED, OUR_GATHER),
    ReportTask("2b", "all_reduce", 0.932, REDUCED, OUR_REDUCE),
    ReportTask("3", "DistributedDataParallel", 0.664, DDP),
)
"""The tasks; Table 1 of the report has their seconds, and speed-ups of 1, 1.4, 2.0 and 2.8."""
COLUMNS = ("task", "what", "report: s", "speed-up", "torch here: s", "speed-up", "batchgrowth: s", "speed-up")


def table_rows(measured: Measured) -> list[tuple[str, ...]]:
    """Return the rows of the table, each speed-up being the median of ratios within a round; none if a task is missing.

    Ratios are to DDP in the same round, so a speed-up over one process is a quotient of two medians.
    """
    found = {one.system: one for one in measured.figures}
    if any(task.torch not in found for task in REPORT_TASKS):
        return []
    single = found[ONE]
    return [
        (
            task.number, task.what, f"{task.published:.3f}", f"{REPORT_TASKS[0].published / task.published:.1f}",
            *_cells(found.get(task.torch), single), *_cells(found.get(task.ours), single),
        )
        for task in REPORT_TASKS
    ]  # fmt: skip


def _cells(figures: Figures | None, single: Figures) -> tuple[str, str]:
    """Return the seconds per update, and how many times faster than one process."""
    if figures is None:
        return "", ""
    return f"{figures.ms.middle / 1000:.3f}", f"{single.ratio.middle / figures.ratio.middle:.2f}"


def show_tasks(measured: Sequence[Measured]) -> None:
    """Print the table if its case was measured with all of its systems."""
    for one in measured:
        rows = table_rows(one) if one.case == CASE else []
        if rows:
            there = f"VGG-11, batch {one.batch}; 4 machines there, {one.workers} processes here"
            show(f"The four tasks of the CS744 report: {there}", COLUMNS, rows)


def main(
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; each takes some minutes.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny counts, to see that everything runs.")] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here, too.")] = None,
) -> None:
    """Run the four tasks of the CS744 report with plain torch and with batchgrowth, and print them as one table."""
    (case,) = (one for one in cases(quick=quick) if one.name == CASE)
    systems = [name for task in REPORT_TASKS for name in (task.torch, task.ours) if name]
    (measured,) = measure_cases([case], rounds, lambda text: print(text, file=sys.stderr), systems)
    if output:
        write(measured, output)
    print(about(quick=quick))
    show_tasks([measured])


if __name__ == "__main__":
    loopback.enter_private_network("bench.cs744", sys.argv[1:])
    typer.run(main)

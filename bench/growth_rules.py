"""`python -m bench.growth_rules`: does growth that is measured help? Every rule against constant and declared batches.

Each trains the same network on the same digits, in this process, once for each seed. A seed is finished for all before
the next begins, so an interrupted run leaves results that can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from batchgrowth.errors import BatchGrowthError
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from bench.growth_trials import CONV_NET, TINY_NET, Contestant, seconds_per_shard, settings, trial
from bench.report import Sheet, as_markdown, as_table
from bench.results import write


@dataclass(frozen=True, slots=True)
class Comparison:
    """The contestants after as many seeds as are finished, and the epochs that each trained."""

    epochs: int
    contestants: list[Contestant]


def compare(network: str, seeds: int, epochs: int, finished: Callable[[int, Comparison], None]) -> Comparison:
    """Every contestant with the seeds 0 to `seeds` - 1; `finished` receives each seed and the results so far."""
    found = Comparison(epochs, [Contestant(name, []) for name in settings(epochs)])
    for seed in range(seeds):
        for one in found.contestants:
            one.trials.append(trial(one.name, network, epochs, seed))
        finished(seed, found)
    return found


def sheet(found: Comparison) -> Sheet:
    """The results as a table: means over the seeds, the accuracy with its standard error."""
    unit, trials = seconds_per_shard(found.contestants), len(found.contestants[0].trials)
    columns = ("growth", "accuracy, %", "training loss", "updates", "worker-seconds", "seconds")
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            f"{100 * one.mean('accuracy'):.2f} ± {100 * one.error('accuracy'):.2f}",
            f"{one.mean('loss'):.3f}",
            f"{one.mean('updates'):.0f}",
            f"{unit * one.mean('shards'):.2f}",
            f"{unit * one.mean('turns'):.2f}",
        )
        for one in found.contestants
    ]
    seeds = f"means over {_counted(trials, 'seed')} ± standard error"
    return Sheet(f"digits, {_counted(found.epochs, 'epoch')}, {seeds}; {unit * 1e3:.1f} ms per shard", columns, rows)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def read(file: Path) -> Comparison:
    """The results in a file that --output wrote. Raises BatchGrowthError for any other file."""
    try:
        return TypeAdapter(Comparison).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise BatchGrowthError(f"--input {file}: no results of bench.growth_rules; give a file of --output") from error


def _measure(network: str, seeds: int, epochs: int, output: Path | None) -> Comparison:
    progress = Console(stderr=True)

    def finished(seed: int, found: Comparison) -> None:
        if output:
            write(found, output)
        progress.print(f"seed {seed}, {seed + 1} of {seeds}", style="dim", highlight=False)

    return compare(network, seeds, epochs, finished)


Quick = Annotated[
    bool, typer.Option("--quick", help="A tiny network, 1 seed and 1 epoch, to see that everything runs.")
]
Output = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here after each seed.")]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE.json", help="Show these results instead of training.")
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw the results.")]


def bench(
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Trainings of each.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="Epochs of each training.")] = 6,
    quick: Quick = False,
    output: Output = None,
    input_: Input = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    picture: Picture = None,
) -> None:
    """Compare the measured rules of growth with constant batches and declared growth, on digits."""
    given = (TINY_NET, 1, 1) if quick else (CONV_NET, seeds, epochs)
    try:
        found = read(input_) if input_ else _measure(*given, output)
    except BatchGrowthError as error:
        raise typer.BadParameter(str(error)) from error
    if markdown:
        print(as_markdown(sheet(found)))
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(as_table(sheet(found)), highlight=False)
    if picture:
        from bench.growth_picture import draw

        draw(found.contestants, found.epochs, picture)


if __name__ == "__main__":
    typer.run(bench)

"""The command line: `batchgrowth check | plan | forecast | crd`, and what the first two print.

Trainer and operator add their commands.
"""

import json
import math
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from batchgrowth.choices import choices_help
from batchgrowth.contract.logs import DASK_LEVEL_VARIABLE, FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel
from batchgrowth.errors import BatchGrowthError, PodLimitError, SpecError, counted
from batchgrowth.forecast.command import forecast
from batchgrowth.growth_decisions import Course
from batchgrowth.looks import Looks
from batchgrowth.manifest.crd import crd_yaml
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, account_note, pod_faults, written_pods
from batchgrowth.manifest.reading import VERSION, load_manifest
from batchgrowth.notes import asides, notes
from batchgrowth.plan import BatchDecision, Plan, Stage, constant_plan, make_plan
from batchgrowth.spec import JobSpec
from batchgrowth.terminal import first_and_last, is_too_wide, on_stderr, run_command, say

COMMANDS = "batchgrowth.commands"
"""Entry-point group of the commands that the trainer and the operator bring."""
ROOMS = {
    "evaluate": "trainer",
    "init": "trainer",
    "manifest": "trainer",
    "paper": "trainer",
    "plot": "trainer",
    "probe": "trainer",
    "run": "trainer",
    "operator": "operator",
    "submit": "operator",
}
"""Command -> the part that brings it, which is also the extra that installs that part's libraries."""
RECORDED = "batchgrowth_trainer.record.runs:recorded_course"
"""The trainer's function that reads a finished run: (folder, manifest or None, overrides) -> Course."""
DRAWN = "batchgrowth_trainer.plots:plot_plan"
"""The trainer's function that draws a plan: (Course, path)."""
_HIDDEN = "…"
"""The first cell of the row that stands for the stages that a long plan hides."""

app = typer.Typer(
    name="batchgrowth",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path | None,
    typer.Argument(
        help="A BatchGrowthJob manifest; - reads standard input. Default: the manifest of RUN.", show_default=False
    ),
]
Run = Annotated[
    Path | None,
    typer.Option(
        "--as",
        metavar="RUN",
        help="The output folder of a run of a measured job: print the plan that the run followed.",
    ),
]
Files = Annotated[
    list[Path], typer.Argument(help="BatchGrowthJob manifests; - reads standard input.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field below spec, such as batch.maximum=640."),
]
LogLevelOption = Annotated[
    LogLevel, typer.Option(envvar=LEVEL_VARIABLE, case_sensitive=False, help="The lowest level that is logged.")
]
DaskLogLevelOption = Annotated[
    LogLevel,
    typer.Option(envvar=DASK_LEVEL_VARIABLE, case_sensitive=False, help="The lowest level of Dask's own messages."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(envvar=FORMAT_VARIABLE, case_sensitive=False, help="Log each message as a line of text or of JSON."),
]


def _show_version(asked: bool) -> None:
    if asked:
        say(f"batchgrowth {VERSION}")
        raise typer.Exit


@app.callback()
def batchgrowth(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train PyTorch models with a batch size that grows during training, and with workers that are added as it
    grows.
    """


class PlanFormat(StrEnum):
    """How `plan` prints."""

    table = "table"
    json = "json"


@app.command()
def check(
    files: Files,
    pod_security: Annotated[
        PodSecurity,
        typer.Option(help="The Pod Security Standard of your cluster, which the workers' pods must meet."),
    ] = PodSecurity.restricted,
) -> None:
    """Check manifests: exit with 0 if they are valid, else with 2 and one line per error."""
    faults = False
    for file in files:
        prefix = f"{file}: " if len(files) > 1 else ""
        try:
            spec = load_manifest(file).spec
            check_pods(spec, pod_security)
            plan = make_plan(spec)
        except BatchGrowthError as error:
            faults = True
            say("\n".join(prefix + line for line in str(error).splitlines()), err=True)
        else:
            quantity = spec.batch.growth.entry.quantity
            if quantity:
                say(f"{file}: good; batches by the {quantity}, at most {counted(plan.updates, 'update')}")
            else:
                stages = counted(len(plan.stages), "stage")
                say(f"{file}: good; {stages}, {counted(plan.updates, 'update')}")
            for note in (*notes(spec, plan), account_note(spec)):
                if note:
                    say(f"{file}: {note}")
    if faults:
        raise typer.Exit(SpecError.exit_code)


def check_pods(spec: JobSpec, standard: PodSecurity) -> None:
    """Raise PodLimitError if the pods of a job break the standard."""
    limits = PodLimits(standard=standard, accounts=None)  # nobody knows here which accounts a cluster permits
    broken = pod_faults(spec, written_pods(spec), limits)
    if broken:
        raise PodLimitError(broken)


@app.command(epilog=choices_help())
def plan(
    file: File = None,
    run: Run = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Draw batch, workers and learning rate by update, as PNG, SVG or PDF."),
    ] = None,
    output: Annotated[PlanFormat, typer.Option(help="A table for people or JSON for programs.")] = PlanFormat.table,
    set_: Set = None,
) -> None:
    """Print the plan of a manifest: its stages and totals."""
    if run is not None:
        course: Course = pkgutil.resolve_name(RECORDED)(run, file, set_ or ())
    elif file is not None:
        course = Course(load_manifest(file, set_ or (), on_stderr).spec)
    else:
        raise typer.BadParameter("give a manifest, or --as with the output folder of a run")
    if plot is not None:
        pkgutil.resolve_name(DRAWN)(course, plot)
    if output is PlanFormat.json:
        say(json.dumps(course.to_json(), indent=2))
        return
    console = Console()
    table = plan_table(course)
    if is_too_wide(table, console):
        console.print(plan_list(course), highlight=False)
    else:
        console.print(table)
    console.print(plan_totals(course, ran=run is not None), highlight=False)
    # A run's decisions can no longer be changed, so its plan gets no remarks.
    told = notes(course.spec, course.plan) if run is None else asides(course.spec, course.plan)
    for note in told:
        console.print(note, highlight=False)


app.command()(forecast)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition."""
    say(crd_yaml(), end="")


def plan_table(course: Course) -> Table:
    """Return a table with a row per stage: epochs, batch, learning rate, workers, updates and share of the examples.

    If stages were decided while training, a last column has the measured values that decided them. A long plan shows
    its first and its last stages only.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _columns(course):
        table.add_column(name, justify="right")
    for row in _rows(course):
        table.add_row(*row)
    return table


def plan_list(course: Course) -> str:
    """Return the rows of the table with a value per line, for a terminal that is too narrow for the table."""
    names = _columns(course)
    width = max(map(len, names))
    parts = []
    for row in _rows(course):
        if row[0] == _HIDDEN:
            parts.append(" ".join(row))
        else:  # a stage that no measurement decided lacks the last value
            parts.append("\n".join(f"{name:{width}} {value}" for name, value in zip(names, row, strict=False)))
    return "\n\n".join(parts)


def _columns(course: Course) -> list[str]:
    names = ["stage", "epochs", "batch", "learning rate", "workers", "updates", "examples"]
    if course.values:
        names.append(course.quantity)
    return names


def _rows(course: Course) -> Iterator[list[str]]:
    first, hidden, last = first_and_last(course.plan.stages)
    yield from (_row(stage, course) for stage in first)
    if hidden:
        yield [_HIDDEN, counted(hidden, "stage")]
    yield from (_row(stage, course) for stage in last)


def _rate(stage: Stage, course: Course) -> str:
    """Return the learning rates of a stage, warm-up included: `0.05`, `0.05 → 0.01`, `0.001 → 0.05 → 0.01`."""
    first, highest, last = course.plan.learning_rates(stage)
    shown = [f"{first:g}"]
    if highest > max(first, last):
        shown.append(f"{highest:g}")
    shown.append(f"{last:g}")
    text = " → ".join(rate for rate, before in zip(shown, [None, *shown], strict=False) if rate != before)
    gain = course.largest_gain(stage.batch_size)
    if gain > 1:
        return f"{text} × 1 – {gain:g}"
    return text


def _row(stage: Stage, course: Course) -> list[str]:
    share = (stage.epoch_to - stage.epoch_from) / course.plan.epochs
    row = [
        str(stage.index + 1),
        f"{_epoch(stage.epoch_from)} – {_epoch(stage.epoch_to)}",
        f"{stage.batch_size:,}",
        _rate(stage, course),
        str(stage.workers),
        f"{stage.updates:,}",
        f"{float(share):.1%}",
    ]
    if stage.index in course.values:
        value = course.values[stage.index]
        if math.isfinite(value):
            row.append(f"{value:.4g}")
        else:
            row.append("too large to measure")
    return row


def _epoch(epoch: Fraction) -> str:
    if epoch.denominator == 1:
        return f"{epoch.numerator:,}"
    return f"{float(epoch):,.2f}"


def plan_totals(course: Course, *, ran: bool = False) -> str:
    """Return the total updates and examples, and the updates that the same job takes with a constant batch.

    A measured job that has not run gets bounds instead: the most and the fewest updates.
    """
    if not course.is_measured:
        return declared_totals(course.plan, course.spec)
    if not ran:
        plan = course.plan
        batch = course.spec.batch
        looks = batch.growth.looks or Looks()
        # The plan has the fewest updates if a look after the first update decides for the largest batch.
        fewest = make_plan(course.spec, [BatchDecision(1, batch.maximum, 1.0)]).updates
        return (
            f"\nat most {plan.updates:,} and at least {counted(fewest, 'update')} for "
            f"{counted(plan.epochs, 'epoch')} of {counted(plan.examples_per_epoch, 'example')}; the batch grows from "
            f"{batch.initial:,} to {batch.maximum:,} at most, as training measures its {course.quantity} {looks.when}"
        )
    if not course.decisions:
        changes = f"the {course.quantity} has not changed the batch"
    else:
        times = f"{len(course.decisions)} times"
        if len(course.decisions) == 1:
            times = "once"
        changes = f"the {course.quantity} changed the batch {times}, last at update {course.decisions[-1].update:,}"
    return f"{declared_totals(course.plan, course.spec)}\n{changes}"


def declared_totals(plan: Plan, spec: JobSpec) -> str:
    """Return the updates and examples of a plan that is known to its end, and the updates with a constant batch."""
    constant = constant_plan(spec).updates
    examples = f"{counted(plan.epochs, 'epoch')} of {counted(plan.examples_per_epoch, 'example')}"
    total = f"\n{counted(plan.updates, 'update')} for {examples}"
    if constant == plan.updates:
        return f"{total}; the batch stays at {spec.batch.initial:,}"
    ratio = constant / plan.updates
    return f"{total}; a constant batch of {spec.batch.initial:,} takes {constant:,}, {ratio:.1f} times as many"


def add_command(entry: EntryPoint) -> None:
    """Add a command of another package. If that package's libraries are missing, add one that names the extra to
    install.
    """
    try:
        app.command(entry.name, epilog=choices_help() if entry.name == "run" else None)(entry.load())
    except ModuleNotFoundError as error:
        missing = error.name
        # Without an option for help, so that `run --help` says what to install, too.
        settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

        @app.command(entry.name, context_settings=settings, help=f"Needs {_room(entry.name)}.")
        def ask_for_the_room() -> NoReturn:
            raise ModuleNotFoundError(name=missing)


def _room(command: str | None) -> str:
    room = ROOMS.get(command or "", "trainer")
    return f"the {room}: pip install 'batchgrowth[{room}]'"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; a user's error prints its text on stderr, without a traceback, and sets the exit
    code.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    run_command(lambda: _run(given))


def _run(given: list[str]) -> None:
    asked = next((word for word in given if not word.startswith("-")), None)
    for entry in entry_points(group=COMMANDS):
        # Only the command that was asked for is loaded: importing torch takes seconds, and `check` has no use for it.
        if asked in (None, entry.name) and "--version" not in given:
            add_command(entry)
    try:
        app(given, prog_name="batchgrowth", standalone_mode=True)
    except BatchGrowthError as error:
        say(str(error), err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        say(f"batchgrowth {asked} needs {_room(asked)}; {error.name} is not installed", err=True)
        sys.exit(BatchGrowthError.exit_code)

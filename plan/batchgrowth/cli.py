"""The command line: `batchgrowth check | plan | crd` and what they print; trainer and operator add their commands."""

import json
import math
import pkgutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction
from importlib.metadata import EntryPoint, entry_points
from math import ceil
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from batchgrowth.choices import choices_help
from batchgrowth.contract.logs import DASK_LEVEL_VARIABLE, FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel
from batchgrowth.errors import BatchGrowthError, PodLimitError, SpecError
from batchgrowth.growth import Course
from batchgrowth.looks import Looks
from batchgrowth.manifest.crd import crd_yaml
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, account_note, pod_faults, written_pods
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.spec import Growth, JobSpec

COMMANDS = "batchgrowth.commands"
"""Entry-point group of the commands that the trainer and the operator bring."""
ROOMS = {
    "evaluate": "trainer",
    "init": "trainer",
    "manifest": "trainer",
    "plot": "trainer",
    "run": "trainer",
    "operator": "operator",
    "submit": "operator",
}
"""Command -> the part that brings it, which is also the extra that installs that part's libraries."""
RECORDED = "batchgrowth_trainer.record.runs:recorded_course"
"""The trainer's function that reads a finished run: (folder, manifest or None, overrides) -> Course."""

MOST_ROWS = 40
"""The most stages that a table shows."""

app = typer.Typer(
    name="batchgrowth",
    help="Train PyTorch models with a batch size that grows during training, and with workers that are added as it "
    "grows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path | None, typer.Argument(help="A BatchGrowthJob manifest. Default: the manifest of RUN.", show_default=False)
]
Run = Annotated[
    Path | None,
    typer.Option(
        "--as",
        metavar="RUN",
        help="The output folder of a run of a measured job: print the plan that the run followed.",
    ),
]
Files = Annotated[list[Path], typer.Argument(help="BatchGrowthJob manifests.", show_default=False)]
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


class Output(StrEnum):
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
            typer.echo("\n".join(prefix + line for line in str(error).splitlines()), err=True)
        else:
            quantity = spec.batch.growth.entry.quantity
            if quantity:
                typer.echo(f"{file}: good; batches by the {quantity}, at most {plan.updates:,} updates")
            else:
                typer.echo(f"{file}: good; {len(plan.stages)} stages, {plan.updates:,} updates")
            for note in (clock_note(spec), exchange_note(spec), account_note(spec)):
                if note:
                    typer.echo(f"{file}: {note}")
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
    output: Annotated[Output, typer.Option(help="A table for people or JSON for programs.")] = Output.table,
    set_: Set = None,
) -> None:
    """Print the plan of a manifest: its stages and totals."""
    if run is not None:
        course: Course = pkgutil.resolve_name(RECORDED)(run, file, set_ or ())
    elif file is not None:
        course = Course(load_manifest(file, set_ or ()).spec)
    else:
        raise typer.BadParameter("give a manifest, or --as with the output folder of a run")
    if output is Output.json:
        typer.echo(json.dumps(course.to_json(), indent=2))
        return
    console = Console()
    console.print(plan_table(course))
    console.print(plan_totals(course, ran=run is not None), highlight=False)
    spec = course.spec
    for note in (shard_note(course.plan, spec), gain_note(spec), clock_note(spec), exchange_note(spec)):
        if note:
            console.print(note, highlight=False)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition."""
    typer.echo(crd_yaml(), nl=False)


def plan_table(course: Course) -> Table:
    """Return a table with a row per stage: epochs, batch, learning rate, workers, updates and share of the examples.

    If stages were decided while training, a last column has the measured values that decided them. A long plan shows
    its first and its last stages only.
    """
    plan = course.plan
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("stage", "epochs", "batch", "learning rate", "workers", "updates", "examples"):
        table.add_column(name, justify="right")
    if course.values:
        table.add_column(course.quantity, justify="right")
    hidden = len(plan.stages) - MOST_ROWS
    for stage in plan.stages:
        if hidden > 0 and stage.index == MOST_ROWS // 2:
            table.add_row("…", f"{hidden} stages")
        if hidden <= 0 or not MOST_ROWS // 2 <= stage.index < MOST_ROWS // 2 + hidden:
            table.add_row(*_row(stage, course))
    return table


def _row(stage: Stage, course: Course) -> list[str]:
    rate = f"{stage.learning_rate:g}"
    last_rate = f"{stage.learning_rate_to:g}"
    if last_rate != rate:
        rate = f"{rate} → {last_rate}"
    share = (stage.epoch_to - stage.epoch_from) / course.plan.epochs
    row = [
        str(stage.index),
        f"{_epoch(stage.epoch_from)} – {_epoch(stage.epoch_to)}",
        f"{stage.batch_size:,}",
        rate,
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
        # No plan has fewer updates than that of a first look which decides for the largest batch at once.
        fewest = make_plan(course.spec, [BatchDecision(1, batch.maximum, 1.0)]).updates
        return (
            f"\nat most {plan.updates:,} and at least {fewest:,} updates for {plan.epochs:,} epochs of "
            f"{plan.examples_per_epoch:,} examples; the batch grows from {batch.initial:,} to {batch.maximum:,} at "
            f"most, as training measures its {course.quantity} {looks.when}"
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
    batch = spec.batch.model_copy(update={"maximum": spec.batch.initial, "growth": Growth()})
    learning_rate = spec.learning_rate.model_copy(update={"schedule": None, "warmup": None})
    constant = make_plan(spec.model_copy(update={"batch": batch, "learning_rate": learning_rate})).updates
    examples = f"{plan.epochs:,} epochs of {plan.examples_per_epoch:,} examples"
    total = f"\n{plan.updates:,} updates for {examples}"
    if constant == plan.updates:
        return f"{total}; the batch stays at {spec.batch.initial:,}"
    ratio = constant / plan.updates
    return f"{total}; a constant batch of {spec.batch.initial:,} takes {constant:,}, {ratio:.1f} times as many"


def clock_note(spec: JobSpec) -> str:
    """Return a note that a second run will differ if the growth rule reads a clock; empty for other rules."""
    if not spec.batch.growth.entry.looks_at_clock:
        return ""
    return (
        f"note: {spec.batch.growth.type} looks at a clock, so another run may decide otherwise and end with other "
        "weights. To repeat a run exactly, train what `batchgrowth manifest RUN` prints."
    )


def exchange_note(spec: JobSpec) -> str:
    """Return a note about a second run if its weights will differ; empty if they will be the same."""
    if spec.promise != "Nondeterministic":
        return ""
    if spec.exchange.entry.promise == "Nondeterministic":
        whose = f"of exchange {spec.exchange.type}"
    else:
        whose = "that a GPU computes with deterministic: false"
    return (
        f"note: the weights {whose} differ from run to run, even on the same machine; the promise of equal weights "
        "does not cover them."
    )


def gain_note(spec: JobSpec) -> str:
    """Return a note about how a measured gain changes the plan's learning rates; empty without a gain."""
    rate = spec.learning_rate
    if not rate.entry.gain:
        return ""
    return (
        f"note: {rate.rule} multiplies these learning rates by a gain between 1 and B / {spec.batch.initial:,}, for a "
        f"batch of B, which training measures {rate.settings.when}."
    )


def shard_note(plan: Plan, spec: JobSpec) -> str:
    """Return a note about the cost of a batch.shard below workers.examplesPerWorker; empty if it costs nothing.

    A worker computes its shards one after another, each with a pass forward and backward.
    """
    if spec.batch.growth.entry.needs_noise or spec.learning_rate.entry.gain:
        return ""  # the noise shows only between shards
    fine = _passes(plan, plan.shard)
    coarse = _passes(plan, spec.workers.examples_per_worker)
    if fine <= coarse:
        return ""
    return (
        f"note: batch.shard {plan.shard:,} is finer than the planned workers can use: each computes {fine:,} shards "
        f"one after another, {fine / coarse:.1f} times as many as with shards of workers.examplesPerWorker, "
        f"{spec.workers.examples_per_worker:,}. Small models train slower by almost that factor; leave batch.shard out."
    )


def _passes(plan: Plan, shard: int) -> int:
    """Return the number of shards that the busiest worker computes over the whole plan."""
    return sum(stage.updates * ceil(ceil(stage.batch_size / shard) / stage.workers) for stage in plan.stages)


def add_command(entry: EntryPoint) -> None:
    """Add a command of another package. If that package's libraries are missing, add one that names the extra to
    install.
    """
    try:
        app.command(entry.name, epilog=choices_help() if entry.name == "run" else None)(entry.load())
    except ModuleNotFoundError as error:
        missing = error.name
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
    asked = next((word for word in given if not word.startswith("-")), None)
    for entry in entry_points(group=COMMANDS):
        # Only the command that was asked for is loaded: importing torch takes seconds, and `check` has no use for it.
        if asked in (None, entry.name):
            add_command(entry)
    try:
        app(given, prog_name="batchgrowth", standalone_mode=True)
    except BatchGrowthError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        typer.echo(f"batchgrowth {asked} needs {_room(asked)}; {error.name} is not installed", err=True)
        sys.exit(BatchGrowthError.exit_code)

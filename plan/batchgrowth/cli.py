"""The command line: `batchgrowth check | plan | crd`, and the commands of the trainer and the operator."""

import json
import pkgutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from batchgrowth.choices import choices_help
from batchgrowth.contract.logs import DASK_LEVEL_VARIABLE, FORMAT_VARIABLE, LEVEL_VARIABLE, LogFormat, LogLevel
from batchgrowth.errors import BatchGrowthError, PodLimitError, SpecError
from batchgrowth.growth import Course
from batchgrowth.manifest.crd import crd_yaml
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, account_note, pod_faults, written_pods
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth.spec import JobSpec
from batchgrowth.tables import clock_note, exchange_note, gain_note, plan_table, plan_totals, shard_note

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

app = typer.Typer(
    name="batchgrowth",
    help="Training whose batch grows by a plan, with workers that follow the batch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path | None, typer.Argument(help="A BatchGrowthJob manifest. Default: that of RUN.", show_default=False)
]
Run = Annotated[
    Path | None,
    typer.Option(
        "--as", metavar="RUN", help="The output folder of a run: print the plan that it made of a measured job."
    ),
]
Files = Annotated[list[Path], typer.Argument(help="BatchGrowthJob manifests.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field below spec, such as batch.maximum=640."),
]
LogLevelOption = Annotated[
    LogLevel, typer.Option(envvar=LEVEL_VARIABLE, case_sensitive=False, help="The least severe messages to log.")
]
DaskLogLevelOption = Annotated[
    LogLevel, typer.Option(envvar=DASK_LEVEL_VARIABLE, case_sensitive=False, help="The least severe messages of Dask.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option(envvar=FORMAT_VARIABLE, case_sensitive=False, help="A line of text or JSON per message.")
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
    """Say whether manifests are good: exit 0, or 2 with one line per fault."""
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
    if faults := pod_faults(spec, written_pods(spec), PodLimits(standard=standard, accounts=None)):
        raise PodLimitError(faults)


@app.command(epilog=choices_help())
def plan(
    file: File = None,
    run: Run = None,
    output: Annotated[Output, typer.Option(help="A table for people or JSON for programs.")] = Output.table,
    set_: Set = None,
) -> None:
    """Print the plan of a manifest: its stages and totals."""
    course = _course(file, run, set_ or ())
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


def _course(file: Path | None, run: Path | None, overrides: Sequence[str]) -> Course:
    if run is not None:
        recorded: Course = pkgutil.resolve_name(RECORDED)(run, file, overrides)
        return recorded
    if file is None:
        raise typer.BadParameter("give a manifest, or --as with the output folder of a run")
    return Course(load_manifest(file, overrides).spec)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition."""
    typer.echo(crd_yaml(), nl=False)


def add_command(entry: EntryPoint) -> None:
    """Add a command of another package, or one that names the extra if that package's libraries are missing."""
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
    """Run the command line and exit; a user's error prints its text on stderr and sets the exit code, no traceback."""
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

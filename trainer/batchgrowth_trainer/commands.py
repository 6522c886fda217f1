"""`batchgrowth run` and the commands that read its results; the command line finds them as entry points.

This module imports quickly: a command loads torch and Dask after it has accepted its input.
"""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from batchgrowth.choices import EXCHANGES
from batchgrowth.cli import DaskLogLevelOption, LogFormatOption, LogLevelOption
from batchgrowth.contract.logs import DEFAULT_LOGS, LogFormat, LogLevel, Logs
from batchgrowth.errors import DataError, Interrupted, WorkloadError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec import BatchGrowthJob
from rich.console import Console

if TYPE_CHECKING:
    from batchgrowth_trainer.training import Options


ExchangeType = StrEnum("ExchangeType", {name: name for name in EXCHANGES})  # type: ignore[misc]


File = Annotated[Path, typer.Argument(help="A BatchGrowthJob manifest.", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1000, help="The largest number of workers. Default: the plan's.")
]
Scheduler = Annotated[
    str | None, typer.Option(help="The address of an existing Dask cluster. Default: start one on this machine.")
]
Exchange = Annotated[ExchangeType | None, typer.Option(help="How gradients move. Default: spec.exchange.type.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in the output folder.")]
OutputDir = Annotated[Path | None, typer.Option(help="The folder for results. Default: runs/NAME.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field below spec.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Override spec.seed.")]
MetricsPort = Annotated[int, typer.Option(min=0, max=65535, help="Port for Prometheus on 127.0.0.1; 0: any free port.")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw plot.png and plot.html at the end.")]


def run(
    file: File,
    workers: Workers = None,
    scheduler: Scheduler = None,
    exchange: Exchange = None,
    resume: Resume = False,
    output_dir: OutputDir = None,
    set_: Set = None,
    seed: Seed = None,
    metrics_port: MetricsPort = 0,
    plots: Plots = True,
    log_level: LogLevelOption = LogLevel.warning,
    log_format: LogFormatOption = LogFormat.text,
    dask_log_level: DaskLogLevelOption = LogLevel.warning,
) -> None:
    """Train a job on this machine, or on an existing Dask cluster."""
    overrides = list(set_ or ())
    if exchange is not None:
        overrides.append(f"exchange.type={exchange.value}")
    if seed is not None:
        overrides.append(f"seed={seed}")
    job = load_manifest(file, overrides)
    plan = make_plan(job.spec)
    directory = output_dir or Path("runs") / job.metadata.name
    users_modules = tuple(dict.fromkeys((str(file.resolve().parent), str(Path.cwd()))))
    logs = Logs(log_level, log_format, dask_log_level)
    console = Console(force_terminal=None if logs == DEFAULT_LOGS else False)  # a live display would garble the log
    console.print(f"{job.metadata.name}: loading torch and Dask …", highlight=False)

    from batchgrowth_trainer.training import Options

    options = Options(
        output_dir=directory, workers=workers, scheduler=scheduler, resume=resume, metrics_port=metrics_port,
        paths=users_modules, logs=logs,
    )  # fmt: skip
    _print_summary(console, _train(job, plan, console, options))
    if plots:
        _draw(console, [directory], None)


def init(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="A new folder; its name becomes the job's.", show_default=False)
    ],
) -> None:
    """Write a small workload and its manifest, to start from."""
    from batchgrowth_trainer.workloads.starting import begin

    code, manifest = begin(name)
    typer.echo(f"Wrote {code} and {manifest}; train with\n\n    batchgrowth run {manifest}")


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Output folders of runs.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="The path of the PNG; the HTML is written beside it.")] = None,
) -> None:
    """Draw one or more runs: loss, accuracy, batch and workers by epoch, update and second."""
    _draw(Console(), runs, output)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a run that ended.", show_default=False)],
    path: Annotated[
        list[Path] | None, typer.Option(help="A folder with the workload's modules. Default: the current one.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Evaluate the weights that evaluation.keepBest kept.")] = False,
) -> None:
    """Evaluate the model of a run on its test set."""
    from batchgrowth_trainer.building import trained_replica
    from batchgrowth_trainer.drivers.single_process import only_one
    from batchgrowth_trainer.replica.evaluation import evaluate as evaluated

    sys.path[:0] = [str(folder.resolve()) for folder in path or (Path.cwd(),)]
    try:
        replica = trained_replica(run, best=best)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (or name the folder of the workload's module with --path)") from error
    values = evaluated(replica, 0, 1, only_one)
    if not values:
        raise DataError(f"{run}: its workload has no test set")
    if json_:
        typer.echo(json.dumps(values, indent=2))
    else:
        typer.echo(", ".join(f"{name} {value:.6g}" for name, value in values.items()))


def manifest(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a run.", show_default=False)],
) -> None:
    """Print a manifest that repeats a run; the batch sizes that a measured rule decided become milestones."""
    from batchgrowth_trainer.record.runs import declared_manifest

    typer.echo(declared_manifest(run), nl=False)


def _train(job: BatchGrowthJob, plan: Plan, console: Console, options: "Options") -> dict[str, Any]:
    from batchgrowth_trainer.sinks.display import make_display
    from batchgrowth_trainer.sinks.events import Note, publish
    from batchgrowth_trainer.training import interrupts, train
    from batchgrowth_trainer.user_code import find_modules_in
    from batchgrowth_trainer.worker.logs import set_up_logs, silence_dask

    set_up_logs(options.logs)
    if not options.logs.detailed:
        silence_dask()
    find_modules_in(options.paths)
    sinks = [make_display(console)]
    first_stop = Note("stopping after this update; press again to stop at once")
    try:
        with interrupts(lambda: publish(sinks, first_stop)) as requested:
            return train(job, options, sinks, requested, plan)
    except KeyboardInterrupt:
        raise Interrupted("stopped at once; --resume continues from the last checkpoint") from None


def _print_summary(console: Console, summary: dict[str, Any]) -> None:
    from batchgrowth_trainer.record.runs import evaluation_facts

    accuracy = ""
    if summary["accuracy"] is not None:
        accuracy = f", test accuracy {summary['accuracy']:.4f}"
    workers = ""
    resizes = summary["resizes"]
    if resizes:
        counts = [resizes[0]["from"], *(resize["to"] for resize in resizes)]
        workers = f", workers {' → '.join(map(str, counts))}"
    judged = "".join(f", {name} {text}" for name, text in evaluation_facts(summary))
    console.print(
        f"{summary['name']}: {summary['updates']:,} updates in {summary['seconds']:.1f} s{accuracy}, "
        f"training loss {summary['finalLoss']:.4f}{judged}{workers}\nweights SHA-256 {summary['weightsSha256']}",
        highlight=False,
        soft_wrap=True,
    )


def _draw(console: Console, directories: list[Path], output: Path | None) -> None:
    from batchgrowth_trainer.plots import plot_runs

    png, html = plot_runs(directories, output)
    console.print(f"plots: {png} and {html}", highlight=False, soft_wrap=True)

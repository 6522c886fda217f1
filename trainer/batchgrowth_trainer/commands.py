"""`batchgrowth run`, `init` and `paper`, and the commands that read a run's results; found as entry points.

This module imports quickly: a command loads torch and Dask after it has accepted its input.
"""

import json
import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from batchgrowth.choices import EXCHANGES
from batchgrowth.cli import DaskLogLevelOption, LogFormatOption, LogLevelOption
from batchgrowth.contract.logs import DEFAULT_LOGS, LogFormat, LogLevel, Logs
from batchgrowth.errors import BatchGrowthError, DataError, WorkloadError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.notes import notes
from batchgrowth.plan import Plan, make_plan
from batchgrowth.probe import batch_block, branch_table, critical_sentence, heading, no_block, remedy
from batchgrowth.spec import BatchGrowthJob
from batchgrowth.terminal import on_stderr, say
from rich.console import Console

from batchgrowth_trainer.worker.streams import lasting_output

if TYPE_CHECKING:
    from batchgrowth_trainer.sinks.events import Sinks
    from batchgrowth_trainer.training import Options

log = logging.getLogger(__name__)

ExchangeType = StrEnum("ExchangeType", {name: name for name in EXCHANGES})  # type: ignore[misc]


def _folder(text: str) -> Path:
    """Return the path of a folder; an empty text, such as a shell's unset variable, would be the current folder."""
    if not text:
        raise typer.BadParameter("'' is empty; give the path of a folder, or . for the current one")
    return Path(text)


File = Annotated[Path, typer.Argument(help="A BatchGrowthJob manifest; - reads standard input.", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1000, help="The largest number of workers. Default: the plan's.")
]
Scheduler = Annotated[
    str | None, typer.Option(help="The address of an existing Dask cluster. Default: start one on this machine.")
]
Exchange = Annotated[ExchangeType | None, typer.Option(help="How gradients move. Default: spec.exchange.type.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in the output folder.")]
OutputDir = Annotated[
    Path | None, typer.Option(metavar="PATH", parser=_folder, help="The folder for results. Default: runs/NAME.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field below spec.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Override spec.seed.")]
MetricsPort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port for Prometheus on the loopback interface; 0: any free port.")
]
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
    job = load_manifest(file, overrides, on_stderr)
    plan = make_plan(job.spec)
    directory = output_dir or Path("runs") / job.metadata.name
    users_modules = tuple(dict.fromkeys((str(file.resolve().parent), str(Path.cwd()))))
    logs = Logs(log_level, log_format, dask_log_level)
    with lasting_output() as output:
        console = Console(force_terminal=None if logs == DEFAULT_LOGS else False)  # a live display would garble the log
        for note in notes(job.spec, plan):
            console.print(note, highlight=False)
        console.print(f"{job.metadata.name}: loading torch and Dask …", highlight=False)

        from batchgrowth_trainer.sinks.display import make_display
        from batchgrowth_trainer.sinks.events import Note, Sinks
        from batchgrowth_trainer.training import Options

        options = Options(
            output_dir=directory, workers=workers, scheduler=scheduler, resume=resume, metrics_port=metrics_port,
            paths=users_modules, logs=logs,
        )  # fmt: skip
        sinks = Sinks([make_display(console)])
        output.tell_by(lambda line: sinks.add_to_next(Note(line)))
        _print_summary(console, _train(job, plan, sinks, options))
        if plots:
            _draw_if_possible(console, directory)


def init(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="A new folder; its name becomes the job's.", show_default=False)
    ],
) -> None:
    """Write a small workload and its manifest, to start from."""
    from batchgrowth_trainer.workloads.starting import begin

    code, manifest = begin(name)
    say(f"Wrote {code} and {manifest}; train with\n\n    batchgrowth run {manifest}")


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Output folders of runs.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="The path of the PNG; the HTML is written beside it.")] = None,
) -> None:
    """Draw one or more runs: loss, accuracy, batch and workers by epoch, update and second."""
    _draw(Console(), runs, output)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a run.", show_default=False)],
    path: Annotated[
        list[Path] | None, typer.Option(help="A folder with the workload's modules. Default: where the run found them.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Evaluate the weights that evaluation.keepBest kept.")] = False,
) -> None:
    """Evaluate the model of a run on its test set: the final one, or that of the newest checkpoint."""
    from batchgrowth_trainer.building import trained_replica
    from batchgrowth_trainer.drivers.single_process import only_one
    from batchgrowth_trainer.record.output import json_text
    from batchgrowth_trainer.replica.evaluation import evaluate as evaluated

    try:
        replica = trained_replica(run, best=best, given=path or (), say=on_stderr)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (or name the folder of the workload's module with --path)") from error
    values = evaluated(replica, 0, 1, only_one)
    if not values:
        raise DataError(f"{run}: its workload has no test set")
    if json_:
        say(json_text(values))
    else:
        say(", ".join(f"{name} {value:.6g}" for name, value in values.items()))


def manifest(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a run.", show_default=False)],
) -> None:
    """Print a manifest that repeats a run; the batch sizes that a measured rule decided become milestones."""
    from batchgrowth_trainer.record.runs import declared_manifest

    say(declared_manifest(run), end="")


def probe(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a run.", show_default=False)],
    examples: Annotated[
        int | None, typer.Option(min=1, help="Examples of a branch. Default: 36 updates of the largest batch.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, max=1000, help="Branches of each batch size, each with the examples in another order.")
    ] = 3,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=100.0, metavar="PERCENT", help="By how much the loss may exceed another.")
    ] = 2.0,
    path: Annotated[
        list[Path] | None, typer.Option(help="A folder with the workload's modules. Default: where the run found them.")
    ] = None,
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Find the critical batch of a run: branch from its newest checkpoint, with smaller and larger batches."""
    from batchgrowth_trainer.probing import probed, to_json

    share = tolerance / 100
    found = probed(
        run, set_ or (), examples=examples, orders=orders, tolerance=share, given=path or (), say=on_stderr
    )  # fmt: skip
    critical = found.critical(share)
    start = found.start
    block = batch_block(start.job.spec, start.plan, start.snapshot.position, critical.within)
    if json_:
        say(json.dumps(to_json(found, share, block), indent=2))
        return
    console = Console()
    console.print(heading(start.plan, found.stretch, orders), highlight=False, soft_wrap=True)
    console.print(branch_table(found.rows))
    for line in (*found.notes, critical_sentence(found.rows, critical, share)):
        console.print(line, highlight=False, soft_wrap=True)
    if block is None:
        console.print(no_block(start.job.spec), highlight=False, soft_wrap=True)
        return
    console.print(remedy(critical, found.batches.of_run, start.job.spec.batch.initial), highlight=False, soft_wrap=True)
    say(yaml.safe_dump({"batch": block}, sort_keys=False), end="")


def paper(
    experiments: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="table1, table2, figures such as fig5, or all.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", parser=_folder, help="Write the data, pictures and a report to this folder."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="digits|cifar10", help="What figs 3 and 4 train on. Default: digits.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each schedule. Default: 10.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="CIFAR-10's images. Default: data/cifar-10-batches-bin.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", parser=_folder, help="Where trainings are kept. Default: runs/paper."),
    ] = None,
) -> None:
    """Repeat tables and figures of the paper, with its published numbers beside ours; figs 3 and 4 train for that."""
    from batchgrowth_trainer.paper.experiments import ALL, HOW_TO_TRAIN, TRAINED, made

    console = Console()
    results = made(
        *experiments, workload=workload, data=data, seeds=seeds, runs=runs,
        say=lambda text: console.print(text, highlight=False),
    )  # fmt: skip
    for result in results:
        console.print(result.title, style="bold", highlight=False)
        if result.shown:
            console.print(result.table())
        console.print(f"{result.remark}\n", highlight=False)
    if ALL in experiments and not set(experiments) & set(TRAINED):
        console.print(f"{HOW_TO_TRAIN}\n", highlight=False)
    if output is not None:
        from batchgrowth_trainer.paper.experiment import write_all

        for path in write_all(results, output):
            console.print(str(path), highlight=False, soft_wrap=True)


def _train(job: BatchGrowthJob, plan: Plan, sinks: "Sinks", options: "Options") -> dict[str, Any]:
    from batchgrowth_trainer.stopping import stoppable
    from batchgrowth_trainer.training import train
    from batchgrowth_trainer.user_code import find_modules_in
    from batchgrowth_trainer.worker.logs import set_up_logs, silence_dask

    set_up_logs(options.logs)
    if not options.logs.detailed:
        silence_dask()
    find_modules_in(options.paths)
    with stoppable("stopping after this update; press again to stop at once", sinks) as requested:
        return train(job, options, sinks, requested, plan)


def _print_summary(console: Console, summary: dict[str, Any]) -> None:
    from batchgrowth_trainer.record.summary import facts_of

    (_, updates), (_, seconds), *facts = facts_of(summary, "test ")
    workers = ""
    resizes = summary["resizes"]
    if resizes:
        counts = [resizes[0]["from"], *(resize["to"] for resize in resizes)]
        workers = f", workers {' → '.join(map(str, counts))}"
    found = "".join(f", {name} {text}" for name, text in facts)
    console.print(
        f"{summary['name']}: {updates} updates in {seconds} s{found}{workers}\n"
        f"weights SHA-256 {summary['weightsSha256']}",
        highlight=False,
        soft_wrap=True,
    )


def _draw_if_possible(console: Console, directory: Path) -> None:
    """Draw the plots of a run, or say why they cannot be drawn: the run has ended well all the same.

    Raises BatchGrowthError if a file cannot be read or written, and OSError.
    """
    try:
        _draw(console, [directory], None)
    except (BatchGrowthError, OSError):
        raise
    except Exception as error:  # such as matplotlib's, which refuses to be imported with some settings of the user's
        log.debug("the plots cannot be drawn", exc_info=True)
        console.print(
            f"the plots cannot be drawn: {type(error).__name__}: {error}; once that is mended, "
            f"`batchgrowth plot {directory}` draws them",
            highlight=False, soft_wrap=True, markup=False,
        )  # fmt: skip


def _draw(console: Console, directories: list[Path], output: Path | None) -> None:
    from batchgrowth_trainer.plots import plot_runs

    png, html = plot_runs(directories, output)
    console.print(f"plots: {png} and {html}", highlight=False, soft_wrap=True)

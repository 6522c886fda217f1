"""The trainer of a pod: `python -m batchgrowth_trainer`.

Reads the job and the operator's plan for it, trains on the given Dask cluster, reports progress, and always resumes
from the newest checkpoint.  docs/exit-codes.md lists the exit codes.

The SIGTERM handler comes first: loading torch takes seconds, and the first process of a container ignores every signal
without a handler.
"""

from batchgrowth.errors import BatchGrowthError, Interrupted, PlanError

from batchgrowth_trainer.worker.exits import exit_when_asked

if __name__ == "__main__":
    exit_when_asked(Interrupted.exit_code)

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
from batchgrowth.cli import DaskLogLevelOption, LogFormatOption, LogLevelOption
from batchgrowth.contract.logs import DEFAULT_LOGS, LogFormat, LogLevel, Logs
from batchgrowth.manifest.reading import load_stored
from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth.spec.pods import SOURCE_FOLDER
from batchgrowth.terminal import print_plainly
from rich.console import Console

from batchgrowth_trainer.worker.exits import end_within
from batchgrowth_trainer.worker.streams import lasting_output

# A pod's address is not known before the pod runs, and may be IPv6 alone; a NetworkPolicy guards the port.
ANYWHERE = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104

_END_SECONDS = 5.0
"""The longest the process may take to exit once everything is written; a lost scheduler or a thread can block it."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    job: Annotated[Path, typer.Option(help="The job, as JSON or YAML.")] = Path("/etc/batchgrowth/job.json"),
    plan: Annotated[Path, typer.Option(help="The operator's plan.")] = Path("/etc/batchgrowth/plan.json"),
    output_dir: Annotated[Path, typer.Option(help="The folder for checkpoints and results.")] = Path("/checkpoints"),
    checkpoint_uri: Annotated[
        str | None,
        typer.Option(envvar="BATCHGROWTH_CHECKPOINT_URI", help="The object store for them instead, if there is one."),
    ] = None,
    checkpoint_ca: Annotated[
        Path | None,
        typer.Option(envvar="BATCHGROWTH_CHECKPOINT_CA", help="The certificates of CAs that it trusts for that store."),
    ] = None,
    source: Annotated[Path, typer.Option(help="The folder of the code, if the job names a source.")] = Path(
        SOURCE_FOLDER
    ),
    scheduler: Annotated[str | None, typer.Option(envvar="BATCHGROWTH_SCHEDULER")] = None,
    namespace: Annotated[str | None, typer.Option(envvar="BATCHGROWTH_NAMESPACE")] = None,
    progress_configmap: Annotated[str | None, typer.Option(envvar="BATCHGROWTH_PROGRESS_CONFIGMAP")] = None,
    termination_log: Annotated[
        Path, typer.Option(help="The file that the kubelet reads at the container's end; it gets the last report.")
    ] = Path("/dev/termination-log"),
    metrics_port: Annotated[int, typer.Option(min=0, max=65535)] = 9090,
    log_level: LogLevelOption = LogLevel.warning,
    log_format: LogFormatOption = LogFormat.text,
    dask_log_level: DaskLogLevelOption = LogLevel.warning,
) -> None:
    """Train a job in a pod."""
    manifest = load_stored(job)
    same_plan = checked_plan(manifest, plan)

    from batchgrowth_trainer.pool.takeover import Fence
    from batchgrowth_trainer.record.output import make_folder
    from batchgrowth_trainer.sinks.display import make_display
    from batchgrowth_trainer.sinks.events import Note, Sinks, Stopped
    from batchgrowth_trainer.sinks.report import Reporter, numbered, repeat, to_config_map, to_file
    from batchgrowth_trainer.stopping import stoppable
    from batchgrowth_trainer.worker.logs import set_up_logs

    paths = (str(source),) if manifest.spec.workload.source else ()  # as it is mounted in trainer and workers
    sys.path[:0] = paths
    logs = Logs(log_level, log_format, dask_log_level)
    set_up_logs(logs)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns of every peer address without a name
    make_folder(output_dir)
    deliver, count_start = to_file(output_dir / "progress.json")
    fence = None
    if namespace is not None and progress_configmap is not None:
        deliver, count_start = to_config_map(namespace, progress_configmap)
        fence = Fence()
    console = Console(force_terminal=None if logs == DEFAULT_LOGS else False)
    reporter = Reporter(deliver, count_start, fence.fall if fence else lambda _: None)
    sinks = Sinks([make_display(console), reporter])
    first_stop = "stop requested: writing a checkpoint, then exiting"
    # `stoppable` restores this at its end: the first process of a container then ignores a late signal, and so can
    # deliver the last report.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with lasting_output() as output, stoppable(first_stop, sinks) as requested:
            output.tell_by(lambda line: sinks.add_to_next(Note(line)))
            from batchgrowth_trainer.drivers.scaling import shards_of
            from batchgrowth_trainer.training import Options, train

            if fence is not None:
                fence.start = numbered(count_start, requested)
            options = Options(
                output_dir=output_dir, scheduler=scheduler, resume=True, metrics_port=metrics_port,
                metrics_host=ANYWHERE, desired_workers=shards_of, patient=True, fence=fence, logs=logs,
                checkpoint_uri=checkpoint_uri, checkpoint_ca=checkpoint_ca, paths=paths,
            )  # fmt: skip
            summary = train(manifest, options, sinks, requested, same_plan)
        sinks.handle(Note(f"weights SHA-256 {summary['weightsSha256']}"))
    finally:
        sinks.handle(Stopped())
    repeat(reporter.newest, termination_log)  # after an error the kubelet reads the output instead


def checked_plan(job: BatchGrowthJob, path: Path) -> Plan:
    """Return the job's plan. Raises PlanError if the operator's plan in the file is missing or differs."""
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: the operator's plan cannot be read ({error}); mount the job's plan there") from error
    plan = make_plan(job.spec)
    if given != json.loads(json.dumps(plan.to_json())):
        raise PlanError(
            f"{path}: the operator made another plan of this job than this trainer would; "
            "use images of one version for the operator and spec.image"
        )
    return plan


def in_a_pod(text: str) -> str:
    """Return the text with a restart in place of `--resume`, because a pod's trainer always resumes."""
    return (
        text.replace("then --resume;", "then restart it;")
        .replace("--resume it", "restart it")
        .replace("--resume", "a restart")
    )


def _exit_code() -> int:
    """Run the command and return its exit code."""
    print_plainly()
    try:
        app()
    except BatchGrowthError as error:
        print(in_a_pod(str(error)), file=sys.stderr)  # noqa: T201
        return error.exit_code
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201  (as Python does)
        return 1
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = _exit_code()
    finally:
        end_within(_END_SECONDS, code)
    sys.exit(code)

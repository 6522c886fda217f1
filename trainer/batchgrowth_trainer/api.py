"""Runs that start in Python: `train`, `load`, and the `Run` that they return."""

import html
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from batchgrowth.errors import BatchGrowthError, CheckpointError, Fault, Interrupted, SpecError
from batchgrowth.manifest.keywords import job_of
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.spec import BatchGrowthJob
from batchgrowth.spec.job import LONGEST_JOB_NAME
from torch import nn

from batchgrowth_trainer import training
from batchgrowth_trainer.building import trained_model
from batchgrowth_trainer.plots import plot_runs
from batchgrowth_trainer.record.functions import NAMED, changes, function_in, importable_name, is_function, packed
from batchgrowth_trainer.record.history import HISTORY_COLUMNS
from batchgrowth_trainer.record.output import CHECKPOINTS
from batchgrowth_trainer.record.runs import JOB_FILE, evaluation_facts, read_run, read_summary, recorded_job
from batchgrowth_trainer.replica.seeds import untouched_randomness
from batchgrowth_trainer.sinks.display import NotebookDisplay, make_display
from batchgrowth_trainer.sinks.events import Event, Note, Sink, publish
from batchgrowth_trainer.training import interrupts
from batchgrowth_trainer.user_code import find_modules_in, load_workload
from batchgrowth_trainer.worker.logs import quiet_dask
from batchgrowth_trainer.workload import Workload

if TYPE_CHECKING:
    from pandas import DataFrame

_PLOT_WIDTH = 960  # pixels; the file has more
_WANTED = (
    "give a function that returns a batchgrowth_trainer.Workload, its name as package.module:function, or the path "
    "of a manifest"
)
# Errors and notes name the command line's options and a manifest's fields; these are said in Python's words.
_CELL = re.compile(r"([^\s()]*ipykernel_\d+[^\s()]*\.py):(\d+)")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_KEYWORD = re.compile(r"\bworkload\.(arguments|examples|device)\b")


@contextmanager
def reported_in_python() -> Iterator[None]:
    """Reword the errors that the block raises, so that they name keyword arguments and notebook cells."""
    try:
        yield
    except SpecError as error:
        faults = [Fault(*map(in_python, (fault.path, fault.given, fault.remedy))) for fault in error.faults]
        raise type(error)(faults) from None
    except BatchGrowthError as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    """Return the text with `output_dir` instead of `--output-dir`, and `Cell In[3]` instead of the cell's file."""
    text = _KEYWORD.sub(r"\1", text.replace("--resume", "resume=True").replace("workload.entrypoint", "workload"))
    text = _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
    text = NAMED.sub(r"\1", text)
    here = shell()
    if here is None:
        return text

    def cell(found: re.Match[str]) -> str:
        named = here.compile.format_code_name(found[1])
        return f"{' '.join(named)}, line {found[2]}" if named else found[0]

    return _CELL.sub(cell, text)


class InPython:
    """Passes events to a display, with notes that name keyword arguments instead of options."""

    def __init__(self, display: Sink) -> None:
        self._display = display

    def handle(self, event: Event) -> None:
        """Hand the event to the display; a note names keyword arguments instead of options."""
        if isinstance(event, Note):
            event = Note(in_python(event.text))
        self._display.handle(event)


def shell() -> Any:
    """Return IPython's shell if this process is a notebook's kernel, else None."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    here = get_ipython()
    return here if here is not None and hasattr(here, "kernel") else None


@dataclass(frozen=True, slots=True)
class Plot:
    """The files of a run's plot; a notebook shows the picture."""

    png: Path
    html: Path

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the picture and its width in the form that IPython expects."""
        texts = {"image/png": self.png.read_bytes(), "text/plain": repr(self)}
        return texts, {"image/png": {"width": _PLOT_WIDTH}}


class Run:
    """A run in its `folder`, finished or not; `train` and `load` return it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def job(self) -> BatchGrowthJob:
        """Return the job, with every default. Raise SpecError if job.yaml is damaged."""
        with reported_in_python():
            return recorded_job(self.folder)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Return the content of summary.json, None until the run is finished. Raise CheckpointError if damaged."""
        with reported_in_python():
            return read_summary(self.folder)

    @property
    def history(self) -> "DataFrame":
        """Return one row per update, indexed by its number: epoch, batch_size, learning_rate, loss, workers, times in
        seconds.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            history = read_run(self.folder).history
            return _table({name: getattr(row, name) for name in HISTORY_COLUMNS} for row in history)

    @property
    def evaluations(self) -> "DataFrame":
        """Return one row per evaluation, indexed by the updates before it: epoch, seconds, loss, and each metric.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            rows = []
            for row in read_run(self.folder).evaluations:
                values = {"update": row.update, "epoch": row.epoch, "seconds": row.seconds, "loss": row.loss}
                rows.append({**values, **row.metrics})
            return _table(rows)

    @cached_property
    def model(self) -> nn.Module:
        """Return the trained model, on the CPU and in eval mode; it has the averaged weights if the job averages them.

        Raises DataError if the run has not ended, CheckpointError if the weights are damaged, and what loading the
        workload raises.
        """
        with reported_in_python():
            return trained_model(self.folder)

    @cached_property
    def best_model(self) -> nn.Module:
        """Return the model with the weights of the best evaluation, which evaluation.keepBest keeps.

        Raises what `model` raises, and DataError if the job does not keep them.
        """
        with reported_in_python():
            return trained_model(self.folder, best=True)

    def plot(self) -> Plot:
        """Draw loss, metrics, batch and workers by epoch, update and second, as plot.png and plot.html in the folder.

        Raises DataError before the first update, BatchGrowthError if the files cannot be written.
        """
        with reported_in_python():
            return Plot(*plot_runs([self.folder]))

    def __repr__(self) -> str:
        """Return the folder and how the run ended."""
        return f"Run({str(self.folder)!r}): {', '.join(f'{key} {value}' for key, value in self._facts())}"

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        facts = [("folder", str(self.folder)), *self._facts()]
        cells = (f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in facts)
        return f"<table>{''.join(cells)}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        summary = self.summary
        if summary is None:
            return [("state", "not finished")]
        accuracy = summary["accuracy"]
        return [
            ("updates", f"{summary['updates']:,}"),
            ("seconds", f"{summary['seconds']:.1f}"),
            ("training loss", f"{summary['finalLoss']:.4f}"),
            *([("accuracy", f"{accuracy:.4f}")] if accuracy is not None else []),
            *evaluation_facts(summary),
            ("weights SHA-256", summary["weightsSha256"]),
        ]


def load(folder: str | Path) -> Run:
    """Return the run in a folder, finished or not, whichever process made it. Raise DataError if there is none."""
    run = Run(Path(folder))
    run.job  # noqa: B018  (there is one, and it can be read)
    return run


def _table(rows: Iterable[dict[str, Any]]) -> "DataFrame":
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'batchgrowth[notebook]'") from error
    table = pd.DataFrame(list(rows))
    return table.set_index("update") if len(table) else table


def train(
    workload: Callable[..., Workload] | str | Path | BatchGrowthJob,
    *,
    arguments: Mapping[str, str] | None = None,
    examples: int | None = None,
    device: str | None = None,
    name: str | None = None,
    output_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    scheduler: str | None = None,
    sinks: Sequence[Sink] = (),
    **spec: Any,
) -> Run:
    """Train a workload and return the finished run.

    Worker processes of this machine train it, or the workers of the Dask cluster at `scheduler`.

    `workload` is the function that returns the `Workload`: the function itself, which needs no module and is sent to
    the workers, or its name as "package.module:function". It may also be the path of a manifest, or a BatchGrowthJob,
    whose fields are then the defaults of the keywords.

    Every field of a manifest's `spec` is a keyword, with its name in snake_case and the same structure: `epochs=30,
    batch={"initial": 32, "maximum": 512}, learning_rate={"initial": 0.05}`. `epochs`, `batch` and `learning_rate` are
    required. `arguments`, `device` and `examples` are fields of `spec.workload`; without `examples`, this process calls
    the function to count them.

    Results go to the folder `output_dir`, by default runs/NAME; `name` is by default the function's name. If the folder
    holds a run already, that run moves to earlier/N; with `resume` it continues from its newest checkpoint instead.
    `progress` shows how far it is; `sinks` receive the events too.

    Interrupting it (Ctrl-C, or the notebook's button) writes a checkpoint and raises Interrupted; a second time stops
    at once. Raises SpecError with every fault of the keywords, WorkloadError for a fault of the function, DataError,
    CheckpointError, or another error of `batchgrowth.errors`.
    """
    with reported_in_python(), _process_as_it_was():
        paths: tuple[str, ...] = (str(Path.cwd()),)  # the user's modules are found as by `batchgrowth run`
        if _is_path(workload):
            paths = tuple(dict.fromkeys((str(Path(workload).resolve().parent), *paths)))
        find_modules_in(paths)
        base, entrypoint, function = _sorted_out(workload)
        given: dict[str, Any] = {"arguments": arguments, "examples": examples, "device": device}
        given = {key: value for key, value in given.items() if value is not None}
        if entrypoint is not None:
            given["entrypoint"] = entrypoint
        title = name
        if not title:
            title = base.metadata.name if base else _name_of(entrypoint or "")
        job = _checked(title, {**spec, "workload": given}, base)
        folder = Path(output_dir) if output_dir is not None else Path("runs") / title
        if resume:
            _refuse_another_function(folder, job, function)
        options = training.Options(
            output_dir=folder, scheduler=scheduler, resume=resume, paths=paths, function=function
        )
        if progress:
            display = NotebookDisplay() if shell() is not None else make_display()
            sinks = [InPython(display), *sinks]
        first_stop = Note("stopping after this update, with a checkpoint; interrupt again to stop at once")
        try:
            with interrupts(lambda: publish(sinks, first_stop)) as requested:
                training.train(job, options, sinks, requested)
        except KeyboardInterrupt:
            raise Interrupted("stopped at once; --resume continues from the last checkpoint") from None
        return Run(folder)


def _sorted_out(workload: Any) -> tuple[BatchGrowthJob | None, str | None, bytes]:
    """Return the job if a manifest is given, else the workload's entrypoint, and its pickle if it has no module."""
    if isinstance(workload, BatchGrowthJob):
        return workload, None, b""
    if _is_path(workload):
        return load_manifest(Path(workload)), None, b""
    if isinstance(workload, str):
        return None, workload, b""
    if not callable(workload):
        raise SpecError([Fault("workload", f"a {type(workload).__name__}", _WANTED)])
    name = importable_name(workload)
    if name is not None:
        return None, name, b""
    return None, *packed(workload)


def _is_path(workload: Any) -> TypeGuard[str | Path]:
    return isinstance(workload, Path) or (isinstance(workload, str) and workload.endswith((".yaml", ".yml", ".json")))


def _name_of(entrypoint: str) -> str:
    """Return the job's name: the function's name, or its module's name if the function is called workload."""
    module, _, function = entrypoint.partition(":")
    own = function if function != "workload" or is_function(entrypoint) else module.rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "-", own.lower()).lstrip("-0123456789")[:LONGEST_JOB_NAME].strip("-") or "workload"


def _checked(name: str, spec: Mapping[str, Any], base: BatchGrowthJob | None) -> BatchGrowthJob:
    """Return the checked job. Load the workload to count its examples if neither keyword nor manifest gives them."""
    if "examples" in spec["workload"] or base is not None:
        return job_of(name, spec, base)
    workload = spec["workload"]
    job = job_of(name, {**spec, "workload": {**workload, "examples": 1}})
    found = load_workload(job.spec.workload.entrypoint, job.spec.workload.arguments, seed=0, examples=None)
    return job_of(name, {**spec, "workload": {**workload, "examples": len(found.train)}})


def _refuse_another_function(folder: Path, job: BatchGrowthJob, function: bytes) -> None:
    """Raise CheckpointError if the folder has checkpoints of a run with another version of the function."""
    if not function or not (folder / JOB_FILE).is_file() or not any((folder / CHECKPOINTS).glob("*")):
        return
    before = recorded_job(folder).spec.workload.entrypoint
    if is_function(before) and before != job.spec.workload.entrypoint:
        changed = " and ".join(changes(function_in(folder, before), function))
        raise CheckpointError(
            f"{folder}: the run there has another workload, since {changed} changed; undo that to resume it, or train "
            "without --resume, which begins a new run and keeps this one"
        )


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Restore torch's threads, the random generators and Dask's log after the block; the process is the user's."""
    threads = torch.get_num_threads()
    try:
        with untouched_randomness(), quiet_dask():
            yield
    finally:
        torch.set_num_threads(threads)

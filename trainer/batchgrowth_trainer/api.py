"""Runs that start in Python: `train`, `load`, and the `Run` that they return."""

import html
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from batchgrowth.errors import BatchGrowthError, CheckpointError, DataError, Fault, SpecError
from batchgrowth.manifest.keywords import job_of
from batchgrowth.manifest.reading import Say, load_manifest
from batchgrowth.notes import notes
from batchgrowth.plan import make_plan
from batchgrowth.schema import LARGEST_INT32
from batchgrowth.spec import BatchGrowthJob, mathematics
from batchgrowth.spec.job import LONGEST_JOB_NAME
from torch import nn

from batchgrowth_trainer import training
from batchgrowth_trainer.building import trained_model, with_digest
from batchgrowth_trainer.plots import plot_runs
from batchgrowth_trainer.record.checkpoint import newest_whole
from batchgrowth_trainer.record.functions import NAMED, changes, function_in, importable_name, is_function, packed
from batchgrowth_trainer.record.history import HISTORY_COLUMNS, HISTORY_FILE
from batchgrowth_trainer.record.output import EARLIER
from batchgrowth_trainer.record.runs import JOB_FILE, RecordedRun, manifest_text, read_run, recorded_job
from batchgrowth_trainer.record.storage import CHECKPOINTS
from batchgrowth_trainer.record.summary import facts_of, read_summary
from batchgrowth_trainer.record.workload_source import Origin
from batchgrowth_trainer.replica.reproducible import ALONE
from batchgrowth_trainer.replica.seeds import untouched_randomness
from batchgrowth_trainer.sinks.display import NotebookDisplay, make_display
from batchgrowth_trainer.sinks.events import Event, Note, Sink, Sinks
from batchgrowth_trainer.stopping import stoppable
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
# What `in_python` rewords in errors and notes, which name the command line's options and a manifest's fields.
_CELL = re.compile(r"([^\s()]*ipykernel_\d+[^\s()]*\.py):(\d+)")
_OPTION = re.compile(r"(?<![\w/.-])--([a-z]+(?:-[a-z]+)*)\b")  # not in a path
_SET = re.compile(r"--set (\w+)\.(\w+)=(\w+)")
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
    text = _KEYWORD.sub(r"\1", text.replace("workload.entrypoint", "workload"))
    # Before the options, since --set looks like one.
    text = _SET.sub(r'\1={"\2": "\3"}', text)
    text = _OPTION.sub(lambda found: "resume=True" if found[1] == "resume" else found[1].replace("-", "_"), text)
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


_KEPT_BYTES = 32 << 20
"""The largest history.csv, some 300,000 updates, that a Run holds in memory."""


@dataclass(frozen=True, slots=True)
class _Result:
    """The results of a finished run, in memory; `rows` is None if history.csv is missing, unreadable or very large."""

    job: BatchGrowthJob
    summary: dict[str, Any]
    rows: RecordedRun | None


class Run:
    """A run, finished or not; `train` and `load` return it.

    Job, summary, history and evaluations of a finished run stay what they are, whatever happens to its folder. Its
    weights, and a very large history, are read when they are asked for, from wherever later runs have moved the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._given = folder
        self._place = folder.absolute()
        self._result: _Result | None = None
        self._models: dict[bool, nn.Module] = {}
        self._run = ""
        # What cannot be read is refused when the user asks for it.
        with suppress(BatchGrowthError):
            self._run = _run_in(folder)
            self._take_result()

    @property
    def folder(self) -> Path:
        """Return where the run is now: a later run in its folder moves it to earlier/N. If it is gone, where it was."""
        return self._found() or self._base

    @property
    def job(self) -> BatchGrowthJob:
        """Return the job, with every default. Raise SpecError if job.yaml is damaged."""
        with reported_in_python():
            return self._result.job if self._result else recorded_job(self._there())

    @property
    def summary(self) -> dict[str, Any] | None:
        """Return the content of summary.json, None until the run is finished. Raise CheckpointError if damaged."""
        with reported_in_python():
            self._take_result()
            return deepcopy(self._result.summary) if self._result else None

    @property
    def history(self) -> "DataFrame":
        """Return one row per update, indexed by its number: epoch, batch_size, learning_rate, loss, workers, times in
        seconds.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            history = self._rows().history
            return _table({name: getattr(row, name) for name in HISTORY_COLUMNS} for row in history)

    @property
    def evaluations(self) -> "DataFrame":
        """Return one row per evaluation, indexed by the updates before it: epoch, seconds, loss, and each metric.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            rows = []
            for row in self._rows().evaluations:
                values = {"update": row.update, "epoch": row.epoch, "seconds": row.seconds, "loss": row.loss}
                rows.append({**values, **row.metrics})
            return _table(rows)

    @property
    def model(self) -> nn.Module:
        """Return the trained model, on the CPU and in eval mode; it has the averaged weights if the job averages them.

        If the run has not ended, it is the model of its newest checkpoint. A line on standard error says where its
        workload was imported from. Raises DataError if the run has no weights, CheckpointError if they are damaged, and
        what loading the workload raises.
        """
        return self._model(best=False)

    @property
    def best_model(self) -> nn.Module:
        """Return the model with the weights of the best evaluation, which evaluation.keepBest keeps.

        Raises what `model` raises, and DataError if the job does not keep them.
        """
        return self._model(best=True)

    def _model(self, *, best: bool) -> nn.Module:
        with reported_in_python():
            self._take_result()
            if best in self._models:
                return self._models[best]
            model = trained_model(self._there(), best=best, say=_say)
            if self._result is not None:  # a run that trains has another model soon
                self._models[best] = model
            return model

    def plot(self) -> Plot:
        """Draw loss, metrics, batch and workers by epoch, update and second, as plot.png and plot.html in the folder.

        Raises DataError before the first update, BatchGrowthError if the files cannot be written.
        """
        with reported_in_python():
            return Plot(*plot_runs([self._there()]))

    def _take_result(self) -> None:
        """Keep the run's results in memory if it is finished. Raises CheckpointError if its summary is damaged."""
        if self._result is not None:
            return
        there = self._found()
        summary = read_summary(there) if there else None
        if there is None or summary is None:
            return
        rows = None
        history = there / HISTORY_FILE
        if history.is_file() and 0 < history.stat().st_size <= _KEPT_BYTES:
            with suppress(DataError):
                rows = read_run(there)
        self._result = _Result(recorded_job(there), summary, rows)

    def _rows(self) -> RecordedRun:
        self._take_result()
        if self._result is not None and self._result.rows is not None:
            return self._result.rows
        return read_run(self._there())

    @property
    def _base(self) -> Path:
        """Return the folder as it was given, or its absolute path if the working directory is another one now."""
        return self._given if self._given.absolute() == self._place else self._place

    def _there(self) -> Path:
        """Return the run's folder. Raises DataError if the run is no longer in it."""
        there = self._found()
        if there is None:
            raise DataError(
                f"{self._base}: the run that was here is gone, since its folder was moved or deleted, or it was "
                "trained for longer elsewhere; load() it from where it is now"
            )
        return there

    def _found(self) -> Path | None:
        """Return the folder that has this run now; None if there is none."""
        if self._result is None and not self._run:
            return self._base
        for folder in (self._base, *sorted((self._base / EARLIER).glob("*"))):
            with suppress(BatchGrowthError):
                if _run_in(folder) != self._run:
                    continue
                # A run that is trained for longer keeps its identifier. Compared as text, since NaN does not equal NaN.
                if self._result is None or json.dumps(read_summary(folder)) == json.dumps(self._result.summary):
                    return folder
        return None

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
            saved = newest_whole(self.folder / CHECKPOINTS)
            if saved is None:
                return [("state", "not finished, and there is no checkpoint yet")]
            at = saved.snapshot.position
            return [("state", f"not finished; its newest checkpoint is of update {at.update:,}, epoch {at.epoch}")]
        return [*facts_of(summary), ("weights SHA-256", summary["weightsSha256"])]


def load(folder: str | Path) -> Run:
    """Return the run in a folder, finished or not, whichever process made it. Raise DataError if there is none."""
    run = Run(Path(folder))
    run.job  # noqa: B018  (there is one, and it can be read)
    return run


def _run_in(folder: Path) -> str:
    """Return the identifier of the run in a folder; "" if it has none."""
    if not (folder / JOB_FILE).is_file():
        return ""
    origin = Origin.read(folder, recorded_job(folder).spec.workload.entrypoint)
    return origin.run if origin else ""


def _say(text: str) -> None:
    """Tell the user, who reads what a cell or a script prints."""
    print(in_python(text), file=sys.stderr)  # noqa: T201


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
    required. `initial_weights` may also be a Run, or a path, whose weights the training starts from. `arguments`,
    `device` and `examples` are fields of `spec.workload`; without `examples`, this process calls
    the function to count them.

    Results go to the folder `output_dir`, by default runs/NAME; `name` is by default the function's name. If the folder
    holds a run of another job, that run stays, and this one goes to `output_dir`-2, or the next number that is free or
    holds a run of this job. A run of this job moves to earlier/N; with `resume` it continues from its newest checkpoint
    instead.
    `progress` shows how far it is; `sinks` receive the events too.

    Interrupting it (Ctrl-C, or the notebook's button) writes a checkpoint and raises Interrupted; a second time stops
    at once. Raises SpecError with every fault of the keywords, WorkloadError for a fault of the function, DataError,
    CheckpointError, or another error of `batchgrowth.errors`.
    """
    with reported_in_python(), process_as_it_was():
        _refuse_no_sinks(sinks)
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
        if "initial_weights" in spec:
            spec["initial_weights"] = _as_weights(spec["initial_weights"])
        replaced: list[str] = []
        # `_checked` may call the workload's function, for which it seeds the generators of this process.
        with ALONE:
            checked = _checked(title, {**spec, "workload": given}, base, replaced.append)
        job = with_digest(checked)
        asked = Path(output_dir) if output_dir is not None else Path("runs") / title
        folder = _folder_of(job, asked, resume=resume)
        if resume:
            _refuse_another_function(folder, job, function)
        options = training.Options(
            output_dir=folder, scheduler=scheduler, resume=resume, paths=paths, function=function
        )
        audience = Sinks(sinks)
        if progress:
            display = NotebookDisplay() if shell() is not None else make_display()
            audience.put_first([InPython(display)])
        if folder != asked:
            audience.handle(Note(f"{asked} has a run of another job, so this one is in {folder}"))
        plan = make_plan(job.spec)
        for line in (*replaced, *notes(job.spec, plan)):
            audience.handle(Note(line))
        first_stop = "stopping after this update, with a checkpoint; interrupt again to stop at once"
        with stoppable(first_stop, audience) as requested:
            training.train(job, options, audience, requested, plan)
        return Run(folder)


def _refuse_no_sinks(sinks: Sequence[Any]) -> None:
    """Raise SpecError if what was given as a sink cannot receive events."""
    faults = []
    for index, sink in enumerate(sinks):
        if isinstance(sink, type):
            faults.append(Fault(f"sinks[{index}]", f"the class {sink.__name__}", "give an object of it"))
        elif not callable(getattr(sink, "handle", None)):
            given = f"a {type(sink).__name__} without the method handle"
            faults.append(Fault(f"sinks[{index}]", given, "give an object with handle(event)"))
    if faults:
        raise SpecError(faults)


def _sorted_out(workload: Any) -> tuple[BatchGrowthJob | None, str | None, bytes]:
    """Return a manifest's job, or else the entrypoint of a workload, and its pickle if it has no module.

    Raises SpecError if neither is given, and what reading the manifest raises.
    """
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


def _as_weights(given: Any) -> Any:
    """Return the block `initial_weights` if a run or a path was given in its place."""
    if isinstance(given, Run):
        return {"path": str(given.folder)}
    if isinstance(given, str | Path):
        return {"path": str(given)}
    if isinstance(given, Mapping) and isinstance(given.get("path"), Run | Path):
        return {**given, "path": _as_weights(given["path"])["path"]}
    return given


def _is_path(workload: Any) -> TypeGuard[str | Path]:
    return isinstance(workload, Path) or (isinstance(workload, str) and workload.endswith((".yaml", ".yml", ".json")))


def _name_of(entrypoint: str) -> str:
    """Return the job's name: the function's name, or its module's name if the function is called workload."""
    module, _, function = entrypoint.partition(":")
    own = function if function != "workload" or is_function(entrypoint) else module.rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "-", own.lower()).lstrip("-0123456789")[:LONGEST_JOB_NAME].strip("-") or "workload"


def _checked(name: str, spec: Mapping[str, Any], base: BatchGrowthJob | None, say: Say) -> BatchGrowthJob:
    """Return the checked job. Load the workload to count its examples if neither keyword nor manifest gives them.

    `say` receives a line for each block of the manifest that a keyword replaces.
    """
    if "examples" in spec["workload"] or base is not None:
        return job_of(name, spec, base, say)
    workload = spec["workload"]
    # Until they are counted, no rule may find that they are too few.
    job = job_of(name, {**spec, "workload": {**workload, "examples": LARGEST_INT32}})
    found = load_workload(job.spec.workload.entrypoint, job.spec.workload.arguments, seed=0, examples=None)
    return job_of(name, {**spec, "workload": {**workload, "examples": len(found.train)}})


def _folder_of(job: BatchGrowthJob, asked: Path, *, resume: bool) -> Path:
    """Return the folder for the job's results: the first of FOLDER, FOLDER-2, … that has no run, or one of this job.

    So each run of a loop has a folder of its own, the same one if the loop runs again. A resume compares only settings
    that determine the weights. If no folder has a run of this job, it gets `asked`, and later says what differs there.
    """
    folder = asked
    number = 1
    while (folder / JOB_FILE).is_file():
        with suppress(BatchGrowthError):  # its job cannot be read, so it is another one
            if _identity(recorded_job(folder), resume=resume) == _identity(job, resume=resume):
                return folder
        number += 1
        # The current folder, as Path("."), has no name that could get a number.
        folder = asked.with_name(f"{asked.resolve().name}-{number}") if asked.name else asked / str(number)
    return asked if resume else folder


def _identity(job: BatchGrowthJob, *, resume: bool) -> str:
    """Return the settings by which the job of a folder is recognized; an edited function leaves the job the same."""
    text = json.dumps(mathematics(job.spec), sort_keys=True) if resume else manifest_text(job)
    return NAMED.sub(r"\1", text)


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
def process_as_it_was() -> Iterator[None]:
    """Restore torch's threads, the random generators and Dask's log after the block; the process is the user's."""
    with ALONE:
        threads = torch.get_num_threads()
    try:
        with untouched_randomness(), quiet_dask():
            yield
    finally:
        with ALONE:
            torch.set_num_threads(threads)

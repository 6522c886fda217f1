"""Starts a run from Python: in a notebook, a script or a program."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from batchgrowth.errors import CheckpointError, Fault, Interrupted, SpecError
from batchgrowth.keywords import job_of
from batchgrowth.manifest import load_manifest
from batchgrowth.spec import BatchGrowthJob
from batchgrowth.spec.metadata import LONGEST_JOB_NAME

from batchgrowth_trainer import training
from batchgrowth_trainer.frontend.interrupts import interrupts
from batchgrowth_trainer.frontend.runs import Run
from batchgrowth_trainer.frontend.wording import InPython, reported_in_python, shell
from batchgrowth_trainer.loading import find_modules_in, load_workload
from batchgrowth_trainer.record.fingerprint import importable_name
from batchgrowth_trainer.record.functions import changes, function_in, is_function, packed
from batchgrowth_trainer.record.output import CHECKPOINTS
from batchgrowth_trainer.record.replay import JOB_FILE, recorded_job
from batchgrowth_trainer.replica.draws import untouched_randomness
from batchgrowth_trainer.sinks.cell import Cell
from batchgrowth_trainer.sinks.display import make_display
from batchgrowth_trainer.sinks.events import Note, Sink, publish
from batchgrowth_trainer.worker.logs import quiet_dask
from batchgrowth_trainer.workload import Workload

_WANTED = (
    "give a function that returns a batchgrowth_trainer.Workload, its name as package.module:function, or the path "
    "of a manifest"
)


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
    """The finished run, trained by worker processes of this machine or by those of the Dask cluster at `scheduler`.

    `workload` is the function that returns the `Workload`: the function itself, which needs no module and is sent to
    the workers, or its name as "package.module:function". It may also be the path of a manifest, or a BatchGrowthJob,
    whose fields are then the defaults of the keywords.

    Every field of a manifest's `spec` is a keyword, with its name in snake_case and the same structure:
    `epochs=30, batch={"initial": 32, "maximum": 512}, learning_rate={"initial": 0.05}`. `epochs`, `batch` and
    `learning_rate` are required. `arguments` and `device` are those of `spec.workload`; `examples` is too, and is
    counted by calling the function here if it is not given.

    Results go to the folder `output_dir`, by default runs/NAME; `name` is by default that of the function. A run that
    is there is kept in earlier/N; with `resume` it goes on from its newest checkpoint instead. `progress` shows how far
    it is; `sinks` receive the events too.

    Interrupting it (Ctrl-C, or the notebook's button) writes a checkpoint and raises Interrupted; a second time stops
    at once. Raises SpecError with every fault of the keywords, WorkloadError for one of the function, DataError,
    CheckpointError, or another error of `batchgrowth.errors`.
    """
    with reported_in_python(), _process_as_it_was():
        paths = _users_modules(workload)
        base, entrypoint, function = _sorted_out(workload)
        given: dict[str, Any] = {"arguments": arguments, "examples": examples, "device": device}
        given = {key: value for key, value in given.items() if value is not None}
        if entrypoint is not None:
            given["entrypoint"] = entrypoint
        title = name or (base.metadata.name if base else _name_of(entrypoint or ""))
        job = _checked(title, {**spec, "workload": given}, base)
        folder = Path(output_dir) if output_dir is not None else Path("runs") / title
        if resume:
            _refuse_another_function(folder, job, function)
        options = training.Options(
            output_dir=folder, scheduler=scheduler, resume=resume, paths=paths, function=function
        )
        _trained(job, options, [*([_display()] if progress else []), *sinks])
        return Run(folder)


def _sorted_out(workload: Any) -> tuple[BatchGrowthJob | None, str | None, bytes]:
    """What was given as the workload: a manifest's job, the entrypoint, and the function if it has no module."""
    if isinstance(workload, BatchGrowthJob):
        return workload, None, b""
    if _is_path(workload):
        return load_manifest(Path(workload)), None, b""
    if isinstance(workload, str):
        return None, workload, b""
    if not callable(workload):
        raise SpecError([Fault("workload", f"a {type(workload).__name__}", _WANTED)])
    if (name := importable_name(workload)) is not None:
        return None, name, b""
    return None, *packed(workload)


def _is_path(workload: Any) -> bool:
    return isinstance(workload, Path) or (isinstance(workload, str) and workload.endswith((".yaml", ".yml", ".json")))


def _users_modules(workload: Any) -> tuple[str, ...]:
    """The folders of the user's modules, as for `batchgrowth run`; this process finds modules there from now on."""
    above = [str(Path(workload).resolve().parent)] if _is_path(workload) else []
    paths = tuple(dict.fromkeys((*above, str(Path.cwd()))))
    find_modules_in(paths)
    return paths


def _name_of(entrypoint: str) -> str:
    """The name of the job: that of the function, or of its module if the function is called workload."""
    module, _, function = entrypoint.partition(":")
    own = function if function != "workload" or is_function(entrypoint) else module.rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "-", own.lower()).lstrip("-0123456789")[:LONGEST_JOB_NAME].strip("-") or "workload"


def _checked(name: str, spec: Mapping[str, Any], base: BatchGrowthJob | None) -> BatchGrowthJob:
    """The job; the number of its examples is counted, once all else is checked, if nothing gives it."""
    if "examples" in spec["workload"] or base is not None:
        return job_of(name, spec, base)
    workload = spec["workload"]
    job = job_of(name, {**spec, "workload": {**workload, "examples": 1}})
    found = load_workload(job.spec.workload.entrypoint, job.spec.workload.arguments, seed=0, examples=None)
    return job_of(name, {**spec, "workload": {**workload, "examples": len(found.train)}})


def _refuse_another_function(folder: Path, job: BatchGrowthJob, function: bytes) -> None:
    """Raises CheckpointError if checkpoints are there of a run of another version of the function."""
    if not function or not (folder / JOB_FILE).is_file() or not any((folder / CHECKPOINTS).glob("*")):
        return
    before = recorded_job(folder).spec.workload.entrypoint
    if is_function(before) and before != job.spec.workload.entrypoint:
        changed = " and ".join(changes(function_in(folder, before), function))
        raise CheckpointError(
            f"{folder}: the run there has another workload, since {changed} changed; undo that to resume it, or train "
            "without --resume, which begins a new run and keeps this one"
        )


def _trained(job: BatchGrowthJob, options: training.Options, sinks: Sequence[Sink]) -> None:
    first_stop = Note("stopping after this update, with a checkpoint; interrupt again to stop at once")
    try:
        with interrupts(lambda: publish(sinks, first_stop)) as requested:
            training.train(job, options, sinks, requested)
    except KeyboardInterrupt:
        raise Interrupted("stopped at once; --resume continues from the last checkpoint") from None


def _display() -> Sink:
    return InPython(Cell() if shell() is not None else make_display())


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Sets torch's threads, the random numbers and Dask's log back at the end: the process is the user's."""
    threads = torch.get_num_threads()
    try:
        with untouched_randomness(), quiet_dask():
            yield
    finally:
        torch.set_num_threads(threads)

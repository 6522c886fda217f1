"""Builds the replica of a process from a job's spec, or from the results of a run, with the weights it starts with.

Initial weights that the manifest names are read, checked by their digest, and loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from batchgrowth.errors import CheckpointError, DataError
from batchgrowth.manifest.reading import Say, nobody
from batchgrowth.spec import BatchGrowthJob, JobSpec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from batchgrowth_trainer.exchange.strategy import prepare_exchange, try_exchange
from batchgrowth_trainer.record.checkpoint import Saved, newest_whole
from batchgrowth_trainer.record.functions import function_in
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE
from batchgrowth_trainer.record.runs import recorded_job
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.record.storage import CHECKPOINTS
from batchgrowth_trainer.record.workload_source import find_workload
from batchgrowth_trainer.replica.decisions import check_metrics
from batchgrowth_trainer.replica.evaluation import try_evaluation
from batchgrowth_trainer.replica.flat import modules_of
from batchgrowth_trainer.replica.modules import Modules, copied
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.reproducible import ALONE, make_device, prepare_process
from batchgrowth_trainer.replica.seeds import draw_seed, untouched_randomness
from batchgrowth_trainer.replica.state_dict import exported, load_exported, with_tied
from batchgrowth_trainer.replica.workload_trial import try_out
from batchgrowth_trainer.user_code import begin_job, load_workload
from batchgrowth_trainer.user_errors import reported_as_workload_error
from batchgrowth_trainer.workload import Workload

# --- The weights with which a training starts ---

_OF_TORCH = (".pt", ".pth", ".bin")


def with_digest(job: BatchGrowthJob) -> BatchGrowthJob:
    """Return the job with the absolute path and the digest of its initial weights, which belongs to the mathematics.

    Raises DataError if they cannot be read, or have another digest than the job gives.
    """
    initial = job.spec.initial_weights
    if initial is None:
        return job
    # Absolute, since workers may have another current folder.
    path = Path(initial.path).resolve()
    found = digest(read_weights(path))
    _check_digest(path, found, initial.sha256)
    settled = initial.model_copy(update={"path": str(path), "sha256": found})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"initial_weights": settled})})


def begin_with(modules: Modules, spec: JobSpec) -> None:
    """Load the job's initial weights, if it has any, into the modules. Raises DataError if they do not fit."""
    initial = spec.initial_weights
    if initial is None:
        return
    path = Path(initial.path)
    weights = read_weights(path)
    _check_digest(path, digest(weights), initial.sha256)
    own = exported(modules)
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    if initial.match == "ByName" and not fitting:
        raise DataError(
            f"initialWeights.path: {path} has no tensor of the name and the shape of one of the model's, which "
            f"are {_some(own)}; it has {_some(weights)}"
        )
    # Before the check for Strict: a file may have only one of the names of a tensor that layers share.
    fitting = with_tied(modules, fitting)
    if initial.match == "Strict" and (odd := (own.keys() | weights.keys()) - fitting.keys()):
        raise DataError(
            f"initialWeights.path: {path} does not fit the model: {_some(sorted(odd))} are not the same in both; give "
            "the weights of this model, or match: ByName, which takes those that fit"
        )
    load_exported(modules, {**own, **fitting})


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of safetensors or torch, or of the final weights of a run in a folder, by name.

    Raises DataError if there are none.
    """
    file = path / WEIGHTS_FILE if path.is_dir() else path
    try:
        if file.suffix in _OF_TORCH:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
                found = found["state_dict"]
        else:
            found = load_file(file)
    except FileNotFoundError:
        if file != path:
            raise DataError(
                f"initialWeights.path: {path} has no {WEIGHTS_FILE}, which a run writes at its end; let it finish, or "
                'export its newest checkpoint: torch.save(load(…).model.state_dict(), "weights.pt")'
            ) from None
        raise DataError(f"initialWeights.path: {path}: there is no such file or folder") from None
    except (OSError, RuntimeError, SafetensorError, UnpicklingError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"initialWeights.path: {file} cannot be read ({reason}); give a file of safetensors, or the state dict of "
            f"a model that torch.save wrote, with a name that ends with {', '.join(_OF_TORCH)}"
        ) from error
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"initialWeights.path: {file} has no state dict; give tensors by name")
    return dict(found)


def digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the weights, whatever the order and the format of the file."""
    return weights_sha256(dict(sorted(weights.items())))


def _check_digest(path: Path, found: str, given: str | None) -> None:
    if given not in (None, found):
        raise DataError(
            f"initialWeights.sha256: {given} was given, and the weights in {path} have {found}; give these weights "
            "their digest, or the path of the others"
        )


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


# --- The replica ---


def begin(spec: JobSpec, folders: Iterable[str] = (), function: bytes = b"", *, is_worker: bool = False) -> None:
    """Let this process import the user's code of a job afresh: see `user_code.begin_job`."""
    begin_job(model_seed(spec), folders, function, is_worker=is_worker)


def model_seed(spec: JobSpec) -> int:
    """Return the seed with which the workload's module is imported and its model is made."""
    return draw_seed(spec.seed, "model") % 2**32


def build_workload(spec: JobSpec) -> Workload:
    """Return the workload with its model before the first update. Raises WorkloadError or DataError."""
    given = spec.workload
    return load_workload(given.entrypoint, given.arguments, seed=model_seed(spec), examples=given.examples)


def build_replica(spec: JobSpec, *, trained: bool = False) -> Replica:
    """Return a replica before its first update, after trying it out; it has the same bits in every process.

    If `trained`, do not load the initial weights, because the replica gets the weights of a run.

    Its first shard loads kernels, finds a faulty loss before the first update, and shows how the process adds:
    `replica.arithmetic`. Raises WorkloadError or DataError.
    """
    prepare_process(spec)
    workload = build_workload(spec)
    prepare_process(spec)  # again, since code that is imported may set threads
    if not trained:
        begin_with(modules_of(workload.model, workload.loss_module), spec)
    check_metrics(spec, workload)
    device = make_device(spec)
    with reported_as_workload_error(f"{spec.workload.entrypoint}: preparing the model"):
        replica = Replica(spec, workload, device)
    try:
        _prepare_exchange(replica)  # before the first shard, whose sums an exchange.compression rounds
        try_out(replica)
        try_evaluation(replica)
        replica.growth.try_out()
        try_exchange(replica)
    except BaseException:
        # The caller gets no replica to close, so the loaders would live on.
        replica.reader.close()
        raise
    return replica


def _prepare_exchange(replica: Replica) -> None:
    """Let the exchange, which may be another distribution's, register its tensors. Raises WorkloadError."""
    with reported_as_workload_error(f"exchange {replica.spec.exchange.type}: preparing it"):
        prepare_exchange(replica)


# --- The results of a run ---


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a run: the file `path` if it has ended, else its checkpoint `saved`; the best ones if `best`."""

    path: Path
    best: bool = False
    saved: Saved | None = None

    @classmethod
    def of(cls, folder: Path, *, best: bool = False) -> "Weights":
        """Return the weights of the run in `folder`. Raises DataError if it has none."""
        name = BEST_FILE if best else WEIGHTS_FILE
        if (folder / name).is_file():
            return cls(folder / name, best)
        if best and (folder / WEIGHTS_FILE).is_file():
            raise DataError(
                f"{folder}: the run ended without a {name}, as its job has no evaluation.keepBest, or no evaluation "
                "was finite; take the final weights, or train again with evaluation.keepBest"
            )
        saved = newest_whole(folder / CHECKPOINTS)
        if saved is None:
            asked = " if its job has evaluation.keepBest" if best else ""
            raise DataError(
                f"{folder}: there is no {name} here, which a run writes at its end{asked}, and no whole checkpoint; "
                "let it finish, or train for longer"
            )
        return cls(folder, best, saved)

    @property
    def told(self) -> str:
        """Return which weights these are, as the end of a sentence; "" if the run has ended."""
        if self.saved is None:
            return ""
        at = self.saved.snapshot.position
        return f"; the run has not ended, so these are the weights of its newest checkpoint, of update {at.update:,}"

    def put_into(self, replica: Replica) -> None:
        """Give the replica these weights, and put its model into eval mode.

        Raises CheckpointError if they do not fit, and DataError if a checkpoint has no best ones.
        """
        if self.saved is None:
            _load(replica.workload, self.path, replica.spec)
        else:
            replica.restore(self.saved.snapshot)
            if self.best:
                load_exported(replica.modules, self._best(replica))
        if replica.average is not None and (self.saved is None or self.best):  # the average is evaluated and exported
            replica.average.vector.copy_(replica.parameters.vector.data)
        replica.model.eval()

    def state_dict(self, replica: Replica) -> dict[str, Tensor]:
        """Return the model's state dict, on the CPU."""
        if self.best:
            return self._best(replica)
        return replica.state_dict()

    def _best(self, replica: Replica) -> dict[str, Tensor]:
        best = replica.judgement.best_state_dict(partial(exported, replica.modules), replica.model_tensors())
        if best is None:
            raise DataError(f"{self.path}: the checkpoint has no best weights; its job needs evaluation.keepBest")
        return best


def trained_replica(folder: Path, *, best: bool = False, given: Sequence[Path] = (), say: Say = nobody) -> Replica:
    """Return the replica of the run in `folder`, in eval mode, with its weights or with its `best` ones.

    The `given` folders may have the workload's module, else the run knows where it was; `say` receives a line about
    that and about the weights. Raises DataError if the run has no weights, CheckpointError if they are damaged or of
    another model, and what loading the workload raises.
    """
    job, weights, home = _found(folder, best, given, say)
    begin(job.spec, home, function_in(folder, job.spec.workload.entrypoint))
    replica = build_replica(job.spec, trained=True)
    weights.put_into(replica)
    return replica


def trained_model(folder: Path, *, best: bool = False, say: Say = nobody) -> nn.Module:
    """Return the model of `trained_replica`, on the CPU; this process keeps its threads and random numbers."""
    job, weights, home = _found(folder, best, (), say)
    with ALONE, untouched_randomness():
        begin(job.spec, home, function_in(folder, job.spec.workload.entrypoint))
        workload = build_workload(job.spec)
        if weights.saved is None:
            _load(workload, weights.path, job.spec)
            return workload.model.eval()
        # A replica turns its own model's tensors into views of one vector, so copies of the modules get the weights.
        both = workload.model, workload.loss_module
        model, loss = copied(both, both)
        replica = Replica(job.spec, workload, torch.device("cpu"))
        with closing(replica.reader):
            _prepare_exchange(replica)
            replica.restore(weights.saved.snapshot)
            load_exported(modules_of(model, loss), weights.state_dict(replica))
    return model.eval()


def _found(folder: Path, best: bool, given: Sequence[Path], say: Say) -> tuple[BatchGrowthJob, Weights, list[str]]:
    """Return a run's job and weights, and its workload's folder in a list, as `find_workload` does."""
    job = recorded_job(folder)
    weights = Weights.of(folder, best=best)
    line, home = find_workload(folder, job.spec, given)
    say(line + weights.told)
    return job, weights, home


def _load(workload: Workload, path: Path, spec: JobSpec) -> None:
    try:
        load_exported(modules_of(workload.model, workload.loss_module), load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: these weights cannot be loaded ({' '.join(str(error).split())}). Name the folder of a run of "
            f"{spec.workload.entrypoint} as it is now"
        ) from error

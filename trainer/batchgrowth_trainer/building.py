"""Builds the replica of a process from a job's spec, or from the results of a run."""

from pathlib import Path

from batchgrowth.errors import CheckpointError, DataError
from batchgrowth.spec import JobSpec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from batchgrowth_trainer.exchange.strategy import prepare_exchange
from batchgrowth_trainer.record.functions import function_in, receive
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE
from batchgrowth_trainer.record.runs import recorded_job
from batchgrowth_trainer.replica.devices import make_device, prepare_process
from batchgrowth_trainer.replica.judgement import check_metrics
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed, untouched_randomness
from batchgrowth_trainer.replica.trial import try_out
from batchgrowth_trainer.user_code import load_workload
from batchgrowth_trainer.user_errors import reported_as_workload_error
from batchgrowth_trainer.workload import Workload


def build_workload(spec: JobSpec) -> Workload:
    """Return the workload with its model before the first update. Raises WorkloadError or DataError."""
    given = spec.workload
    seed = draw_seed(spec.seed, "model") % 2**32
    return load_workload(given.entrypoint, given.arguments, seed=seed, examples=given.examples)


def build_replica(spec: JobSpec) -> Replica:
    """Return a replica at the first update that is tried out, and has the same bits in every process.

    Its first shard loads kernels, finds a faulty loss before the first update, and shows how the process adds:
    `replica.arithmetic`. Raises WorkloadError or DataError.
    """
    prepare_process(spec)
    given = spec.workload
    workload = build_workload(spec)
    check_metrics(spec, workload)
    device = make_device(spec)
    with reported_as_workload_error(f"{given.entrypoint}: preparing the model"):
        replica = Replica(spec, workload, device)
    prepare_exchange(replica)  # before the first shard, whose sums an exchange.compression rounds
    try:
        try_out(replica)
    except BaseException:
        replica.loaders.close()
        raise
    return replica


def trained_replica(folder: Path, *, best: bool = False) -> Replica:
    """Return the replica of the run in `folder`, in eval mode, with its final weights or with its `best` ones.

    Raises DataError if no run ended there, CheckpointError if the weights are damaged or of another model, and what
    loading the workload raises.
    """
    job = recorded_job(folder)
    path = _weights_in(folder, best)
    receive_from(folder, job.spec)
    replica = build_replica(job.spec)
    _load(replica.model, path, job.spec)
    if replica.average is not None:  # it is what the run exported
        replica.average.vector.copy_(replica.parameters.vector.data)
    replica.model.eval()
    return replica


def receive_from(folder: Path, spec: JobSpec) -> None:
    """Let this process find the workload of the run in `folder` if that is a function without a module."""
    if function := function_in(folder, spec.workload.entrypoint):
        receive(function)


def trained_model(folder: Path, *, best: bool = False) -> nn.Module:
    """Return the model of `trained_replica`, on the CPU; this process keeps its threads and random numbers."""
    job = recorded_job(folder)
    path = _weights_in(folder, best)
    receive_from(folder, job.spec)
    with untouched_randomness():
        model = build_workload(job.spec).model
    _load(model, path, job.spec)
    return model.eval()


def _weights_in(folder: Path, best: bool) -> Path:
    name = BEST_FILE if best else WEIGHTS_FILE
    path = folder / name
    if not path.is_file():
        asked = " if its job has evaluation.keepBest" if best else ""
        raise DataError(f"{folder}: there is no {name} here; a run writes it at its end{asked}, so let it finish")
    return path


def _load(model: nn.Module, path: Path, spec: JobSpec) -> None:
    try:
        model.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: these weights cannot be loaded ({' '.join(str(error).split())}). Name the folder of a run of "
            f"{spec.workload.entrypoint} as it is now"
        ) from error

"""Builds the replica of a process from a job's spec."""

from batchgrowth.spec import JobSpec

from batchgrowth_trainer.blame import reported_as_workload_error
from batchgrowth_trainer.loading import load_workload
from batchgrowth_trainer.replica.devices import make_device, prepare_process
from batchgrowth_trainer.replica.draws import draw_seed
from batchgrowth_trainer.replica.judgement import check_metrics
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.trial import try_out
from batchgrowth_trainer.workload import Workload


def build_workload(spec: JobSpec) -> Workload:
    """The workload with its model before the first update. Raises WorkloadError or DataError."""
    given, seed = spec.workload, draw_seed(spec.seed, "model") % 2**32
    return load_workload(given.entrypoint, given.arguments, seed=seed, examples=given.examples)


def build_replica(spec: JobSpec) -> Replica:
    """A replica at the first update, bit for bit the same in every process, and tried out.

    Its first shard loads kernels, finds a faulty loss before the first update, and shows how the process adds:
    `replica.arithmetic`. Raises WorkloadError or DataError.
    """
    prepare_process(spec)
    given, workload = spec.workload, build_workload(spec)
    check_metrics(spec, workload)
    device = make_device(spec)
    with reported_as_workload_error(f"{given.entrypoint}: preparing the model"):
        replica = Replica(spec, workload, device)
    try:
        try_out(replica)
    except BaseException:
        replica.loaders.close()
        raise
    return replica

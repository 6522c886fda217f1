"""The model of a run that has ended, with its weights."""

from pathlib import Path

from batchgrowth.errors import CheckpointError, DataError
from safetensors import SafetensorError
from safetensors.torch import load_file

from batchgrowth_trainer.record.output import WEIGHTS_FILE
from batchgrowth_trainer.record.replay import recorded_job
from batchgrowth_trainer.replica.building import build_replica
from batchgrowth_trainer.replica.replica import Replica


def trained_replica(folder: Path) -> Replica:
    """The replica of the run in `folder`, with the weights with which it ended, in eval mode.

    Raises DataError if no run ended there, CheckpointError if the weights are damaged or of another model, and what
    loading the workload raises.
    """
    job, path = recorded_job(folder), folder / WEIGHTS_FILE
    if not path.is_file():
        raise DataError(f"{folder}: there is no {WEIGHTS_FILE} here; a run writes it at its end, so let it finish")
    replica = build_replica(job.spec)
    try:
        replica.model.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: these weights cannot be loaded ({' '.join(str(error).split())}). Name the folder of a run of "
            f"{job.spec.workload.entrypoint} as it is now"
        ) from error
    if replica.average is not None:  # it is what the run exported
        replica.average.vector.copy_(replica.parameters.vector.data)
    replica.model.eval()
    return replica

"""The first shard of a job, computed with its first weights: how this process adds."""

import hashlib
import platform
from functools import cache
from pathlib import Path

import torch
from batchgrowth.plan import Position

from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.packed import pack
from batchgrowth_trainer.replica.replica import Replica


def first_shard(replica: Replica) -> Arithmetic:
    """Computes the first shard with the weights that the replica has, which stays as it is.

    A replica that was just built has the first weights of its job, the same in every process. The digest is empty if
    the kernels need not be deterministic: it would differ from process to process.
    Raises what computing a shard raises.
    """
    partials = replica.partials(replica.plan.step_at(Position()), (0, 1))
    digest = hashlib.sha256(pack(partials[0].row).data.tobytes()).hexdigest()
    replica.rows.release(partials)
    return Arithmetic(
        digest="" if replica.spec.deterministic is False else digest,
        device=_device(replica.device),
        processor=processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        torch=f"torch {torch.__version__}",
        threads=f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}",
    )


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


@cache
def processor() -> str:
    """The processor's model, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()

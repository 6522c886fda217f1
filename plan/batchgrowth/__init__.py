"""What should happen: the manifest, the plan, and the documents that operator and trainer exchange. Pure."""

from batchgrowth.contract.progress import Progress
from batchgrowth.contract.status import JobStatus
from batchgrowth.errors import (
    BatchGrowthError,
    CheckpointError,
    ClusterError,
    DataError,
    Fault,
    Interrupted,
    PlanError,
    PortError,
    SpecError,
    StorageError,
    WorkloadError,
)
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.plan import Plan, Stage, Step, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob, JobSpec, mathematics

__all__ = [
    "BatchGrowthError", "BatchGrowthJob", "CheckpointError", "ClusterError", "DataError", "Fault", "Interrupted",
    "JobSpec", "JobStatus", "Plan", "PlanError", "PortError", "Position", "Progress", "SpecError", "Stage", "Step",
    "StorageError", "WorkloadError", "load_manifest", "make_plan", "mathematics", "read_manifest",
]  # fmt: skip

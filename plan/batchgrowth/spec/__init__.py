"""Everything a user may ask for, as frozen pydantic models; each field's sentence becomes the CRD's documentation."""

from batchgrowth.schema import Model, Rule
from batchgrowth.spec.job import (
    API_VERSION,
    KIND,
    BatchGrowthJob,
    JobSpec,
    Metadata,
)
from batchgrowth.spec.mathematics import MATHEMATICS, UNWRITTEN, differences, mathematics
from batchgrowth.spec.running import Checkpoint, Exchange, PullSecret, Restarts, Volume, Workers
from batchgrowth.spec.training import (
    Averaging,
    Batch,
    Clipping,
    Evaluation,
    Growth,
    LearningRate,
    Optimizer,
    Schedule,
    StopEarly,
    Warmup,
    WatchedMetric,
    Workload,
)

__all__ = [
    "API_VERSION", "KIND", "MATHEMATICS", "UNWRITTEN", "Averaging", "Batch", "BatchGrowthJob", "Checkpoint",
    "Clipping", "Evaluation", "Exchange", "Growth", "JobSpec", "LearningRate", "Metadata", "Model", "Optimizer",
    "PullSecret", "Restarts", "Rule", "Schedule", "StopEarly", "Volume", "Warmup", "WatchedMetric", "Workers",
    "Workload", "differences", "mathematics",
]  # fmt: skip

"""Everything a user may ask for, as frozen pydantic models; each field's sentence becomes the CRD's documentation."""

from batchgrowth.schema import Model, Rule
from batchgrowth.spec.job import (
    API_VERSION,
    KIND,
    BatchGrowthJob,
    Checkpoint,
    JobSpec,
    Metadata,
    Restarts,
    Volume,
)
from batchgrowth.spec.mathematics import MATHEMATICS, UNWRITTEN, differences, mathematics
from batchgrowth.spec.pods import PullSecret
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
from batchgrowth.spec.workers import Exchange, Workers

__all__ = [
    "API_VERSION", "KIND", "MATHEMATICS", "UNWRITTEN", "Averaging", "Batch", "BatchGrowthJob", "Checkpoint",
    "Clipping", "Evaluation", "Exchange", "Growth", "JobSpec", "LearningRate", "Metadata", "Model", "Optimizer",
    "PullSecret", "Restarts", "Rule", "Schedule", "StopEarly", "Volume", "Warmup", "WatchedMetric", "Workers",
    "Workload", "differences", "mathematics",
]  # fmt: skip

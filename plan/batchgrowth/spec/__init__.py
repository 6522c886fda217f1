"""Everything a user may ask for, as frozen pydantic models; each field's sentence becomes the CRD's documentation."""

from batchgrowth.schema.model import Model, Rule, exact
from batchgrowth.spec.batch import Batch, Growth
from batchgrowth.spec.evaluation import Evaluation, StopEarly, Watched
from batchgrowth.spec.job import API_VERSION, KIND, BatchGrowthJob, JobSpec
from batchgrowth.spec.mathematics import MATHEMATICS, UNWRITTEN, differences, mathematics
from batchgrowth.spec.metadata import Metadata
from batchgrowth.spec.optimization import Averaging, Clipping, LearningRate, Optimizer, Schedule, Warmup
from batchgrowth.spec.running import Checkpoint, Exchange, PullSecret, Restarts, Volume, Workers
from batchgrowth.spec.workload import Workload

__all__ = [
    "API_VERSION", "KIND", "MATHEMATICS", "UNWRITTEN", "Averaging", "Batch", "BatchGrowthJob", "Checkpoint",
    "Clipping", "Evaluation", "Exchange", "Growth", "JobSpec", "LearningRate", "Metadata", "Model", "Optimizer",
    "PullSecret", "Restarts", "Rule", "Schedule", "StopEarly", "Volume", "Warmup", "Watched", "Workers", "Workload",
    "differences", "exact", "mathematics",
]  # fmt: skip

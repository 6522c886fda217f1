"""What should happen: the manifest, its plan and its forecast, and what operator and trainer exchange."""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from batchgrowth.spec import BatchGrowthJob, JobSpec
    from batchgrowth.spec.mathematics import mathematics

__all__ = [
    "BatchGrowthError", "BatchGrowthJob", "CheckpointError", "ClusterError", "DataError", "Fault", "Interrupted",
    "JobSpec", "JobStatus", "Plan", "PlanError", "PortError", "Position", "Progress", "SpecError", "Stage", "Step",
    "StorageError", "WorkloadError", "load_manifest", "make_plan", "mathematics", "read_manifest",
]  # fmt: skip

_MODULES = {
    "contract.progress": ("Progress",),
    "contract.status": ("JobStatus",),
    "manifest.reading": ("load_manifest", "read_manifest"),
    "plan": ("Plan", "Stage", "Step", "make_plan"),
    "position": ("Position",),
    "spec": ("BatchGrowthJob", "JobSpec", "mathematics"),
}
"""Module -> what this package takes from it; errors.py has the others."""


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, imported at its first use: the imports take a second, in which Ctrl-C must work."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "errors")
    found = pkgutil.resolve_name(f"{__name__}.{module}:{name}")
    globals()[name] = found
    return found

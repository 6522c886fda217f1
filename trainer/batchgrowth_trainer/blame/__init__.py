"""Errors of users' code and data: which of them may pass, and one paragraph about each with file, line and remedy."""

from batchgrowth_trainer.blame.advice import advice_for
from batchgrowth_trainer.blame.faults import (
    FAULTS,
    DeviceFault,
    ReadFault,
    WorkerFault,
    is_of_the_device,
    may_pass,
)
from batchgrowth_trainer.blame.paragraph import (
    begin,
    described,
    reason,
    reported_as_device_fault,
    reported_as_workload_error,
    seen_at,
    workload_error,
)

__all__ = [
    "FAULTS",
    "DeviceFault",
    "ReadFault",
    "WorkerFault",
    "advice_for",
    "begin",
    "described",
    "is_of_the_device",
    "may_pass",
    "reason",
    "reported_as_device_fault",
    "reported_as_workload_error",
    "seen_at",
    "workload_error",
]

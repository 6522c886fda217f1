"""The slow digits net in a process that tells its driver of updates only where it is asked, or has come to an end."""

from batchgrowth_trainer.worker import member
from slow_digits import workload

__all__ = ["workload"]

member._REPORT_SECONDS = 3600.0

"""The slow digits net in a process that reports updates only when asked, or at the end of a generation."""

from batchgrowth_trainer.worker import member
from slow_digits import workload

__all__ = ["workload"]

member._REPORT_SECONDS = 3600.0

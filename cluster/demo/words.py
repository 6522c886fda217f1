"""How numbers of a job are worded."""

from __future__ import annotations

from batchgrowth.durations import duration
from batchgrowth.status import JobStatus


def seconds(value: float | None) -> str:
    """`4.1 s`, `2 min 05 s`, `1 h 07 min`, and a dash where there is nothing to tell."""
    return "–" if value is None else duration(value)


def pause(value: float | None) -> str:
    """`68 ms`, or seconds from one second on."""
    return seconds(value) if value is None or value >= 1 else f"{value * 1000:.0f} ms"


def numbers(status: JobStatus) -> str:
    """`epoch 12.40  update 290  loss 0.1234  accuracy 0.9812`: what the trainer last reported, nothing before that."""
    told = status.trainer_status
    if told is None:
        return ""
    words = [f"epoch {told.epoch}", f"update {told.update}"]
    words += [f"loss {told.loss}"] if told.loss is not None else []
    words += [f"{metric.name} {float(metric.value):.4f}" for metric in told.metrics]
    return "  ".join(words)


def left(status: JobStatus) -> str:
    """`57 %, 12 s left`; nothing before the trainer has reported."""
    told = status.trainer_status
    if told is None or told.progress_percentage is None:
        return ""
    remaining = told.estimated_remaining_seconds
    return f"{told.progress_percentage} %" + (f", {seconds(remaining)} left" if remaining else "")


def workers(status: JobStatus) -> str:
    """`2 of 4 workers`: those that have joined, of those that were asked for."""
    told = status.workers
    if told is None:
        return "no workers"
    wanted = max(told.requested, told.ready)
    return f"{told.ready} of {wanted} worker{'' if wanted == 1 else 's'}"

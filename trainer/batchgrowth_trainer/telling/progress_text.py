"""How numbers of a run are worded, the same on a terminal and in a log."""

from __future__ import annotations

from batchgrowth_trainer.record.history import EvaluationRow, ResizeRow


def shown_metrics(row: EvaluationRow) -> str:
    """Each metric after a comma: `, accuracy 0.9917`."""
    return "".join(f", {name} {value:.4f}" for name, value in row.metrics.items())


def resized(row: ResizeRow) -> str:
    """`update 90: workers 1 → 2, a pause of 68 ms`."""
    pause = f"a pause of {row.pause_seconds * 1000:.0f} ms"
    return f"update {row.update:,}: workers {row.from_workers} → {row.to_workers}, {pause}"

"""The summary of a finished run."""

from pathlib import Path
from typing import Any

from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.record.runs import read_run


def summary_of(run: Run, directory: Path, name: str, sha256: str) -> dict[str, Any]:
    """The content of summary.json; `finalLoss` is the mean training loss per example over the last epoch."""
    plan, story = run.plan, run.story
    return {
        "name": name,
        "exchange": run.spec.exchange.type,
        "updates": plan.updates,
        "examples": plan.examples,
        "epochs": plan.epochs,
        "seconds": round(run.seconds, 3),
        "finalLoss": _last_epochs_loss(run, directory),
        "accuracy": story.accuracy,
        "weightsSha256": sha256,
        "resizes": [row.to_json() for row in story.resizes],
        "recoveries": story.recoveries,
    }


def _last_epochs_loss(run: Run, directory: Path) -> float:
    run.flush()
    rows = read_run(directory).history
    begin = run.plan.epochs - 1
    total, before = 0.0, float(begin)
    for row in rows:
        if row.epoch > begin:
            total += row.loss * (row.epoch - before)
            before = row.epoch
    return total

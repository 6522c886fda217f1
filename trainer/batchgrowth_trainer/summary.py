"""The end of a run: its last checkpoint, and if it is finished, its results and their summary."""

from functools import partial
from pathlib import Path
from typing import Any

from batchgrowth.errors import Interrupted
from batchgrowth.judging import Judged, end_of
from batchgrowth.spec import BatchGrowthJob, JobSpec, Watched
from safetensors.torch import save

from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Checkpoints
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE, OutputFolder
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.record.snapshot import Trained, weights_sha256
from batchgrowth_trainer.replica.judgement import RECORD, STOP, judged_in
from batchgrowth_trainer.sinks.events import Finished


def concluded(
    run: Run, job: BatchGrowthJob, folder: OutputFolder, checkpoints: Checkpoints, trained: Trained
) -> dict[str, Any]:
    """The summary of the finished run, whose results are written. Raises Interrupted if updates are left."""
    if trained.snapshot is not None:
        run.save_last(trained.snapshot)
    if trained.snapshot is None or not run.plan.is_done(trained.snapshot.position):
        run.check_saved()
        if not run.saved_update:
            raise Interrupted("stopped before the first update; there is nothing to resume")
        raise Interrupted(
            f"stopped after update {run.saved_update:,}; the checkpoint is in {checkpoints.place}, "
            "and --resume continues from it"
        )
    run.check_saved()
    for file, state_dict in ((WEIGHTS_FILE, trained.state_dict), (BEST_FILE, trained.best)):
        if state_dict is not None:
            weights = save({name: tensor.contiguous() for name, tensor in state_dict.items()})
            storage.retried(partial(folder.write, file, weights), storage.LAST_SECONDS, run.note)
    summary = summary_of(run, folder.path, job.metadata.name, weights_sha256(trained.state_dict))
    summary |= evaluation_of(run.spec, trained)
    storage.retried(lambda: folder.write_summary(summary), storage.LAST_SECONDS, run.note)
    storage.retried(checkpoints.keep_results, storage.LAST_SECONDS, run.note)
    run.publish(Finished(summary["weightsSha256"]))
    return summary


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
        "arithmetic": run.arithmetics.to_json(),
    }


def evaluation_of(spec: JobSpec, trained: Trained) -> dict[str, Any]:
    """What the summary says of the best evaluation and of an early end, null if there is none; each only if asked for.

    `best` has the SHA-256 of the weights of best.safetensors.
    """
    assert trained.snapshot is not None
    kept, stop, tensors, found = spec.evaluation.keep_best, spec.evaluation.stop_early, trained.snapshot.tensors, {}
    best, last = judged_in(tensors, RECORD, kept), judged_in(tensors, STOP, stop)
    if kept is not None:
        sha256 = {} if trained.best is None else {"weightsSha256": weights_sha256(trained.best)}
        found["best"] = {**_named(kept, best), **sha256} if best and best.update else None
    if stop is not None:
        ended = last is not None and end_of(spec, last) is not None
        found["stoppedEarly"] = {**_named(stop, last), "afterEpoch": last.evaluated} if last and ended else None
    return found


def _named(watched: Watched, best: Judged) -> dict[str, Any]:
    value = best.value if best.update else None
    return {"metric": watched.metric, "mode": watched.mode, "value": value, "update": best.update, "epoch": best.epoch}


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

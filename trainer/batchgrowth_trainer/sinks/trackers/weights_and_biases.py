"""Weights & Biases: its server, or files in the run's output folder for `wandb sync`."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import wandb

from batchgrowth_trainer.sinks.trackers.tracking import Point, Status, Training, Value

_EXIT_CODES = {Status.FINISHED: 0, Status.INTERRUPTED: 130, Status.FAILED: 1}


class WeightsAndBiases:
    """One run; offline, each of its starts has a folder of its own."""

    def __init__(self) -> None:
        self._step = 0

    def open(self, training: Training, run: str) -> str:
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        mode: Literal["offline"] | None = "offline"
        if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY"):
            mode = None  # the user has chosen
        is_online = mode is None and os.environ.get("WANDB_MODE", "online") == "online"
        self._run = wandb.init(
            id=run or None,
            resume="allow" if run and is_online else None,
            name=None if os.environ.get("WANDB_NAME") else training.name,
            dir=None if os.environ.get("WANDB_DIR") else training.folder,
            config=dict(training.spec),
            mode=mode,
            settings=settings,
            reinit="create_new",
        )
        self._run.define_metric("*", step_metric="update")
        return str(self._run.id)

    def write(self, points: Sequence[Point]) -> None:
        for point in sorted(points, key=lambda point: point.update):
            self._step = max(self._step, point.update)  # what is logged at an earlier step is dropped
            self._run.log({**point.values, "update": point.update, "_timestamp": point.at}, step=self._step)

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        self._run.summary.update({"status": str(status), **summary})
        self._run.finish(exit_code=_EXIT_CODES[status])

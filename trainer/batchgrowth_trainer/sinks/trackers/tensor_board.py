"""TensorBoard: event files in the run's output folder."""

import json
from collections.abc import Mapping, Sequence

from torch.utils.tensorboard import SummaryWriter

from batchgrowth_trainer.record.output import TENSORBOARD_FOLDER
from batchgrowth_trainer.sinks.trackers.tracking import Point, Status, Training, Value


class TensorBoard:
    """One event file for each start of the run; TensorBoard shows the files of a folder as one run."""

    def open(self, training: Training, run: str) -> str:
        folder = training.folder / TENSORBOARD_FOLDER
        self._writer = SummaryWriter(str(folder))
        if not run:
            rows = "\n".join(f"| {name} | {json.dumps(value)} |" for name, value in training.parameters.items())
            self._writer.add_text("spec", f"| field | value |\n|---|---|\n{rows}")
        return TENSORBOARD_FOLDER

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.update, point.at)
        self._writer.flush()

    def end(self, status: Status, summary: Mapping[str, Value]) -> None:
        rows = "\n".join(f"| {name} | {json.dumps(value)} |" for name, value in {"status": status, **summary}.items())
        self._writer.add_text("summary", f"| | |\n|---|---|\n{rows}")
        self._writer.close()

"""A run as Python sees it: its history as tables, its plot, and its model."""

import html
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchgrowth.spec import BatchGrowthJob
from torch import nn

from batchgrowth_trainer.frontend.wording import reported_in_python
from batchgrowth_trainer.plots import plot_runs
from batchgrowth_trainer.record.history import EvaluationRow
from batchgrowth_trainer.record.replay import recorded_job
from batchgrowth_trainer.record.runs import evaluation_facts, read_run, read_summary
from batchgrowth_trainer.replica.trained import trained_model

if TYPE_CHECKING:
    from pandas import DataFrame

_PLOT_WIDTH = 960  # pixels; the file has more


@dataclass(frozen=True, slots=True)
class Plot:
    """The files of a run's plot; a notebook shows the picture."""

    png: Path
    html: Path

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The picture and its width, as IPython asks for them."""
        texts = {"image/png": self.png.read_bytes(), "text/plain": repr(self)}
        return texts, {"image/png": {"width": _PLOT_WIDTH}}


class Run:
    """A run in its `folder`, finished or not; `train` and `load` return it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def job(self) -> BatchGrowthJob:
        """The job, with every default. Raises SpecError if it is damaged."""
        with reported_in_python():
            return recorded_job(self.folder)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of summary.json, None until the run is finished. Raises CheckpointError if it is damaged."""
        with reported_in_python():
            return read_summary(self.folder)

    @property
    def history(self) -> "DataFrame":
        """One row per update, by its number: epoch, batch_size, learning_rate, loss, workers and times in seconds.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            return _table(asdict(row) for row in read_run(self.folder).history)

    @property
    def evaluations(self) -> "DataFrame":
        """One row per evaluation, by the number of updates before it: epoch, seconds, loss, and each metric.

        Raises DataError before the first update, ImportError without pandas.
        """
        with reported_in_python():
            return _table(_evaluation(row) for row in read_run(self.folder).evaluations)

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, on the CPU and in eval mode; with their average if the job averages its weights.

        Raises DataError if the run has not ended, CheckpointError if the weights are damaged, and what loading the
        workload raises.
        """
        with reported_in_python():
            return trained_model(self.folder)

    @cached_property
    def best_model(self) -> nn.Module:
        """As `model`, with the weights of the best evaluation, which evaluation.keepBest keeps.

        Raises what `model` raises, and DataError if the job does not keep them.
        """
        with reported_in_python():
            return trained_model(self.folder, best=True)

    def plot(self) -> Plot:
        """Loss, metrics, batch and workers by epoch, update and second, as plot.png and plot.html in the folder.

        Raises DataError before the first update, BatchGrowthError if the files cannot be written.
        """
        with reported_in_python():
            return Plot(*plot_runs([self.folder]))

    def __repr__(self) -> str:
        """The folder and how the run ended."""
        return f"Run({str(self.folder)!r}): {', '.join(f'{key} {value}' for key, value in self._facts())}"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        facts = [("folder", str(self.folder)), *self._facts()]
        cells = (f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in facts)
        return f"<table>{''.join(cells)}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        summary = self.summary
        if summary is None:
            return [("state", "not finished")]
        accuracy = summary["accuracy"]
        return [
            ("updates", f"{summary['updates']:,}"),
            ("seconds", f"{summary['seconds']:.1f}"),
            ("training loss", f"{summary['finalLoss']:.4f}"),
            *([("accuracy", f"{accuracy:.4f}")] if accuracy is not None else []),
            *evaluation_facts(summary),
            ("weights SHA-256", summary["weightsSha256"]),
        ]


def load(folder: str | Path) -> Run:
    """The run in a folder, finished or not, of this process or another. Raises DataError if there is none."""
    run = Run(Path(folder))
    run.job  # noqa: B018  (there is one, and it can be read)
    return run


def _evaluation(row: EvaluationRow) -> dict[str, Any]:
    return {"update": row.update, "epoch": row.epoch, "seconds": row.seconds, "loss": row.loss, **row.metrics}


def _table(rows: Iterable[dict[str, Any]]) -> "DataFrame":
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'batchgrowth[notebook]'") from error
    table = pd.DataFrame(list(rows))
    return table.set_index("update") if len(table) else table

"""How often a job is evaluated, and what follows from its evaluations; only `stopEarly` changes the weights."""

from typing import Literal

from pydantic import Field

from batchgrowth.schema.model import Model
from batchgrowth.schema.patterns import DecimalText


class Watched(Model):
    """A metric of the evaluations, and which of its values are better."""

    metric: str = Field(
        min_length=1,
        max_length=253,
        description="Name as in evaluations.csv: loss or a metric of the workload, those of a further test set as "
        "NAME.loss. Required. Example: accuracy.",
    )
    mode: Literal["Minimize", "Maximize"] = Field(description="Whether less or more is better. Required.")

    @property
    def least(self) -> float:
        """A better value differs by more than this."""
        return 0.0


class KeepBest(Watched):
    """Which evaluation's weights are kept beside the last."""


class StopEarly(Watched):
    """When training ends before its last epoch."""

    patience: int = Field(
        ge=1,
        le=1_000_000,
        description="Evaluations in a row without a better value, after which the job ends. Required. Example: 5.",
    )
    minimum_change: DecimalText = Field(
        "0", description="A better value differs from the best before by more than this. Default: 0."
    )

    @property
    def least(self) -> float:
        """See Watched.least."""
        return float(self.minimum_change)


class Evaluation(Model):
    """How often the model is evaluated on held-out data, and what follows from it."""

    every_epochs: int = Field(1, ge=1, le=1_000_000, description="Epochs from one evaluation to the next. Default: 1.")
    keep_best: KeepBest | None = Field(
        None,
        description="Keeps the weights of the best evaluation too, in best.safetensors. Default: only the last. "
        "Example: {metric: accuracy, mode: Maximize}.",
    )
    stop_early: StopEarly | None = Field(
        None,
        description="Ends the job as Succeeded when a metric gets no better. Belongs to the mathematics, with "
        "everyEpochs. Default: never. Example: {metric: loss, mode: Minimize, patience: 5}.",
    )

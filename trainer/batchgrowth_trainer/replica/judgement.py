"""What evaluations decide, as part of a replica's state: an early end of training, and the best weights so far.

Which evaluation is the best is decided by `BestEvaluation.after` in batchgrowth/evaluations.py; `Judgement.take` keeps
its weights. Both move to other members and into checkpoints with the weights, so they do not depend on which member
evaluated.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.evaluations import BestEvaluation, early_end
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec, WatchedMetric
from torch import Tensor

from batchgrowth_trainer.record.decided import RECORD, STOP, judged_in, mark_of
from batchgrowth_trainer.record.snapshot import BEST
from batchgrowth_trainer.workload import Workload


class Judgement:
    """The decisions from a job's evaluations; `best.NAME` keeps copies of the live vectors `weights`.

    `tensors()` has a float64 vector for keepBest and for stopEarly: a number for the metric, then those of
    BestEvaluation.
    """

    def __init__(self, spec: JobSpec, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._spec = spec
        evaluation = spec.evaluation
        named = ((STOP, evaluation.stop_early), (RECORD, evaluation.keep_best))
        self._watched: dict[str, WatchedMetric] = {name: watched for name, watched in named if watched is not None}
        self._records = {name: torch.zeros(1 + len(astuple(BestEvaluation())), dtype=torch.float64, device=device)
                         for name in self._watched}  # fmt: skip
        self._best = {f"{BEST}{name}": torch.zeros_like(vector) for name, vector in weights.items()}
        if evaluation.keep_best is None:
            self._best = {}
        self._judged = dict.fromkeys(self._watched, BestEvaluation())
        self._end: int | None = None
        self._write()

    def take(self, position: Position, values: Mapping[str, float], weights: Mapping[str, Tensor]) -> None:
        """Take an evaluation of these weights into account; a known evaluation changes nothing."""
        for name, watched in self._watched.items():
            before = self._judged[name]
            now = self._judged[name] = before.after(position, values[watched.metric], watched)
            if name == RECORD and now.update != before.update:
                for each, vector in weights.items():
                    self._best[f"{BEST}{each}"].copy_(vector)
        self._write()

    def shortened(self, plan: Plan) -> Plan:
        """Return the plan, cut after the epoch in which stopEarly ended the training, if it did."""
        return plan if self._end is None else plan.until(self._end)

    def known(self, epoch: int) -> int:
        """Return the last epoch, up to `epoch`, whose evaluation was judged; `epoch` itself if the job judges no
        evaluation.
        """
        return min([epoch, *(judged.evaluated for judged in self._judged.values())])

    @property
    def is_asked(self) -> bool:
        """Return whether the job asks for the best weights or an early end."""
        return bool(self._watched)

    @property
    def end(self) -> BestEvaluation | None:
        """Return the reason why the training ended early; None if it did not."""
        return None if self._end is None else self._judged[STOP]

    def tensors(self) -> dict[str, Tensor]:
        """Return the live vectors by name; empty if nothing is judged."""
        return self._records | self._best

    def synchronize(self) -> None:
        """Read the vectors after something wrote them; drop a best value that is for another metric or mode."""
        for name, watched in self._watched.items():
            self._judged[name] = judged_in(self._records, name, watched) or BestEvaluation()
        self._write()

    def best_state_dict(
        self, exported: Callable[[], dict[str, Tensor]], weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor] | None:
        """Return what `exported` does with the weights of the best evaluation in the model; None before any."""
        if RECORD not in self._judged or not self._judged[RECORD].update:
            return None
        # What is exported is read from the model, so the model has the best weights for this moment.
        kept = {name: vector.clone() for name, vector in weights.items()}
        for name, vector in weights.items():
            vector.copy_(self._best[f"{BEST}{name}"])
        try:
            return exported()
        finally:
            for name, vector in weights.items():
                vector.copy_(kept[name])

    def _write(self) -> None:
        for name, watched in self._watched.items():
            numbers = (mark_of(watched), *astuple(self._judged[name]))
            self._records[name].copy_(torch.tensor(numbers, dtype=torch.float64))
        if STOP in self._judged:
            self._end = early_end(self._spec, self._judged[STOP])


def check_metrics(spec: JobSpec, workload: Workload) -> None:
    """Raise WorkloadError if the workload lacks a metric that the job watches."""
    names = metric_names(workload)
    for field, watched in (("keepBest", spec.evaluation.keep_best), ("stopEarly", spec.evaluation.stop_early)):
        if watched is not None and watched.metric not in names:
            remedy = f"give one of {', '.join(names)}" if names else "give the workload a test set"
            raise WorkloadError(f"spec.evaluation.{field}.metric: the evaluations have no {watched.metric!r}; {remedy}")


def metric_names(workload: Workload) -> list[str]:
    """Return the names of the values of an evaluation, in order; empty without a test set."""
    own = ("loss", *workload.metrics, *workload.whole_set_metrics)
    return [name if index == 0 else f"{test}.{name}" for index, test in enumerate(workload.test_sets) for name in own]

"""The measured noise scale of models whose gradient has a known mean and covariance, by any number of workers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from batchgrowth.growth_decisions import Course, Measured
from batchgrowth.plan import BatchDecision, Step
from batchgrowth.shards import lay_out
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.utils.data import TensorDataset

DRAWS, EXAMPLES = 200, 12_800
"""Updates that are taken, each of them a draw, and the examples that they come from."""


class Distance(nn.Module):
    """w - x, with w the weights."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weights - inputs


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def quadratic() -> tuple[Workload, float, float]:
    """|w - x|² / 2 with x ~ N(m, s²): G = w - m and tr(Σ) = Σ s². The workload, |G|² and the trace."""
    spread, offset = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([0.6, -0.3, 0.5])
    inputs = spread * normal(EXAMPLES, 3)
    workload = Workload(
        model=Distance(offset), train=TensorDataset(inputs, torch.zeros(EXAMPLES)),
        loss=lambda output, _target: output.square().sum(1) / 2,
    )  # fmt: skip
    return workload, float(offset.square().sum()), float(spread.square().sum())


def linear_regression() -> tuple[Workload, float, float]:
    """(x · w - y)² / 2 with x ~ N(0, 1), y ~ N(0, s²) and weights w of dimension d: G = w and
    tr(Σ) = (d + 1) · |w|² + d · s².
    """
    weights, spread = torch.tensor([0.4, -0.2, 0.1, 0.3]), 0.5
    drawn = normal(EXAMPLES, 5)
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(weights)
    workload = Workload(
        model=model, train=TensorDataset(drawn[:, :4].contiguous(), spread * drawn[:, 4]),
        loss=lambda output, target: (output[:, 0] - target).square() / 2,
    )  # fmt: skip
    size = float(weights.square().sum())
    return workload, size, 5 * size + 4 * spread**2


@dataclass
class Taken:
    """What a training measured and decided, and the weights' change."""

    measured: list[Measured]
    decisions: list[BatchDecision]
    moved: float


@pytest.fixture
def taken(small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workload, int], Taken]:
    """A function: 200 updates by that many workers, at a learning rate too small to move the weights."""

    def train(workload: Workload, workers: int) -> Taken:
        looks = "growth: {type: NoiseScale, looks: {everyUpdates: 20, mostChange: '1.5'}}"
        job = small_job(
            f"workload.examples={EXAMPLES}", "epochs=1", f"batch={{initial: 16, maximum: 64, shard: 4, {looks}}}",
            "learningRate={initial: '0.0000001', rule: Constant}",
        )  # fmt: skip
        replica, measured, decisions = make_replica(job, workload), list[Measured](), list[BatchDecision]()
        after = Course.after

        def noted(
            course: Course, step: Step, seen: Measured, memory: Sequence[float]
        ) -> tuple[Course, BatchDecision | None, list[float]]:
            measured.append(seen)
            return after(course, step, seen, memory)

        monkeypatch.setattr(Course, "after", noted)
        before = replica.parameters.vector.detach().clone()
        for _ in range(DRAWS):
            step = replica.plan.step_at(replica.position)
            layout = lay_out(step.shards, workers)
            rows = [node.row for run in layout.runs for node in replica.partials(step, run)]
            if decided := replica.commit(step, add_up(rows, layout)).decision:
                decisions.append(decided)
        monkeypatch.setattr(Course, "after", after)
        return Taken(measured, decisions, float((replica.parameters.vector.detach() - before).norm()))

    return train


@pytest.mark.parametrize("known", [quadratic, linear_regression])
def test_the_noise_scale_is_that_of_the_closed_form(
    taken: Callable[[Workload, int], Taken], known: Callable[[], tuple[Workload, float, float]]
) -> None:
    """Inside three standard errors of a ratio of means; and one, two, three and four workers decide the same bits."""
    workload, square, trace = known()
    alone = taken(workload, 1)
    assert alone.moved < 1e-3
    sums = [one.sums() for one in alone.measured]
    squares, traces = ([numbers[at] / numbers[0] for numbers in sums] for at in (4, 5))
    found, expected = fmean(traces) / fmean(squares), trace / square
    rest = [one - found * other for one, other in zip(traces, squares, strict=True)]
    error = stdev(rest) / DRAWS**0.5 / fmean(squares)
    assert abs(found - expected) < 3 * error < expected / 3
    assert [one.wanted for one in alone.decisions] != [16] * (DRAWS // 50)

    for workers in (2, 3, 4):
        together = taken(known()[0], workers)
        assert alone.measured == together.measured
        assert alone.decisions == together.decisions
        assert [one.asked for one in alone.decisions] == [one.asked for one in together.decisions]

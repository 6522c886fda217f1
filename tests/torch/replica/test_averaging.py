"""The average is a function of the weights alone, is part of the state, and is what a job evaluates and exports."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth_trainer import commands
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.replica.evaluation import evaluate
from batchgrowth_trainer.training import Options, train
from small import net, plain
from torch import nn

AVERAGED = "optimizer.averaging={decay: '0.5'}"


def updated(replica: Any, updates: int) -> list[torch.Tensor]:
    """The weights after each further update."""
    weights = []
    for _ in range(updates):
        step = replica.plan.step_at(replica.position)
        [node] = replica.partials(step, (0, step.shards))
        replica.commit(step, node.row)
        weights.append(replica.parameters.vector.detach().clone())
    return weights


def test_it_follows_the_weights_with_a_growing_decay(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(AVERAGED), plain())
    expected = replica.parameters.vector.detach().clone()
    for done, weights in enumerate(updated(replica, 20)):
        decay = min(0.5, (1 + done) / (10 + done))
        expected = decay * expected + (1 - decay) * weights
    torch.testing.assert_close(replica.average.vector, expected, rtol=1e-5, atol=1e-6)


def test_training_is_the_same_without_it(small_job: Any, make_replica: Any) -> None:
    with_, without = (make_replica(small_job(*more), plain()) for more in ((AVERAGED,), ()))
    assert torch.equal(updated(with_, 10)[-1], updated(without, 10)[-1])


def test_what_is_evaluated_and_exported_is_the_average(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(AVERAGED), plain())
    before = updated(replica, 10)[-1]
    inputs, target = replica.workload.test.tensors
    exported = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    exported.load_state_dict(replica.state_dict())
    with torch.no_grad():
        loss = replica.workload.loss(exported(inputs), target).mean().item()
    assert pytest.approx(loss, rel=1e-5) == evaluate(replica, 0, 1, only_one)["loss"]
    assert torch.equal(before, replica.parameters.vector.detach())
    assert not torch.equal(before, replica.average.vector)


def test_it_goes_on_from_a_snapshot_with_the_same_bits(small_job: Any, make_replica: Any) -> None:
    first, second = (make_replica(small_job(AVERAGED), net()) for _ in range(2))
    updated(first, 7)
    second.restore(first.snapshot())
    updated(first, 5)
    updated(second, 5)
    assert torch.equal(first.average.vector, second.average.vector)


def test_a_run_is_evaluated_with_it_again(tmp_path: Path, small_job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    train(small_job(AVERAGED, "workload.entrypoint=small:net"), Options(output_dir=tmp_path))
    with (tmp_path / "evaluations.csv").open() as file:
        *_, last = csv.DictReader(file)
    commands.evaluate(tmp_path)
    assert f"loss {float(last['loss']):.6g}, " in capsys.readouterr().out

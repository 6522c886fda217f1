"""Measured faults of AdaDamp, each with the test that keeps it out; docs/beside-others.md lists all of them.

Those that need several workers are tested over real clusters, in tests/dask.
"""

import ast
import csv
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from batchgrowth_trainer import training
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workload import Workload
from threads import bytes_by_member
from torch import Tensor

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_list_exist() -> None:
    page = (ROOT / "docs" / "beside-others.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    written = {
        (path, node.name)
        for path in {path for path, _ in named}
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    rows = page.partition("| in AdaDamp |")[2].splitlines()[2:]

    assert [test for test in named if test not in written] == []
    assert [row for row in rows if "::test_" not in row] == []
    assert len(rows) == 11


def net() -> Workload:
    torch.manual_seed(1)
    return small.net()


def update(replica: Replica, times: int = 1) -> None:
    for _ in range(times):
        step = replica.plan.step_at(replica.position)
        partials = replica.partials(step, (0, step.shards))
        replica.commit(step, partials[0].row)
        replica.rows.release(partials)


def test_the_optimizer_steps_the_models_own_tensors(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(), net())
    parameters = list(replica.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    update(replica)
    assert all(mine is theirs for mine, theirs in zip(parameters, replica.model.parameters(), strict=True))
    assert all(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True))


@pytest.mark.parametrize("momentum", ["0", "0.9"])
def test_learning_rate_and_momentum_reach_the_update(small_job: Any, make_replica: Any, momentum: str) -> None:
    """The weights move as SGD written out by hand moves them, with a falling learning rate."""
    sgd = f"optimizer={{type: SGD, sgd: {{momentum: '{momentum}', nesterov: false, weightDecay: '0'}}}}"
    replica = make_replica(small_job(sgd, "batch.maximum=8", "epochs=3"), small.plain())
    weights = replica.parameters.vector.detach().clone()
    velocity, rates = torch.zeros_like(weights), []
    while not replica.plan.is_done(replica.position):
        step = replica.plan.step_at(replica.position)
        [whole] = replica.partials(step, (0, step.shards))
        velocity = float(momentum) * velocity + whole.row[: replica.parameters.length] / step.examples
        weights -= step.learning_rate * velocity
        rates.append(step.learning_rate)
        replica.commit(step, whole.row)
    assert sorted(set(rates), reverse=True) == [0.05, 0.025, 0.0125]
    torch.testing.assert_close(replica.parameters.vector.detach(), weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("overrides", [(), ("optimizer={type: Adam, adam: {}}",)], ids=["momentum", "adam"])
def test_the_optimizers_state_does_not_grow(small_job: Any, make_replica: Any, overrides: tuple[str, ...]) -> None:
    replica = make_replica(small_job(*overrides), net())
    update(replica, 2)
    kept = {name: tensor.data_ptr() for name, tensor in replica.tensors().items()}
    size = len(pickle.dumps(replica.snapshot()))
    update(replica, 18)
    assert kept == {name: tensor.data_ptr() for name, tensor in replica.tensors().items()}
    assert pytest.approx(size, abs=64) == len(pickle.dumps(replica.snapshot()))


def test_batch_norm_statistics_move_and_are_the_datas(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job("batch={initial: 90, maximum: 90, shard: 90}"), net())
    norm = replica.model[1]
    assert not norm.running_mean.any()
    with torch.no_grad():
        replica.workload.augment  # noqa: B018 - noise of .01 on the inputs, so the statistics are close, not equal
        hidden = replica.model[0](small.data().tensors[0])
    update(replica)
    torch.testing.assert_close(norm.running_mean, 0.1 * hidden.mean(dim=0), rtol=0.05, atol=0.005)
    assert int(norm.num_batches_tracked) == 1


def test_scoring_is_in_eval_mode(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    workload = net()

    def watched(output: Tensor, target: Tensor) -> Tensor:
        modes.append(workload.model.training)
        return (output.argmax(dim=1) == target).float()

    monkeypatch.setattr(small, "net", lambda: Workload(model=workload.model, loss=workload.loss, train=workload.train,
                                                       test=workload.test, metrics={"accuracy": watched}))  # fmt: skip
    train(small_job(), Options(output_dir=tmp_path))
    assert modes
    assert not any(modes)


def test_what_is_sent_is_gradients_and_never_data() -> None:
    """Bytes per update and worker: those of a ring, however large the data set is (AdaDamp: 10 x, and all the data)."""
    length = 2_750_000
    for workers in (2, 4, 8):
        assert max(bytes_by_member(workers, workers, length)) <= 2 * length * 4 * (workers - 1) / workers * 1.001


def test_ten_of_ten_short_fits_finish_and_agree(small_job: Any, tmp_path: Path) -> None:
    ends = {train(small_job("epochs=5"), Options(output_dir=tmp_path / str(k)))["weightsSha256"] for k in range(10)}
    assert len(ends) == 1


def test_there_are_checkpoints(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: True)
    train(small_job(), Options(output_dir=tmp_path))
    assert len(list((tmp_path / training.CHECKPOINTS).iterdir())) == 3


def test_the_learning_rate_in_the_history_is_the_one_that_was_used(small_job: Any, tmp_path: Path) -> None:
    train(small_job("batch.maximum=8"), Options(output_dir=tmp_path))
    with (tmp_path / "history.csv").open() as file:
        rates = [float(row["learningRate"]) for row in csv.DictReader(file)]
    assert sorted(set(rates), reverse=True) == [0.05, 0.025, 0.0125, 0.00625]
    assert sorted(rates, reverse=True) == rates

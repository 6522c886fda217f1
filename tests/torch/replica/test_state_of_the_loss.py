"""A loss that is a module: its parameters and buffers go wherever the model's go."""

from collections import UserDict
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
import zoo
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.building import trained_model, trained_replica
from batchgrowth_trainer.record.snapshot import MISSED, Snapshot
from batchgrowth_trainer.replica.data import to_device
from batchgrowth_trainer.replica.state_dict import exported, load_exported
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.user_code import check_workload
from safetensors.torch import load_file
from torch import Tensor, nn

ZOO = "workload={{entrypoint: 'zoo:{0}', examples: 34}}"
BATCH = "batch={initial: 12, maximum: 12, shard: 4, growth: {type: Constant}}"


@pytest.mark.fault("T04")
def test_a_run_writes_and_loads_the_weights_of_its_loss(small_job: Any, tmp_path: Path) -> None:
    train(
        small_job(ZOO.format("uncertainty"), BATCH, "evaluation.keepBest={metric: loss, mode: Minimize}"),
        Options(output_dir=tmp_path),
    )
    for best in (False, True):
        written = load_file(tmp_path / ("best.safetensors" if best else "model.safetensors"))
        assert sorted(written) == ["0.bias", "0.weight", "2.bias", "2.weight", "loss.log_variance"]
        assert written["loss.log_variance"].all()
        replica = trained_replica(tmp_path, best=best)
        assert isinstance(replica.workload.loss, nn.Module)
        assert torch.equal(replica.workload.loss.log_variance, written["loss.log_variance"])
        assert torch.equal(trained_model(tmp_path, best=best)[0].weight, written["0.weight"])


@pytest.mark.fault("T04")
def test_a_twin_has_a_loss_of_its_own_with_the_same_parameters(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(BATCH), zoo.learned_margin())
    twin = replica.twin()
    mine, theirs = replica.workload.loss, twin.workload.loss
    assert mine is not theirs
    replica.parameters.vector.data.fill_(0.5)
    assert torch.equal(theirs.directions.weight, torch.full((3, 4), 0.5))
    theirs.margin.fill_(9.0)
    assert mine.margin == 0.1


class Remembering(nn.Module):
    """A model that remembers what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = zoo.mlp()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.net(x)
        return self.last


def test_a_twin_of_a_model_that_remembers_a_result(small_job: Any, make_replica: Any) -> None:
    """Torch copies no tensor that has a gradient's function."""
    replica = make_replica(small_job(BATCH), zoo.of(Remembering()))
    replica.model(zoo.X)
    twin = replica.twin()
    assert torch.equal(twin.model.last, replica.model.last)
    assert twin.model.last.grad_fn is None


def test_a_model_that_cannot_be_copied(small_job: Any, make_replica: Any) -> None:
    model = zoo.mlp()
    model.lock = Lock()  # type: ignore[assignment]
    replica = make_replica(small_job(BATCH), zoo.of(model))
    with pytest.raises(
        WorkloadError, match=r"copying the model raised TypeError: cannot pickle '_thread\.lock' .* lock"
    ):
        replica.twin()


def test_constants_of_a_loss_without_parameters_are_not_exported(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(small_job(BATCH), zoo.class_weights())
    assert exported(replica.modules).keys() == replica.model.state_dict().keys()
    load_exported(replica.modules, exported(replica.modules))


@pytest.mark.fault("T04")
def test_two_tensors_of_one_name_are_refused() -> None:
    model = zoo.mlp()
    model.add_module("loss", zoo.Uncertainty())
    with pytest.raises(WorkloadError, match=r"loss\.log_variance is in the model, and in the loss as log_variance"):
        check_workload(zoo.of(model, zoo.Uncertainty()), "zoo:it")


@pytest.mark.fault("T14")
def test_a_checkpoint_of_an_earlier_version_has_missed_no_update(small_job: Any, make_replica: Any) -> None:
    replica = make_replica(
        small_job(ZOO.format("unused_parameter"), BATCH, "optimizer={type: Adam}"), zoo.unused_parameter()
    )
    for _ in range(2):
        step = replica.plan.step_at(replica.position)
        [whole] = replica.partials(step, (0, step.shards))
        replica.commit(step, whole.row)
    snapshot = replica.snapshot()
    assert snapshot.tensors[MISSED].tolist()[0] == 2.0  # `unused`, the first parameter
    replica.restore(Snapshot(snapshot.position, {k: v for k, v in snapshot.tensors.items() if k != MISSED}))
    assert replica.missed.tolist() == [0.0] * len(replica.parameters.spans)


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict."""


@pytest.mark.fault("T13")
def test_a_mapping_keeps_its_type_on_another_device() -> None:
    class Graph:
        """Moves itself."""

        device = "cpu"

        def to(self, device: torch.device) -> "Graph":
            self.device = device.type
            return self

    moved = to_device(Encoding(x=[torch.ones(2)], y={"z": torch.ones(1)}, graph=Graph()), torch.device("meta"))
    assert type(moved) is Encoding
    assert (moved["x"][0].device.type, moved["y"]["z"].device.type, moved["graph"].device) == ("meta", "meta", "meta")

"""`batchgrowth evaluate`: the model of a run on its test set, once more."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import CheckpointError, DataError, WorkloadError
from batchgrowth_trainer import commands
from batchgrowth_trainer.building import trained_replica
from batchgrowth_trainer.training import Options, train
from safetensors.torch import load_file, save_file


@pytest.fixture
def run(tmp_path: Path, small_job: Any) -> Path:
    """The folder of a run with batch norm."""
    train(small_job("workload.entrypoint=small:net"), Options(output_dir=tmp_path / "run"))
    return tmp_path / "run"


def last_evaluation(run: Path) -> dict[str, float]:
    with (run / "evaluations.csv").open() as file:
        *_, last = csv.DictReader(file)
    return {name: float(last[name]) for name in ("loss", "accuracy")}


def test_it_finds_what_the_run_found_at_its_end(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.evaluate(run, json_=True)
    assert pytest.approx(last_evaluation(run), rel=1e-6) == json.loads(capsys.readouterr().out)
    commands.evaluate(run)
    loss, accuracy = last_evaluation(run).values()
    assert f"loss {loss:.6g}, accuracy {accuracy:.6g}\n" == capsys.readouterr().out


def test_the_model_can_be_used_from_python(run: Path) -> None:
    model = trained_replica(run).model
    assert not model.training
    weights = load_file(run / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], tensor.cpu()) for name, tensor in model.state_dict().items())


def test_the_workloads_folder_may_be_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "moved.py").write_text("from small import net\n")
    job = run / "job.yaml"
    job.write_text(job.read_text().replace("small:net", "moved:net"))
    with pytest.raises(WorkloadError, match=r"no module named 'moved'.*with --path"):
        commands.evaluate(run)
    commands.evaluate(run, path=[tmp_path / "elsewhere"])
    assert capsys.readouterr().out.startswith("loss ")


def test_a_folder_without_a_finished_run_is_named(run: Path, tmp_path: Path) -> None:
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        DataError, match=r"run: there is no model\.safetensors here, which a run writes at its end, and"
    ):
        commands.evaluate(run)
    with pytest.raises(DataError, match=r"there is no job\.yaml here"):
        commands.evaluate(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "renamed"])
def test_weights_that_do_not_fit_are_named(run: Path, damage: str) -> None:
    path = run / "model.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        save_file({f"old.{name}": tensor for name, tensor in load_file(path).items()}, path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: these weights cannot be loaded \(.+\)\. Name"):
        commands.evaluate(run)


def test_a_workload_without_a_test_set_is_named(tmp_path: Path, small_job: Any) -> None:
    (tmp_path / "untested.py").write_text(
        "from batchgrowth_trainer.workload import Workload\nfrom small import plain\n"
        "def workload():\n    net = plain()\n    return Workload(model=net.model, loss=net.loss, train=net.train)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        train(small_job("workload.entrypoint=untested:workload"), Options(output_dir=tmp_path / "run"))
        with pytest.raises(DataError, match="run: its workload has no test set"):
            commands.evaluate(tmp_path / "run")

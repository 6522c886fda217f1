"""Runs as things: each keeps what it found, knows its workload, and has a model before it is finished."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import CheckpointError, DataError, Interrupted
from batchgrowth_trainer import Run, Workload, commands, load, train
from batchgrowth_trainer.record.workload_source import Origin
from batchgrowth_trainer.training import Options
from batchgrowth_trainer.training import train as train_job

SPEC: dict[str, Any] = {
    "epochs": 2, "batch": {"initial": 30, "maximum": 30}, "exchange": {"type": "SingleProcess"}, "examples": 90,
    "progress": False,
}  # fmt: skip
"""Six updates."""
CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from batchgrowth_trainer.workload import Workload, correct
from {helper} import WIDTH

def workload():
    inputs = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs[:, :3].argmax(dim=1))
    net = nn.Sequential(nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3))
    loss = nn.CrossEntropyLoss(reduction="none")
    return Workload(model=net, loss=loss, train=data, test=data, metrics={{"accuracy": correct}})
"""


def shas(runs: list[Run]) -> list[str]:
    return [run.summary["weightsSha256"] for run in runs if run.summary]


def sweep(folder: Path, **spec: Any) -> list[Run]:
    return [train("small:net", output_dir=folder, learning_rate={"initial": rate}, **SPEC, **spec) for rate in RATES]


RATES = (0.1, 0.05, 0.01)


@pytest.mark.fault("N01")
def test_a_sweep_gets_a_folder_each(tmp_path: Path) -> None:
    """The same folders if it runs again, or is resumed."""
    runs = sweep(tmp_path / "sweep")
    folders = [tmp_path / name for name in ("sweep", "sweep-2", "sweep-3")]
    expected = shas(runs)
    again = sweep(tmp_path / "sweep")

    assert folders == [run.folder for run in again]
    assert [folder / "earlier" / "1" for folder in folders] == [run.folder for run in runs]
    assert len(set(expected)) == 3
    assert expected == shas(runs) == shas(again) == shas(sweep(tmp_path / "sweep", resume=True))
    assert [run.job.spec.learning_rate.initial for run in runs] == ["0.1", "0.05", "0.01"]
    for run, rate in zip(runs, RATES, strict=True):
        assert set(run.history.learning_rate) == {rate}


@pytest.mark.fault("N01")
def test_a_run_keeps_what_it_found_whatever_happens_to_its_folder(tmp_path: Path) -> None:
    run = train("small:net", output_dir=tmp_path / "run", learning_rate={"initial": 0.1}, **SPEC)
    summary = run.summary
    history = run.history
    evaluations = run.evaluations
    weights = run.model.state_dict()
    loaded = load(tmp_path / "run")
    train_job(loaded.job, Options(output_dir=tmp_path / "run"))  # as `batchgrowth run` does
    assert loaded.folder == run.folder == tmp_path / "run" / "earlier" / "1"
    moved = loaded.model.state_dict()
    assert all(torch.equal(weights[name], moved[name]) for name in weights)

    shutil.rmtree(tmp_path / "run")
    for kept in (run, loaded):
        assert kept.summary == summary
        assert kept.history.equals(history)
        assert kept.evaluations.equals(evaluations)
    fresh = Run(tmp_path / "run")
    assert fresh.summary is None
    with pytest.raises(DataError, match="the run that was here is gone"):
        run.plot()


@pytest.mark.fault("N01", "N05")
def test_a_run_that_goes_on_for_longer_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    def trained(epochs: int, folder: str, **more: Any) -> Run:
        spec = SPEC | {"epochs": epochs, "learning_rate": {"initial": 0.1}}
        return train("small:net", output_dir=tmp_path / folder, **spec, **more)

    short = trained(2, "run")
    before = shas([short])
    longer = trained(4, "run", resume=True)

    assert shas([longer]) == shas([trained(4, "whole")])
    assert before == shas([short])
    assert (len(short.history), len(longer.history)) == (6, 12)
    assert short.folder == tmp_path / "run" / "earlier" / "1"
    assert not torch.equal(short.model.state_dict()["0.weight"], longer.model.state_dict()["0.weight"])


class Stop:
    """A sink that interrupts the process as Ctrl-C does, after an update."""

    def __init__(self, update: int) -> None:
        self._update = update

    def handle(self, event: Any) -> None:
        if getattr(event, "workers", None) and getattr(event, "update", 0) == self._update:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_an_interrupted_run_of_a_model_with_weight_norm_has_it_too(tmp_path: Path) -> None:
    """Until it is called, such a model holds a weight that torch does not copy."""
    spec = SPEC | {"examples": 34, "learning_rate": {"initial": 0.1}}
    with pytest.raises(Interrupted):
        train("zoo:weight_norm_by_hooks", output_dir=tmp_path, sinks=[Stop(1)], **spec)
    model = load(tmp_path).model
    assert model[0].weight_g.shape == (6, 1)
    assert model(torch.zeros(1, 8)).shape == (1, 3)


@pytest.mark.fault("N04")
@pytest.mark.parametrize("averaging", [None, {"decay": 0.9}])
def test_an_interrupted_run_has_the_model_of_its_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], averaging: Any
) -> None:
    """It has what a run of one epoch ends with, since three updates are an epoch."""
    optimizer = {"type": "SGD", "averaging": averaging}
    spec = SPEC | {"learning_rate": {"initial": 0.1}, "optimizer": optimizer, "evaluation": {
        "keep_best": {"metric": "loss", "mode": "Minimize"}}}  # fmt: skip
    with pytest.raises(Interrupted):
        train("small:net", output_dir=tmp_path / "run", sinks=[Stop(3)], **spec)
    run = load(tmp_path / "run")
    whole = train("small:net", output_dir=tmp_path / "whole", **spec | {"epochs": 1})
    expected = whole.model.state_dict()

    assert "not finished; its newest checkpoint is of update 3, epoch 1" in repr(run)
    capsys.readouterr()
    for model in (run.model, run.best_model):
        assert not model.training
        assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())
    assert "these are the weights of its newest checkpoint, of update 3" in capsys.readouterr().err
    assert run.plot().png.is_file()
    commands.evaluate(tmp_path / "run", json_=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["loss"] == pytest.approx(whole.summary and whole.summary["testLoss"], rel=1e-6)
    assert "the run has not ended" in printed.err


@pytest.mark.fault("N04")
def test_a_run_that_was_finished_since_has_the_model_of_its_end(tmp_path: Path) -> None:
    """Whatever was asked for in between."""
    spec = SPEC | {"learning_rate": {"initial": 0.1}, "output_dir": tmp_path / "run"}
    with pytest.raises(Interrupted):
        train("small:net", sinks=[Stop(3)], **spec)
    run = load(tmp_path / "run")
    begun = run.model.state_dict()
    finished = train("small:net", resume=True, **spec)

    assert run.summary == finished.summary
    weights = run.model.state_dict()
    assert not torch.equal(begun["0.weight"], weights["0.weight"])
    assert torch.equal(finished.model.state_dict()["0.weight"], weights["0.weight"])
    assert run.model is run.model


@pytest.mark.fault("N04")
def test_a_run_without_a_checkpoint_has_no_model(tmp_path: Path) -> None:
    run = train("small:net", output_dir=tmp_path, learning_rate={"initial": 0.1}, **SPEC)
    for name in ("model.safetensors", "summary.json"):
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "checkpoints")

    with pytest.raises(DataError, match=r"there is no model\.safetensors here, .* and no whole checkpoint"):
        load(tmp_path).model  # noqa: B018
    with pytest.raises(DataError, match="is gone"):
        run.model  # noqa: B018


def own(folder: Path, helper: str, width: int) -> Path:
    """A run whose workload is own_net.py beside its manifest, which imports its neighbour."""
    folder.mkdir()
    (folder / "own_net.py").write_text(CODE.format(helper=helper))
    (folder / f"{helper}.py").write_text(f"WIDTH = {width}\n")
    (folder / "job.yaml").write_text(
        "apiVersion: batchgrowth.dev/v1alpha1\nkind: BatchGrowthJob\nmetadata: {name: own}\nspec:\n"
        "  workload: {entrypoint: 'own_net:workload', examples: 90}\n  epochs: 1\n"
        "  batch: {initial: 30, maximum: 30}\n  learningRate: {initial: '0.1'}\n  exchange: {type: SingleProcess}\n"
    )
    return train(folder / "job.yaml", output_dir=folder / "run", progress=False).folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another folder, in a process whose path and modules are afterwards what they were."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "elsewhere"
    forget()


def forget() -> None:
    """Begin as in another process."""
    for name in ("own_net", "first_helper", "second_helper"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if "/pytest-of-" not in entry]


@pytest.mark.fault("N09")
def test_a_run_knows_where_its_workload_is(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own(tmp_path / "first", "first_helper", 4)
    forget()
    monkeypatch.chdir(elsewhere)
    commands.evaluate(run)
    source = tmp_path / "first" / "own_net.py"
    assert f"{run}: its workload is {source}\n" == capsys.readouterr().err

    origin = Origin.read(run, "own_net:workload")
    assert origin is not None
    assert ["first_helper.py", "own_net.py"] == list(origin.sources)
    assert {"python", "torch", "numpy", "batchgrowth"} == set(origin.versions)
    (tmp_path / "first" / "first_helper.py").write_text("WIDTH = 2 + 2\n")
    commands.evaluate(run)
    assert "; changed since the run: first_helper.py\n" in capsys.readouterr().err


def test_a_run_stays_where_it_is_if_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("small:net", output_dir="run", learning_rate={"initial": 0.1}, **SPEC)
    assert run.folder == Path("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert run.folder == tmp_path / "run"
    assert run.model is not None
    further = train("small:net", output_dir="further", learning_rate={"initial": 0.1}, initial_weights=run, **SPEC)
    assert further.job.spec.initial_weights.path == str(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert run.folder == Path("run")


@pytest.mark.fault("N09")
def test_a_tree_that_was_moved_as_a_whole_is_found(tmp_path: Path, elsewhere: Path) -> None:
    own(tmp_path / "first", "first_helper", 4)
    forget()
    (tmp_path / "first").rename(tmp_path / "moved")

    assert load(tmp_path / "moved" / "run").model[0].out_features == 4


@pytest.mark.fault("N09")
def test_two_runs_whose_modules_have_one_name_have_their_own_models(tmp_path: Path, elsewhere: Path) -> None:
    first = own(tmp_path / "first", "first_helper", 4)
    forget()
    second = own(tmp_path / "second", "second_helper", 5)

    sys.path[:0] = [str(tmp_path), str(tmp_path / "first")]
    assert [load(run).model[0].out_features for run in (first, second, first)] == [4, 5, 4]
    assert sys.path.count(str(tmp_path / "first")) == 1


@pytest.mark.fault("N09")
def test_code_that_changed_is_told_at_a_resume(
    tmp_path: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own(tmp_path / "first", "first_helper", 4)
    (tmp_path / "first" / "own_net.py").write_text(CODE.format(helper="first_helper") + "# a comment\n")
    (run / "summary.json").unlink()
    train(tmp_path / "first" / "job.yaml", output_dir=run, resume=True, progress=True)

    assert "the workload's code has changed since this run began: own_net.py" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.fault("N01")
def test_a_workload_that_changed_is_refused_at_a_resume(tmp_path: Path) -> None:
    def made(width: int) -> Any:
        import small

        def net() -> Workload:
            return small.of(torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Linear(width, 3)))

        return net

    train(made(4), output_dir=tmp_path, learning_rate={"initial": 0.1}, **SPEC)
    with pytest.raises(CheckpointError, match="has another workload"):
        train(made(5), output_dir=tmp_path, learning_rate={"initial": 0.1}, resume=True, **SPEC)

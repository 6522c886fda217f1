"""The best weights and the early end of a run in one process: kept, resumed, changed, and used."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.contract.progress import Progress
from batchgrowth.errors import CheckpointError, DataError, Interrupted, WorkloadError
from batchgrowth_trainer import commands
from batchgrowth_trainer.api import load
from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.record.runs import recorded_course
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.sinks.report import Reporter
from batchgrowth_trainer.training import Options, train
from safetensors.torch import load_file

NET = ("workload.entrypoint=small:net", "checkpoint.keep=100", "epochs=8")
# The worst evaluation as the best, so that the best weights are not the last, and an end that is sure to come.
KEPT = "evaluation.keepBest={metric: accuracy, mode: Minimize}"
ENDS = "evaluation.stopEarly={metric: loss, mode: Minimize, patience: 4, minimumChange: '9'}"


def evaluations(folder: Path) -> list[dict[str, float]]:
    with (folder / "evaluations.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def judged(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in ("updates", "epochs", "examples", "weightsSha256", "best", "stoppedEarly")}


@pytest.mark.parametrize("averaged", [(), ("optimizer.averaging={decay: '0.5'}",)], ids=["", "averaged"])
def test_from_every_checkpoint_the_same_end_and_best_follow(
    small_job: Any, tmp_path: Path, at_every_update: None, interrupted: Callable[[Path, int], Path], averaged: Any
) -> None:
    job = small_job(*NET, KEPT, ENDS, *averaged)
    whole, folder = train(job, Options(output_dir=tmp_path / "whole")), tmp_path / "whole"
    found = evaluations(folder)
    worst = min(found, key=lambda row: row["accuracy"])
    assert {"metric": "loss", "mode": "Minimize", "value": found[0]["loss"], "update": found[0]["update"], "epoch": 1,
            "afterEpoch": 5} == whole["stoppedEarly"]  # fmt: skip
    assert (5, 450, found[-1]["update"]) == (whole["epochs"], whole["examples"], whole["updates"])
    assert (worst["accuracy"], worst["update"], worst["epoch"]) == tuple(
        whole["best"][key] for key in ("value", "update", "epoch")
    )
    assert whole["best"]["weightsSha256"] == weights_sha256(load(folder).best_model.state_dict())
    for update in [*range(0, whole["updates"], 9), whole["updates"]]:
        again = train(job, Options(output_dir=interrupted(folder, update), resume=True))
        assert judged(whole) == judged(again)
    assert whole == train(job, Options(output_dir=folder, resume=True)), "it trained on after its early end"


def test_the_course_of_a_run_ends_where_the_run_did(small_job: Any, tmp_path: Path) -> None:
    """The summary says so, and the last checkpoint until there is one."""
    summary = train(small_job(*NET, ENDS), Options(output_dir=tmp_path))
    plan = recorded_course(tmp_path).plan
    assert (summary["epochs"], summary["updates"]) == (plan.epochs, plan.updates) == (5, plan.updates)
    (tmp_path / "summary.json").unlink()
    assert recorded_course(tmp_path).plan == plan
    shutil.rmtree(tmp_path / "checkpoints")
    assert recorded_course(tmp_path).plan.epochs == 8


def test_the_course_of_a_run_that_was_not_ended_early_is_whole(small_job: Any, tmp_path: Path) -> None:
    train(small_job(*NET, ENDS.replace("patience: 4, minimumChange: '9'", "patience: 7")), Options(output_dir=tmp_path))
    assert recorded_course(tmp_path).plan.epochs == 8


def test_the_best_weights_give_what_their_evaluation_found(
    small_job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = train(small_job(*NET, KEPT), Options(output_dir=tmp_path))
    best = next(row for row in evaluations(tmp_path) if row["epoch"] == summary["best"]["epoch"])
    commands.evaluate(tmp_path, json_=True, best=True)
    assert pytest.approx({name: best[name] for name in ("loss", "accuracy")}) == json.loads(capsys.readouterr().out)
    run = load(tmp_path)
    kept = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in run.best_model.state_dict().items())
    assert any(not torch.equal(kept[name], tensor) for name, tensor in run.model.state_dict().items())
    assert f"best accuracy {best['accuracy']:.4f} of epoch {best['epoch']:.0f}" in repr(run)
    plain = train(small_job(*NET), Options(output_dir=tmp_path / "plain"))
    assert plain["weightsSha256"] == summary["weightsSha256"]
    assert not {"best", "stoppedEarly"} & plain.keys()
    with pytest.raises(
        DataError,
        match=r"plain: the run ended without a best\.safetensors, .* no evaluation\.keepBest, .* final weights",
    ):
        load(tmp_path / "plain").best_model  # noqa: B018


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (KEPT,)), ((KEPT,), ()), ((KEPT,), ("evaluation.keepBest={metric: accuracy, mode: Maximize}",))],
    ids=["begun", "ended", "another mode"],
)
def test_the_best_may_be_another_after_a_resume(small_job: Any, tmp_path: Path, before: Any, after: Any) -> None:
    """Then the evaluations from there on count, and the one at the checkpoint itself."""
    calls = iter(range(1000))
    job = small_job(*NET, *before)
    with pytest.raises(Interrupted):
        train(job, Options(output_dir=tmp_path), stop_requested=lambda: next(calls) >= 24)
    summary = train(small_job(*NET, *after), Options(output_dir=tmp_path, resume=True))
    assert bool(after) == ("best" in summary) == (tmp_path / "best.safetensors").exists()
    if after:
        pick = max if "Maximize" in after[0] else min
        assert summary["best"]["value"] == pick(r["accuracy"] for r in evaluations(tmp_path) if r["update"] >= 24)


def test_an_early_end_cannot_change(small_job: Any, tmp_path: Path) -> None:
    calls = iter(range(1000))
    with pytest.raises(Interrupted):
        train(small_job(*NET, ENDS), Options(output_dir=tmp_path), stop_requested=lambda: next(calls) >= 24)
    for other, named in (
        ((), r"evaluation: .* there, null here"),
        ((ENDS.replace("4", "3"),), r"evaluation\.stopEarly\.patience: 4 there, 3 here"),
        ((ENDS, "evaluation.everyEpochs=2", "epochs=9"), r"evaluation\.everyEpochs: 1 there, 2 here"),
    ):
        with pytest.raises(CheckpointError, match=rf"belongs to another job \(.*{named}"):
            train(small_job(*NET, *other), Options(output_dir=tmp_path, resume=True))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (("evaluation.keepBest={metric: acuracy, mode: Maximize}",),
         r"spec\.evaluation\.keepBest\.metric: the evaluations have no 'acuracy'; give one of loss, accuracy$"),
        ((ENDS.replace("loss", "f1"), "workload.entrypoint=small:two_tests"),
         r"spec\.evaluation\.stopEarly\.metric: the evaluations have no 'f1'; give one of loss, accuracy, most, "
         r"odd\.loss, odd\.accuracy, odd\.most$"),
        ((ENDS, "workload.entrypoint=small:untested"),
         r"spec\.evaluation\.stopEarly\.metric: the evaluations have no 'loss'; give the workload a test set$"),
    ],
)  # fmt: skip
def test_a_metric_that_no_evaluation_has_ends_the_run_before_training(
    small_job: Any, tmp_path: Path, changes: Any, error: str
) -> None:
    with pytest.raises(WorkloadError, match=error):
        train(small_job(*NET, *changes), Options(output_dir=tmp_path))
    assert not (tmp_path / "history.csv").exists() or not (tmp_path / "history.csv").read_text()


def test_the_metric_of_another_test_set(small_job: Any, tmp_path: Path) -> None:
    keep = "evaluation.keepBest={metric: odd.most, mode: Minimize}"
    summary = train(small_job(*NET, keep, "workload.entrypoint=small:two_tests"), Options(output_dir=tmp_path))
    assert summary["best"]["value"] == min(row["odd.most"] for row in evaluations(tmp_path))


def test_the_early_end_is_reported(small_job: Any, tmp_path: Path) -> None:
    """By a trainer that finds it in its checkpoint, too."""
    for resume in (False, True):
        reports = list[Progress]()
        reporter = Reporter(lambda report, to=reports: to.append(Progress.from_json(report)))
        train(small_job(*NET, ENDS), Options(output_dir=tmp_path, resume=resume), [reporter])
        last = reports[-1]
        assert (5, 5, last.updates, 1.0) == (last.ended_at_epoch, last.epochs, last.update, last.fraction)
        (tmp_path / "summary.json").unlink()


def test_a_snapshot_of_another_model_does_not_fit_whatever_it_keeps(small_job: Any) -> None:
    keeps, other = (
        build_replica(small_job(KEPT, f"workload.entrypoint=small:{name}").spec) for name in ("net", "plain")
    )
    with pytest.raises(CheckpointError, match=r"another model or optimizer \(best\.parameters: saved \d+ x float32"):
        keeps.restore(other.snapshot())

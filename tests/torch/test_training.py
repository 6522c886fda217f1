"""`train` in one process: the same weights after every interruption, and the plan's history."""

import csv
import gc
import json
import socket
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small
from batchgrowth.errors import (
    CheckpointError,
    ClusterError,
    Interrupted,
    PortError,
    StorageError,
    Superseded,
    WorkloadError,
)
from batchgrowth.plan import make_plan
from batchgrowth_trainer import training
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record import checkpoint
from batchgrowth_trainer.record import history as history_module
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.output import OutputFolder
from batchgrowth_trainer.sinks.events import Event, note_of
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workload import correct
from torch.utils.data import TensorDataset

Interrupt = Callable[[Path, int], Path]
ADAM = "optimizer={type: Adam, adam: {}}"


class Notes:
    """A sink that keeps the lines that a user would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handle(self, event: Event) -> None:
        line = note_of(event)
        if line is not None:
            self.lines.append(line)


def after(updates: int) -> Callable[[], bool]:
    """A function that requests a stop after `updates` calls; a single process calls it before each update."""
    asked = [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > updates

    return stop


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (folder / "checkpoints").iterdir())


@pytest.mark.fault("D06", "D15")
@pytest.mark.parametrize("overrides", [(), (ADAM,)], ids=["sgd", "adam"])
def test_from_every_checkpoint_the_same_weights_follow(
    small_job: Any, tmp_path: Path, at_every_update: None, interrupted: Interrupt, overrides: tuple[str, ...]
) -> None:
    job = small_job("checkpoint.keep=100", "workload.entrypoint=small:net", *overrides)
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    updates = whole["updates"]
    assert list(range(updates + 1)) == saved(tmp_path / "whole")
    for update in range(0, updates, 4):
        folder = interrupted(tmp_path / "whole", update)
        again = train(job, Options(output_dir=folder, resume=True))
        assert whole["weightsSha256"] == again["weightsSha256"]
        assert whole["accuracy"] == again["accuracy"]
        assert whole["finalLoss"] == again["finalLoss"]
        assert [row["loss"] for row in rows(tmp_path / "whole")] == [row["loss"] for row in rows(folder)]


@pytest.mark.usefixtures("at_every_update")
def test_a_checkpoint_of_an_earlier_version_has_no_arithmetic(
    small_job: Any, tmp_path: Path, interrupted: Interrupt
) -> None:
    """The resumed run has its own from then on."""
    job = small_job("workers.sameArithmetic=Required", "checkpoint.keep=100")
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    folder = interrupted(tmp_path / "whole", 7)
    for path in folder.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["digest"]
        assert whole["arithmetic"] == manifest["story"].pop("arithmetic")
        path.write_text(json.dumps({**manifest, "digest": checkpoint.digest(manifest)}))
    again = train(job, Options(output_dir=folder, resume=True))
    assert whole["weightsSha256"] == again["weightsSha256"]
    assert whole["arithmetic"] == again["arithmetic"]


@pytest.mark.fault("D05")
@pytest.mark.usefixtures("at_every_update")
def test_other_data_are_noticed_at_a_resume(
    small_job: Any, tmp_path: Path, interrupted: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many, with other values: the first shard, whose examples come from the whole set, has another digest."""
    train(small_job("checkpoint.keep=100"), Options(output_dir=tmp_path / "whole"))
    folder, data, notes = interrupted(tmp_path / "whole", 7), small.data, Notes()

    def changed(*count: int) -> TensorDataset:
        inputs, targets = data(*count).tensors
        return TensorDataset(-inputs, targets)

    monkeypatch.setattr(small, "data", changed)
    with pytest.raises(ClusterError, match=r"it has other code or data.*sameArithmetic: Required refuses it"):
        train(small_job("workers.sameArithmetic=Required"), Options(output_dir=folder, resume=True))
    train(small_job(), Options(output_dir=folder, resume=True), [notes])
    assert any("it has other code or data" in line for line in notes.lines)


@pytest.mark.fault("C04")
def test_stopped_and_resumed_again_and_again(small_job: Any, tmp_path: Path) -> None:
    job = small_job()
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    folder = tmp_path / "stopped"
    assert whole["updates"] == 24
    for update in (5, 10, 15, 20):
        with pytest.raises(Interrupted, match=rf"stopped after update {update}; the checkpoint is in"):
            train(job, Options(output_dir=folder, resume=True), stop_requested=after(5))
        assert not (folder / "summary.json").exists()
    summary = train(job, Options(output_dir=folder, resume=True))
    assert whole["weightsSha256"] == summary["weightsSha256"]
    assert list(range(1, whole["updates"] + 1)) == [int(row["update"]) for row in rows(folder)]


def test_the_history_is_the_plans(small_job: Any, tmp_path: Path) -> None:
    """The batch grows, the learning rate falls past the maximum, and rate / batch is that of the wanted batch."""
    job = small_job("epochs=5")
    plan = make_plan(job.spec)
    train(job, Options(output_dir=tmp_path))
    recorded = rows(tmp_path)
    assert plan.updates == len(recorded)
    for row in recorded:
        stage = plan.stage_at(int(row["update"]) - 1)
        assert (stage.batch_size, stage.learning_rate) == (int(row["batchSize"]), float(row["learningRate"]))
        assert pytest.approx(0.05 / stage.wanted) == float(row["learningRate"]) / int(row["batchSize"])
    assert sorted({int(row["batchSize"]) for row in recorded}) == [8, 16, 32]
    assert float(recorded[-1]["learningRate"]) == 0.0125
    assert float(recorded[-1]["epoch"]) == 5.0


def test_the_seed_decides_and_nothing_else(small_job: Any, tmp_path: Path) -> None:
    first, again, other = (
        train(small_job(f"seed={seed}"), Options(output_dir=tmp_path / name))["weightsSha256"]
        for seed, name in ((3, "first"), (3, "again"), (4, "other"))
    )
    assert first == again != other


def test_how_often_it_is_evaluated_changes_nothing(small_job: Any, tmp_path: Path) -> None:
    often = train(small_job(), Options(output_dir=tmp_path / "often"))
    seldom = train(small_job("evaluation.everyEpochs=3"), Options(output_dir=tmp_path / "seldom"))
    assert often["weightsSha256"] == seldom["weightsSha256"]
    assert often["accuracy"] == seldom["accuracy"]
    with (tmp_path / "seldom" / "evaluations.csv").open() as file:
        assert [float(row["epoch"]) for row in csv.DictReader(file)] == [3.0, 4.0]


def test_the_summary_holds_what_it_promises(small_job: Any, tmp_path: Path) -> None:
    summary = train(small_job(), Options(output_dir=tmp_path))
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert {"updates", "examples", "seconds", "finalLoss", "accuracy", "weightsSha256", "resizes", "recoveries"} <= set(
        summary
    )
    assert (summary["examples"], summary["resizes"], summary["recoveries"]) == (360, [], 0)
    last = [row for row in rows(tmp_path) if float(row["epoch"]) > 3]
    shares = [30 / 90 if int(row["batchSize"]) == 30 else None for row in last]
    assert len(last) == len(shares)
    assert min(float(row["loss"]) for row in last) <= summary["finalLoss"] <= max(float(row["loss"]) for row in last)


# --- what is in the folder already ----------------------------------------------------------------------------------


def test_a_finished_run_is_not_trained_again_by_resume(small_job: Any, tmp_path: Path) -> None:
    notes, summary = Notes(), train(small_job(), Options(output_dir=tmp_path))
    assert summary == train(small_job(), Options(output_dir=tmp_path, resume=True), [notes])
    assert "is trained already" in notes.lines[0]


def test_a_run_that_ended_between_checkpoint_and_summary_is_concluded(small_job: Any, tmp_path: Path) -> None:
    summary = train(small_job(), Options(output_dir=tmp_path))
    (tmp_path / "summary.json").unlink()
    again = train(small_job(), Options(output_dir=tmp_path, resume=True))
    assert summary | {"seconds": again["seconds"]} == again


def test_no_row_is_written_into_the_history_of_a_run_that_has_taken_over(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between checkpoints, when there is a buffer full of rows."""
    monkeypatch.setattr(history_module, "_BUFFER_BYTES", 1)
    path = tmp_path / "history.csv"

    class Successor:
        """A sink: another run locks the folder, as a file server allows that could not reach this machine."""

        rows = b""

        def handle(self, event: Event) -> None:
            if isinstance(event, HistoryRow) and event.update == 5:
                (tmp_path / ".lock").write_text("another's")
                self.rows = path.read_bytes()

    successor = Successor()
    with pytest.raises(Superseded, match="another run has taken over the folder"):
        train(small_job(), Options(output_dir=tmp_path), [successor])
    assert successor.rows.count(b"\n") == 6
    assert path.read_bytes() == successor.rows


def test_without_resume_the_earlier_run_is_kept_aside(small_job: Any, tmp_path: Path) -> None:
    notes, summary = Notes(), train(small_job(), Options(output_dir=tmp_path))
    again = train(small_job("seed=9"), Options(output_dir=tmp_path), [notes])
    assert f"an earlier run was here; it is kept in {tmp_path / 'earlier' / '1'}" in notes.lines
    assert summary == json.loads((tmp_path / "earlier" / "1" / "summary.json").read_text())
    assert summary["weightsSha256"] != again["weightsSha256"]


def test_resume_without_a_checkpoint_says_that_it_starts_at_the_beginning(small_job: Any, tmp_path: Path) -> None:
    notes = Notes()
    train(small_job(), Options(output_dir=tmp_path, resume=True), [notes])
    assert "there is no checkpoint" in notes.lines[0]


def test_a_stop_before_the_first_update_says_so(small_job: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="before the first update"):
        train(small_job(), Options(output_dir=tmp_path), stop_requested=lambda: True)


@pytest.mark.fault("D17")
def test_a_taken_port_leaves_the_earlier_run_where_it_is(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small_job(), Options(output_dir=tmp_path))

    def taken(*_: object) -> None:
        raise PortError("taken")

    monkeypatch.setattr(training, "Endpoint", taken)
    with pytest.raises(PortError):
        train(small_job(), Options(output_dir=tmp_path))
    assert (tmp_path / "summary.json").exists()
    assert not (tmp_path / "earlier").exists()


@pytest.mark.fault("C24")
def test_a_trainer_that_waits_for_its_folder_answers_its_probe(small_job: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers = list[bytes]()

    class Probe(Notes):
        def handle(self, event: Event) -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as answer:
                answers.append(answer.read())

    other = OutputFolder(tmp_path)
    options = Options(output_dir=tmp_path, metrics_port=port, patient=True)
    with closing(other), pytest.raises(Interrupted, match="waiting for the other run"):
        train(small_job(), options, [Probe()], stop_requested=lambda: bool(answers))
    assert answers == [b"ok"]


def test_a_damaged_newest_checkpoint_costs_only_time(small_job: Any, tmp_path: Path, at_every_update: None) -> None:
    notes, whole = Notes(), train(small_job(), Options(output_dir=tmp_path))
    (tmp_path / "summary.json").unlink()
    newest = max((tmp_path / "checkpoints").iterdir()) / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    again = train(small_job(), Options(output_dir=tmp_path, resume=True), [notes])
    assert whole["weightsSha256"] == again["weightsSha256"]
    assert "is not what was written (100 of" in notes.lines[0]


@pytest.mark.fault("D12")
def test_another_model_under_the_same_name_is_refused(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is the same and the user's code is not."""
    with pytest.raises(Interrupted):
        train(small_job(), Options(output_dir=tmp_path), stop_requested=after(5))
    import small

    monkeypatch.setattr(small, "net", small.plain)
    with pytest.raises(CheckpointError, match="written by another model or optimizer"):
        train(small_job(), Options(output_dir=tmp_path, resume=True))


def test_another_metric_is_refused_at_a_resume(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values have no column; the checkpoint stays whole, so that undoing the change is enough."""
    whole = train(small_job("workload.entrypoint=small:plain"), Options(output_dir=tmp_path / "whole"))
    job, folder, workload = small_job("workload.entrypoint=small:plain"), tmp_path / "changed", small.plain
    with pytest.raises(Interrupted):
        train(job, Options(output_dir=folder), stop_requested=after(14))

    with monkeypatch.context() as changed:
        metrics = {"accuracy": correct, "again": correct}
        changed.setattr(small, "plain", lambda: replace(workload(), metrics=metrics))
        with pytest.raises(
            CheckpointError, match=r"loss, accuracy, but now they would be .*loss, accuracy, again; undo the change"
        ):
            train(job, Options(output_dir=folder, resume=True))
    assert whole["weightsSha256"] == train(job, Options(output_dir=folder, resume=True))["weightsSha256"]


@pytest.mark.fault("D08")
def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may succeed; only a last one that failed is an error."""
    failing = [True]
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update in (3, 9))
    save = training.CheckpointStore.save

    def sometimes(store: Any, snapshot: Any, story: Any) -> int:
        if failing[0] and snapshot.position.update < 5:
            raise CheckpointError("no room")
        return save(store, snapshot, story)

    monkeypatch.setattr(training.CheckpointStore, "save", sometimes)
    notes = Notes()
    train(small_job(), Options(output_dir=tmp_path), [notes])
    assert [line for line in notes.lines if "failed" in line] == ["checkpoint failed: no room"]
    assert saved(tmp_path)[0] == 9


@pytest.mark.fault("D13")
def test_a_patient_trainer_waits_for_the_run_that_holds_the_folder(small_job: Any, tmp_path: Path) -> None:
    """Its predecessor's node may just be getting lost; `batchgrowth run` is refused at once."""
    notes = Notes()
    with closing(OutputFolder(tmp_path)):
        with pytest.raises(StorageError, match="another run is writing there; wait for it or give another folder"):
            train(small_job(), Options(output_dir=tmp_path))
        with pytest.raises(Interrupted, match="stopped while waiting for the other run"):
            train(small_job(), Options(output_dir=tmp_path, patient=True), [notes], after(1))
    assert len(notes.lines) == 1
    assert "waiting up to 300 s" in notes.lines[0]


@pytest.mark.fault("D01")
def test_nan_ends_the_run_and_leaves_the_last_checkpoint(small_job: Any, tmp_path: Path, at_every_update: None) -> None:
    job = small_job("workload.entrypoint=small:diverging", "checkpoint.keep=2")
    with pytest.raises(WorkloadError, match=r"is not finite: loss .* lower learningRate\.initial"):
        train(job, Options(output_dir=tmp_path))
    assert rows(tmp_path)
    assert len(rows(tmp_path)) == saved(tmp_path)[-1]
    with pytest.raises(WorkloadError, match="is not finite"):
        train(job, Options(output_dir=tmp_path, resume=True))


def test_collections_leave_alone_what_exists(small_job: Any, tmp_path: Path) -> None:
    """While it trains, since looking through all that was imported stops it for .2 s; what a user has frozen stays."""
    frozen: list[bool] = []

    def stop() -> bool:
        frozen.append(gc.get_freeze_count() > 100_000)
        return False

    assert gc.get_freeze_count() < 1_000, "those of Python itself"
    train(small_job(), Options(output_dir=tmp_path / "once"), stop_requested=stop)
    assert frozen
    assert all(frozen)
    assert gc.get_freeze_count() < 1_000
    gc.freeze()
    try:
        train(small_job(), Options(output_dir=tmp_path / "again"))
        assert 100_000 < gc.get_freeze_count()
    finally:
        gc.unfreeze()

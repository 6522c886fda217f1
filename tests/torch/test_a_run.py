"""A run is a thing: what is in its folder comes from its checkpoint, is said to be missing, or stays as it was."""

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import CheckpointError, DataError, Interrupted, WorkloadError
from batchgrowth_trainer import building
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record import checkpoint
from batchgrowth_trainer.record.runs import declared_manifest, recorded_course
from batchgrowth_trainer.record.summary import Summary, facts_of, significant
from batchgrowth_trainer.sinks.events import Event, Note
from batchgrowth_trainer.training import Options, train

MEASURED = ("epochs=6", "batch.growth={type: LossRatio, looks: {everyUpdates: 5, leastChange: '1.01'}}")


class Notes:
    """A sink that keeps the notes."""

    def __init__(self) -> None:
        self.text = ""

    def handle(self, event: Event) -> None:
        if isinstance(event, Note):
            self.text += event.text + "\n"


def after(updates: int) -> Callable[[], bool]:
    """A stop request after that many updates of a run in this process."""
    left = iter(range(updates))
    return lambda: next(left, None) is None


def column(folder: Path, name: str, file: str = "history.csv") -> list[str]:
    with (folder / file).open() as rows:
        return [row[name] for row in csv.DictReader(rows)]


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


_KEPT: list[Path] = []


@pytest.fixture
def kept(small_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 24 updates, with a checkpoint of each; a test works with a copy."""
    if not _KEPT:
        folder = tmp_path_factory.mktemp("kept") / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunState, "checkpoint_due", lambda run: True)
            train(small_job("checkpoint.keep=100"), Options(output_dir=folder))
        _KEPT.append(folder)
    return _KEPT[0]


@pytest.fixture
def at(kept: Path, tmp_path: Path) -> Callable[[int], Path]:
    """A function: a copy of the run as if it had been stopped after that update."""

    def stopped(update: int) -> Path:
        folder = tmp_path / f"at-{update}"
        shutil.copytree(kept, folder)
        for name in ("summary.json", "model.safetensors"):
            (folder / name).unlink()
        for path in (folder / "checkpoints").iterdir():
            if int(path.name.split("-")[1]) > update:
                shutil.rmtree(path)
        return folder

    return stopped


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("G04")
def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    with pytest.raises(Interrupted):
        train(small_job(), Options(output_dir=tmp_path / "run"), stop_requested=after(14))

    tried = "state.safetensors"  # of the checkpoint that is tried before the first update
    files = [name for name in synced if name in ("history.csv", "evaluations.csv", "state.safetensors")]
    assert files == [tried, "history.csv", "evaluations.csv", "state.safetensors"]


@pytest.mark.fault("G04")
@pytest.mark.parametrize(("update", "lost"), [(14, 3), (14, 14), (23, 2)])
def test_rows_that_were_lost_are_said_and_left_out(at: Any, kept: Path, small_job: Any, update: int, lost: int) -> None:
    """The loss of the last epoch, which begins with update 22, is that of all its updates or is not told."""
    folder = at(update)
    lines = (folder / "history.csv").read_text().splitlines(keepends=True)
    (folder / "history.csv").write_text("".join(lines[: 1 + update - lost]))
    notes = Notes()
    summary = train(small_job(), Options(output_dir=folder, resume=True), [notes])

    assert f"history.csv lacks updates {update - lost + 1} to {update}, whose rows were lost" in notes.text
    assert [{"from": update - lost + 1, "to": update}] == summary["missingUpdates"]
    assert summary["finalLoss"] == (None if update == 23 else summary_of(kept)["finalLoss"])
    assert summary["weightsSha256"] == summary_of(kept)["weightsSha256"]


@pytest.mark.fault("G04")
def test_the_row_of_the_last_evaluation_comes_from_the_checkpoint(at: Any, kept: Path, small_job: Any) -> None:
    folder = at(14)
    (folder / "evaluations.csv").unlink()
    notes = Notes()
    train(small_job(), Options(output_dir=folder, resume=True), [notes])

    assert "evaluations.csv lacks what was evaluated after update 0; the checkpoint has the last" in notes.text
    for name in ("update", "loss", "accuracy"):
        assert column(folder, name, "evaluations.csv") == column(kept, name, "evaluations.csv")


@pytest.mark.fault("G05")
def test_decisions_come_from_the_checkpoint_or_are_refused(small_job: Any, tmp_path: Path) -> None:
    """The looks are in growth.csv, which has no digest; a run that is not finished has no summary either."""
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(small_job(*MEASURED), Options(output_dir=folder), stop_requested=after(40))
    whole = declared_manifest(folder)
    decided = recorded_course(folder).decisions
    assert decided
    (folder / "growth.csv").unlink()
    assert whole == declared_manifest(folder)
    assert decided == recorded_course(folder).decisions
    shutil.rmtree(folder / "checkpoints")
    for read in (declared_manifest, recorded_course):
        with pytest.raises(DataError, match=r"had a batch of \d+, .* make 8: a row of growth\.csv is missing"):
            read(folder)


@pytest.mark.fault("G05")
def test_a_finished_run_has_its_decisions_in_its_summary(small_job: Any, tmp_path: Path) -> None:
    summary = train(small_job(*MEASURED), Options(output_dir=tmp_path))
    whole = declared_manifest(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "growth.csv").unlink()

    assert summary["decisions"]
    assert whole == declared_manifest(tmp_path)


# --- nothing moves ------------------------------------------------------------------------------------------------


@pytest.mark.fault("G06")
@pytest.mark.parametrize("resume", [False, True])
def test_a_workload_that_fails_moves_nothing(
    at: Any, kept: Path, small_job: Any, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise WorkloadError("small has no 'net'")

    folder = at(14)
    before = content(folder)
    with monkeypatch.context() as broken:
        broken.setattr(building, "load_workload", refused)
        with pytest.raises(WorkloadError, match="small has no 'net'"):
            train(small_job(), Options(output_dir=folder, resume=resume))

    assert before == content(folder)
    again = train(small_job(), Options(output_dir=folder, resume=True))
    assert again["weightsSha256"] == summary_of(kept)["weightsSha256"]


@pytest.mark.fault("G06")
def test_a_resume_that_finds_nothing_names_the_earlier_run(at: Any, kept: Path, small_job: Any) -> None:
    folder = at(14)
    train(small_job("epochs=1"), Options(output_dir=folder))
    shutil.rmtree(folder / "checkpoints")
    notes = Notes()
    train(small_job("epochs=1"), Options(output_dir=folder, resume=True), [notes])
    named = folder / "earlier" / "1"

    assert f"--resume with --output-dir {named} goes on with that one" in notes.text
    assert (
        train(small_job(), Options(output_dir=named, resume=True))["weightsSha256"] == summary_of(kept)["weightsSha256"]
    )


# --- damaged ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("G07")
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"updates": 24}', "\x00", '{"name": NaN}'])
def test_a_damaged_summary_is_written_again(kept: Path, small_job: Any, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    whole = summary_of(folder)
    (folder / "summary.json").write_text(damage)
    again = train(small_job(), Options(output_dir=folder, resume=True))

    assert again == summary_of(folder)
    assert whole | {"seconds": again["seconds"]} == again


@pytest.mark.fault("G07")
def test_weights_that_are_gone_are_written_again(kept: Path, small_job: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    (folder / "model.safetensors").unlink()
    train(small_job(), Options(output_dir=folder, resume=True))

    assert (folder / "model.safetensors").read_bytes() == (kept / "model.safetensors").read_bytes()


def sealed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a checkpoint's manifest, and give it the digest of what it is then."""
    manifest = json.loads(path.read_text())
    del manifest["digest"]
    change(manifest)
    path.write_text(json.dumps({**manifest, "digest": checkpoint.digest(manifest)}))


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer format": lambda m: m.update(format=2),
    "no position": lambda m: m.pop("position"),
    "no story": lambda m: m.pop("story"),
    "no seconds": lambda m: m["story"].pop("seconds"),
    "no digest of the state": lambda m: m.pop("sha256"),
    "no mathematics": lambda m: m.pop("mathematics"),
    "a position as text": lambda m: m["position"].update(update="14"),
    "a negative position": lambda m: m["position"].update(offset=-1),
    "seconds that are no number": lambda m: m["story"].update(seconds=float("nan")),
    "a resize without a size": lambda m: m["story"].update(resizes=[{"update": 3}]),
    "another update than the folder's name": lambda m: m["position"].update(update=13),
    "an example that no update ends with": lambda m: m["position"].update(offset=17),
    "another epoch": lambda m: m["position"].update(epoch=2, offset=0),
    "mathematics that are a list": lambda m: m.update(mathematics=[]),
}


@pytest.mark.fault("G12")
@pytest.mark.parametrize("edit", EDITS)
def test_a_manifest_that_makes_no_sense_means_the_checkpoint_before(at: Any, small_job: Any, edit: str) -> None:
    folder = at(14)
    sealed(folder / "checkpoints" / "update-0000000014" / "manifest.json", EDITS[edit])
    notes = Notes()
    with pytest.raises(Interrupted, match="stopped after update 13"):
        train(small_job(), Options(output_dir=folder, resume=True), [notes], stop_requested=lambda: True)

    assert "checkpoint update-0000000014: manifest.json " in notes.text
    assert "trying the one before it" in notes.text


# --- longer -------------------------------------------------------------------------------------------------------


@pytest.mark.fault("N05")
@pytest.mark.parametrize("update", [14, 24])
def test_more_epochs_give_the_weights_of_a_run_that_had_them_from_the_start(
    at: Any, kept: Path, small_job: Any, tmp_path: Path, update: int
) -> None:
    whole = train(small_job("epochs=6"), Options(output_dir=tmp_path / "whole"))
    folder = at(update)
    if update == 24:
        for name in ("summary.json", "model.safetensors"):
            shutil.copy(kept / name, folder / name)
    notes = Notes()
    again = train(small_job("epochs=6"), Options(output_dir=folder, resume=True), [notes])

    assert whole["weightsSha256"] == again["weightsSha256"]
    assert whole["finalLoss"] == again["finalLoss"]
    assert f"epochs: 4 there, 6 here: the {update} updates that are done are the same with both" in notes.text
    assert column(folder, "update") == column(tmp_path / "whole", "update")
    aside = folder / "earlier" / "1"
    assert aside.exists() is (update == 24)
    if update == 24:
        assert summary_of(aside) == summary_of(kept)
        assert (aside / "model.safetensors").read_bytes() == (kept / "model.safetensors").read_bytes()
        assert column(aside, "update") == column(kept, "update")


@pytest.mark.fault("N05")
def test_what_would_have_been_different_is_said(small_job: Any, tmp_path: Path) -> None:
    cosine = ("batch.growth={type: Constant}", "learningRate.schedule={type: Cosine}")
    train(small_job(*cosine), Options(output_dir=tmp_path))
    before = content(tmp_path)
    expected = r"epochs: 4 there, 8 here: update 13 has learning rate 0\.0426777 there, 0\.0480970 here\)"
    with pytest.raises(CheckpointError, match=expected.replace("0970", r"\d+")):
        train(small_job(*cosine, "epochs=8"), Options(output_dir=tmp_path, resume=True))
    assert before == content(tmp_path)


# --- the summary --------------------------------------------------------------------------------------------------


@pytest.mark.fault("N12")
def test_a_summary_has_every_metric_and_the_test_loss(kept: Path) -> None:
    summary = summary_of(kept)
    last = {name: float(column(kept, name, "evaluations.csv")[-1]) for name in ("loss", "accuracy")}

    assert last == {"loss": summary["testLoss"], "accuracy": summary["metrics"]["accuracy"]}
    assert summary.keys() <= {field.alias for field in Summary.model_fields.values()}


@pytest.mark.fault("N12")
def test_the_final_numbers_have_significant_digits() -> None:
    summary = {
        "updates": 1200, "seconds": 2.0, "finalLoss": 0.0000321, "testLoss": 0.00004567, "accuracy": None,
        "metrics": {"error": 0.5, "r2": float("nan"), "large": 123456.0, "none": None},
    }  # fmt: skip

    assert [
        ("updates", "1,200"), ("seconds", "2.0"), ("test loss", "0.00004567"), ("test error", "0.5000"),
        ("test r2", "nan"), ("test large", "123456"), ("training loss", "0.00003210"),
    ] == facts_of(summary, "test ")  # fmt: skip
    assert [significant(value) for value in (0.0, 1e-12, -2.5, 3e12)] == ["0", "1.000e-12", "-2.500", "3.000e+12"]

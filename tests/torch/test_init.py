"""`batchgrowth init`: what it writes trains as it is."""

import sys
from pathlib import Path

import pytest
from batchgrowth.errors import SpecError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer import commands
from batchgrowth_trainer.training import Options, train


def test_what_it_writes_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "my-model"
    commands.init(folder)
    assert f"    batchgrowth run {folder / 'job.yaml'}\n" in capsys.readouterr().out
    job = load_manifest(folder / "job.yaml", ["exchange.type=SingleProcess", "epochs=12"])
    assert job.metadata.name == "my-model"
    monkeypatch.syspath_prepend(folder)
    summary = train(job, Options(output_dir=tmp_path / "run"))
    assert str(folder) in str(sys.modules["my_model"].__file__)
    assert summary["accuracy"] > 0.85


@pytest.mark.parametrize("name", ["My-Model", "2nd", "a_b", "a" * 45, "ends-"])
def test_a_name_that_is_none_for_a_job_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"NAME: .* is not a valid job name; give lower-case letters"):
        commands.init(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["torch", "random", "class"])
def test_the_name_of_another_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=f"NAME: {name} is the name of another Python module; give another name"):
        commands.init(tmp_path / name)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text("precious")
    with pytest.raises(SpecError, match=r"NAME: .*mine: File exists; give a folder that is not there yet"):
        commands.init(tmp_path / "mine")
    assert (tmp_path / "mine" / "mine.py").read_text() == "precious"
    assert not (tmp_path / "mine" / "job.yaml").exists()


@pytest.mark.parametrize("name", ["true", "on", "null", "n"])
def test_a_name_that_means_something_in_yaml_is_in_quotes(tmp_path: Path, name: str) -> None:
    commands.init(tmp_path / name)
    assert load_manifest(tmp_path / name / "job.yaml").metadata.name == name

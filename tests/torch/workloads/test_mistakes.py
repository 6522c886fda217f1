"""The mistakes of docs/mistakes.md: each is made as a user would make it, and its error is one paragraph that helps."""

import sys
from pathlib import Path

import pytest
import torch
import user_mistakes
from batchgrowth.errors import BatchGrowthError
from batchgrowth_trainer.commands import run

from docs.mistakes import read_mistakes

MISTAKES = {name: mistake for name, mistake in read_mistakes().items() if not mistake.needs_gpu}
FEWEST = 40

pytestmark = pytest.mark.usefixtures("logs_as_before")


def test_there_are_many() -> None:
    assert len(MISTAKES) >= FEWEST


@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_names_file_line_and_remedy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if MISTAKES[name].needs_no_gpu and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    written = user_mistakes.write(name, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(BatchGrowthError) as caught:
        run(written.manifest, output_dir=tmp_path / "run", set_=list(written.changes), plots=False)

    text = str(caught.value)
    assert isinstance(caught.value, written.error)
    assert user_mistakes.missing_in(text, written) == [], text
    assert "\n" not in text
    assert "batchgrowth_trainer/" not in text


@pytest.mark.parametrize("name", ["model.shape", "model.input-dtype", "loss.scalar", "loss.arguments"])
def test_an_error_without_a_line_of_its_own_names_the_workload(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = user_mistakes.write(name, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(BatchGrowthError, match=rf"; see {tmp_path}/mine_\w+\.py:\d+, in workload$"):
        run(written.manifest, output_dir=tmp_path / "run", plots=False)


def test_the_log_has_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = user_mistakes.write("model.forward-raises", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with caplog.at_level("DEBUG", "batchgrowth_trainer"), pytest.raises(BatchGrowthError):
        run(written.manifest, output_dir=tmp_path / "run", plots=False)

    [record] = [record for record in caplog.records if record.exc_info]
    assert isinstance(record.exc_info, tuple)
    assert isinstance(record.exc_info[1], ValueError)

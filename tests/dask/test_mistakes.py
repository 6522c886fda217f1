"""Mistakes of users' code that a worker finds read the same as in one process."""

from pathlib import Path

import pytest
import user_mistakes
from batchgrowth.errors import BatchGrowthError
from batchgrowth_trainer.commands import run

pytestmark = pytest.mark.usefixtures("logs_as_before")


@pytest.mark.smoke
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["function.package-missing", "model.changed-in-place", "loss.detached", "data.raises"])
def test_a_worker_names_file_line_and_remedy(
    name: str, exchange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = user_mistakes.write(name, tmp_path, exchange)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BatchGrowthError) as caught:
        run(written.manifest, output_dir=tmp_path / "run", plots=False)

    assert isinstance(caught.value, written.error)
    assert user_mistakes.missing_in(str(caught.value), written) == [], str(caught.value)

"""Each job imports its own modules, with its own seed, whatever this process has imported before."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.record import functions
from batchgrowth_trainer.user_code import begin_job, code_digests, find_function

DRAWING = """
import random
import numpy
import torch

VALUES = numpy.random.rand(), random.random(), float(torch.rand(()))

def workload():
    return VALUES
"""
OF_TWO_FILES = {
    "twofiles_net/__init__.py": "",
    "twofiles_net/model.py": "import batchgrowth.extend\nfrom twofiles_helper import NAME\n\n\n"
    "def workload():\n    return NAME\n",
    "twofiles_helper.py": "NAME = {name!r}\n",
}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """The process is that of other tests too."""
    yield
    begin_job(0, is_worker=True)


def written(folder: Path, name: str) -> Path:
    for file, source in OF_TWO_FILES.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(source.format(name=name))
    return folder


@pytest.mark.fault("T03")
def test_generators_are_seeded_before_the_import(tmp_path: Path) -> None:
    """Whatever was drawn before, and whichever function of the module is found first."""
    (tmp_path / "drawing_at_import.py").write_text(DRAWING)
    values = []
    for seed, before in ((5, 1), (5, 2), (6, 1)):
        begin_job(seed, [str(tmp_path)])
        for draw in (random.seed, np.random.seed, torch.manual_seed):
            draw(before)
        values.append(find_function("drawing_at_import:workload")())
    assert values[0] == values[1]
    assert all(one != other for one, other in zip(values[0], values[2], strict=True))


@pytest.mark.fault("T08")
def test_a_job_after_another_has_its_own_modules(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two", "one"):
        begin_job(0, [str(written(tmp_path / name, name))])
        found.append(find_function("twofiles_net.model:workload")())
    assert found == ["one", "two", "one"]
    assert str(tmp_path / "two") not in sys.path


@pytest.mark.fault("T08")
def test_a_file_that_was_edited_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within the second, to the same size, which a compiled file could not tell."""
    monkeypatch.delitem(sys.modules, "batchgrowth.extend", raising=False)  # ours, though a user's module imports it
    found = []
    digests = []
    for name in ("one", "two"):
        written(tmp_path, name)
        os.utime(tmp_path / "twofiles_helper.py", (1_700_000_000, 1_700_000_000))
        begin_job(0, [str(tmp_path)])
        found.append(find_function("twofiles_net.model:workload")())
        digests.append(code_digests())
    assert found == ["one", "two"]
    assert [list(one) for one in digests] == [
        ["twofiles_helper.py", "twofiles_net/__init__.py", "twofiles_net/model.py"]
    ] * 2
    assert [file for file in digests[0] if digests[0][file] != digests[1][file]] == ["twofiles_helper.py"]


def _calling() -> str:
    from twofiles_helper import NAME

    return str(NAME)


@pytest.mark.fault("T08")
def test_a_function_that_was_sent_finds_the_modules_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calling, "__module__", "__main__")
    entrypoint, data = functions.packed(_calling)
    monkeypatch.delitem(functions._RECEIVED, entrypoint)
    found = []
    for name in ("one", "two"):
        begin_job(0, [str(written(tmp_path / name, name))], data, is_worker=True)
        found.append(find_function(entrypoint)())
    assert found == ["one", "two"]
    begin_job(0)
    with pytest.raises(WorkloadError, match="is a function that was given from Python"):
        find_function(entrypoint)

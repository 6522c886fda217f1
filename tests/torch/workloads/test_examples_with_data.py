"""The examples that bring their own code and data train, and say how their data are made."""

from pathlib import Path

import pytest
from batchgrowth.errors import DataError, Interrupted
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.training import Options, train
from example_jobs import EXAMPLE_JOBS, EXAMPLES, IMAGES, LEARNED_JOBS

ALONE = "exchange.type=SingleProcess"


@pytest.mark.parametrize("name", LEARNED_JOBS)
def test_it_learns_visibly(name: str, example_data: Path, tmp_path: Path) -> None:
    """The README of the example says what it reaches at its full size."""
    example = LEARNED_JOBS[name]
    summary = train(example.job(example_data, *example.small, ALONE, "workers.loaders=0"), Options(output_dir=tmp_path))
    assert summary["accuracy"] > example.reached > example.chance


def test_loaders_and_an_interruption_change_nothing(example_data: Path, tmp_path: Path) -> None:
    """In one process, as test_a_life.py with workers: none reads ahead; one does; three do, after an interruption."""
    asked = list[None]()

    def job(loaders: int) -> BatchGrowthJob:
        return IMAGES.job(example_data, *IMAGES.few, ALONE, f"workers.loaders={loaders}")

    def after_nine_updates() -> bool:
        asked.append(None)
        return len(asked) > 9

    whole = train(job(0), Options(output_dir=tmp_path / "whole"))
    with pytest.raises(Interrupted, match="stopped after update 9;"):
        train(job(1), Options(output_dir=tmp_path / "stopped"), stop_requested=after_nine_updates)
    resumed = train(job(3), Options(output_dir=tmp_path / "stopped", resume=True))
    assert whole["weightsSha256"] == resumed["weightsSha256"]
    assert whole["accuracy"] == resumed["accuracy"]


@pytest.mark.parametrize(("name", "script"), [("images", "make_images.py"), ("memmap", "make_table.py")])
def test_missing_data_are_answered_with_the_script_that_makes_them(name: str, script: str, tmp_path: Path) -> None:
    example = EXAMPLE_JOBS[name]
    assert (EXAMPLES / example.manifest).with_name(script).exists()
    with pytest.raises(DataError, match=script):
        train(example.job(tmp_path, *example.few, ALONE), Options(output_dir=tmp_path / "run"))

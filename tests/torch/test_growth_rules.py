"""The comparison of the growth rules runs end to end on a tiny network; what it finds is not tried here."""

import json
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import GROWTH
from batchgrowth.schedule.plan import make_plan
from typer import Typer
from typer.testing import CliRunner

from bench.growth_rules import bench
from bench.growth_trials import CONV_NET, LEFT_OUT, Contestant, Trial, job_of, work

MEASURED = {name for name, entry in GROWTH.items() if entry.quantity} - {*LEFT_OUT}
app = Typer()
app.command()(bench)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with results and picture of a quick run, and its output."""
    folder = tmp_path_factory.mktemp("growth-rules")
    files = "--output", str(folder / "results.json"), "--picture", str(folder / "picture.png")
    done = CliRunner().invoke(app, ["--quick", *files], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder, done.output


def test_every_rule_was_trained_beside_the_others(quick: tuple[Path, str]) -> None:
    results: dict[str, Any] = json.loads((quick[0] / "results.json").read_text())
    found = {one["name"]: one["trials"] for one in results["contestants"]}

    assert found.keys() > MEASURED | {"constant 32", "constant 512", "Geometric (declared)", "InsteadOfDecay, Cosine"}
    assert all(0 < trial["accuracy"] <= 1 for trials in found.values() for trial in trials)
    assert [45] == [trial["updates"] for trial in found["constant 32"]]
    assert [3] == [trial["updates"] for trial in found["constant 512"]]
    assert all(trial["updates"] < 45 for trial in found["GradientDiversity"]), "a measured batch has grown"


def test_the_table_and_the_picture_show_them(quick: tuple[Path, str]) -> None:
    again = CliRunner().invoke(app, ["--input", str(quick[0] / "results.json"), "--markdown"], catch_exceptions=False)

    for name in MEASURED:
        assert name in quick[1]
        assert f"| {name} |" in again.output
    assert "| growth | accuracy, % | training loss | updates | worker-seconds | seconds |" in again.output
    assert (quick[0] / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    done = CliRunner().invoke(app, ["--input", str(tmp_path / "other.json")])

    assert done.exit_code == 2
    assert "--output" in done.output


def test_the_work_of_a_plan_counts_what_the_busiest_worker_computes() -> None:
    """512 examples are 32 shards for 4 workers; an epoch ends with 413 in 26 shards, 7 of them for the busiest."""
    plan = make_plan(job_of("constant 512", CONV_NET, epochs=1, seed=0).spec)
    assert (4 * (8 + 8 + 7), 8 + 8 + 7) == work(plan)


def test_a_job_has_its_seed_and_its_network() -> None:
    job = job_of("NoiseScale", CONV_NET, epochs=1, seed=3)
    assert (3, "batchgrowth_trainer.workloads.digits:workload") == (job.spec.seed, job.spec.workload.entrypoint)


def test_the_mean_has_its_standard_error() -> None:
    trials = [Trial(accuracy, 0.0, 1, 1.0, 1, 1, [(0.0, 32)]) for accuracy in (0.25, 0.5, 0.75)]
    assert Contestant("any", trials).mean("accuracy") == pytest.approx(0.5)
    assert Contestant("any", trials).error("accuracy") == pytest.approx(0.25 / 3**0.5)
    assert Contestant("any", trials[:1]).error("accuracy") == 0

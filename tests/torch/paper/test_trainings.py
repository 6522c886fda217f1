"""Figs 3 and 4: the schedules as they are trained, and what is made of their runs; the runs here are tiny."""

import re
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from batchgrowth import cli
from batchgrowth.errors import DataError, SpecError
from batchgrowth_trainer.paper import trainings
from batchgrowth_trainer.paper.experiment import write_all
from batchgrowth_trainer.paper.experiments import EXPERIMENTS, TRAINED, made
from batchgrowth_trainer.paper.published import SCHEDULES
from batchgrowth_trainer.paper.trained_figures import FROM_RUNS, accuracy, updates_at
from batchgrowth_trainer.paper.trainings import Comparison, SeedMean, cifar10, digits, seed_mean, trained
from batchgrowth_trainer.record.history import EvaluationRow

TINY = replace(digits(), arguments={"hidden": "4"}, every_epochs=1, epochs=2)
Short = tuple[Comparison, Path, list[str]]
"""The trained schedules, the folder of their runs, and what was said."""


def test_the_digits_have_the_schedules_of_the_paper_scaled_down() -> None:
    """Batches by 16 and epochs by 10; growth, learning rates and the cap on the (*2) schedule are the paper's."""
    stages = {
        one.name: [(int(s.epoch_from), s.batch_size, s.learning_rate) for s in digits().plan(one).stages]
        for one in SCHEDULES
    }

    assert stages == {
        "5.1k (*2)": [(0, 16, 0.1), (6, 80, 0.1), (12, 320, 0.08), (18, 320, 0.016)],
        "3.2k": [(0, 8, 0.05), (6, 40, 0.05), (12, 200, 0.05), (18, 200, 0.01)],
        "16k": [(0, 8, 0.05), (6, 40, 0.05), (12, 200, 0.05), (18, 1000, 0.05)],
        "640": [(0, 8, 0.05), (6, 40, 0.05), (12, 40, 0.01), (18, 40, 0.002)],
        "128": [(0, 8, 0.05), (6, 8, 0.01), (12, 8, 0.002), (18, 8, 0.0004)],
    }
    assert [digits().plan(one).updates for one in SCHEDULES] == [688, 1360, 1348, 1584, 3600]


def test_cifar10_has_the_schedules_of_the_paper(tmp_path: Path) -> None:
    for name in (*trainings.TRAIN_FILES, *trainings.TEST_FILES):
        (tmp_path / name).touch()
    problem = cifar10(tmp_path)

    assert [problem.plan(one).updates for one in SCHEDULES] == [one.updates for one in SCHEDULES]
    assert problem.job(SCHEDULES[0], 3).spec.workload.arguments == {"data": str(tmp_path)}


def test_images_that_are_missing_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no data_batch_1\.bin; get the CIFAR-10 .* --workload digits"):
        made("fig3", workload="cifar10", data=tmp_path, runs=tmp_path / "runs")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (
            ["fig5"],
            {"seeds": 3},
            r"--seeds: 3; leave it out, or ask for an experiment that trains: accuracy, fig3, fig4",
        ),
        (["fig3"], {"data": Path("x")}, "--data: x; leave it out, or add --workload cifar10"),
        (["fig4"], {"workload": "mnist"}, "--workload: 'mnist'; give digits or cifar10"),
    ],
)
def test_settings_that_would_be_ignored(names: list[str], settings: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        made(*names, **settings)  # type: ignore[arg-type]


def test_all_leaves_out_what_trains() -> None:
    assert set(TRAINED) == set(FROM_RUNS)
    assert not set(TRAINED) & set(EXPERIMENTS)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Short:
    """All schedules with two seeds: a tiny net, two epochs, and a batch that grows after the first."""
    folder = tmp_path_factory.mktemp("trainings")
    lines: list[str] = []
    return trained(TINY, 2, folder / "digits", lines.append), folder, lines


def test_each_run_makes_the_planned_updates(short: Short) -> None:
    comparison, _, lines = short
    table = accuracy(comparison)

    assert [row[4] for row in table.rows] == [row[5] for row in table.rows]
    assert [one.epochs for one in comparison.schedules] == [[1.0, 2.0]] * 5
    assert len(lines) == 10


def test_schedules_that_are_equal_so_far_have_equal_weights(short: Short) -> None:
    """All but the doubled one train the same first epoch with the same seed, so they measure the same."""
    first = {one.schedule.name: one.runs[0][0].loss for one in short[0].schedules}

    assert len({loss for name, loss in first.items() if name != "5.1k (*2)"}) == 1
    assert len(set(first.values())) == 2


def test_what_is_trained_is_not_trained_again(short: Short) -> None:
    comparison, folder, _ = short
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("history.csv")}

    again = trained(comparison.problem, 2, folder / "digits", lambda _: None)

    assert [one.runs for one in again.schedules] == [one.runs for one in comparison.schedules]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("history.csv")} == before


def test_the_figures_are_drawn(short: Short, tmp_path: Path) -> None:
    results = [make(short[0]) for make in FROM_RUNS.values()]
    paths = {path.name for path in write_all(results, tmp_path)}

    assert paths == {"accuracy.csv", "fig3.csv", "fig3.png", "fig4.csv", "fig4.png", "report.html"}
    assert (tmp_path / "fig4.csv").read_text().splitlines()[
        0
    ] == "schedule,epoch,updates,seconds,accuracy,standard error"
    assert [len(result.rows) for result in results] == [5, 10, 10]


def test_the_command_of_the_page_works(short: Short, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/forecast.md has it, but with the runs that are there already."""
    page = (Path(__file__).parents[3] / "docs" / "forecast.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"^\$ batchgrowth (paper accuracy fig3 fig4 --output paper)$", page, re.MULTILINE)
    paper = EntryPoint("paper", "batchgrowth_trainer.commands:paper", cli.COMMANDS)
    monkeypatch.setattr(cli, "entry_points", lambda group: [paper])
    monkeypatch.setattr(trainings, "digits", lambda: TINY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*words.split(), "--seeds", "2", "--runs", str(short[1])])

    assert ended.value.code == 0
    assert sorted(path.name for path in (tmp_path / "paper").glob("*.png")) == ["fig3.png", "fig4.png"]


def test_the_mean_over_seeds_has_a_standard_error() -> None:
    assert seed_mean([1.0, 2.0, 3.0]) == SeedMean(2.0, pytest.approx(3**-0.5))
    assert str(seed_mean([5.0])) == "SeedMean(mean=5.0, error=nan)"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            [(90, 92)] * 5,
            r"0\.00 points apart, 0\.0 standard errors of a mean, so within one\. .* in 100%",
        ),
        (
            [(90, 92)] * 4 + [(94, 96)],
            r"4\.00 points apart, 4\.0 standard errors of a mean, so not within one",
        ),
        ([(91,)] * 5, r"0\.00 points apart; one seed gives no standard error"),
        ([(91, 91)] * 5, r"0\.00 points apart, and all seeds agree"),
    ],
)
def test_how_alike_the_schedules_are_is_said(short: Short, ends: list[tuple[float, ...]], said: str) -> None:
    schedules = tuple(
        replace(one, runs=tuple((EvaluationRow(1, 1.0, 1.0, 0.1, {"accuracy": value / 100}),) for value in values))
        for one, values in zip(short[0].schedules, ends, strict=True)
    )
    comparison = replace(short[0], seeds=len(ends[0]), schedules=schedules)

    assert re.search(said, comparison.likeness())


def test_updates_at_an_epoch() -> None:
    plan = SCHEDULES[-2].plan()

    assert [updates_at(plan, epoch) for epoch in (1, 60, 61, 200)] == [391, 23_460, 23_539, 34_520]

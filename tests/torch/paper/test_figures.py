"""The figures that need no training, their data, and the report; and the commands of docs/forecast.md."""

import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from batchgrowth import cli
from batchgrowth.errors import BatchGrowthError, SpecError
from batchgrowth.forecast.networks import named, read_constants
from batchgrowth.forecast.sentences import Questions, forecasted
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.paper.experiment import write_all
from batchgrowth_trainer.paper.experiments import EXPERIMENTS, made
from batchgrowth_trainer.paper.figures import diversity
from batchgrowth_trainer.paper.published import SCHEDULES
from batchgrowth_trainer.plots.planned import plot_forecast

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")


def test_gradients_differ_more_near_the_optimum() -> None:
    (figure,) = made("fig1")
    near, far = figure.rows[0][-1], figure.rows[-1][-1]

    assert (near, far) == (4.062, 0.262)
    assert diversity([(1, 0), (1, 0), (1, 0), (1, 0)]) == pytest.approx(0.25)
    assert diversity([(1, 0), (0, 1)]) == pytest.approx(1)


def test_figure_2_is_that_of_the_paper() -> None:
    (figure,) = made("fig2")

    assert [row[3:] for row in figure.rows if row[0] == "5.1k (*2)"] == [
        (256, 0.1), (1280, 0.1), (5120, 0.08), (5120, 0.016),
    ]  # fmt: skip


def test_figure_5_has_the_minutes_of_table_2() -> None:
    (figure,) = made("fig5")

    assert len(figure.rows) == 15
    assert [row[4] for row in figure.rows] == pytest.approx([row[3] for row in figure.rows], rel=0.01)


@pytest.mark.parametrize(("name", "network"), [("fig6", 1), ("fig8", 1), ("fig9", 2), ("fig10", 0)])
def test_each_schedule_ends_at_its_published_minute(name: str, network: int) -> None:
    (figure,) = made(name)
    ends = {row[0]: (row[2], row[3]) for row in figure.rows if row[1] == 200}

    for schedule in SCHEDULES:
        assert ends[schedule.name] == (pytest.approx(schedule.minutes[network], rel=0.01), schedule.accuracy)


def test_figure_7_saturates_at_128_examples_per_worker() -> None:
    (figure,) = made("fig7")
    seconds = {row[0]: row[3] for row in figure.rows}

    assert [row[3] for row in figure.rows] == pytest.approx([row[2] for row in figure.rows], rel=0.015)
    assert min(seconds, key=lambda examples: seconds[examples]) == 128


def test_the_report_has_all_of_them(tmp_path: Path) -> None:
    """Figures 6, 9 and 10 are drawn by the same function as figure 8."""
    results = made("all")
    assert [result.name for result in results] == list(EXPERIMENTS)
    drawn = [result for result in results if result.name not in ("fig6", "fig9", "fig10")]
    paths = {path.name for path in write_all(drawn, tmp_path)}
    page = (tmp_path / "report.html").read_text()

    figures = [result.name for result in drawn if result.name.startswith("fig")]
    assert paths == {*(f"{result.name}.csv" for result in drawn), *(f"{name}.png" for name in figures), "report.html"}
    assert [result.name for result in drawn if f"id='{result.name}'" not in page] == []
    assert page.count("data:image/png;base64,iVBOR") == len(figures)


def test_an_unknown_name_and_a_folder_that_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"NAME: 'fig11'; give table1, table2, fig1, .* or all"):
        made("fig11")
    (tmp_path / "x").write_text("")
    with pytest.raises(BatchGrowthError, match="the report could not be written"):
        write_all(made("table1"), tmp_path / "x")


def test_a_forecast_is_drawn(tmp_path: Path) -> None:
    spec = load_manifest(ROOT / "examples" / "digits.yaml").spec
    (constants,) = named("high")
    found = forecasted(spec, make_plan(spec), constants, Questions(worth=0.02, replaced_after=120))
    plot_forecast(found, tmp_path / "new" / "x.png")

    assert (tmp_path / "new" / "x.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(BatchGrowthError, match=r"--output .*x\.doc.*give a path that ends in \.png, \.svg or \.pdf"):
        plot_forecast(found, tmp_path / "x.doc")


def test_the_commands_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first prints what the page quotes."""
    paper = EntryPoint("paper", "batchgrowth_trainer.commands:paper", cli.COMMANDS)
    monkeypatch.setattr(cli, "entry_points", lambda group: [paper])
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    printed = []
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line)[1:])
        assert ended.value.code == 0
        printed.append(capsys.readouterr().out)

    (quoted,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert [row.rstrip() for row in printed[0].splitlines()[:6]] == quoted.splitlines()
    assert (tmp_path / "paper" / "fig5.png").exists()


def test_the_file_of_the_page_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "ours.yaml"
    path.write_text(text)

    assert read_constants(path).step.per_doubling == 0.0016

"""Runs' directories are plotted into a PNG and a self-contained HTML page."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from batchgrowth.errors import BatchGrowthError, DataError
from batchgrowth.growth_decisions import Course
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer import commands, plots
from batchgrowth_trainer.plots import plot_plan, plot_runs
from batchgrowth_trainer.plots.figure import (
    AXES,
    MOST_POINTS,
    WIDEST_OF_MANY,
    Line,
    constant_batch_updates,
    figure_of,
    smoothed,
    steps,
    thinned,
)
from batchgrowth_trainer.plots.planned import rated_updates
from batchgrowth_trainer.record.history import EvaluationRow, History, HistoryRow
from batchgrowth_trainer.record.runs import read_run
from rich.console import Console

MakeJob = Callable[..., BatchGrowthJob]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLES = 100
GROWING = (10, 10, 25, 50)
WORKERS = (1, 1, 2, 4)


def write_run(
    directory: Path,
    batches: Sequence[int] = GROWING,
    workers: Sequence[int] = WORKERS,
    *,
    evaluated: bool = True,
    summary: dict[str, object] | None = None,
) -> Path:
    """A run of one epoch per entry of `batches`; an update takes a tenth of a second."""
    with closing(History(directory)) as history:
        update = 0
        for epoch, (batch, members) in enumerate(zip(batches, workers, strict=True)):
            for done in range(batch, EXAMPLES + 1, batch):
                update += 1
                at, loss, seconds = epoch + done / EXAMPLES, 2 * 0.9**update, update / 10
                history.append(HistoryRow(update, at, epoch, batch, 0.1, loss, members, 0.08, 0.01, 0.01, seconds))
            if evaluated:
                metrics = {"accuracy": 1 - 0.5 ** (epoch + 1)}
                history.append_evaluation(EvaluationRow(update, epoch + 1.0, update / 10, 0.5**epoch, metrics))
    if summary is not None:
        (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def test_one_run_is_plotted_into_its_own_directory(tmp_path: Path) -> None:
    run = write_run(tmp_path / "digits")
    assert (run / "plot.png", run / "plot.html") == plot_runs([run])
    assert (run / "plot.png").read_bytes()[:8] == PNG_SIGNATURE


def test_several_runs_are_compared_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path / "digits"), write_run(tmp_path / "constant", (10,) * 4, (1,) * 4)]
    monkeypatch.chdir(tmp_path)
    png, html = plot_runs(runs)
    assert (tmp_path / "plot.png", tmp_path / "plot.html") == (png.resolve(), html.resolve())
    page = html.read_text()
    assert "digits: accuracy 0.9375, 26 updates" in page
    assert "constant: accuracy 0.9375, 40 updates" in page


@pytest.mark.parametrize("name", ["out/figure", "out/figure.png", "out/figure.html"])
def test_the_output_can_be_named(tmp_path: Path, name: str) -> None:
    wanted = (tmp_path / "out" / "figure.png", tmp_path / "out" / "figure.html")
    assert plot_runs([write_run(tmp_path / "digits")], tmp_path / name) == wanted
    assert all(path.exists() for path in wanted)


@pytest.mark.parametrize("name", [".", "figures"])
def test_the_output_may_be_a_folder(
    tmp_path: Path, digits_job: MakeJob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "figures").mkdir()
    run = write_run(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    wanted = (Path(name) / "plot.png", Path(name) / "plot.html")
    assert plot_runs([run], Path(name)) == wanted
    wanted[0].unlink()
    assert plot_plan(Course(digits_job().spec), Path(name)) == wanted[0]
    assert all(path.exists() for path in wanted)


@pytest.mark.fault("N13")
def test_the_output_may_be_another_picture(tmp_path: Path) -> None:
    run = write_run(tmp_path / "digits")
    wanted = (tmp_path / "compared.svg", tmp_path / "compared.html")
    assert plot_runs([run], tmp_path / "compared.svg") == wanted
    assert "<svg" in wanted[0].read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compared.html", "compared.svg", "digits"]


@pytest.mark.fault("N13")
def test_nine_runs_are_told_apart(tmp_path: Path) -> None:
    """Each has a colour of its own, no line hides another, and no mark hides the lines."""
    figure = figure_of([read_run(write_run(tmp_path / f"rate-{number}")) for number in range(9)])
    assert len({run.colour for run in figure.runs}) == 9
    assert max(run.halo for run in figure.runs) < WIDEST_OF_MANY
    assert [run.resizes.note for run in figure.runs] == [()] * 9


@pytest.mark.fault("N13")
def test_the_learning_rate_is_drawn(tmp_path: Path) -> None:
    rate = figure_of([read_run(write_run(tmp_path / "digits"))]).runs[0].rate
    assert (rate.x["update"].tolist(), rate.y.tolist()) == ([0.0, 26.0], [0.1, 0.1])


@pytest.mark.fault("N08")
@pytest.mark.parametrize(("name", "begins"), [("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml"), ("plan", b"\x89PNG")])
def test_a_plan_is_drawn_with_its_warm_up(tmp_path: Path, digits_job: MakeJob, name: str, begins: bytes) -> None:
    course = Course(digits_job("learningRate.warmup={updates: 300}").spec)
    path = plot_plan(course, tmp_path / "new" / name)
    assert path.read_bytes()[: len(begins)] == begins
    updates = rated_updates(course.plan)
    assert (updates[0], updates[-1], len(updates)) == (0, 459, 460)


def test_a_plan_of_many_updates_is_drawn_by_some_of_them(digits_job: MakeJob) -> None:
    plan = Course(digits_job("epochs=1000").spec).plan
    updates = rated_updates(plan)
    assert MOST_POINTS <= len(updates) <= MOST_POINTS + 2 * len(plan.stages)
    assert {stage.first_update for stage in plan.stages} <= set(updates)


def test_a_plan_that_cannot_be_drawn(tmp_path: Path, digits_job: MakeJob) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BatchGrowthError, match="the plot could not be written"):
        plot_plan(Course(digits_job().spec), tmp_path / "file" / "plan.png")


def test_a_dot_in_the_output_is_no_suffix(tmp_path: Path) -> None:
    png, html = plot_runs([write_run(tmp_path / "digits")], tmp_path / "v1.2")
    assert (png.name, html.name) == ("v1.2.png", "v1.2.html")


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    _, html = plot_runs([write_run(tmp_path / "digits")])
    page = html.read_text()
    assert "Plotly.newPlot" in page
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=", page)


def test_the_buttons_replace_every_lines_x(tmp_path: Path) -> None:
    _, html = plot_runs([write_run(tmp_path / "digits")])
    call = html.read_text().partition("Plotly.newPlot(")[2]
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(call[call.index("[") :])
    rest = call[call.index("[") + end :]
    layout, _ = decoder.raw_decode(rest[rest.index("{") :])
    buttons = layout["updatemenus"][0]["buttons"]
    assert [button["label"] for button in buttons] == ["by epoch", "by update", "by second"]
    for button in buttons:
        assert [len(trace["y"]) for trace in traces] == [len(x) for x in button["args"][0]["x"]]
    assert [trace["x"] for trace in traces] == buttons[0]["args"][0]["x"]
    assert max(buttons[1]["args"][0]["x"][0]) == 26
    assert max(buttons[2]["args"][0]["x"][0]) == pytest.approx(2.6)


def test_matplotlibs_global_state_is_left_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    plot_runs([write_run(tmp_path / "digits")])
    assert before == dict(mpl.rcParams)


def test_a_run_without_test_set_has_no_metric_panel(tmp_path: Path) -> None:
    run = write_run(tmp_path / "digits", evaluated=False)
    assert figure_of([read_run(run)]).metrics == ()
    plot_runs([run])


def test_the_title_tells_the_updates_saved(tmp_path: Path) -> None:
    figure = figure_of([read_run(write_run(tmp_path / "digits"))])
    assert figure.title == "digits: accuracy 0.9375, 26 updates instead of 40 at a constant batch of 10"
    assert figure.subtitle == "4 epochs in 2.6 s  ·  batch 10 → 25 → 50  ·  workers 1 → 2 → 4"


def test_the_job_is_named_by_the_summary_else_by_its_directory(tmp_path: Path) -> None:
    run = write_run(tmp_path / "out-7", summary={"name": "digits"})
    assert figure_of([read_run(run)]).runs[0].name == "digits"


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / folder / "digits") for folder in ("a", "b")]
    assert [str(run) for run in runs] == [run.name for run in figure_of([read_run(run) for run in runs]).runs]


def test_a_constant_batch_has_nothing_to_compare(tmp_path: Path) -> None:
    assert constant_batch_updates(read_run(write_run(tmp_path / "constant", (10, 10), (1, 1)))) is None


def test_an_uneven_last_batch_counts_as_an_update(tmp_path: Path) -> None:
    """103 examples at batch 10 are 11 updates an epoch, for every growth."""
    with closing(History(tmp_path / "run")) as history:
        history.append(HistoryRow(1, 10 / 103, 0, 10, 0.1, 1.0, 1, 0.1, 0.0, 0.0, 0.1))
        history.append(HistoryRow(2, 2.0, 1, 103, 0.1, 1.0, 1, 0.1, 0.0, 0.0, 0.2))
    assert constant_batch_updates(read_run(tmp_path / "run")) == 22


def test_resizes_are_marked_with_their_pause(tmp_path: Path) -> None:
    resizes = [{"update": 20, "from": 1, "to": 2, "pauseSeconds": 0.0314}]
    run = read_run(write_run(tmp_path / "digits", summary={"resizes": resizes}))
    marks = figure_of([run]).runs[0].resizes
    assert marks.note == ("1 → 2 workers after update 20, pause 31 ms", "2 → 4 workers after update 24")
    assert marks.y.tolist() == [2.0, 4.0]
    assert marks.x["epoch"].tolist() == [2.0, 3.0]
    assert marks.x["update"].tolist() == [20.0, 24.0]


def test_steps_begin_where_their_first_update_does(tmp_path: Path) -> None:
    line = steps(read_run(write_run(tmp_path / "digits")).history, "batch_size")
    assert line.y.tolist() == [10.0, 25.0, 50.0, 50.0]
    assert line.x["epoch"].tolist() == [0.0, 2.0, 3.0, 4.0]
    assert line.x["update"].tolist() == [0.0, 20.0, 24.0, 26.0]


def line_of(values: Sequence[float]) -> Line:
    return Line({axis: np.arange(1.0, len(values) + 1) for axis in AXES}, np.array(values, dtype=np.float64))


def test_a_long_line_is_thinned_by_averaging() -> None:
    thin = thinned(line_of([1.0, 3.0] * 5000))
    assert MOST_POINTS == len(thin.y) == len(thin.x["epoch"])
    assert thin.x["update"][-1] == 10_000.0
    assert pytest.approx(thin.y.mean(), abs=0.05) == 2.0


def test_smoothing_keeps_a_constant_and_a_short_line() -> None:
    np.testing.assert_allclose(np.full(600, 2.5), smoothed(line_of([2.5] * 600)).y)
    assert smoothed(line_of([3.0, 1.0, 2.0])).y.tolist() == [3.0, 1.0, 2.0]


def test_what_is_not_finite_leaves_the_rest_of_the_line() -> None:
    values = [1.0] * 600
    values[300] = math.nan
    values[301] = math.inf
    np.testing.assert_allclose(np.ones(600), smoothed(line_of(values)).y)


def test_a_run_that_diverged_is_still_plotted(tmp_path: Path) -> None:
    with closing(History(tmp_path / "run")) as history:
        for update in range(1, 6):
            loss = math.nan if update > 3 else 10.0**update
            history.append(HistoryRow(update, update / 5, 0, 20, 0.1, loss, 1, 0.1, 0.0, 0.0, update / 10))
    png, _ = plot_runs([tmp_path / "run"])
    assert png.read_bytes()[:8] == PNG_SIGNATURE


def test_a_name_is_no_markup(tmp_path: Path) -> None:
    _, html = plot_runs([write_run(tmp_path / "digits", summary={"name": r"<b>$\nope$ & co"})])
    assert r"<title>&lt;b&gt;$\nope$ &amp; co" in html.read_text()


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no history\.csv here"):
        plot_runs([write_run(tmp_path / "digits"), tmp_path])


def test_no_directory_at_all() -> None:
    with pytest.raises(DataError, match="none was given"):
        plot_runs([])


def test_plots_that_cannot_be_drawn_do_not_fail_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with MPLBACKEND=nonsense, with which matplotlib cannot be imported. A full disk is told as elsewhere."""
    errors: list[Exception] = [ValueError("Key backend: 'nonsense' [is no backend]"), OSError(28, "No space left")]
    monkeypatch.setattr(plots, "plot_runs", lambda *_: raise_(errors.pop(0)))
    commands._draw_if_possible(Console(width=500), tmp_path)
    said = "the plots cannot be drawn: ValueError: Key backend: 'nonsense' [is no backend]; once that is mended, "
    assert capsys.readouterr().out == f"{said}`batchgrowth plot {tmp_path}` draws them\n"
    with pytest.raises(OSError, match="No space"):
        commands._draw_if_possible(Console(), tmp_path)


def raise_(error: Exception) -> None:
    raise error

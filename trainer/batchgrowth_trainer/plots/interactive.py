"""A figure as one HTML file that holds everything it needs; buttons choose the x axis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from batchgrowth_trainer.plots.figure import DrawnRun, Figure
from batchgrowth_trainer.plots.series import AXES, Line

GREY = "#6b7280"
TALL, LOW = 3.0, 1.35
PIXELS_PER_UNIT = 88
MARGIN = {"l": 80, "r": 30, "t": 130, "b": 90}
FIRST_AXIS = next(iter(AXES))


@dataclass(frozen=True, slots=True)
class _Trace:
    """A line, the panel it belongs to (from 1), and how it is drawn."""

    line: Line
    panel: int
    style: dict[str, Any]


def write_html(figure: Figure, path: Path) -> None:
    """Writes `figure` into `path`, self-contained (about 5 MB, most of it plotly). Raises OSError."""
    names = ["loss", *figure.metrics, "batch size", "workers"]
    heights = [TALL] * (len(names) - 2) + [LOW, LOW]
    canvas = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.03, row_heights=heights)
    traces = [trace for run in figure.runs for trace in _traces(run, figure)]
    for trace in traces:
        canvas.add_trace(_scatter(trace), row=trace.panel, col=1)
    for panel, name in enumerate(names, start=1):
        canvas.update_yaxes(title_text=name, row=panel, col=1)
    _scale(canvas, figure, len(names))
    canvas.update_xaxes(title_text=AXES[FIRST_AXIS], row=len(names), col=1)
    _frame(canvas, figure, sum(heights), _buttons(traces, len(names)))
    page = canvas.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
    path.write_text(_titled(page, figure.title), encoding="utf-8")


def _traces(run: DrawnRun, figure: Figure) -> list[_Trace]:
    workers_panel = len(figure.metrics) + 3
    traces = []
    if run.raw_loss is not None:
        traces.append(_Trace(run.raw_loss, 1, {**_lines(run, "each update", width=0.7), "opacity": 0.3}))
    traces.append(_Trace(run.train_loss, 1, _lines(run, "training", width=2.2)))
    if run.test_loss is not None:
        traces.append(_Trace(run.test_loss, 1, _lines(run, "test", width=1.6, dash="dash")))
    for panel, metric in enumerate(figure.metrics, start=2):
        if metric in run.metrics:
            style = {**_lines(run, metric, width=1.8), "mode": "lines+markers", "marker": {"size": 5}}
            traces.append(_Trace(run.metrics[metric], panel, style))
    traces.append(_Trace(run.batch, workers_panel - 1, _lines(run, "batch size", width=2.2, shape="hv")))
    traces.append(_Trace(run.workers, workers_panel, _lines(run, "workers", width=2.2, shape="hv")))
    if run.resizes.note:
        marks = {"mode": "markers", "marker": {"size": 8, "color": run.colour, "line": {"width": 1, "color": "white"}}}
        traces.append(_Trace(run.resizes, workers_panel, {**_named(run, "resizes"), **marks}))
    return traces


def _named(run: DrawnRun, what: str) -> dict[str, Any]:
    return {"name": what, "legendgroup": run.name, "legendgrouptitle": {"text": run.label}}


def _lines(run: DrawnRun, what: str, **line: Any) -> dict[str, Any]:
    return {**_named(run, what), "mode": "lines", "line": {"color": run.colour, **line}}


def _scatter(trace: _Trace) -> go.Scatter:
    note = {"text": trace.line.note, "hovertemplate": "%{text}<extra></extra>"} if trace.line.note else {}
    return go.Scatter(x=trace.line.x[FIRST_AXIS].tolist(), y=trace.line.y.tolist(), **trace.style, **note)


def _scale(canvas: go.Figure, figure: Figure, panels: int) -> None:
    if figure.log_loss:
        canvas.update_yaxes(type="log", dtick=1, row=1, col=1)
    sizes = sorted({int(size) for run in figure.runs for size in run.batch.y})
    chosen = sizes if len(sizes) <= 6 else [2**power for power in range(sizes[-1].bit_length())]
    canvas.update_yaxes(type="log", tickvals=chosen, ticktext=[f"{size:,}" for size in chosen], row=panels - 1, col=1)
    canvas.update_yaxes(range=[0, figure.most_workers * 1.15], tickformat="d", nticks=5, row=panels, col=1)


def _buttons(traces: list[_Trace], panels: int) -> list[dict[str, Any]]:
    """One button per axis: every line's x is replaced at once, and the axis below takes its new title and range."""
    bottom = "xaxis" if panels == 1 else f"xaxis{panels}"
    return [
        {
            "label": f"by {title.removesuffix('s')}",
            "method": "update",
            "args": [
                {"x": [trace.line.x[axis].tolist() for trace in traces]},
                {f"{bottom}.title.text": title, f"{bottom}.autorange": True},
            ],
        }
        for axis, title in AXES.items()
    ]


def _frame(canvas: go.Figure, figure: Figure, units: float, buttons: list[dict[str, Any]]) -> None:
    menu = {
        "type": "buttons",
        "direction": "right",
        "buttons": buttons,
        "x": 1,
        "xanchor": "right",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 12},
        "showactive": True,
    }
    canvas.update_layout(
        template="plotly_white",
        height=int(units * PIXELS_PER_UNIT) + MARGIN["t"] + MARGIN["b"],
        margin=MARGIN,
        title={"text": f"<b>{figure.title}</b><br><span style='font-size:14px;color:{GREY}'>{figure.subtitle}</span>"},
        title_x=0.01,
        hovermode="x unified",
        legend={"groupclick": "toggleitem"},
        updatemenus=[menu],
        font={"family": "system-ui, sans-serif"},
    )


def _titled(page: str, title: str) -> str:
    safe = title.replace("&", "&amp;").replace("<", "&lt;")
    return page.replace("<head>", f"<head><title>{safe}</title>", 1)

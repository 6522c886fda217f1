"""A figure as one self-contained HTML file; buttons choose the x axis."""

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from batchgrowth_trainer.plots.figure import AXES, GREY, LOW, TALL, DrawnRun, Figure, Line
from batchgrowth_trainer.record.storage import replace_file

PIXELS_PER_UNIT = 88
MARGIN = {"l": 80, "r": 30, "t": 130, "b": 90}
FIRST_AXIS = next(iter(AXES))


@dataclass(frozen=True, slots=True)
class _Trace:
    """A line of the figure, with the number of its panel, from 1, and its plotly style."""

    line: Line
    panel: int
    style: dict[str, Any]


def write_html(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, about 5 MB, most of it plotly. Raises OSError."""
    names = ["loss (dashed: test)", *figure.metrics, "learning rate", "batch size", "workers"]
    heights = [TALL] * (len(names) - 3) + [LOW, LOW, LOW]
    canvas = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.03, row_heights=heights)
    traces = [trace for run in figure.runs for trace in _traces(run, figure)]
    for trace in traces:
        note = {"text": trace.line.note, "hovertemplate": "%{text}<extra></extra>"} if trace.line.note else {}
        x = trace.line.x[FIRST_AXIS].tolist()
        canvas.add_trace(go.Scatter(x=x, y=trace.line.y.tolist(), **trace.style, **note), row=trace.panel, col=1)
    for panel, name in enumerate(names, start=1):
        canvas.update_yaxes(title_text=name, row=panel, col=1)
    _scale(canvas, figure, len(names))
    canvas.update_xaxes(title_text=AXES[FIRST_AXIS], row=len(names), col=1)
    _frame(canvas, figure, sum(heights), _buttons(traces, len(names)))
    page = canvas.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
    # plotly gives the page no title, which the tab of a browser shows.
    titled = page.replace("<head>", f"<head><title>{html.escape(figure.title)}</title>", 1)
    replace_file(path, titled.encode(), durable=False)


def _traces(run: DrawnRun, figure: Figure) -> list[_Trace]:
    several = len(figure.runs) > 1
    metrics = [(panel, name) for panel, name in enumerate(figure.metrics, start=2) if name in run.metrics]
    rate_panel = len(figure.metrics) + 2
    workers_panel = rate_panel + 2
    low = [(run.rate, "learning rate"), (run.batch, "batch size"), (run.workers, "workers")]
    traces = [_Trace(run.train_loss, 1, _lines(run, run.label if several else "training", width=2.2))]
    if run.raw_loss is not None:
        traces.append(_Trace(run.raw_loss, 1, {**_lines(run, "each update", width=0.7), "opacity": 0.3}))
    if run.test_loss is not None:
        traces.append(_Trace(run.test_loss, 1, _lines(run, "test", width=1.6, dash="dash")))
    for panel, name in metrics:
        style = {"mode": "lines+markers", "marker": {"size": 5}, "showlegend": False}
        traces.append(_Trace(run.metrics[name], panel, {**_lines(run, name, width=1.8), **style}))
    for panel, (line, name) in enumerate(low, start=rate_panel):
        traces.append(_Trace(line, panel, {**_lines(run, name, width=2.2, shape="hv"), "showlegend": False}))
    if run.resizes.note:
        marks = {"size": 8 + run.halo, "color": run.colour, "line": {"width": 1, "color": "white"}}
        style = {**_lines(run, "workers join or leave"), "mode": "markers", "marker": marks}
        traces.append(_Trace(run.resizes, workers_panel, style))
    if several:
        # Into the run's legend group: the legend lists the run once, and a click hides all its lines.
        for k, trace in enumerate(traces):
            if k:
                trace.style["name"] = f"{run.name}, {trace.style['name']}"
            trace.style.update(legendgroup=run.name, showlegend=k == 0)
    return traces


def _lines(run: DrawnRun, name: str, width: float = 1.0, **line: Any) -> dict[str, Any]:
    return {"name": name, "mode": "lines", "line": {"color": run.colour, "width": width + run.halo, **line}}


def _scale(canvas: go.Figure, figure: Figure, panels: int) -> None:
    if figure.log_loss:
        canvas.update_yaxes(type="log", dtick=1, row=1, col=1)
    for panel, metric in enumerate(figure.metrics, start=2):
        if figure.is_log(metric):
            canvas.update_yaxes(type="log", row=panel, col=1)
    if figure.log_rate:
        canvas.update_yaxes(type="log", row=panels - 2, col=1)
    else:
        canvas.update_yaxes(rangemode="tozero", row=panels - 2, col=1)
    sizes = sorted({int(size) for run in figure.runs for size in run.batch.y})
    chosen = sizes if len(sizes) <= 6 else [2**power for power in range(sizes[-1].bit_length())]
    canvas.update_yaxes(type="log", tickvals=chosen, ticktext=[f"{size:,}" for size in chosen], row=panels - 1, col=1)
    canvas.update_yaxes(range=[0, figure.most_workers * 1.15], tickformat="d", nticks=5, row=panels, col=1)


def _buttons(traces: list[_Trace], panels: int) -> list[dict[str, Any]]:
    """Return one button per axis, which replaces the x of every line and the title and range of the x axis."""
    # plotly numbers its axes from the second one on.
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
    subtitle = f"<span style='font-size:14px;color:{GREY}'>{html.escape(figure.subtitle)}</span>"
    place = {"x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "pad": {"b": 12}}
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "showactive": True, **place}
    canvas.update_layout(
        template="plotly_white",
        height=int(units * PIXELS_PER_UNIT) + MARGIN["t"] + MARGIN["b"],
        margin=MARGIN,
        title={"text": f"<b>{html.escape(figure.title)}</b><br>{subtitle}", "x": 0.01},
        hovermode="x unified",
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0.5, "xanchor": "center"},
        updatemenus=[menu],
        font={"family": "system-ui, sans-serif"},
    )

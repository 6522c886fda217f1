"""The kinds of panel of the dashboards: Grafana's own builders with our defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, gauge, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as draw
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue, FieldColorModeId, Threshold, ThresholdsMode
from grafana_foundation_sdk.models.prometheus import QueryEditorMode

Panel = stat.Panel | gauge.Panel | bargauge.Panel | timeseries.Panel
Latest = TypeVar("Latest", stat.Panel, gauge.Panel, bargauge.Panel)
Kind = TypeVar("Kind", stat.Panel, gauge.Panel, bargauge.Panel, timeseries.Panel)
Limits = tuple[tuple[float, str], ...]

DATASOURCE = draw.DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True, slots=True)
class Query:
    """One query in PromQL; `unit` is its own if it has the right-hand axis."""

    expression: str
    legend: str
    unit: str | None = None


def number(title: str, description: str, unit: str, *queries: Query, limits: Limits = ()) -> stat.Panel:
    """Return the last value as a number; `limits` pairs each threshold with the colour of the values above it."""
    panel = _latest(stat.Panel(), title, description, unit, queries, limits)
    return panel.color_mode(draw.BigValueColorMode.VALUE).graph_mode(draw.BigValueGraphMode.NONE)


def dial(title: str, description: str, unit: str, *queries: Query, limits: Limits = ()) -> gauge.Panel:
    """Return the last value on a dial."""
    return _latest(gauge.Panel(), title, description, unit, queries, limits).show_threshold_markers(False)


def bars(title: str, description: str, unit: str, *queries: Query, limits: Limits = ()) -> bargauge.Panel:
    """Return the last value of each query as a bar."""
    panel = _latest(bargauge.Panel(), title, description, unit, queries, limits)
    panel = panel.orientation(draw.VizOrientation.HORIZONTAL).display_mode(draw.BarGaugeDisplayMode.BASIC)
    return panel.value_mode(draw.BarGaugeValueMode.TEXT)


def lines(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    """Every query over time; one with a unit of its own has the right-hand axis."""
    panel = _described(timeseries.Panel(), title, description, unit, queries, prometheus.Dataquery.range)
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        if query.unit is not None:
            axis = DynamicConfigValue("custom.axisPlacement", "right"), DynamicConfigValue("unit", query.unit)
            panel = panel.override_by_query(letter, list(axis))
    legend = common.VizLegendOptions().display_mode(draw.LegendDisplayMode.LIST).show_legend(True)
    return (
        panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
        .line_width(2)
        .fill_opacity(0)
        .show_points(draw.VisibilityMode.NEVER)
        .span_nulls(True)
        .axis_placement(draw.AxisPlacement.LEFT)
        .legend(legend.placement(draw.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(draw.TooltipDisplayMode.MULTI))
    )


def _latest(panel: Latest, title: str, description: str, unit: str, queries: Sequence[Query], limits: Limits) -> Latest:
    """Return the panel with the last value of each query, in the colours of `limits`."""
    panel = _described(panel, title, description, unit, queries, prometheus.Dataquery.instant)
    steps = [Threshold(None, "green"), *(Threshold(value, colour) for value, colour in limits)]
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    panel = panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))


def _described(
    panel: Kind,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    span: Callable[[prometheus.Dataquery], prometheus.Dataquery],
) -> Kind:
    """Return the panel with its texts and queries; `span` makes a query instant or ranged."""
    panel = panel.title(title).description(description).unit(unit).min(0).datasource(DATASOURCE)
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).editor_mode(QueryEditorMode.CODE)
        panel = panel.with_target(span(target.expr(query.expression).legend_format(query.legend)))
    return panel

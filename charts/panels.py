"""What a panel of a Grafana dashboard is, and the JSON that Grafana takes for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Kind = Literal["stat", "gauge", "bargauge", "timeseries"]

WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query in PromQL; `unit` is its own where it has the right-hand axis."""

    expression: str
    legend: str
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: `width` of 24 columns, `custom` what its time series are drawn like, `limits` value -> colour."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    custom: Json = field(default_factory=dict)
    decimals: int | None = None
    limits: tuple[tuple[float, str], ...] = ()
    maximum: float | None = None

    def to_json(self, number: int, place: Json) -> Json:
        """The panel, with its number and its place in the grid."""
        targets = [self._target(letter, query) for letter, query in zip("ABCDEFGH", self.queries, strict=False)]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": self._defaults(), "overrides": list(self._overrides())},
            "options": _OPTIONS[self.kind],
            "targets": targets,
        }

    def _target(self, letter: str, query: Query) -> Json:
        over_time = self.kind == "timeseries"
        return {
            "refId": letter,
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expression,
            "legendFormat": query.legend,
            "instant": not over_time,
            "range": over_time,
        }

    def _defaults(self) -> Json:
        colours = [{"color": "green", "value": None}, *({"color": c, "value": v} for v, c in self.limits)]
        defaults: Json = {
            "unit": self.unit,
            "min": 0,
            "color": {"mode": "palette-classic" if self.kind == "timeseries" else "thresholds"},
            "thresholds": {"mode": "absolute", "steps": colours},
            "custom": (_LINES | self.custom) if self.kind == "timeseries" else {},
        }
        if self.maximum is not None:
            defaults["max"] = self.maximum
        if self.decimals is not None:
            defaults["decimals"] = self.decimals
        return defaults

    def _overrides(self) -> Iterator[Json]:
        for letter, query in zip("ABCDEFGH", self.queries, strict=False):
            if query.unit is not None:
                axis = [{"id": "custom.axisPlacement", "value": "right"}, {"id": "unit", "value": query.unit}]
                yield {"matcher": {"id": "byFrameRefID", "options": letter}, "properties": axis}


def placed(rows: Iterable[tuple[int, tuple[Panel, ...]]]) -> list[Json]:
    """The panels of rows (height, panels) as JSON, row below row."""
    told: list[Json] = []
    top = 0
    for height, panels in rows:
        left = 0
        for panel in panels:
            told.append(panel.to_json(len(told) + 1, {"x": left, "y": top, "w": panel.width, "h": height}))
            left += panel.width
        assert left == WIDTH, f"the row of {panels[0].title!r} is {left} columns wide"
        top += height
    return told


_LINES = {
    "drawStyle": "line",
    "lineInterpolation": "linear",
    "lineWidth": 2,
    "fillOpacity": 0,
    "showPoints": "never",
    "spanNulls": True,
    "axisPlacement": "left",
}
_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Kind, Json] = {
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none", "textMode": "auto"},
    "gauge": {"reduceOptions": _LAST, "showThresholdLabels": False, "showThresholdMarkers": False},
    "bargauge": {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic", "valueMode": "text"},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "none"},
    },
}

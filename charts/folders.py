"""The folders of the repository and the chart."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "batchgrowth"

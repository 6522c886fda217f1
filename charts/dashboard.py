"""The Grafana dashboard of one job."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh, VariableSort

from charts.job_panels import ROWS
from charts.panels import DATASOURCE
from charts.queries import JOB

GRID_COLUMNS = 24
METRIC = "batchgrowth_progress_ratio"


def dashboard() -> str:
    """Return the text of dashboards/job.json."""
    board = (
        Dashboard("BatchGrowthJob")
        .uid("batchgrowth-job")
        .description("One training job: how it learns, how its batch and its workers grow, and how fast it goes.")
        .tags(["batchgrowth"])
        .version(1)
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("namespace", "Namespace", f"label_values({METRIC}, namespace)"))
        .with_variable(_variable("job", "Job", f'label_values({METRIC}{{namespace="$namespace"}}, {JOB})'))
    )
    placed = [(height, len(panels), panel) for height, panels in ROWS for panel in panels]
    for index, (height, count, panel) in enumerate(placed, 1):
        board = board.with_panel(panel.id(index).height(height).span(GRID_COLUMNS // count))
    return JSONEncoder(indent=2).encode(board.build()) + "\n"


def _variable(name: str, label: str, query: str) -> QueryVariable:
    """Return a variable that Grafana queries again whenever the time range changes: jobs come and go."""
    variable = QueryVariable(name).label(label).datasource(DATASOURCE).query({"query": query, "refId": name})
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)

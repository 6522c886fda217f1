"""One table or figure with its rows, the files made of it, and one HTML page of all, which needs no other file."""

import base64
import csv
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from batchgrowth.errors import BatchGrowthError
from matplotlib.figure import Figure as Canvas
from rich.table import Table

from batchgrowth_trainer.plots.still import save
from batchgrowth_trainer.record.storage import replace_file

Cell = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper.

    `rows` are the data, a value for each of `columns`. `draw` draws them; None for a table. `shown` says whether the
    rows are few enough to be printed. `remark` is what a reader must know about the difference from the paper.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str
    draw: Callable[[], Canvas] | None = None
    shown: bool = False

    def csv(self) -> str:
        """Return the rows as CSV, with a header."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def table(self) -> Table:
        """Return the rows as a table for a terminal."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="left" if place == 0 else "right")
        for row in self.rows:
            table.add_row(*map(printed, row))
        return table

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Write the data, and the picture if there is one, to a folder; return their paths. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / f"{self.name}.csv"
        replace_file(data, self.csv().encode(), durable=False)
        if self.draw is None:
            return (data,)
        picture = folder / f"{self.name}.png"
        save(self.draw(), picture)
        return data, picture


def printed(cell: Cell) -> str:
    """Return a cell as text for people."""
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.4g}"
    return cell


# --- The report ---

REPORT = "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid #e5e7eb }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
p { color: #4b5563 }
"""


def write_all(results: Sequence[Experiment], folder: Path) -> tuple[Path, ...]:
    """Write the data and the picture of each experiment, and a report of all; return the paths.

    Raises BatchGrowthError if a file cannot be written.
    """
    try:
        paths = [path for result in results for path in result.write(folder)]
        report = folder / REPORT
        replace_file(report, "".join(_page(results, folder)).encode(), durable=False)
    except OSError as error:
        raise BatchGrowthError(f"the report could not be written: {error}") from error
    return (*paths, report)


def _page(results: Sequence[Experiment], folder: Path) -> Iterator[str]:
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    yield f"<title>The paper's experiments</title><style>{_STYLE}</style></head><body>"
    yield "<h1>Training machine learning models faster with Dask: the paper's experiments</h1>"
    for result in results:
        yield f"<h2 id='{result.name}'>{html.escape(result.title)}</h2>"
        if result.draw is not None:
            picture = base64.b64encode((folder / f"{result.name}.png").read_bytes()).decode()
            yield f"<img alt='{html.escape(result.title)}' src='data:image/png;base64,{picture}'>"
        if result.shown:
            yield from _table(result)
        yield f"<p>{html.escape(result.remark)} Data: <a href='{result.name}.csv'>{result.name}.csv</a></p>"
    yield "</body></html>\n"


def _table(result: Experiment) -> Iterator[str]:
    yield "<table><tr>"
    yield from (f"<th>{html.escape(column)}</th>" for column in result.columns)
    yield "</tr>"
    for row in result.rows:
        yield "<tr>"
        yield from (f"<td>{html.escape(printed(cell))}</td>" for cell in row)
        yield "</tr>"
    yield "</table>"

"""One table or figure: its rows, and the files and text that are made of them."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from matplotlib.figure import Figure as Canvas
from rich.table import Table

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
        from batchgrowth_trainer.plots.still import save

        save(self.draw(), picture)
        return data, picture


def printed(cell: Cell) -> str:
    """Return a cell as text for people."""
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.4g}"
    return cell

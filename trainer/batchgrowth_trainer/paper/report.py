"""Files of the experiments, and one HTML page with all of them that needs no other file."""

import base64
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchgrowth.errors import BatchGrowthError

from batchgrowth_trainer.paper.experiment import Experiment, printed
from batchgrowth_trainer.record.storage import replace_file

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

"""`python -m charts`: writes the chart's generated files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from charts import dask_operator
from charts import package as packages
from charts.folders import CHART
from charts.made import made

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The Helm chart.")


@app.command()
def generate() -> None:
    """Write the files generated from the code and from values.yaml: schema, README, dashboard, warnings."""
    for path, text in made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        typer.echo(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@app.command()
def vendor() -> None:
    """Copy the Dask operator's chart from the installed dask-kubernetes to where Helm looks for it."""
    typer.echo(dask_operator.vendor(CHART / "charts"))


@app.command()
def package(folder: Annotated[Path, typer.Argument(help="Where to write the archive.")] = Path("dist")) -> None:
    """Pack the chart, with the Dask operator's, into one file."""
    typer.echo(packages.package(folder))


if __name__ == "__main__":
    app()

"""`python -m cluster.supply`: what the project is made of, and whether that is as it should be."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cluster.errors import HarnessError
from cluster.images import PROJECT, TARGETS
from cluster.supply.audit import Unchecked, verdict, vulnerabilities
from cluster.supply.licences import licence_report
from cluster.supply.lock import Locked, read_lock
from cluster.supply.sbom import sbom
from cluster.supply.settings import Settings, read_settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="What the project is made of.",
)

Folder = Annotated[Path, typer.Argument(help="Where the files are written; created if it does not exist.")]


@app.command()
def licences() -> None:
    """Print the licences of the locked distributions; exit code 1 if one is unknown or not allowed."""
    report = licence_report(_locked(), _settings().licences)
    for licence, names in sorted(report.by_licence.items()):
        typer.echo(f"{len(names):4} {licence}" + (f": {', '.join(names)}" if len(names) <= 3 else ""))
    _end("licences", report.notes, report.faults, "every locked distribution has an allowed licence")


@app.command()
def vulnerable(strict: Annotated[bool, typer.Option("--strict", help="Fail, as a release must.")] = False) -> None:
    """Print known vulnerabilities of the locked distributions; with --strict, exit code 1 if one is fixed in another
    version or if it cannot be found out.
    """
    locked = _locked()
    accepted = _settings().advisories
    try:
        found = vulnerabilities(locked)
    except Unchecked as why:
        _end("vulnerabilities", [], [f"NOT CHECKED: {why}"], "", strict=strict)
        return
    judged = verdict(found, accepted, datetime.now(UTC).date())
    good = f"{len(locked)} locked versions, none with a known fix"
    _end("vulnerabilities", judged.notes, judged.faults, good, strict=strict)


@app.command()
def sboms(folder: Folder = PROJECT / "dist") -> None:
    """Write the SBOM of each image, as CycloneDX 1.6, for the Python and the platform that run this."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        path = folder / f"{target}.cdx.json"
        path.write_text(sbom(PROJECT, target))
        typer.echo(path)


def _locked() -> tuple[Locked, ...]:
    return read_lock((PROJECT / "requirements.lock").read_text())


def _settings() -> Settings:
    return read_settings((PROJECT / "pyproject.toml").read_text())


def _end(what: str, notes: Iterable[str], faults: Iterable[str], good: str, *, strict: bool = True) -> None:
    """Prints both; exits with code 1 if there are faults and it is `strict`."""
    for note in notes:
        typer.echo(f"{what}: {note}")
    faults = list(faults)
    if faults and not strict:
        typer.echo("\n".join(f"{what}: {fault}" for fault in faults))
    elif faults:
        raise HarnessError("\n".join([f"{what}:", *faults]))
    else:
        typer.echo(f"{what}: {good}")


def main() -> None:
    """Runs the command; reports a HarnessError as one message and exit code 1."""
    try:
        app()
    except HarnessError as error:
        typer.echo(f"cluster.supply: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""`python -m cluster.supply`: report the known vulnerabilities of requirements.lock, by pip-audit and OSV.

The lock covers every platform and Python from 3.11 on. pip-audit drops the versions that this Python would not install
(numpy's for Python 3.13, which the images have) and refuses two versions of one name, so it gets the pins without their
markers, in one list per version of a name.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from cluster.images import PROJECT

DATABASE = "https://api.osv.dev/v1/query"
PATIENCE_SECONDS = 120
"""The time in which pip-audit must answer, in seconds: it asks OSV once per version."""
PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


class Unchecked(Exception):
    """pip-audit gave no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One known vulnerability of a locked version, and the versions that fix it."""

    id: str
    name: str
    version: str
    fixed: tuple[str, ...]
    summary: str

    def __str__(self) -> str:
        cure = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no version fixes it yet"
        return f"{self.name} {self.version}: {self.id} ({self.summary}); {cure}"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    strict: Annotated[bool, typer.Option("--strict", help="Fail, as a release must.")] = False,
    ignore: Annotated[list[str] | None, typer.Option(metavar="ID", help="Accept this one; may be repeated.")] = None,
    lock: Annotated[Path, typer.Option(help="The file with the locked versions.")] = PROJECT / "requirements.lock",
    database: Annotated[str, typer.Option(metavar="URL", help="Another server with OSV's API.")] = DATABASE,
) -> None:
    """Print the known vulnerabilities of the locked versions.

    With --strict, exit with code 1 if another version fixes one of them, or if they could not be looked up.
    """
    pins = PIN.findall(lock.read_text())
    try:
        found = list(vulnerabilities(pins, ignore or [], database))
    except Unchecked as why:
        typer.echo(f"vulnerabilities: NOT CHECKED: {why}")
        raise typer.Exit(int(strict)) from None
    for each in found:
        typer.echo(f"vulnerabilities: {each}")
    if any(each.fixed for each in found):
        typer.echo("vulnerabilities: upgrade with `make lock`, or accept one with --ignore ID")
        raise typer.Exit(int(strict))
    typer.echo(f"vulnerabilities: {len(pins)} locked versions, none with a known fix")


def vulnerabilities(pins: Sequence[tuple[str, str]], ignored: Sequence[str], database: str) -> Iterator[Vulnerability]:
    """Yield what OSV knows of each (name, version).

    Raises:
        Unchecked: pip-audit did not answer, most often because there is no network.
    """
    left = list(pins)
    while left:
        once = dict(reversed(left))
        left = [pin for pin in left if pin not in once.items()]
        for package in _audit(once, ignored, database):
            for one in package["vulns"]:
                summary = " ".join(one["description"].split())[:100]
                yield Vulnerability(one["id"], package["name"], package["version"], tuple(one["fix_versions"]), summary)


def _audit(pins: dict[str, str], ignored: Sequence[str], database: str) -> list[Any]:
    """Return the dependencies of pip-audit's JSON report."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json", "--timeout", "10"]
    command += ["--progress-spinner", "off", "--vulnerability-service", "osv", "--osv-url", database]
    for name in ignored:
        command += ["--ignore-vuln", name]
    with TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        command += ["--requirement", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)  # noqa: S603
        except subprocess.TimeoutExpired:
            raise Unchecked(f"no answer for {PATIENCE_SECONDS} s") from None
    if not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unchecked(last.partition("(Caused by ")[2].removesuffix(")") or last)
    return list(json.loads(done.stdout)["dependencies"])


if __name__ == "__main__":
    app()

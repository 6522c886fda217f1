"""Known vulnerabilities of the locked distributions, by pip-audit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cluster.errors import HarnessError
from cluster.supply.lock import Locked
from cluster.supply.settings import Accepted

PATIENCE_SECONDS = 120
UNREACHABLE = re.compile(
    r"(requests\.exceptions\.|pip_audit\._service\.interface\.(Service|Connection)Error)|network may be blocking"
)
"""In the last line of pip-audit if the database does not answer, or not as expected."""


class Unchecked(Exception):
    """The database cannot be asked from here; the message says why."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One known vulnerability of a locked version; `fixed` are the versions without it, `ids` its names."""

    name: str
    version: str
    ids: tuple[str, ...]
    fixed: tuple[str, ...]
    summary: str

    def __str__(self) -> str:
        cure = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no version fixes it yet"
        return f"{self.name} {self.version}: {self.ids[0]} ({self.summary}); {cure}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line for each vulnerability that may stay, and a sentence for each that stops a change."""

    notes: list[str]
    faults: list[str]


def vulnerabilities(locked: Iterable[Locked], *, database: str | None = None) -> list[Vulnerability]:
    """Asks OSV for all versions in the lock, whatever their platform; `database` is another address of that API.

    Raises Unchecked if it cannot be reached, and HarnessError if pip-audit fails otherwise.
    """
    found: list[Vulnerability] = []
    with tempfile.TemporaryDirectory() as folder:
        for place, each in enumerate(_without_duplicates(locked)):
            path = Path(folder) / f"{place}.txt"
            path.write_text("".join(f"{one.name}=={one.version}\n" for one in each))
            found += read_report(_report(path, database))
    return found


def read_report(text: str) -> list[Vulnerability]:
    """Returns what pip-audit's JSON report lists. Raises HarnessError if it left a distribution out."""
    dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    skipped = [f"{each['name']}: {each['skip_reason']}" for each in dependencies if "skip_reason" in each]
    if skipped:
        raise HarnessError(f"pip-audit left out {'; '.join(skipped)}")
    return [
        Vulnerability(
            each["name"],
            each["version"],
            (one["id"], *one["aliases"]),
            tuple(one["fix_versions"]),
            " ".join(one["description"].split())[:100],
        )
        for each in dependencies
        for one in each["vulns"]
    ]


def verdict(found: Iterable[Vulnerability], accepted: Sequence[Accepted], today: date) -> Verdict:
    """Judges each: one that a version fixes is a fault, unless it is accepted with a reason until a later day."""
    notes, faults, used = list[str](), list[str](), set[str]()
    for each in sorted(found, key=lambda one: (one.name, one.version, one.ids)):
        reasons = [one for one in accepted if one.id in each.ids]
        used |= {one.id for one in reasons}
        current = [one for one in reasons if today <= one.until]
        if current:
            notes.append(f"{each}; accepted until {current[0].until}: {current[0].reason}")
        elif not each.fixed:
            notes.append(str(each))
        else:
            ended = f" (accepted until {reasons[0].until})" if reasons else ""
            faults.append(f"{each}{ended}; `make lock`, or accept it in tool.batchgrowth.advisories of pyproject.toml")
    unused = [one.id for one in accepted if one.id not in used]
    notes += [f"tool.batchgrowth.advisories: {name} is of no locked version; remove it" for name in unused]
    return Verdict(notes, faults)


def _without_duplicates(locked: Iterable[Locked]) -> Iterator[list[Locked]]:
    """Lists that have each name once: pip-audit refuses two versions of one distribution."""
    left = list(locked)
    while left:
        once = list({each.name: each for each in reversed(left)}.values())
        yield once[::-1]
        left = [each for each in left if each not in once]


def _report(path: Path, database: str | None) -> str:
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--no-deps", "--disable-pip"]
    words += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    words += ["--osv-url", database] if database else []
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise Unchecked(f"no answer for {PATIENCE_SECONDS} s") from None
    if done.stdout.strip():
        return done.stdout
    raise _failed(done.returncode, done.stderr)


def _failed(code: int, errors: str) -> Exception:
    """What pip-audit's error output says: the database was not reached, or pip-audit cannot do its work."""
    last = (errors.strip().splitlines() or ["no output"])[-1]
    if UNREACHABLE.search(last):
        return Unchecked(last.partition("(Caused by ")[2].removesuffix(")") or last)
    return HarnessError(f"pip-audit ended with code {code}: {last}")

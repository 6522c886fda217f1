"""The versions that upgrades are tested from are the newest that landed, or not much older."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = runpy.run_path(str(ROOT / "tests" / "apiserver" / "versions.py"))["VERSIONS"]
MOST_COMMITS = 200
"""Commits after `landed`: what lands at once has had up to 126, and its own commits come after `landed` too."""


def git(*arguments: str) -> str:
    """What git says. Skips the test where there is no git or no such history."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no git here")
    if done.returncode:
        pytest.skip(f"the history lacks these versions, as in a shallow clone: {done.stderr.strip()}")
    return done.stdout.strip()


@pytest.mark.history
def test_upgrades_are_tested_from_versions_that_landed_lately() -> None:
    """If not, `tests/apiserver/versions.py` says how to name newer ones."""
    before, landed = VERSIONS["before"], VERSIONS["landed"]
    since = int(git("rev-list", "--count", f"{landed}..HEAD"))

    assert git("rev-list", "--count", f"{landed}..{before}") == "0", "`before` comes before `landed`"
    assert git("rev-list", "--count", f"HEAD..{landed}") == "0", "`landed` is part of the history"
    assert since <= MOST_COMMITS, f"{since} commits came after {landed}"

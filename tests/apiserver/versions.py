"""The code of earlier versions, from the repository's own history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "before": "a069d8ca353d9c2b12256021f15ea79b3ba6f04a",
    "landed": "19ff2eeb3c3118b17ddf2b1067d7beb22e23c332",
}
"""The commits that upgrades are tested from: the one that landed last, and the one that had landed before it.

When a change lands that alters the CRD, the children, the status, the documents or the checkpoints, `landed` becomes
`before`, and that change's last commit becomes `landed`. tests/pure/test_versions.py fails if that was long ago."""
ROOMS = ("plan", "operator", "trainer")


def unpacked(commit: str, folder: Path) -> Path:
    """The tree of that commit in the folder. Skips the test, with the reason, where the history lacks it."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    try:
        packed = subprocess.run(command, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no git here")
    if packed.returncode:
        pytest.skip(f"the history lacks {commit}, as in a shallow clone: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def paths(tree: Path) -> str:
    """PYTHONPATH of the tree's packages, which comes before the installed ones."""
    return ":".join(str(tree / room) for room in ROOMS)

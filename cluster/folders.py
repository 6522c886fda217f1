"""The cache of builds and the state of the running cluster."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Return the folder of programs and images, all of which can be rebuilt."""
    return _base("XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """Return the folder of the user's one cluster, which `up` creates and `down` removes."""
    return _base("XDG_STATE_HOME", ".local/state") / "cluster"


def _base(variable: str, otherwise: str) -> Path:
    named = os.environ.get(variable)
    return (Path(named) if named else Path.home() / otherwise) / "batchgrowth"

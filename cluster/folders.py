"""Where things are kept: what was built, and the state of the cluster that is up."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """What can be made again: programs, images. The user's cache folder."""
    return _base("XDG_CACHE_HOME", ".cache")


def state() -> Path:
    """The one cluster of this user that `up` starts; gone after `down`."""
    return _base("XDG_STATE_HOME", ".local/state") / "cluster"


def _base(variable: str, otherwise: str) -> Path:
    named = os.environ.get(variable)
    return (Path(named) if named else Path.home() / otherwise) / "batchgrowth"

"""A cluster of the user's own, which a kubeconfig names."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster.build import tool
from cluster.errors import HarnessError
from cluster.processes import Argument, run
from cluster.recipe import APISERVER

KUBECONFIG, VALUES = "BATCHGROWTH_KUBECONFIG", "BATCHGROWTH_VALUES"
"""Environment variables: the kubeconfig, and a file of chart values that names images which the cluster can pull."""


@dataclass(frozen=True, slots=True)
class UsersCluster:
    """A cluster that was not started by `python -m cluster`; `values` go into every release of the chart on it."""

    kubeconfig: Path
    values: dict[str, Any] = field(default_factory=dict)

    def kubectl(self, *arguments: Argument, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with `given` on its standard input; return its output, whatever its exit code."""
        return run([tool(APISERVER, "kubectl"), "--kubeconfig", self.kubeconfig, *arguments], given=given)


def users_cluster() -> UsersCluster | None:
    """Return the cluster of BATCHGROWTH_KUBECONFIG, None without one. Raises HarnessError if it is unreachable."""
    path = os.environ.get(KUBECONFIG)
    if not path:
        return None
    cluster = UsersCluster(Path(path), read_values(os.environ.get(VALUES)))
    answered = cluster.kubectl("get", "nodes")
    if answered.returncode:
        raise HarnessError(f"{KUBECONFIG}: the cluster of {path} does not answer: {answered.stderr.strip()}")
    return cluster


def read_values(file: str | Path | None) -> dict[str, Any]:
    """Return the chart values of a file, none without a file. Raises HarnessError if the file has no mapping."""
    if not file:
        return {}
    try:
        values: Any = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise HarnessError(f"{file}: {error}; give a file of values as helm takes it") from error
    if not isinstance(values, dict):
        raise HarnessError(f"{file}: {type(values).__name__}; give a mapping, as helm takes it")
    return values

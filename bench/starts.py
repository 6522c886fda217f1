"""What the safeguards add to a start: the trial of the user's code, and the certificate of a local cluster.

Each figure is taken with and without the safeguard, in turns, each time in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from bench.cases import Case
from bench.tables import turned

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Starts:
    """How long a part of a start took, in seconds, without and with a safeguard, in the order of the rounds."""

    what: str
    without: list[float]
    with_it: list[float]

    @property
    def added(self) -> list[float]:
        """What the safeguard added in each round."""
        return [more - less for more, less in zip(self.with_it, self.without, strict=True)]


def measure(chosen: list[Case], rounds: int, report: Callable[[str], None]) -> list[Starts]:
    """Return the starts of the cases' workloads, tried and not, and of a local cluster with and without certificate."""
    manifests = {
        f"trial, {case.name}": case.job().model_dump_json(by_alias=True, exclude_unset=True) for case in chosen
    }
    found = [Starts(name, [], []) for name in (*manifests, "certificate, 2 workers")]
    for number in range(rounds):
        for starts in found:
            manifest = manifests.get(starts.what, "")
            for guarded in turned((False, True), number):
                kept = starts.with_it if guarded else starts.without
                kept.append(_in_fresh_process(manifest, guarded=guarded))
            report(f"starts: {starts.what}, round {number + 1} of {rounds}")
    return found


def _in_fresh_process(manifest: str, *, guarded: bool) -> float:
    given = json.dumps({"manifest": manifest, "guarded": guarded})
    command = [sys.executable, "-m", "bench.starts"]
    done = subprocess.run(command, cwd=_ROOT, input=given, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _built(manifest: str, *, guarded: bool) -> float:
    """Return the seconds that this process takes to build a replica; one that is not tried computes a first shard."""
    from batchgrowth.manifest.reading import read_manifest
    from batchgrowth_trainer import building
    from batchgrowth_trainer.replica.replica import Replica
    from batchgrowth_trainer.replica.workload_trial import first_shard

    def not_tried(replica: Replica) -> None:
        replica.arithmetic = first_shard(replica)

    job = read_manifest(manifest)
    building.begin(job.spec)
    with ExitStack() as stack:
        if not guarded:
            stack.enter_context(patch.object(building, "try_out", not_tried))
            stack.enter_context(patch.object(building, "try_evaluation"))
        began = time.perf_counter()
        building.build_replica(job.spec).reader.close()
        return time.perf_counter() - began


def _joined(*, guarded: bool) -> float:
    """Return the seconds until two workers of a local cluster are there."""
    from batchgrowth_trainer.pool.local_cluster import local_cluster
    from distributed.security import Security

    from bench.cases import cases

    spec = cases(quick=True)[0].job().spec
    began = time.perf_counter()
    with local_cluster(spec, security=None if guarded else Security(require_encryption=False)) as cluster:
        cluster.scale(2)
        cluster.wait_for_workers(2, timeout=120)
        return time.perf_counter() - began


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    if asked["manifest"]:
        print(_built(asked["manifest"], guarded=asked["guarded"]))
    else:
        print(_joined(guarded=asked["guarded"]))

"""Faults of every kind, one after another, in one job: the weights are those of an undisturbed run."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos import Chaos, Watch
from real_job import RealJob, digits, sized, until

Local = Callable[[str], str]
GOODPUT = 0.9
MOST_LOST_SECONDS = 1.0
FEWEST_FAULTS = 9
HOUR = 3600
HOUR_STEPS = [{"epoch": 20, "batchSize": 128}, {"epoch": 60, "batchSize": 256}]
"""Soon four workers, and six updates an epoch: an hour of them has fewer epochs than a job may have."""
LAST_STAGE_UPDATE, UPDATES_PER_EPOCH = 1400, 6
HIDDEN, EXAMPLES_PER_WORKER = "512", 64
PACE_SECONDS, PACES = 20, 4
FASTEST = 1
"""The number of workers with which the job is fastest here, as its updates take milliseconds."""
LONGER = 1.02
"""So much longer than the hour would the job take undisturbed with that number."""


def survived(
    body: dict[str, Any], job: Callable[..., RealJob], local_sha256: Local, volume: str, folder: Path, **how: Any
) -> Chaos:
    """A job after its chaos: with the right weights, nothing unexplained, and no work lost by suspensions.

    One process finds the weights to compare with, in whatever time the processors have to spare.
    """
    alone = body["spec"] | {"exchange": {"type": "SingleProcess"}, "evaluation": {"everyEpochs": 1000}}
    manifest = yaml.safe_dump(body | {"spec": alone})
    body["spec"] |= sized(volume)
    watch = Watch(folder)
    with ThreadPoolExecutor() as aside:
        expected = aside.submit(local_sha256, manifest)
        with watch.watching():
            chaos = Chaos(job(body), watch, **how)
            chaos.job.reaches(20)
            status = chaos.run()
    sys.stdout.write(f"{chaos.account()}\n")
    assert expected.result() == status["trainerStatus"]["weightsSha256"]
    assert [] == chaos.unexplained(), chaos.account()
    assert how["suspensions"] == len(chaos.suspended)
    assert all(seconds <= MOST_LOST_SECONDS for seconds in chaos.lost_by_suspensions()), chaos.account()
    return chaos


def epochs_of(seconds: float, job: RealJob) -> int:
    """The epochs of the last stage that a job's workers train in that time, by the fastest pace of one undisturbed.

    Other work on the machine makes each pace too slow, never too fast, and a job that is too short fails the test.
    """
    job.reaches(LAST_STAGE_UPDATE)
    counted = [(reported_update(job), time.monotonic())]
    for _ in range(PACES):
        time.sleep(PACE_SECONDS)
        counted.append((reported_update(job), time.monotonic()))
    job.in_namespace("delete", "batchgrowthjob", job.name)
    paces = [(later - update) / (end - begin) for (update, begin), (later, end) in pairwise(counted)]
    return int(seconds * max(paces) / UPDATES_PER_EPOCH)


def reported_update(job: RealJob) -> int:
    """The update of the next report."""
    reported = job.update
    until("a report", lambda: job.update > reported, 60, job.story)
    return job.update


@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.timeout(1200)  # with the start of the cluster, as the first test
def test_minutes_of_chaos(job: Callable[..., RealJob], local_sha256: Local, volume: str, tmp_path: Path) -> None:
    how = {"seed": 1, "gap": 3, "between": 4, "suspensions": 1, "seconds": 180}

    chaos = survived(digits("chaos", epochs=150), job, local_sha256, volume, tmp_path / "volume", **how)

    assert len(chaos.struck) >= FEWEST_FAULTS, chaos.account()


@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_chaos(job: Callable[..., RealJob], local_sha256: Local, volume: str, tmp_path: Path) -> None:
    """A fault a minute, and nine tenths of the time are spent in updates that count."""
    how = {"seed": 2, "gap": 60, "between": 3, "suspensions": 10, "seconds": HOUR, "at_last": FASTEST}
    body = digits("pace", epochs=1_000_000)
    body["spec"]["batch"]["growth"] = {"type": "Milestones", "milestones": {"steps": HOUR_STEPS}}
    body["spec"]["workload"] |= {
        "entrypoint": "batchgrowth_trainer.workloads.digits:mlp",
        "arguments": {"hidden": HIDDEN},
    }
    body["spec"]["evaluation"] = {"everyEpochs": 1000}
    workers = body["spec"]["workers"] | {"examplesPerWorker": EXAMPLES_PER_WORKER}
    body["spec"]["workers"] = workers | {"maximum": FASTEST}
    body["spec"]["epochs"] = epochs_of(HOUR * LONGER, job(body))
    body["spec"]["workers"] = workers
    body["metadata"]["name"] = "chaos"

    chaos = survived(body, job, local_sha256, volume, tmp_path / "volume", **how)

    assert chaos.goodput() >= GOODPUT, chaos.account()

"""Faults of every kind, one after another, in one job: the weights are those of an undisturbed run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos import Chaos, Watch
from real_job import RealJob, checkpointed, digits

Local = Callable[[str], str]
GOODPUT = 0.9
MOST_LOST_SECONDS = 1.0
FEWEST_FAULTS = 6
HOUR_EPOCHS = 180_000
"""Epochs of a job that takes somewhat more than an hour on two cores, and a third of that in one process."""
HOUR_STEPS = [{"epoch": 2000, "batchSize": 256}, {"epoch": 6000, "batchSize": 512}]
"""Soon four workers, so that exchanging takes most of the time: one process does not need it to find the weights."""


def survived(
    body: dict[str, Any], job: Callable[..., RealJob], local_sha256: Local, claim: str, folder: Path, **how: Any
) -> Chaos:
    """A job after its chaos: with the right weights, nothing unexplained, and no work lost by suspensions."""
    alone = body["spec"] | {"exchange": {"type": "SingleProcess"}, "evaluation": {"everyEpochs": 1000}}
    expected = local_sha256(yaml.safe_dump(body | {"spec": alone}))
    body["spec"] |= checkpointed(claim)
    watch = Watch(folder)
    with watch.watching():
        chaos = Chaos(job(body), watch, **how)
        chaos.job.reaches(20)
        status = chaos.run()
    sys.stdout.write(f"{chaos.account()}\n")
    assert expected == status["trainerStatus"]["weightsSha256"]
    assert [] == chaos.unexplained(), chaos.account()
    assert how["suspensions"] == len(chaos.suspended)
    assert all(seconds <= MOST_LOST_SECONDS for seconds in chaos.lost_by_suspensions()), chaos.account()
    return chaos


@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.timeout(1200)  # with the start of the cluster, as the first test
def test_minutes_of_chaos(job: Callable[..., RealJob], local_sha256: Local, claim: str, tmp_path: Path) -> None:
    how = {"seed": 1, "gap": 3, "between": 4, "suspensions": 1, "seconds": 120}

    chaos = survived(digits("chaos", epochs=100), job, local_sha256, claim, tmp_path / "volume", **how)

    assert len(chaos.struck) >= FEWEST_FAULTS, chaos.account()


@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_chaos(job: Callable[..., RealJob], local_sha256: Local, claim: str, tmp_path: Path) -> None:
    """A fault a minute, and nine tenths of the time are spent in updates that count."""
    how = {"seed": 2, "gap": 60, "between": 3, "suspensions": 10, "seconds": 3600}
    body = digits("chaos", HOUR_EPOCHS)
    body["spec"]["batch"]["growth"] = {"type": "Milestones", "milestones": {"steps": HOUR_STEPS}}
    body["spec"]["workload"]["entrypoint"] = "batchgrowth_trainer.workloads.digits:mlp"

    chaos = survived(body, job, local_sha256, claim, tmp_path / "volume", **how)

    assert chaos.goodput() >= GOODPUT, chaos.account()

"""Faults of every kind, one after another, in one job: the weights are those of an undisturbed run."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos import Chaos, Watch
from real_job import RealJob, digits, sized

Local = Callable[..., str]
GOODPUT = 0.9
MOST_LOST_SECONDS = 1.0
FEWEST_FAULTS = 9
HOUR = 3600
HOUR_STEPS = [{"epoch": 2, "batchSize": 128}, {"epoch": 6, "batchSize": 256}]
"""Soon four workers, and six updates an epoch, of four shards each."""
UPDATES_PER_EPOCH, SHARD, EXAMPLES_PER_WORKER = 6, 64, 64
SHARD_SECONDS = 0.2
"""What a shard takes at least, so that four workers need more than an hour for the updates that fit into one.

It is long beside what else an update takes, so that after the hour little more than the rest of an hour is left: with
0.02 s, pods on two cores made 15 updates a second instead of 50, and two hours would have been left.
"""
MINUTES_SHARD_SECONDS = 0.05
"""The same for the shorter test: its 1,958 updates last a minute and a half at least, on any processor."""
PACED, CONFIG_MAP = Path(__file__).parent / "paced_digits.py", "paced-digits"


def paced(body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Returns the job with shards that last so long at least."""
    body["spec"]["workload"] |= {
        "entrypoint": f"{PACED.stem}:workload",
        "arguments": {"seconds": str(seconds)},
        "source": {"configMap": CONFIG_MAP},
    }
    return body


def survived(
    body: dict[str, Any], job: Callable[..., RealJob], local_sha256: Local, volume: str, folder: Path, **how: Any
) -> Chaos:
    """A job after its chaos: with the right weights, nothing unexplained, and no work lost by suspensions.

    One process finds the weights to compare with, in whatever time the processors have to spare, and without pauses.
    """
    alone = body["spec"] | {"exchange": {"type": "SingleProcess"}, "evaluation": {"everyEpochs": 1000}}
    paced = ("arguments", "source")
    alone["workload"] = {name: value for name, value in alone["workload"].items() if name not in paced}
    manifest = yaml.safe_dump(body | {"spec": alone})
    body["spec"] |= sized(volume)
    watch = Watch(folder)
    with ThreadPoolExecutor() as aside:
        expected = aside.submit(local_sha256, manifest, PACED)
        with watch.watching():
            chaos = Chaos(job(body), watch, **how)
            chaos.job.in_namespace("create", "configmap", CONFIG_MAP, f"--from-file={PACED}")
            chaos.job.reaches(20)
            status = chaos.run()
    sys.stdout.write(f"{chaos.account()}\n")
    assert expected.result() == status["trainerStatus"]["weightsSha256"]
    assert [] == chaos.unexplained(), chaos.account()
    assert how["suspensions"] == len(chaos.suspended)
    assert all(seconds <= MOST_LOST_SECONDS for seconds in chaos.lost_by_suspensions()), chaos.account()
    return chaos


@pytest.mark.operator
@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.timeout(1200)  # with the installation of the chart, as the first test
def test_minutes_of_chaos(job: Callable[..., RealJob], local_sha256: Local, volume: str, tmp_path: Path) -> None:
    how = {"seed": 1, "gap": 3, "between": 4, "suspensions": 1, "seconds": 120, "fewest": FEWEST_FAULTS}
    body = paced(digits("chaos", epochs=110), MINUTES_SHARD_SECONDS)

    chaos = survived(body, job, local_sha256, volume, tmp_path / "volume", **how)

    assert len(chaos.struck) >= FEWEST_FAULTS, chaos.account()


@pytest.mark.apart  # three tests beside it left two processors so little that it trained half as fast
@pytest.mark.fault("C01", "C04", "B18", "B19", "B27")
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_chaos(job: Callable[..., RealJob], local_sha256: Local, volume: str, tmp_path: Path) -> None:
    """A fault a minute, and nine tenths of the time are spent in updates that count."""
    how = {"seed": 2, "gap": 60, "between": 3, "suspensions": 10, "seconds": HOUR}
    body = digits("chaos", epochs=int(HOUR / SHARD_SECONDS / UPDATES_PER_EPOCH))
    body["spec"]["batch"] |= {"shard": SHARD, "growth": {"type": "Milestones", "milestones": {"steps": HOUR_STEPS}}}
    body = paced(body, SHARD_SECONDS)
    body["spec"]["evaluation"] = {"everyEpochs": 1000}
    body["spec"]["workers"] |= {"examplesPerWorker": EXAMPLES_PER_WORKER}

    chaos = survived(body, job, local_sha256, volume, tmp_path / "volume", **how)

    assert chaos.goodput() >= GOODPUT, chaos.account()

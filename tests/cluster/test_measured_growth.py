"""A batch that training measures, in real pods: the workers follow what is decided, whatever fails."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_job import Kubectl, RealJob, checkpointed, said, until

ROOT = Path(__file__).parents[2]
EPOCHS, EVERY_UPDATES = 100, 60


def measured() -> dict[str, Any]:
    """The measured digits job, long enough to inject faults: each look doubles the batch at most."""
    body: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits-measured.yaml").read_text())
    body["spec"]["epochs"] = EPOCHS
    body["spec"]["batch"]["growth"]["looks"] = {"everyUpdates": EVERY_UPDATES}
    return body


@pytest.mark.alone
@pytest.mark.long
def test_workers_follow_what_training_measures(
    job: Callable[..., RealJob], local_sha256: Callable[[str], str], kubectl: Kubectl, claim: str
) -> None:
    """The operator is away at the first decision; a worker is lost, the job suspended and resumed, and the trainer's
    pod deleted after later ones: the weights are those of a local run.
    """

    def operators(replicas: int) -> None:
        said(kubectl("--namespace", "batchgrowth-system", "scale", "deployment/batchgrowth", f"--replicas={replicas}"))

    manifest = measured()
    local = local_sha256(yaml.safe_dump(manifest))
    manifest["spec"] |= checkpointed(claim)
    digits = job(manifest)
    digits.reaches(EVERY_UPDATES // 3)
    operators(0)
    try:
        until("the first decision", lambda: digits.report()["decisions"], 180, digits.story)
    finally:
        operators(1)
    until("two workers", lambda: digits.report()["workers"] >= 2, 180, digits.story)
    digits.delete_pod("worker")
    digits.reaches(digits.update + 20)
    digits.suspend()
    kept = digits.status["checkpoint"]["update"]
    digits.patch(suspend=False)
    digits.reaches(kept + 20, 180)
    digits.delete_pod("trainer")
    status = digits.succeeds()

    assert local == status["trainerStatus"]["weightsSha256"]
    assert 0 == status["restarts"]
    assert 4 == max(record["workers"] for record in status["history"])
    batches = [record["batchSize"] for record in status["history"]]
    assert [32, 512] == [batches[0], batches[-1]]
    assert sorted(batches) == batches
    assert all("measured" in record for record in status["history"][1:])


@pytest.mark.long
def test_workers_are_there_when_a_stage_begins(
    job: Callable[..., RealJob], local_sha256: Callable[[str], str], claim: str, tmp_path: Path
) -> None:
    """Ten decisions, with a worker for each 64 examples, which come ahead by forecast: one resize for each at most.

    Prints how often they were there, and the pauses.
    """
    manifest = measured()
    spec = manifest["spec"]
    spec["epochs"], spec["workload"]["arguments"] = 70, {"hidden": "16"}
    spec["batch"]["growth"]["looks"] = {"everyUpdates": 40, "mostChange": "1.3", "leastChange": "1.1"}
    spec["workers"] = {"examplesPerWorker": 64, "minimum": 1, "maximum": 6}
    local = local_sha256(yaml.safe_dump(manifest))
    spec |= checkpointed(claim)
    status = job(manifest).succeeds()

    assert local == status["trainerStatus"]["weightsSha256"]
    [summary] = (tmp_path / "volume").rglob("summary.json")
    resizes = json.loads(summary.read_text())["resizes"]
    with summary.with_name("history.csv").open() as history:
        workers = {int(row["update"]): int(row["workers"]) for row in csv.DictReader(history)}
    decided = status["history"][1:]
    there = [workers[record["firstUpdate"] + 1] >= record["workers"] for record in decided]
    pauses = sorted(resize["pauseSeconds"] for resize in resizes)
    figures = f"{sum(there)} of {len(there)} stages began with their workers; {len(resizes)} resizes; pauses {pauses}\n"
    sys.stdout.write(figures)
    assert len(decided) >= 10
    assert len(resizes) <= len(decided)
    assert 6 == max(workers.values())

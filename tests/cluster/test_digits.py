"""The example of the README in real pods."""

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.schedule.plan import make_plan
from real_job import RealJob, accuracy

ROOT = Path(__file__).parents[2]
PAUSE_SECONDS = 0.5


def test_the_example_as_a_user_runs_it(job: Callable[..., RealJob], local_sha256: Callable[[str], str]) -> None:
    """Trained by 1, 2 and 4 workers and reported in the status; the weights equal those of a local run."""
    manifest = (ROOT / "examples" / "digits.yaml").read_text()

    digits = job(manifest)
    status = digits.succeeds()

    assert "1 2 4" == " ".join(str(count) for count, _ in itertools.groupby(r["workers"] for r in status["history"]))
    stages = make_plan(read_manifest(manifest).spec).stages
    assert [stage.batch_size for stage in stages] == [record["batchSize"] for record in status["history"]]
    pauses = [float(record["pauseSeconds"]) for record in status["history"] if "pauseSeconds" in record]
    assert pauses
    assert max(pauses[1:]) <= PAUSE_SECONDS, pauses  # new pods take seconds; the training does not wait for them
    began = [datetime.fromisoformat(record["startTime"]) for record in status["history"]]
    assert sorted(began) == began
    trained = status["trainerStatus"]
    assert local_sha256(manifest) == trained["weightsSha256"]
    assert 100 == trained["progressPercentage"]
    assert accuracy(status) > 0.97
    assert not digits.pods("worker"), "a job that is over holds no workers"
    [trainer] = digits.pods("trainer")
    repeated = Progress.from_json(trainer["status"]["containerStatuses"][0]["state"]["terminated"]["message"])
    assert (trained["update"], trained["weightsSha256"]) == (repeated.update, repeated.weights_sha256)
    print(json.dumps(status["history"], indent=1))  # noqa: T201  (shown by pytest -rP)

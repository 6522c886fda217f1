"""Every exchange but Hogwild, AllReduce in the other tests, in real pods."""

from collections.abc import Callable

import pytest
import yaml
from batchgrowth.choices import REPEATABLE
from real_job import Object, RealJob, accuracy, digits

EPOCHS = 75
SECOND_STAGE = 45 * EPOCHS // 5
LEAST_ACCURACY = 0.95

MakeJob = Callable[[Object], RealJob]


def trained(job: MakeJob, manifest: Object) -> Object:
    """The status of the job once it has succeeded, after 1, 2 and 4 workers, of which one is deleted on the way."""
    running = job(manifest)
    running.reaches(SECOND_STAGE + 50)
    running.delete_pod("worker")
    status = running.succeeds()
    counts = [record["workers"] for record in status["history"]]
    assert counts[0] in (1, 2, 4), "workers that come ahead of their stage train at once"
    assert 4 == counts[-1]
    assert accuracy(status) >= LEAST_ACCURACY
    return status


@pytest.mark.fault("C01", "C11")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exchange", [*REPEATABLE, "ParameterServer", "GatherScatter"])
def test_the_weights_of_one_worker(job: MakeJob, local_sha256: Callable[[str], str], exchange: str) -> None:
    manifest = digits(exchange.lower(), EPOCHS, exchange={"type": exchange})
    status = trained(job, manifest)
    assert local_sha256(yaml.safe_dump(manifest)) == status["trainerStatus"]["weightsSha256"]


@pytest.mark.fault("C01", "C11")
@pytest.mark.long
def test_downpour(job: MakeJob) -> None:
    """Its weights differ from run to run, and are as good."""
    trained(job, digits("downpour", EPOCHS, exchange={"type": "Downpour"}))

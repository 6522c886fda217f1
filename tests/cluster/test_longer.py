"""A job in real pods whose epochs grow while it trains."""

from collections.abc import Callable

import pytest
import yaml
from real_job import Object, RealJob, checkpointed, digits, until

EPOCHS = 60


@pytest.mark.fault("N05")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_weights_of_a_job_that_was_this_long_from_the_start(
    claim: str, job: Callable[[Object], RealJob], local_sha256: Callable[[str], str]
) -> None:
    """Its trainer starts again from its checkpoint, and its workers stay."""
    manifest = digits("longer", EPOCHS, **checkpointed(claim))
    running = job(manifest)
    running.reaches(100)
    before = running.report()
    workers = {pod["metadata"]["name"] for pod in running.pods("worker")}

    running.patch(epochs=EPOCHS + 10)

    until("a new trainer's report", lambda: running.report()["start"] > before["start"], 480, running.story)
    assert workers <= {pod["metadata"]["name"] for pod in running.pods("worker")}
    status = running.succeeds()
    assert f"{EPOCHS + 10}.00" == status["trainerStatus"]["epoch"]
    manifest["spec"]["epochs"] = EPOCHS + 10
    assert local_sha256(yaml.safe_dump(manifest)) == status["trainerStatus"]["weightsSha256"]

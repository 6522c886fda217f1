"""Exchanges with rounds of updates in real pods."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from batchgrowth.exchanges import REPEATABLE
from real_job import RealJob, digits

EPOCHS = 75
SECOND_STAGE = 45 * EPOCHS // 5


@pytest.mark.fault("C01", "C11")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("exchange", [*REPEATABLE, "ParameterServer"])
def test_the_weights_of_one_worker(
    job: Callable[[dict[str, Any]], RealJob], local_sha256: Callable[[str], str], exchange: str
) -> None:
    """With 1, 2 and 4 workers, of which one is deleted between two exchanges."""
    manifest = digits(exchange.lower(), EPOCHS, exchange={"type": exchange})
    trained = job(manifest)
    trained.reaches(SECOND_STAGE + 50)
    trained.delete_pod("worker")
    status = trained.succeeds()
    counts = [record["workers"] for record in status["history"]]
    assert counts[0] in (1, 2), "a worker that comes ahead of its stage trains at once"
    assert 4 == counts[-1]
    manifest["spec"]["workers"]["maximum"] = 1
    assert local_sha256(yaml.safe_dump(manifest)) == status["trainerStatus"]["weightsSha256"]

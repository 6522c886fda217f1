"""Exchanges with logical replicas in real pods."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from batchgrowth.exchanges import INEXACT
from real_job import RealJob, digits

EPOCHS = 75
SECOND_STAGE = 45 * EPOCHS // 5


@pytest.mark.fault("C01", "C11")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("exchange", INEXACT)
def test_the_weights_of_one_worker(
    job: Callable[[dict[str, Any]], RealJob], local_sha256: Callable[[str], str], exchange: str
) -> None:
    """With 1, 2 and 4 workers, of which one is deleted between two exchanges."""
    manifest = digits(exchange.lower(), EPOCHS, exchange={"type": exchange})
    trained = job(manifest)
    trained.reaches(SECOND_STAGE + 50)
    trained.delete_pod("worker")
    status = trained.succeeds()
    assert "1 2 4" == " ".join(str(count) for count, _ in itertools.groupby(r["workers"] for r in status["history"]))
    manifest["spec"]["workers"]["maximum"] = 1
    assert local_sha256(yaml.safe_dump(manifest)) == status["trainerStatus"]["weightsSha256"]

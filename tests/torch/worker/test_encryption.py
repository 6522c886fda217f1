"""Which members encrypt what they send each other."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.greeted import own_certificate
from distributed.security import Security


@pytest.mark.parametrize(
    ("address", "setting", "encrypted"),
    [
        ("tls://10.0.0.1:40000", "Auto", True),
        ("tls://10.0.0.1:40000", "Disabled", False),
        ("tcp://127.0.0.1:40000", "Auto", False),
    ],
)
def test_members_encrypt_where_their_scheduler_speaks_tls(
    small_job: Any, address: str, setting: str, encrypted: bool
) -> None:
    spec = small_job(f"exchange.encryption={setting}").spec
    worker: Any = SimpleNamespace(address=address, security=Security.temporary())
    assert encrypted == (service._encryption(worker, spec) is not None)


@pytest.mark.fault("G03")
@pytest.mark.parametrize("setting", ["Auto", "Disabled"])
def test_in_a_run_s_own_cluster_they_greet_by_tls(small_job: Any, setting: str) -> None:
    """Nobody but root reads what travels inside one machine, so TLS would only take time."""
    spec = small_job(f"exchange.encryption={setting}").spec
    # As a worker gets it, from another process.
    security = pickle.loads(pickle.dumps(own_certificate()))
    worker: Any = SimpleNamespace(address="greeted://127.0.0.1:40000", security=security)
    encryption = service._encryption(worker, spec)
    assert encryption is not None
    assert not encryption.is_kept

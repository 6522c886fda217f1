"""Which members encrypt what they send each other."""

from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.worker import service
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

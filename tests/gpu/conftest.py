"""This tier needs a CUDA device; it is the one tier that CI does without."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here where there is no device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "/tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason="no CUDA device is visible"))

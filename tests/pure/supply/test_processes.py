"""The programs that the cluster's builds run."""

import sys
from pathlib import Path

import pytest

from cluster.errors import HarnessError
from cluster.processes import logged


def test_a_log_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    """As the cache may be, while the images that are built are kept elsewhere."""
    log = tmp_path / "images" / "operator.log"

    logged([sys.executable, "-c", "print('built')"], log, folder=tmp_path)

    assert log.read_text() == "built\n"


def test_the_end_of_the_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"

    with pytest.raises(HarnessError, match=r"ended with code 3; its log ends:\n.*no space left"):
        logged([sys.executable, "-c", "print('no space left'); raise SystemExit(3)"], log, folder=tmp_path)

"""What a run's own cluster takes from the user's settings of Dask and Python."""

import os
from multiprocessing import forkserver, util

import dask
import pytest
from batchgrowth.errors import ClusterError
from batchgrowth_trainer.pool import local_cluster

IDLE = "distributed.scheduler.idle-timeout"


@pytest.mark.fault("T10")
def test_dask_s_settings_are_its_defaults_and_ours() -> None:
    with dask.config.set({IDLE: "3s", "scheduler": "processes", "mine": {"a": 1}}):
        with local_cluster.dask_settings({"distributed.admin.tick.interval": "1s"}):
            assert dask.config.get(IDLE) is None
            assert dask.config.get("distributed.admin.tick.interval") == "1s"
            assert dask.config.get("scheduler", None) is None
            assert dask.config.get("mine", None) is None
        assert dask.config.get(IDLE) == "3s"
        assert dask.config.get("scheduler") == "processes"
        assert dask.config.get("mine") == {"a": 1}


@pytest.mark.fault("T10")
def test_the_interpreter_of_workers_starts_without_the_user_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "1", "PYTHONPATH": "mine", "DASK_SCHEDULER": "processes",
             "OMP_NUM_THREADS": "7", "MINE": "1"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    flags = util._args_from_interpreter_flags
    seen: list[dict[str, str | None]] = []
    started: list[list[str]] = []

    def start() -> None:
        seen.append({name: os.environ.get(name) for name in given})
        started.append(util._args_from_interpreter_flags())

    monkeypatch.setattr(forkserver, "ensure_running", start)
    local_cluster.start_fork_server("a_module", {"PYTHONHASHSEED": "6640", "OMP_NUM_THREADS": "2"})

    own = {"PYTHONWARNINGS": None, "PYTHONHASHSEED": "6640", "PYTHONPATH": "mine", "DASK_SCHEDULER": None,
           "OMP_NUM_THREADS": "2", "MINE": "1"}  # fmt: skip
    assert seen == [own]
    assert started[0][-1] == "-P"
    assert given == {name: os.environ.get(name) for name in given}
    assert util._args_from_interpreter_flags is flags


@pytest.mark.fault("T10")
def test_flags_that_change_what_code_does_are_left_out() -> None:
    given = ["-OO", "-B", "-d", "-bb", "-s", "-Werror", "-X", "dev", "-X", "importtime", "-X", "utf8"]
    assert local_cluster.worker_flags(given) == ["-B", "-s", "-P"]


def test_a_path_that_is_too_long_for_a_socket_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when no worker has come for minutes."""

    def start() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(forkserver, "ensure_running", start)
    with pytest.raises(ClusterError, match=r"AF_UNIX path too long.* set TMPDIR to a folder of your own"):
        local_cluster.start_fork_server("a_module", {})

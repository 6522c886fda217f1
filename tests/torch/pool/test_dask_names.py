"""Dask's private names and undocumented settings that the trainer uses: each is still there, with our parameters."""

import inspect
import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import batchgrowth_trainer
import dask
import pytest
from batchgrowth.contract.environment import DASK
from batchgrowth_operator.children.pods import DASK_ENVIRONMENT
from distributed import Client, LocalCluster, Nanny, Scheduler, Worker, utils
from distributed.diagnostics.plugin import SchedulerPlugin

OWNERS = {"client": Client, "cluster": LocalCluster, "nanny": Nanny, "scheduler": Scheduler, "worker": Worker,
          "plugin": SchedulerPlugin, "utils": utils}  # fmt: skip
CALLED = [
    ("client._run", {"function", "workers", "on_error"}),
    ("client._gather", {"futures", "direct"}),
    ("client._run_on_scheduler", {"function", "args"}),
    ("client._restart_workers", {"workers", "timeout", "raise_for_error"}),
    ("client._register_scheduler_plugin", {"plugin", "name", "idempotent"}),
    ("client.submit", {"workers", "allow_other_workers", "pure", "retries"}),
    ("client.subscribe_topic", {"topic", "handler"}),
    ("client.unsubscribe_topic", {"topic"}),
    ("cluster.scale", {"n"}),
    ("cluster.scale_down", {"workers"}),
    ("nanny.is_alive", set()),
    ("nanny.close", {"timeout"}),
    ("scheduler.log_event", {"topic", "msg"}),
    ("worker.log_event", {"topic", "msg"}),
    ("plugin.add_worker", {"scheduler", "worker"}),
    ("plugin.remove_worker", {"scheduler", "worker"}),
    ("utils.get_mp_context", set()),
    ("utils.get_ip", {"host", "port"}),
]
READ = ["scheduler_comm", "scheduler", "status", "loop.asyncio_loop", "cluster.worker_spec", "cluster.workers",
        "cluster.loop.add_callback"]  # fmt: skip
CONFIGURED = ["distributed.nanny.pre-spawn-environ", "distributed.worker.multiprocessing-method",
              "distributed.worker.memory.terminate", "distributed.client.preload",
              "distributed.admin.log-length", "distributed.scheduler.http.routes", "distributed.worker.http.routes",
              "distributed.comm.timeouts.tcp", *DASK]  # fmt: skip
SERVED = ["get_metadata", "ncores", "unregister_scheduler_plugin"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster in this process, without workers."""
    nothing = {"n_workers": 0, "processes": False, "dashboard_address": None}
    with (
        LocalCluster(**nothing, host="127.0.0.1", protocol="tcp") as cluster,
        Client(cluster, set_as_default=False) as connected,
    ):
        yield connected


@pytest.mark.parametrize(("name", "parameters"), CALLED, ids=[name for name, _ in CALLED])
def test_what_is_called_takes_our_parameters(name: str, parameters: set[str]) -> None:
    owner, _, attribute = name.partition(".")
    function: Callable[..., Any] | None = getattr(OWNERS[owner], attribute, None)
    assert function is not None, f"this version of distributed has no {name}"
    missing = parameters - set(inspect.signature(function).parameters)
    assert not missing, f"{name} of this version of distributed does not take {missing}"


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_there(client: Client, name: str) -> None:
    assert attrgetter(name)(client) is not None


@pytest.mark.parametrize("name", SERVED)
def test_the_scheduler_serves_what_is_asked(client: Client, name: str) -> None:
    assert name in client.cluster.scheduler.handlers


@pytest.mark.parametrize("key", CONFIGURED)
def test_what_is_configured_is_a_setting(key: str) -> None:
    dask.config.get(key)


def test_pods_get_dask_s_settings_by_their_environment() -> None:
    found = dask.config.collect_env({variable["name"]: variable["value"] for variable in DASK_ENVIRONMENT})
    assert {key: dask.config.get(key, config=found) for key in DASK} == DASK


def test_every_private_name_of_the_client_is_in_the_table() -> None:
    sources = Path(batchgrowth_trainer.__file__).parent.rglob("*.py")
    used = {name for path in sources for name in re.findall(r"client\.(_\w+)\(", path.read_text())}
    assert {name.removeprefix("client.") for name, _ in CALLED if name.startswith("client._")} == used

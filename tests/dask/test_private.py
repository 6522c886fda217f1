"""A run's own cluster on a machine that others use too: nobody else connects, reads or sets anything."""

import asyncio
import functools
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.worker.greeted import OwnCertificate, own_certificate
from distributed.comm import CommClosedError, connect
from distributed.security import Security

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
NOBODY = 65534
SECONDS = 120.0

# A program of a user whose settings would all change the run.
PROGRAM = """
import json, os, sys, time
from multiprocessing import forkserver
from pathlib import Path
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.pool.local_cluster import KEPT_VARIABLES
from batchgrowth_trainer.pool.local_cluster import local_cluster
from distributed import Client

KEPT = (*KEPT_VARIABLES, "PYTHONHASHSEED", "DASK_LOGGING__DISTRIBUTED")  # and those that the run sets
SHOWN = ("tls_ca_file", "tls_client_cert", "tls_client_key")

def seen_by_a_worker(dask_worker, KEPT):
    import dask
    return {
        "idle": dask.config.get("distributed.scheduler.idle-timeout"),
        "lifetime": dask.config.get("distributed.worker.lifetime.duration"),
        "mine": dask.config.get("mine", None),
        "scheduler": dask.config.get("scheduler", None),
        "variables": sorted(n for n in os.environ if n.startswith(("DASK_", "PYTHON")) and n not in KEPT),
        "threads": os.environ["OMP_NUM_THREADS"],
        "hashes": hash("a name"),
        "flags": [sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions],
        "address": dask_worker.address,
        "http": dask_worker.http_server.port,
    }

if __name__ == "__main__":
    with local_cluster(load_manifest(Path(sys.argv[1])).spec) as cluster, Client(cluster) as client:
        cluster.scale(1)
        client.wait_for_workers(1)
        while not cluster.workers:  # the scheduler knows the worker before the cluster does
            time.sleep(0.01)
        [seen] = client.run(seen_by_a_worker, KEPT=KEPT).values()
        seen |= {
            "ports": [cluster.scheduler_address, seen["address"], *(n.address for n in cluster.workers.values())],
            "http": [cluster.scheduler.http_server.port, seen["http"]],
            "idle timeout": cluster.scheduler.idle_timeout,
            "fork server": forkserver._forkserver._forkserver_address,
            "scratch": cluster.workers[0].local_directory,
            "after": os.environ.get("PYTHONHASHSEED"),
            "certificate": {name: getattr(cluster.security, name) for name in SHOWN},
        }
        print(json.dumps(seen), flush=True)
        sys.stdin.read()
"""
SPOILED = {
    "DASK_DISTRIBUTED__SCHEDULER__IDLE_TIMEOUT": "3s",
    "DASK_SCHEDULER": "processes",
    "DASK_MINE": "1",
    "OMP_NUM_THREADS": "7",
    "PYTHONHASHSEED": "1",
    "PYTHONOPTIMIZE": "1",
    "PYTHONWARNINGS": "error::DeprecationWarning:nowhere",
    "PYTHONASYNCIODEBUG": "1",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a worker and the driver of a cluster see; the cluster runs during the tests of this file."""
    home = tmp_path_factory.mktemp("home")
    (home / ".config" / "dask").mkdir(parents=True)
    (home / ".config" / "dask" / "mine.yaml").write_text("distributed: {worker: {lifetime: {duration: 2s}}}\n")
    (home / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(home / "program.py"), str(DIGITS)],
        env=os.environ | SPOILED | {"HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        assert process.wait(SECONDS) == 0
        process.stdout.close()


@pytest.mark.smoke
@pytest.mark.fault("T10")
def test_no_setting_of_the_user_s_dask_or_python_reaches_it(cluster: dict[str, Any]) -> None:
    env = {**os.environ, "PYTHONHASHSEED": "6640"}
    hashed = subprocess.check_output([sys.executable, "-c", "print(hash('a name'))"], env=env, text=True)
    own = {
        "idle": None, "lifetime": None, "mine": None, "scheduler": None, "variables": [], "threads": "1",
        "hashes": int(hashed), "flags": [0, False, []], "idle timeout": None,
    }  # fmt: skip
    assert {name: cluster[name] for name in own} == own


async def answered(address: str, security: Security | None) -> Any:
    arguments = security.get_connection_args("client") if security else {}
    comm = await connect(address, timeout=5.0, **arguments)
    try:
        await comm.write({"op": "identity", "reply": True})
        return await comm.read()
    finally:
        comm.abort()


@pytest.fixture
def answering(cluster: dict[str, Any]) -> list[str]:
    """The addresses of scheduler, worker and nanny, each of which answers who has the cluster's certificate."""
    own = OwnCertificate(require_encryption=True, **cluster["certificate"])
    for address in cluster["ports"]:
        assert asyncio.run(answered(address, own))["id"]
    return list(cluster["ports"])


@pytest.mark.smoke
@pytest.mark.fault("G03")
@pytest.mark.parametrize("server", ["scheduler", "worker", "nanny"])
@pytest.mark.parametrize("shows", ["nothing", "another run's certificate"])
def test_who_lacks_its_certificate_is_refused(answering: list[str], server: str, shows: str) -> None:
    address = answering[["scheduler", "worker", "nanny"].index(server)]
    assert address.startswith("greeted://127.0.0.1:")
    security = None
    if shows == "nothing":
        address = address.replace("greeted://", "tcp://")
    else:
        security = own_certificate()
    with pytest.raises(CommClosedError):  # where nobody listens or answers, Dask raises a bare OSError
        asyncio.run(answered(address, security))


@pytest.mark.fault("G03")
def test_the_ports_for_browsers_show_nothing(cluster: dict[str, Any]) -> None:
    for port in cluster["http"]:
        for page in ("", "info/main/workers.html", "json/identity.json", "metrics", "health"):
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10)
            assert raised.value.code == 404
            raised.value.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/sitemap.json", timeout=10) as pages:
            assert b"info" not in pages.read()


def as_nobody(act: Callable[[], Any]) -> Any:
    """What `act` returns, or the name of the error that it raises, in a process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = act()
        except BaseException as error:  # noqa: BLE001
            answer = type(error).__name__
        os.write(writes, json.dumps(answer).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        answer = json.loads(file.read())
    os.waitpid(child, 0)
    return answer


@pytest.mark.fault("G03")
def test_another_user_is_answered_nothing(answering: list[str]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def tell(address: str) -> str:
        host, port = address.removeprefix("greeted://").split(":")
        plain = socket.create_connection((host, int(port)), timeout=10)
        try:
            with plain, context.wrap_socket(plain) as encrypted:
                encrypted.sendall(b"anything")
                return encrypted.recv(1).decode()
        except TimeoutError:
            raise
        except OSError:
            return "refused"

    for address in answering:
        assert as_nobody(functools.partial(tell, address)) in ("refused", "")


@pytest.mark.fault("G03")
def test_another_user_opens_none_of_its_files(cluster: dict[str, Any]) -> None:
    def connect_to_fork_server() -> None:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(cluster["fork server"])

    scratch = Path(cluster["scratch"])
    assert as_nobody(lambda: os.listdir(scratch)) == "PermissionError"
    assert as_nobody(connect_to_fork_server) == "PermissionError"

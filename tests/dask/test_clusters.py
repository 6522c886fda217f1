"""Existing clusters, the interfaces on which processes listen, and the metrics during training."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from batchgrowth.contract.metrics import TRAINER
from batchgrowth.errors import ClusterError, StorageError
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.record.history import ResizeRow
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.training import Options, train
from distributed.security import Security

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.yaml"
SHORT = ("epochs=4", "batch.initial=64", "batch.growth.geometric.everyEpochs=1", "workers.waitSeconds=60")

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    return digits_weights(tmp_path_factory.mktemp("alone"), *SHORT)


def short(*more: str) -> list[str]:
    return [word for override in (*SHORT, *more) for word in ("--set", override)]


def weights(run: Any) -> str:
    assert run.wait() == 0, run.text
    return str(json.loads((run.folder / "summary.json").read_text())["weightsSha256"])


# --- an existing cluster --------------------------------------------------------------------------------------------

TLS = ("--tls-ca-file", "--tls-cert", "--tls-key")


@contextlib.contextmanager
def cluster(folder: Path, workers: int, tls: list[str]) -> Iterator[str]:
    """The address of a scheduler that runs, like its workers, by Dask's own commands."""
    address = folder / "scheduler.json"
    common = ["--scheduler-file", str(address), *tls]
    commands = [["scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]]
    commands += [["worker", "--host", "127.0.0.1", "--nthreads", "1", "--dashboard-address", "127.0.0.1:0",
                  "--local-directory", str(folder), "--memory-limit", "0"]] * workers  # fmt: skip
    with contextlib.ExitStack() as stack:
        processes = []
        for number, command in enumerate(commands):
            output = stack.enter_context((folder / f"{number}.txt").open("wb"))
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:], *common],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        try:
            while not address.exists() or not address.read_text().endswith("}"):
                assert processes[0].poll() is None, (folder / "0.txt").read_text()
                threading.Event().wait(0.05)
            yield str(json.loads(address.read_text())["address"])
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(timeout=30)


@pytest.mark.sampled(1)
def test_an_existing_cluster(tmp_path: Path, expected: str, exchange: str) -> None:
    job = load_manifest(DIGITS, [*SHORT, f"exchange.type={exchange}"])
    with cluster(tmp_path, 2, []) as address:
        for run in ("first", "second"):  # which uses the same workers
            summary = train(job, Options(output_dir=tmp_path / run, scheduler=address, workers=2))
            assert summary["weightsSha256"] == expected


OF_A_WIDTH = """
import torch
from batchgrowth_trainer.workload import Workload
from torch import nn
from torch.utils.data import TensorDataset


def workload():
    net = nn.Sequential(nn.Linear(4, {width}), nn.Tanh(), nn.Linear({width}, 2))
    data = TensorDataset(torch.rand(32, 4), torch.arange(32) % 2)
    return Workload(model=net, loss=nn.CrossEntropyLoss(reduction="none"), train=data)
"""


@pytest.mark.fault("T08")
def test_jobs_on_one_cluster_have_their_own_modules(small_job: Any, tmp_path: Path) -> None:
    """Of one name, in two folders; the second one is edited, too."""
    jobs = [("one", 4), ("two", 6), ("two", 8)]
    with cluster(tmp_path, 1, []) as address:
        for folder, width in jobs:
            where = tmp_path / folder
            where.mkdir(exist_ok=True)
            (where / "of_a_width.py").write_text(OF_A_WIDTH.format(width=width))
            of_workload = ("workload={entrypoint: 'of_a_width:workload', examples: 32}", "epochs=1")
            weights = []
            for more in ("exchange.type=AllReduce", "exchange.type=SingleProcess"):
                scheduler = address if "AllReduce" in more else None
                options = Options(
                    output_dir=tmp_path / f"{width}-{more}", scheduler=scheduler, paths=(str(where),), workers=1
                )
                weights.append(train(small_job(*of_workload, more), options)["weightsSha256"])
            assert weights[0] == weights[1]


def test_an_existing_cluster_behind_tls(tmp_path: Path, expected: str) -> None:
    """The client's certificates come from Dask's own configuration, as for every Dask program."""
    import dask

    security = Security.temporary()
    files = []
    for name, text in (
        ("ca", security.tls_ca_file),
        ("cert", security.tls_client_cert),
        ("key", security.tls_client_key),
    ):
        (tmp_path / f"{name}.pem").write_text(str(text))
        files.append(str(tmp_path / f"{name}.pem"))
    settings = {
        "distributed.comm.tls.ca-file": files[0],
        "distributed.comm.tls.client.cert": files[1],
        "distributed.comm.tls.client.key": files[2],
    }
    tls = ["--protocol", "tls", *(word for pair in zip(TLS, files, strict=True) for word in pair)]
    with cluster(tmp_path, 2, tls) as address, dask.config.set(settings):
        assert address.startswith("tls://")
        job = load_manifest(DIGITS, SHORT)
        summary = train(job, Options(output_dir=tmp_path / "run", scheduler=address, workers=2))
    assert summary["weightsSha256"] == expected


def test_a_cluster_that_is_lost_may_be_retried(start: Start, tmp_path: Path) -> None:
    with cluster(tmp_path, 1, []) as address:
        run = start(DIGITS, "--scheduler", address, "--set", "epochs=5000")
        run.until(lambda: run.says("epoch 1 of"))
    assert ClusterError.exit_code == run.wait(), run.text
    assert "Traceback" not in run.text, run.text


# --- interfaces -----------------------------------------------------------------------------------------------------


class Watch:
    """A sink that acts when the run goes from two workers to four."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self.seen = act, 0

    def handle(self, event: Event) -> None:
        if isinstance(event, ResizeRow) and (2, 4) == (event.from_workers, event.to_workers):
            self._act()
            self.seen += 1


@pytest.mark.smoke
@pytest.mark.fault("E08")
def test_everything_listens_on_loopback_only(digits_job: Any, tmp_path: Path) -> None:
    """Scheduler, workers, nannies, the store of the group and the metrics."""
    listening: set[tuple[str, int]] = set()

    def look() -> None:
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        listening.add((connection.laddr.ip, connection.laddr.port))

    watch = Watch(look)
    train(digits_job(*SHORT), Options(output_dir=tmp_path), [watch])
    assert watch.seen == 1
    assert len(listening) >= 6
    assert {host for host, _ in listening} == {"127.0.0.1"}


@pytest.mark.fault("C22")
def test_two_runs_at_once(start: Start, expected: str) -> None:
    first, second = start(DIGITS, *short()), start(DIGITS, *short())
    assert weights(first) == expected
    assert weights(second) == expected
    assert "Warning" not in first.text + second.text


@pytest.mark.fault("D13")
def test_a_folder_that_another_run_writes_to_is_refused(start: Start) -> None:
    first = start(DIGITS, "--set", "epochs=3000", "--exchange", "SingleProcess")
    first.until(lambda: first.says("epoch 1 of"))
    with pytest.raises(StorageError, match="another run is writing there"):
        train(load_manifest(DIGITS), Options(output_dir=first.folder))
    first.kill()
    first.wait()


# --- metrics --------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_endpoint_serves_every_metric_during_training(digits_job: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages: list[str] = []

    def look() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            pages.append(answer.read().decode())

    train(digits_job(*SHORT), Options(output_dir=tmp_path, metrics_port=port), [Watch(look)])
    [page] = pages
    others = ("backups_total", "compression_error_ratio", "recoveries_total", "replica_distance", "staleness")
    untouched = {f"batchgrowth_{name}" for name in others}
    untouched |= {metric.name for metric in TRAINER if metric.name.startswith("batchgrowth_checkpoint")}
    absent = {"batchgrowth_growth_quantity"}  # of a growth that measures it
    absent.add("batchgrowth_checkpoint_size_bytes")  # of a run that has saved one
    for metric in [metric for metric in TRAINER if metric.name not in absent]:
        values = [float(value) for value in re.findall(rf"^{metric.name}\S* (\S+)$", page, flags=re.MULTILINE)]
        assert values, metric.name
        assert metric.name in untouched or any(values), metric.name
    assert not [name for name in absent if re.search(rf"^{name}[ {{]", page, flags=re.MULTILINE)]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)

"""What the operator needs for many jobs: `python -m bench.operator_scale --jobs 200`.

A real API server holds the jobs and their children; there are no nodes, so no pod ever runs. The results are the time
until every job has all its children; then, while nothing changes, the operator's processor time, memory and requests;
then, for a restarted operator, the time until it has reconciled every job, and its peak memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.apiserver import ApiServer

ROOT = Path(__file__).parents[1]
NAMESPACE = "scale"
MIB = 2**20
PATIENCE_SECONDS = 900
SETTLE_SECONDS = 10
POLL_SECONDS = 5  # the metrics of 1,000 jobs are long, and the operator spends processor time on writing them


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--suspended", action="store_true", help="suspended jobs, which need no cluster")
    given = parser.parse_args()
    with ApiServer() as server:
        prepare(server)
        with operator(server) as (process, port):
            began = time.monotonic()
            make_jobs(server, given.jobs, suspended=given.suspended)
            made = time.monotonic() - began
            wait_until_idle(port, process)
            result = {
                "jobs": given.jobs,
                "suspended": given.suspended,
                "jobs_applied_seconds": round(made, 1),
                "everything_made_seconds": round(time.monotonic() - began, 1),
                "cpu_seconds_until_then": round(cpu_seconds_of(process), 1),
                "trainer_jobs": _count(server, "jobs"),
                **_idle(process, port, given.idle_seconds),
                "peak_memory_mib": peak_memory_mib(process),
            }
        with operator(server) as (process, port):
            result |= restart(process, port, given.jobs)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


def prepare(server: ApiServer) -> None:
    """Creates the CRDs, ours and the Dask operator's, and a namespace."""
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None:
        raise SystemExit("needs dask-kubernetes: make install")
    [package] = found.submodule_search_locations or []
    dask = sorted(Path(package).glob("operator/deployment/helm/*/crds/*.yaml"))
    for crd in (ROOT / "crds" / "batchgrowthjobs.yaml", *dask):
        _stdout(server.kubectl("apply", "--server-side", "-f", crd))
    for kind in ("batchgrowthjobs", "daskclusters"):
        while server.kubectl("get", kind).returncode != 0:  # the API server serves a new CRD after a moment
            time.sleep(0.1)
    _stdout(server.kubectl("create", "namespace", NAMESPACE))


@contextmanager
def operator(server: ApiServer) -> Iterator[tuple[psutil.Process, int]]:
    """The process of an operator of the whole cluster, and the port of its metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = ["--image", "example/trainer:1", "--kubeconfig", str(server.kubeconfig), "--metrics-port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "batchgrowth_operator", *options], stderr=subprocess.DEVNULL
    ) as started:
        try:
            yield psutil.Process(started.pid), port
        finally:
            started.terminate()


def make_jobs(server: ApiServer, number: int, *, suspended: bool) -> None:
    """Creates that many copies of the example job."""
    body: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    body["spec"]["suspend"] = suspended
    names = [{"name": f"job-{index:04}", "namespace": NAMESPACE} for index in range(number)]
    items = [body | {"metadata": name} for name in names]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    _stdout(server.kubectl("create", "-f", "-", given=listed))


def wait_until_idle(port: int, process: psutil.Process) -> None:
    """Returns when the operator has not written for 35 s, longer than any of its timed verdicts takes.

    Events do not count: the operator posts those of many jobs slowly, minutes after it has done what they tell.
    """
    end, before, since = time.monotonic() + PATIENCE_SECONDS, -1.0, time.monotonic()
    while time.monotonic() - since < 35:
        if time.monotonic() > end or not process.is_running():
            raise SystemExit(f"the operator still writes after {PATIENCE_SECONDS} s")
        time.sleep(POLL_SECONDS)
        counts = requests_of(port)
        written = sum(count for (verb, kind), count in counts.items() if verb != "get" and kind != "events")
        if written != before:
            before, since = written, time.monotonic()


def _idle(process: psutil.Process, port: int, seconds: float) -> dict[str, Any]:
    before, cpu, began = requests_of(port), cpu_seconds_of(process), time.monotonic()
    memory = []
    while time.monotonic() - began < seconds:
        memory.append(process.memory_info().rss / MIB)
        time.sleep(1)
    requests = requests_of(port)
    requests.subtract(before)
    took = time.monotonic() - began
    return {
        "idle_seconds": round(took, 1),
        "idle_cores": round((cpu_seconds_of(process) - cpu) / took, 4),
        "idle_writes": sum(count for (verb, _), count in requests.items() if verb != "get"),
        "idle_reads_per_second": round(sum(n for (verb, _), n in requests.items() if verb == "get") / took, 1),
        "memory_mib": round(max(memory), 1),
    }


def restart(process: psutil.Process, port: int, jobs: int) -> dict[str, Any]:
    """How long a new operator takes until it has reconciled every job, and its memory."""
    began = time.monotonic()
    while _passes(port) < jobs:
        if time.monotonic() - began > PATIENCE_SECONDS or not process.is_running():
            raise SystemExit(f"the second operator has not reconciled all jobs within {PATIENCE_SECONDS} s")
        time.sleep(0.2)
    took = time.monotonic() - began
    time.sleep(SETTLE_SECONDS)
    return {
        "restart_seconds": round(took, 1),
        "restart_memory_mib": round(process.memory_info().rss / MIB, 1),
        "restart_peak_memory_mib": peak_memory_mib(process),
    }


def peak_memory_mib(process: psutil.Process) -> float:
    """The process's peak resident memory in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM"))


def _passes(port: int) -> int:
    return sum(_samples(port, "batchgrowth_operator_reconciles_total").values())


def requests_of(port: int) -> Counter[tuple[str, str]]:
    """The operator's requests so far, by verb and resource; none until its metrics answer."""
    counts: Counter[tuple[str, str]] = Counter()
    for labels, value in _samples(port, "batchgrowth_operator_api_requests_total").items():
        label = dict(labels)
        counts[label["verb"], label["resource"]] += value
    return counts


def _samples(port: int, name: str) -> dict[tuple[tuple[str, str], ...], int]:
    """The values of a counter by its labels; none until the operator answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {tuple(sample.labels.items()): int(sample.value) for sample in samples if sample.name == name}


def cpu_seconds_of(process: psutil.Process) -> float:
    """The processor time that the process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _count(server: ApiServer, kind: str) -> int:
    return len(_stdout(server.kubectl("get", kind, "--namespace", NAMESPACE, "-o", "name")).splitlines())


def _stdout(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()

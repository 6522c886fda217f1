"""`python -m bench.operator_training --jobs 1000`: what the operator needs for many jobs, at rest and while they train.

A real API server holds the jobs and their children; there are no nodes, so this module plays the pods: the trainers'
Jobs have one, every worker that is wanted is ready, and each job's report is patched as often as by a trainer that has
run for some minutes. Each trains for `--training` seconds, and the jobs are spread evenly over that time. When in a
period a job reports does not depend on how far it is, since jobs begin independently.

The results are the time until every job has all its children; the operator's processor time, memory and requests while
nothing changes and while the jobs train; the time from each report of a milestone until the workers' Deployment has its
new replicas; and, for a restarted operator, the time until it has reconciled every job, and its memory.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import distribution
from pathlib import Path
from random import Random
from typing import Annotated, Any
from urllib.request import urlopen

import psutil
import typer
import yaml
from batchgrowth import names
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS, Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import Plan, make_plan
from kubernetes import client, config, watch
from prometheus_client.parser import text_string_to_metric_families
from urllib3.exceptions import HTTPError

from bench.tables import percentile
from cluster.apiserver import ApiServer

ROOT = Path(__file__).parents[1]
EXAMPLE = (ROOT / "examples" / "digits.yaml").read_text()
NAMESPACE = "scale"
MIB = 2**20
PATIENCE_SECONDS = 900
QUIET_SECONDS = 35
"""The operator is idle if it has not written for this time, which is longer than any of its timed verdicts takes."""
POLL_SECONDS = 5
"""Between two looks at the metrics: those of 1,000 jobs are long, and writing them costs the operator time."""
SETTLE_SECONDS = 10
PATCHERS = 8
GRACE_SECONDS = 30


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that train at once.")] = 1000,
    rest: Annotated[float, typer.Option(min=1, help="Seconds at rest that are measured.")] = 60,
    seconds: Annotated[float, typer.Option(min=20, help="Seconds of training that are measured.")] = 120,
    training: Annotated[float, typer.Option(min=60, help="Seconds that a whole training takes.")] = 600,
    period: Annotated[float, typer.Option(min=1, help="Seconds between two reports.")] = LONGEST_PERIOD_SECONDS,
) -> None:
    """Measure the operator with many jobs, whose trainers and pods are played; print one JSON object."""
    if training < seconds:
        raise typer.BadParameter("give at least --seconds", param_hint="--training")
    turns = int(seconds / period)
    most = int(training / period)
    with ApiServer() as server:
        prepare(server)
        connection = config.new_client_from_config(str(server.kubeconfig))  # type: ignore[no-untyped-call]
        apis = client.CoreV1Api(connection), client.AppsV1Api(connection), client.BatchV1Api(connection)
        trainers = Trainers(*apis, jobs, make_plan(read_manifest(EXAMPLE).spec))
        with operator(server) as (process, port):
            began = time.monotonic()
            make_jobs(server, jobs)
            wait_until_idle(port, process)
            result: dict[str, Any] = {"jobs": jobs, "everything_made_seconds": round(time.monotonic() - began, 1)}
            result["at_rest"] = usage(process, port, lambda: time.sleep(rest))
            trainers.make_pods()
            with trainers.watched():
                trainers.begin(turns, most)
                wait_until_idle(port, process)
                result["training"] = usage(process, port, lambda: trainers.play(turns, period, most))
            if not trainers.answered:
                raise SystemExit("no milestone was answered; is --seconds long enough for one?")
            result |= {
                "reports_per_second": round(jobs / period, 1),
                "latest_report_seconds": round(trainers.late_seconds, 2),
                "milestones": len(trainers.answered),
                "milestones_missed": len(trainers.asked),
                "replicas_seconds": {
                    f"p{percent}": round(percentile(trainers.answered, percent), 3) for percent in (50, 99, 100)
                },
                "peak_memory_mib": peak_memory_mib(process),
            }
        with operator(server) as (process, port):
            began = time.monotonic()
            while sum(_samples(port, "batchgrowth_operator_reconciles_total").values()) < jobs:
                if time.monotonic() - began > PATIENCE_SECONDS or not process.is_running():
                    raise SystemExit(f"the second operator has not reconciled all jobs within {PATIENCE_SECONDS} s")
                time.sleep(0.2)
            result["restart_seconds"] = round(time.monotonic() - began, 1)
            time.sleep(SETTLE_SECONDS)
            result["restart_memory_mib"] = round(process.memory_info().rss / MIB, 1)
            result["restart_peak_memory_mib"] = peak_memory_mib(process)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


# --- the operator and its API server ----------------------------------------------------------------------------------


def prepare(server: ApiServer) -> None:
    """Create the CRDs, ours and the Dask operator's, and a namespace."""
    charts = Path(str(distribution("dask-kubernetes").locate_file("dask_kubernetes/operator/deployment/helm")))
    for crd in (ROOT / "crds" / "batchgrowthjobs.yaml", *sorted(charts.glob("*/crds/*.yaml"))):
        _kubectl(server, "apply", "--server-side", "-f", crd)
    for kind in ("batchgrowthjobs", "daskclusters"):
        while server.kubectl("get", kind).returncode != 0:  # the API server serves a new CRD after a moment
            time.sleep(0.1)
    _kubectl(server, "create", "namespace", NAMESPACE)


def name_of(job: int) -> str:
    """Return the name of a job."""
    return f"job-{job:04}"


def make_jobs(server: ApiServer, number: int) -> None:
    """Create that many copies of the example job."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE)
    items = [body | {"metadata": {"name": name_of(job), "namespace": NAMESPACE}} for job in range(number)]
    _kubectl(server, "create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def _kubectl(server: ApiServer, *arguments: str | Path, given: str | None = None) -> None:
    done = server.kubectl(*arguments, given=given)
    if done.returncode != 0:
        raise SystemExit(done.stderr)


@contextmanager
def operator(server: ApiServer) -> Iterator[tuple[psutil.Process, int]]:
    """Yield the process of an operator of the whole cluster, and the port of its metrics."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = ["--image", "example/trainer:1", "--kubeconfig", str(server.kubeconfig), "--metrics-port", str(port)]
    command = [sys.executable, "-m", "batchgrowth_operator", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as started:
        try:
            yield psutil.Process(started.pid), port
        finally:
            started.terminate()


def wait_until_idle(port: int, process: psutil.Process) -> None:
    """Return when the operator is idle.

    Events do not count: the operator posts those of many jobs slowly, minutes after it has done what they tell.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    before = -1
    since = time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        if time.monotonic() > end or not process.is_running():
            raise SystemExit(f"the operator still writes after {PATIENCE_SECONDS} s")
        time.sleep(POLL_SECONDS)
        counts = _requests(port)
        written = sum(count for (verb, kind), count in counts.items() if verb != "get" and kind != "events")
        if written != before:
            before = written
            since = time.monotonic()


def usage(process: psutil.Process, port: int, act: Callable[[], None]) -> dict[str, Any]:
    """Return what the operator takes while `act` runs."""
    before = _requests(port)
    cpu = process.cpu_times()
    began = time.monotonic()
    act()
    took = time.monotonic() - began
    spent = process.cpu_times()
    requests = _requests(port)
    requests.subtract(before)
    return {
        "seconds": round(took, 1),
        "cores": round((spent.user + spent.system - cpu.user - cpu.system) / took, 3),
        "memory_mib": round(process.memory_info().rss / MIB, 1),
        "writes": sum(count for (verb, _), count in requests.items() if verb != "get"),
        "requests_per_second": {" ".join(kind): round(count / took, 1) for kind, count in requests.most_common(6)},
    }


def peak_memory_mib(process: psutil.Process) -> float:
    """Return the process's peak resident memory in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM"))


def _requests(port: int) -> Counter[tuple[str, str]]:
    """Return the operator's requests so far, by verb and resource."""
    counts: Counter[tuple[str, str]] = Counter()
    for labels, value in _samples(port, "batchgrowth_operator_api_requests_total").items():
        label = dict(labels)
        counts[label["verb"], label["resource"]] += value
    return counts


def _samples(port: int, name: str) -> dict[tuple[tuple[str, str], ...], int]:
    """Return the values of a counter by its labels; none until the operator answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {tuple(sample.labels.items()): int(sample.value) for sample in samples if sample.name == name}


# --- the pods ---------------------------------------------------------------------------------------------------------


@dataclass
class Trainers:
    """The trainers of all jobs: their plan, and the milestones that they reported, each until it was answered."""

    core: client.CoreV1Api
    apps: client.AppsV1Api
    batch: client.BatchV1Api
    jobs: int
    plan: Plan
    asked: dict[tuple[str, int], float] = field(default_factory=dict)
    answered: list[float] = field(default_factory=list)
    late_seconds: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _nodes: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(PATCHERS))

    def make_pods(self) -> None:
        """Start the trainers' pods and the workers of the first stage."""
        began = {"status": {"active": 1, "ready": 1, "startTime": datetime.now(UTC).isoformat()}}
        for job in map(name_of, range(self.jobs)):
            self._nodes.submit(_send, self.batch.patch_namespaced_job_status, names.of(job).trainer, began)
            self._nodes.submit(self._make_workers, job, self.plan.stage_at(0).workers)

    def _make_workers(self, job: str, number: int) -> None:
        ready = {"status": {"replicas": number, "readyReplicas": number}}
        _send(self.apps.patch_namespaced_deployment_status, names.of(job).workers, ready)

    def begin(self, turns: int, most: int) -> None:
        """Report every job where it is before the first of its turns, of which a whole training has `most`."""
        with ThreadPoolExecutor(PATCHERS) as patchers:
            for job in range(self.jobs):
                update = self._update(job, 0, turns, most)
                patchers.submit(self._report, name_of(job), update, update)

    def play(self, turns: int, period: float, most: int) -> None:
        """Report every job once per period, evenly spread, in an order that is not that of their progress."""
        order = Random(0).sample(range(self.jobs), self.jobs)
        began = time.monotonic()
        with ThreadPoolExecutor(PATCHERS) as patchers:
            for number in range(turns * self.jobs):
                due = began + number * period / self.jobs
                time.sleep(max(0.0, due - time.monotonic()))
                self.late_seconds = max(self.late_seconds, time.monotonic() - due)
                turn, place = divmod(number, self.jobs)
                job = order[place]
                before = self._update(job, turn, turns, most)
                now = self._update(job, turn + 1, turns, most)
                patchers.submit(self._report, name_of(job), before, now)

    def _update(self, job: int, turn: int, turns: int, most: int) -> int:
        """Return the updates that a job has done after that many turns; the first job begins, the last one ends."""
        done = Fraction(job, self.jobs) * (most - turns) + turn
        return int(done / most * (self.plan.updates - 1))

    def _report(self, job: str, before: int, update: int) -> None:
        position = self.plan.position_at(update)
        stage = self.plan.stage_at(update)
        report = Progress(
            update=update,
            updates=self.plan.updates,
            epoch=position.epoch + position.offset / self.plan.examples_per_epoch,
            epochs=self.plan.epochs,
            stage=stage.index,
            batch_size=stage.batch_size,
            loss=1.0,
            learning_rate=self.plan.learning_rate_at(position),
            workers=stage.workers,
        )
        if stage.workers > self.plan.stage_at(before).workers:
            self.asked[job, stage.workers] = time.monotonic()
        body = {"data": {names.PROGRESS_KEY: report.to_json()}}
        _send(self.core.patch_namespaced_config_map, names.of(job).progress, body)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the Deployments for the replicas that milestones ask for."""
        stream: Any = watch.Watch()  # type: ignore[no-untyped-call]
        threading.Thread(target=self._watch, args=(stream,), daemon=True).start()
        yield
        end = time.monotonic() + GRACE_SECONDS
        while self.asked and time.monotonic() < end:
            time.sleep(0.1)
        self._over.set()
        stream.stop()

    def _watch(self, stream: Any) -> None:
        while not self._over.is_set():
            answer: Any = self.apps.list_namespaced_deployment(NAMESPACE, _preload_content=False)
            listed = json.loads(answer.data)
            for deployment in listed["items"]:
                self._see(deployment)
            since = listed["metadata"]["resourceVersion"]
            given = {"resource_version": since, "deserialize": False}  # to make objects of them takes too long
            try:
                for event in stream.stream(self.apps.list_namespaced_deployment, NAMESPACE, **given):
                    self._see(event["object"])
            except (HTTPError, client.ApiException, KeyError):
                continue  # the API server has ended the watch; the client stumbles over how it says so

    def _see(self, deployment: dict[str, Any]) -> None:
        job = deployment["metadata"]["labels"].get(names.JOB_LABEL, "")
        wanted = deployment["spec"]["replicas"]
        since = self.asked.pop((job, wanted), None)
        if since is not None:
            self.answered.append(time.monotonic() - since)
        if wanted != deployment["status"].get("replicas", 0):
            self._nodes.submit(self._make_workers, job, wanted)


def _send(patch: Callable[..., Any], name: str, body: dict[str, Any]) -> None:
    """Patch an object, and make no object of the answer: the players share the processors with the operator."""
    patch(name, NAMESPACE, body, _preload_content=False).read()


if __name__ == "__main__":
    typer.run(main)

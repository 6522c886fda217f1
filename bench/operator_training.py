"""What the operator needs for many jobs that train: `python -m bench.operator_training --jobs 1000`.

A real API server holds the jobs and their children; there are no nodes, so this module plays the pods: the trainers'
Jobs have one, every worker that is wanted is ready, and each job's report is patched as often as by a trainer that has
run for some minutes. Each trains for `--training` seconds, and the jobs are spread evenly over that time. When in a
period a job reports does not depend on how far it is, since jobs begin independently. The results are the operator's
processor time, memory and writes, the time from each report of a milestone until the workers' Deployment has its new
replicas, and the memory of an operator that is restarted.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from random import Random
from typing import Annotated, Any

import typer
from batchgrowth import names
from batchgrowth.contract.progress import LONGEST_PERIOD_SECONDS, Progress
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.schedule.plan import make_plan
from batchgrowth.schedule.stages import Plan
from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from bench.operator_scale import (
    MIB,
    NAMESPACE,
    ROOT,
    cpu_seconds_of,
    make_jobs,
    operator,
    peak_memory_mib,
    prepare,
    requests_of,
    restart,
    wait_until_idle,
)
from cluster.apiserver import ApiServer

PATCHERS = 8
GRACE_SECONDS = 30


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
        """Starts the trainers' pods and the workers of the first stage."""
        began = {"status": {"active": 1, "ready": 1, "startTime": datetime.now(UTC).isoformat()}}
        for job in map(name_of, range(self.jobs)):
            self._nodes.submit(_send, self.batch.patch_namespaced_job_status, names.trainer(job), began)
            self._nodes.submit(self._make_workers, job, self.plan.stage_at(0).workers)

    def _make_workers(self, job: str, number: int) -> None:
        ready = {"status": {"replicas": number, "readyReplicas": number}}
        _send(self.apps.patch_namespaced_deployment_status, names.workers(job), ready)

    def begin(self, turns: int, most: int) -> None:
        """Reports every job where it is before the first of its turns, of which a whole training has `most`."""
        with ThreadPoolExecutor(PATCHERS) as patchers:
            for job in range(self.jobs):
                update = self._update(job, 0, turns, most)
                patchers.submit(self._report, name_of(job), update, update)

    def play(self, turns: int, period: float, most: int) -> None:
        """Reports every job once per period, evenly spread, in an order that is not that of their progress."""
        order = Random(0).sample(range(self.jobs), self.jobs)
        began = time.monotonic()
        with ThreadPoolExecutor(PATCHERS) as patchers:
            for number in range(turns * self.jobs):
                due = began + number * period / self.jobs
                time.sleep(max(0.0, due - time.monotonic()))
                self.late_seconds = max(self.late_seconds, time.monotonic() - due)
                turn, place = divmod(number, self.jobs)
                job = order[place]
                before, now = (self._update(job, each, turns, most) for each in (turn, turn + 1))
                patchers.submit(self._report, name_of(job), before, now)

    def _update(self, job: int, turn: int, turns: int, most: int) -> int:
        """The updates that a job has done after that many of its turns; the first job begins, and the last one ends."""
        done = Fraction(job, self.jobs) * (most - turns) + turn
        return int(done / most * (self.plan.updates - 1))

    def _report(self, job: str, before: int, update: int) -> None:
        position, stage = self.plan.position_at(update), self.plan.stage_at(update)
        epoch = position.epoch + position.offset / self.plan.examples_per_epoch
        report = Progress(
            update=update, updates=self.plan.updates, epoch=epoch,
            epochs=self.plan.epochs, stage=stage.index, batch_size=stage.batch_size, loss=1.0,
            learning_rate=self.plan.learning_rate_at(position), workers=stage.workers,
        )  # fmt: skip
        if stage.workers > self.plan.stage_at(before).workers:
            self.asked[job, stage.workers] = time.monotonic()
        body = {"data": {names.PROGRESS_KEY: report.to_json()}}
        _send(self.core.patch_namespaced_config_map, names.progress(job), body)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the Deployments for the replicas that milestones ask for."""
        stream: Any = watch.Watch()  # type: ignore[no-untyped-call]
        watching = threading.Thread(target=self._watch, args=(stream,), daemon=True)
        watching.start()
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
        job, wanted = deployment["metadata"]["labels"].get(names.JOB_LABEL, ""), deployment["spec"]["replicas"]
        since = self.asked.pop((job, wanted), None)
        if since is not None:
            self.answered.append(time.monotonic() - since)
        if wanted != deployment["status"].get("replicas", 0):
            self._nodes.submit(self._make_workers, job, wanted)


def _send(patch: Callable[..., Any], name: str, body: dict[str, Any]) -> None:
    """Patches an object, and makes no object of the answer: the players share the processors with the operator."""
    patch(name, NAMESPACE, body, _preload_content=False).read()


def name_of(job: int) -> str:
    """The name of a job, as operator_scale makes it."""
    return f"job-{job:04}"


def measure(jobs: int, seconds: float, period: float, training: float) -> dict[str, Any]:
    """The results as one JSON object."""
    turns, most = int(seconds / period), int(training / period)
    plan = make_plan(read_manifest((ROOT / "examples" / "digits.yaml").read_text()).spec)
    with ApiServer() as server:
        prepare(server)
        connection = config.new_client_from_config(str(server.kubeconfig))  # type: ignore[no-untyped-call]
        apis = client.CoreV1Api(connection), client.AppsV1Api(connection), client.BatchV1Api(connection)
        trainers = Trainers(*apis, jobs, plan)
        with operator(server) as (process, port):
            make_jobs(server, jobs, suspended=False)
            wait_until_idle(port, process)
            trainers.make_pods()
            with trainers.watched():
                trainers.begin(turns, most)
                wait_until_idle(port, process)
                before, cpu, began = requests_of(port), cpu_seconds_of(process), time.monotonic()
                trainers.play(turns, period, most)
                took, cpu = time.monotonic() - began, cpu_seconds_of(process) - cpu
                memory = process.memory_info().rss / MIB
            requests = requests_of(port)
            requests.subtract(before)
            writes = sum(count for (verb, _), count in requests.items() if verb != "get")
            busiest = {" ".join(kind): round(count / took, 1) for kind, count in requests.most_common(6)}
            answered = sorted(trainers.answered)
            if not answered:
                raise SystemExit("no milestone was answered; is --seconds long enough for one?")
            result = {
                "jobs": jobs,
                "seconds": round(took, 1),
                "reports_per_second": round(jobs / period, 1),
                "latest_report_seconds": round(trainers.late_seconds, 2),
                "cores": round(cpu / took, 3),
                "memory_mib": round(memory, 1),
                "peak_memory_mib": peak_memory_mib(process),
                "writes_per_job_and_minute": round(writes / jobs / took * 60, 1),
                "requests_per_second": busiest,
                "milestones": len(answered),
                "milestones_missed": len(trainers.asked),
                "replicas_seconds": {
                    name: round(answered[min(len(answered) - 1, int(len(answered) * share))], 3)
                    for name, share in (("median", 0.5), ("p99", 0.99), ("max", 1.0))
                },
            }
        with operator(server) as (process, port):
            return result | restart(process, port, jobs)


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that train at once.")] = 1000,
    seconds: Annotated[float, typer.Option(min=20, help="Time that is measured.")] = 120,
    training: Annotated[float, typer.Option(min=60, help="Time that a whole training takes.")] = 600,
    period: Annotated[float, typer.Option(min=1, help="Seconds between two reports.")] = LONGEST_PERIOD_SECONDS,
) -> None:
    """Play the trainers of many jobs, and measure the operator."""
    if training < seconds:
        raise typer.BadParameter("give at least --seconds", param_hint="--training")
    sys.stdout.write(json.dumps(measure(jobs, seconds, period, training), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)

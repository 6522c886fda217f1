"""A fake Kubernetes: a dictionary that stores what decisions write; tests play the other controllers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.pod_limits import PodLimits
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth_operator.job.reconcile import Writes, reconcile
from batchgrowth_operator.seen.observed import (
    Failure,
    Inquiry,
    Observed,
    PutBack,
    Ref,
    TlsSecrets,
    active_since,
    ended_at,
    seconds_since,
)
from batchgrowth_operator.seen.progress import job_text, mark_of, spec_of, text_of
from batchgrowth_operator.settings import Defaults

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # so that the tests can import docs.generate
DEFAULTS = Defaults(image="example/trainer:1", pods=PodLimits(accounts=frozenset({"reader"})))
START = datetime(2026, 11, 20, 10, tzinfo=UTC)


@dataclass
class World:
    """One job and its objects. `step` is a pass of the operator; the other methods are acts of other controllers."""

    job: dict[str, Any]
    children: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    parts: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    failures: tuple[Failure, ...] = ()
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    now: datetime = START
    report_seen: tuple[Hashable, datetime] = (None, START)
    text_seen: tuple[str | None, datetime] = (None, START)
    inquiry: Inquiry | None = None
    events: list[Any] = field(default_factory=list)
    job_deleted: bool = False
    strangers: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    is_renewal_due: bool = False
    defaults: Defaults = DEFAULTS

    @property
    def name(self) -> str:
        return self.job["metadata"]["name"]

    @property
    def status(self) -> dict[str, Any]:
        return self.job.get("status", {})

    def observed(self) -> Observed:
        """What the operator observes, as deep copies, so that no test can change the world through them."""
        secret = Ref("Secret", names.of(self.name).tls)
        mark = mark_of(self.child("ConfigMap", names.of(self.name).progress))
        if mark != self.report_seen[0]:
            self.report_seen = mark, self.now
        text = text_of(self.child("ConfigMap", names.of(self.name).progress))
        if text != self.text_seen[0]:
            self.text_seen = text, self.now
        pem = {"ca.crt": "A", "tls.crt": "C", "tls.key": "D"}
        issued = TlsSecrets(authority={"ca.crt": "A", "ca.key": "B"}, tls=pem)
        return Observed(
            job=copy.deepcopy(self.job),
            now=self.now,
            children=copy.deepcopy(self.children),
            parts=copy.deepcopy(self.parts) if (self.cluster or {}).get("status") else {},  # the Dask operator's
            pods=tuple(copy.deepcopy(self.pods)),
            tls_secrets=issued if self.is_renewal_due or secret not in self.children else None,
            strangers=copy.deepcopy(self.strangers),
            failures=self.failures,
            warnings=tuple(copy.deepcopy(self.warnings)),
            put_backs=self.put_backs,
            last_report=None if text is None else self.text_seen[1],
            inquiry=self.inquiry,
            report_age_seconds=(self.now - self.report_seen[1]).total_seconds(),
            active_seconds=seconds_since(active_since(self.job), self.now),
            ended_seconds=seconds_since(ended_at(self.job), self.now),
        )

    def decide(self) -> Writes:
        return reconcile(self.observed(), self.defaults)

    def step(self) -> Writes:
        decision = self.decide()
        for write in self.writes(decision):
            write()
        self.put_backs = decision.put_backs
        return decision

    def settle(self, passes: int = 6) -> None:
        """Runs passes until one has nothing to write."""
        for _ in range(passes):
            if self.step().is_empty or self.job_deleted:
                return
        raise AssertionError(f"still writing after {passes} passes: {self.decide()}")

    def writes(self, decision: Writes) -> list[Any]:
        """The writes of a decision, one by one, in their order."""
        writes: list[Any] = []
        if decision.status is not None:
            writes.append(lambda: self.job.update(status=copy.deepcopy(decision.status)))
        writes += [lambda m=m: self._apply(m) for m in decision.apply]
        writes += [lambda r=r: self.children.pop(r, None) for r in decision.delete]
        writes += [lambda e=e: self.events.append(e) for e in decision.events]
        if decision.delete_job:
            writes.append(lambda: setattr(self, "job_deleted", True))
        return writes

    def _apply(self, manifest: dict[str, Any]) -> None:
        ref = Ref(manifest["kind"], manifest["metadata"]["name"])
        found = self.children.get(ref, {"metadata": {"creationTimestamp": self.now.isoformat()}})
        self.children[ref] = {**found, **copy.deepcopy(manifest)}
        self.children[ref]["metadata"] = {**found["metadata"], **copy.deepcopy(manifest["metadata"])}

    # acts of others

    def child(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.children.get(Ref(kind, name))

    @property
    def deployment(self) -> dict[str, Any] | None:
        return self.child("Deployment", names.of(self.name).workers)

    @property
    def trainer(self) -> dict[str, Any] | None:
        return self.child("Job", names.of(self.name).trainer)

    @property
    def cluster(self) -> dict[str, Any] | None:
        return self.child("DaskCluster", names.of(self.name).cluster)

    def wait(self, seconds: float) -> World:
        self.now += timedelta(seconds=seconds)
        return self

    def edit(self, **spec: Any) -> World:
        self.job["spec"] |= spec
        self.job["metadata"]["generation"] += 1
        return self

    def workers_ready(self, count: int | None = None) -> World:
        assert self.deployment is not None
        self.deployment["status"] = {"readyReplicas": self.deployment["spec"]["replicas"] if count is None else count}
        return self

    def scheduler_ready(self) -> World:
        assert self.cluster is not None
        self.cluster["status"] = {"phase": "Running"}
        name = names.of(self.name).scheduler
        self.parts = {
            Ref("Deployment", name): {"metadata": {"name": name}, "status": {"readyReplicas": 1}},
            Ref("Service", name): {"metadata": {"name": name}},
        }
        return self

    def trainer_runs(self, **status: Any) -> World:
        assert self.trainer is not None
        self.trainer["status"] = {"active": 1, "ready": 1} | status
        return self

    def trainer_ends(self, kind: str = "Complete", message: str = "") -> World:
        assert self.trainer is not None
        self.trainer["status"] = {"conditions": [{"type": kind, "status": "True", "message": message}]}
        return self

    def report(self, update: int, **values: Any) -> World:
        """The trainer reports that it has done that many updates."""
        config_map = self.child("ConfigMap", names.of(self.name).progress)
        assert config_map is not None
        progress = Progress(**({"update": update, "updates": 460, "epoch": update / 45, "epochs": 30, "stage": 0,
            "batch_size": 32, "learning_rate": 0.05, "workers": 1, "seconds_per_update": 1.0} | values))  # fmt: skip
        config_map["data"] = {names.PROGRESS_KEY: progress.to_json()}
        return self

    def report_decided(self, update: int, *decisions: tuple[int, int, float], **values: Any) -> World:
        """The trainer of a measured job reports that update and its decisions so far."""
        made = tuple(starmap(BatchDecision, decisions))
        plan = make_plan(spec_of(job_text(self.observed())), made)
        position = plan.position_at(update)
        epoch = position.epoch + position.offset / plan.examples_per_epoch
        known: dict[str, Any] = {"updates": plan.updates, "epoch": epoch, "epochs": plan.epochs, "decisions": made}
        return self.report(update, **(known | values))

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = {c["type"]: (c["status"], c["reason"]) for c in self.status.get("conditions", ())}
        return found.get(kind, ("", ""))


def digits(**spec: Any) -> dict[str, Any]:
    """examples/digits.yaml as the API server would return it."""
    job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    job["metadata"] |= {"namespace": "default", "uid": "0000-1111", "generation": 1}
    job["spec"] |= spec
    return job


@pytest.fixture
def make_world() -> Any:
    """A function that makes a world with examples/digits.yaml, with the given fields of its spec replaced."""
    return lambda **spec: World(digits(**spec))


MEASURED = {
    "workload": {"entrypoint": "batchgrowth_trainer.workloads.digits:workload", "examples": 50_000},
    "epochs": 200,
    "batch": {"initial": 128, "maximum": 16_000, "shard": 64, "growth": {"type": "NoiseScale"}},
    "workers": {"examplesPerWorker": 4000, "maximum": 4},
}
"""Fields that make the digits example a job whose batch follows the noise scale up to 16,000, with 1 to 4 workers."""


@pytest.fixture
def measured_world(make_world: Any) -> Any:
    """A function that makes a world with a measured job, settled, with a running trainer and one worker."""

    def make(**spec: Any) -> World:
        world = make_world(**(MEASURED | spec))
        world.settle()
        world.wait(10).scheduler_ready().workers_ready().trainer_runs().report_decided(10)
        world.settle()
        return world

    return make


@pytest.fixture
def training_world(make_world: Any) -> Any:
    """A function that makes the same world, settled, with a running trainer and one worker, which started in 10 s."""

    def make(**spec: Any) -> World:
        world = make_world(**spec)
        world.settle()
        world.wait(10).scheduler_ready().workers_ready().trainer_runs().report(10)
        world.settle()
        return world

    return make

"""The machine: a job's life in a cluster where watches lag, processes die, clocks jump and people interfere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.api.cache import SWEEP_SECONDS
from batchgrowth_operator.children.drift import _remembered
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.seen.observed import Ref, is_owned_by
from controllers import CLAIM, CLUSTER, FAILURES, JOB, MOUNTED, PROGRESS, SCHEDULER, TRAINER, UPDATES, WORKERS, Nature
from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, initialize, invariant, precondition, rule
from instances import DEFAULT_IMAGE, Clock, Inline, Instance
from model_api import Body, Server
from safety import BAD_ARGUMENT, JOB_REF, TAMPERED, Safety, is_over, verdict_of

MANIFEST = (Path(__file__).parents[4] / "examples" / "digits.yaml").read_text()
CHILDREN = (
    *MOUNTED,
    PROGRESS,
    Ref("ServiceAccount", names.of(JOB).trainer),
    Ref("Role", names.of(JOB).progress),
    Ref("RoleBinding", names.of(JOB).progress),
    Ref("NetworkPolicy", names.of(JOB).network_policy),
    CLUSTER,
    WORKERS,
    TRAINER,
    Ref("Secret", names.of(JOB).authority),
)
PARTS = (Ref("Deployment", SCHEDULER), Ref("Service", SCHEDULER))
MOST_ROUNDS = 40
"""Passes after which a job must be at rest once trouble has stopped."""
QUIET_SECONDS = (1, 12, 25, 60, 310, 1, 1)
"""Waits in which nothing may be written at rest; they outlast every wait of a job that has none of its own.

Secrets are read in the pass after the longest; what is refused then is in the status of the next one.
"""
SPECS = st.fixed_dictionaries(
    {"suspend": st.sampled_from([False, False, False, True])},
    optional={
        "activeDeadlineSeconds": st.just(5000),
        "clusterRetention": st.sampled_from(["DeleteOnFinish", "RetainOnFailure", "Retain"]),
        "ttlSecondsAfterFinished": st.sampled_from([0, 300]),
        "image": st.just("example/a:1"),
    },
)
BOUNDS = st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda b: {"minimum": b[0], "maximum": b[0] + b[1]})
SOME = st.sets(st.sampled_from(CHILDREN), min_size=1).map(sorted)
WHICH, INDEX = st.integers(0, 1), st.integers(0, 30)

Edit = Callable[[Body], None]


class Recorder(OperatorMetrics):
    """Remembers the passes that ended by an error that no code expects."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = 0

    def reconciled(self, result: str, seconds: float) -> None:
        self.failed += result == "failed"
        super().reconciled(result, seconds)


class Lifetimes(RuleBasedStateMachine):
    """Two operators, one of which leads, and everything else that acts on one job's objects."""

    checkpoint: Body = {"volume": {"claimName": "kept"}}  # noqa: RUF012  (of the spec; never changed)

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_default_executor(Inline())
        _remembered.cache_clear()  # each server of these tests counts its uids and versions from 1
        self.server = Server()
        clock = Clock(self.server)
        clock.install(self.patch)
        self.nature, self.safety, self.telemetry = Nature(self.server), Safety(self.server), Recorder()
        self.instances = [Instance(name, self.server, clock, self.runner, self.telemetry) for name in "AB"]
        for instance in self.instances:
            instance.before_write = self.safety.before_write
        self.foreign: dict[Ref, Body] = {}
        self.is_broken = False
        self.is_mute = False
        """Whether a trainer has ended whose last report was deleted before the operator saw it."""

    def teardown(self) -> None:
        try:
            if self.server.seconds and not self.is_broken:
                self.come_to_rest()
                self.complete()
        finally:
            self.runner.close()
            self.patch.undo()

    # the operators

    @initialize(spec=SPECS, bounds=BOUNDS, rounds=st.integers(0, 8), updates=st.sampled_from([20, 100]))
    def submit(self, spec: Body, bounds: Body, rounds: int, updates: int) -> None:
        self.server.create(job_of(spec | {"checkpoint": self.checkpoint}, bounds))
        self.server.seconds += 1
        self.calm(0, rounds, updates)

    @rule(which=WHICH)
    def make_pass(self, which: int) -> None:
        self.instances[which].run_pass()

    @rule(which=WHICH, writes=st.integers(1, 12))
    def make_pass_and_die(self, which: int, writes: int) -> None:
        self.instances[which].client.writes_left = writes
        self.instances[which].run_pass()
        self.instances[which].client.writes_left = None

    @rule(which=WHICH)
    def elect(self, which: int) -> None:
        self.instances[which].hold_lease()

    @rule(which=WHICH)
    def deliver_all(self, which: int) -> None:
        self.instances[which].deliver()

    @rule(which=WHICH, index=INDEX)
    def deliver_one(self, which: int, index: int) -> None:
        if waiting := sorted(self.instances[which].pending):
            self.instances[which].deliver(waiting[index % len(waiting)])

    @rule(which=WHICH, index=INDEX)
    def break_watch(self, which: int, index: int) -> None:
        if waiting := sorted(self.instances[which].pending):
            self.instances[which].lose(waiting[index % len(waiting)])

    @rule(which=WHICH)
    def sweep(self, which: int) -> None:
        self.instances[which].sweep()

    @rule(which=WHICH, verb=st.sampled_from(["apply", "apply", "delete"]), ref=st.sampled_from((JOB_REF, *CHILDREN)))
    def refuse(self, which: int, verb: str, ref: Ref) -> None:
        self.instances[which].client.refused ^= {(verb, ref)}

    # time and the other controllers

    @rule(seconds=st.sampled_from([0.2, 3.0, 16.0, 45.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.server.seconds += seconds

    @rule(which=st.integers(0, 2), seconds=st.sampled_from([-86400, -30, 30, 3600, 86400]))
    def clock_jumps(self, which: int, seconds: int) -> None:
        """The clock of an operator's node, or the API server's."""
        if which < len(self.instances):
            self.instances[which].offset += timedelta(seconds=seconds)
        else:
            self.server.skew += timedelta(seconds=seconds)

    @rule()
    def nature_acts(self) -> None:
        self.nature.run()

    @rule(name=st.sampled_from(["collect", "run_jobs", "run_deployments", "run_dask", "run_kubelet"]))
    def one_controller_acts(self, name: str) -> None:
        getattr(self.nature, name)()

    @rule(updates=st.sampled_from([1, 60, 200]))
    def train(self, updates: int) -> None:
        self.nature.train(updates)
        self.is_mute |= self.last_words() == set()  # the Job and the ConfigMap of the reports are being deleted

    @rule(exit_code=st.sampled_from([*FAILURES, 75]))
    def trainer_fails(self, exit_code: int) -> None:
        self.nature.fail(exit_code)

    @rule(which=WHICH, rounds=st.integers(1, 6), updates=st.sampled_from([20, 100]))
    def calm(self, which: int, rounds: int, updates: int) -> None:
        """For a while everything works as it should."""
        for _ in range(rounds):
            self.round(self.instances[which], 2.0)
            self.nature.train(updates)

    # people

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.edit_spec(lambda spec: spec.update(suspend=suspend))

    @rule(bounds=BOUNDS)
    def scale(self, bounds: Body) -> None:
        self.edit_spec(lambda spec: spec["workers"].update(bounds))

    @rule(image=st.sampled_from(["example/a:1", "example/b:1"]))
    def change_image(self, image: str) -> None:
        self.edit_spec(lambda spec: spec.update(image=image))

    @rule(bad=st.booleans())
    def break_spec(self, bad: bool) -> None:
        self.edit_spec(lambda spec: spec["workload"].update(arguments={BAD_ARGUMENT: "1"} if bad else {}))

    @precondition(lambda self: JOB_REF in self.server.objects and self.server.seconds > 30)
    @rule(propagation=st.sampled_from(["Background", "Foreground"]))
    def delete_job(self, propagation: str) -> None:
        self.server.delete(JOB_REF, propagation)

    @precondition(lambda self: self.server.seconds and JOB_REF not in self.server.objects)
    @rule(spec=SPECS, bounds=BOUNDS)
    def submit_again(self, spec: Body, bounds: Body) -> None:
        self.nature.checkpoints.clear()
        self.server.create(job_of(spec | {"checkpoint": self.checkpoint}, bounds))

    @rule(
        refs=SOME | st.sampled_from([[part] for part in PARTS]),
        propagation=st.sampled_from(["Background", "Foreground"]),
    )
    def delete_children(self, refs: list[Ref], propagation: str) -> None:
        for ref in refs:
            if ref in self.server.objects and ref not in self.foreign and not self.is_last_word(ref):
                self.server.delete(ref, propagation)

    @rule(ref=st.sampled_from(CHILDREN), taken=st.booleans())
    def take_name(self, ref: Ref, taken: bool) -> None:
        """Someone else makes an object of that name, or removes theirs."""
        if taken and ref not in self.server.objects:
            metadata = {"name": ref.name, "labels": {names.JOB_LABEL: JOB}}
            spec = {"template": {"spec": {}}} if ref.kind == "Job" else {}
            self.foreign[ref] = self.server.create(
                {"apiVersion": "v1", "kind": ref.kind, "metadata": metadata, "spec": spec}
            )
        elif not taken and ref in self.foreign:
            self.server.remove(ref)
            del self.foreign[ref]

    @rule(refs=SOME, key=st.sampled_from([names.MANIFEST, names.INPUTS, "example.com/note"]))
    def annotate(self, refs: list[Ref], key: str) -> None:
        for ref in refs:
            self.edit_child(ref, lambda body: body["metadata"].setdefault("annotations", {}).update({key: TAMPERED}))

    @rule(refs=SOME, labels=st.booleans())
    def strip(self, refs: list[Ref], labels: bool) -> None:
        """The annotations go, or the labels and with them the watch.

        A suspended job would not find a cluster without its label, nor one that is over the last report.
        """
        for ref in refs:
            key = "labels" if labels and ref not in (CLUSTER, WORKERS, TRAINER, PROGRESS) else "annotations"
            self.edit_child(ref, lambda body, key=key: body["metadata"].update({key: {}}))

    @rule(replicas=st.integers(0, 9), suspend=st.booleans())
    def edit_children(self, replicas: int, suspend: bool) -> None:
        self.edit_child(WORKERS, lambda body: body["spec"].update(replicas=replicas))
        self.edit_child(TRAINER, lambda body: body["spec"].update(suspend=suspend))
        self.edit_child(MOUNTED[0], lambda body: body.update(data={}))

    # what must hold

    @invariant()
    def is_safe(self) -> None:
        self.is_broken = True
        assert not self.safety.violations, self.safety.violations
        assert not self.telemetry.failed, "a pass ended by an unexpected error"
        assert len(self.nature.trainers) <= 1, "two trainers at once"
        for ref, body in self.foreign.items():
            assert identity_of(body) == identity_of(self.server.objects.get(ref)), f"another's {ref} was changed"
        self.is_broken = False

    @rule()
    def come_to_rest(self) -> None:
        """Once trouble stops, a bounded number of passes ends in what the job wants."""
        leader = next((i for i in self.instances if i.leads), self.instances[0])
        for instance in self.instances:
            instance.client.refused.clear()
            if instance is not leader:
                instance.start()
        leader.deliver()
        leader.sweep()
        quiet = 0
        for _ in range(MOST_ROUNDS):
            before = self.server.version, leader.client.requests
            self.round(leader, QUIET_SECONDS[quiet])
            self.is_safe()
            if QUIET_SECONDS[quiet] >= SWEEP_SECONDS:
                leader.sweep()
            is_quiet = leader.leads and before == (self.server.version, leader.client.requests)
            quiet = quiet + 1 if is_quiet else 0
            if quiet == len(QUIET_SECONDS):
                break
        assert quiet == len(QUIET_SECONDS), f"still writing after {MOST_ROUNDS} passes"
        self.check_end()

    def complete(self) -> None:
        """If it is left alone, the trainer comes to the end."""
        job = self.server.get(JOB_REF)
        if job is None or self.is_blocked(job) or job["spec"]["suspend"]:
            return
        leader = next(i for i in self.instances if i.leads)
        for _ in range(MOST_ROUNDS):
            self.nature.train(100)
            self.round(leader, 1.0)
            self.is_safe()
            if is_over((self.server.get(JOB_REF) or {}).get("status") or {}):
                break
        self.come_to_rest()
        job = self.server.get(JOB_REF)
        if job is not None:
            status = job["status"]
            wants(is_over(status), "the job is over")
            wants(
                verdict_of(status)[0] != "True" or status["trainerStatus"]["update"] == UPDATES or self.is_mute,
                "the position is the end",
            )

    def check_end(self) -> None:
        """The cluster is as the job wants it."""
        job = self.server.get(JOB_REF)
        if job is None:
            others = {body["metadata"]["uid"] for body in self.foreign.values()}  # whose Job makes a pod, too
            left = [
                ref
                for ref, body in self.server.objects.items()
                if any(owner["uid"] not in others for owner in body["metadata"].get("ownerReferences") or ())
            ]
            wants(not left, f"{left} went with the job")
            return
        status = job.get("status") or {"conditions": ()}
        conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
        wants(job["metadata"]["generation"] == status.get("observedGeneration"), "the status is of this generation")
        wants(str(not is_bad(job)) == conditions["Accepted"][0], "Accepted is true")
        if is_bad(job):
            return
        cluster = {ref for ref in (CLUSTER, WORKERS) if self.is_ours(ref, job)}
        if is_over(status):
            retention, won = job["spec"].get("clusterRetention", "DeleteOnFinish"), verdict_of(status)[0] == "True"
            wants(not self.own_trainers(), "no trainer runs after the end")
            is_retained = retention == "Retain" or (retention == "RetainOnFailure" and not won)
            wants(not cluster or is_retained, "the cluster is released after the end")
        elif job["spec"]["suspend"]:
            wants(not cluster and not self.own_trainers(), "a suspended job holds nothing")
            wants(conditions["Suspended"][0] == "True", "Suspended is true")
        elif self.is_blocked(job):
            wants(conditions["ClusterReady"] == ("False", "NameTaken"), "the status says that a name is taken")
        else:
            self.check_active(job)

    def check_active(self, job: Body) -> None:
        missing = [ref for ref in (*children_of(job), *PARTS) if ref not in self.server.objects]
        image = self.server.objects[CLUSTER]["spec"]["scheduler"]["spec"]["containers"][0]["image"]
        if missing and set(missing) <= set(PARTS) and image != job["spec"].get("image", DEFAULT_IMAGE):
            return  # the cluster is made again once its trainer has ended; until then the status names what it lacks
        wants(not missing, f"{missing} exist")
        wants(len(self.nature.trainers) == 1, "the trainer runs")
        replicas, bounds = self.server.objects[WORKERS]["spec"]["replicas"], job["spec"]["workers"]
        wants(bounds["minimum"] <= replicas <= bounds["maximum"], "the workers are within their bounds")
        wants(replicas == job["status"]["workers"]["requested"], "the status has the number of workers")
        wants(not self.server.objects[TRAINER]["spec"]["suspend"], "the trainer's Job is not suspended")
        wants(bool(self.server.objects[MOUNTED[0]]["data"]), "the plan is in its ConfigMap")

    # means

    def round(self, instance: Instance, seconds: float) -> None:
        """Everything works once, and that instance makes a pass if it leads."""
        self.nature.run()
        instance.deliver()
        instance.hold_lease()
        instance.run_pass()
        self.server.seconds += seconds

    def edit_spec(self, edit: Edit) -> None:
        if JOB_REF in self.server.objects:
            self.server.change(JOB_REF, lambda body: edit(body["spec"]))

    def edit_child(self, ref: Ref, edit: Edit) -> None:
        if ref in self.server.objects and ref not in self.foreign:
            self.server.change(ref, edit)

    def own_trainers(self) -> list[Body]:
        """The pods of trainers that may still be working, but for that of another's Job."""
        others = {body["metadata"]["uid"] for body in self.foreign.values()}
        return [pod for pod in self.nature.trainers if not any(is_owned_by(pod, uid) for uid in others)]

    def is_ours(self, ref: Ref, job: Body) -> bool:
        found = self.server.objects.get(ref)
        return found is not None and is_owned_by(found, job["metadata"]["uid"])

    def is_last_word(self, ref: Ref) -> bool:
        """Whether nothing else holds the last report of a trainer that has ended, unless the status has it."""
        return self.last_words() == {ref}

    def last_words(self) -> set[Ref] | None:
        """What holds the last report of a trainer that has ended; None without one, or if the status has it."""
        ended = [pod for pod in self.server.of_kind("Pod") if (pod["status"] or {}).get("phase") == "Succeeded"]
        if not ended or is_over((self.server.get(JOB_REF) or {}).get("status") or {}):
            return None
        found = {one: self.server.get(one) for one in (PROGRESS, TRAINER)}  # a Job goes with its pods
        left = {one: body for one, body in found.items() if body and "deletionTimestamp" not in body["metadata"]}
        text = (left.get(PROGRESS, {}).get("data") or {}).get(names.PROGRESS_KEY, '{"update": 0}')
        if json.loads(text)["update"] < UPDATES:
            left.pop(PROGRESS, None)
        return set(left)

    def is_blocked(self, job: Body) -> bool:
        """Whether the job's children cannot be made: another's has the name of one, or the spec is refused."""
        return is_bad(job) or any(ref in self.server.objects and not self.is_ours(ref, job) for ref in children_of(job))


class WithClaim(Lifetimes):
    """The same with a claim of the operator's making, which is deleted, refused, taken and resized by others."""

    checkpoint: Body = {"volume": {"size": "2Gi"}}  # noqa: RUF012

    @rule(propagation=st.sampled_from(["Background", "Foreground"]))
    def delete_claim(self, propagation: str) -> None:
        if CLAIM in self.server.objects and CLAIM not in self.foreign:
            self.server.delete(CLAIM, propagation)

    @rule(which=WHICH)
    def refuse_claim(self, which: int) -> None:
        self.instances[which].client.refused ^= {CLAIM}

    @rule(taken=st.booleans())
    def take_claim(self, taken: bool) -> None:
        self.take_name(CLAIM, taken)

    @rule(size=st.integers(1, 9))
    def resize_claim(self, size: int) -> None:
        self.edit_child(CLAIM, lambda body: body["spec"]["resources"]["requests"].update(storage=f"{size}Gi"))

    @rule()
    def volumes_act(self) -> None:
        self.nature.run_volumes()


class ByDefault(WithClaim):
    """The same for a job that names no place, where the operator has a default."""

    checkpoint: Body = {}  # noqa: RUF012


def machine_of(rules: Sequence[str]) -> type[Lifetimes]:
    """A machine with these rules alone; with all if there are none."""
    if not rules:
        return Lifetimes
    members = ((name, member) for name, member in vars(Lifetimes).items() if hasattr(member, RULE_MARKER))
    return type("Focused", (Lifetimes,), {name: _plain(member) for name, member in members if name not in rules})


def _plain(member: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but not as a rule."""
    return lambda *arguments, **keywords: member(*arguments, **keywords)


def wants(holds: bool, what: str) -> None:
    """Asserts that the cluster at rest is what the job wants."""
    assert holds, f"not as wanted: {what}"


def is_bad(job: Body) -> bool:
    """Whether the operator must refuse the job's spec."""
    return BAD_ARGUMENT in job["spec"]["workload"].get("arguments", {})


def identity_of(body: Body | None) -> Any:
    """What only the owner of an object changes."""
    if body is None:
        return None
    metadata = {name: body["metadata"].get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    return body["spec"], body.get("data"), metadata


def children_of(job: Body) -> list[Ref]:
    """What an active job has."""
    return [*CHILDREN] if "claimName" in job["spec"]["checkpoint"].get("volume", {}) else [*CHILDREN, CLAIM]


def job_of(spec: Body, bounds: Body) -> Body:
    """examples/digits.yaml with these fields."""
    job: dict[str, Any] = yaml.safe_load(MANIFEST)
    job["spec"] |= spec
    job["spec"]["workers"] |= bounds
    return job

"""Planted bugs: each replaces one piece of the operator, and names the symptom by which the machine finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from batchgrowth import lead, names
from batchgrowth_operator.decide import reconcile as rec
from batchgrowth_operator.decide import situation, statuses
from batchgrowth_operator.decide.situation import ClusterPolicy, Mode, Situation
from batchgrowth_operator.seen.observed import Observed, annotations_of, is_owned_by, ref_of
from batchgrowth_operator.server import apply, observe
from batchgrowth_operator.server.apply import Writer
from batchgrowth_operator.shell import passes

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """How the bug is planted, and a regular expression for what the machine says of it."""

    plant: Callable[[Patch], None]
    symptom: str


def owner_is_not_asked(patch: Patch) -> None:
    patch.setattr(apply, "is_owned_by", lambda body, uid: True)
    patch.setattr(observe, "is_owned_by", lambda body, uid: is_owned_by(body, uid) or body["kind"] != "Deployment")


def unseen_children_are_not_looked_up(patch: Patch) -> None:
    def write(self: Writer, seen: Observed, manifest: Any) -> None:
        self.store.update(self._writing().apply(manifest))

    patch.setattr(Writer, "_apply", write)


def suspend_is_ignored(patch: Patch) -> None:
    patch.setattr(Situation, "mode", property(lambda s: Mode.ACTIVE if s.outcome is None else Mode.OVER))


def maximum_is_ignored(patch: Patch) -> None:
    patch.setattr(lead, "requested", lambda current, *rest: current + 1)


def minimum_is_ignored(patch: Patch) -> None:
    real = rec.worker_deployment
    patch.setattr(rec, "worker_deployment", lambda s, replicas: real(s, replicas if s.update else 0))


def drift_is_always_seen(patch: Patch) -> None:
    patch.setattr(rec, "covers", lambda found, wanted: False)


def drift_is_never_seen(patch: Patch) -> None:
    patch.setattr(rec, "covers", lambda found, wanted: True)


def a_missing_annotation_recreates(patch: Patch) -> None:
    def needs(manifest: Any, seen: Observed) -> bool:
        found = seen.children.get(ref_of(manifest))
        has, wanted = (annotations_of(body).get(names.INPUTS) for body in (found or manifest, manifest))
        return has != wanted

    patch.setattr(rec, "_needs_recreation", needs)


def a_refused_spec_is_used(patch: Patch) -> None:
    real = situation.job_text

    def text(seen: Observed) -> str:
        workload = seen.job["spec"]["workload"]
        spec = {**seen.job["spec"], "workload": {k: v for k, v in workload.items() if k != "arguments"}}
        return real(replace(seen, job={**seen.job, "spec": spec}))

    patch.setattr(situation, "job_text", text)


def a_refused_spec_deletes_the_children(patch: Patch) -> None:
    def decide(seen: Observed, defaults: Any) -> Any:
        decision = rec.reconcile(seen, defaults)
        rejected = (decision.status or {}).get("phase") == "Rejected"
        return replace(decision, delete=tuple(seen.children)) if rejected else decision

    patch.setattr(passes, "reconcile", decide)


def a_running_trainer_does_not_count(patch: Patch) -> None:
    patch.setattr(situation, "is_running", lambda seen: False)


def the_history_keeps_only_the_newest(patch: Patch) -> None:
    real = statuses.next_history
    patch.setattr(statuses, "next_history", lambda s, w: real(s, w)[-1:])


def the_cluster_is_never_released(patch: Patch) -> None:
    def policy(s: Situation) -> ClusterPolicy:
        return ClusterPolicy.APPLY if s.mode is Mode.ACTIVE else ClusterPolicy.KEEP

    patch.setattr(Situation, "cluster_policy", property(policy))


ANOTHERS = "another's"
UNREST = "still writing"
MUTANTS = {
    planted.__name__: Mutant(planted, symptom)
    for planted, symptom in (
        (owner_is_not_asked, ANOTHERS),
        (unseen_children_are_not_looked_up, ANOTHERS),
        (suspend_is_ignored, "a trainer for a job that is suspended"),
        (maximum_is_ignored, "replicas, outside"),
        (minimum_is_ignored, "replicas, outside"),
        (drift_is_always_seen, UNREST),
        (drift_is_never_seen, "not as wanted"),
        (a_missing_annotation_recreates, "deleted without need"),
        (a_refused_spec_is_used, "not accepted"),
        (a_refused_spec_deletes_the_children, "deleted without need"),
        (a_running_trainer_does_not_count, "under a running trainer|two trainers"),
        (the_history_keeps_only_the_newest, "the history changes"),
        (the_cluster_is_never_released, "not as wanted"),
    )
}

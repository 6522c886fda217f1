"""Planted bugs: each replaces one piece of the operator, and names the symptom by which the machine finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from batchgrowth import lead, names
from batchgrowth_operator.decide import reconcile as rec
from batchgrowth_operator.decide import situation, statuses
from batchgrowth_operator.decide.children import cluster
from batchgrowth_operator.decide.situation import ClusterPolicy, Mode, Situation
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of, is_owned_by, ref_of
from batchgrowth_operator.seen.timestamps import seconds_since
from batchgrowth_operator.server import apply, observe
from batchgrowth_operator.server.apply import Writer
from batchgrowth_operator.server.store import Store, _packed, key_of
from batchgrowth_operator.server.sweep import Sweep
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


def outcome_is_not_kept(patch: Patch) -> None:
    patch.setattr(situation, "_stored_outcome", lambda previous: None)


def deletion_by_name(patch: Patch) -> None:
    """The observed object may be gone, and another may have its name."""

    def delete(self: Writer, seen: Observed, ref: Any, found: Object) -> None:
        now = self.api.get(ref, seen.namespace)
        if now is not None:
            self._writing().delete(ref, seen.namespace, now["metadata"]["uid"], "Background")

    patch.setattr(Writer, "_delete", delete)


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


def time_to_live_counts_from_the_start(patch: Patch) -> None:
    def left(s: Situation, status: Any) -> float | None:
        seconds = s.spec.ttl_seconds_after_finished
        return None if seconds is None else seconds - seconds_since(status.start_time, s.seen.now)

    patch.setattr(rec, "_seconds_to_live", left)


def deletion_of_the_job_is_ignored(patch: Patch) -> None:
    def decide(seen: Observed, defaults: Any) -> Any:
        return rec.reconcile(replace(seen, job=_without(seen.job, "metadata", "deletionTimestamp")), defaults)

    patch.setattr(passes, "reconcile", decide)


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


def the_lease_is_not_asked(patch: Patch) -> None:
    patch.setattr(Writer, "_writing", lambda self: self.api)


def a_running_trainer_does_not_count(patch: Patch) -> None:
    patch.setattr(situation, "is_running", lambda seen: False)


def a_stopping_trainer_does_not_count(patch: Patch) -> None:
    real = situation.is_running

    def running(seen: Observed) -> bool:
        return real(replace(seen, pods=tuple(p for p in seen.pods if "deletionTimestamp" not in p["metadata"])))

    patch.setattr(situation, "is_running", running)


def the_last_start_is_not_kept(patch: Patch) -> None:
    real = rec.progress_config_map

    def config_map(s: Situation) -> Any:
        return real(replace(s, report=None, previous=s.previous.model_copy(update={"trainer_status": None})))

    patch.setattr(rec, "progress_config_map", config_map)


def conflicts_of_the_status_are_forced(patch: Patch) -> None:
    """And a lagging watch may bring the job back as it was before the last write."""
    real = Writer._write_status

    def write(self: Writer, seen: Observed, status: Any) -> None:
        now = self.api.get(ref_of(seen.job), seen.namespace)
        real(self, replace(seen, job=now or seen.job), status)

    patch.setattr(Writer, "_write_status", write)


def the_history_keeps_only_the_newest(patch: Patch) -> None:
    real = statuses.next_history
    patch.setattr(statuses, "next_history", lambda s, w: real(s, w)[-1:])


def older_versions_replace_newer(patch: Patch) -> None:
    def update(self: Store, body: Object) -> Any:
        self._objects.setdefault(key_of(body), {})[ref_of(body)] = _packed(body)
        return key_of(body)

    patch.setattr(Store, "update", update)


def what_was_found_is_not_stored(patch: Patch) -> None:
    patch.setattr(Store, "refresh", lambda self, key, body: None)


def nothing_is_swept(patch: Patch) -> None:
    async def sweep(self: Sweep, kind: str, namespace: str = "") -> list[Any]:
        return []

    patch.setattr(Sweep, "sweep", sweep)


def the_cluster_is_never_released(patch: Patch) -> None:
    def policy(s: Situation) -> ClusterPolicy:
        return ClusterPolicy.APPLY if s.mode is Mode.ACTIVE else ClusterPolicy.KEEP

    patch.setattr(Situation, "cluster_policy", property(policy))


def lost_parts_are_not_restored(patch: Patch) -> None:
    patch.setattr(cluster, "lacks_parts", lambda seen: False)


def _without(body: Object, part: str, field: str) -> Mapping[str, Any]:
    return {**body, part: {key: value for key, value in body[part].items() if key != field}}


ANOTHERS = "another's"
UNREST = "still writing"
MUTANTS = {
    planted.__name__: Mutant(planted, symptom)
    for planted, symptom in (
        (owner_is_not_asked, ANOTHERS),
        (unseen_children_are_not_looked_up, ANOTHERS),
        (suspend_is_ignored, "a trainer for a job that is suspended"),
        (outcome_is_not_kept, "the outcome changes|for a job that is over"),
        (deletion_by_name, ANOTHERS),
        (maximum_is_ignored, "replicas, outside"),
        (minimum_is_ignored, "replicas, outside"),
        (drift_is_always_seen, UNREST),
        (drift_is_never_seen, "not as wanted"),
        (a_missing_annotation_recreates, "deleted without need"),
        (time_to_live_counts_from_the_start, "time to live"),
        (deletion_of_the_job_is_ignored, "being deleted"),
        (a_refused_spec_is_used, "not accepted"),
        (a_refused_spec_deletes_the_children, "deleted without need"),
        (the_lease_is_not_asked, "another holds the lease"),
        (a_running_trainer_does_not_count, "under a running trainer|two trainers"),
        (a_stopping_trainer_does_not_count, "under a running trainer|two trainers"),
        (the_last_start_is_not_kept, "not as wanted"),
        (conflicts_of_the_status_are_forced, "taken back|changes"),
        (the_history_keeps_only_the_newest, "the history changes"),
        (older_versions_replace_newer, "not as wanted|taken back|changes|deleted"),
        (what_was_found_is_not_stored, "not as wanted"),
        (nothing_is_swept, "not as wanted"),
        (the_cluster_is_never_released, "not as wanted"),
        (lost_parts_are_not_restored, "not as wanted"),
    )
}

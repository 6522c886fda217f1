"""Planted bugs: each replaces one piece of the operator, and names the symptom by which the machine finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from batchgrowth import names
from batchgrowth.contract import lead_time
from batchgrowth_operator.api import apply, observe
from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Store
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.children import dask_cluster
from batchgrowth_operator.children.dask_cluster import CREATE_PARTS, MissingParts, missing_parts
from batchgrowth_operator.job import reconcile as rec
from batchgrowth_operator.job import status
from batchgrowth_operator.loop import one_pass
from batchgrowth_operator.seen import situation
from batchgrowth_operator.seen.observed import Clock, Observed, annotations_of, is_owned_by, seconds_since
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """How the bug is planted, a regular expression for what the machine says of it, and where to look for it.

    `rules` are those that a machine needs to find the bug soon; without any it has all.
    """

    plant: Callable[[Patch], None]
    symptom: str
    rules: tuple[str, ...] = ()


def owner_is_not_asked(patch: Patch) -> None:
    patch.setattr(apply, "is_owned_by", lambda body, uid: True)
    patch.setattr(observe, "is_owned_by", lambda body, uid: is_owned_by(body, uid) or body["kind"] != "Deployment")


def unseen_children_are_not_looked_up(patch: Patch) -> None:
    def write(self: Writer, seen: Observed, manifest: Any) -> tuple[()]:
        self.store.update(self._writing().apply(manifest))
        return ()

    patch.setattr(Writer, "_apply", write)


def a_refused_status_is_no_failure(patch: Patch) -> None:
    real = Writer._write_status
    patch.setattr(Writer, "_write_status", lambda self, seen, decision: real(self, seen, decision) and None)


def suspend_is_ignored(patch: Patch) -> None:
    patch.setattr(Situation, "mode", property(lambda s: Mode.ACTIVE if s.outcome is None else Mode.OVER))


def maximum_is_ignored(patch: Patch) -> None:
    patch.setattr(lead_time, "requested", lambda current, *rest: current + 1)


def minimum_is_ignored(patch: Patch) -> None:
    real = rec.worker_deployment
    patch.setattr(
        rec, "worker_deployment", lambda s, template, replicas: real(s, template, replicas if s.update else 0)
    )


def drift_is_always_seen(patch: Patch) -> None:
    patch.setattr(rec, "matches_manifest", lambda found, manifest: False)


def drift_is_never_seen(patch: Patch) -> None:
    patch.setattr(rec, "matches_manifest", lambda found, manifest: True)


def a_request_for_parts_is_taken_back(patch: Patch) -> None:
    def missing(seen: Observed, clock: Clock) -> MissingParts | None:
        is_requested = ((seen.cluster or {}).get("status") or {}).get("phase") == CREATE_PARTS
        return None if is_requested else missing_parts(seen, clock)

    patch.setattr(dask_cluster, "missing_parts", missing)


def a_missing_annotation_recreates(patch: Patch) -> None:
    def differ(found: Any, manifest: Any) -> bool:
        return annotations_of(found).get(names.INPUTS) != annotations_of(manifest).get(names.INPUTS)

    patch.setattr(rec, "has_other_inputs", differ)


def time_to_live_counts_from_the_start(patch: Patch) -> None:
    def decide(seen: Observed, defaults: Any) -> Any:
        started = (seen.job.get("status") or {}).get("startTime")
        return rec.reconcile(replace(seen, ended_seconds=seconds_since(started, seen.now)), defaults)

    patch.setattr(one_pass, "reconcile", decide)


def a_jump_of_the_clock_counts(patch: Patch) -> None:
    real = Observer._age

    def age(self: Observer, key: Any, what: str, mark: Any, before: float = 0.0) -> float:
        return real(self, key, what, mark) if what == "report" else before

    patch.setattr(Observer, "_age", age)


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

    patch.setattr(one_pass, "reconcile", decide)


def the_lease_is_not_asked(patch: Patch) -> None:
    patch.setattr(Writer, "_writing", lambda self: self.api)


def a_running_trainer_does_not_count(patch: Patch) -> None:
    patch.setattr(situation, "is_running", lambda *_: False)


def the_last_start_is_not_kept(patch: Patch) -> None:
    real = rec.progress_config_map

    def config_map(s: Situation) -> Any:
        return real(replace(s, report=None, previous=s.previous.model_copy(update={"trainer_status": None})))

    patch.setattr(rec, "progress_config_map", config_map)


def the_history_keeps_only_the_newest(patch: Patch) -> None:
    real = status.next_history
    patch.setattr(status, "next_history", lambda s, w: real(s, w)[-1:])


def what_was_found_is_not_stored(patch: Patch) -> None:
    patch.setattr(Store, "refresh", lambda self, key, body: None)


def the_cluster_is_never_released(patch: Patch) -> None:
    def policy(s: Situation) -> ClusterPolicy:
        return ClusterPolicy.APPLY if s.mode is Mode.ACTIVE else ClusterPolicy.KEEP

    patch.setattr(Situation, "cluster_policy", property(policy))


def lost_parts_are_not_restored(patch: Patch) -> None:
    def missing(seen: Observed, clock: Clock) -> MissingParts | None:
        parts = missing_parts(seen, clock)
        return None if parts is None else parts._replace(are_requested=False)

    patch.setattr(dask_cluster, "missing_parts", missing)


ANOTHERS = "another's"
UNREST = "still writing"
EARLY = "have not passed"
NOT_WANTED = "not as wanted"
TWO_TRAINERS = "under a running trainer|two trainers"
PASSES = ("make_pass", "calm")
TAKEN = (*PASSES, "take_name", "delete_children", "nature_acts")
LAGS = (*PASSES, "deliver_one", "deliver_all", "break_watch", "delete_children", "nature_acts", "edit_children")
MUTANTS = {
    planted.__name__: Mutant(planted, symptom, rules)
    for planted, symptom, rules in (
        (owner_is_not_asked, f"{ANOTHERS}|a pass ended", TAKEN),
        (unseen_children_are_not_looked_up, ANOTHERS, TAKEN),
        (a_refused_status_is_no_failure, "after a refused write", (*PASSES, "refuse", "delete_children")),
        (suspend_is_ignored, "a suspended job holds nothing|a job that is suspended", (*PASSES, "suspend")),
        (maximum_is_ignored, "replicas, outside", ()),
        (minimum_is_ignored, "replicas, outside", ()),
        (drift_is_always_seen, UNREST, ()),
        (drift_is_never_seen, NOT_WANTED, (*PASSES, "edit_children", "scale")),
        (a_request_for_parts_is_taken_back, "taken back, unseen", ("calm", "delete_children")),
        (a_missing_annotation_recreates, "deleted without need", (*PASSES, "strip")),
        (time_to_live_counts_from_the_start, EARLY, (*PASSES, "train", "wait")),
        (a_jump_of_the_clock_counts, EARLY, ("calm", "clock_jumps")),
        (a_refused_spec_is_used, "not accepted|Accepted is true", (*PASSES, "break_spec")),
        (a_refused_spec_deletes_the_children, "deleted without need", (*PASSES, "break_spec")),
        (the_lease_is_not_asked, "another holds the lease", (*PASSES, "elect", "wait")),
        (a_running_trainer_does_not_count, TWO_TRAINERS, (*PASSES, "suspend", "change_image")),
        (
            the_last_start_is_not_kept,
            f"{NOT_WANTED}|the position is taken back",
            (*PASSES, "train", "trainer_fails", "delete_children"),
        ),
        (the_history_keeps_only_the_newest, "the history changes", ()),
        (what_was_found_is_not_stored, NOT_WANTED, LAGS),
        (the_cluster_is_never_released, NOT_WANTED, (*PASSES, "suspend", "train")),
        (lost_parts_are_not_restored, f"{NOT_WANTED}|{UNREST}", ("calm", "delete_children")),
    )
}

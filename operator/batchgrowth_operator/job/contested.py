"""Fights over a child: if another process keeps undoing a write, the operator repeats it less and less often.

An autoscaler or a webhook that also owns a field would otherwise cost one write per pass, endlessly; so would a process
that keeps deleting a child.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from batchgrowth import names

from batchgrowth_operator.children.drift import Path, drifted, shown
from batchgrowth_operator.seen.clock import Clock, backoff_seconds
from batchgrowth_operator.seen.observed import Manifest, Object, Observed, PutBack, Ref, annotations_of, ref_of

FREE_ROUNDS = 5
"""Times that a field is put back at once."""
LONGEST_WAIT_SECONDS = 300.0
"""Longest wait before a field that others keep changing is put back."""
CALM_SECONDS = 60.0
"""Shortest time without a change by others after which a fight is over."""
LOOK_AGAIN_SECONDS = 1.0
"""Time after a field was put back in which another pass sees whether that helped. A webhook that undoes a write in the
same moment causes no event."""
DELETED = "(deleted)"
"""Stands for a field where a whole child is put back."""
SUSPENDED = "spec.suspend"
ROUNDS_OF_A_SUSPENDER = 2
"""Times that another process has suspended the trainer's Job until the condition Training names it."""


@dataclass(frozen=True, slots=True)
class Contention:
    """The children that other processes changed lately, and the children that this pass does not restore yet."""

    put_backs: Mapping[Ref, PutBack]
    held: frozenset[Ref]

    @property
    def fights(self) -> dict[Ref, PutBack]:
        """Return the children that other processes keep changing, by kind and name."""
        return {ref: put_back for ref, put_back in sorted(self.put_backs.items()) if _is_fight(put_back)}


def contention(seen: Observed, manifests: Iterable[Manifest], clock: Clock) -> Contention:
    """Return the fights over the children that these manifests would change; a new manifest is never held back."""
    changes = {ref_of(manifest): manifest for manifest in manifests}
    put_backs = {}
    for ref, known in seen.put_backs.items():
        kept = _of_this_object(known, seen.children.get(ref))
        age = (clock.now - known.at).total_seconds()
        # A clock that was set back makes the operator forget. A fight lasts as long as its field is another's.
        if kept is not None and (0 <= age < _calm_seconds(kept) or (age >= 0 and _is_fight(kept) and ref in changes)):
            put_backs[ref] = kept

    held = set()
    for ref, manifest in changes.items():
        found = seen.children.get(ref)
        fields = [DELETED]
        if found is not None:
            fields = [shown(path) for path in drifted(found, manifest) if path[0] != "status"]
        # What is made for the first time, or was refused, nobody has deleted.
        if not fields or (found is None and (seen.failures or not seen.job.get("status"))):
            continue
        changed = put_backs.get(ref)
        desired = annotations_of(manifest)[names.MANIFEST]
        is_same = found is None or annotations_of(found).get(names.MANIFEST) == desired
        is_same = is_same or (changed is not None and changed.manifest == desired)
        is_fought_over = changed is not None and all(changed.rounds.get(field, 0) >= FREE_ROUNDS for field in fields)
        # Another manifest is applied at once: it comes from the job, and not from the fight.
        if changed is not None and is_same and is_fought_over and clock.within(changed.at, _wait_seconds(changed)):
            held.add(ref)
        else:
            put_backs[ref] = _put_back(changed, found, manifest, fields if is_same else [], clock)
            if found is not None and is_same:
                clock.wake_in(LOOK_AGAIN_SECONDS)

    for ref, known in put_backs.items():
        if _is_fight(known) and ref not in held:
            clock.within(known.at, _calm_seconds(known))  # then the fight is over
    return Contention(put_backs, frozenset(held))


def _of_this_object(known: PutBack, found: Object | None) -> PutBack | None:
    """Return what is known of the object; of an earlier object of that name, only that it was deleted."""
    if found is not None and _uid(found) == known.uid:
        return known
    rounds = {field: times for field, times in known.rounds.items() if field == DELETED}
    if not rounds:
        return None
    return replace(known, uid="" if found is None else _uid(found), rounds=rounds)


def _put_back(
    known: PutBack | None, found: Object | None, manifest: Manifest, fields: list[str], clock: Clock
) -> PutBack:
    """Return the record of these fields, which this pass restores."""
    rounds = dict(known.rounds) if known is not None else {}
    for field in fields:
        rounds[field] = rounds.get(field, 0) + 1
    manager = ""
    if found is not None:
        restored = [path for path in drifted(found, manifest) if shown(path) in fields]
        manager = next(filter(None, (_changed_by(found, path) for path in restored)), "")
    if not manager and known is not None:
        manager = known.manager
    return PutBack(
        uid="" if found is None else _uid(found),
        manifest=annotations_of(manifest)[names.MANIFEST],
        rounds=rounds,
        at=clock.now,
        manager=manager,
    )


def suspender(seen: Observed) -> str:
    """Return the sentences about another process that keeps the trainer's Job suspended; "" if none does."""
    ref = Ref("Job", names.trainer(seen.name))
    known = seen.put_backs.get(ref)
    is_held = seen.trainer is not None and bool(seen.trainer["spec"].get("suspend"))
    if not is_held or known is None or known.rounds.get(SUSPENDED, 0) < ROUNDS_OF_A_SUSPENDER:
        return ""
    who = known.manager or "A webhook or another controller"
    return (
        f"{who} keeps the Job {ref.name} suspended, so the trainer has no pod. Admit the Job there, or exempt objects "
        "with the label batchgrowth.dev/job."
    )


def _uid(found: Object) -> str:
    return str(found["metadata"].get("uid", ""))


def _is_fight(known: PutBack) -> bool:
    return max(known.rounds.values(), default=0) >= FREE_ROUNDS


def _wait_seconds(known: PutBack) -> float:
    """Return how long the operator leaves a contested field as another process set it."""
    return backoff_seconds(max(known.rounds.values()) - FREE_ROUNDS + 1, LONGEST_WAIT_SECONDS)


def _calm_seconds(known: PutBack) -> float:
    """Return how long nobody else may change the child until the operator forgets the fight."""
    if not _is_fight(known):
        return CALM_SECONDS
    return max(CALM_SECONDS, 2 * _wait_seconds(known))


def _changed_by(found: Object, path: Path) -> str:
    """Return the name of the other manager that owns the field, from managedFields; empty if no other owns it."""
    for entry in found["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.FIELD_MANAGER and _owns(entry.get("fieldsV1"), path):
            subresource = entry.get("subresource")
            if subresource:
                return f"{entry.get('manager')} ({subresource})"
            return str(entry.get("manager"))
    return ""


def _owns(fields: Mapping[str, object] | None, path: Path) -> bool:
    for step in path:
        # managedFields spell a step of a path as f:name, and that to an entry of a list as k:{"key":"value"}.
        key = f"f:{step}"
        if not isinstance(step, str):
            key = "k:" + json.dumps(dict([step]), separators=(",", ":"))
        inner = (fields or {}).get(key)
        if not isinstance(inner, Mapping):
            return False
        if not inner:
            return True  # a field that is owned as a whole
        fields = inner
    return True

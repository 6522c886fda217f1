"""Fights over a child: if another process keeps changing a field, the operator restores it less and less often.

An autoscaler or a webhook that also owns a field would otherwise cost one write per pass, endlessly.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    put_backs = {}
    for ref, known in seen.put_backs.items():
        found = seen.children.get(ref)
        age = (clock.now - known.at).total_seconds()
        # A clock that was set back makes the operator forget.
        if found is not None and _uid(found) == known.uid and 0 <= age < _calm_seconds(known):
            put_backs[ref] = known

    held = set()
    for manifest in manifests:
        ref = ref_of(manifest)
        found = seen.children.get(ref)
        paths = [] if found is None else [path for path in drifted(found, manifest) if path[0] != "status"]
        if found is None or not paths:
            continue
        changed = put_backs.get(ref)
        wanted = annotations_of(manifest)[names.MANIFEST]
        is_same = wanted in (annotations_of(found).get(names.MANIFEST), changed.manifest if changed else "")
        is_fought_over = changed is not None and all(
            changed.rounds.get(shown(path), 0) >= FREE_ROUNDS for path in paths
        )
        # Another manifest is applied at once: it comes from the job, and not from the fight.
        if changed is not None and is_same and is_fought_over and clock.within(changed.at, _wait_seconds(changed)):
            held.add(ref)
        else:
            put_backs[ref] = _put_back(changed, found, wanted, paths if is_same else [], clock)

    for ref, known in put_backs.items():
        if _is_fight(known) and ref not in held:
            clock.within(known.at, _calm_seconds(known))  # then the fight is over
    return Contention(put_backs, frozenset(held))


def _put_back(known: PutBack | None, found: Object, wanted: str, paths: list[Path], clock: Clock) -> PutBack:
    """Return the record of the fields at these paths, which this pass restores."""
    rounds = dict(known.rounds) if known is not None else {}
    manager = ""
    for path in paths:
        field = shown(path)
        rounds[field] = rounds.get(field, 0) + 1
        manager = manager or _changed_by(found, path)
    if not manager and known is not None:
        manager = known.manager
    return PutBack(uid=_uid(found), manifest=wanted, rounds=rounds, at=clock.now, manager=manager)


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

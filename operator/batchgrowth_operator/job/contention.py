"""Fights over a child: a field that others change again and again is put back less and less often.

An autoscaler or a webhook that owns a field as well would otherwise cost one write per pass, without an end.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from batchgrowth import names

from batchgrowth_operator.children.drift import Path, drifted, shown
from batchgrowth_operator.children.writes import Manifest
from batchgrowth_operator.seen.clock import backoff_seconds
from batchgrowth_operator.seen.observed import Object, Observed, PutBack, Ref, annotations_of, ref_of

FREE_ROUNDS = 5
"""Times that a field is put back at once."""
LONGEST_WAIT_SECONDS = 300.0
"""Longest wait before a field that others keep changing is put back."""
CALM_SECONDS = 60.0
"""Shortest time without a change by others after which a fight is over."""


@dataclass(frozen=True, slots=True)
class Contention:
    """The children that are not put back yet, and what this pass remembers of those that others changed lately.

    `due_seconds` is the time until the next of them is put back or its fight is over; None without any fight.
    """

    held: frozenset[Ref]
    put_backs: Mapping[Ref, PutBack]
    due_seconds: float | None

    @property
    def fights(self) -> dict[Ref, PutBack]:
        """The children that others change again and again, by kind and name."""
        return {ref: put_back for ref, put_back in sorted(self.put_backs.items()) if _is_fight(put_back)}


def contention(seen: Observed, manifests: Iterable[Manifest]) -> Contention:
    """The fights over the children that these manifests would change; a manifest that is new is never held."""
    put_backs = {
        ref: known for ref, known in seen.put_backs.items() if _still_counts(known, seen.children.get(ref), seen.now)
    }
    held = set()
    for manifest in manifests:
        ref = ref_of(manifest)
        found = seen.children.get(ref)
        paths = [] if found is None else [path for path in drifted(found, manifest) if path[0] != "status"]
        if found is None or not paths:
            continue
        known = put_backs.get(ref)
        wanted = annotations_of(manifest)[names.MANIFEST]
        is_same = wanted in (annotations_of(found).get(names.MANIFEST), known.manifest if known else "")
        if known is not None and is_same and _is_held(known, {shown(path) for path in paths}, seen.now):
            held.add(ref)
        else:
            put_backs[ref] = _next(known, found, wanted, paths if is_same else [], seen.now)
    dues = [_due_seconds(known, ref in held, seen.now) for ref, known in put_backs.items() if _is_fight(known)]
    return Contention(frozenset(held), put_backs, min(dues, default=None))


def _next(known: PutBack | None, found: Object, wanted: str, paths: list[Path], now: datetime) -> PutBack:
    rounds = dict(known.rounds) if known is not None else {}
    for field in map(shown, paths):
        rounds[field] = rounds.get(field, 0) + 1
    manager = next(filter(None, (_changed_by(found, path) for path in paths)), known.manager if known else "")
    return PutBack(uid=_uid(found), manifest=wanted, rounds=rounds, at=now, manager=manager)


def _uid(found: Object) -> str:
    return str(found["metadata"].get("uid", ""))


def contested_field(put_back: PutBack) -> str:
    """The field that was put back most often."""
    return max(put_back.rounds, key=lambda field: put_back.rounds[field])


def _is_fight(known: PutBack) -> bool:
    return max(known.rounds.values(), default=0) >= FREE_ROUNDS


def _wait_seconds(known: PutBack) -> float:
    return backoff_seconds(max(known.rounds.values()) - FREE_ROUNDS + 1, LONGEST_WAIT_SECONDS)


def _calm_seconds(known: PutBack) -> float:
    return max(CALM_SECONDS, 2 * _wait_seconds(known)) if _is_fight(known) else CALM_SECONDS


def _is_held(known: PutBack, fields: set[str], now: datetime) -> bool:
    """Whether all that changed is fought over, and the time to put it back has not come."""
    is_known = all(known.rounds.get(field, 0) >= FREE_ROUNDS for field in fields)
    return is_known and _age(known, now) < _wait_seconds(known)


def _still_counts(known: PutBack, found: Object | None, now: datetime) -> bool:
    """Whether the child is the same and was changed lately; a clock that was set back makes the operator forget."""
    return found is not None and _uid(found) == known.uid and 0 <= _age(known, now) < _calm_seconds(known)


def _due_seconds(known: PutBack, is_held: bool, now: datetime) -> float:
    return (_wait_seconds(known) if is_held else _calm_seconds(known)) - _age(known, now)


def _age(known: PutBack, now: datetime) -> float:
    return (now - known.at).total_seconds()


def _changed_by(found: Object, path: Path) -> str:
    """The other manager that owns the field, by the object's own record; empty if it names none."""
    for entry in found["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.FIELD_MANAGER and _owns(entry.get("fieldsV1"), path):
            subresource = entry.get("subresource")
            return f"{entry.get('manager')} ({subresource})" if subresource else str(entry.get("manager"))
    return ""


def _owns(fields: Mapping[str, object] | None, path: Path) -> bool:
    for key in map(_key, path):
        inner = (fields or {}).get(key)
        if not isinstance(inner, Mapping):
            return False
        if not inner:
            return True  # a field that is owned as a whole
        fields = inner
    return True


def _key(step: str | tuple[str, object]) -> str:
    """The step of a path as managedFields have it."""
    return f"f:{step}" if isinstance(step, str) else "k:" + json.dumps(dict([step]), separators=(",", ":"))

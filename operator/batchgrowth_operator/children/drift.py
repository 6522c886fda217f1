"""Drift: whether a child still matches its manifest, and whether another process keeps changing it.

What may not change in a job's own spec is in batchgrowth/manifest/crd.py.

A child that cannot be changed in place is recreated if its inputs changed (`has_other_inputs`). If a child differs
otherwise, job/reconcile.py puts it into `Writes.apply`, and api/apply.py writes it. If another process keeps undoing
that write, the operator repeats it less and less often: an autoscaler or a webhook that also owns a field would
otherwise cost one write per pass, endlessly; so would a process that keeps deleting a child.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.spec.pods import MERGE_KEYS

from batchgrowth_operator.seen.observed import (
    Clock,
    Manifest,
    Object,
    Observed,
    PutBack,
    Ref,
    annotations_of,
    backoff_seconds,
    mounted_claims,
)
from batchgrowth_operator.seen.situation import store_of

MOST_REMEMBERED = 2**15
"""Objects whose comparison is remembered: those of three thousand jobs."""

Path = tuple[str | tuple[str, Any], ...]
"""A field of an object: the names that lead to it, and for an entry of a list its key and the key's value."""

# The exponent is short, since some digests read as quantities, such as 1e75204913, whose value would take hours.
_QUANTITY = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][-+]?\d{1,2})|([numk]|[KMGTPE]i?)?)")
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(1000)} | {
    letter + binary: Fraction(base**power)
    for power, letter in enumerate("KMGTPE", start=1)
    for binary, base in (("i", 1024), ("", 1000))
}
_QUANTITIES = frozenset({"requests", "limits", "overhead", "sizeLimit", "divisor"})
"""Fields of pods that are quantities or maps of them. Elsewhere, as in an environment variable, 1 is not 1.0."""
_KEYS = MERGE_KEYS | {"ownerReferences": "uid"}
"""Lists to which others may add entries, and the key by which entries are matched."""
_EMPTY: tuple[Any, ...] = (None, "", False, 0, {}, [])
"""Values that the API server may leave out."""


def digest(value: Any) -> str:
    """Return twelve hexadecimal digits that change when the JSON value does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def matches_manifest(found: Object, manifest: Mapping[str, Any]) -> bool:
    """Return whether the child was made from this manifest and has not drifted from it.

    Each version of an object is compared once, so that a progress report, which changes one child, does not cost a
    comparison of all children.
    """
    metadata = found["metadata"]
    desired = manifest["metadata"]["annotations"][names.MANIFEST]
    if (metadata.get("annotations") or {}).get(names.MANIFEST) != desired:
        return False
    uid = metadata.get("uid")
    version = metadata.get("resourceVersion")
    if not (uid and version):
        return covers(found, manifest)
    known = _remembered(uid, version, digest(manifest))
    if not known:
        known.append(covers(found, manifest))
    return known[0]


@lru_cache(maxsize=MOST_REMEMBERED)
def _remembered(uid: str, version: str, manifest: str) -> list[bool]:  # noqa: ARG001
    """Return the list to which the caller adds the result of the comparison; empty before.

    `manifest` is the digest of all of the manifest. The annotation's digest leaves out what is added after it: the
    phase that is requested of a DaskCluster, and an existing Job's own template.
    """
    return []


def has_other_inputs(found: Object, manifest: Manifest) -> bool:
    """Return whether a DaskCluster or trainer's Job was made from outdated inputs and must be recreated.

    Both its annotation and its pods must say so, because others may edit the annotation and webhooks may rewrite
    the pods. Children of other kinds have no inputs and are changed in place.
    """
    desired: str | None = manifest["metadata"]["annotations"].get(names.INPUTS)
    if desired is None or annotations_of(found).get(names.INPUTS, desired) == desired:
        return False
    spec = found["spec"]
    template = spec.get("template") or spec["scheduler"]
    # The pod template names the digest if users added parts to the pod.
    told = annotations_of(template).get(names.INPUTS) if "metadata" in template else None
    if told:
        return told != desired
    pod = template["spec"]
    [first, *_] = pod.get("containers") or [{}]
    inputs = {
        "image": first.get("image"),
        "policy": first.get("imagePullPolicy"),
        "secrets": [secret["name"] for secret in pod.get("imagePullSecrets") or ()],
    }
    if "template" in spec:
        inputs["claim"] = next(iter(mounted_claims(found)), None)
        store = store_of(first)
        if store:
            inputs["store"] = store
    return digest(inputs) != desired


def covers(found: Any, desired: Any, path: Path = ()) -> bool:
    """Return whether `found` has every field of `desired`; fields added by the API server or others are ignored.

    Quantities of resources compare by value, since the API server normalizes them; a missing field equals an empty one.
    """
    return next(drifted(found, desired, path), None) is None


def drifted(found: Any, desired: Any, path: Path = ()) -> Iterator[Path]:
    """Yield each field of `desired` that is missing in `found` or has a different value there."""
    if isinstance(desired, Mapping):
        if found is None or isinstance(found, Mapping):
            for name, value in desired.items():
                yield from drifted((found or {}).get(name), value, (*path, name))
        else:
            yield path
    elif isinstance(desired, list):
        yield from _drifted_list(found or [], desired, path)
    elif found != desired and not (found in _EMPTY and desired in _EMPTY):
        amount = None if _QUANTITIES.isdisjoint(path[-2:]) else _quantity(found)
        if amount is None or amount != _quantity(desired):
            yield path


def _drifted_list(found: Any, desired: list[Any], path: Path) -> Iterator[Path]:
    """Yield the entries that differ if the list has a key to match them by; otherwise the whole list."""
    key = _KEYS.get(str(path[-1])) if path else None
    if not isinstance(found, list):
        yield path
    elif key is None or not all(isinstance(entry, Mapping) and key in entry for entry in desired):
        pairs = zip(found, desired, strict=False)
        if len(found) != len(desired) or not all(covers(one, other, path) for one, other in pairs):
            yield path
    else:
        by_key = {entry.get(key): entry for entry in found if isinstance(entry, Mapping)}
        for entry in desired:
            yield from drifted(by_key.get(entry[key]), entry, (*path, (key, entry[key])))


def is_smaller(one: str, other: str) -> bool:
    """Return whether one quantity is smaller than the other; false for text that is not a quantity."""
    first = _quantity(one)
    second = _quantity(other)
    return first is not None and second is not None and first < second


def _quantity(value: Any) -> Fraction | None:
    """Return the number that a resource quantity denotes; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Fraction(number + (exponent or "")) * _SUFFIXES.get(suffix, Fraction(1))


def shown(path: Path) -> str:
    """Return the field as people write it: spec.template.spec.containers[worker].image."""
    text = ""
    for step in path:
        if isinstance(step, tuple):
            text += f"[{step[1]}]"
        elif "." in step or "/" in step:
            text += f"[{step}]"
        else:
            text += f".{step}"
    return text.removeprefix(".")


# Fights over a child.

FREE_ROUNDS = 5
"""Times that a field is put back without a wait."""
LONGEST_WAIT_SECONDS = 300.0
"""Longest wait before a field that others keep changing is put back."""
CALM_SECONDS = 60.0
"""Shortest time without a change by others after which a fight is over."""
LOOK_AGAIN_SECONDS = 1.0
"""Time from putting back a field to the pass that sees whether that helped. A webhook that undoes a write in the same
moment causes no event."""
DELETED = "(deleted)"
"""Stands for the field if a whole child was deleted."""
SUSPENDED = "spec.suspend"
ROUNDS_OF_A_SUSPENDER = 2
"""Times that another process must suspend the trainer's Job before the condition Training names it."""


@dataclass(frozen=True, slots=True)
class Contention:
    """The children that other processes changed lately, and the children that this pass does not restore yet."""

    put_backs: Mapping[Ref, PutBack]
    held: frozenset[Ref]

    @property
    def fights(self) -> dict[Ref, PutBack]:
        """Return the children that other processes keep changing, by kind and name."""
        return {ref: put_back for ref, put_back in sorted(self.put_backs.items()) if _is_fight(put_back)}


def contention(seen: Observed, changes: Mapping[Ref, Manifest], clock: Clock) -> Contention:
    """Return the fights over the children that these manifests would change; a changed manifest is never held back."""
    put_backs = {}
    for ref, known in seen.put_backs.items():
        found = seen.children.get(ref)
        kept: PutBack | None = known
        if found is None or _uid(found) != known.uid:
            # Of an earlier object of that name, only its deletions count.
            deletions = {field: times for field, times in known.rounds.items() if field == DELETED}
            kept = None
            if deletions:
                kept = replace(known, uid="" if found is None else _uid(found), rounds=deletions)
        age = (clock.now - known.at).total_seconds()
        # A clock that was set back makes the operator forget. A fight lasts as long as the child still differs.
        if kept is not None and (0 <= age < _calm_seconds(kept) or (age >= 0 and _is_fight(kept) and ref in changes)):
            put_backs[ref] = kept

    held = set()
    for ref, manifest in changes.items():
        found = seen.children.get(ref)
        fields = [DELETED]
        if found is not None:
            fields = [shown(path) for path in drifted(found, manifest) if path[0] != "status"]
        # A child that is made for the first time, or was refused, was not deleted by anybody.
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
            clock.within(known.at, _calm_seconds(known))  # notes when the fight will be over
    return Contention(put_backs, frozenset(held))


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
    ref = Ref("Job", seen.names.trainer)
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
    """Return the time without a change by others after which the operator forgets the fight."""
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
        # managedFields spell a step of a path as f:name, and an entry of a list as k:{"key":"value"}.
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

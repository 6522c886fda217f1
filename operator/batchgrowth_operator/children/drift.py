"""Drift: whether a child still matches its manifest. (Whether its inputs changed: `has_other_inputs` in pods.py.)

If it does not, job/reconcile.py puts it into `Writes.apply`, and api/apply.py writes it.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.spec.pods import MERGE_KEYS

from batchgrowth_operator.seen.observed import Object, annotations_of

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
"""Lists to whose entries others may add theirs, and by what entries are matched."""
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
    if annotations_of(found).get(names.MANIFEST) != manifest["metadata"]["annotations"][names.MANIFEST]:
        return False
    uid = found["metadata"].get("uid")
    version = found["metadata"].get("resourceVersion")
    if not (uid and version):
        return covers(found, manifest)
    known = _remembered(uid, version, digest(manifest))
    if not known:
        known.append(covers(found, manifest))
    return known[0]


@lru_cache(maxsize=MOST_REMEMBERED)
def _remembered(uid: str, version: str, manifest: str) -> list[bool]:  # noqa: ARG001
    """Return the result of a comparison, in a list that is empty until the comparison was made.

    `manifest` is the digest of all of the manifest. The annotation's digest leaves out what is added after it: the
    phase that is requested of a DaskCluster, and an existing Job's own template.
    """
    return []


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

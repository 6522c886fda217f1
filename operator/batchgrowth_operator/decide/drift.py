"""Drift: whether a child still matches its manifest."""

import hashlib
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.spec.template import MERGE_KEYS

from batchgrowth_operator.seen.observed import Object, annotations_of

MOST_REMEMBERED = 2**15
"""Objects whose comparison is remembered: those of three thousand jobs."""

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][-+]?\d+)|(m|k|[KMGTPE]i?)?)")
_SUFFIXES = {"m": Fraction(1, 1000), "k": Fraction(1000)} | {
    letter + binary: Fraction(base**power)
    for power, letter in enumerate("KMGTPE", start=1)
    for binary, base in (("i", 1024), ("", 1000))
}


def digest(value: Any) -> str:
    """Twelve hexadecimal digits that change when the JSON value does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_in_place(found: Object, manifest: Mapping[str, Any]) -> bool:
    """Whether the child was made from this manifest and has not drifted from it.

    Two reads of one version of an object are the same, so each version is compared once: a report of progress, which
    changes one child, must not cost the comparison of all.
    """
    wanted = annotations_of(manifest)
    if annotations_of(found).get(names.MANIFEST) != wanted[names.MANIFEST]:
        return False
    metadata = found["metadata"]
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if not (uid and version):
        return covers(found, manifest)
    known = _remembered(uid, version, digest(manifest))
    if not known:
        known.append(covers(found, manifest))
    return known[0]


@lru_cache(maxsize=MOST_REMEMBERED)
def _remembered(uid: str, version: str, manifest: str) -> list[bool]:  # noqa: ARG001
    """The result of a comparison, empty before it was made; `manifest` is its digest, also of what no annotation names:
    the phase that is requested of a DaskCluster, or a Job's own template.
    """
    return []


def covers(found: Any, wanted: Any, key: str = "") -> bool:
    """Whether `found` has every field of `wanted`; fields added by the API server or others are ignored.

    Quantities compare by value, since the API server normalizes them; a missing field equals an empty one.
    """
    if isinstance(wanted, Mapping):
        other = found if isinstance(found, Mapping) else {}
        return (found is None or isinstance(found, Mapping)) and all(
            covers(other.get(name), value, name) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return _covers_list(found or [], wanted, key)
    if wanted in (None, "", False, 0) and found in (None, "", False, 0):
        return True
    return bool(found == wanted) or _same_quantity(found, wanted)


def _covers_list(found: Any, wanted: list[Any], key: str) -> bool:
    if not isinstance(found, list):
        return False
    field = MERGE_KEYS.get(key)
    if field is None or not all(isinstance(entry, Mapping) and field in entry for entry in wanted):
        return len(found) == len(wanted) and all(map(covers, found, wanted))
    by_key = {entry.get(field): entry for entry in found if isinstance(entry, Mapping)}
    return all(covers(by_key.get(entry[field]), entry) and entry[field] in by_key for entry in wanted)


def _same_quantity(one: Any, other: Any) -> bool:
    values = _quantity(one), _quantity(other)
    return None not in values and values[0] == values[1]


def _quantity(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Fraction(number + (exponent or "")) * _SUFFIXES.get(suffix, Fraction(1))

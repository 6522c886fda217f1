"""A user's pod template laid over the operator's template for workers."""

from typing import Any

from batchgrowth.spec.template import MERGE_KEYS, PROBE_HANDLERS, PROBES

OF_ONE_SOURCE = frozenset({"env", "volumes"})
"""Lists whose entries have a name and one source: where an overlay gives one, it takes the place of another."""


def merged(base: Any, overlay: Any, key: str = "") -> Any:
    """`overlay` laid over `base`: maps merge by their keys, lists as MERGE_KEYS says; all else is replaced.

    What is null in the overlay is left out, so that Kubernetes' default holds.
    A probe's handler replaces one of another kind.
    """
    if isinstance(base, dict) and isinstance(overlay, dict):
        if key in PROBES and PROBE_HANDLERS & overlay.keys():
            base = {name: value for name, value in base.items() if name not in PROBE_HANDLERS - overlay.keys()}
        both = {name: merged(base[name], value, name) for name, value in overlay.items() if name in base}
        return {name: value for name, value in (base | overlay | both).items() if value is not None}
    if isinstance(base, list) and isinstance(overlay, list) and key in MERGE_KEYS:
        field = MERGE_KEYS[key]
        over = {entry[field]: entry for entry in overlay}
        kept = [_entry(entry, over.pop(entry[field]), key) if entry[field] in over else entry for entry in base]
        return kept + list(over.values())
    return overlay


def _entry(base: Any, overlay: Any, key: str) -> Any:
    if key in OF_ONE_SOURCE and len(overlay) > 1:
        base = {name: value for name, value in base.items() if name in overlay}
    return merged(base, overlay)

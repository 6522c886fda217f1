"""Fields of a status that the CRD of the cluster does not declare, since it is older than the operator.

The API server then refuses the status as a whole, by server-side apply even if unknown fields may be dropped.
"""

import re
from typing import Any

_FIELD = re.compile(r"\.status\.([\w.]+(?:\[[^\]]*\][\w.]*)*): field not declared in schema")
_INDEX = re.compile(r"\[[^\]]*\]")


def declared(status: dict[str, Any], refusal: str) -> dict[str, Any] | None:
    """The status without the fields that the API server's refusal calls undeclared; None if it names none."""
    paths = [_INDEX.sub("", path).split(".") for path in _FIELD.findall(refusal)]
    kept: Any = status
    for path in paths:
        kept = _without(kept, path)
    return kept if paths else None


def _without(value: Any, path: list[str]) -> Any:
    """The value without the field at the path, in every entry of lists."""
    if isinstance(value, list):
        return [_without(entry, path) for entry in value]
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    if not rest:
        return {key: inner for key, inner in value.items() if key != name}
    return {**value, name: _without(value[name], rest)}

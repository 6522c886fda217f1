"""values.yaml as a tree: every key with its default, its sentence and its schema hint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

HINT = "@schema "


class ValuesError(ValueError):
    """A key of values.yaml lacks its sentence or type; the message names the key."""


@dataclass(frozen=True, slots=True)
class Value:
    """One key: `hint` is its JSON Schema; without one, `children` are the keys below it."""

    path: tuple[str, ...]
    default: Any
    sentence: str
    hint: dict[str, Any]
    children: tuple[Value, ...] = ()

    @property
    def key(self) -> str:
        """The last part of the path."""
        return self.path[-1]


def read_values(text: str) -> tuple[Value, ...]:
    """Return the top-level keys in file order. Raises ValuesError if a key has no sentence or type."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return _children(root, yaml.safe_load(text), text.splitlines(), ())


def _children(node: Any, defaults: Any, lines: list[str], path: tuple[str, ...]) -> tuple[Value, ...]:
    return tuple(_value(key, value, defaults[key.value], lines, (*path, key.value)) for key, value in node.value)


def _value(key: Any, node: Any, default: Any, lines: list[str], path: tuple[str, ...]) -> Value:
    sentence, hint = _comment(lines, key.start_mark.line)
    name = ".".join(path)
    if not sentence.endswith("."):
        raise ValuesError(f"{name}: no sentence above it; write one that ends with a full stop")
    if default in ({}, []) and not hint:
        raise ValuesError(f"{name}: {default} has no type; add a line '# {HINT}…'")
    has_keys = isinstance(default, dict) and not hint
    return Value(path, default, sentence, hint, _children(node, default, lines, path) if has_keys else ())


def _comment(lines: list[str], end: int) -> tuple[str, dict[str, Any]]:
    """Return the sentence and the hint in the comment right above a line."""
    begin = end
    while begin and lines[begin - 1].strip().startswith("#"):
        begin -= 1
    said = [line.strip().removeprefix("#").strip() for line in lines[begin:end]]
    hint: dict[str, Any] = {}
    for line in said:
        if line.startswith(HINT):
            hint |= yaml.safe_load(line.removeprefix(HINT))
    return " ".join(line for line in said if not line.startswith(HINT)), hint

"""What a person may have meant by a key that is unknown, or by a value that its field refuses, by the field's schema.

`learningRate.initial: 0,05` is "0.05", `entrypoint: my_model.py:workload` is my_model:workload, `optimizer: Adam` is
{type: Adam}. These are guesses: faults.py tries each, and writes "did you mean …?" with those that help.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from itertools import islice
from typing import Any
from unicodedata import normalize

from batchgrowth.choices import CHOICES
from batchgrowth.manifest.documents import KeyPath
from batchgrowth.manifest.scalars import FALSE, TRUE, ScalarTag, decimal_text, kind_of
from batchgrowth.schema import (
    DECIMAL,
    ENTRYPOINT,
    JOB_NAME,
    MOUNT_PATH,
    NAMESPACE,
    OBJECT_NAME,
    QUANTITY,
    STORAGE_SIZE,
    VOLUME_NAME,
    Schema,
)

LONGEST_GUESS = 253
"""The most characters of a text that is worth a guess."""
LIKE_A_CHOICE = 0.7
"""Likeness of a slip of the finger: GPU is no slip for CPU."""
SHORTEST_BEGINNING = 3
"""The fewest characters of a name's beginning that stand for the name: min for minimum."""
_WHOLE = re.compile(r"[-+]?\d{1,19}")


def meant(value: Any, text: str, node: Schema) -> Iterator[Any]:
    """Yield what may have been meant by a value: itself if its type fits. `text` is the value as it was written."""
    kind = node.get("type")
    if kind == "string" or "x-kubernetes-int-or-string" in node:
        yield from _texts(text, node)
    elif kind == "integer":
        yield from _whole_numbers(value, text)
    elif kind == "boolean":
        yield from _switches(value, text)
    elif kind == "array" and not isinstance(value, list):
        yield from ([each] for each in meant(value, text, node["items"]))
    elif kind == "object" and "properties" in node and not isinstance(value, dict | list):
        yield from _blocks(value, text, node)


def choice_with_example(path: KeyPath, name: str) -> dict[str, Any] | None:
    """Return the block at `path` that chooses an entry, with the entry's example settings; None if it is no choice."""
    for registry in CHOICES:
        *parents, chooser = registry.field_path.split(".")
        if path == ("spec", *parents) and name in registry and registry[name].block is not None:
            return {chooser: name, registry[name].block_name: dict(registry[name].example)}
    return None


def close_name(name: str, known: list[str], likeness: float) -> str | None:
    """Return the known name that is closest to a given one, in snake_case or in another case too; None if none is.

    `likeness` is how much of two names must be alike, from 0 to 1.
    """
    folded = {_folded(each): each for each in known}
    begun = [each for each in folded if len(name) >= SHORTEST_BEGINNING and each.startswith(_folded(name))]
    if len(begun) == 1:
        return folded[begun[0]]
    close = get_close_matches(_folded(name), folded, n=1, cutoff=likeness)
    if not close:
        return None
    return folded[close[0]]


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _texts(text: str, node: Schema) -> Iterator[str]:
    if len(text) > LONGEST_GUESS:
        return
    yield text
    if "enum" in node:
        close = close_name(text, [str(name) for name in node["enum"]], LIKE_A_CHOICE)
        if close is not None:
            yield close
        return
    usual = normalize("NFKC", text).strip()
    yield usual
    for mended in _MENDS.get(node.get("pattern", ""), _nothing_else)(usual):
        yield mended[: node["maxLength"]]


def _whole_numbers(value: Any, text: str) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, str):
        plain = text.replace(",", "").replace("_", "").replace(" ", "")
        if _WHOLE.fullmatch(plain):
            yield int(plain)


def _switches(value: Any, text: str) -> Iterator[bool]:
    if isinstance(value, bool):
        yield value
    elif text.strip() in TRUE:
        yield True
    elif text.strip() in FALSE:
        yield False


def _blocks(value: Any, text: str, node: Schema) -> Iterator[dict[str, Any]]:
    """Yield the block with the value in one of its fields, for each field; then with it in all required fields."""
    fields = node["properties"]
    scalars = {name: field for name, field in fields.items() if field.get("type") in ("string", "integer", "boolean")}
    for name, field in scalars.items():
        as_it_is = 1  # only names of choices are mended here: with more, too many fields would fit
        guesses = islice(meant(value, text, field), None if "enum" in field else as_it_is)
        yield from ({name: each} for each in guesses)
    required = node.get("required", ())
    if len(required) > 1 and scalars.keys() >= set(required):
        each = {name: next(meant(value, text, fields[name]), None) for name in required}
        if None not in each.values():
            yield each


# How texts are mended, by the pattern that they should have.


def _nothing_else(text: str) -> Iterator[str]:  # noqa: ARG001
    yield from ()


def _decimals(text: str) -> Iterator[str]:
    plain = text.replace(" ", "").replace("_", "")
    for spelling in (plain, plain.replace(",", ".")):
        try:
            number = Decimal(spelling.removesuffix("%"))
        except InvalidOperation:
            continue
        if spelling.endswith("%"):
            number = number.scaleb(-2)
        yield str(decimal_text(number))


def _entrypoints(text: str) -> Iterator[str]:
    """Yield the path of a file as the name of a module, and a dot before the function as a colon."""
    module, _, function = text.removeprefix("./").removesuffix("()").partition(":")
    module = module.removesuffix(".py").replace("/", ".").replace("\\", ".").replace("-", "_")
    function = function.strip().replace("-", "_")
    if function:
        yield f"{module.strip()}:{function}"
        return
    before, _, last = module.rpartition(".")
    if before and not text.endswith(".py"):
        yield f"{before}:{last}"
    yield f"{module}:workload"


def _names(text: str) -> Iterator[str]:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    yield name
    yield f"job-{name}"


def _amounts(text: str) -> Iterator[str]:
    plain = text.replace(" ", "").removesuffix("B").removesuffix("b")
    yield plain
    yield re.sub(r"[kmgtpe]i?$", lambda unit: unit[0].capitalize(), plain)


def _folders(text: str) -> Iterator[str]:
    yield "/" + re.sub(r"/+", "/", text).strip("/")


_MENDS: dict[str, Callable[[str], Iterator[str]]] = {
    DECIMAL: _decimals,
    ENTRYPOINT: _entrypoints,
    JOB_NAME: _names,
    MOUNT_PATH: _folders,
    NAMESPACE: _names,
    OBJECT_NAME: _names,
    QUANTITY: _amounts,
    STORAGE_SIZE: _amounts,
    VOLUME_NAME: _names,
}


def flow(value: Any) -> str:
    """Return a value as YAML's short form: {type: Adam}, with quotes around texts that YAML would read otherwise."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(each) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (
        kind_of(value) is not ScalarTag.text or not re.fullmatch(r"[\w./-][\w./:-]*", value)
    ):
        return f'"{value}"'
    return str(value)

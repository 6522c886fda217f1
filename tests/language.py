"""A corpus of manifests: each field of the CRD, spelled in each way that a person or a program might try.

The manifests are made from those of tests/corpus/good, one change at a time, and are the same in each run.
`batchgrowth check` and a real API server must answer alike: tests/corpus/accepted.txt names those that both accept.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from batchgrowth.cli import check_pods
from batchgrowth.errors import PlanError, SpecError
from batchgrowth.manifest.crd import openapi_schema
from batchgrowth.manifest.documents import read_document
from batchgrowth.manifest.pod_limits import PodSecurity
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import make_plan
from pydantic.alias_generators import to_snake

CORPUS = Path(__file__).parent / "corpus"
ACCEPTED = CORPUS / "accepted.txt"

Schema = dict[str, Any]
Path_ = tuple[str | int, ...]

DIGITS = "1" * 1000
HEXADECIMAL = "0x" + "f" * 5000

WRITTEN = {
    "null": "null", "tilde": "~", "nothing": "",
    "list": "[1]", "map": "{a: 1}", "empty-map": "{}", "empty-list": "[]",
    "true": "true", "yes": "yes", "y": "y", "off": "off", "quoted-true": '"true"',
    "word": "seven", "empty-text": '""', "unicode": '"größe"', "unicode-digit": '"٣"', "wide-digit": '"３"',
    "one": "1", "quoted-one": '"1"', "plus": "+1", "minus": "-1", "quoted-plus": '"+1"', "quoted-minus": '"-1"',
    "minus-zero": "-0", "whole-float": "1.0", "half": "0.5", "quoted-half": '"0.5"', "point-first": ".5",
    "quoted-point-first": '".5"', "point-last": "1.", "comma": '"0,5"',
    "exponent": "1e0", "small-exponent": "1e-3", "large-exponent": "1e30", "quoted-exponent": '"1e0"',
    "quoted-small-exponent": '"1e-3"', "capital-exponent": '"1E-3"', "signed-exponent": '"1e+0"',
    "long-exponent": '"1e-100"', "python-sum": '"0.30000000000000004"', "almost-one": '"0.99999999999999999999"',
    "space-before": '" 1"', "space-after": '"1 "', "space-only": '" "', "line-break": '"1\\n"',
    "hexadecimal": "0x1", "octal": "01", "new-octal": "0o1", "no-octal": "09", "binary": "0b1", "underscore": "0_1",
    "nan": ".nan", "infinity": ".inf", "quoted-nan": '"nan"', "minutes": "1:30", "date": "2026-01-01",
    "thousand-digits": DIGITS, "quoted-thousand-digits": f'"{DIGITS}"', "hexadecimal-5000": HEXADECIMAL,
    "twenty-digits": "11111111111111111111", "quoted-twenty-places": '"0.11111111111111111111"',
    "tagged": "!!str 1", "tagged-whole": '!!int "1"',
}  # fmt: skip
"""Name -> a value as YAML spells it."""

EVERYWHERE = (
    "null", "map", "word", "unicode", "one", "quoted-one", "plus", "exponent", "quoted-small-exponent", "space-before",
    "thousand-digits",
)  # fmt: skip
"""The spellings that each field gets; the first field of each kind gets all."""


class Raw(str):
    """A value that is written as it is."""

    __slots__ = ()


def written(tree: Any) -> str:
    """The tree as YAML in its flow style."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {written(each)}" for name, each in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(written, tree)) + "]"
    return json.dumps(tree)


@cache
def good() -> list[Any]:
    """The good manifests, the short ones first. Dates, which PyYAML would make of texts, stay texts."""
    trees = [read_document(path.read_bytes()).tree for path in sorted((CORPUS / "good").glob("*.yaml"))]
    return sorted((each for each in trees if "status" not in each), key=lambda tree: len(json.dumps(tree)))


@cache
def _schema() -> Schema:
    return openapi_schema()


def fields() -> list[Path_]:
    """Every field that a user writes; the entries of lists and maps are those of the first manifest that has some."""
    schema = _schema()["properties"]
    found: list[Path_] = [("apiVersion",), ("kind",), ("metadata",), ("metadata", "name"), ("spec",)]
    found += [("metadata", "labels"), ("metadata", "annotations")]
    return found + list(_below(schema["spec"], ("spec",)))


def _below(schema: Schema, path: Path_) -> Iterator[Path_]:
    for name, field in schema.get("properties", {}).items():
        yield (*path, name)
        yield from _below(field, (*path, name))
    if "items" in schema:
        yield (*path, 0)
        yield from _below(schema["items"], (*path, 0))
    if "additionalProperties" in schema:
        yield (*path, "*")


def base_with(path: Path_) -> tuple[Any, Path_]:
    """The shortest good manifest that has the field, and the path with the name of an entry in place of each star."""
    for tree in good():
        real = _real(tree, path)
        if real is not None:
            return tree, real
    raise LookupError(f"no manifest of tests/corpus/good has {path}")


def _real(tree: Any, path: Path_) -> Path_ | None:
    real: list[str | int] = []
    for part in path:
        if part == "*" and isinstance(tree, dict) and tree:
            part = next(iter(tree))
        if (isinstance(tree, dict) and part in tree) or (
            isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        ):
            tree = tree[part]
        else:
            return None
        real.append(part)
    return tuple(real)


def changed(tree: Any, path: Path_, change: Any) -> Any:
    """A copy of the tree in which `change` has made a new parent of the field out of a copy of the old one."""
    copy = list(tree) if isinstance(tree, list) else dict(tree)
    first, *rest = path
    if rest:
        copy[first] = changed(copy[first], tuple(rest), change)
        return copy
    return change(copy, first)


def _set(value: Any) -> Any:
    def change(parent: Any, name: str | int) -> Any:
        parent[name] = value
        return parent

    return change


def _without(parent: Any, name: str | int) -> Any:
    del parent[name]
    return parent


def _renamed(other: str) -> Any:
    def change(parent: Any, name: Any) -> Any:
        return {other if key == name else key: value for key, value in parent.items()}

    return change


def _with_brother(parent: Any, name: Any) -> Any:
    if isinstance(parent, dict):
        return {**parent, f"{name}s": 1}
    return [*parent, parent[0]]


def _kind(path: Path_) -> str:
    """What decides how values of a field are read: its type, its pattern, and whether it has bounds or names."""
    schema = _schema()
    for part in path:
        if isinstance(part, int):
            schema = schema["items"]
        else:
            schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
    return f"{schema.get('type')} {schema.get('pattern')} {'enum' in schema} {'properties' in schema}"


def value_at(tree: Any, path: Path_) -> Any:
    """The value of a field."""
    for part in path:
        tree = tree[part]
    return tree


UNKNOWN_TO_A_CRD = (
    # Keys of a map, which `check` and the operator refuse.
    "spec.pods.annotations.*:capitalized", "spec.pods.annotations.*:in-snake-case",
    # What Pod Security forbids depends on the installation.
    "spec.pods.securityContext.seLinuxOptions.role:", "spec.pods.securityContext.seLinuxOptions.type:",
    "spec.pods.securityContext.seLinuxOptions.user:", "spec.pods.securityContext.sysctls.0.name:",
)  # fmt: skip
"""What the beginning of a name shows that no schema can tell apart."""


@cache
def language() -> dict[str, str]:
    """The corpus: name -> manifest."""
    made: dict[str, str] = {}
    kinds: set[str] = set()
    for path in fields():
        tree, real = base_with(path)
        name = ".".join(map(str, path))
        kind = _kind(path)
        for how, change in _changes(real[-1], value_at(tree, real), is_first=kind not in kinds):
            if not f"{name}:{how}".startswith(UNKNOWN_TO_A_CRD):
                made[f"{name}:{how}"] = written(changed(tree, real, change))
        kinds.add(kind)
    return made


def _changes(name: str | int, value: Any, *, is_first: bool) -> Iterator[tuple[str, Any]]:
    """Every change of a field with this name and value; `is_first` if no other field of its kind came before."""
    for how in WRITTEN if is_first else EVERYWHERE:
        yield how, _set(Raw(WRITTEN[how]))
    yield "absent", _without
    yield "with-a-brother", _with_brother
    if isinstance(name, str):
        snake = to_snake(name)
        yield "in-snake-case", _renamed(snake if snake != name else name.upper())
        yield "capitalized", _renamed(name[:1].upper() + name[1:])
    if isinstance(value, str):
        for how, spelling in SPELLINGS.items() if is_first else ():
            yield how, _set(spelling(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield "as-text", _set(str(value))
        yield "as-float", _set(Raw(f"{value}.0"))
        yield "as-octal", _set(Raw(f"0o{value:o}"))
        yield "as-exponent", _set(Raw(f"{value}0e-1"))


SPELLINGS = {
    "spaced-after": lambda text: f"{text} ",
    "with-a-line-break": lambda text: f"{text}\n",
    "upper": str.upper,
    "unquoted": lambda text: Raw(text if text.isalnum() else json.dumps(text)),
    "accented": lambda text: f"{text}é",
    "with-an-underscore": lambda text: f"{text}_",
}


def accepts(manifest: str) -> bool:
    """Whether `batchgrowth check` accepts the manifest."""
    try:
        spec = read_manifest(manifest).spec
        check_pods(spec, PodSecurity.restricted)
        make_plan(spec)
    except (SpecError, PlanError):
        return False
    return True


def accepted() -> set[str]:
    """The names in tests/corpus/accepted.txt."""
    return set(ACCEPTED.read_text().splitlines())


if __name__ == "__main__":
    names = [name for name, manifest in language().items() if accepts(manifest)]
    ACCEPTED.write_text("\n".join(sorted(names)) + "\n")

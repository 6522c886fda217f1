"""Reads and writes YAML as Kubernetes reads it, keeps each value's text for messages, and looks up the schema.

YAML reads `no` as false, `010` as 8, and `0.05` as a float that is no longer 0.05. A document keeps both the value that
YAML reads and its text, so that a message can quote the text and guess what was meant.

Kubernetes reads YAML with a library of Go, which differs from PyYAML: `y` is true, `089` is 89, `0o17` is 15, `1e3` is
1000, and a date is text. It then writes JSON, in which 32.0 is 32, and reads that by the structural schema. A decimal
of the manifest is a text: `DECIMAL` in batchgrowth/schema.py says what it may look like.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import cache
from numbers import Integral, Real
from typing import Any

import yaml

from batchgrowth.errors import Fault, SpecError
from batchgrowth.schema import MOST_AFTER_THE_POINT, MOST_BEFORE_THE_POINT, Schema, structural_schema
from batchgrowth.spec import BatchGrowthJob

LEAST_WHOLE = -(2**63)
LARGEST_WHOLE = 2**63 - 1
"""The bounds of the whole numbers of Kubernetes' JSON; others are floats."""
LARGEST_UNSIGNED = 2**64 - 1
"""The largest whole number that Kubernetes' YAML knows; a larger one is a float if it is decimal, or else text."""
MOST_DIGITS = 400
"""The most characters of a number that is worth reading."""

NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
WHOLE = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)")
OLD_OCTAL = re.compile(r"0[0-7]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class ScalarTag(StrEnum):
    """YAML's tags of scalars."""

    nothing = "tag:yaml.org,2002:null"
    switch = "tag:yaml.org,2002:bool"
    whole = "tag:yaml.org,2002:int"
    float = "tag:yaml.org,2002:float"
    text = "tag:yaml.org,2002:str"
    merge = "tag:yaml.org,2002:merge"


class ManifestLoader(yaml.SafeLoader):
    """PyYAML's loader with Kubernetes' reading of plain scalars."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag for a node without one."""
        if kind is yaml.ScalarNode and implicit[0]:
            return str(kind_of(value))
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def scan_to_next_token(self) -> None:
        """Skip spaces, line breaks and comments, and tabs too except at the beginning of a block's line."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def scan_flow_scalar(self, style: str) -> Any:
        """Return the token of a text in quotes, with each pair of surrogates as the one character that JSON means."""
        token = super().scan_flow_scalar(style)
        token.value = token.value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return token


class ManifestDumper(yaml.SafeDumper):
    """PyYAML's dumper, which also puts texts in quotes that only Kubernetes reads as something else, such as 1e-3."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag that a reader gives the node if its tag is not written."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and implicit[0] and tag == ScalarTag.text:
            return str(kind_of(value))
        return tag


def as_yaml(document: Any) -> str:
    """Return a document as YAML from which `read_document` and Kubernetes read the same data."""
    text: str = yaml.dump(document, Dumper=ManifestDumper, sort_keys=False, allow_unicode=True)
    return text


def kind_of(text: str) -> ScalarTag:
    """Return the kind of a plain scalar: one without quotes and without a tag."""
    kind, _ = _read(text)
    return kind


def value_of(tag: str, text: str) -> Any:
    """Return the value of a scalar with a tag, as JSON has it. Raises ValueError if the tag does not fit the text."""
    if tag not in (ScalarTag.nothing, ScalarTag.switch, ScalarTag.whole, ScalarTag.float):
        return text  # dates are text, too
    kind, value = _read(text)
    if tag != kind and (tag, kind) != (ScalarTag.float, ScalarTag.whole):
        raise ValueError(f"{tag} does not fit {kind}")
    return value


def _read(text: str) -> tuple[ScalarTag, Any]:
    """Return the kind and the value of a plain scalar. A number too large for a float is text."""
    if text in NOTHING:
        return ScalarTag.nothing, None
    if text in TRUE | FALSE:
        return ScalarTag.switch, text in TRUE
    if text == "<<":
        return ScalarTag.merge, text
    if SPECIAL.fullmatch(text):
        return ScalarTag.float, float(text.replace(".", ""))
    plain = text
    if text[0] in "+-0123456789":
        plain = text.replace("_", "")  # underscores may group digits
    if len(plain) > MOST_DIGITS:  # int() refuses thousands of digits, and no float needs this many
        return ScalarTag.text, text
    if WHOLE.fullmatch(plain):
        number = _whole_number(plain)
        if LEAST_WHOLE <= number <= LARGEST_WHOLE:
            return ScalarTag.whole, number
        if number <= LARGEST_UNSIGNED and plain[0] not in "+-":
            return ScalarTag.whole, float(number)
    if FLOAT.fullmatch(plain) and math.isfinite(float(plain)):
        real = float(plain)
        if real.is_integer() and LEAST_WHOLE <= real <= LARGEST_WHOLE:
            return ScalarTag.float, int(real)  # the JSON that Kubernetes makes of it has 32 for 32.0
        return ScalarTag.float, real
    return ScalarTag.text, text


def _whole_number(plain: str) -> int:
    digits = plain.lstrip("+-")
    base = 0
    if OLD_OCTAL.fullmatch(digits):
        base = 8
    number = int(digits, base)
    if plain[0] == "-":
        return -number
    return number


# --- Numbers of Python, which a keyword may have in place of the manifest's ---


def plain_value(value: Any) -> Any:
    """Return a number or an array of NumPy, torch and the like as Python's own; anything else as it is."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return value


def whole_if_it_is(value: Any) -> Any:
    """Return a float without a fraction as a whole number, which it is in JSON; anything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def decimal_text(value: Any) -> Any:
    """Return a number as the manifest spells decimals, without rounding; anything else as it is."""
    number = value
    if isinstance(value, float):
        number = Decimal(float.__repr__(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        number = Decimal(value)
    if not isinstance(number, Decimal) or not number.is_finite():
        return value
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    before, _, after = text.removeprefix("-").partition(".")
    if len(before) <= MOST_BEFORE_THE_POINT and len(after) <= MOST_AFTER_THE_POINT:
        return text
    digits, _, exponent = f"{number:e}".partition("e")
    if "." in digits:
        digits = digits.rstrip("0").removesuffix(".")
    return f"{digits}e{exponent}"


# --- Documents: a tree of plain data with the text of each value ---

LARGEST_BYTES = 1_048_576
MOST_VALUES = 20_000
DEEPEST = 64
"""Bounds of a document: bytes, values with aliases written out, and levels."""
LONGEST_QUOTE = 60
"""The most characters of a value that a message quotes."""

KeyPath = tuple[str | int, ...]

KINDS = ("null", "bool", "int", "float", "str", "timestamp", "map", "seq")
TAGS = {f"tag:yaml.org,2002:{kind}" for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Document:
    """A document as plain data, the text of each scalar in it, and the faults found while reading."""

    tree: Any
    written: dict[KeyPath, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def read_document(text: str | bytes, source: str = "") -> Document:
    """Return the only YAML document in `text`. Raises SpecError if there are none or several, or if it is not YAML."""
    name = source or "manifest"
    nodes = _nodes(_decoded(text, name), name)
    if len(nodes) != 1:
        given = f"{len(nodes)} documents" if nodes else "empty"
        raise SpecError([Fault(name, given, "give one BatchGrowthJob in a file")])
    return build(nodes[0], name)


def build(root: yaml.Node, name: str) -> Document:
    """Return the document below a YAML node. Raises SpecError if it is too large or too deep."""
    builder = _Builder(name)
    tree = builder.value(root, ())
    return Document(tree, builder.written, builder.faults)


def _decoded(text: str | bytes, name: str) -> str:
    if len(text) > LARGEST_BYTES:
        raise SpecError([Fault(name, f"more than {LARGEST_BYTES} bytes", "give a file of at most 1 MiB")])
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([Fault(name, f"byte {error.start} is not UTF-8", "save the file as UTF-8")]) from error


def _nodes(text: str, name: str) -> list[yaml.Node]:
    """Return the documents that are not empty."""
    # Nodes rather than values: a value does not show how it was written, and a map does not show a key twice.
    try:
        found = list(yaml.compose_all(text, Loader=ManifestLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"{name} line {mark.line + 1}" if mark else name
        raise SpecError([Fault(line, f"not YAML ({error.problem})", "fix the line or the one before it")]) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise SpecError([Fault(name, f"not YAML ({reason})", "fix the file")]) from error
    return [node for node in found if node is not None and node.tag != "tag:yaml.org,2002:null"]


@dataclass(slots=True)
class _Builder:
    """Plain data made from YAML nodes, with the text of its scalars and the faults found on the way."""

    name: str
    written: dict[KeyPath, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    values: int = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        # An alias is counted each time it is followed, so a few lines of aliases of aliases cannot fill the memory.
        self.values += 1
        if self.values > MOST_VALUES or len(path) > DEEPEST:
            remedy = f"give at most {MOST_VALUES} values, aliases written out, and {DEEPEST} levels"
            raise SpecError([Fault(self.name, "too large or too deep", remedy)])
        if node.tag not in TAGS:
            self.fault(path, f"the YAML tag {printable(node.tag)}", "leave the tag out")
            return None
        if isinstance(node, yaml.MappingNode):
            return {key: self.value(child, (*path, key)) for key, child in self.entries(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode), "YAML has maps, lists and scalars"
        self.written[path] = node.value
        try:
            return value_of(node.tag, node.value)
        except ValueError:
            self.fault(path, f'"{printable(node.value)}" is not what its YAML tag says', "leave the tag out")
            return None

    def entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        seen = set()
        for key, child in node.value:
            text = key.value if isinstance(key, yaml.ScalarNode) else "[…]"
            if key.tag != "tag:yaml.org,2002:str":
                self.fault(path, f"the key {printable(text)} is not a string", "put it in quotes if it is a name")
            elif text in seen:
                self.fault((*path, text), "given twice", "give it once")
            else:
                seen.add(text)
                yield text, child

    def fault(self, path: KeyPath, given: str, remedy: str) -> None:
        self.faults.append(Fault(dotted(path) or self.name, given, remedy))


def dotted(path: KeyPath) -> str:
    """Return the path as a user spells it: spec.batch.growth.milestones.steps[0].epoch."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{printable(part)}"
    return text.removeprefix(".")


def printable(text: str) -> str:
    """Return the text cut to a line's length, without control characters, which could move a terminal's cursor."""
    if len(text) > LONGEST_QUOTE:
        text = text[:LONGEST_QUOTE] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- The structural schema of the whole manifest, and reading plain data by it as the API server does ---


@cache
def job_schema() -> Schema:
    """Return the structural schema of the whole manifest."""
    return structural_schema(BatchGrowthJob)


def schema_at(path: KeyPath) -> Schema:
    """Return the part of the schema that describes the value at a path of the manifest; empty if none does."""
    node = job_schema()
    for part in path:
        node = below(node, part)
    return node


def below(node: Schema, part: str | int) -> Schema:
    """Return the part of a schema that describes an entry of its list, or a field of its map; empty if none does."""
    if isinstance(part, int):
        found: Schema = node.get("items", {})
    else:
        found = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return found


def without_nulls(tree: Any, node: Schema) -> Any:
    """Return the data without fields that are null, if the schema knows them: null means that a field is absent.

    Null stays in lists, and in the parts of pods that the schema does not know.
    """
    if isinstance(tree, list):
        return [without_nulls(item, below(node, 0)) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for name, value in tree.items():
        known = name in node.get("properties", {}) or "additionalProperties" in node
        if value is not None or not known:
            kept[name] = without_nulls(value, below(node, name))
    return kept

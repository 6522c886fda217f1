"""Reads YAML as Kubernetes does, and keeps the text of each value, so that messages can quote it.

YAML reads `no` as false, `010` as 8, and `0.05` as a float that is no longer 0.05. A document keeps both the value that
YAML reads and its text; the types of the spec decide which one counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.scalars import ManifestLoader, value_of

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
    # Nodes rather than values: a value does not show how it was written, nor a map that a key was given twice.
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

"""The spec as keyword arguments of Python: in snake_case, with the structure and the checks of a manifest."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.documents import (
    Document,
    KeyPath,
    decimal_text,
    dotted,
    job_schema,
    plain_value,
    schema_at,
    whole_if_it_is,
)
from batchgrowth.manifest.faults import faults_of, validated
from batchgrowth.manifest.reading import Say, choices_in, leaves, nobody, replace_blocks
from batchgrowth.schema import DECIMAL, Schema
from batchgrowth.spec import API_VERSION, KIND, BatchGrowthJob

_CAMEL = re.compile(r"\b[a-z]+(?:[A-Z][a-z]*)+\b")


def job_of(
    name: str,
    spec: Mapping[str, Any],
    base: BatchGrowthJob | Mapping[str, Any] | None = None,
    say: Say = nobody,
) -> BatchGrowthJob:
    """Return the job of this name with the spec that the keywords give; missing fields are taken from `base`, a job or
    other keywords.

    Decimals may be numbers as well as strings: 0.05 stands for "0.05". Numbers may be those of NumPy or torch. `say`
    receives a line for each block of `base` that the choice of another type replaces. Raises SpecError with every
    fault; its paths are paths of keywords, such as `learning_rate.initial`.
    """
    tree: dict[str, Any] = {}
    if isinstance(base, Mapping):
        tree = _as_manifest(base, ("spec",))
    elif base is not None:
        tree = _without_empty(base.spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    given = {"spec": _as_manifest(spec, ("spec",))}
    whole = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": tree}
    _merge(whole, given)
    for choice in choices_in(given):
        replace_blocks(whole, choice, leaves(given), lambda line: say(_in_snake_case(line)))
    document = Document(whole)
    try:
        return validated(document.tree)
    except ValidationError as error:
        faults = []
        for fault in faults_of(error, document):
            path = fault.path.removeprefix("spec.").removeprefix("metadata.")
            faults.append(Fault(_in_snake_case(path), fault.given, _in_snake_case(fault.remedy)))
        raise SpecError(faults) from None


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree without empty blocks, since the empty block of a choice's entry would refuse another entry."""
    kept: dict[str, Any] = {}
    for key, value in tree.items():
        short = _without_empty(value) if isinstance(value, dict) else value
        if short != {}:
            kept[key] = short
    return kept


def _merge(tree: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _as_manifest(value: Any, path: KeyPath) -> Any:
    """Return the value as YAML would give it: the schema's own names in camelCase, lists, and decimals as strings."""
    schema = schema_at(path)
    if isinstance(value, Mapping):
        fields = schema.get("properties", {})
        in_snake_case = {to_snake(name): name for name in fields}  # to_camel does not make localSGD of local_sgd
        tree: dict[str, Any] = {}
        for key, item in value.items():
            name = str(key)
            if name not in fields:
                name = in_snake_case.get(name, name)
            if name in tree:
                where = _in_snake_case(dotted((*path, name)).removeprefix("spec."))
                raise SpecError([Fault(where, f"given twice, as {name} too", "give it once")])
            tree[name] = _as_manifest(item, (*path, name))
        return tree
    value = plain_value(value)
    if isinstance(value, list | tuple):
        return [_as_manifest(item, (*path, index)) for index, item in enumerate(value)]
    if schema.get("pattern") == DECIMAL:
        return decimal_text(value)
    if schema.get("type") == "integer":
        return whole_if_it_is(value)
    return value


def _in_snake_case(text: str) -> str:
    """Return the text with the names of fields as Python's keywords spell them."""
    return _CAMEL.sub(lambda found: to_snake(found[0]) if found[0] in _FIELDS else found[0], text)


def _names_in(schema: Schema) -> set[str]:
    names: set[str] = set()
    for name, part in schema.get("properties", {}).items():
        names |= {name, *_names_in(part)}
    if "items" in schema:
        names |= _names_in(schema["items"])
    return names


_FIELDS = _names_in(job_schema())
"""Every name of a field of the manifest."""

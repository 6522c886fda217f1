"""The spec as Python writes it: keyword arguments in snake_case, with the structure and the checks of a manifest."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake

from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.documents import Document, KeyPath
from batchgrowth.manifest.reading import faults_of, job_schema, schema_at
from batchgrowth.schema import DECIMAL, Schema
from batchgrowth.spec import API_VERSION, KIND, BatchGrowthJob

_CAMEL = re.compile(r"\b[a-z]+(?:[A-Z][a-z]*)+\b")


def job_of(name: str, spec: Mapping[str, Any], base: BatchGrowthJob | None = None) -> BatchGrowthJob:
    """The job of this name whose spec is given by keyword; what `base` sets and `spec` does not is taken from it.

    Decimals may be numbers as well as strings: .05 stands for "0.05". Raises SpecError with every fault; its paths are
    those of the keywords, such as `learning_rate.initial`.
    """
    tree: dict[str, Any] = {}
    if base is not None:
        tree = _without_empty(base.spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    _merge(tree, _as_manifest(spec, ("spec",)))
    document = Document({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": tree})
    try:
        return BatchGrowthJob.model_validate(document.tree)
    except ValidationError as error:
        raise SpecError([_in_snake_case(fault) for fault in faults_of(error, document)]) from None


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree without empty blocks: a choice adds that of its entry, which another choice would not have."""
    short = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in tree.items()}
    return {key: value for key, value in short.items() if value != {}}


def _merge(tree: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _as_manifest(value: Any, path: KeyPath) -> Any:
    """The value as YAML would give it: the schema's own names in camelCase, lists, and decimals as strings."""
    schema = schema_at(path)
    if isinstance(value, Mapping):
        named = {_key(key, schema): item for key, item in value.items()}
        return {key: _as_manifest(item, (*path, key)) for key, item in named.items()}
    if isinstance(value, list | tuple):
        return [_as_manifest(item, (*path, index)) for index, item in enumerate(value)]
    if schema.get("pattern") == DECIMAL and isinstance(value, int | float) and not isinstance(value, bool):
        return _decimal(value)
    return value


def _key(key: Any, schema: Schema) -> str:
    camel = to_camel(str(key))
    return camel if camel in schema.get("properties", {}) else str(key)


def _decimal(value: float) -> str:
    """The number as a decimal without an exponent: 1e-05 is "0.00001"."""
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _in_snake_case(fault: Fault) -> Fault:
    path = fault.path.removeprefix("spec.").removeprefix("metadata.")
    return Fault(_renamed(path), fault.given, _renamed(fault.remedy))


def _renamed(text: str) -> str:
    return _CAMEL.sub(lambda found: to_snake(found[0]) if found[0] in _FIELDS else found[0], text)


def _names_in(schema: Schema) -> set[str]:
    names: set[str] = set()
    for name, part in schema.get("properties", {}).items():
        names |= {name, *_names_in(part)}
    return names | (_names_in(schema["items"]) if "items" in schema else set())


_FIELDS = _names_in(job_schema())
"""Every name of a field of the manifest."""

"""Which part of a spec determines the weights: what is immutable once a job has started, and what a resume compares."""

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from batchgrowth.choices import INEXACT
from batchgrowth.looks import Looks
from batchgrowth.schema import DECIMAL, Schema, structural_schema
from batchgrowth.spec.job import JobSpec

MATHEMATICS = (
    "seed",
    "workload.entrypoint",
    "workload.arguments",
    "workload.examples",
    "epochs",
    "batch",
    "learningRate",
    "optimizer",
    "precision",
    "exchange.compression",
    "compile",
    "deterministic",
    "workers.threads",
    "evaluation.stopEarly",
    "initialWeights",
)
"""Paths below spec that are immutable once a job has started; manifest/crd.py makes transition rules of them.

Only `epochs` may grow: a longer training goes on if each update that is done would have been the same.
crd.py and `mathematics` add what is immutable for some jobs only, such as the settings of an inexact exchange.
"""
UNWRITTEN: dict[str, str | bool | None] = {
    "precision": "Float32",
    "exchange.compression": None,
    "compile": False,
    "deterministic": True,
    "evaluation.stopEarly": None,
    "initialWeights": None,
}
"""Defaults that stored jobs and checkpoints leave out: versions without the field would refuse them."""

_DEFAULT_LOOKS = Looks().model_dump(mode="json", by_alias=True, exclude_none=True)


def mathematics(spec: JobSpec) -> dict[str, object]:
    """Return the part of the spec that determines the weights, as plain JSON, with all defaults but UNWRITTEN.

    Two runs with the same mathematics on the same kind of processor end with the same weights, bit for bit, unless the
    job's `promise` is Nondeterministic.
    A checkpoint stores the mathematics, and a resume compares it field by field.
    """
    whole = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    part: dict[str, Any] = {}
    for path in MATHEMATICS:
        *parents, name = path.split(".")
        source = whole
        for parent in parents:
            source = source[parent]
        if name in source and source[name] != UNWRITTEN.get(path):
            into = part
            for parent in parents:
                into = into.setdefault(parent, {})
            into[name] = source[name]
    part["batch"]["shard"] = spec.shard  # written or not: a job that writes the default is the same
    if spec.initial_weights is not None:
        del part["initialWeights"]["path"]  # the digest says which weights they are, wherever they lie
    if spec.evaluation.stop_early is not None:
        part["evaluation"]["everyEpochs"] = spec.evaluation.every_epochs
    if spec.exchange.type in INEXACT:
        names = ("type", spec.exchange.entry.block_name)
        part["exchange"] = {name: whole["exchange"][name] for name in names if name in whole["exchange"]}
    return part


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """Return the differences between the mathematics of two jobs as text: "epochs: 30 there, 4 here".

    Decimals are compared by value, "0.001" as "1e-3", and looks that are not written as the default ones.
    """
    found = _differing(_with_looks(there), _with_looks(here), _spec_schema(), "")
    return "; ".join(f"{path}: {_short(was)} there, {_short(now)} here" for path, was, now in found)


def _with_looks(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mathematics with every default of batch.growth.looks."""
    growth = part.get("batch", {}).get("growth")
    if growth is None:
        return part
    looks = _DEFAULT_LOOKS | growth.get("looks", {})
    if "everyUpdates" not in looks:
        looks = {"everyEpochs": 1} | looks
    return {**part, "batch": {**part["batch"], "growth": {**growth, "looks": looks}}}


def _differing(there: Any, here: Any, node: Schema, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of each field that differs; two maps are compared field by field."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        fields = node.get("properties", {})
        for name in sorted(there.keys() | here.keys()):
            below = f"{path}.{name}" if path else name
            yield from _differing(there.get(name), here.get(name), fields.get(name, {}), below)
    elif _by_value(there, node) != _by_value(here, node):
        yield path, there, here


@cache
def _spec_schema() -> Schema:
    return structural_schema(JobSpec)


def _by_value(part: Any, node: Schema) -> Any:
    """Return a part of the mathematics with the values of its decimals in place of their texts."""
    if isinstance(part, Mapping):
        fields = node.get("properties", {})
        return {name: _by_value(value, fields.get(name, {})) for name, value in part.items()}
    if isinstance(part, list):
        return [_by_value(value, node.get("items", {})) for value in part]
    if node.get("pattern") == DECIMAL and isinstance(part, str) and re.fullmatch(DECIMAL, part):
        return Fraction(part)
    return part


def _short(value: object) -> str:
    text = json.dumps(value)
    if len(text) > 80:
        text = text[:77] + "…"
    return text

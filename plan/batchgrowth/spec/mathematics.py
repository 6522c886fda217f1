"""The part of a spec that determines the weights; everything else affects only speed."""

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

from batchgrowth.exchanges import INEXACT
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
)
"""Paths below spec that are immutable once a job has started; the CRD's transition rules are generated from them."""
UNWRITTEN: dict[str, str | bool | None] = {
    "precision": "Float32",
    "exchange.compression": None,
    "compile": False,
    "deterministic": True,
    "evaluation.stopEarly": None,
}
"""Defaults that are written to no stored job and no checkpoint: versions without the field would refuse them."""


def mathematics(spec: JobSpec) -> dict[str, object]:
    """The part of the spec that determines the weights, as plain JSON, with every default filled in.

    Two runs with the same mathematics on the same kind of processor end with the same weights, bit for bit.
    A checkpoint stores it, and a resume compares it field by field.
    """
    whole = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    part: dict[str, Any] = {}
    for path in MATHEMATICS:
        *parents, name = path.split(".")
        source = reduce(getitem, parents, whole)
        if name in source and source[name] != UNWRITTEN.get(path):
            reduce(lambda into, parent: into.setdefault(parent, {}), parents, part)[name] = source[name]
    part["batch"]["shard"] = spec.shard
    if spec.evaluation.stop_early is not None:
        part["evaluation"]["everyEpochs"] = spec.evaluation.every_epochs
    if spec.exchange.type in INEXACT:
        names = ("type", spec.exchange.entry.block_name)
        part["exchange"] = {name: whole["exchange"][name] for name in names if name in whole["exchange"]}
    return part


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """What differs between the mathematics of two jobs, in words: "epochs: 30 there, 4 here"; empty if nothing does."""
    names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    return "; ".join(f"{name}: {_short(there.get(name))} there, {_short(here.get(name))} here" for name in names)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"

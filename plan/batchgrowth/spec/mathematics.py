"""The part of a spec that determines the weights; everything else affects only speed."""

from typing import Any

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
    "workers.threads",
)
"""Paths below spec that are immutable once a job has started; the CRD's transition rules are generated from them."""


def mathematics(spec: JobSpec) -> dict[str, object]:
    """The part of the spec that determines the weights, as plain JSON, with every default filled in.

    Two runs with the same mathematics on the same kind of processor end with the same weights, bit for bit.
    A checkpoint stores it, and a resume compares it field by field.
    """
    whole = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    part: dict[str, Any] = {}
    for path in MATHEMATICS:
        *parents, name = path.split(".")
        source, target = whole, part
        for parent in parents:
            source, target = source[parent], target.setdefault(parent, {})
        target[name] = source[name]
    part["batch"]["shard"] = spec.shard
    return part

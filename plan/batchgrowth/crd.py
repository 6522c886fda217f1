"""The CustomResourceDefinition, made from the models of spec and status."""

from __future__ import annotations

from typing import Any

import yaml

from batchgrowth.schema.structural import Schema, structural_schema
from batchgrowth.spec import KIND, MATHEMATICS, JobSpec, Metadata
from batchgrowth.status import JobStatus

GROUP, VERSION = "batchgrowth.dev", "v1alpha1"
PLURAL, SINGULAR = "batchgrowthjobs", "batchgrowthjob"
IMMUTABLE = "the mathematics of a job is immutable once it has started; make a new job"
HEADER = "# Made by `batchgrowth crd` from plan/batchgrowth/spec and status.py; a test fails where they differ.\n"

COLUMNS = (
    ("Status", "string", ".status.phase", "The conditions in one word."),
    ("Batch", "integer", ".status.batch.current", "Batch size of the present stage."),
    ("Workers", "integer", ".status.workers.ready", "Workers that have joined."),
    ("Epoch", "string", ".status.trainerStatus.epoch", "Epochs done."),
    ("Loss", "string", ".status.trainerStatus.loss", "Training loss of the last report."),
    ("Progress", "integer", ".status.trainerStatus.progressPercentage", "Percent of the updates done."),
    ("ETA", "integer", ".status.trainerStatus.estimatedRemainingSeconds", "Seconds to the end."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was made."),
)


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": ["bgj"],
                "categories": ["batchgrowth"],
            },
            "versions": [_version()],
        },
    }


def crd_yaml() -> str:
    """The CustomResourceDefinition as the text of crds/batchgrowthjobs.yaml."""
    text: str = yaml.safe_dump(crd(), sort_keys=False, allow_unicode=True, width=120)
    return HEADER + text


def openapi_schema() -> Schema:
    """The structural schema of a whole job, with the rules that compare it with what it was."""
    name = structural_schema(Metadata)["properties"]["name"]
    name.pop("description")
    return {
        "description": "A training job whose batch grows by a plan, and whose workers follow the batch.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Always {GROUP}/{VERSION}.", "type": "string"},
            "kind": {"description": f"Always {KIND}.", "type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": structural_schema(JobSpec)
            | {"description": "What to train, how its batch grows, with how many workers."},
            "status": structural_schema(JobStatus),
        },
        "x-kubernetes-validations": [
            *(_immutable(path) for path in MATHEMATICS),
            _immutable("workers.examplesPerWorker", unless="has(self.spec.batch.shard)"),  # the default of batch.shard
        ],
    }


def _immutable(path: str, unless: str = "") -> dict[str, str]:
    """The rule that a field keeps its value once the job has started."""
    free = "!(has(oldSelf.status) && has(oldSelf.status.startTime))" + (f" || {unless}" if unless else "")
    return {
        "rule": f"{free} || self.spec.{path} == oldSelf.spec.{path}",
        "message": IMMUTABLE,
        "fieldPath": f".spec.{path}",
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": openapi_schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.workers.maximum",
                "statusReplicasPath": ".status.workers.ready",
                "labelSelectorPath": ".status.workers.selector",
            },
        },
        "selectableFields": [{"jsonPath": ".spec.suspend"}],
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text} for name, kind, path, text in COLUMNS
        ],
    }

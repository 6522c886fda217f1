"""The metadata of every child: namespace, labels, owner, and the digest of its manifest."""

from collections.abc import Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.drift import digest
from batchgrowth_operator.decide.situation import Situation


def child(
    s: Situation,
    api_version: str,
    kind: str,
    name: str,
    role: str,
    annotations: Mapping[str, str] | None = None,
    **parts: Any,
) -> Manifest:
    """A manifest in the job's namespace, owned by the job; `parts` are its fields beside the metadata."""
    manifest = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": s.seen.namespace,
            "labels": names.labels(s.seen.name, role),
            "ownerReferences": [_owner(s)],
            **({"annotations": annotations} if annotations else {}),
        },
        **parts,
    }
    manifest["metadata"]["annotations"] = {**(annotations or {}), names.MANIFEST: digest(manifest)}
    return manifest


def with_inputs(manifest: Manifest, inputs: Any) -> Manifest:
    """The manifest with the digest of the inputs whose change recreates the child."""
    manifest["metadata"]["annotations"][names.INPUTS] = digest(inputs)
    return manifest


def _owner(s: Situation) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": s.seen.name,
        "uid": s.seen.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }

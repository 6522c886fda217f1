"""The job's documents: its plan, its progress, its certificates."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from batchgrowth import names
from batchgrowth.manifest import VERSION, VERSION_ANNOTATION
from batchgrowth.spec.pods import OF_PODS

from batchgrowth_operator.decide.children.base import child
from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.situation import Situation
from batchgrowth_operator.seen.observed import Credentials


def plan_config_map(s: Situation) -> Manifest:
    """The ConfigMap from which the trainer reads the job and the plan that follows from its spec alone.

    It stays the same while decisions arrive: a trainer that starts compares it with the plan that it makes of the spec.
    """
    job = {
        "apiVersion": s.seen.job["apiVersion"],
        "kind": s.seen.job["kind"],
        "metadata": {
            "name": s.seen.name,
            "namespace": s.seen.namespace,
            "annotations": {VERSION_ANNOTATION: VERSION},
        },
        "spec": _spec(s),
    }
    data = {
        names.JOB_KEY: json.dumps(job, sort_keys=True, ensure_ascii=False),
        names.PLAN_KEY: json.dumps(s.undecided.to_json(), sort_keys=True),
    }
    return child(s, "v1", "ConfigMap", names.plan(s.seen.name), "plan", data=data)


def _spec(s: Situation) -> dict[str, Any]:
    """The spec for the trainer; with the name of its claim, since an older trainer does not know `volume.size`."""
    spec = {name: part for name, part in s.stored.short.items() if name not in OF_PODS}
    volume = s.spec.checkpoint.volume
    if volume is None or volume.size is None:
        return spec
    return spec | {"checkpoint": spec["checkpoint"] | {"volume": {"claimName": names.checkpoints(s.seen.name)}}}


def progress_config_map(s: Situation) -> Manifest:
    """The ConfigMap that the trainer writes its reports to; the operator leaves its data alone.

    If it is lost, the next trainer learns from the annotation how its start must be numbered to be newer.
    """
    known = s.report or s.previous.trainer_status
    annotations = {names.LAST_START: str(known.start)} if known and known.start else None
    return child(s, "v1", "ConfigMap", names.progress(s.seen.name), "progress", annotations)


def secrets(s: Situation, credentials: Credentials) -> Iterator[Manifest]:
    """The Secret with the authority's key, and the one with the certificates that pods mount; those that change."""
    owned = {names.authority(s.seen.name): credentials.authority, names.tls(s.seen.name): credentials.tls}
    for name, pem in owned.items():
        if pem:
            data = {key: base64.b64encode(text.encode()).decode() for key, text in sorted(pem.items())}
            yield child(s, "v1", "Secret", name, "tls", type="Opaque", data=data)

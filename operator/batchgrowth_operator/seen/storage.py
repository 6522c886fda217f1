"""Where a job's checkpoints are kept: at the place in its spec, or else at the operator's default.

A trainer that exists keeps its storage, so a changed default affects only jobs that have no trainer yet.
"""

from dataclasses import dataclass

from batchgrowth import names
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.clock import Clock
from batchgrowth_operator.seen.observed import CLAIM, Object, Observed, mounted_claims
from batchgrowth_operator.seen.trainer_pods import is_running
from batchgrowth_operator.settings import Defaults

VOLUME = "checkpoints"
"""The trainer's volume with its checkpoints."""
STORE_VARIABLE = "BATCHGROWTH_CHECKPOINT_URI"
"""The trainer's environment variable with the URI of the object store that keeps its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage that outlives the trainer's pod."""

    claim: str = ""
    """The claim that the trainer mounts; empty if there is none."""
    size: str = ""
    """The size that the operator's own claim is to hold; empty if there is none."""
    storage_class: str = ""
    is_kept: bool = True
    is_default: bool = False
    """Whether the spec names no place."""
    is_awaited: bool = False
    """Whether the spec names a place for the next trainer: the one that runs has none, and would lose its training by
    moving there."""


NONE = Storage(is_kept=False)


def storage_of(spec: JobSpec, seen: Observed, defaults: Defaults, clock: Clock) -> Storage:
    """Return where the job's checkpoints are kept."""
    own = names.checkpoints(seen.name)
    if spec.checkpoint.is_kept and seen.trainer is not None:
        pod = seen.trainer["spec"]["template"]["spec"]
        claims = [v for v in pod.get("volumes") or () if v["name"] == VOLUME and "persistentVolumeClaim" in v]
        keeps = claims or any(store_of(container) for container in pod["containers"])
        if not keeps and is_running(seen, kept=False, clock=clock):
            return Storage(is_kept=False, is_awaited=True)
    if spec.checkpoint.uri is not None:
        return Storage()
    volume = spec.checkpoint.volume
    if volume is not None and volume.claim_name is not None:
        return Storage(claim=volume.claim_name)
    if volume is not None:
        return Storage(claim=own, size=volume.size or "", storage_class=volume.storage_class_name or "")
    if seen.trainer is not None and own not in mounted_claims(seen.trainer):
        return NONE
    size = size_of(seen.child(CLAIM, own)) or defaults.checkpoint_size
    if not size:
        return NONE
    return Storage(claim=own, size=size, is_default=True)


def store_of(container: Object) -> list[str | None]:
    """Return the object store that this trainer container uses, and its Secret; empty if there is none."""
    uris = [entry.get("value") for entry in container.get("env") or () if entry["name"] == STORE_VARIABLE]
    if not uris:
        return []
    secrets = [source["secretRef"]["name"] for source in container.get("envFrom") or () if "secretRef" in source]
    return [uris[0], next(iter(secrets), None)]


def size_of(claim: Object | None) -> str:
    """Return the size that the claim asks for; empty without a claim."""
    requests = (((claim or {}).get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get("storage", ""))


def class_of(claim: Object | None) -> str:
    """Return the class of the claim; empty without a claim or if it has none yet."""
    return ((claim or {}).get("spec") or {}).get("storageClassName") or ""

"""Where a job's checkpoints are kept, by its spec, or without a place in the spec by the operator's default.

The storage of a trainer that exists stands: another default changes no job that has one.
"""

from dataclasses import dataclass, replace

from batchgrowth import names
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.observed import CLAIM, Object, Observed, mounted_claims
from batchgrowth_operator.seen.outcome import is_running
from batchgrowth_operator.settings import Defaults

VOLUME = "checkpoints"
"""The trainer's volume with its checkpoints."""
STORE_VARIABLE = "BATCHGROWTH_CHECKPOINT_URI"
"""The trainer's environment variable with the URI of the object store that keeps its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage that outlives the trainer's pod.

    `claim` is the name of the claim that the trainer mounts, and `size` what the operator's own is to hold; both are
    empty if there is none. `is_default` says that the spec names no place, and `is_awaited` that it names one for the
    next trainer: the one that runs has none, and would lose its training by moving there.
    """

    claim: str = ""
    size: str = ""
    storage_class: str = ""
    is_kept: bool = True
    is_default: bool = False
    is_awaited: bool = False


NONE = Storage(is_kept=False)


def storage_of(spec: JobSpec, seen: Observed, defaults: Defaults) -> Storage:
    """The storage of the job."""
    is_awaited = spec.checkpoint.is_kept and seen.trainer is not None and not _keeps(seen.trainer)
    if is_awaited and is_running(seen, kept=False):
        return replace(NONE, is_awaited=True)
    volume, own = spec.checkpoint.volume, names.checkpoints(seen.name)
    if spec.checkpoint.uri is not None:
        return Storage()
    if volume is not None and volume.claim_name is not None:
        return Storage(claim=volume.claim_name)
    if volume is not None:
        return Storage(claim=own, size=volume.size or "", storage_class=volume.storage_class_name or "")
    if seen.trainer is not None and own not in mounted_claims(seen.trainer):
        return NONE
    size = size_of(seen.child(CLAIM, own)) or defaults.checkpoint_size
    return Storage(claim=own, size=size, is_default=True) if size else NONE


def store_of(container: Object) -> list[str | None]:
    """The object store that this container of a trainer uses, and the Secret for it; empty if there is none."""
    uris = [entry.get("value") for entry in container.get("env") or () if entry["name"] == STORE_VARIABLE]
    secrets = [source["secretRef"]["name"] for source in container.get("envFrom") or () if "secretRef" in source]
    return [uris[0], next(iter(secrets), None)] if uris else []


def _keeps(trainer: Object) -> bool:
    """Whether the checkpoints of that trainer's Job outlive its pods."""
    pod = trainer["spec"]["template"]["spec"]
    claimed = (v for v in pod.get("volumes") or () if v["name"] == VOLUME and "persistentVolumeClaim" in v)
    return any(claimed) or any(map(store_of, pod["containers"]))


def size_of(claim: Object | None) -> str:
    """The size that the claim asks for; empty without a claim."""
    requests = (((claim or {}).get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get("storage", ""))


def class_of(claim: Object | None) -> str:
    """The class of the claim; empty if it has none yet, or without a claim."""
    return ((claim or {}).get("spec") or {}).get("storageClassName") or ""

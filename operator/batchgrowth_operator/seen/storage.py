"""Where a job's checkpoints are kept: at the place in its spec, or else at the operator's default.

A trainer that exists keeps its storage, so a changed default affects only jobs that have no trainer yet.
"""

from dataclasses import dataclass

from batchgrowth import names
from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.clock import Clock
from batchgrowth_operator.seen.observed import CLAIM, Object, Observed
from batchgrowth_operator.seen.trainer_pods import is_running
from batchgrowth_operator.settings import Defaults

VOLUME = "checkpoints"
"""The trainer's volume with its checkpoints."""
STORE_VARIABLE = "BATCHGROWTH_CHECKPOINT_URI"
"""The trainer's environment variable with the URI of the object store that keeps its checkpoints."""

CA_VARIABLE = "BATCHGROWTH_CHECKPOINT_CA"
"""The trainer's environment variable with the file of the CAs that it trusts for that store."""
CA_FOLDER = "/etc/batchgrowth/store-ca"
"""The folder of that file, whose name is that of the ConfigMap, if the spec names one."""


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
    has_none = seen.trainer is not None and not _keeps_state(seen.trainer)
    if spec.checkpoint.is_kept and has_none and is_running(seen, kept=False, clock=clock):
        return Storage(is_kept=False, is_awaited=True)
    if spec.checkpoint.uri is not None:
        return Storage()
    volume = spec.checkpoint.volume
    if volume is not None and volume.claim_name is not None:
        return Storage(claim=volume.claim_name)
    if volume is not None:
        return Storage(claim=own, size=volume.size or "", storage_class=volume.storage_class_name or "")
    if has_none:
        return NONE
    size = size_of(seen.child(CLAIM, own)) or defaults.checkpoint_size
    if not size:
        return NONE
    return Storage(claim=own, size=size, is_default=True)


def _keeps_state(job: Object) -> bool:
    """Return whether the pods of that trainer's Job keep their checkpoints in a claim or an object store."""
    pod = job["spec"]["template"]["spec"]
    claims = [v for v in pod.get("volumes") or () if v["name"] == VOLUME and "persistentVolumeClaim" in v]
    return bool(claims) or any(store_of(container) for container in pod["containers"])


def store_of(container: Object) -> list[str | None]:
    """Return the object store that this trainer container uses, its Secret, and the ConfigMap with its CAs if the spec
    names one; empty if there is no store.
    """
    variables = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
    if STORE_VARIABLE not in variables:
        return []
    secrets = [source["secretRef"]["name"] for source in container.get("envFrom") or () if "secretRef" in source]
    store = [variables[STORE_VARIABLE], next(iter(secrets), None)]
    folder, _, file = str(variables.get(CA_VARIABLE)).rpartition("/")
    return [*store, file.removesuffix(".crt")] if folder == CA_FOLDER else store


def size_of(claim: Object | None) -> str:
    """Return the size that the claim asks for; empty without a claim."""
    requests = (((claim or {}).get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get("storage", ""))


def class_of(claim: Object | None) -> str:
    """Return the class of the claim; empty without a claim or if it has none yet."""
    return ((claim or {}).get("spec") or {}).get("storageClassName") or ""

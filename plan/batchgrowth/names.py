"""The names, labels, annotations and keys of a job's children, each defined once; the names follow from the job's."""

from dataclasses import dataclass
from functools import lru_cache

MANAGER = "batchgrowth"
FIELD_MANAGER = "batchgrowth-operator"
JOB_LABEL = "batchgrowth.dev/job"
ROLE_LABEL = "batchgrowth.dev/role"
MANIFEST = "batchgrowth.dev/manifest"
"""Annotation: the digest of the manifest that was last applied to a child."""
INPUTS = "batchgrowth.dev/inputs"
"""Annotation: the digest of the inputs whose change recreates an immutable child."""
RETRIED = "batchgrowth.dev/retried"
"""Annotation: the time of the last retry. A change of it makes Kubernetes retry refused pods at once."""
PARTS_MISSING = "batchgrowth.dev/parts-missing-since"
"""Annotation: since when a part of the scheduler has been missing."""
LAST_START = "batchgrowth.dev/last-start"
"""Annotation: the number of the trainer's last start that the operator knows. The next start has a larger one."""
RESTARTS_BEFORE = "batchgrowth.dev/restarts-before"
"""Annotation: the number of restarts of the trainer before its Job was made."""
EPOCHS = "batchgrowth.dev/epochs"
"""Annotation of the trainer's pods: the spec.epochs for which their Job was made."""
DEFAULT_IMAGE = "batchgrowth.dev/default-image"
"""Annotation of a child whose image is spec.image: the image that it gets if spec.image goes away."""
CODE_LABEL = "batchgrowth.dev/code-of"
"""Label of a ConfigMap with code: the name of the job for which the code was packed."""
JOB_KEY = "job.json"
PLAN_KEY = "plan.json"
START_KEY = "start"
"""Key of the progress ConfigMap: the number of the trainer's newest start, which alone may report."""
PROGRESS_KEY = "progress.json"
MOST_REMEMBERED = 2**12
"""The most jobs whose names, and the references made of them, are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one job's children."""

    plan: str
    """The ConfigMap that holds the plan under PLAN_KEY and the job under JOB_KEY."""
    progress: str
    """The ConfigMap to which the trainer writes its progress, under PROGRESS_KEY; the Role and the RoleBinding that
    permit the trainer to patch only this ConfigMap have its name."""
    checkpoints: str
    """The PersistentVolumeClaim that the operator makes for the job's checkpoints."""
    trainer: str
    """The Job whose pod drives the training, and its service account."""
    workers: str
    """The Deployment of all the worker pods."""
    cluster: str
    """The DaskCluster, which has the job's own name, so that users find it by KubeCluster.from_name."""
    scheduler: str
    """The Service and the Deployment that the Dask operator creates for the scheduler."""
    authority: str
    """The Secret with the key of the job's certificate authority, which no pod mounts."""
    tls: str
    """The Secret with the TLS certificate of scheduler, workers and trainer, and the authorities they trust."""
    network_policy: str
    """The NetworkPolicy around the job's pods."""


@lru_cache(maxsize=MOST_REMEMBERED)  # a pass of a job asks for them dozens of times
def of(job: str) -> Names:
    """Return the names of the children of the job with that name."""
    return Names(
        plan=f"{job}-plan",
        progress=f"{job}-progress",
        checkpoints=f"{job}-checkpoints",
        trainer=f"{job}-trainer",
        workers=f"{job}-workers",
        cluster=job,
        scheduler=f"{job}-scheduler",
        authority=f"{job}-authority",
        tls=f"{job}-tls",
        network_policy=job,
    )


def code(job: str, digest: str) -> str:
    """Return the name of the ConfigMap that `batchgrowth submit` makes for code with that digest."""
    return f"{job}-code-{digest}"


def labels(job: str, role: str) -> dict[str, str]:
    """Return the labels of a child: its job and its role."""
    return {"app.kubernetes.io/managed-by": MANAGER, JOB_LABEL: job, ROLE_LABEL: role}


def selector(job: str, role: str | None = None) -> str:
    """Return the label selector for all children of a job, or for its children of one role."""
    if role is None:
        return f"{JOB_LABEL}={job}"
    return f"{JOB_LABEL}={job},{ROLE_LABEL}={role}"

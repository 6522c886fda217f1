"""From a job's name to the names, labels and keys of its children; each is defined once."""

MANAGER = "batchgrowth"
FIELD_MANAGER = "batchgrowth-operator"
JOB_LABEL = "batchgrowth.dev/job"
ROLE_LABEL = "batchgrowth.dev/role"
MANIFEST = "batchgrowth.dev/manifest"
"""Annotation with the digest of the manifest that was last applied to a child."""
INPUTS = "batchgrowth.dev/inputs"
"""Annotation with the digest of the inputs whose change recreates an immutable child."""
RETRIED = "batchgrowth.dev/retried"
"""Annotation with the time of the last retry; its change makes Kubernetes retry refused pods at once."""
PARTS_MISSING = "batchgrowth.dev/parts-missing-since"
"""Annotation with the time since which a part of the scheduler is missing."""
LAST_START = "batchgrowth.dev/last-start"
"""Annotation with the number of the trainer's last start that the operator knows; the next start has a larger one."""
RESTARTS_BEFORE = "batchgrowth.dev/restarts-before"
"""Annotation with the number of restarts of the trainer before its Job was made."""
CODE_LABEL = "batchgrowth.dev/code-of"
"""Label of a ConfigMap with code, with the name of the job for which it was packed."""
JOB_KEY = "job.json"
PLAN_KEY = "plan.json"
START_KEY = "start"
"""Key of the progress ConfigMap with the number of the trainer's newest start, which alone may report."""
PROGRESS_KEY = "progress.json"


def plan(job: str) -> str:
    """The ConfigMap that holds the plan under PLAN_KEY and the job under JOB_KEY."""
    return f"{job}-plan"


def progress(job: str) -> str:
    """The ConfigMap to which the trainer writes its progress, under PROGRESS_KEY."""
    return f"{job}-progress"


def checkpoints(job: str) -> str:
    """The PersistentVolumeClaim that the operator makes for the job's checkpoints."""
    return f"{job}-checkpoints"


def progress_role(job: str) -> str:
    """The Role and RoleBinding that permit the trainer to patch that one ConfigMap."""
    return progress(job)


def trainer(job: str) -> str:
    """The Job whose pod drives the training, and its service account."""
    return f"{job}-trainer"


def workers(job: str) -> str:
    """The Deployment of all the worker pods."""
    return f"{job}-workers"


def cluster(job: str) -> str:
    """The DaskCluster, with the job's own name, so that users find it by KubeCluster.from_name."""
    return job


def scheduler(job: str) -> str:
    """The Service that the Dask operator creates for the scheduler."""
    return f"{cluster(job)}-scheduler"


def authority(job: str) -> str:
    """The Secret with the key of the job's certificate authority, which no pod mounts."""
    return f"{job}-authority"


def tls(job: str) -> str:
    """The Secret with the TLS certificate that scheduler, workers and trainer share, and the authorities they trust."""
    return f"{job}-tls"


def code(job: str, digest: str) -> str:
    """The ConfigMap that `batchgrowth submit` makes of code with that digest."""
    return f"{job}-code-{digest}"


def network_policy(job: str) -> str:
    """The NetworkPolicy around the job's pods."""
    return job


def labels(job: str, role: str) -> dict[str, str]:
    """The labels of a child: its job and its role."""
    return {"app.kubernetes.io/managed-by": MANAGER, JOB_LABEL: job, ROLE_LABEL: role}


def selector(job: str, role: str | None = None) -> str:
    """The label selector for all children of a job, or for those of one role."""
    return f"{JOB_LABEL}={job}" + (f",{ROLE_LABEL}={role}" if role else "")

"""The names, labels and keys of a job's children, which follow from the job's name; each is defined once."""

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


def plan(job: str) -> str:
    """Name the ConfigMap that holds the plan under PLAN_KEY and the job under JOB_KEY."""
    return f"{job}-plan"


def progress(job: str) -> str:
    """Name the ConfigMap to which the trainer writes its progress, under PROGRESS_KEY."""
    return f"{job}-progress"


def checkpoints(job: str) -> str:
    """Name the PersistentVolumeClaim that the operator makes for the job's checkpoints."""
    return f"{job}-checkpoints"


def progress_role(job: str) -> str:
    """Name the Role and RoleBinding that permit the trainer to patch only the progress ConfigMap."""
    return progress(job)


def trainer(job: str) -> str:
    """Name the Job whose pod drives the training, and its service account."""
    return f"{job}-trainer"


def workers(job: str) -> str:
    """Name the Deployment of all the worker pods."""
    return f"{job}-workers"


def cluster(job: str) -> str:
    """Name the DaskCluster, with the job's own name, so that users find it by KubeCluster.from_name."""
    return job


def scheduler(job: str) -> str:
    """Name the Service that the Dask operator creates for the scheduler."""
    return f"{cluster(job)}-scheduler"


def authority(job: str) -> str:
    """Name the Secret with the key of the job's certificate authority, which no pod mounts."""
    return f"{job}-authority"


def tls(job: str) -> str:
    """Name the Secret with the TLS certificate of scheduler, workers and trainer, and the authorities they trust."""
    return f"{job}-tls"


def code(job: str, digest: str) -> str:
    """Name the ConfigMap that `batchgrowth submit` makes for code with that digest."""
    return f"{job}-code-{digest}"


def network_policy(job: str) -> str:
    """Name the NetworkPolicy around the job's pods."""
    return job


def labels(job: str, role: str) -> dict[str, str]:
    """Return the labels of a child: its job and its role."""
    return {"app.kubernetes.io/managed-by": MANAGER, JOB_LABEL: job, ROLE_LABEL: role}


def selector(job: str, role: str | None = None) -> str:
    """Return the label selector for all children of a job, or for its children of one role."""
    if role is None:
        return f"{JOB_LABEL}={job}"
    return f"{JOB_LABEL}={job},{ROLE_LABEL}={role}"

"""From a job's name to the names, labels and keys of what belongs to it; each is made in one place."""

from __future__ import annotations

from batchgrowth.spec.job import LONGEST_JOB_NAME

__all__ = [
    "FIELD_MANAGER",
    "INPUTS",
    "JOB_KEY",
    "JOB_LABEL",
    "LONGEST_JOB_NAME",
    "MANAGER",
    "MANIFEST",
    "PLAN_KEY",
    "PROGRESS_KEY",
    "RETRIED",
    "ROLE_LABEL",
    "cluster",
    "cluster_client",
    "labels",
    "network_policy",
    "plan",
    "progress",
    "progress_role",
    "scheduler",
    "selector",
    "tls",
    "trainer",
    "workers",
]

MANAGER = "batchgrowth"
FIELD_MANAGER = "batchgrowth-operator"
JOB_LABEL = "batchgrowth.dev/job"
ROLE_LABEL = "batchgrowth.dev/role"
MANIFEST = "batchgrowth.dev/manifest"
"""The annotation with the digest of the manifest that a child was last made from."""
INPUTS = "batchgrowth.dev/inputs"
"""The annotation with the digest of those inputs whose change makes a child anew; on children that cannot change."""
RETRIED = "batchgrowth.dev/retried"
"""The annotation that makes Kubernetes try at once what it was refused: when it was last asked to."""
JOB_KEY = "job.json"
PLAN_KEY = "plan.json"
PROGRESS_KEY = "progress.json"


def plan(job: str) -> str:
    """The ConfigMap that holds the plan under PLAN_KEY and the job under JOB_KEY."""
    return f"{job}-plan"


def progress(job: str) -> str:
    """The ConfigMap that the trainer writes its progress to, under PROGRESS_KEY."""
    return f"{job}-progress"


def progress_role(job: str) -> str:
    """The Role, and its RoleBinding, that let the trainer patch that ConfigMap and nothing else."""
    return progress(job)


def trainer(job: str) -> str:
    """The Job whose pod drives the training, and the service account it runs as."""
    return f"{job}-trainer"


def workers(job: str) -> str:
    """The Deployment of all the worker pods."""
    return f"{job}-workers"


def cluster(job: str) -> str:
    """The DaskCluster: the job's own name, so that a user finds it by KubeCluster.from_name."""
    return job


def scheduler(job: str) -> str:
    """The Service that the Dask operator makes for the scheduler."""
    return f"{cluster(job)}-scheduler"


def cluster_client(job: str) -> str:
    """The Secret with the certificate of those who may talk to the scheduler from outside the job."""
    return f"{job}-client-tls"


def tls(job: str) -> str:
    """The Secret with the certificates that scheduler, workers and trainer speak TLS with."""
    return f"{job}-tls"


def network_policy(job: str) -> str:
    """The NetworkPolicy that keeps others away from the job's pods."""
    return job


def labels(job: str, role: str) -> dict[str, str]:
    """The labels of one child: which job it belongs to, and as what."""
    return {"app.kubernetes.io/managed-by": MANAGER, JOB_LABEL: job, ROLE_LABEL: role}


def selector(job: str, role: str | None = None) -> str:
    """The label selector for all children of a job, or for those of one role."""
    return f"{JOB_LABEL}={job}" + (f",{ROLE_LABEL}={role}" if role else "")

"""From a job to the manifests of its children, whose names depend on the job's name only."""

from batchgrowth_operator.decide.children.cluster import dask_cluster
from batchgrowth_operator.decide.children.documents import plan_config_map, progress_config_map, tls_secret
from batchgrowth_operator.decide.children.guards import (
    network_policy,
    progress_role,
    progress_role_binding,
    service_account,
)
from batchgrowth_operator.decide.children.trainer import trainer_job
from batchgrowth_operator.decide.children.workers import worker_deployment

__all__ = [
    "dask_cluster",
    "network_policy",
    "plan_config_map",
    "progress_config_map",
    "progress_role",
    "progress_role_binding",
    "service_account",
    "tls_secret",
    "trainer_job",
    "worker_deployment",
]

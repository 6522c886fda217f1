"""A job and its code, written to a cluster with the rights of a user."""

from typing import Any

import yaml
from batchgrowth.errors import BatchGrowthError, ClusterError, Fault, SpecError
from batchgrowth.spec import API_VERSION, KIND, BatchGrowthJob

from batchgrowth_operator.seen.observed import Object, Ref
from batchgrowth_operator.server.api import CONFLICT, GONE, Api, Refused
from batchgrowth_operator.server.kinds import KINDS
from batchgrowth_operator.submit.packing import OPTION, Code

MANAGER = "batchgrowth-submit"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def manifest_of(job: BatchGrowthJob, code: Code | None) -> Object:
    """The job as its file says it, without defaults, and with the code as its source.

    Raises SpecError if the file names a source itself.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    metadata = job.metadata.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"name", "namespace", "labels", "annotations"}
    )
    kept = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED}
    metadata = {key: value for key, value in (metadata | {"annotations": kept}).items() if value}
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    if code is not None:
        if job.spec.workload.source is not None:
            name = job.spec.workload.source.config_map
            raise SpecError([Fault("spec.workload.source", f'"{name}"', f"remove it, or leave out {OPTION}")])
        spec["workload"]["source"] = code.source
    return manifest


class _Blocks(yaml.SafeDumper):
    """Writes text of several lines as it is, in a literal block."""


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _as_block)


def as_yaml(*manifests: Object) -> str:
    """The manifests as one YAML file."""
    text: str = yaml.dump_all(manifests, Dumper=_Blocks, sort_keys=False, allow_unicode=True)
    return text


def namespace_for(job: BatchGrowthJob, asked: str | None, usual: str) -> str:
    """The namespace of the option, the manifest or else the context. Raises SpecError if the first two differ."""
    written = job.metadata.namespace
    if asked is not None and written not in (None, asked):
        raise SpecError([Fault("metadata.namespace", f'"{written}"', f"remove it, or leave out --namespace {asked}")])
    return asked or written or usual


def submit(api: Api, namespace: str, job: Object, code: Code | None, *, force: bool = False) -> Object:
    """The job after the API server has accepted it, with its code.

    The job is tried first, so that one that is refused leaves no code behind; then the code is written, so that no pod
    waits for it; then the job, which becomes its owner. Raises ClusterError if no server answers, else
    BatchGrowthError with the server's reason.
    """
    job = placed(job, namespace)
    try:
        known = api.get(Ref(KIND, job["metadata"]["name"]), namespace)
        _apply(api, job, force=force, dry_run=True)
        if code is not None:
            _apply(api, _owned(placed(code.config_map, namespace), known), force=True)
        accepted = _apply(api, job, force=force)
        if code is not None:
            _apply(api, _owned(placed(code.config_map, namespace), accepted), force=True)
    except Refused as refused:  # by the first look at the job
        raise _explained(refused, job) from refused
    except OSError as error:
        raise ClusterError(f"the API server does not answer: {error}") from error
    return accepted


def _apply(api: Api, manifest: Object, *, force: bool, dry_run: bool = False) -> Object:
    try:
        return api.apply(manifest, manager=MANAGER, force=force, dry_run=dry_run)
    except Refused as refused:
        raise _explained(refused, manifest) from refused


def placed(manifest: Object, namespace: str) -> Object:
    """The manifest with that namespace; as it is if there is none."""
    if not namespace:
        return manifest
    return {**manifest, "metadata": manifest["metadata"] | {"namespace": namespace}}


def _owned(config_map: Object, job: Object | None) -> Object:
    """The ConfigMap with the job as its owner, so that it is deleted with it."""
    if job is None:
        return config_map
    metadata = job["metadata"]
    owner: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}
    return {**config_map, "metadata": config_map["metadata"] | {"ownerReferences": [owner]}}


def _explained(refused: Refused, manifest: Object) -> BatchGrowthError:
    kind, metadata = manifest["kind"], manifest["metadata"]
    text = f"the API server refuses {kind} {metadata['name']} in namespace {metadata['namespace']}: {refused}"
    if refused.code == CONFLICT:
        return BatchGrowthError(f"{text}; --force-conflicts takes these fields over")
    if refused.code == GONE and "namespace" not in str(refused).lower():
        resource = f"{KINDS[kind].plural}.{KINDS[kind].group}"
        return BatchGrowthError(f"{text}; is the chart installed? It brings the kind {resource}")
    return BatchGrowthError(text)

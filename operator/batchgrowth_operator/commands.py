"""The commands `batchgrowth operator` and `batchgrowth submit`."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Annotated

import typer
from batchgrowth.cli import Set, check_pods
from batchgrowth.contract.logs import LogFormat, LogLevel
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth.schema import STORAGE_SIZE, WORDS

from batchgrowth_operator.settings import Defaults, LeaseLock, Network, Rule, Settings


def rules(option: str, text: str) -> tuple[Rule, ...]:
    """Return the maps in a JSON list. For other text, raises BadParameter, which names the option."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(rule, dict) for rule in found):
        raise typer.BadParameter(f"{option}: {text}; give a JSON list of maps")
    return tuple(found)


def storage_size(text: str) -> str:
    """Return the size, which may be empty. Raises BadParameter for text that is not a size."""
    if text and not re.fullmatch(STORAGE_SIZE, text):
        raise typer.BadParameter(f"--checkpoint-size: {text}; give {WORDS[STORAGE_SIZE]}")
    return text


def operator(
    image: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_IMAGE", help="Image of jobs without spec.image.", show_default=False)
    ],
    kubeconfig: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Run outside the cluster with this kubeconfig.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Watch this namespace only; may be given several times.")
    ] = None,
    operator_class: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_OPERATOR_CLASS", help="Serve the jobs with this spec.operatorClass only.")
    ] = "",
    pod_security: Annotated[
        PodSecurity, typer.Option(help="The Pod Security Standard that the workers' pods must meet.")
    ] = PodSecurity.restricted,
    service_account: Annotated[
        list[str] | None,
        typer.Option(help="Allow jobs to name this service account; may be given several times. Default: none."),
    ] = None,
    checkpoint_size: Annotated[
        str,
        typer.Option(help="Size of the claim of jobs that name no place for checkpoints, such as 10Gi; '' for none."),
    ] = "",
    metrics_from: Annotated[
        str, typer.Option(metavar="JSON", help="NetworkPolicy peers that may read trainers' metrics; [] for all.")
    ] = "[]",
    egress: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="NetworkPolicy egress rules: all that jobs' pods may connect to, beside DNS and each other.",
            show_default="any connection",
        ),
    ] = None,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of Prometheus metrics; 0 for none.")] = 0,
    health_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of health probes; 0 for none.")] = 0,
    lease: Annotated[
        str | None, typer.Option(help="The name of the Lease by which several operators elect a leader.")
    ] = None,
    lease_namespace: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_NAMESPACE", help="The namespace of that Lease.")
    ] = "default",
    identity: Annotated[
        str, typer.Option(envvar="BATCHGROWTH_POD", help="This operator's name in that Lease.", show_default=False)
    ] = "",
    log_level: Annotated[
        LogLevel, typer.Option(envvar="BATCHGROWTH_LOG_LEVEL", help="Least severe messages; debug includes kopf's.")
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="BATCHGROWTH_LOG_FORMAT", help="Text for people, JSON for collectors.")
    ] = LogFormat.text,
) -> None:
    """Run the operator, which creates and resizes the objects of jobs as their plans say."""
    from batchgrowth_operator.process import run

    holder = identity or f"{socket.gethostname()}-{os.getpid()}"
    run(
        Settings(
            defaults=Defaults(
                image=image,
                pods=PodLimits(standard=pod_security, accounts=frozenset(service_account or ())),
                network=Network(
                    metrics_from=rules("--metrics-from", metrics_from),
                    egress=None if egress is None else rules("--egress", egress),
                ),
                checkpoint_size=storage_size(checkpoint_size),
            ),
            kubeconfig=kubeconfig,
            namespaces=tuple(namespace or ()),
            operator_class=operator_class,
            metrics_port=metrics_port,
            health_port=health_port,
            lease=LeaseLock(lease_namespace, lease, holder) if lease else None,
            log_level=log_level,
            log_format=log_format,
        )
    )


def submit(
    file: Annotated[Path, typer.Argument(help="A BatchGrowthJob manifest.", show_default=False)],
    code: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder with the workload's modules. Default: the modules are in the image."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out files of that name or path, such as '*.png' or data/*."),
    ] = None,
    set_: Set = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="The job's namespace. Default: the manifest's, else the context's."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The kubeconfig. Default: KUBECONFIG, else ~/.kube/config.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="The context. Default: the kubeconfig's current context.")] = None,
    pod_security: Annotated[
        PodSecurity, typer.Option(help="The Pod Security Standard of your cluster, which the pods must meet.")
    ] = PodSecurity.restricted,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Overwrite fields that kubectl or others have set.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests without contacting a cluster.")
    ] = False,
) -> None:
    """Check a job, pack its code into a ConfigMap, and apply both to a cluster."""
    from batchgrowth_operator import submit

    job = load_manifest(file, set_ or ())
    check_pods(job.spec, pod_security)
    make_plan(job.spec)
    files = submit.read_folder(code, exclude or (), file) if code is not None else {}
    packed = submit.packed(job.metadata.name, files) if files else None
    manifest = submit.manifest_of(job, packed)
    if packed is not None and not submit.has_module(files, job.spec.workload.entrypoint):
        typer.echo(f"note: {code} has no module of {job.spec.workload.entrypoint}; the image must have it", err=True)
    if dry_run:
        place = submit.namespace_for(job, namespace, "")
        both = [submit.placed(each, place) for each in (*([packed.config_map] if packed else []), manifest)]
        typer.echo(submit.as_yaml(*both), nl=False)
        return
    from batchgrowth_operator.api.client import connect_as_user

    api, usual = connect_as_user(kubeconfig, context)
    place = submit.namespace_for(job, namespace, usual)
    submit.submit(api, place, manifest, packed, force=force_conflicts)
    with_code = f" with {packed.num_files} files, {packed.num_bytes:,} bytes" if packed else ""
    typer.echo(f"Submitted {job.metadata.name} to namespace {place}{with_code}; follow it with\n")
    typer.echo(f"    kubectl --namespace {place} get bgj {job.metadata.name} --watch")

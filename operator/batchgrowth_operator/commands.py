"""The commands `batchgrowth operator` and `batchgrowth submit`."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
from batchgrowth.cli import Set, check_pods
from batchgrowth.contract.logs import LogFormat, LogLevel
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.notes import notes
from batchgrowth.plan import make_plan
from batchgrowth.schema import STORAGE_SIZE, WORDS
from batchgrowth.spec import API_VERSION, KIND
from batchgrowth.spec.all_pods import plain_pods
from batchgrowth.spec.pods import Resources, plain
from batchgrowth.terminal import on_stderr, say
from pydantic import ValidationError

from batchgrowth_operator.settings import SCHEDULER_RESOURCES, Defaults, LeaseLock, Network, Rule, Settings


def rules(option: str, text: str) -> tuple[Rule, ...]:
    """Return the maps in a JSON list. For other text, raises BadParameter, which names the option."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(rule, dict) for rule in found):
        raise typer.BadParameter(f"{option}: {text}; give a JSON list of maps")
    return tuple(found)


def job_pods(text: str, standard: PodSecurity) -> dict[str, Any]:
    """Return the defaults of spec.pods in a JSON map.

    Raises BadParameter, which names the field, if a job with such a spec.pods would be refused.
    """
    spec: dict[str, Any] = {
        "workload": {"entrypoint": "any:workload", "examples": 1},
        "epochs": 1,
        "batch": {"initial": 1, "maximum": 1, "growth": {"type": "Constant"}},
        "learningRate": {"initial": "1"},
    }
    try:
        spec["pods"] = json.loads(text)
        job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "any"}, "spec": spec}
        read = read_manifest(json.dumps(job)).spec
        check_pods(read, standard)
    except ValueError as error:  # a SpecError is one, and so is the error of text that is not JSON
        raise typer.BadParameter(f"--pods: {error}") from None
    return plain_pods(read.pods)


def scheduler_resources(text: str) -> dict[str, Any]:
    """Return the resources in a JSON map, as a container has them. Raises BadParameter for any other text."""
    try:
        # A quantity such as 0.1 stays the text that was given, because a float may be printed otherwise.
        quantities = json.dumps(json.loads(text, parse_float=str))
    except ValueError:
        quantities = text  # the model says what is wrong with it
    try:
        found = Resources.model_validate_json(quantities)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(map(str, wrong["loc"])) or text
        example = '{"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}}'
        raise typer.BadParameter(
            f"--scheduler-resources: {field}: {wrong['msg']}; give a map such as {example}"
        ) from None
    given: dict[str, Any] = plain([found])[0]
    return {"requests": {}, **given}


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
    pods: Annotated[
        str, typer.Option(metavar="JSON", help="Defaults of spec.pods, for the pods of all jobs; {} for none.")
    ] = "{}",
    fixed_user: Annotated[
        bool,
        typer.Option(
            "--fixed-user/--no-fixed-user", help="Whether jobs' pods run as user 65532, or as the platform chooses."
        ),
    ] = True,
    scheduler_resources_: Annotated[
        str, typer.Option("--scheduler-resources", metavar="JSON", help="Requests and limits of each job's scheduler.")
    ] = json.dumps(SCHEDULER_RESOURCES),
    checkpoint_size: Annotated[
        str,
        typer.Option(help="Size of the claim of jobs that name no place for checkpoints, such as 10Gi; '' for none."),
    ] = "",
    ca_config_map: Annotated[
        str,
        typer.Option(
            help="ConfigMap in each job's namespace whose entry ca.crt has the CAs of object stores, for jobs that "
            "name none; '' for none."
        ),
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
    health_host: Annotated[
        str,
        typer.Option(
            envvar="BATCHGROWTH_POD_IP", help="Address on which health probes are answered.", show_default="any of IPv4"
        ),
    ] = "",
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
                job_pods=job_pods(pods, pod_security),
                scheduler_resources=scheduler_resources(scheduler_resources_),
                fixed_user=fixed_user,
                network=Network(
                    metrics_from=rules("--metrics-from", metrics_from),
                    egress=None if egress is None else rules("--egress", egress),
                ),
                checkpoint_size=storage_size(checkpoint_size),
                ca_config_map=ca_config_map,
            ),
            kubeconfig=kubeconfig,
            namespaces=tuple(namespace or ()),
            operator_class=operator_class,
            metrics_port=metrics_port,
            health_port=health_port,
            health_host=health_host,
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

    job = submit.named(load_manifest(file, set_ or (), on_stderr))
    check_pods(job.spec, pod_security)
    for note in notes(job.spec, make_plan(job.spec)):
        say(note, err=True)
    files = submit.read_folder(code, exclude or (), file) if code is not None else {}
    packed = submit.packed(job.metadata.name, files) if files else None
    manifest = submit.manifest_of(job, packed)
    if packed is not None and not submit.has_module(files, job.spec.workload.entrypoint):
        say(f"note: {code} has no module of {job.spec.workload.entrypoint}; the image must have it", err=True)
    if dry_run:
        place = submit.namespace_for(job, namespace, "")
        both = [submit.placed(each, place) for each in (*([packed.config_map] if packed else []), manifest)]
        say(submit.as_yaml(*both), end="")
        return
    from batchgrowth_operator.api.client import connect_as_user

    api, usual = connect_as_user(kubeconfig, context)
    place = submit.namespace_for(job, namespace, usual)
    submit.submit(api, place, manifest, packed, force=force_conflicts)
    with_code = f" with {packed.num_files} files, {packed.num_bytes:,} bytes" if packed else ""
    say(f"Submitted {job.metadata.name} to namespace {place}{with_code}; follow it with\n")
    say(f"    kubectl --namespace {place} get bgj {job.metadata.name} --watch")

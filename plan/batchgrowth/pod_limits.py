"""What an installation allows in the workers' pods: a Pod Security Standard, and service accounts that jobs may name.

`batchgrowth check` judges what users write, the operator the pods that it is about to create.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchgrowth.documents import printable
from batchgrowth.errors import Fault
from batchgrowth.pod_security import RESTRICTED_CONTAINER, RESTRICTED_POD, PodSecurity, at, broken_parts, maps
from batchgrowth.spec import JobSpec
from batchgrowth.spec.overlay import merged
from batchgrowth.spec.pods import plain
from batchgrowth.spec.template import CONTAINER

TEMPLATE = "spec.workers.template"
ACCOUNT = "spec.serviceAccountName"
VALUE = "the chart's value jobs.serviceAccounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLimits:
    """The standard for the workers' pods, and the service accounts that jobs may name; None for any."""

    standard: PodSecurity = PodSecurity.restricted
    accounts: frozenset[str] | None = frozenset()


STRICTEST = PodLimits()


def written_pods(spec: JobSpec) -> dict[str, Any]:
    """The workers' pod template, as far as the limits look at it: the user's over the operator's security contexts.

    The trainer's pod has nothing of the user's but the volumes, which are part of it.
    """
    worker = {"name": CONTAINER, "securityContext": RESTRICTED_CONTAINER}
    pod = {"automountServiceAccountToken": False, "securityContext": RESTRICTED_POD, "containers": [worker]}
    template: dict[str, Any] = merged({"spec": pod | {"volumes": plain(spec.volumes)}}, spec.workers.template)
    return template


def pod_faults(spec: JobSpec, template: Mapping[str, Any], limits: PodLimits) -> tuple[Fault, ...]:
    """What exceeds the limits: in the volumes of all pods, the workers' merged pod template and the job's account."""
    of_all = broken_parts({"spec": {"volumes": plain(spec.volumes)}}, limits.standard)
    of_workers = [each for each in broken_parts(template, limits.standard) if each not in of_all]
    found = [*of_all, *((f"{TEMPLATE}.{path}", value, remedy) for path, value, remedy in of_workers)]
    return (*(Fault(path, _shown(value), remedy) for path, value, remedy in found),
            *_account_faults(spec, template, limits))  # fmt: skip


def account_note(spec: JobSpec) -> str:
    """What an installation must allow for the job's account; empty if it names none."""
    if spec.service_account_name is None:
        return ""
    return f'note: {ACCOUNT} "{spec.service_account_name}" is refused unless {VALUE} lists it.'


def _account_faults(spec: JobSpec, template: Mapping[str, Any], limits: PodLimits) -> Iterator[Fault]:
    """Only an allowed account's token may be mounted; a pod that names none has its namespace's default account."""
    account = spec.service_account_name
    allowed = account is not None and (limits.accounts is None or account in limits.accounts)
    if account is not None and not allowed:
        yield Fault(ACCOUNT, _shown(account), f"remove it, or have an administrator add it to {VALUE}")
    if not allowed:
        remedy = f"remove it, or name an account in {ACCOUNT} that {VALUE} lists"
        for path, value in _tokens(template):
            yield Fault(f"{TEMPLATE}.{path}", value, remedy)


def _tokens(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the template mounts a service account's token, and by what."""
    automount = at(template, "spec.automountServiceAccountToken")
    if automount is not False:
        yield "spec.automountServiceAccountToken", _shown(automount)
    for volume in maps(at(template, "spec.volumes")):
        if any(source.get("serviceAccountToken") is not None for source in maps(at(volume, "projected.sources"))):
            yield f"spec.volumes.{volume.get('name')}.projected", "a serviceAccountToken"


def _shown(value: Any) -> str:
    return "missing" if value is None else printable(json.dumps(value, ensure_ascii=False, default=str))

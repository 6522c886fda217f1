"""The API server's refusals of a job's objects, in one form: which object, who refuses it, why, and what helps.

children/drift.py finds what others undo after a write, and problems.py what keeps pods from running.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from batchgrowth_operator.seen.observed import (
    CLAIM,
    Failure,
)

LONGEST_WHY = 500
"""Characters of the API server's message that a refusal quotes."""
FOREIGN = 0
"""The code of a failure to write an object that belongs to another owner."""


class Problem(NamedTuple):
    """A condition's reason and message."""

    reason: str
    message: str


class Cause(NamedTuple):
    """A kind of refusal, recognized by the API server's message.

    `who` and `helps` may use the pattern's groups and `namespace`; for a pod also `size` (which field has its size) and
    `less` (how to request less). The group `why` is the part of the message that is quoted.
    """

    pattern: re.Pattern[str]
    reason: str
    who: str
    helps: str


_EXEMPT = "exempt objects with the label batchgrowth.dev/job"
_OUR_RIGHTS = "Grant it to the operator's account: the chart's roles have every right that the operator needs."
_RANGE = re.compile(r"(?P<why>(?:minimum|maximum) \S+ usage per.*|.*max limit to request ratio.*)")
_RANGE_REFUSES = "a LimitRange refuses it"
_DESCRIBE_RANGE = "`kubectl describe limitrange --namespace {namespace}`"
_QUOTA = re.compile(r"exceeded quota: (?P<name>[^,\s]+), (?P<why>.*)")
_QUOTA_REFUSES = "the quota {name} is used up"
_DESCRIBE_QUOTA = "`kubectl describe quota {name} --namespace {namespace}`"
_MORE_QUOTA = f"Raise the quota, or delete what is not needed: {_DESCRIBE_QUOTA}."
CAUSES = (
    Cause(
        re.compile("unable to create new content in namespace .* because it is being terminated"),
        "NamespaceTerminating",
        "the namespace {namespace} is being deleted",
        "The operator makes nothing more in it. `kubectl describe namespace {namespace}` says what holds it.",
    ),
    Cause(_QUOTA, "QuotaExceeded", _QUOTA_REFUSES, _MORE_QUOTA),
    Cause(
        re.compile(r'failed calling webhook "(?P<name>[^"]+)": (?P<why>.*)'),
        "ChildRefused",
        "the admission webhook {name} does not answer",
        "Repair the service behind the webhook, or delete its configuration: "
        "`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`.",
    ),
    Cause(
        re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<why>.*)'),
        "ChildRefused",
        "the admission webhook {name} refuses it",
        f"Change what the webhook demands, or {_EXEMPT}.",
    ),
    Cause(
        re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)' .*denied request: (?P<why>.*)"),
        "ChildRefused",
        "the policy {name} refuses it",
        f"Change the policy, or {_EXEMPT}: `kubectl describe validatingadmissionpolicy {{name}}`.",
    ),
    Cause(
        re.compile("attempting to grant RBAC permissions not currently held: (?P<why>.*)"),
        "ChildRefused",
        "the operator may grant only rights that its account has",
        _OUR_RIGHTS,
    ),
    Cause(
        re.compile(r'User "(?P<name>[^"]+)" (?P<why>cannot .*)'),
        "ChildRefused",
        "the operator's account lacks a right",
        _OUR_RIGHTS,
    ),
    Cause(
        _RANGE, "ChildRefused", _RANGE_REFUSES, f"Change the LimitRange, or the sizes in the job: {_DESCRIBE_RANGE}."
    ),
    Cause(
        re.compile("is invalid: (?P<why>.*)"),
        "ChildRefused",
        "the API server finds it invalid",
        "Correct the field in the job from which it comes, or remove what changed the object.",
    ),
)
"""The refusals that are known by their message; the first that matches counts."""
POD_CAUSES = (
    Cause(
        re.compile(r'violates PodSecurity "(?P<name>[^"]+)": (?P<why>.*)'),
        "PodsRefused",
        "the Pod Security level {name} of the namespace refuses it",
        "Remove what it names from the job, or have the namespace's label pod-security.kubernetes.io/enforce changed.",
    ),
    Cause(
        re.compile("no PriorityClass with name (?P<name>.+) was found"),
        "PodsRefused",
        "there is no PriorityClass {name}",
        "Create it, or give another priorityClassName: `kubectl get priorityclasses`.",
    ),
    Cause(
        re.compile('RuntimeClass "(?P<name>[^"]+)" not found'),
        "PodsRefused",
        "there is no RuntimeClass {name}",
        "Create it, or give another runtimeClassName: `kubectl get runtimeclasses`.",
    ),
    Cause(_QUOTA, "QuotaExceeded", _QUOTA_REFUSES, f"{_MORE_QUOTA} Or request {{less}}."),
    Cause(
        re.compile(r"failed quota: (?P<name>[^:\s]+): must specify (?P<why>.*)"),
        "PodsRefused",
        "the quota {name} counts sizes that its containers do not give",
        f"Give them by {{size}}, or have a LimitRange give defaults: {_DESCRIBE_QUOTA}.",
    ),
    Cause(
        re.compile("insufficient quota to match these scopes: (?P<why>.*)"),
        "PodsRefused",
        "only a namespace with a quota for its priority class may have it",
        "Have a ResourceQuota with this scope made in {namespace}, or give another priorityClassName.",
    ),
    Cause(_RANGE, "PodsRefused", _RANGE_REFUSES, f"Change the LimitRange, or {{size}}: {_DESCRIBE_RANGE}."),
    Cause(
        re.compile("pod node label selector conflicts with its namespace node label selector"),
        "PodsRefused",
        "its nodeSelector contradicts that of the namespace",
        "Remove from the job's nodeSelector what contradicts the annotation "
        "scheduler.alpha.kubernetes.io/node-selector: `kubectl describe namespace {namespace}`.",
    ),
    Cause(
        re.compile(r"pod tolerations \(.*\) conflict with its namespace whitelist"),
        "PodsRefused",
        "the namespace allows other tolerations only",
        "Remove from the job's tolerations what is not in the annotation "
        "scheduler.alpha.kubernetes.io/tolerationsWhitelist: `kubectl describe namespace {namespace}`.",
    ),
    Cause(
        re.compile("unable to validate against any security context constraint: (?P<why>.*)"),
        "PodsRefused",
        "no security context constraint allows it",
        "Leave the user of pods to the platform by the chart's fixedUser: false, and remove from the job what else is "
        "named.",
    ),
)
"""The refusals of pods: those that no other kind meets, and those against which something else helps."""
POD_NAME = re.compile(r'pods? "(?P<owner>[^"]+)-[a-z0-9]{0,5}"')  # Kubernetes before 1.30 leaves out the end
"""How a refusal names a pod that a controller wanted to create: by its owner, and an end that every retry makes up."""
_POD = re.compile(rf"^{POD_NAME.pattern} is forbidden: ")
_SIZES = {
    "-scheduler": "the chart's jobs.schedulerResources",
    "-trainer": "spec.resources",
    "-workers": "the resources in spec.workers.template",
}
"""Where the size of a pod comes from, by a part of its name."""
_REFUSES_PODS = ("the API server refuses it", "Kubernetes tries again.")
_OTHERS: dict[int, tuple[str, str]] = {
    HTTPStatus.CONFLICT: ("another process changed it meanwhile", "The operator tries again."),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("it is too large for the API server", "Make the job's templates smaller."),
    HTTPStatus.TOO_MANY_REQUESTS: ("the API server has too many requests", "The operator tries again."),
}
"""Who refuses and what helps, for answers that are known by their code."""
_FAILS = ("the API server fails", "Look at the API server's log; the operator tries again.")
_REFUSES = ("the API server refuses it", "Remove what refuses it; the operator tries again.")
_DONE = {"": "stored", "create": "created", "change": "changed", "delete": "deleted"}
_FORBIDDEN = re.compile(r'^\S+ "[^"]*" is forbidden: ')


def refused_write(failure: Failure, namespace: str) -> Problem:
    """Return the problem of a write that the API server refused."""
    kind, name = failure.ref
    if failure.code == FOREIGN:
        return Problem("NameTaken", f"{kind} {name} is not this job's; rename it or the job.")
    if failure.code == HTTPStatus.NOT_FOUND and kind == "DaskCluster" and failure.attempt != "delete":
        return Problem("DaskOperatorMissing", "The API server has no kind DaskCluster; install the Dask operator.")
    text = _FORBIDDEN.sub("", " ".join(failure.message.split()))
    others = _OTHERS.get(failure.code, _FAILS if failure.code >= HTTPStatus.INTERNAL_SERVER_ERROR else _REFUSES)
    found = _explained(text, namespace, CAUSES, others)
    helps = found.helps
    if kind == CLAIM and found.reason == "QuotaExceeded":
        helps = f"Give a smaller spec.checkpoint.volume.size, or {helps[:1].lower()}{helps[1:]}"
    return Problem(
        found.reason, f"{kind} {name} cannot be {_DONE[failure.attempt]}, because {found.who}{found.quoted}. {helps}"
    )


def refused_pod(message: str, namespace: str) -> Problem:
    """Return the problem of a pod that the API server refused, by the message of an event or of a condition.

    The end of the pod's name is left out, because every retry makes up another.
    """
    text = " ".join(message.split()).removeprefix("Error creating: ")
    named = _POD.search(text)
    pod = f"Pod {named['owner']}-…" if named else "A pod"
    part = _part(named["owner"] if named else "")
    words = {"size": _SIZES[part], "less": less(part)}
    found = _explained(_POD.sub("", text), namespace, (*POD_CAUSES, *CAUSES), _REFUSES_PODS, words)
    reason = found.reason
    helps = found.helps
    if reason == "ChildRefused":
        reason = "PodsRefused"
    if _EXEMPT in helps:
        helps = f"Give pods what it demands by spec.pods. Or {helps[:1].lower()}{helps[1:]}"
    return Problem(reason, f"{pod} cannot be created, because {found.who}{found.quoted}. {helps}")


def less(pod: str) -> str:
    """Return the words for how a job requests less, if a pod of that name is too much."""
    part = _part(pod)
    fewer = "fewer workers by spec.workers.maximum, or " if part == "-workers" else ""
    return f"{fewer}less by {_SIZES[part]}"


def _part(pod: str) -> str:
    """Return the part of a pod's name that tells its role; a job's own name may have one too."""
    last = max(_SIZES, key=pod.rfind)
    return last if last in pod else "-workers"


class _Explained(NamedTuple):
    reason: str
    who: str
    quoted: str
    helps: str


def _explained(
    text: str, namespace: str, causes: Iterable[Cause], others: tuple[str, str], words: Mapping[str, str] | None = None
) -> _Explained:
    """Return what the first cause that matches the message says; if none does, `others` has who refuses and what helps.

    `words` are further words for the texts of the causes.
    """
    reason = "ChildRefused"
    why = text
    who, helps = others
    for cause in causes:
        found = cause.pattern.search(text)
        if found is not None:
            used = {**found.groupdict(), **(words or {}), "namespace": namespace}
            reason = cause.reason
            who = cause.who.format_map(used)
            helps = cause.helps.format_map(used)
            why = used.get("why", "")
            break
    if len(why) > LONGEST_WHY:
        why = f"{why[: LONGEST_WHY // 2]}…{why[-LONGEST_WHY // 2 :]}"
    return _Explained(reason, who, f": {why.rstrip('.')}" if why else "", helps)


def is_of_dying_namespace(failure: Failure) -> bool:
    """Return whether the API server refused the write because the namespace is being deleted."""
    return is_namespace_end(failure.message)


def is_namespace_end(message: str) -> bool:
    """Return whether the API server's message is that of a write into a namespace that is being deleted."""
    return CAUSES[0].pattern.search(message) is not None

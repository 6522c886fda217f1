"""Why a job's pods do not start and its objects do not go: the first problem that the scheduler, the nodes, the API
server or a finalizer makes.

job/conditions.py turns it into a condition. refused_objects.py reads the API server's answers to writes.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from http import HTTPStatus
from itertools import chain
from operator import itemgetter
from typing import Any

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.seen.observed import (
    CLAIM,
    TRAINER,
    WORKER,
    Clock,
    Failure,
    Object,
    Observed,
    Ref,
    condition_of,
    finalizers_of,
    is_terminating,
    seconds_since,
    truncated,
)
from batchgrowth_operator.seen.refused_objects import (
    FOREIGN,
    POD_NAME,
    Problem,
    less,
    refused_pod,
    refused_write,
)
from batchgrowth_operator.seen.trainer_pods import is_cut_off

DASK_OPERATOR_TIMEOUT_SECONDS = 20
"""Time for the Dask operator to react to a new or deleted DaskCluster."""
UNEXPLAINED_AFTER_SECONDS = 8.0
"""Time after which the events of a pod that is pending without an explanation are read."""
MOST_EVENT_READS = 3
"""Objects whose events are read in one pass."""
SHORTEST_EVENT_AGE_SECONDS = 10.0
LONGEST_EVENT_AGE_SECONDS = 60.0
"""Bounds of the time between two reads of those events, which grows with the age of the objects."""
EVENT_LIFE_SECONDS = 180
"""Age beyond which an event is ignored; a kubelet repeats a failed mount every two minutes."""
STUCK_AFTER_SECONDS = 20.0
"""Time for an object to go after its deletion, if it has no pods."""
STUCK_JOB_AFTER_SECONDS = 180.0
"""The same for the trainer's Job, whose pod may take two minutes to write a checkpoint."""
REPLICA_FAILURE = "ReplicaFailure"
"""The condition by which a Deployment reports that its pods are refused."""
RESTARTS_OF_THE_BROKEN = 2
"""Restarts after which a container counts as broken."""

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
_EVENTS = {
    "FailedAttachVolume": "PodBroken",
    "FailedCreate": "PodsRefused",
    "FailedCreatePodSandBox": "PodBroken",
    "FailedMount": "PodBroken",
    "FailedToRetrieveImagePullSecret": "ImagePullFailed",
    "ProvisioningFailed": "VolumePending",
}
"""The condition's reason for each reason of an event, for objects whose status explains nothing."""
_EVENTS_OF_PULLS = {"FailedToRetrieveImagePullSecret": "ImagePullFailed"}
"""The events that explain more than the status of a pod whose image is not pulled. Other events of the pod, such as
one about a mount that failed once, may be over.
"""
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap|serviceaccount) "([^"]+)" not found', re.IGNORECASE)
_UNBOUND = re.compile("unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_PULL_SECRET = re.compile(r"image pull secrets \(([^)]+)\)")
_ERROR_CLASS = re.compile(r"^[\w.]+(?:Error|Exception): ")
_REMEDIES_OF_IMAGES = (
    (
        re.compile(
            "exec format error|no match for platform|no matching manifest for|"
            "no image found in (?:manifest list|image index)",
            re.IGNORECASE,
        ),
        "Build the image for the processors of the nodes, by `docker build --platform`, or select nodes that it is "
        "for, by the label kubernetes.io/arch in spec.pods.nodeSelector.",
    ),
    (
        re.compile(
            r"executable file not found|No module named '?(?:batchgrowth|batchgrowth_trainer|dask|distributed)\b"
        ),
        "Build the image in spec.image from the trainer image, by FROM: it lacks batchgrowth.",
    ),
)
"""What helps against a wrong image, by the words of the container runtime or of Python.

Such an image may have been pulled: a runtime compares processors only if the image has a list of platforms.
"""
_REMEDIES_OF_PULLS = (
    (
        re.compile("x509:|gave HTTP response to HTTPS client"),
        "The node does not trust the registry, and no field of the job mends that: configure the container runtime of "
        "the nodes, or name an image of another registry in spec.image.",
    ),
    (
        re.compile("toomanyrequests|429 Too Many Requests", re.IGNORECASE),
        "The registry limits pulls: log in by spec.imagePullSecrets, or name an image of another registry in "
        "spec.image.",
    ),
    (
        re.compile("no such host|i/o timeout|connection refused|no route to host|handshake timeout|deadline exceeded"),
        "The node does not reach the registry in spec.image: check the name, and the node's proxy and firewall.",
    ),
    (
        re.compile("no space left on device"),
        "The node's disk is full: free it, or let spec.pods.nodeSelector select other nodes.",
    ),
)
"""What helps if an image cannot be pulled, by the container runtime's words."""
_ADMISSION = (
    "What set them, as Kueue does, has not admitted the pod: look there for the reason, or remove from the job or its "
    "namespace what puts the pod under its control."
)
"""What helps against scheduling gates."""
REMEDIES = {
    "ImagePullFailed": "Give an image that the nodes can pull: spec.image, spec.imagePullSecrets.",
    "Unschedulable": "Add a node that fits, or request {less}.",
    "VolumePending": "`kubectl describe persistentvolumeclaims` says what provides it.",
}


def cluster_problem(seen: Observed, clock: Clock) -> Problem | None:
    """Return the first problem that keeps the scheduler or the workers from running; None if there is none."""
    return next(_cluster_problems(seen, clock), None)


def workers_problem(seen: Observed, clock: Clock) -> Problem | None:
    """Return the first problem that keeps workers from running; None if there is none."""
    return next(chain(_refused_pods(seen.workers, seen.namespace), _role_problems(seen, WORKER, clock)), None)


def trainer_problem(seen: Observed, clock: Clock) -> Problem | None:
    """Return the first problem that keeps the trainer from running; None if there is none."""
    problem = next(_claim_problems(seen, clock), None)
    if problem is None and seen.trainer is not None and _lacks_a_pod(seen.trainer):
        problem = next(_event_problems(seen, seen.names.trainer, clock), None)
    if problem is None:
        problem = next(_role_problems(seen, TRAINER, clock), None)
    return problem


def held_back(seen: Observed, clock: Clock) -> Iterator[Problem]:
    """Yield the problems of objects that cannot be written or deleted, or that are in the job's way."""
    yield from stuck_deletions(seen, clock)  # before the refusal of an object whose name is still in use
    for failure in seen.failures:
        in_the_way = left_over(seen) or going(seen, failure.ref)
        if in_the_way is not None and failure.code == FOREIGN:
            yield in_the_way
        yield refused_write(failure, seen.namespace)
    yield from _part_problems(seen, clock)


def _cluster_problems(seen: Observed, clock: Clock) -> Iterator[Problem]:
    # Causes come before their effects, because only the first problem is told: a refused write explains a missing pod.
    yield from held_back(seen, clock)
    yield from _dask_operator_problems(seen, clock)
    for deployment in (seen.scheduler, seen.workers):
        yield from _refused_pods(deployment, seen.namespace)
    yield from _role_problems(seen, "scheduler", clock)
    yield from _role_problems(seen, WORKER, clock)
    cut_off = [pod for role in ("scheduler", WORKER) for pod in seen.pods_of(role) if is_cut_off(pod)]
    if cut_off:
        yield Problem("NodeUnreachable", truncated(unanswering(cut_off)))


def unanswering(pods: Sequence[Object]) -> str:
    """Return the sentences about pods whose nodes do not answer Kubernetes: which, and what happens to them."""
    nodes: dict[str, list[str]] = {}
    for pod in pods:
        node = str((pod.get("spec") or {}).get("nodeName") or "?")
        nodes.setdefault(node, []).append(pod["metadata"]["name"])
    each = [f"Node {node} of {', '.join(names)} does not answer Kubernetes." for node, names in sorted(nodes.items())]
    return f"{' '.join(each)} Pods of such a node are deleted and replaced after five minutes, by default."


def _refused_pods(deployment: Object | None, namespace: str) -> Iterator[Problem]:
    failed = condition_of(deployment, REPLICA_FAILURE, "True")
    if failed is not None:
        yield _refused_pod(str(failed.get("message", "")), namespace)


def _dask_operator_problems(seen: Observed, clock: Clock) -> Iterator[Problem]:
    if seen.cluster is None:
        return
    created = seen.cluster["metadata"].get("creationTimestamp")
    phase = (seen.cluster.get("status") or {}).get("phase")
    if not phase and clock.passed(created, DASK_OPERATOR_TIMEOUT_SECONDS):
        yield Problem("DaskOperatorMissing", "The Dask operator does not process the DaskCluster; is it running?")
    elif phase == "Error":
        yield Problem("ChildRefused", "The Dask operator refuses the DaskCluster; its log says why.")


def _part_problems(seen: Observed, clock: Clock) -> Iterator[Problem]:
    """Yield the problem of parts that the Dask operator has not made, with the refusal if it has logged one."""
    missing = missing_parts_of(seen)
    if not missing or seen.cluster is None:
        return
    told = _newest_warning(seen, seen.cluster["metadata"]["name"], ("Logging",), clock)
    if told is not None:
        # The Dask operator logs a traceback, whose last line is the API server's answer.
        answer = _ERROR_CLASS.sub("", str(told.get("message", "")).strip().rpartition("\n")[2])
        yield refused_write(Failure(missing[0], HTTPStatus.FORBIDDEN, answer, "create"), seen.namespace)
    elif clock.passed(_pending_since(seen.cluster), DASK_OPERATOR_TIMEOUT_SECONDS):
        each = " and ".join(f"the {ref.kind} {ref.name}" for ref in missing)
        name = seen.cluster["metadata"]["name"]
        text = (
            f"The DaskCluster {name} lacks {each}, which the Dask operator has to make. A quota or a policy may refuse "
        )
        text += (
            f"that: `kubectl describe daskcluster {name} --namespace {seen.namespace}` and the Dask operator's log say."
        )
        yield Problem("PartsMissing", text)


def missing_parts_of(seen: Observed) -> list[Ref]:
    """Return the parts that a DaskCluster lacks although the Dask operator has taken it up."""
    phase = ((seen.cluster or {}).get("status") or {}).get("phase")
    if phase in (None, "", "Error") or is_terminating(seen.cluster):
        return []
    desired = [Ref(kind, seen.names.scheduler) for kind in ("Deployment", "Service")]
    return [ref for ref in desired if ref not in seen.parts]


def _claim_problems(seen: Observed, clock: Clock) -> Iterator[Problem]:
    """Yield why the operator's own claim has no volume; a claim that only waits for its pod has no problem."""
    claim = seen.children.get(Ref(CLAIM, seen.names.checkpoints))
    if claim is None or not _lacks_a_volume(claim):
        return
    name = claim["metadata"]["name"]
    if (claim.get("status") or {}).get("phase") == "Lost":
        yield Problem("VolumePending", f"The volume of the claim {name} is gone; delete the claim to start over.")
    elif claim["spec"].get("storageClassName"):
        yield from _event_problems(seen, name, clock)
    elif clock.passed(_pending_since(claim), UNEXPLAINED_AFTER_SECONDS):
        why = f"The claim {name} has no volume: it names no StorageClass, and the cluster has no default one"
        yield Problem("VolumePending", f"{why}. Give spec.checkpoint.volume.storageClassName, or claimName or uri.")


def _role_problems(seen: Observed, role: str, clock: Clock) -> Iterator[Problem]:
    for pod in seen.pods_of(role):
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        name = pod["metadata"]["name"]
        if _is_silent(pod):
            yield from _event_problems(seen, name, clock)
        elif _may_lack_pull_secret(pod):
            yield from _event_problems(seen, name, clock, _EVENTS_OF_PULLS)
        yield from pod_problems(pod)


def unexplained(seen: Observed, clock: Clock) -> tuple[Object, ...]:
    """Return at most MOST_EVENT_READS objects that only their events can explain: pending pods, claims, Jobs without a
    pod, and a DaskCluster without its parts.

    Events are not watched: the observer reads them before a pass, and the pass says when to read them next.
    """
    silent: list[Object] = []
    job = seen.trainer
    claim = seen.children.get(Ref(CLAIM, seen.names.checkpoints))
    if seen.cluster is not None and missing_parts_of(seen):
        silent.append(seen.cluster)
    if job is not None and _lacks_a_pod(job):
        silent.append(job)
    # The provisioner of the claim's class may say why it makes no volume.
    is_unbound = claim is not None and _lacks_a_volume(claim) and bool(claim["spec"].get("storageClassName"))
    if job is not None and claim is not None and is_unbound and _is_active(job):
        silent.append(claim)
    silent += [pod for pod in seen.pods if _is_silent(pod) and not is_terminating(pod)]
    found = [body for body in silent if clock.passed(_pending_since(body), UNEXPLAINED_AFTER_SECONDS)]
    found += [pod for pod in seen.pods if _may_lack_pull_secret(pod)]
    return tuple(found[:MOST_EVENT_READS])


def seconds_between_event_reads(pending: tuple[Object, ...], now: datetime) -> float:
    """Return the seconds between two reads of the events of these objects."""
    youngest = min(seconds_since(_pending_since(body), now) for body in pending)
    return min(LONGEST_EVENT_AGE_SECONDS, max(SHORTEST_EVENT_AGE_SECONDS, youngest / 4))


def _lacks_a_volume(claim: Object) -> bool:
    return (claim.get("status") or {}).get("phase") != "Bound" and not is_terminating(claim)


def _lacks_a_pod(job: Object) -> bool:
    return not (job.get("status") or {}).get("active", 0) and _is_active(job)


def _is_active(job: Object) -> bool:
    """Return whether the Job has not ended, and is not suspended."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not (job["spec"].get("suspend") or any(one.get("type") in ("Complete", "Failed") for one in conditions))


def _is_silent(pod: Object) -> bool:
    """Return whether the pod is pending and its status does not say why."""
    return (pod.get("status") or {}).get("phase") == "Pending" and next(pod_problems(pod), None) is None


def _may_lack_pull_secret(pod: Object) -> bool:
    """Return whether the image pull fails, perhaps because a pull secret is missing, whoever named it."""
    problem = next(pod_problems(pod), None)
    return problem is not None and problem.reason == "ImagePullFailed"


def _pending_since(body: Object) -> str | None:
    """Return when the object was created, or when a Job last started, because a suspended Job needs no pod."""
    since: str | None = body["metadata"].get("creationTimestamp")
    if body["kind"] == "Job":
        since = (body.get("status") or {}).get("startTime") or since
    return since


def pod_problems(pod: Object) -> Iterator[Problem]:
    """Yield the problems in the pod's own status; the messages stay the same as long as the problem does."""
    name = pod["metadata"]["name"]
    for condition in status_list(pod, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield _problem("Unschedulable", name, str(condition.get("message", "")))
        elif condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            gates = ", ".join(gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ())
            yield Problem("Unschedulable", truncated(f"{name}: Scheduling gates hold the pod: {gates}. {_ADMISSION}"))
    for container in [*status_list(pod, "initContainerStatuses"), *status_list(pod, "containerStatuses")]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        crash = _crash(container, waits=reason == "CrashLoopBackOff")
        if reason in _PULL:
            message = str(waiting.get("message") or reason)
            # The part after "ErrImagePull: " stays the same while the kubelet backs off.
            yield _problem("ImagePullFailed", name, message.partition("ErrImagePull: ")[2] or message)
        elif crash is not None and not container.get("ready"):
            yield _problem("PodBroken", name, crash)
        elif reason in _BROKEN:
            yield _problem("PodBroken", name, f"{reason}: {waiting.get('message', '')}")


def status_list(body: Object | None, field: str) -> list[dict[str, Any]]:
    """Return a list in the object's status; empty if it is not there."""
    return ((body or {}).get("status") or {}).get(field) or []


def _event_problems(seen: Observed, name: str, clock: Clock, events: Mapping[str, str] = _EVENTS) -> Iterator[Problem]:
    """Yield the problem in the newest of these events about the object of that name; none if it is too old."""
    newest = _newest_warning(seen, name, events, clock)
    if newest is None:
        return
    text = str(newest.get("message", "")).removeprefix("Error creating: ")
    if newest["reason"] == "FailedCreate":
        yield _refused_pod(text, seen.namespace)
    else:
        yield _problem(events[newest["reason"]], name, text)


def _newest_warning(seen: Observed, name: str, reasons: Container[str], clock: Clock) -> Object | None:
    """Return the newest event about the object of that name with one of the reasons; None if none is recent."""
    newest: Object | None = None
    for event in seen.warnings:
        is_about = event["involvedObject"].get("name") == name and event.get("reason") in reasons
        if is_about and (newest is None or _time(event) > _time(newest)):
            newest = event
    if newest is None or clock.passed(_time(newest), EVENT_LIFE_SECONDS):
        return None
    return newest


def _refused_pod(message: str, namespace: str) -> Problem:
    if _MISSING.search(message):
        return _problem("PodsRefused", "", POD_NAME.sub(r"pods \g<owner>-…", message))
    found = refused_pod(message, namespace)
    return found._replace(message=truncated(found.message))


def _crash(container: Object, *, waits: bool) -> str | None:
    """Return how a crashing container ended; None if it does not keep crashing.

    The text is the same in all three states of a crash loop: waiting, running and terminated.
    """
    if not waits and container.get("restartCount", 0) < RESTARTS_OF_THE_BROKEN:
        return None
    last = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if not last or not last.get("exitCode"):
        return None
    output = str(last.get("message") or "").strip()
    code = f"container {container.get('name')} ends with exit code {last['exitCode']} ({last.get('reason')})"
    return f"{code}: {output}" if output else f"{code}."


def _problem(reason: str, pod: str, text: str) -> Problem:
    """Return the problem with its remedy; a known cause may replace the reason."""
    message = f"{pod}: {text}" if pod else text
    missing = _MISSING.search(text)
    secret = _PULL_SECRET.search(text)
    if missing is not None:
        reason = "ReferenceMissing"
        remedy = f"Create the {missing[1]} {missing[2]}, or remove it from the job."
    elif secret is not None:
        reason = "ReferenceMissing"
        remedy = f"Create the secret {secret[1]}, or remove it from the job."
    else:
        if reason == "Unschedulable" and _UNBOUND.search(text):
            reason = "VolumePending"
        remedy = _remedy(reason, pod, text)
    end = "" if not remedy or message.endswith((".", "!")) else "."
    return Problem(reason, truncated(f"{message}{end} {remedy}".strip()))


def _remedy(reason: str, pod: str, text: str) -> str:
    """Return what helps against a problem that somebody describes in these words; "" if that is not known."""
    remedy = remedy_of_image(text)
    if not remedy and reason == "ImagePullFailed":
        remedy = _first_remedy(_REMEDIES_OF_PULLS, text)
    return remedy or REMEDIES.get(reason, "").format(less=less(pod))


def remedy_of_image(text: str) -> str:
    """Return what helps if these words say that the image is the wrong one; "" if they do not."""
    return _first_remedy(_REMEDIES_OF_IMAGES, text)


def _first_remedy(remedies: tuple[tuple[re.Pattern[str], str], ...], text: str) -> str:
    return next((remedy for words, remedy in remedies if words.search(text)), "")


def _time(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


# Objects that are being deleted and stay, because of their finalizers.


def stuck_deletions(seen: Observed, clock: Clock) -> Iterator[Problem]:
    """Yield the problem of each object with a child's name that was deleted a while ago and is still there."""
    # Strangers too: an object of an earlier job keeps the name in use until it is gone.
    present = {**_strangers(seen), **seen.children}
    for ref, found in sorted(present.items(), key=itemgetter(0)):
        since = found["metadata"].get("deletionTimestamp")
        if since is None:
            continue
        limit = STUCK_JOB_AFTER_SECONDS if ref.kind == "Job" else STUCK_AFTER_SECONDS
        if clock.passed(since, limit):
            yield _stuck(seen, ref, found, str(since))


def _stuck(seen: Observed, ref: Ref, found: Object, since: str) -> Problem:
    kind, name = ref
    finalizers = ", ".join(finalizers_of(found))
    text = f"{kind} {name} was deleted at {since} and is still there"
    release = (
        f"`kubectl patch {kind.lower()} {name} --namespace {seen.namespace} --type merge "
        """--patch '{"metadata":{"finalizers":null}}'`"""
    )
    pods = f"`kubectl get pods --namespace {seen.namespace} --selector {names.selector(seen.name)}`"
    if kind == "DaskCluster":
        text += f", because the Dask operator does not release it (finalizer {finalizers or 'unknown'}). "
        return Problem("DaskOperatorMissing", f"{text}Is the Dask operator running? If it is gone for good: {release}.")
    if not finalizers:
        return Problem("DeletionStuck", f"{text}, although no finalizer holds it. Look at the API server's log.")
    if "foregroundDeletion" in finalizers:
        return Problem(
            "DeletionStuck", f"{text}, because its pods must go first. Look for one that does not end: {pods}."
        )
    if kind == CLAIM and "pvc-protection" in finalizers:
        return Problem("DeletionStuck", f"{text}, because pods use it. Look for one that does not end: {pods}.")
    text += f", because the finalizer {finalizers} holds it. If the controller of the finalizer is gone: {release}."
    return Problem("DeletionStuck", truncated(text))


# Objects that an earlier job of the same name left behind: `kubectl delete --cascade=orphan` removes their owner.


def left_over(seen: Observed) -> Problem | None:
    """Return the problem of all objects of an earlier job of this name that nobody will delete; None without any.

    They are not adopted: a report, a checkpoint or a running trainer of another training would pass for this job's.
    """
    found = []
    for ref, body in sorted(_strangers(seen).items(), key=itemgetter(0)):
        # Garbage collection removes an object that has an owner or is being deleted already.
        if not is_terminating(body) and not body["metadata"].get("ownerReferences"):
            found.append(ref)
    if not found:
        return None
    kinds = sorted({ref.kind.lower() for ref in found})
    each = ", ".join(f"{ref.kind} {ref.name}" for ref in found)
    text = f"Left without an owner by an earlier job of this name: {each}"
    remove = f"kubectl delete {','.join(kinds)} --namespace {seen.namespace} --selector {names.selector(seen.name)}"
    careful = " The claim has the earlier job's checkpoints." if any(ref.kind == CLAIM for ref in found) else ""
    return Problem("NameTaken", truncated(f"{text}. Delete what is left: `{remove}`.{careful}"))


def going(seen: Observed, ref: Ref) -> Problem | None:
    """Return the problem of an object of an earlier job of this name that Kubernetes is deleting; else None.

    Garbage collection takes a moment after `kubectl delete`, and a new job may be there before it has finished.
    """
    found = seen.strangers.get(ref)
    owners = () if found is None else found["metadata"].get("ownerReferences") or ()
    if not any((owner.get("kind"), owner.get("name")) == (KIND, seen.name) for owner in owners):
        return None
    kind, name = ref
    text = f"{kind} {name} is still that of an earlier job of this name. Kubernetes deletes it, and then the operator"
    return Problem("NameTaken", f"{text} makes this job's.")


def _strangers(seen: Observed) -> dict[Ref, Object]:
    """Return the objects of others that have the names of the job's children, as far as they have the job's label."""
    desired = _children(seen.name)
    return {ref: body for ref, body in seen.strangers.items() if ref in desired}


@lru_cache(maxsize=names.MOST_REMEMBERED)
def _children(job: str) -> frozenset[Ref]:
    """Return the kinds and names of all children that a job may have."""
    return frozenset(
        {
            Ref("ConfigMap", names.of(job).plan),
            Ref("ConfigMap", names.of(job).progress),
            Ref("DaskCluster", names.of(job).cluster),
            Ref("Deployment", names.of(job).workers),
            Ref("Job", names.of(job).trainer),
            Ref("NetworkPolicy", names.of(job).network_policy),
            Ref(CLAIM, names.of(job).checkpoints),
            Ref("Role", names.of(job).progress),
            Ref("RoleBinding", names.of(job).progress),
            Ref("Secret", names.of(job).authority),
            Ref("Secret", names.of(job).tls),
            Ref("ServiceAccount", names.of(job).trainer),
        }
    )

"""The newest known state of every job and child, from watches and from responses to writes, which arrive in any order.

A sweep finds the changes that the watches missed.
"""

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.api.client import JOBS, TIMEOUT_SECONDS, WATCHED, Api, Refused
from batchgrowth_operator.seen.observed import Object, Ref, is_owned_by, is_pod_of, labels_of, ref_of

POD_METADATA = frozenset(
    {
        "name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences", "creationTimestamp",
        "deletionTimestamp",
    }
)  # fmt: skip
"""Fields that are kept of a pod's metadata; those of its other parts follow."""
POD_SPEC = frozenset({"nodeName", "schedulingGates"})
POD_STATUS = frozenset({"phase", "reason", "message", "startTime", "conditions"})
CONTAINERS = frozenset({"containerStatuses", "initContainerStatuses"})
CONTAINER_STATUS = frozenset({"name", "ready", "restartCount", "state", "lastState"})
MANAGED = frozenset({"manager", "subresource", "fieldsV1"})
"""Fields that are kept of an entry of managedFields."""
TOMBSTONE_SECONDS = 2.0 * TIMEOUT_SECONDS
"""Time for which an older state of a removed object is ignored: twice as long as the response to a write may take.

Watches report the states of an object in their order, so such a response is the latest that can still arrive. Should
one arrive later all the same, the sweep finds an object that the API server does not have, and discards it.
"""
SWEEP_SECONDS = 60.0
"""Time between two sweeps."""
GRACE_SECONDS = 5.0
"""Time by which a watch may lag behind a list before its event counts as missed."""

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """A job's namespace and name."""

    namespace: str
    name: str


Place = tuple[Key, Ref]
"""An object of a job."""


def key_of(body: Object) -> Key:
    """Return the key of the object's job: the object itself, or the job that its label names."""
    metadata = body["metadata"]
    if body["kind"] == KIND:
        return Key(metadata["namespace"], metadata["name"])
    return Key(metadata["namespace"], labels_of(body).get(names.JOB_LABEL, ""))


class Cached(Protocol):
    """An object as the store holds it."""

    @property
    def version(self) -> int:
        """Return the object's resource version."""

    def unpacked(self) -> Object:
        """Return the object, which the caller must not change."""


class Packed(NamedTuple):
    """An object's resource version and its compressed JSON, a tenth of the size of the dictionaries."""

    version: int
    text: bytes

    def unpacked(self) -> Object:
        """Return the object."""
        body: Object = json.loads(zlib.decompress(self.text))
        return body


class PodSummary(NamedTuple):
    """A pod's resource version and the parts that decisions need, uncompressed: a job may have hundreds of pods."""

    version: int
    pod: Object

    def unpacked(self) -> Object:
        """Return the pod."""
        return self.pod


class Tombstone(NamedTuple):
    """The last version of a removed object, and when it was removed."""

    version: int
    removed: float


class Store:
    """The newest known state of each object, by resource version and not by order of arrival."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[Ref, Cached]] = {}
        self._gone: dict[Place, Tombstone] = {}  # by the time of the removal
        self._progress_echoes: dict[Key, int] = {}  # the version of the job
        self._lock = Lock()  # watches write from the event loop, responses from threads

    def update(self, body: Object, *, is_progress_only: bool = False) -> Key:
        """Store the object unless a newer version is known, and return the key of its job.

        `is_progress_only` is set for a job whose status this process just wrote: see `is_progress_echo`.
        """
        key = key_of(body)
        ref = ref_of(body)
        with self._lock:
            # The response to a write may arrive after the deletion that followed it; the object stays removed.
            if version_of(body) > max(self._known(key, ref), self._removed(key, ref)):
                self._objects.setdefault(key, {})[ref] = _cached(body)
                # An echo that came before this response is stored already, and its handler has woken the job.
                if is_progress_only:
                    self._progress_echoes[key] = version_of(body)
        return key

    def is_progress_echo(self, body: Object) -> bool:
        """Return whether a watch reports a job only because this process wrote new progress to its status.

        Every write comes back through the watch and wakes the job, because most writes leave something to decide. A
        pass that wrote only progress (`Writes.is_progress_only`) leaves nothing to decide. So the writer stores the new
        version here, and the watch's handler does not wake the job, which saves every second pass of a training job. A
        version that another process wrote is no echo, even if its status is the same.
        """
        return body["kind"] == KIND and self._progress_echoes.get(key_of(body)) == version_of(body)

    def refresh(self, key: Key, body: Object, outdated: int = -1) -> None:
        """Store an object that was just read from the API server under that job, regardless of its labels.

        It replaces the version `outdated` even if that is newer, as after etcd was restored from a backup.
        """
        ref = ref_of(body)
        with self._lock:
            known = self._known(key, ref)
            if version_of(body) >= max(known, self._removed(key, ref)) or known == outdated >= 0:
                self._objects.setdefault(key, {})[ref] = _cached(body)

    def remove(self, body: Object) -> Key:
        """Remove an object that was deleted or lost its label; `body` is its last state. Return its job's key."""
        key = key_of(body)
        ref = ref_of(body)
        with self._lock:
            if version_of(body) >= self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)
                # Taken out first, so that it comes last in the order of removals by which `_bury` goes.
                self._gone.pop((key, ref), None)
                self._gone[key, ref] = Tombstone(version_of(body), time.monotonic())
                self._bury()
            self._forget_if_empty(key)
        return key

    def discard(self, key: Key, ref: Ref, version: int | None = None) -> None:
        """Remove an object that the API server no longer has; with `version`, only if that version is stored."""
        with self._lock:
            if version is None or version == self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)
            self._forget_if_empty(key)

    def job(self, key: Key) -> Object | None:
        """Return the job itself, or None if it is not known."""
        return self.child(key, Ref(KIND, key.name))

    def child(self, key: Key, ref: Ref) -> Object | None:
        """Return an object of the job, or None if the store has none."""
        found = self._objects.get(key, {}).get(ref)
        return None if found is None else found.unpacked()

    def pods(self, key: Key) -> list[Object]:
        """Return the known pods of a job."""
        with self._lock:
            found = list(self._objects.get(key, {}).items())
        return [packed.unpacked() for ref, packed in found if ref.kind == "Pod"]

    def refs(self, key: Key) -> Collection[Ref]:
        """Return the refs of a job's known objects, the job included."""
        with self._lock:
            return tuple(self._objects.get(key, ()))

    def children(self, key: Key) -> Mapping[Ref, Object]:
        """Return the known objects of a job, the job excluded."""
        with self._lock:
            found = list(self._objects.get(key, {}).items())
        return {ref: packed.unpacked() for ref, packed in found if ref.kind != KIND}

    def versions(self, kind: str, namespace: str = "") -> dict[tuple[Key, Ref], int]:
        """Return the versions of all known objects of a kind, in one namespace or in all."""
        with self._lock:
            return {
                (key, ref): packed.version
                for key, objects in self._objects.items()
                if namespace in ("", key.namespace)
                for ref, packed in objects.items()
                if ref.kind == kind
            }

    def _forget_if_empty(self, key: Key) -> None:
        if not self._objects.get(key):
            self._objects.pop(key, None)
            self._progress_echoes.pop(key, None)

    def _removed(self, key: Key, ref: Ref) -> int:
        """Return the version at which the object was removed; -1 if it was not removed, or long ago."""
        self._bury()
        gone = self._gone.get((key, ref))
        return -1 if gone is None else gone.version

    def _bury(self) -> None:
        """Forget objects that were removed long ago, the oldest first."""
        oldest = time.monotonic() - TOMBSTONE_SECONDS
        while self._gone and self._gone[first := next(iter(self._gone))].removed <= oldest:
            del self._gone[first]

    def _known(self, key: Key, ref: Ref) -> int:
        found = self._objects.get(key, {}).get(ref)
        return -1 if found is None else found.version


def version_of(body: Object) -> int:
    """Return the object's resource version; a larger number is newer."""
    return int(body["metadata"]["resourceVersion"])


def _cached(body: Object) -> Cached:
    """Return the object without fields that no decision needs, so that a thousand jobs fit into memory."""
    if body["kind"] == "Pod":
        return PodSummary(version_of(body), _summary(body))
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    if others := [*_others(body)]:
        metadata["managedFields"] = others
    text = json.dumps({**body, "metadata": metadata}, separators=(",", ":")).encode()
    return Packed(version_of(body), zlib.compress(text, 1))


def _others(body: Object) -> Iterator[Object]:
    """Yield the entries of `managedFields` by other managers, without the status; they tell who contests a field."""
    if body["kind"] == KIND:
        return  # nobody contests the fields of a job
    for entry in body["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.FIELD_MANAGER and entry.get("subresource") != "status":
            yield _only(MANAGED, entry)


def _summary(pod: Object) -> Object:
    """Return the pod's identity, its node, and the part of its status that says whether and why it does not run."""
    given = pod.get("status") or {}
    containers = {field: [_only(CONTAINER_STATUS, one) for one in given[field]] for field in CONTAINERS & given.keys()}
    return {
        "kind": "Pod",
        "metadata": _only(POD_METADATA, pod["metadata"]),
        "spec": _only(POD_SPEC, pod.get("spec") or {}),
        "status": _only(POD_STATUS, given) | containers,
    }


def _only(fields: frozenset[str], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in fields}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Finds changes that the watches missed: an object that was deleted while a watch was broken, or a kind that was
    not watched.

    A sweep lists the versions of all objects in these namespaces, or in the whole cluster if there are none, and
    compares them with the store. As long as the watches work, the two agree.
    """

    api: Api
    store: Store
    namespaces: Sequence[str] = ()

    async def run(self, wake: Callable[[Key], None]) -> None:
        """Sweep every SWEEP_SECONDS until cancelled, and wake the jobs with missed changes.

        Each namespace has its own turn: one that is slow or forbidden delays no other.
        """
        async with asyncio.TaskGroup() as group:
            for namespace in self.namespaces or ("",):
                group.create_task(self._run_in(namespace, wake), name=f"sweep {namespace}")

    async def _run_in(self, namespace: str, wake: Callable[[Key], None]) -> None:
        where = f" in {namespace}" if namespace else ""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for kind in JOBS | WATCHED:
                try:
                    for key in await self.sweep(kind, namespace):
                        log.warning("%s/%s: the watch of %s missed a change, which a list found", *key, kind)
                        wake(key)
                except (Refused, OSError) as error:
                    log.warning("cannot list %s%s: %s", kind, where, error)
                except Exception:
                    log.exception("the sweep of %s%s failed", kind, where)

    async def sweep(self, kind: str, namespace: str = "") -> list[Key]:
        """Bring the store up to date for one kind, and return the jobs with missed changes."""
        suspects = await asyncio.to_thread(self._differences, kind, namespace)
        if not suspects:
            return []
        await asyncio.sleep(GRACE_SECONDS)
        return await asyncio.to_thread(self._refresh_stale, suspects, kind, namespace)

    def _differences(self, kind: str, namespace: str) -> dict[Place, int | None]:
        """Return the objects that are listed in a newer version, with that version, and the known objects that are not
        listed, or only in an older version (etcd was restored from a backup), with None.
        """
        known = self.store.versions(kind, namespace)
        label = None if kind == KIND else names.JOB_LABEL
        listed = {(key_of(body), ref_of(body)): version_of(body) for body in self.api.listed(kind, namespace, label)}
        newer = {place: version for place, version in listed.items() if version > known.get(place, -1)}
        return newer | dict.fromkeys(place for place, version in known.items() if listed.get(place, -1) < version)

    def _refresh_stale(self, suspects: Mapping[Place, int | None], kind: str, namespace: str) -> list[Key]:
        """Read the objects that are still out of date, up to the first that cannot be read, which the next sweep finds.

        Return the jobs of those that were read: no later sweep would find them.
        """
        known = self.store.versions(kind, namespace)
        missed = []
        for (key, ref), version in suspects.items():
            now = known.get((key, ref), -1)
            is_missed = now >= 0  # without a newer version: the store still has the object
            if version is not None:
                is_missed = now < version
            if is_missed:
                try:
                    self._read(key, ref, now)
                except (Refused, OSError) as error:
                    log.warning("%s/%s: cannot read %s %s: %s", *key, *ref, error)
                    break
                missed.append(key)
        return missed

    def _read(self, key: Key, ref: Ref, known: int) -> None:
        """Read one object by a list request, which the operator may make for every kind."""
        for body in self.api.list_of(ref.kind, key.namespace, field_selector=f"metadata.name={ref.name}"):
            if self._is_of(key, body):
                self.store.refresh(key, body, known)
                return
        self.store.discard(key, ref, known)

    def _is_of(self, key: Key, body: Object) -> bool:
        """Return whether the object is the job's: by its label, or by its owner if somebody has changed the label."""
        if key_of(body) == key or is_pod_of(body, key.name, ()):
            return True
        known = (self.store.child(key, ref) for ref in self.store.refs(key))
        return any(is_owned_by(body, owner["metadata"]["uid"]) for owner in known if owner is not None)

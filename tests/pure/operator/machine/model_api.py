"""An API server in memory: versions, uids, server-side apply, finalizers, deletion, and watches by label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from batchgrowth import names
from batchgrowth.spec import KIND
from batchgrowth_operator.api.client import Refused, ServerClock
from batchgrowth_operator.children.drift import is_smaller
from batchgrowth_operator.seen.observed import Ref, labels_of, ref_of, timestamp
from batchgrowth_operator.seen.situation import size_of

NAMESPACE = "default"
START = datetime(2026, 11, 20, 10, tzinfo=UTC)
FOREGROUND = "foregroundDeletion"
IMMUTABLE = {
    "Job": ("template",),
    "Deployment": ("selector",),
    "RoleBinding": ("roleRef",),
    "PersistentVolumeClaim": ("accessModes", "storageClassName"),
}
"""Kind -> fields, of its spec or of the object, that an existing object must keep."""
GRACE_SECONDS = 60

Body = dict[str, Any]
Watcher = Callable[[str, Body], None]


class Server:
    """All objects of one namespace, the Lease, the true time in seconds, and how far the server's clock is from it.

    Every change is sent to the watchers. A stored object is never changed, only replaced, so that it can be handed out.
    """

    def __init__(self) -> None:
        self.objects: dict[Ref, Body] = {}
        self.applied: dict[str, Body] = {}  # uid -> the fields that the operator owns
        self.watchers: list[Watcher] = []
        self.lease: Body | None = None
        self.seconds = 0.0
        self.skew = timedelta()
        self.version = 100
        self.uids = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds) + self.skew

    def get(self, ref: Ref) -> Body | None:
        return self.objects.get(ref)

    def of_kind(self, kind: str) -> list[Body]:
        return [body for ref, body in sorted(self.objects.items()) if ref.kind == kind]

    def create(self, body: Body) -> Body:
        self.uids += 1
        stamp = {"uid": f"uid-{self.uids}", "creationTimestamp": timestamp(self.now), "generation": 1}
        made = copied(body)
        made["metadata"] = {"namespace": NAMESPACE, **made["metadata"], **stamp}
        return self._store(made)

    def change(self, ref: Ref, change: Callable[[Body], None]) -> None:
        """An edit by anyone but the operator, which no longer owns the fields that it changes."""
        before, after = self.objects[ref], copied(self.objects[ref])
        change(after)
        if after != before:
            _disown(self.applied.get(before["metadata"]["uid"], {}), after)
            self._replace(before, after)

    def apply(self, manifest: Body, subresource: str = "") -> Body:
        """Server-side apply by the operator, which wins every conflict of owners."""
        ref, metadata = ref_of(manifest), manifest["metadata"]
        found = self.objects.get(ref)
        if found is None and subresource:
            raise Refused(404, f"{ref} not found")
        if any(metadata.get(f, _of(found, f)) != _of(found, f) for f in ("uid", "resourceVersion")):
            raise Refused(409, f"{ref} is not the object of that version")
        if found is None:
            made = self.create(manifest)
            self.applied[made["metadata"]["uid"]] = copied(manifest)
            return made
        if subresource:
            return self._replace(found, found | {"status": manifest["status"]})
        after, uid = copied(found), found["metadata"]["uid"]
        _remove(after, self.applied.get(uid, {}), manifest)
        _merge(after, manifest)
        _check_immutable(found, after)
        self.applied[uid] = copied(manifest)
        return self._replace(found, after)

    def delete(self, ref: Ref, propagation: str = "Background") -> None:
        """Deletes as the API server does: an object with finalizers, or a pod, stays until its controller is done."""
        found = self.objects[ref]
        metadata = copied(found["metadata"])
        if propagation == "Foreground":
            metadata["finalizers"] = sorted({*metadata.get("finalizers", ()), FOREGROUND})
        if metadata.get("finalizers") or ref.kind == "Pod":
            grace = timedelta(seconds=GRACE_SECONDS if ref.kind == "Pod" else 0)
            self._replace(found, found | {"metadata": {"deletionTimestamp": timestamp(self.now + grace)} | metadata})
        else:
            self.remove(ref)

    def release(self, ref: Ref, finalizer: str) -> None:
        """Removes a finalizer, and with the last one an object that is being deleted."""
        found = self.objects[ref]
        kept = [name for name in found["metadata"].get("finalizers", ()) if name != finalizer]
        self._replace(found, found | {"metadata": found["metadata"] | {"finalizers": kept}})
        if not kept and "deletionTimestamp" in found["metadata"]:
            self.remove(ref)

    def remove(self, ref: Ref) -> None:
        gone = self.objects.pop(ref)
        self.applied.pop(gone["metadata"]["uid"], None)
        self._send("DELETED", gone | {"metadata": gone["metadata"] | {"resourceVersion": self._next_version()}})

    def _replace(self, before: Body, after: Body) -> Body:
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            after["metadata"] = after["metadata"] | {"generation": before["metadata"]["generation"] + 1}
        if is_watched(before) and not is_watched(after):
            self._send(
                "DELETED", before | {"metadata": before["metadata"] | {"resourceVersion": str(self.version + 1)}}
            )
        return self._store(after)

    def _store(self, body: Body) -> Body:
        body["metadata"] = body["metadata"] | {"resourceVersion": self._next_version()}
        self.objects[ref_of(body)] = body
        self._send("MODIFIED", body)
        return body

    def _next_version(self) -> str:
        self.version += 1
        return str(self.version)

    def _send(self, kind: str, body: Body) -> None:
        if is_watched(body):
            for watcher in self.watchers:
                watcher(kind, body)


class Client:
    """One operator's connection, with the methods of Api. It reports each write, and may be cut after one."""

    def __init__(self, server: Server, before_write: Callable[[str, Ref, Body], None]) -> None:
        self.server = server
        self.refused: set[tuple[str, Ref]] = set()
        """Verbs and objects: `apply`, which for the job is its status, and `delete`."""
        self.refusals = 0
        self.requests = 0
        """Requests to write, whether they changed anything or not."""
        self.writes_left: int | None = None
        """Writes after which the process is killed, before it reads the answer; None for no end."""
        self.clock = ServerClock()
        self._before_write = before_write

    def within(self, seconds: float) -> Client:
        return self

    def get(self, ref: Ref, namespace: str) -> Body | None:
        self._take_date()
        return self.server.get(ref)

    def list_of(self, kind: str, namespace: str, label_selector: str = "", field_selector: str = "") -> list[Body]:
        name = field_selector.removeprefix("metadata.name=")
        return [body for body in self.server.of_kind(kind) if name in ("", body["metadata"]["name"])]

    def listed(self, kind: str, namespace: str, label_selector: str | None) -> Iterator[Body]:
        yield from ({"kind": kind, "metadata": b["metadata"]} for b in self.server.of_kind(kind) if is_watched(b))

    def warnings(self, namespace: str, uid: str) -> list[Body]:
        return []

    def post_event(self, namespace: str, event: Body) -> None:
        self.requests += 1
        self._before_write("post", Ref("Event", event["reason"]), event)
        self._cut_if_due()

    def repeat_event(self, namespace: str, name: str, change: Body) -> bool:
        self.post_event(namespace, {"reason": name, **change})
        return True

    def apply(self, manifest: Body, subresource: str = "") -> Body:
        ref = ref_of(manifest)
        self.requests += 1
        self._refuse("apply", ref)
        before = self.server.version
        self._before_write("status" if subresource else "apply", ref, manifest)
        answer = self.server.apply(manifest, subresource)
        self._take_date()
        if self.server.version != before:
            self._cut_if_due()
        return answer

    def delete(self, ref: Ref, namespace: str, uid: str, propagation: str) -> None:
        found = self.server.objects.get(ref)
        self.requests += 1
        self._refuse("delete", ref)
        if found is None or found["metadata"]["uid"] != uid or "deletionTimestamp" in found["metadata"]:
            return
        self._before_write("delete", ref, {})
        self.server.delete(ref, propagation)
        self._cut_if_due()

    def get_lease(self, namespace: str, name: str) -> Body | None:
        self._take_date()
        return copied(self.server.lease)

    def put_lease(self, lease: Body) -> Body:
        held = self.server.lease
        if held is not None and held["metadata"]["resourceVersion"] != lease["metadata"].get("resourceVersion"):
            raise Refused(409, "the Lease has changed")
        version = {"resourceVersion": str(int(_of(held, "resourceVersion") or 0) + 1)}
        self.server.lease = copied(lease) | {"metadata": lease["metadata"] | version}
        return copied(self.server.lease)

    def _refuse(self, verb: str, ref: Ref) -> None:
        if (verb, ref) in self.refused:
            self.refusals += 1
            raise Refused(403, f"{ref} is refused")

    def _take_date(self) -> None:
        """A response has the server's time of day."""
        self.clock.correct(format_datetime(self.server.now, usegmt=True), self.server.seconds)

    def _cut_if_due(self) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                raise Killed


class Killed(BaseException):
    """The operator's process was killed."""


def is_watched(body: Body) -> bool:
    """Whether the operator's watches see the object: jobs, and what has the label of a job; never a Secret."""
    return body["kind"] == KIND or (body["kind"] != "Secret" and names.JOB_LABEL in labels_of(body))


def copied(value: Any) -> Any:
    """A deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def _of(body: Body | None, field: str) -> Any:
    return None if body is None else body["metadata"].get(field)


def _check_immutable(before: Body, after: Body) -> None:
    for field in IMMUTABLE.get(before["kind"], ()):
        if (before.get("spec") or before).get(field) != (after.get("spec") or after).get(field):
            raise Refused(422, f"{before['kind']}: {field} is immutable")
    if before["kind"] == "PersistentVolumeClaim" and is_smaller(size_of(after), size_of(before)):
        raise Refused(422, "PersistentVolumeClaim: it does not shrink")


def _merge(found: Body, wanted: Body) -> None:
    for key, value in wanted.items():
        if isinstance(value, dict):
            _merge(found.setdefault(key, {}), value)
        elif key == "ownerReferences":
            mine = {owner["uid"] for owner in value}
            found[key] = [owner for owner in found.get(key, ()) if owner["uid"] not in mine] + copied(value)
        else:
            found[key] = copied(value)


def _remove(found: Body, before: Body, after: Body) -> None:
    """Removes what was applied before and is not any more."""
    for key, value in before.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            _remove(found[key], value, after.get(key, {}))
        elif key not in after:
            found.pop(key, None)


def _disown(applied: Body, body: Any) -> None:
    """Removes from `applied` what another manager has changed."""
    for key in list(applied):
        other = body.get(key) if isinstance(body, dict) else None
        if isinstance(applied[key], dict) and isinstance(other, dict):
            _disown(applied[key], other)
        elif applied[key] != other:
            del applied[key]

"""The newest known state of every job and child, updated by watches and by the responses to writes, in any order."""

import json
import zlib
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.seen.observed import Object, Ref, labels_of, ref_of


class Key(NamedTuple):
    """A job's namespace and name."""

    namespace: str
    name: str


def key_of(body: Object) -> Key:
    """The key of the job that the object is or, by its label, belongs to."""
    metadata = body["metadata"]
    name = metadata["name"] if body["kind"] == KIND else labels_of(body).get(names.JOB_LABEL, "")
    return Key(metadata["namespace"], name)


class Packed(NamedTuple):
    """An object's resource version and its compressed JSON, a tenth of the size of the dictionaries."""

    version: int
    text: bytes

    def unpacked(self) -> Object:
        """The object."""
        body: Object = json.loads(zlib.decompress(self.text))
        return body


class Store:
    """The newest known state of each object, by resource version and not by order of arrival."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[Ref, Packed]] = {}
        self._gone: dict[Key, dict[Ref, int]] = {}
        self._lock = Lock()  # watches write from the event loop, responses from threads

    def update(self, body: Object) -> Key:
        """Stores the object unless a newer version is known. Returns the key of its job."""
        key, ref = key_of(body), ref_of(body)
        with self._lock:
            if version_of(body) > max(self._known(key, ref), self._gone.get(key, {}).get(ref, -1)):
                self._objects.setdefault(key, {})[ref] = _packed(body)
        return key

    def refresh(self, key: Key, body: Object) -> None:
        """Stores an object just read from the API server under that job, whatever its labels are."""
        ref = ref_of(body)
        with self._lock:
            if version_of(body) >= max(self._known(key, ref), self._gone.get(key, {}).get(ref, -1)):
                self._objects.setdefault(key, {})[ref] = _packed(body)

    def remove(self, body: Object) -> Key:
        """Removes an object that was deleted or lost its label; `body` is its last state. Returns its job's key."""
        key, ref = key_of(body), ref_of(body)
        with self._lock:
            if version_of(body) >= self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)
                self._gone.setdefault(key, {})[ref] = version_of(body)
            self._forget_if_empty(key)
        return key

    def discard(self, key: Key, ref: Ref, version: int | None = None) -> None:
        """Removes an object that the API server no longer has; with `version`, only if that version is stored."""
        with self._lock:
            if version is None or version == self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)
            self._forget_if_empty(key)

    def job(self, key: Key) -> Object | None:
        """The job itself, or None if it is not known."""
        found = self._objects.get(key, {}).get(Ref(KIND, key.name))
        return None if found is None else found.unpacked()

    def refs(self, key: Key) -> Collection[Ref]:
        """The known objects of a job, the job included."""
        with self._lock:
            return tuple(self._objects.get(key, ()))

    def children(self, key: Key) -> Mapping[Ref, Object]:
        """The known objects of a job, the job excluded."""
        with self._lock:
            found = list(self._objects.get(key, {}).items())
        return {ref: packed.unpacked() for ref, packed in found if ref.kind != KIND}

    def versions(self, kind: str, namespace: str = "") -> dict[tuple[Key, Ref], int]:
        """The versions of all known objects of a kind, in one namespace or in all."""
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
            self._gone.pop(key, None)

    def _known(self, key: Key, ref: Ref) -> int:
        found = self._objects.get(key, {}).get(ref)
        return -1 if found is None else found.version


def version_of(body: Object) -> int:
    """The object's resource version; a larger number is newer."""
    return int(body["metadata"]["resourceVersion"])


def _packed(body: Object) -> Packed:
    """The object without fields that no decision needs, so that a thousand jobs and their pods fit into memory."""
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    fields = ("kind", "status") if body["kind"] == "Pod" else body.keys()
    kept = {name: body[name] for name in fields if name in body} | {"metadata": metadata}
    return Packed(version_of(body), zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), 1))

"""What was last seen of every job and child: written by watches and by the answers to writes, in any order."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.seen.observed import Object, Ref, labels_of, ref_of


class Key(NamedTuple):
    """A job."""

    namespace: str
    name: str


def key_of(body: Object) -> Key:
    """The job that an object is, or belongs to by its label."""
    metadata = body["metadata"]
    name = metadata["name"] if body["kind"] == KIND else labels_of(body).get(names.JOB_LABEL, "")
    return Key(metadata["namespace"], name)


class Packed(NamedTuple):
    """An object's resource version, and the object as compressed JSON: a tenth of what it takes as dictionaries."""

    version: int
    text: bytes

    def unpacked(self) -> Object:
        """The object."""
        body: Object = json.loads(zlib.decompress(self.text))
        return body


class Store:
    """The newest state seen of each object. Resource versions decide what is newer, never the order of arrival."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[Ref, Packed]] = {}
        self._gone: dict[Key, dict[Ref, int]] = {}
        self._lock = Lock()  # watches write from the event loop, answers from threads

    def saw(self, body: Object) -> Key:
        """The object is as `body` says, unless something newer is known. Returns the key of its job."""
        key, ref = key_of(body), ref_of(body)
        with self._lock:
            if version_of(body) > max(self._known(key, ref), self._gone.get(key, {}).get(ref, -1)):
                self._objects.setdefault(key, {})[ref] = _packed(body)
        return key

    def read(self, key: Key, body: Object) -> None:
        """The object belongs to the job, whatever its labels say; it was read just now."""
        ref = ref_of(body)
        with self._lock:
            if version_of(body) >= max(self._known(key, ref), self._gone.get(key, {}).get(ref, -1)):
                self._objects.setdefault(key, {})[ref] = _packed(body)

    def gone(self, body: Object) -> Key:
        """The object is deleted, or lost its label; `body` is its last state. Returns the key of its job."""
        key, ref = key_of(body), ref_of(body)
        with self._lock:
            if version_of(body) >= self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)
                self._gone.setdefault(key, {})[ref] = version_of(body)
            if not self._objects.get(key):
                self._objects.pop(key, None)
                self._gone.pop(key, None)
        return key

    def drop(self, key: Key, ref: Ref, version: int | None = None) -> None:
        """The object is not there, by the word of the API server; with `version`, that one is not."""
        with self._lock:
            if version is None or version == self._known(key, ref):
                self._objects.get(key, {}).pop(ref, None)

    def job(self, key: Key) -> Object | None:
        """The job itself, or None where it is not there."""
        found = self._objects.get(key, {}).get(Ref(KIND, key.name))
        return None if found is None else found.unpacked()

    def refs(self, key: Key) -> Collection[Ref]:
        """Which objects were seen of a job, the job among them."""
        with self._lock:
            return tuple(self._objects.get(key, ()))

    def belongings(self, key: Key) -> Mapping[Ref, Object]:
        """All that was seen of a job, itself aside."""
        with self._lock:
            found = list(self._objects.get(key, {}).items())
        return {ref: packed.unpacked() for ref, packed in found if ref.kind != KIND}

    def versions(self, kind: str, namespace: str = "") -> dict[tuple[Key, Ref], int]:
        """The versions of all objects of a kind that were seen, in one namespace or in all."""
        with self._lock:
            return {
                (key, ref): packed.version
                for key, objects in self._objects.items()
                if namespace in ("", key.namespace)
                for ref, packed in objects.items()
                if ref.kind == kind
            }

    def _known(self, key: Key, ref: Ref) -> int:
        found = self._objects.get(key, {}).get(ref)
        return -1 if found is None else found.version


def version_of(body: Object) -> int:
    """The object's resource version, which says what is newer."""
    return int(body["metadata"]["resourceVersion"])


def _packed(body: Object) -> Packed:
    """Without what no decision is made from: a thousand jobs with their pods are to fit into memory."""
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    fields = ("kind", "status") if body["kind"] == "Pod" else body.keys()
    kept = {name: body[name] for name in fields if name in body} | {"metadata": metadata}
    return Packed(version_of(body), zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), 1))

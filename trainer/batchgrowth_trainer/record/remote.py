"""Checkpoints in an object store, without a lock: its objects never change, and none points at the newest.

    checkpoints/update-N-DIGEST.json   a manifest, written last: with it a checkpoint is whole
    states/update-N-SHA256             the state after update N, the same bytes from any trainer
    rows/FILE/BEGIN-END-SHA256         a piece of history.csv, evaluations.csv or growth.csv
    summary.json, model.safetensors, … the results of a finished run

A resume lists the manifests and takes the newest that is whole. So a trainer that is late can only add an older state
beside the newer one, and never replaces it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from batchgrowth.errors import CheckpointError, StorageError

from batchgrowth_trainer.record import sealed, storage
from batchgrowth_trainer.record.bucket import Bucket, Entry
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE
from batchgrowth_trainer.record.pieces import FILES, Pieces
from batchgrowth_trainer.record.replay import JOB_FILE
from batchgrowth_trainer.record.runs import SUMMARY_FILE
from batchgrowth_trainer.record.sealed import Damaged, Saved
from batchgrowth_trainer.record.snapshot import Snapshot

_MANIFESTS, _STATES, _ROWS, _DAMAGED = "checkpoints/", "states/", "rows/", "damaged/"
_ABOUT, _ABOUT_TEXT = "README.txt", b"The checkpoints and results of one BatchGrowthJob: docs/checkpoints.md.\n"
_MANIFEST = re.compile(rf"{_MANIFESTS}update-\d{{10}}-[0-9a-f]{{16}}\.json")
_ORPHANED = timedelta(hours=1)
"""The age of objects without a manifest that no other trainer can still be about to write."""

_T = TypeVar("_T")


class RemoteCheckpoints:
    """The checkpoints of one run; its row files and results are in `folder`, and are kept with them."""

    def __init__(self, bucket: Bucket, folder: Path, mathematics: Mapping[str, Any], keep: int) -> None:
        self._bucket, self._folder, self._mathematics, self._keep = bucket, folder, mathematics, keep
        self._pieces, self._update = Pieces(folder), 0
        self._parts: dict[str, frozenset[str]] = {}
        """The objects that a manifest needs."""
        self.place = bucket.uri

    def prepare(self) -> None:
        """Prove that objects can be written, and delete those that a killed trainer left without a manifest.

        Raises CheckpointError, or StorageError after READ_SECONDS of trouble that may pass.
        """
        _patiently(lambda: self._bucket.put(_ABOUT, _ABOUT_TEXT))
        entries = _patiently(self._entries)
        needed = self._needed_by(_manifests(entries))
        if needed is not None and entries:
            last = max(entry.modified for entry in entries.values())
            parts = {name: entry for name, entry in entries.items() if name.startswith((_STATES, _ROWS))}
            orphans = [n for n, entry in parts.items() if n not in needed and last - entry.modified > _ORPHANED]
            _patiently(lambda: self._bucket.delete(orphans))

    def resume(self, note: Callable[[str], None]) -> Saved | None:
        """The newest whole checkpoint, with the run's rows, and the summary if there is one, in the folder.

        Raises CheckpointError if a checkpoint belongs to another job or none is whole, StorageError if trouble lasts.
        """
        saved = self._newest(note, with_rows=True)
        with storage.reported_as_checkpoint_error():
            summary = _patiently(lambda: self._bucket.get(SUMMARY_FILE)) if saved else None
            (self._folder / SUMMARY_FILE).unlink(missing_ok=True)
            if summary is not None:
                (self._folder / SUMMARY_FILE).write_bytes(summary)
        return saved

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """The newest whole checkpoint; None if there is none.

        Raises StorageError also if another trainer has written a newer one, whose history this one does not have.
        """
        saved = self._newest(note, with_rows=False)
        if saved is not None and saved.snapshot.position.update > self._update:
            raise StorageError(
                f"{self.place}: another trainer of this job has saved update {saved.snapshot.position.update}, beyond "
                f"update {self._update} of this one, which ends; when it is restarted, it continues from there"
            )
        return saved

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        """Write a checkpoint, delete those beyond `keep`, and return the bytes of its state.

        Raises CheckpointError if it cannot be written, a StorageError if it may be later.
        """
        state, entries = sealed.state_bytes(snapshot), self._entries()
        name = f"update-{snapshot.position.update:010d}"
        state_name = f"{_STATES}{name}-{sealed.sha256(state)[:16]}"
        self._put_missing(entries, state_name, state)
        with storage.reported_as_checkpoint_error():
            rows = self._pieces.current()
            for file, piece in ((file, piece) for file, pieces in rows.items() for piece in pieces):
                if not _is_there(entries, piece.name, piece.end - piece.begin):
                    self._bucket.put(piece.name, self._pieces.read(file, piece))
        manifest = sealed.manifest_bytes(
            snapshot.position, state, self._mathematics, story, object=state_name, rows=rows
        )
        name = f"{_MANIFESTS}{name}-{sealed.sha256(manifest)[:16]}.json"
        self._bucket.put(name, manifest)
        self._parts[name] = _parts(state_name, rows)
        self._update = snapshot.position.update
        self._drop_old({*_manifests(entries), name}, name)
        return len(state)

    def keep_results(self) -> None:
        """Upload the files of a finished run, the summary last. Raises CheckpointError, StorageError."""
        for name in (JOB_FILE, *FILES, WEIGHTS_FILE, BEST_FILE, SUMMARY_FILE):
            with storage.reported_as_checkpoint_error():
                data = (self._folder / name).read_bytes() if (self._folder / name).exists() else None
            if data is not None:
                self._bucket.put(name, data)

    def _entries(self) -> dict[str, Entry]:
        return self._bucket.entries(_MANIFESTS, _STATES, _ROWS)

    def _put_missing(self, entries: Mapping[str, Entry], name: str, data: bytes) -> None:
        if not _is_there(entries, name, len(data)):
            self._bucket.put(name, data)

    def _newest(self, note: Callable[[str], None], *, with_rows: bool) -> Saved | None:
        entries, damage, aside = _patiently(self._entries), list[str](), list[str]()
        names = sorted(_manifests(entries), key=lambda name: (_update_of(name), entries[name].modified), reverse=True)
        for name in names:
            try:
                saved = self._read(name, with_rows)
            except Damaged as error:
                damage.append(f"{name.removeprefix(_MANIFESTS)}: {error}")
                aside += filter(None, (name, error.part))  # or the next writer of a part would take it for written
                note(f"checkpoint {damage[-1]}; trying the one before it")
            else:
                for one in aside:
                    self._bucket.rename(one, f"{_DAMAGED}{one}")
                return saved
        if not names:
            return None
        raise CheckpointError(
            f"{self.place}: no checkpoint is whole ({'; '.join(damage)}). "
            "Restore one from a copy, or start over in another spec.checkpoint.uri."
        )

    def _read(self, name: str, with_rows: bool) -> Saved:
        manifest = sealed.read_manifest(self._object(name))
        if why := sealed.foreign(manifest, self._mathematics, "spec.checkpoint.uri"):
            raise CheckpointError(f"{self.place}/{name} {why}")
        self._parts[name] = _parts(manifest["object"], manifest["rows"])
        try:
            saved = sealed.read_state(manifest, self._object(manifest["object"]))
        except Damaged as error:
            raise Damaged(str(error), manifest["object"]) from error
        if with_rows:
            self._update = saved.snapshot.position.update
            with storage.reported_as_checkpoint_error():
                self._pieces.restore(manifest["rows"], self._update, self._object)
        return saved

    def _object(self, name: str) -> bytes:
        data = _patiently(lambda: self._bucket.get(name))
        if data is None:
            raise Damaged(f"{name} is missing")
        return data

    def _drop_old(self, manifests: Collection[str], mine: str) -> None:
        """Delete the manifests beyond `keep` updates, this trainer's newest aside, and what only they needed.

        What cannot be deleted now is left for the next time.
        """
        by_update = sorted(manifests, key=_update_of, reverse=True)
        newest = sorted({_update_of(name) for name in by_update}, reverse=True)[: self._keep]
        old = [name for name in by_update if _update_of(name) not in newest and name != mine]
        try:
            needed = self._needed_by(set(by_update).difference(old)) if old else None
            if needed is not None:
                parts = frozenset[str]().union(*(self._needed_by([name]) or () for name in old))
                self._bucket.delete(old)
                self._bucket.delete([*parts - needed])
        except CheckpointError:
            return
        for name in old:
            self._parts.pop(name, None)

    def _needed_by(self, manifests: Collection[str]) -> frozenset[str] | None:
        """The objects that any of these manifests needs; None if one of them cannot be read."""
        for name in manifests:
            if name not in self._parts:
                try:
                    manifest = sealed.read_manifest(self._object(name))
                except Damaged:
                    return None
                self._parts[name] = _parts(manifest["object"], manifest["rows"])
        return frozenset[str]().union(*(self._parts[name] for name in manifests))


def _patiently(act: Callable[[], _T]) -> _T:
    """What `act` returns, tried for READ_SECONDS while it raises StorageErrors."""
    return storage.retried(act, storage.READ_SECONDS)


def _manifests(entries: Iterable[str]) -> list[str]:
    return [name for name in entries if _MANIFEST.fullmatch(name)]


def _update_of(manifest: str) -> int:
    return int(manifest.split("-")[1])


def _parts(state: str, rows: Mapping[str, Iterable[Any]]) -> frozenset[str]:
    return frozenset({state, *(piece[2] for pieces in rows.values() for piece in pieces)})


def _is_there(entries: Mapping[str, Entry], name: str, size: int) -> bool:
    return name in entries and entries[name].size == size

"""Checkpoints that are complete or absent, and that name the job they belong to.

A checkpoint has two parts, wherever it is stored: the state as flat tensors without a pickle, and a manifest with the
state's digest, the fields of the spec that determine the weights, and its own digest.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.position import Position
from batchgrowth.spec import differences
from safetensors import SafetensorError
from safetensors.torch import load, save

from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import (
    flush_folder,
    read_patiently,
    reported_as_checkpoint_error,
    storage_error,
    write_file,
)

FORMAT = 1
STATE = "state.safetensors"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was read back; `story` holds the run's seconds, resizes and recoveries until then."""

    snapshot: Snapshot
    story: Mapping[str, Any] = field(default_factory=dict)


class Damaged(Exception):
    """A checkpoint is incomplete or changed; `part` names the damaged file or object, unless that is the manifest."""

    def __init__(self, text: str, part: str = "") -> None:
        super().__init__(text)
        self.part = part


def state_bytes(snapshot: Snapshot) -> bytes:
    """Serialize the tensors of the snapshot; the same state gives the same bytes."""
    return save({name: tensor.contiguous() for name, tensor in snapshot.tensors.items()})


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def manifest_bytes(
    position: Position, state: bytes, mathematics: Mapping[str, Any], story: Mapping[str, Any], **more: Any
) -> bytes:
    """Return the manifest of a checkpoint with this state; `more` is further JSON for its reader."""
    manifest = {
        "format": FORMAT,
        "position": {"update": position.update, "epoch": position.epoch, "offset": position.offset},
        "sha256": sha256(state),
        "bytes": len(state),
        "mathematics": mathematics,
        "story": story,
        **more,
    }
    sealed = {**manifest, "digest": digest(manifest)}
    return (json.dumps(sealed, indent=2) + "\n").encode()


def read_manifest(data: bytes) -> dict[str, Any]:
    """Return the manifest without its digest. Raises Damaged if the manifest has changed since it was written."""
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise Damaged(f"{MANIFEST} is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} is not of format {FORMAT}")
    if manifest.pop("digest", None) != digest(manifest):
        raise Damaged(f"{MANIFEST} is not what was written (other digest)")
    return manifest


def read_state(manifest: Mapping[str, Any], state: bytes) -> Saved:
    """Return the checkpoint of a manifest, with its state. Raises Damaged if the state has another digest."""
    if sha256(state) != manifest["sha256"]:
        raise Damaged(f"{STATE} is not what was written ({len(state)} of {manifest['bytes']} bytes, other digest)")
    try:
        tensors = load(state)
    except SafetensorError as error:
        raise Damaged(f"{STATE} is no safetensors file ({error})") from error
    return Saved(Snapshot(Position(**manifest["position"]), tensors), manifest["story"])


def foreign(manifest: Mapping[str, Any], mathematics: Mapping[str, Any], elsewhere: str) -> str:
    """Return why the checkpoint belongs to another job, with a remedy; "" if it belongs to this job."""
    changes = differences(manifest["mathematics"], mathematics)
    if not changes:
        return ""
    return (
        f"belongs to another job ({changes}). Settings that determine the weights cannot change: "
        f"undo the change, or start over in another {elsewhere}."
    )


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest that has no digest field yet."""
    return sha256(json.dumps(manifest, sort_keys=True).encode())


# --- Checkpoints in a folder ---
# A checkpoint is a folder `update-NNNNNNNNNN`. Its two files are written into a temporary folder and flushed to the
# disk, the manifest last, before one rename publishes the folder: a crash at any byte leaves the previous checkpoint.

_PREFIX = "update-"
_UNFINISHED = ".unfinished-"
_DAMAGED = "damaged-"


class Checkpoints(Protocol):
    """The store of a run's checkpoints; messages call it `place`.

    Each of its methods raises CheckpointError, or StorageError if a retry may help.
    """

    place: str

    def prepare(self) -> None:
        """Remove unfinished checkpoints of earlier runs."""

    def resume(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint at the start of a run, and put the run's files into the output folder."""

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint during a run, or None; `note` gets a line for each damaged checkpoint."""

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        """Write a checkpoint, delete old checkpoints, and return the number of bytes of its state."""

    def keep_results(self) -> None:
        """Keep the files of a finished run."""


class CheckpointStore:
    """The checkpoints of one run, of which the newest `keep` are kept."""

    def __init__(self, directory: Path, mathematics: Mapping[str, Any], keep: int) -> None:
        self.directory = directory
        self._mathematics = mathematics
        self._keep = keep
        self.place = str(directory.parent)

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        """Write a checkpoint, delete the oldest beyond `keep`, and return the number of bytes of its state.

        Raises StorageError if a retry may succeed, otherwise CheckpointError; earlier checkpoints stay untouched.
        """
        name = f"{_PREFIX}{snapshot.position.update:010d}"
        unfinished = self.directory / f"{_UNFINISHED}{os.getpid()}-{snapshot.position.update:010d}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            size = self._write(unfinished, snapshot, story)
            target = self._free(name)
            unfinished.rename(target)  # publishes the checkpoint: what was written before it is already on the disk
            flush_folder(self.directory)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise storage_error(
                f"{self.directory}: the checkpoint of update {snapshot.position.update} could not be written "
                f"({error.strerror or error}). Earlier checkpoints are intact; make room or give another --output-dir.",
                error,
            ) from error
        self._drop_old(target)
        return size

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint, or None if there is none; `note` gets a line for each that is damaged.

        Raises CheckpointError if a checkpoint belongs to another job or all are damaged, and StorageError if a retry
        may read one.
        """
        folders = self._folders()
        damage: list[str] = []
        kind = CheckpointError
        for folder in reversed(folders):
            try:
                saved = self._read(folder)
            except Damaged as error:
                damage.append(f"{folder.name}: {error}")
                if isinstance(error.__cause__, StorageError):
                    kind = StorageError
                note(f"checkpoint {damage[-1]}; trying the one before it")
            else:
                self._set_aside(folders[len(folders) - len(damage) :])
                return saved
        if not folders:
            return None
        raise kind(
            f"{self.directory}: no checkpoint is whole ({'; '.join(damage)}). "
            "Restore one from a copy, or start over in another --output-dir."
        )

    def resume(self, note: Callable[[str], None]) -> Saved | None:
        """Return the result of `load_latest`, because the run's other files lie beside the checkpoints already."""
        return self.load_latest(note)

    def keep_results(self) -> None:
        """Do nothing: the results are written beside the checkpoints."""

    def prepare(self) -> None:
        """Delete checkpoints that a crash left unfinished."""
        for folder in self._folders(_UNFINISHED):
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        state = state_bytes(snapshot)
        write_file(folder / STATE, state)
        write_file(folder / MANIFEST, manifest_bytes(snapshot.position, state, self._mathematics, story))
        flush_folder(folder)
        return len(state)

    def _read(self, folder: Path) -> Saved:
        manifest = read_manifest(_read_whole(folder / MANIFEST))
        if why := foreign(manifest, self._mathematics, "--output-dir"):
            raise CheckpointError(f"{folder} {why}")
        return read_state(manifest, _read_whole(folder / STATE))

    def _folders(self, prefix: str = _PREFIX) -> list[Path]:
        """List the folders with that prefix, sorted. On failure raises CheckpointError, so that training does not start
        over.
        """
        try:
            found = read_patiently(str(self.directory), lambda: os.listdir(self.directory))
        except FileNotFoundError:
            return []
        return sorted(self.directory / name for name in found if name.startswith(prefix))

    def _free(self, name: str) -> Path:
        """Return a free path for the checkpoint `name`, even if the same update was saved before."""
        first = self.directory / name
        second = self.directory / f"{name}.2"
        if first.exists() and second.exists():
            shutil.rmtree(first)
        if first.exists():
            return second
        return first

    def _drop_old(self, newest: Path) -> None:
        same = [folder for folder in self._folders() if folder.stem == newest.stem and folder != newest]
        others = [folder for folder in self._folders() if folder not in same]
        for folder in (*same, *others[: -self._keep]):
            shutil.rmtree(folder, ignore_errors=True)

    def _set_aside(self, damaged: Sequence[Path]) -> None:
        """Rename damaged checkpoints, so that `keep` does not count them."""
        for folder in damaged:
            aside = folder.with_name(_DAMAGED + folder.name)
            shutil.rmtree(aside, ignore_errors=True)
            with reported_as_checkpoint_error():
                folder.rename(aside)


def _read_whole(path: Path) -> bytes:
    try:
        return read_patiently(path.name, path.read_bytes)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error
    except CheckpointError as error:
        raise Damaged(str(error)) from error

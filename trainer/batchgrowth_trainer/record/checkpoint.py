"""Checkpoints that are complete or absent, and that name the job they belong to.

A run that resumes begins in training.py (`train` asks `resume` here), and its driver puts the state into the replicas
(`RunState.checkpoint_after`). `foreign_refused` refuses a checkpoint of another job, by `ThisJob` in decided.py, which
asks batchgrowth/same_updates.py.

`_drop_old` deletes the checkpoints that are too many: here in a folder, and in remote.py in an object store.

A checkpoint has two parts, wherever it is stored: the state as flat tensors without a pickle, and a manifest with the
state's digest, the fields of the spec that determine the weights, and its own digest.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.manifest.files import read_regular
from batchgrowth.position import Position
from batchgrowth.spec import differences
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from safetensors import SafetensorError
from safetensors.torch import load, save

from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import (
    flush_folder,
    named,
    read_patiently,
    reported_as_checkpoint_error,
    storage_error,
    write_file,
)

FORMAT = 1
STATE = "state.safetensors"
MANIFEST = "manifest.json"
_UPDATE = re.compile(r"update-(\d{10,18})(?![\d])")


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was read back; `story` holds the run's seconds, resizes and recoveries until then.

    `changes` says which settings have changed since, none of which changes the updates done: "epochs: 30 there, 40
    here".
    """

    snapshot: Snapshot
    story: Mapping[str, Any] = field(default_factory=dict)
    changes: str = ""


class Damaged(Exception):
    """A checkpoint is incomplete or changed; `part` names the damaged file or object, unless that is the manifest."""

    def __init__(self, text: str, part: str = "") -> None:
        super().__init__(text)
        self.part = part


# --- The manifest of a checkpoint, as it is read ---

Count = Annotated[int, Field(ge=0)]


class _ManifestPart(BaseModel):
    """A part of the manifest. A later version may add fields, which this one ignores."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=to_camel)


class _StoredPosition(_ManifestPart):
    update: Count
    epoch: Count
    offset: Count


class _Resize(_ManifestPart):
    update: Count
    before: Annotated[int, Field(ge=0, alias="from")]
    after: Annotated[int, Field(ge=0, alias="to")]
    pause_seconds: float


class Story(_ManifestPart):
    """What a run remembers beside its state: its seconds, its resizes, its recoveries, and its last evaluation."""

    model_config = ConfigDict(extra="allow")

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    resizes: list[_Resize]
    recoveries: Count
    evaluated: Count
    accuracy: float | None = None
    evaluation: dict[str, float | None] | None = None
    arithmetic: dict[str, Any] | None = None


Piece = tuple[int, int, str]
"""A range of a row file's bytes, from begin to end, and the name of the object that has them."""


class Manifest(_ManifestPart):
    """The manifest of a checkpoint. `object` and `rows` name the parts of one in an object store."""

    position: _StoredPosition
    sha256: str
    bytes: Count
    mathematics: dict[str, Any]
    story: Story
    object: str = ""
    rows: dict[str, list[Annotated[Piece, Field(strict=False)]]] = {}

    @property
    def at(self) -> Position:
        """Return the position of the state."""
        return Position(self.position.update, self.position.epoch, self.position.offset)


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


def read_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest of the checkpoint `name`, such as "update-0000000012".

    Raises Damaged if the manifest has changed since it was written, is of another format or lacks something, or if its
    position is not the one in the name.
    """
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} is not of format {FORMAT}, which is the one that this version of batchgrowth reads")
    if manifest.pop("digest", None) != digest(manifest):
        raise Damaged(f"{MANIFEST} is not what was written (other digest)")
    try:
        read = Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise Damaged(f"{MANIFEST} cannot be understood ({field}: {first['msg'].lower()})") from None
    if read.at.update != update_in(name):
        raise Damaged(f"{MANIFEST} is of update {read.at.update}, and its name is {name}")
    return read


def update_in(name: str) -> int:
    """Return the update in the name of a checkpoint; -1 if there is none, as in a folder that a user renamed."""
    found = _UPDATE.match(name)
    return int(found[1]) if found else -1


def read_state(manifest: Manifest, state: bytes) -> Saved:
    """Return the checkpoint of a manifest, with its state. Raises Damaged if the state is not what was written."""
    if sha256(state) != manifest.sha256:
        raise Damaged(f"{STATE} is not what was written ({len(state)} of {manifest.bytes} bytes, other digest)")
    try:
        tensors = load(state)
    except SafetensorError as error:
        raise Damaged(f"{STATE} is no safetensors file ({error})") from error
    story = manifest.story.model_dump(by_alias=True, exclude_unset=True)
    return Saved(Snapshot(manifest.at, tensors), story)


class ContinuingJob(Protocol):
    """Judges whether a job can go on from a checkpoint: decided.ThisJob."""

    def what_differs(self, there: Mapping[str, Any], snapshot: Snapshot) -> str:
        """Return how the updates done would have differed in this job; "" if they would not."""

    def is_on_plan(self, snapshot: Snapshot) -> bool:
        """Return whether this job's plan is at the snapshot's position after as many updates."""


def foreign_refused(
    manifest: Manifest, saved: Saved, mathematics: Mapping[str, Any], job: ContinuingJob | None
) -> Saved:
    """Return the checkpoint, with its `changes`, if a job of that mathematics can go on from it.

    Raises Foreign if it belongs to another job, and Damaged if no training of this job has been at its position.
    Without a `job`, every change of the mathematics makes another job, and every position is right.
    """
    changes = differences(manifest.mathematics, mathematics)
    if changes:
        different = changes if job is None else job.what_differs(manifest.mathematics, saved.snapshot)
        if different:
            reason = changes if different in changes else f"{changes}: {different}"
            raise Foreign(reason)
    if job is not None and not job.is_on_plan(saved.snapshot):
        at = saved.snapshot.position
        raise Damaged(f"{MANIFEST} is of epoch {at.epoch}, example {at.offset}, where no update {at.update} ends")
    return replace(saved, changes=changes)


class Foreign(Exception):
    """A checkpoint belongs to another job; the text names what differs."""

    def told(self, where: str, elsewhere: str) -> CheckpointError:
        """Return the error for the user, with a remedy; `elsewhere` is the option that names another place."""
        return CheckpointError(
            f"{where} belongs to another job ({self}). Settings that determine the weights of the updates that are "
            f"done cannot change: undo the change, or start over in another {elsewhere}."
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
_ROOM = "room"


class Checkpoints(Protocol):
    """The store of a run's checkpoints; messages call it `place`.

    Each of its methods raises CheckpointError, or StorageError if a retry may help.
    """

    place: str

    def prepare(self) -> None:
        """Remove unfinished checkpoints of earlier runs."""

    def try_out(self, size: int) -> None:
        """Write, read and delete a small checkpoint where checkpoints will be, if `size` bytes have room there."""

    def resume(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint at the start of a run, and put the run's files into the output folder."""

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint during a run, or None; `note` gets a line for each damaged checkpoint."""

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        """Write a checkpoint, delete old checkpoints, and return the number of bytes of its state.

        The newest checkpoint up to each update that the story calls `covered` or `compared` is kept in any case: see
        `drop_after`.
        """

    def drop_after(self, update: int) -> None:
        """Delete the checkpoints of later updates, whose states are in doubt."""

    def keep_results(self) -> None:
        """Keep the files of a finished run."""


class CheckpointStore:
    """The checkpoints of one run in a folder, of which the newest `keep` are kept."""

    def __init__(
        self, directory: Path, mathematics: Mapping[str, Any], keep: int, job: ContinuingJob | None = None
    ) -> None:
        self.directory = directory
        self._mathematics = mathematics
        self._keep = keep
        self._job = job
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
        self._drop_old(target, covered_in(story))
        return size

    def drop_after(self, update: int) -> None:
        """Delete the checkpoints of later updates, the newest first. Raises CheckpointError."""
        with reported_as_checkpoint_error():
            for folder in reversed(folders_in(self.directory)):
                if update_in(folder.name) > update:
                    shutil.rmtree(folder)

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint, or None if there is none; `note` gets a line for each that is damaged.

        Raises CheckpointError if a checkpoint belongs to another job or all are damaged, and StorageError if a retry
        may read one.
        """
        folders = folders_in(self.directory)
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
        for folder in folders_in(self.directory, _UNFINISHED):
            shutil.rmtree(folder, ignore_errors=True)

    def try_out(self, size: int) -> None:
        """Reserve `size` bytes, write and read a checkpoint of one number beside them, and delete all of it.

        Raises StorageError if a retry may succeed, otherwise CheckpointError.
        """
        tried = self.directory / f"{_UNFINISHED}{os.getpid()}-trial"
        snapshot = Snapshot(Position(), {"parameters": torch.zeros(1, dtype=torch.float32)})
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            tried.mkdir()
            with named(tried / _ROOM), (tried / _ROOM).open("wb") as file:
                if hasattr(os, "posix_fallocate"):  # macOS has none
                    os.posix_fallocate(file.fileno(), 0, max(1, size))
            self._write(tried, snapshot, {"seconds": 0.0, "resizes": [], "recoveries": 0, "evaluated": 0})
            manifest = read_manifest(_read_whole(tried / MANIFEST), f"{_PREFIX}{0:010d}")
            read_state(manifest, _read_whole(tried / STATE))
        except OSError as error:
            raise storage_error(
                f"{self.directory}: a checkpoint of {size:,} bytes cannot be written there ({error.strerror}), "
                "so nothing is trained; make room or give another --output-dir",
                error,
            ) from error
        except Damaged as error:
            raise CheckpointError(
                f"{self.directory}: a checkpoint that was written there is read otherwise ({error}), so nothing is "
                "trained; give another --output-dir"
            ) from error
        finally:
            shutil.rmtree(tried, ignore_errors=True)

    def _write(self, folder: Path, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        state = state_bytes(snapshot)
        write_file(folder / STATE, state)
        write_file(folder / MANIFEST, manifest_bytes(snapshot.position, state, self._mathematics, story))
        flush_folder(folder)
        return len(state)

    def _read(self, folder: Path) -> Saved:
        manifest = read_manifest(_read_whole(folder / MANIFEST), folder.name)
        saved = read_state(manifest, _read_whole(folder / STATE))
        try:
            return foreign_refused(manifest, saved, self._mathematics, self._job)
        except Foreign as foreign:
            raise foreign.told(str(folder), "--output-dir") from None

    def _free(self, name: str) -> Path:
        """Return a free path for the checkpoint `name`, even if the same update was saved before."""
        first = self.directory / name
        second = self.directory / f"{name}.2"
        if first.exists() and second.exists():
            shutil.rmtree(first)
        if first.exists():
            return second
        return first

    def _drop_old(self, newest: Path, covered: Collection[int]) -> None:
        folders = folders_in(self.directory)
        # The newest replaces what was saved of the same update before: see `_free`.
        same = [folder for folder in folders if folder.stem == newest.stem and folder != newest]
        others = [folder for folder in folders if folder not in same]
        # A check may send the training back to these, however old they are.
        refuges = []
        for update in covered:
            refuges += [folder for folder in others if 0 <= update_in(folder.name) <= update][-1:]
        for folder in (*same, *(folder for folder in others[: -self._keep] if folder not in refuges)):
            shutil.rmtree(folder, ignore_errors=True)

    def _set_aside(self, damaged: Sequence[Path]) -> None:
        """Rename damaged checkpoints, so that `keep` does not count them."""
        for folder in damaged:
            aside = folder.with_name(_DAMAGED + folder.name)
            shutil.rmtree(aside, ignore_errors=True)
            with reported_as_checkpoint_error():
                folder.rename(aside)


def covered_in(story: Mapping[str, Any]) -> list[int]:
    """Return the updates in the story of a checkpoint to which a check may send the training back."""
    return [int(story[name]) for name in ("covered", "compared") if name in story]


def folders_in(directory: Path, prefix: str = _PREFIX) -> list[Path]:
    """List the folders with that prefix, sorted. On failure raises CheckpointError, so that training does not start
    over.
    """
    try:
        found = read_patiently(str(directory), lambda: os.listdir(directory))
    except FileNotFoundError:
        return []
    return sorted(directory / name for name in found if name.startswith(prefix))


_GLANCES = 3
"""How often a reader looks for a whole checkpoint of a run that trains, which deletes old ones meanwhile."""


def newest_whole(directory: Path) -> Saved | None:
    """Return the newest whole checkpoint in the folder, of whatever job; None if there is none. It changes nothing."""
    for _ in range(_GLANCES):
        for folder in reversed(folders_in(directory)):
            with suppress(Damaged):
                manifest = read_manifest(_read_whole(folder / MANIFEST), folder.name)
                return read_state(manifest, _read_whole(folder / STATE))
    return None


def _read_whole(path: Path) -> bytes:
    try:
        return read_patiently(path.name, lambda: read_regular(path))
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error
    except CheckpointError as error:
        raise Damaged(str(error)) from error

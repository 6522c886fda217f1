"""The two parts of a checkpoint, whatever keeps them: the state as flat tensors, no pickle, and a manifest.

The manifest holds the state's digest, the mathematics of the job, and its own digest.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchgrowth.plan import Position
from batchgrowth.spec import differences
from safetensors import SafetensorError
from safetensors.torch import load, save

from batchgrowth_trainer.record.snapshot import Snapshot

FORMAT = 1
STATE, MANIFEST = "state.safetensors", "manifest.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint read back; `story` holds the run's seconds, resizes and recoveries up to it."""

    snapshot: Snapshot
    story: Mapping[str, Any] = field(default_factory=dict)


class Damaged(Exception):
    """A checkpoint is incomplete or changed; `part` names the file or object, if it is not the manifest."""

    def __init__(self, text: str, part: str = "") -> None:
        super().__init__(text)
        self.part = part


def state_bytes(snapshot: Snapshot) -> bytes:
    """The tensors of the snapshot: the same bytes for the same state."""
    return save({name: tensor.contiguous() for name, tensor in snapshot.tensors.items()})


def sha256(data: bytes) -> str:
    """The SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def manifest_bytes(
    position: Position, state: bytes, mathematics: Mapping[str, Any], story: Mapping[str, Any], **more: Any
) -> bytes:
    """The manifest of a checkpoint with this state; `more` is what else its reader needs, as JSON."""
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
    """The manifest without its digest. Raises Damaged if it is not what was written."""
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
    """The checkpoint of a manifest and its state. Raises Damaged if the state is not that which was written."""
    if sha256(state) != manifest["sha256"]:
        raise Damaged(f"{STATE} is not what was written ({len(state)} of {manifest['bytes']} bytes, other digest)")
    try:
        tensors = load(state)
    except SafetensorError as error:
        raise Damaged(f"{STATE} is no safetensors file ({error})") from error
    return Saved(Snapshot(Position(**manifest["position"]), tensors), manifest["story"])


def foreign(manifest: Mapping[str, Any], mathematics: Mapping[str, Any], elsewhere: str) -> str:
    """Why the checkpoint belongs to another job, and what would do; empty if it is this job's."""
    changes = differences(manifest["mathematics"], mathematics)
    return changes and (
        f"belongs to another job ({changes}). Settings that determine the weights cannot change: "
        f"undo the change, or start over in another {elsewhere}."
    )


def digest(manifest: Mapping[str, Any]) -> str:
    """The digest that a manifest holds of its other parts."""
    return sha256(json.dumps(manifest, sort_keys=True).encode())

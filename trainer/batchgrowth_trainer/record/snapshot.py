"""The whole state of a run at an update boundary, as tensors on the CPU, and its fingerprint."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from batchgrowth.errors import CheckpointError
from batchgrowth.position import Position
from torch import Tensor

# --- Tensors of every dtype as bytes: numpy has no bfloat16, and Dask sends numpy arrays without copying them ---


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The bytes of a tensor, uint8, shape (bytes,), with its own dtype, such as "bfloat16", and shape."""

    data: np.ndarray
    dtype: str
    shape: tuple[int, ...]


def pack(tensor: Tensor) -> PackedTensor:
    """The tensor packed; shares its memory if it is contiguous and on the CPU."""
    own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return PackedTensor(_bytes_of(own), str(own.dtype).removeprefix("torch."), tuple(own.shape))


def unpack(packed: PackedTensor) -> Tensor:
    """The tensor that was packed, on the CPU; a copy, since the bytes that Dask received may be read-only."""
    tensor = torch.empty(packed.shape, dtype=getattr(torch, packed.dtype))
    _bytes_of(tensor)[:] = packed.data
    return tensor


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor, uint8, shape (bytes,); shares its memory."""
    return tensor.view(-1).view(torch.uint8).numpy()


def pack_all(tensors: Mapping[str, Tensor]) -> dict[str, PackedTensor]:
    """Every tensor packed, by name."""
    return {name: pack(tensor) for name, tensor in tensors.items()}


def unpack_all(packed: Mapping[str, PackedTensor]) -> dict[str, Tensor]:
    """Every tensor that was packed, by name."""
    return {name: unpack(one) for name, one in packed.items()}


# --- The whole state of a run at an update boundary, as tensors on the CPU, and its fingerprint ---

BEST = "best."
"""What the names of the best weights begin with; a job may begin to keep them, and cease to, at any time."""
PackedSnapshot = tuple[Position, Mapping[str, PackedTensor]]
PackedTrained = tuple[PackedSnapshot, Mapping[str, PackedTensor], Mapping[str, PackedTensor] | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`tensors`: "parameters", "buffers.DTYPE", "optimizer.NAME", "average", what growth measures and
    evaluations decide, and "best.NAME", each a flat vector, shape (length,).
    """

    position: Position
    tensors: Mapping[str, Tensor]

    def check_fits(self, live: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError unless the names, dtypes and lengths equal those of the live state's vectors.

        The best weights may be missing, or too many.
        """
        mine = {name: (str(t.dtype), t.numel()) for name, t in self.tensors.items()}
        theirs = {name: (str(t.dtype), t.numel()) for name, t in live.items()}
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        odd = [name for name in odd if not name.startswith(BEST) or name in mine.keys() & theirs.keys()]
        if not odd:
            return
        pairs = "; ".join(f"{name}: saved {_kind(mine.get(name))}, needed {_kind(theirs.get(name))}" for name in odd)
        raise CheckpointError(
            f"the checkpoint was written by another model or optimizer ({pairs}). "
            "Resume with the model that wrote it, or start over in another --output-dir."
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """The state at the end of training, None if it was stopped before the first update.

    `state_dict` is the model's own, on the CPU, and `best` the one at its best evaluation, if the job keeps it.
    """

    snapshot: Snapshot | None
    state_dict: Mapping[str, Tensor]
    best: Mapping[str, Tensor] | None = None


def _kind(kind: tuple[str, int] | None) -> str:
    return "nothing" if kind is None else f"{kind[1]} x {kind[0].removeprefix('torch.')}"


def from_replica_tensors(position: Position, tensors: Mapping[str, Tensor]) -> Snapshot:
    """A snapshot that copies `tensors` to the CPU."""
    return Snapshot(position, {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()})


def pack_snapshot(snapshot: Snapshot) -> PackedSnapshot:
    """The snapshot as bytes."""
    return snapshot.position, pack_all(snapshot.tensors)


def unpack_snapshot(packed: PackedSnapshot) -> Snapshot:
    """The snapshot that was packed."""
    position, tensors = packed
    return Snapshot(position, unpack_all(tensors))


def pack_trained(trained: Trained) -> PackedTrained:
    """A result of training as bytes."""
    assert trained.snapshot is not None
    best = None if trained.best is None else pack_all(trained.best)
    return pack_snapshot(trained.snapshot), pack_all(trained.state_dict), best


def unpack_trained(packed: PackedTrained) -> Trained:
    """The result that was packed."""
    snapshot, state_dict, best = packed
    return Trained(unpack_snapshot(snapshot), unpack_all(state_dict), None if best is None else unpack_all(best))


def weights_sha256(state_dict: Mapping[str, Tensor]) -> str:
    """The SHA-256, in hex, over each tensor's name, dtype, shape and bytes, in the order of the state dict."""
    digest = hashlib.sha256()
    for name, tensor in state_dict.items():
        head = f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{tuple(tensor.shape)}\0"
        digest.update(head.encode())
        digest.update(pack(tensor).data.tobytes())
    return digest.hexdigest()

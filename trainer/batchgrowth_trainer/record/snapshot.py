"""The whole state of a run at an update boundary, as tensors on the CPU, and the fingerprint of weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from batchgrowth.errors import CheckpointError
from batchgrowth.position import Position
from torch import Tensor

# --- Tensors as bytes, of every dtype: numpy has no bfloat16, and Dask sends numpy arrays without copying them ---


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The bytes of a tensor, uint8, shape (bytes,), with the tensor's dtype, such as "bfloat16", and shape."""

    data: np.ndarray
    dtype: str
    shape: tuple[int, ...]


def pack(tensor: Tensor) -> PackedTensor:
    """Pack the tensor; the result shares the tensor's memory if that is contiguous and on the CPU."""
    own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return PackedTensor(_bytes_of(own), str(own.dtype).removeprefix("torch."), tuple(own.shape))


def unpack(packed: PackedTensor) -> Tensor:
    """Return the tensor on the CPU; a copy, because the bytes that Dask received may be read-only."""
    tensor = torch.empty(packed.shape, dtype=getattr(torch, packed.dtype))
    _bytes_of(tensor)[:] = packed.data
    return tensor


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a contiguous tensor, uint8, shape (bytes,), as a view of its memory."""
    return tensor.view(-1).view(torch.uint8).numpy()


def pack_all(tensors: Mapping[str, Tensor]) -> dict[str, PackedTensor]:
    """Pack every tensor, by name."""
    return {name: pack(tensor) for name, tensor in tensors.items()}


def unpack_all(packed: Mapping[str, PackedTensor]) -> dict[str, Tensor]:
    """Unpack every tensor, by name."""
    return {name: unpack(one) for name, one in packed.items()}


BEST = "best."
"""Prefix of the names of the best weights, which a job may begin or cease to keep at any time."""
MISSED = "missed"
"""Name of the counts of updates without a gradient; checkpoints of earlier versions lack them, which means 0."""
UNSTEPPED = "optimizer.unstepped"
"""Name of the marks of parameters without a step; earlier checkpoints lack them too, which means 0."""
PackedSnapshot = tuple[Position, Mapping[str, PackedTensor]]
PackedTrained = tuple[PackedSnapshot, Mapping[str, PackedTensor], Mapping[str, PackedTensor] | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a run after an update.

    `tensors` are flat vectors, shape (length,): "parameters", "buffers.DTYPE", "optimizer.NAME", "average", what growth
    measures and evaluations decide, and "best.NAME".
    """

    position: Position
    tensors: Mapping[str, Tensor]

    def check_fits(self, live: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError unless names, dtypes and lengths match the live state's vectors.

        The snapshot may lack MISSED, UNSTEPPED and the best weights, or have these although the job does not keep them.
        """
        mine = {name: (str(t.dtype), t.numel()) for name, t in self.tensors.items()}
        theirs = {name: (str(t.dtype), t.numel()) for name, t in live.items()}
        odd = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        odd = [
            name
            for name in odd
            if name in mine.keys() & theirs.keys() or not name.startswith((BEST, MISSED, UNSTEPPED))
        ]
        if not odd:
            return
        pairs = "; ".join(f"{name}: saved {_kind(mine.get(name))}, needed {_kind(theirs.get(name))}" for name in odd)
        raise CheckpointError(
            f"the checkpoint was written by another model or optimizer ({pairs}). "
            "Resume with the model that wrote it, or start over in another --output-dir."
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training.

    `snapshot` is None if training stopped before the first update. `state_dict` is the model's, on the CPU; `best` is
    the state dict at the best evaluation, if the job keeps it.
    """

    snapshot: Snapshot | None
    state_dict: Mapping[str, Tensor]
    best: Mapping[str, Tensor] | None = None


def _kind(kind: tuple[str, int] | None) -> str:
    if kind is None:
        return "nothing"
    dtype, length = kind
    return f"{length} x {dtype.removeprefix('torch.')}"


def from_replica_tensors(position: Position, tensors: Mapping[str, Tensor]) -> Snapshot:
    """Copy `tensors` to the CPU as a snapshot."""
    return Snapshot(position, {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()})


def pack_snapshot(snapshot: Snapshot) -> PackedSnapshot:
    """Pack the snapshot into bytes."""
    return snapshot.position, pack_all(snapshot.tensors)


def unpack_snapshot(packed: PackedSnapshot) -> Snapshot:
    """Return the snapshot that was packed."""
    position, tensors = packed
    return Snapshot(position, unpack_all(tensors))


def pack_trained(trained: Trained) -> PackedTrained:
    """Pack a result of training into bytes."""
    assert trained.snapshot is not None
    best = None if trained.best is None else pack_all(trained.best)
    return pack_snapshot(trained.snapshot), pack_all(trained.state_dict), best


def unpack_trained(packed: PackedTrained) -> Trained:
    """Return the result that was packed."""
    snapshot, state_dict, packed_best = packed
    best = None if packed_best is None else unpack_all(packed_best)
    return Trained(unpack_snapshot(snapshot), unpack_all(state_dict), best)


def weights_sha256(state_dict: Mapping[str, Tensor]) -> str:
    """Return the SHA-256, in hex, over each tensor's name, dtype, shape and bytes, in the order of the state dict."""
    digest = hashlib.sha256()
    for name, tensor in state_dict.items():
        head = f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{tuple(tensor.shape)}\0"
        digest.update(head.encode())
        digest.update(pack(tensor).data.tobytes())
    return digest.hexdigest()

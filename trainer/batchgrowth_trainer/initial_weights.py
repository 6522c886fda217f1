"""The weights with which a training starts, if the manifest names some: read, checked by their digest, and loaded."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from batchgrowth.errors import DataError
from batchgrowth.spec import BatchGrowthJob, JobSpec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from batchgrowth_trainer.record.output import WEIGHTS_FILE
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.replica.shared_memory import Modules
from batchgrowth_trainer.replica.state_dict import exported, load_exported, with_tied

_OF_TORCH = (".pt", ".pth", ".bin")


def with_digest(job: BatchGrowthJob) -> BatchGrowthJob:
    """Return the job with the absolute path and the digest of its initial weights, which belongs to the mathematics.

    Raises DataError if they cannot be read, or have another digest than the job gives.
    """
    initial = job.spec.initial_weights
    if initial is None:
        return job
    path = Path(initial.path).resolve()
    found = digest(read_weights(path))
    _check_digest(path, found, initial.sha256)
    settled = initial.model_copy(update={"path": str(path), "sha256": found})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"initial_weights": settled})})


def begin_with(modules: Modules, spec: JobSpec) -> None:
    """Load the initial weights of the job, if it has any, into what is trained. Raises DataError if they do not fit."""
    initial = spec.initial_weights
    if initial is None:
        return
    path = Path(initial.path)
    weights = read_weights(path)
    _check_digest(path, digest(weights), initial.sha256)
    own = exported(modules)
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    if initial.match == "ByName" and not fitting:
        raise DataError(
            f"initialWeights.path: {path} has no tensor of the name and the shape of one of the model's, which "
            f"are {_some(own)}; it has {_some(weights)}"
        )
    fitting = with_tied(modules, fitting)
    if initial.match == "Strict" and (odd := (own.keys() | weights.keys()) - fitting.keys()):
        raise DataError(
            f"initialWeights.path: {path} does not fit the model: {_some(sorted(odd))} are not the same in both; give "
            "the weights of this model, or match: ByName, which takes those that fit"
        )
    load_exported(modules, {**own, **fitting})


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of safetensors or torch, or of the final weights of a run in a folder, by name.

    Raises DataError if there are none.
    """
    file = path / WEIGHTS_FILE if path.is_dir() else path
    try:
        if file.suffix in _OF_TORCH:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
                found = found["state_dict"]
        else:
            found = load_file(file)
    except FileNotFoundError:
        if file != path:
            raise DataError(
                f"initialWeights.path: {path} has no {WEIGHTS_FILE}, which a run writes at its end; let it finish, or "
                'export its newest checkpoint: torch.save(load(…).model.state_dict(), "weights.pt")'
            ) from None
        raise DataError(f"initialWeights.path: {path}: there is no such file or folder") from None
    except (OSError, RuntimeError, SafetensorError, UnpicklingError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"initialWeights.path: {file} cannot be read ({reason}); give a file of safetensors, or the state dict of "
            f"a model that torch.save wrote, with a name that ends with {', '.join(_OF_TORCH)}"
        ) from error
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"initialWeights.path: {file} has no state dict; give tensors by name")
    return dict(found)


def digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the weights, whatever the order and the format of the file."""
    return weights_sha256(dict(sorted(weights.items())))


def _check_digest(path: Path, found: str, given: str | None) -> None:
    if given not in (None, found):
        raise DataError(
            f"initialWeights.sha256: {given} was given, and the weights in {path} have {found}; give these weights "
            "their digest, or the path of the others"
        )


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")

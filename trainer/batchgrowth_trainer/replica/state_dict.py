"""The weights of what was trained as one state dict: the model's, and the loss's if it has trained parameters."""

from collections.abc import Mapping

from torch import Tensor

from batchgrowth_trainer.replica.flat import LOSS_PREFIX
from batchgrowth_trainer.replica.modules import Modules


def trains_loss(modules: Modules) -> bool:
    """Return whether the loss has trained parameters that are not the model's."""
    known = {id(parameter) for parameter in modules[""].parameters()}
    loss = modules.get(LOSS_PREFIX)
    return loss is not None and any(p.requires_grad and id(p) not in known for p in loss.parameters())


def exported(modules: Modules) -> dict[str, Tensor]:
    """Return the model's own state dict on the CPU, for export; no two tensors share memory.

    If the loss has trained parameters of its own, its state dict follows, with LOSS_PREFIX before each name. The
    constants of any other loss, such as the weights of classes, are no result of the training.
    """
    return {name: value.detach().cpu().clone() for name, value in _held(modules).items()}


def _held(modules: Modules) -> dict[str, Tensor]:
    """Return what `exported` copies."""
    state: dict[str, Tensor] = dict(modules[""].state_dict())
    if trains_loss(modules):
        known = {id(tensor) for tensor in modules[""].state_dict(keep_vars=True).values()}
        for name, tensor in modules[LOSS_PREFIX].state_dict(keep_vars=True).items():
            if id(tensor) not in known:
                state[f"{LOSS_PREFIX}{name}"] = tensor
    return state


def with_tied(modules: Modules, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, with the same value under each further name that the modules have for a tensor.

    Safetensors files often have only one of the names of a tensor that layers share.
    """
    held = {name: (tensor.data_ptr(), tensor.shape, tensor.stride()) for name, tensor in _held(modules).items()}
    # Without empty tensors, which have no address of their own.
    known = {held[name]: value for name, value in weights.items() if value.numel()}
    return {name: known[place] for name, place in held.items() if place in known} | dict(weights)


def load_exported(modules: Modules, state: Mapping[str, Tensor]) -> None:
    """Load a state dict that `exported` returned. Raises RuntimeError if it is of other modules."""
    of_loss: dict[str, Tensor] = {}
    if trains_loss(modules):
        loss = modules[LOSS_PREFIX]
        names = modules[""].state_dict().keys()
        of_loss = {name: value for name, value in state.items() if name.startswith(LOSS_PREFIX) and name not in names}
        own = {name.removeprefix(LOSS_PREFIX): value for name, value in of_loss.items()}
        loss.load_state_dict(loss.state_dict() | own)
    modules[""].load_state_dict({name: value for name, value in state.items() if name not in of_loss})

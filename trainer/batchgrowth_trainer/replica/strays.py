"""Finds what flat vectors cannot see: parameters outside model and loss, calls that change parameters, and hooks."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor, nn

from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import reported_as_workload_error, seen_at
from batchgrowth_trainer.workload import Workload

# --- Parameters that are neither the model's nor the loss's ---


class Leaves:
    """The tensors to which the gradient of a shard's losses flows, and which no optimizer moves.

    Call it with the losses of several shards: a tensor that lives for one call, such as an input for a gradient
    penalty, is found only once.
    """

    def __init__(self, replica: Replica) -> None:
        self._known = {id(parameter) for parameter, _ in replica.parameters.members}
        self.found: list[list[Tensor]] = []

    def __call__(self, losses: Any) -> None:
        """Look at the losses of a shard before they are differentiated."""
        if isinstance(losses, Tensor) and losses.grad_fn is not None:
            self.found.append([leaf for leaf in _leaves_of(losses.grad_fn) if id(leaf) not in self._known])

    def lasting(self) -> list[Tensor]:
        """Return the tensors that outlive a call: parameters, and what both the first and the last call found."""
        if not self.found:
            return []
        again = {id(leaf) for leaf in self.found[-1]} if len(self.found) > 1 else set()
        return [leaf for leaf in self.found[0] if isinstance(leaf, nn.Parameter) or id(leaf) in again]


def _leaves_of(node: Any) -> Iterator[Tensor]:
    """Yield the leaf tensors of a graph of autograd."""
    # A list and no recursion: the graph of a deep model is deeper than Python's calls may be.
    seen = {node}
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def check_leaves(replica: Replica, leaves: Leaves) -> None:
    """Raise WorkloadError if the losses depend on a parameter that nothing trains."""
    workload = replica.workload
    for leaf in leaves.lasting():
        function: Any = workload.step or workload.loss
        name = _name_of(leaf, workload)
        raise WorkloadError(
            f"the losses depend on {name}, of shape {tuple(leaf.shape)}, which needs a gradient but is neither in the "
            "model nor in a module that is the loss, so nothing would train it; put it into one of them as an "
            f"nn.Parameter, or call requires_grad_(False) on it if it should stay as it is{seen_at(function)}"
        )


def _name_of(leaf: Tensor, workload: Workload) -> str:
    """Return a name for the tensor from the functions that may use it."""
    for function in (workload.step, workload.loss, workload.augment):
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        cells = getattr(function, "__closure__", None) or ()
        held: dict[str, Any] = dict(zip(code.co_freevars, (_content(cell) for cell in cells), strict=True))
        names = getattr(function, "__globals__", {})
        held |= {name: names[name] for name in code.co_names if name in names}
        for name, value in held.items():
            if value is leaf:
                return name
            if isinstance(value, nn.Module):
                for key, parameter in value.named_parameters():
                    if parameter is leaf:
                        return f"{name}.{key}"
    return "a tensor"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty as yet
        return None


# --- Parameters that calls of the model change, which only the optimizer may do ---

_COMPARED = 4096  # elements of each frozen parameter


@dataclass(frozen=True, slots=True)
class _AtFirst:
    """A parameter, the address of its memory, and whether it needs a gradient; if no step moves it, its first bytes."""

    parameter: nn.Parameter
    address: int | None
    is_trained: bool
    beginning: Tensor | None


class Parameters:
    """Remembers the parameters of model and loss, and finds what code has done to them by way of `.data`.

    A tensor that is assigned to `.data` takes a trained parameter out of the flat vector. A write into `.data` leaves
    the parameter's version as it was, so the first elements of a frozen parameter are compared.
    """

    def __init__(self, replica: Replica) -> None:
        self._kept: dict[str, _AtFirst] = {}
        for prefix, module in replica.modules.items():
            for name, parameter in module.named_parameters():
                is_trained = parameter.requires_grad
                moves = is_trained or f"{prefix}{name}" in replica.parameters.followers
                beginning = None if moves else _beginning_of(parameter)
                at_first = _AtFirst(parameter, _address_of(parameter), is_trained, beginning)
                self._kept[f"{prefix or 'model.'}{name}"] = at_first

    def changed(self) -> Iterator[str]:
        """Yield the names of parameters that have other memory, or are frozen and have other values."""
        for name, kept in self._kept.items():
            if _address_of(kept.parameter) != kept.address:
                yield name
            elif kept.beginning is not None:
                now = _beginning_of(kept.parameter)
                if now is not None and not torch.equal(now, kept.beginning):
                    yield name

    def unfrozen(self) -> Iterator[str]:
        """Yield the names of parameters that need a gradient now, and did not at first."""
        yield from (name for name, kept in self._kept.items() if kept.parameter.requires_grad and not kept.is_trained)


def _address_of(parameter: Tensor) -> int | None:
    with suppress(NotImplementedError, RuntimeError):  # of a kind that has no memory of its own
        return parameter.data_ptr()
    return None


def _beginning_of(parameter: Tensor) -> Tensor | None:
    with suppress(NotImplementedError, RuntimeError):  # of a kind whose bytes cannot be read
        return parameter.detach().reshape(-1)[:_COMPARED].clone().view(torch.uint8)
    return None


# --- Hooks of parameters, which see the gradient of a shard's sum and not the batch's mean ---

# A power of two, by which scaling rounds nothing; so large that a hook that clips shows itself.
_SCALE = 2.0**20


def check_hooks(replica: Replica) -> None:
    """Raise WorkloadError if a parameter's hook does more than multiply or mask the gradient.

    Torch's hooks get the gradient of the mean over a batch. Here they get the gradient of the sum over a shard, and the
    results are added, which is the same if the hook is linear.
    """
    for parameter, span in replica.parameters.members:
        for hook in (parameter._backward_hooks or {}).values():
            _check_linear(span.name, hook, parameter, lambda hook, gradient: hook(gradient))
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            _check_linear(span.name, hook, parameter, lambda hook, gradient: _after(hook, parameter, gradient))  # noqa: B023


def _after(hook: Any, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """Return the gradient as a post-accumulate hook leaves it."""
    before = parameter.grad
    parameter.grad = gradient
    try:
        hook(parameter)
        return gradient if parameter.grad is None else parameter.grad
    finally:
        parameter.grad = before


def _check_linear(name: str, hook: Any, parameter: nn.Parameter, call: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randn(parameter.shape, generator=draw).to(parameter) for _ in range(2))

    def result(gradient: Tensor) -> Tensor:
        with reported_as_workload_error(f"a hook of the parameter {name}"):
            changed = call(hook, gradient.clone())
        return gradient if changed is None else changed

    with torch.no_grad():
        apart = result(first) + result(second)
        together = result(first + second)
        large = result(first * _SCALE) / _SCALE
    if torch.allclose(together, apart, rtol=1e-4, atol=1e-5) and torch.allclose(large, result(first), rtol=1e-4):
        return
    raise WorkloadError(
        f"a hook of the parameter {name} changes the gradient of a sum otherwise than the gradients that are summed, "
        "and the trainer gives it that of each shard's sum, where a loop of plain torch gives it that of the batch's "
        f"mean; use spec.optimizer.clipping to clip, or compute in the model's own backward{seen_at(hook)}"
    )

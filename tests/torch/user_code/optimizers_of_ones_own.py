"""Optimizers as users write them."""

from typing import Any

import torch
from torch.optim import Optimizer


class Plain(Optimizer):
    """Steps down the gradient, and knows no decay."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)
                self.keep(self.state[parameter], parameter)

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        """Keeps nothing."""


class Failing(Plain):
    """Has no memory left for its step once `left` parameters have been moved."""

    left = 1_000_000

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        Failing.left -= 1
        if not Failing.left:
            raise torch.OutOfMemoryError("CUDA out of memory.")


class Hoarding(Plain):
    """Keeps a list."""

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        state.setdefault("seen", []).append(float(parameter.sum()))


class Growing(Plain):
    """Keeps one more number after each step."""

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        state["seen"] = torch.cat([state.get("seen", torch.zeros(0)), parameter.sum().reshape(1)])


class Counting(Optimizer):
    """Counts in Python's numbers, in the state and in the group, draws noise, and keeps the first gradients."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["done"] = group.get("done", 0) + 1
            group["pace"] = torch.tensor(1.0 / group["done"], dtype=torch.float64)
            for parameter in group["params"]:
                state = self.state[parameter]
                state["half"] = state.get("half", 1.0) / 2
                state.setdefault("first", parameter.grad.clone())
                push = parameter.grad + state["half"] * state["first"] + group["weight_decay"] * parameter
                parameter.sub_(group["lr"] * group["pace"].float() * push)

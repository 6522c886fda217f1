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


class Replacing(Plain):
    """Replaces the data of its parameters, as a projection may."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - group["lr"] * parameter.grad


class Keyed(Plain):
    """Counts its steps under a name in its state, which no parameter has."""

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        done = self.state.setdefault("done", {"steps": 0})  # type: ignore[call-overload]
        done["steps"] += 1
        parameter.sub_(0.1 / done["steps"])


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


class Warm(Plain):
    """SGD whose step shrinks with a counter of its own, and has a memory in a tensor that is made when needed."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.t = 0
        self.pace: Any = None
        self.norms: list[float] = []
        self.name = "cold"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.t += 1
        self.name = f"step {self.t}"
        self.pace = torch.ones(2) if self.pace is None else self.pace / 2
        for group in self.param_groups:
            for parameter in group["params"]:
                self.norms.append(float(parameter.grad.norm()))
                parameter.sub_(group["lr"] / self.t * float(self.pace[0]) * parameter.grad)


class Listing(Plain):
    """Divides by the number of steps, which it keeps in a list."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.seen: list[int] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(1)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] / len(self.seen) * parameter.grad)


class Named(Listing):
    """Decides by a text."""

    phase = "first"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad if self.phase == "first" else 0.1 * parameter.grad)
        self.phase = "later"


class Shared(Listing):
    """Counts in an attribute of its class."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        Shared.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] / Shared.steps * parameter.grad)


class Drawing(Plain):
    """Adds noise from a generator of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.draws = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * torch.randn(parameter.shape, generator=self.draws))


class Annealed(Plain):
    """Changes a number of its group, a number and a small tensor of its own, from the third step on."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["pace"] = 1.0
        self.t = 0
        self.mix = torch.ones(2)
        self.salt = (1 << 60) + 1  # a constant that a float could not hold
        self.steps_of_state = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps_of_state += 1
        if self.steps_of_state > 2:
            self.t += 1
            self.mix.mul_(0.5)
            self.param_groups[0]["pace"] *= 0.9
        for group in self.param_groups:
            for parameter in group["params"]:
                scale = group["lr"] * self.param_groups[0]["pace"] * float(self.mix[0]) / (1 + self.t)
                parameter.sub_(scale * (1.0 + self.salt % 2) * parameter.grad)


class Later(Plain):
    """Behaves otherwise from its fifth step on; a subclass says how."""

    steps = 0

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.seen: list[int] = []
        self.steps = 0
        self.phase = "first"
        self.draws = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                factor = self.factor(self.state[parameter]) if self.steps > 4 else 1.0
                parameter.sub_(group["lr"] * factor * parameter.grad)

    def factor(self, state: dict[str, Any]) -> float:
        self.seen.append(1)  # a record
        return 0.5


class LaterListing(Later):
    def factor(self, state: dict[str, Any]) -> float:
        self.seen.append(1)
        return 1 / len(self.seen)


class LaterNamed(Later):
    def factor(self, state: dict[str, Any]) -> float:
        self.phase = f"{self.phase}!"
        return 1 / len(self.phase)


class LaterShared(Later):
    def factor(self, state: dict[str, Any]) -> float:
        LaterShared.count += 1
        return 1 / LaterShared.count

    count = 0


class LaterKeeping(Later):
    def factor(self, state: dict[str, Any]) -> float:
        state["times"] = state.get("times", 0) + 1
        return 1 / state["times"]


class LaterDrawing(Later):
    def factor(self, state: dict[str, Any]) -> float:
        return float(torch.rand((), generator=self.draws))

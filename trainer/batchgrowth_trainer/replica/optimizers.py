"""Optimizer steps over flat vectors, and the average of the weights over the updates.

Torch's own classes and LBFGS have their steps in torch_optimizer.py and lbfgs.py. The gradient is clipped before the
step: `clip` in replica.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Protocol

import torch
from batchgrowth.choices.optimizers import AdagradBlock, AdamBlock, LAMBBlock, LARSBlock, RMSpropBlock, SGDBlock
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import Averaging, JobSpec
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.user_errors import seen_at

# An optimizer over one flat vector; its state is made of flat vectors too.
# A step depends on nothing but (vector, gradient, state, learning rate, updates done), so the state can move to another
# process or through a checkpoint and continue with the same bits. Torch's optimizers are used as functions, not as
# classes: constructing one of those loads torch's compiler, a second that a new worker should not spend.

StepFunction = Callable[[Tensor, Tensor, Mapping[str, Tensor], float, int], None]
BLOCK = 1 << 17
"""Elements of a vector that each thread of a CPU steps on at once: with four or five vectors, 2 MiB in its caches."""
_Bound = tuple[StepFunction, slice, Tensor, Mapping[str, Tensor], int]


@dataclass(frozen=True, slots=True)
class Stepper:
    """An optimizer's step: `step(vector, gradient, state, learning rate, updates done)` moves the vector in place.

    `state` names the flat vectors that the optimizer keeps between steps; each begins at 0. If `by_parameter`, the
    vector is one parameter of the model. Otherwise it has several parameters, and the step moves each element by
    itself, so a caller may give it only some of the elements. `spared` has the same state, and moves the parameters
    that do not decay. If `counts`, the step depends on the number of updates done.
    """

    state: tuple[str, ...]
    step: StepFunction
    by_parameter: bool = False
    spared: "Stepper | None" = None
    counts: bool = False


class AnyOptimizer(Protocol):
    """An optimizer as the replica uses it. Its vectors `state` are read after a step, and may be written before the
    next.
    """

    state: dict[str, Tensor]

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int, unreached: Sequence[int] = ()) -> None:
        """Move the parameters by one update; `gradient` is the mean over the batch, shape (length,).

        `unreached` are the indices of parameters that no example of the batch has used, whose gradient is 0.
        """


def optimizer_of(spec: JobSpec, parameters: FlatParameters) -> AnyOptimizer:
    """Return the optimizer of a spec over the trained parameters of a model.

    Raises WorkloadError if it does not fit them.
    """
    made = spec.optimizer.entry.load()(spec.optimizer.settings)
    if isinstance(made, Stepper):
        return FlatOptimizer(spec, parameters, made)
    optimizer: AnyOptimizer = made(spec, parameters)
    return optimizer


def check_tied(spec: JobSpec, parameters: FlatParameters) -> None:
    """Raise WorkloadError if parameters share memory, and their optimizer would not move it as torch's does.

    Torch's takes a step for each of them, one after the other. Without decay and clipping, SGD's steps add up to one
    step by the sum of their gradients, which the shared memory gets.
    """
    optimizer = spec.optimizer
    is_linear = isinstance(optimizer.settings, SGDBlock) and not float(optimizer.settings.weight_decay)
    if not parameters.tied or (is_linear and optimizer.clipping is None):
        return
    first, second, *_ = parameters.tied[0]
    raise WorkloadError(
        f"model.{first} and model.{second} are two parameters with the same memory, so torch's {optimizer.type} would "
        f"move it twice in each update; make them one parameter, as in self.b.weight = self.a.weight in place of "
        f"self.b.weight.data = self.a.weight.data, and compute one of another shape in forward, as in "
        f"functional.linear(x, self.a.weight.t()){seen_at(None)}"
    )


class FlatOptimizer:
    """An optimizer over flat vectors, which takes the steps of a Stepper.

    `missed` counts for each parameter the updates without a gradient of it, if the step depends on the number of
    updates: torch's Adam corrects moments by the number of the parameter's own steps. It is None otherwise.
    """

    def __init__(self, spec: JobSpec, parameters: FlatParameters, stepper: Stepper) -> None:
        vector = parameters.vector.data
        cut = parameters.last_from
        self.state: dict[str, Tensor] = {name: torch.zeros_like(vector) for name in stepper.state}
        decayed = [span.place for span in parameters.spans if span.start < cut]
        others = [span.place for span in parameters.spans if span.start >= cut]
        parts = [(stepper, place) for place in _places(stepper, decayed)]
        if others:
            undecayed = stepper.spared or _undecayed(spec)
            parts += [(undecayed, place) for place in _places(undecayed, others)]
        self._parameters = vector
        self._steps = parts
        self._ends = [*(span.start for span in parameters.spans[1:]), parameters.length]
        self._starts = [span.start for span in parameters.spans]
        self.missed: Tensor | None = None
        if stepper.counts:
            self.missed = torch.zeros(len(parameters.spans), dtype=torch.float64, device=vector.device)
        self._within = slice(0, len(vector))
        self._bound = self._bind()

    def within(self, place: slice) -> "FlatOptimizer":
        """Return an optimizer for only the parameters at `place`, which must be whole, and their gradients.

        It shares the vectors of this one's state, and takes the same steps, bit for bit.
        """
        part = copy(self)
        part._within = place
        part._bound = part._bind()
        return part

    def _bind(self, runs: Sequence[tuple[slice, int]] = ()) -> list[_Bound]:
        """Return each step within this optimizer's parameters, with the views that it moves, its place in their
        gradient, and how many updates it has missed.

        `runs` are the slices of the vector that are moved, each with the updates that it has missed; none for all.
        """
        bound: list[_Bound] = []
        first = self._within.start
        for (stepper, place), (run, missed) in product(self._steps, runs or [(self._within, 0)]):
            start = max(place.start, run.start, first)
            stop = min(place.stop, run.stop, self._within.stop)
            # On a CPU a step takes place block by block: it is several operations, each of which reads and writes its
            # vectors, and a block's vectors stay in the caches.
            block = max(1, stop - start)
            if self._parameters.device.type == "cpu" and not stepper.by_parameter:
                block = BLOCK * torch.get_num_threads()
            for lo in range(start, stop, block):
                hi = min(lo + block, stop)
                state = {name: whole[lo:hi] for name, whole in self.state.items()}
                bound.append((stepper.step, slice(lo - first, hi - first), self._parameters[lo:hi], state, missed))
        return bound

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int, unreached: Sequence[int] = ()) -> None:
        """Move the vector by one update; `gradient` is the mean over the batch, shape (length,).

        It leaves parameters with the indices `unreached` alone, as torch's optimizers leave those without a gradient.
        None of these tensors requires a gradient, so `no_grad` would only take time.
        """
        missed = [] if self.missed is None else self.missed.tolist()
        bound = self._bound
        if unreached or any(missed):
            bound = self._bind(self._runs(set(unreached), missed))
        for step, place, vector, state, late in bound:
            step(vector, gradient[place], state, learning_rate, updates_done - late)

    def _runs(self, unreached: Set[int], missed: Sequence[float]) -> list[tuple[slice, int]]:
        """Return the slices of adjacent parameters that have missed the same number of updates, without `unreached`."""
        runs = [(slice(0, 0), 0)]
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if index in unreached:
                continue
            late = int(missed[index]) if missed else 0
            before, known = runs[-1]
            if before.stop == start and known == late:
                runs[-1] = slice(before.start, end), late
            else:
                runs.append((slice(start, end), late))
        return runs


def _places(stepper: Stepper, parameters: Sequence[slice]) -> Sequence[slice]:
    """Return the slices of the vector that take one step each: one slice per parameter, or one for all parameters."""
    if stepper.by_parameter or not parameters:
        return parameters
    return [slice(parameters[0].start, parameters[-1].stop)]


def _undecayed(spec: JobSpec) -> Stepper:
    settings = spec.optimizer.settings
    if not hasattr(settings, "weight_decay"):
        raise WorkloadError(
            f"optimizer.withoutDecay: {spec.optimizer.type} has no weightDecay, so leave withoutDecay out"
        )
    stepper: Stepper = spec.optimizer.entry.load()(settings.model_copy(update={"weight_decay": "0"}))
    return stepper


# SGD with momentum, Nesterov's momentum and weight decay.

_MOMENTUM = "momentum_buffer"


def sgd_stepper(settings: SGDBlock) -> Stepper:
    """Return torch's SGD with these settings, operation by operation; it keeps a momentum buffer if there is momentum.

    Torch's own function takes twice as long for a small net.
    """
    momentum = float(settings.momentum)
    decay = float(settings.weight_decay)
    nesterov = settings.nesterov

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, _done: int) -> None:
        if decay:
            gradient = gradient.add(vector, alpha=decay)
        if momentum:
            buffer = state[_MOMENTUM].mul_(momentum).add_(gradient)
            gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
        vector.add_(gradient, alpha=-learning_rate)

    return Stepper((_MOMENTUM,) if momentum else (), step)


# Adagrad.


def adagrad_stepper(settings: AdagradBlock) -> Stepper:
    """Return torch's Adagrad with these settings."""

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        adagrad(
            [vector],
            [gradient],
            [state["sum"]],
            [torch.tensor(float(done), dtype=torch.float32)],
            foreach=False,
            lr=learning_rate,
            weight_decay=float(settings.weight_decay),
            lr_decay=0.0,
            eps=float(settings.epsilon),
            maximize=False,
        )

    return Stepper(("sum",), step)


# RMSprop, with momentum and centered if asked for.

_SQUARES = "square_avg"
_MEAN = "grad_avg"
_BUFFER = "momentum_buffer"


def rmsprop_stepper(settings: RMSpropBlock) -> Stepper:
    """Return torch's RMSprop with these settings; it keeps only the vectors that the settings need."""
    kept = (_SQUARES, *([_MEAN] if settings.centered else []), *([_BUFFER] if float(settings.momentum) else []))

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        rmsprop(
            [vector],
            [gradient],
            [state[_SQUARES]],
            [state[_MEAN]] if settings.centered else [],
            [state[_BUFFER]] if float(settings.momentum) else [],
            [torch.tensor(float(done), dtype=torch.float32)],
            foreach=False,
            lr=learning_rate,
            alpha=float(settings.alpha),
            eps=float(settings.epsilon),
            weight_decay=float(settings.weight_decay),
            momentum=float(settings.momentum),
            centered=settings.centered,
        )

    return Stepper(kept, step)


# Adam, and AdamW, which decouples the weight decay from the gradient.


def adam_stepper(settings: AdamBlock, *, decoupled: bool = False) -> Stepper:
    """Return torch's Adam with these settings."""

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        adam(
            [vector],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [torch.tensor(float(done), dtype=torch.float32)],
            foreach=False,
            lr=learning_rate,
            beta1=float(settings.beta1),
            beta2=float(settings.beta2),
            eps=float(settings.epsilon),
            weight_decay=float(settings.weight_decay),
            decoupled_weight_decay=decoupled,
            amsgrad=False,
            maximize=False,
        )

    return Stepper(("exp_avg", "exp_avg_sq"), step, counts=True)


def adamw_stepper(settings: AdamBlock) -> Stepper:
    """Return torch's AdamW with these settings."""
    return adam_stepper(settings, decoupled=True)


# LAMB: AdamW with a step for each parameter that has the norm of its weights.


def lamb_stepper(settings: LAMBBlock) -> Stepper:
    """Return LAMB with these settings: You et al., 2020, algorithm 2, with corrected moments; phi is the identity."""
    plain = adam_stepper(settings.model_copy(update={"weight_decay": "0"}))
    decay = float(settings.weight_decay)

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        down = torch.zeros_like(vector)
        plain.step(down, gradient, state, 1.0, done)  # Adam's step, from 0 at learning rate 1
        move = down.sub_(vector, alpha=decay)
        weights = torch.linalg.vector_norm(vector)
        length = torch.linalg.vector_norm(move)
        ratio = torch.where((weights > 0) & (length > 0), weights / length, 1.0)
        vector.add_(move.mul_(ratio), alpha=learning_rate)

    return Stepper(plain.state, step, by_parameter=True, spared=plain, counts=True)


# LARS: SGD with a learning rate for each parameter.


def lars_stepper(settings: LARSBlock) -> Stepper:
    """Return LARS with these settings: You et al., 2017, with the learning rate outside momentum, as in torch's SGD."""
    plain = sgd_stepper(SGDBlock(momentum=settings.momentum))
    trust = float(settings.trust_coefficient)
    decay = float(settings.weight_decay)

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        weights = torch.linalg.vector_norm(vector)
        slope = torch.linalg.vector_norm(gradient)
        ratio = trust * weights / (slope + decay * weights)
        ratio = torch.where((weights > 0) & (slope > 0), ratio, 1.0)
        plain.step(vector, torch.add(gradient, vector, alpha=decay).mul_(ratio), state, learning_rate, done)

    return Stepper(plain.state, step, by_parameter=True, spared=plain)


# An exponential moving average of the weights, which a job with spec.optimizer.averaging evaluates and exports.
# The decay begins small, so that the first weights are soon forgotten, as in TensorFlow's ExponentialMovingAverage.

_ALL = slice(None)


class Average:
    """The running average of `vector`, shape (length,); it begins as a copy of the vector."""

    def __init__(self, averaging: Averaging, vector: Tensor) -> None:
        self._decay = float(averaging.decay)
        self._vector = vector
        self.vector = vector.clone()

    @torch.no_grad()
    def follow(self, updates_done: int, place: slice = _ALL) -> None:
        """Take the vector at `place` into account after an update; `updates_done` counts the earlier updates."""
        decay = min(self._decay, (1 + updates_done) / (10 + updates_done))
        self.vector[place].lerp_(self._vector[place], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average in place of the vector, for the block."""
        kept = self._vector.clone()
        self._vector.copy_(self.vector)
        try:
            yield
        finally:
            self._vector.copy_(kept)


def average_of(spec: JobSpec, vector: Tensor) -> Average | None:
    """Return the average that a job asks for; None if it asks for none."""
    asked = spec.optimizer.averaging
    return None if asked is None else Average(asked, vector)


# Which parameters the weight decay leaves alone.


def spared(spec: JobSpec, names: Sequence[str]) -> Callable[[str, Tensor], bool]:
    """Return a function that tells, from a parameter's name and shape, whether weight decay spares it.

    `names` are the trained parameters' names. Raises WorkloadError for a pattern that matches none of them.
    """
    asked = spec.optimizer.without_decay
    if asked is None:
        return lambda _name, _parameter: False
    for index, pattern in enumerate(asked.names):
        if not any(fnmatchcase(name, pattern) for name in names):
            few = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
            raise WorkloadError(
                f"optimizer.withoutDecay.names[{index}]: no trained parameter is named {pattern}; there are {few}"
            )

    def is_spared(name: str, parameter: Tensor) -> bool:
        return parameter.ndim < asked.below_dimensions or any(fnmatchcase(name, one) for one in asked.names)

    return is_spared

"""One copy of the model, and one update of it: the gradients of shards, their sums, and the optimizer's step.

Every worker holds a replica, as does a run in one process. An exchange only assigns shards to workers and adds up what
they return. An update goes down this page: `partials` computes the rows of this member's shards and adds them along the
tree; the exchange makes the total of all members' partials; `take_step` moves the weights by the total (by
optimizers.py) and the buffers by their mean change (flat.py); and `advance` moves the position. `commit` does the last
two.
Legend: L = length of a row (see flat.py), N = examples of a shard.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, Protocol

import torch
from batchgrowth.errors import BatchGrowthError
from batchgrowth.plan import Plan, Step
from batchgrowth.position import Position
from batchgrowth.shards import subtrees, tree_sum
from batchgrowth.spec import Clipping, JobSpec
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.record.snapshot import MISSED, Snapshot, from_replica_tensors
from batchgrowth_trainer.replica.beginning import Beginning
from batchgrowth_trainer.replica.data import Ahead, Requests, Runs, none_known, to_device
from batchgrowth_trainer.replica.decisions import GrowthState, Judgement
from batchgrowth_trainer.replica.flat import (
    LOSS,
    SHARD_SQUARES,
    FlatBuffers,
    FlatParameters,
    GradientLost,
    Partial,
    Rows,
    Start,
    Sums,
    Tail,
    modules_of,
    named_parameters,
)
from batchgrowth_trainer.replica.loaders import reader_of
from batchgrowth_trainer.replica.modules import copied
from batchgrowth_trainer.replica.optimizers import (
    AnyOptimizer,
    FlatOptimizer,
    average_of,
    check_tied,
    optimizer_of,
    spared,
)
from batchgrowth_trainer.replica.reproducible import Compiled, autocast
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators
from batchgrowth_trainer.replica.state_dict import exported
from batchgrowth_trainer.replica.torch_optimizer import TorchOptimizer
from batchgrowth_trainer.user_errors import FAULTS, DeviceFault, gradient_lost, not_finite, workload_error
from batchgrowth_trainer.workload import Workload, module_behind

SURELY_FINITE = 1e38
"""Bound of a gradient's squared norm: below it, all norms are finite, since float32 ends at 3.4e38."""
_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_UNFOLLOWED = nullcontext()
_UNGUARDED = nullcontext()

Follow = Callable[[Partial], AbstractContextManager[None]]
"""The sum of a shard that is being computed -> a context for its backward pass."""


class ComputeShard(Protocol):
    """Computes one shard of an update."""

    def __call__(self, shard: int, follow: Follow | None = None) -> Partial:
        """Return the shard's sum; the backward pass runs in the context that `follow` returns."""


SumNodes = Callable[[Sequence[tuple[int, int]], ComputeShard], list[Partial]]
"""Returns the sums of these nodes of the tree, in order."""


@dataclass(slots=True)
class Taken:
    """The facts of an optimizer's step: the sum of its examples' losses, the learning rate, and the mean gradient's
    norm. `sums` are the numbers at the end of the total.
    """

    loss: float
    learning_rate: float
    norm: float
    sums: Sums


@dataclass(frozen=True, slots=True)
class Part:
    """The parameters at `place`, which this process moves by `optimizer`, while other processes move the others.

    `norms_of_all(gradient)` takes the mean gradient of these parameters and returns the gradient norms of all
    parameters. `optimizer` is None if there is no parameter at `place`.
    """

    place: slice
    optimizer: AnyOptimizer | None
    norms_of_all: Callable[[Tensor], Tensor]


class Replica:
    """Parameters, buffers, optimizer state and data of one process.

    `position` is where the next update begins, which `plan.step_at(position)` describes. `arithmetic` says how this
    process computed the job's first shard, once it has. `is_whole` is false from the moment at which a step begins
    to move the state until the position follows. If a step fails in between, the state belongs to no update, and
    training may only go on from another state.
    """

    def __init__(self, spec: JobSpec, workload: Workload, device: torch.device) -> None:
        self.spec = spec
        self.workload = workload
        self.device = device
        self.growth = GrowthState(spec, device)
        modules = modules_of(workload.model, workload.loss_module)
        names = [name for name, parameter in named_parameters(modules).items() if parameter.requires_grad]
        self.parameters = FlatParameters(workload.model, device, spared(spec, names), workload.loss_module)
        check_tied(spec, self.parameters)
        self.optimizer = optimizer_of(spec, self.parameters)
        self._asks_user = _is_users(self.optimizer)
        self.average = average_of(spec, self.parameters.vector.data)
        course = self.growth.course
        quantities = (SHARD_SQUARES, LOSS) if course.needs_noise else (LOSS,)
        self.tail = Tail(quantities, clock=course.looks_at_clock, parameters=len(self.parameters.members))
        self._needs_norm = course.measures or spec.optimizer.clipping is not None
        # Before the judgement, which copies the model's vectors: this makes the buffers flat.
        self._compute_with(workload)
        self.judgement = Judgement(spec, self.model_tensors(), device)
        self.reader = reader_of(workload, spec.workers.loaders, spec.workers.loaded_ahead)
        self.requests = Requests(spec.seed, draws=self.reader.draws)
        self.arithmetic = Arithmetic()
        self.beginning = Beginning()
        self.on_shard: Callable[[], object] | None = None
        """Called after each shard, or chunk of the test set, by the thread that computes it."""
        self.quantize_node: Callable[[Partial], None] | None = None
        """Rounds the sum at each node of the tree, a shard's own included, before it is used or sent.

        Set by exchange.strategy.prepare_exchange if the job has an exchange.compression.
        """
        self.may_send_early = True
        """Whether a gradient may be sent before the backward pass is over: false once one came too late, or twice."""
        self.registered: dict[str, Tensor] = {}
        self.position = Position()
        self.is_whole = True
        self.plan: Plan
        """The plan as decided so far."""
        self.adopt_decisions()

    def _compute_with(self, workload: Workload) -> None:
        """Compute with this workload's model and loss, whose parameters are in `parameters`; make their buffers flat,
        and move their other tensors to the device.
        """
        self.workload = workload
        self.model = workload.model
        self.modules = modules_of(workload.model, workload.loss_module)
        self.buffers = FlatBuffers(self.model, self.device, workload.loss_module, self.parameters.followers)
        for module in self.modules.values():
            _keep_in_vector(module)
            module.to(self.device)
        self.rows = Rows(self.parameters, self.buffers.length, self.tail)
        self.length = self.rows.length
        self._layers = tuple(dict.fromkeys(layer for module in self.modules.values() for layer in module.modules()))
        self._modes: list[bool] = []
        self._batch_norms = [layer for layer in self._layers if isinstance(layer, _BatchNorm)]
        self._autocast = autocast(self.spec, self.device)
        self._values: Callable[..., Any] = self.workload.values
        if self.spec.compile:
            self._values = Compiled(self.workload.values, self.spec, self.device)

    def register(self, name: str, tensor: Tensor) -> None:
        """Let the tensor move with the state: to other members, into snapshots and checkpoints.

        An exchange keeps its state from round to round in such tensors, and finds them in `registered`.
        """
        self.registered[name] = tensor

    def twin(self, *, own_weights: bool = False) -> "Replica":
        """Return a replica that computes gradients, with its own model and buffers; it shares the weights unless
        `own_weights`. Raises WorkloadError if the model cannot be copied.
        """
        twin = copy(self)
        own: dict[str, Any] = {"model": self.model}
        modules = [self.model]
        for name in ("loss", "step"):
            function = getattr(self.workload, name)
            module = module_behind(function)
            if module is not None:
                own[name] = function
                modules.append(module)
        workload = replace(self.workload, **copied(own, modules))  # together, because they may share parts
        twin.parameters = self.parameters.of_copy(workload.model, workload.loss_module, shared=not own_weights)
        twin._compute_with(workload)
        return twin

    @contextmanager
    def watched_losses(self, watch: Callable[[Any], object]) -> Iterator[None]:
        """Call `watch` in the block with what the workload returns as the losses of each shard."""
        compute = self._values

        def watched(*arguments: Any) -> Any:
            values = compute(*arguments)
            watch(values)
            return values

        self._values = watched
        try:
            yield
        finally:
            self._values = compute

    def follow_seed(self, seed: int) -> None:
        """Let another seed than the job's decide the order of the examples, and what shards and reading draw."""
        self.spec = self.spec.model_copy(update={"seed": seed})
        self.requests = Requests(seed, draws=self.reader.draws)

    def begin_training(self) -> None:
        """Call `train()` of model and loss, as a loop of plain torch does before an epoch.

        Every stretch of updates begins with this, in every process, whatever modes the workload was made in; so an
        override of `train`, such as one that freezes a batch norm, holds from the first update on.
        """
        for module in self.modules.values():
            module.train()
        self._modes = [layer.training for layer in self._layers]

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[], None]]:
        """Put model and loss into eval mode for the block, and begin a stretch of training after it.

        Yield a function that restores the modes if a call of the model has changed them.
        """
        for module in self.modules.values():
            module.eval()
        modes = [layer.training for layer in self._layers]
        try:
            yield partial(self._restore_modes, modes)
        finally:
            self.begin_training()

    def _restore_modes(self, modes: Sequence[bool]) -> None:
        """Put each layer into its mode, so that no shard depends on which shards this process computed before."""
        for layer, mode in zip(self._layers, modes, strict=True):
            if layer.training is not mode:  # looking takes less time than doing it
                layer.training = mode

    def partials(
        self,
        step: Step,
        run: tuple[int, int],
        *,
        stop: bool = False,
        runs: Runs = none_known,
        sum_nodes: SumNodes | None = None,
    ) -> list[Partial]:
        """Return the sums of the largest subtrees that together cover the shards [run[0], run[1]), in order.

        With `stop`, this member requests a stop after the update. `runs` gives its shards of later updates, whose
        examples are read ahead. `sum_nodes` replaces the default way to make the sums, which adds whole rows.
        """

        def ahead(shard: int) -> Iterator[Any]:
            return self.requests.coming(self.plan, step, range(shard, run[1]), runs)

        partials = self.sums(step, subtrees(run[0], run[1], step.shards), ahead, sum_nodes)
        if stop and partials:
            self.tail.request_stop(partials[0].row)
        return partials

    def sums(
        self, step: Step, nodes: Sequence[tuple[int, int]], ahead: Ahead | None, sum_nodes: SumNodes | None = None
    ) -> list[Partial]:
        """Return the sum over the shards of each node [lo, hi), along a tree; see `partials`.

        `ahead` gives a shard's request and those to read ahead of time; with None, nothing is read ahead.
        The buffers are reset afterwards, since `commit` moves them by the mean of all shards' changes.
        """
        if not self._modes:
            self.begin_training()
        with self.buffers.kept() as start:
            compute = partial(self._compute_shard, step, start, ahead)
            if sum_nodes is not None:  # of exchange.streaming: it calls `compute`, and sends buckets meanwhile
                return sum_nodes(nodes, compute)
            return [tree_sum(lo, hi, compute, self.add) for lo, hi in nodes]

    def computed_aside(self, step: Step, shard: int) -> Partial:
        """Return the sum of one shard of an update, computed with the present weights, for a comparison.

        The state stays as it is, and so does what is read ahead. Release the sum afterwards.
        """
        [row] = self.sums(step, ((shard, shard + 1),), None)
        return row

    def _compute_shard(
        self, step: Step, start: Start, ahead: Ahead | None, shard: int, follow: Follow | None = None
    ) -> Partial:
        """Return the sum of one shard: read its examples, compute their losses, differentiate, and fill its row.

        Raises DataError, and WorkloadError if the workload's code fails, or returns something else than one loss per
        example.
        """
        workload = self.workload
        # Every shard starts from the same modes and buffers, whichever member computes it, and has a row of its own.
        self._restore_modes(self._modes)
        self.buffers.restore(start)
        done = self.rows.blank(shard)
        self.parameters.collect_into(done.of_parameters)  # so that backward writes into the row
        request = self.requests.of(self.plan, step, shard)
        count = len(request.indices)
        if not count:
            return done
        try:
            if ahead is None:
                batch = self.reader.read_aside(request)
            else:
                batch = self.reader.read(request, partial(ahead, shard))
            inputs, target = to_device(batch, self.device)
            # After reading, which another process may have done: dropout must not depend on how much reading drew.
            seed_generators(draw_seed(self.spec.seed, "shard", step.position.update, shard))
            if workload.augment is not None:
                inputs = workload.augmented(inputs)
            with resting(self._batch_norms) if count == 1 else _UNFOLLOWED, self._autocast:
                losses = workload.checked(self._values(self.model, inputs, target), target, count)
            # To differentiate the losses themselves takes less time, but makes torch import sympy: 0.4 s, and tens of
            # MiB of each process.
            if losses.dtype is torch.bfloat16:
                losses = losses.float()
            loss = losses.sum()
            with _UNFOLLOWED if follow is None else follow(done):
                loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
            unreached = self.parameters.missed_in(done)
        except BatchGrowthError:
            raise
        except GradientLost as error:
            raise gradient_lost(str(error), workload.step or self.model) from None
        except FAULTS as error:  # written out: entering reported_as_workload_error would take time for every shard
            raise workload_error(f"update {step.position.update + 1}, shard {shard}", error) from error
        if unreached:
            done.without[unreached] = float(count)
        # The gradient is in the row already. Behind it come the changes of the buffers and the quantities of the tail.
        for place, quantity in zip(done.quantities, self.tail.quantities, strict=True):
            quantity.write(place, loss, done.gradient, step, count)
        if self.buffers.length:
            self.buffers.change_since(start, count, done.buffers)
        if self.quantize_node is not None:
            self.quantize_node(done)
        if self.on_shard is not None:
            self.on_shard()
        return done

    def add(self, left: Partial, right: Partial) -> Partial:
        """Add `right`, the next subtree, to `left`; release `right` and return `left`."""
        left.row.add_(right.row)
        left.hi = right.hi
        if self.quantize_node is not None:
            self.quantize_node(left)
        self.rows.release((right,))
        return left

    def commit(self, step: Step, total: Tensor) -> Committed:
        """Take the optimizer's step with `total`, the sum over all shards, and advance to the next update.

        `total` is overwritten, and may be one of the rows of `partials`: release these afterwards.
        Raises WorkloadError if the loss or the gradient is not finite; the state is then unchanged.
        """
        gradient, rest = self.split(total)
        guard: AbstractContextManager[None] = _UNGUARDED
        # The user's optimizer may raise an error in the middle of its step, and their growth rule after it. After a
        # fault of the device nothing of the state can be trusted, so it stays as it is, not whole.
        if self._asks_user or (self.growth.is_users and self.growth.course.is_due(step.after)):
            guard = undone_by_errors(self, unless=DeviceFault)
        with guard:
            return self.advance(step, self.take_step(step, gradient, rest, step.examples))

    def split(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient in a total, shape (L,), and the rest of the total."""
        gradient, rest = total.split_with_sizes([self.parameters.length, self.length - self.parameters.length])
        return gradient, rest

    def take_step(self, step: Step, gradient: Tensor, rest: Tensor, examples: int, part: Part | None = None) -> Taken:
        """Move weights and buffers by a gradient that is the sum over `examples` examples of the update.

        The optimizer moves the weights: optimizers.py, torch_optimizer.py or lbfgs.py.
        `rest` is what follows the gradient in the total; both are overwritten. With a `part`, `gradient` has only
        its parameters. The position stays: `advance` follows, or `moved_to` after several steps.
        Raises WorkloadError if the loss or the gradient is not finite; the state is then unchanged. Any other
        error leaves a state that is not whole, which the caller restores, as `commit` does.
        """
        learning_rate = step.learning_rate
        if self.growth.measures:
            learning_rate = self.growth.learning_rate(step)
        # In place: the total is a row of this process, and `Rows.blank` zeroes a row before its next use.
        gradient.div_(examples)
        norms = None
        if part is not None:
            norms = part.norms_of_all(gradient)
        elif self._needs_norm:
            norms = norms_of(gradient, self.parameters.lengths)
        else:  # The square takes less time. No bits depend on the norm then, so it need only be finite.
            sums, square = self.tail.read(rest, torch.dot(gradient, gradient))
            norm = square**0.5
            if not square < SURELY_FINITE:
                norms = norms_of(gradient, self.parameters.lengths)
        if norms is not None:
            sums, norm = self.tail.read(rest, torch.linalg.vector_norm(norms, dtype=torch.float64))
        loss = sums.by_name[LOSS.name]
        # Before anything moves: an error then leaves the state as it was.
        if not (isfinite(loss) and isfinite(norm)):
            raise not_finite(step, learning_rate, loss, norm)
        unreached: list[int] = []
        if any(sums.without):
            unreached = self.parameters.unreached(sums.without, examples)
        optimizer: AnyOptimizer | None = self.optimizer
        place = slice(None)
        if part is not None:
            optimizer = part.optimizer
            place = part.place
        self.is_whole = False
        if self.buffers.length:
            self.buffers.advance(rest[: self.buffers.length].div_(examples))
        if optimizer is not None:
            if self.spec.optimizer.clipping is not None:
                clip(gradient, norm, self.spec.optimizer.clipping)
            if unreached:  # torch's optimizers leave a parameter alone whose gradient is None
                optimizer.step(gradient, learning_rate, step.position.update, unreached)
            else:
                optimizer.step(gradient, learning_rate, step.position.update)
            if self.average is not None:
                self.average.follow(step.position.update, place)
        if unreached and self.missed is not None:
            self.missed[unreached] += 1.0
        return Taken(loss, learning_rate, norm, sums)

    def advance(self, step: Step, taken: Taken) -> Committed:
        """Advance the position past an update whose step is taken, and let the growth take that update into account."""
        decision = None
        if self.growth.measures:
            decision = self.growth.after(step, taken.sums, taken.norm)
        if decision is not None:
            self.adopt_decisions()  # before the position moves on: the next update may be larger
        self.position = step.after
        self.is_whole = True
        return Committed(taken.loss / step.examples, taken.learning_rate, taken.sums.stop, decision)

    def adopt_decisions(self) -> None:
        """Renew `plan` after a decision: the batch has grown, or an evaluation ends the training early."""
        self.plan = self.judgement.shortened(self.growth.course.plan)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's live vectors, by name; call `moved_to` after writing into them."""
        registered = {name: tensor.view(-1) for name, tensor in self.registered.items()}
        return self.of_one() | registered | self.growth.tensors() | self.judgement.tensors()

    @property
    def num_bytes(self) -> int:
        """Return the size of the state."""
        return sum(vector.nbytes for vector in self.tensors().values())

    def of_one(self) -> dict[str, Tensor]:
        """Return the vectors of which each logical replica has its own."""
        vectors = self.model_tensors()
        for name, vector in self.optimizer.state.items():
            vectors[f"optimizer.{name}"] = vector
        if self.average is not None:
            vectors["average"] = self.average.vector
        if self.missed is not None:
            vectors[MISSED] = self.missed
        return vectors

    @property
    def missed(self) -> Tensor | None:
        """Return the optimizer's count of the updates without a gradient, by parameter; None if it needs none."""
        return self.optimizer.missed if isinstance(self.optimizer, FlatOptimizer) else None

    def model_tensors(self) -> dict[str, Tensor]:
        """Return the vectors on which the gradient depends, which are the model's vectors in `tensors()`."""
        vectors = {"parameters": self.parameters.vector.data}
        for dtype, vector in self.buffers.vectors.items():
            vectors[f"buffers.{str(dtype).removeprefix('torch.')}"] = vector
        return vectors

    def moved_to(self, position: Position) -> None:
        """Adopt the state at this position after it was written into `tensors()`."""
        self.growth.synchronize()
        self.judgement.synchronize()
        self.adopt_decisions()  # the plan follows from the two, so they come first
        self.position = position
        self.is_whole = True

    def snapshot(self) -> Snapshot:
        """Return a copy of the state on the CPU. Raises RuntimeError if it is not whole."""
        if not self.is_whole:
            raise RuntimeError("a step of the optimizer failed, so the state is not whole")
        return from_replica_tensors(self.position, self.tensors())

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state. Raises CheckpointError if the snapshot comes from another model or optimizer."""
        mine = self.tensors()
        snapshot.check_fits(mine)
        for name, vector in mine.items():
            if name in snapshot.tensors:
                vector.copy_(snapshot.tensors[name])
            else:  # such as the best weights, which the job that wrote the snapshot did not keep
                vector.zero_()
        self.moved_to(snapshot.position)

    def as_evaluated(self) -> AbstractContextManager[None]:
        """Give the model, for the block, the weights to evaluate and export: the average if the job asks for it."""
        if self.average is None:
            return nullcontext()
        return self.average.in_place()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state dict, by `exported`, of the weights to evaluate."""
        with self.as_evaluated():
            return exported(self.modules)


def _keep_in_vector(module: nn.Module) -> None:
    """Let recurrent layers leave their weights where they are: on a GPU, `to` and many a `forward` would move them into
    memory of cuDNN's, and the optimizer would no longer reach them.
    """
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = _flatten_nothing  # type: ignore[method-assign]


def _flatten_nothing() -> None:
    """Stand for `RNNBase.flatten_parameters`; cuDNN copies weights that are not flat in each call."""


@contextmanager
def resting(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let batch norms use their running statistics for inputs of one value per channel, which have no variance.

    A shard of one example gives them such inputs, unless the example has several values per channel, as an image has
    pixels.
    """
    at_rest: list[nn.Module] = []

    def rest(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0]
        if norm.training and values.ndim > 1 and values.numel() == values.shape[1]:
            at_rest.append(norm)
            norm.training = False

    def wake(norm: nn.Module, *_: object) -> None:
        if norm in at_rest:
            at_rest.remove(norm)
            norm.training = True

    hooks = []
    for norm in norms:
        if norm.training:
            hooks.append(norm.register_forward_pre_hook(rest))
            hooks.append(norm.register_forward_hook(wake, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_users(optimizer: AnyOptimizer) -> bool:
    """Return whether the optimizer's step runs code of the user's, or of a package that is neither ours nor torch."""
    if isinstance(optimizer, TorchOptimizer):
        return optimizer.is_users
    return type(optimizer).__module__.partition(".")[0] != __name__.partition(".")[0]


def norms_of(gradient: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the Euclidean norms of adjacent parameters' gradients, of these lengths, shape (number of parameters,).

    It computes each norm separately, so that members that divide the parameters among them get the same bits.
    """
    return torch.stack(torch._foreach_norm(gradient.split_with_sizes(list(lengths))))


def clip(gradient: Tensor, norm: float, clipping: Clipping) -> None:
    """Bound the gradient, shape (length,), in place, as torch.nn.utils does; `norm` is its Euclidean norm.

    Pascanu et al., 2013.
    """
    if clipping.value is not None:
        gradient.clamp_(-float(clipping.value), float(clipping.value))
    if clipping.norm is not None and norm > float(clipping.norm):
        gradient.mul_(float(clipping.norm) / (norm + _EPSILON))


@contextmanager
def undone_by_errors(replica: Replica, unless: type[BaseException] | tuple[()] = ()) -> Iterator[None]:
    """If the block raises an error, other than one of `unless`, put the state back as it was before the block."""
    start = {name: vector.clone() for name, vector in replica.tensors().items()}
    position = replica.position
    try:
        yield
    except unless:
        raise
    except BaseException:
        replica.is_whole = False  # until all of it is back
        for name, vector in replica.tensors().items():
            vector.copy_(start[name])
        replica.moved_to(position)
        raise

"""Bounds on a gradient, as in torch.nn.utils: Pascanu et al., 2013."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from functools import partial

import torch
from batchgrowth.choices.exchanges import DelayedBlock
from batchgrowth.measuring import Timing
from batchgrowth.position import Position
from batchgrowth.schedule.stages import Plan, Step
from batchgrowth.shards import subtrees, tree_sum
from batchgrowth.spec import Clipping, JobSpec
from torch import Tensor

from batchgrowth_trainer.blame import reported_as_workload_error
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.snapshot import Snapshot, from_replica_tensors
from batchgrowth_trainer.replica.data import Ahead, Requests, Runs, none_known, seed_generators, shard_seed
from batchgrowth_trainer.replica.devices import to_device
from batchgrowth_trainer.replica.flat import FlatBuffers, FlatParameters, Start
from batchgrowth_trainer.replica.growth import Growth
from batchgrowth_trainer.replica.judgement import Judgement
from batchgrowth_trainer.replica.loaders import Loaders
from batchgrowth_trainer.replica.loss import Loss
from batchgrowth_trainer.replica.optimizers import AnyOptimizer, average_of, optimizer_of, outer_of, spared
from batchgrowth_trainer.replica.rows import (
    LOSS,
    SHARD_SQUARES,
    Committed,
    Partial,
    Rows,
    Sums,
    Tail,
    check_finite,
    coding_of,
    largest_shard,
)
from batchgrowth_trainer.replica.streaming import Give, Shard, Watched, stream_of, unwatched
from batchgrowth_trainer.workload import Workload

# --- Bounds on a gradient, as in torch.nn.utils: Pascanu et al., 2013 ---

_EPSILON = 1e-6  # torch's own


def clip(gradient: Tensor, norm: float, clipping: Clipping | None) -> None:
    """Bound the gradient, shape (length,), in place; `norm` is its Euclidean norm."""
    if clipping is None:
        return
    if clipping.value is not None:
        gradient.clamp_(-float(clipping.value), float(clipping.value))
    if clipping.norm is not None and norm > float(clipping.norm):
        gradient.mul_(float(clipping.norm) / (norm + _EPSILON))


# --- The norm of a gradient, by parameters: members that have some of them each find the same bits together ---

SURELY_FINITE = 1e38
"""Below this square of a gradient, all norms are finite: in float32, the largest square is 3.4e38."""


def norms_of(gradient: Tensor, lengths: Sequence[int]) -> Tensor:
    """The Euclidean norms of adjacent parameters' gradients, of these lengths, shape (number of parameters,)."""
    return torch.stack(torch._foreach_norm(gradient.split_with_sizes(list(lengths))))


def norm_of_all(norms: Tensor) -> Tensor:
    """The norm of all of them together, a float64 scalar."""
    norm: Tensor = torch.linalg.vector_norm(norms, dtype=torch.float64)
    return norm


# --- Totals of gradients that wait for their update ---

_PENDING_PREFIX = "pending."


class Pending:
    """A queue of at most `most` rows, each of shape (length,)."""

    def __init__(self, most: int, length: int, device: torch.device) -> None:
        self.most = most
        self._rows = torch.zeros(most, length, device=device)
        self._count = torch.zeros(1, dtype=torch.float64)

    def __len__(self) -> int:
        return int(self._count.item())

    def put(self, row: Tensor) -> None:
        """Add a row behind the others."""
        self._rows[len(self)] = row
        self._count += 1

    def take(self) -> Tensor:
        """Remove the first row, and return a copy."""
        first = self._rows[0].clone()
        self._rows[:-1] = self._rows[1:].clone()
        self._count -= 1
        return first

    def tensors(self) -> dict[str, Tensor]:
        """The live vectors, by name, each flat."""
        return {f"{_PENDING_PREFIX}rows": self._rows.view(-1), f"{_PENDING_PREFIX}count": self._count}


def pending_of(spec: JobSpec, length: int, device: torch.device) -> Pending | None:
    """The queue of a job whose exchange delays gradients."""
    settings = spec.exchange.settings
    if isinstance(settings, DelayedBlock) and settings.updates:
        return Pending(settings.updates, length, device)
    return None


# The states of logical replicas that stay apart: every process has all of them, and trains some with its one model.

_COPIES_PREFIX, _WEIGHTS = "replicas.", "parameters"


class Copies:
    """R states, each made of the vectors `live` of the one model, and the number of exchanges so far.

    With `residuals`, the weights are not among them, since all replicas have the same: what each has not sent yet is,
    in a vector of their shape. `stacked` has shape (R, length) for each vector, as all replicas were at the last point
    that all processes share.
    """

    def __init__(self, replicas: int, live: Mapping[str, Tensor], *, residuals: bool = False) -> None:
        self.replicas = replicas
        self._live = {name: vector for name, vector in live.items() if not residuals or name != _WEIGHTS}
        kept = self._live | ({"residual": torch.zeros_like(live[_WEIGHTS])} if residuals else {})
        self.stacked = {name: vector.unsqueeze(0).repeat(replicas, 1) for name, vector in kept.items()}
        self._turn = torch.zeros(1, dtype=torch.float64)

    @property
    def turn(self) -> int:
        """Exchanges so far."""
        return int(self._turn.item())

    def tensors(self) -> dict[str, Tensor]:
        """All vectors, by name, each flat."""
        return {f"{_COPIES_PREFIX}{name}": of_all.view(-1) for name, of_all in self.stacked.items()} | {
            f"{_COPIES_PREFIX}turn": self._turn
        }

    def of(self, number: int) -> dict[str, Tensor]:
        """A copy of the state of one replica."""
        return {name: of_all[number].clone() for name, of_all in self.stacked.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Write that state into the model."""
        for name, vector in self._live.items():
            vector.copy_(state[name])

    def store(self, state: Mapping[str, Tensor]) -> None:
        """Read that state back from the model."""
        for name, vector in self._live.items():
            state[name].copy_(vector)

    def distance(self) -> float | None:
        """The root mean square distance of the replicas' weights from their mean; None if all have the same."""
        if _WEIGHTS not in self._live:
            return None
        weights = self.stacked[_WEIGHTS].double()
        return float((weights - weights.mean(dim=0)).square().sum(dim=1).mean().sqrt())

    def settle(self, turn: int) -> None:
        """Put the mean of all states into the model, after `turn` exchanges; what is not a weight becomes 0.

        So the model depends on the states alone, wherever they were trained.
        """
        self._turn.fill_(turn)
        for name, vector in self._live.items():
            if name.startswith("optimizer."):
                vector.zero_()
            else:
                vector.copy_(_mean(self.stacked[name]))


def _mean(of_all: Tensor) -> Tensor:
    """The mean over the replicas, added in order, shape (length,); rounded for whole numbers."""
    total = torch.zeros_like(of_all[0], dtype=torch.float64)
    for one in of_all:
        total += one
    mean = total / len(of_all)
    return (mean if of_all.is_floating_point() else mean.round()).to(of_all.dtype)


def copies_of(spec: JobSpec, live: Mapping[str, Tensor]) -> Copies | None:
    """The states of a job's logical replicas, if its exchange keeps them apart."""
    kept = spec.exchange.entry.keeps
    return None if kept == "Nothing" else Copies(spec.exchange.replicas, live, residuals=kept == "Residual")


# --- One copy of the model ---
# One copy of the model: it computes shard gradients, adds them along the fixed tree, and takes the optimizer step.
# Every worker holds a replica, as does a run in one process; an exchange only assigns shards to workers and combines
# their partial sums.  Legend: L = length of a row, N = examples of a shard, S = shards of an update.


class Replica:
    """Parameters, buffers, optimizer state and data of one process.

    `position` is that of the next update; everything else follows from (spec, position). `arithmetic` is that of the
    job's first shard, once it is computed. `is_whole` is false from the moment at which a step begins to move the state
    until the position follows: if that fails, the state is of no update, and only other states may be gone on from.
    """

    def __init__(self, spec: JobSpec, workload: Workload, device: torch.device) -> None:
        self.spec, self.workload, self.device = spec, workload, device
        self.growth = Growth(spec, device)
        self.model = workload.model.to(device)
        self.parameters = FlatParameters(self.model, device, spared(spec, self.model))
        self.buffers = FlatBuffers(self.model, device)
        self.optimizer = optimizer_of(spec, self.parameters)
        self.average = average_of(spec, self.parameters.vector.data)
        self.outer = outer_of(spec, self.parameters.vector.data)
        self.coding = coding_of(spec)
        self.copies = copies_of(spec, self.of_one())
        self.judgement = Judgement(spec, self.model_tensors(), device)
        self.position, self.is_whole = Position(), True
        course = self.growth.course
        self._tail = Tail((SHARD_SQUARES, LOSS) if course.needs_noise else (LOSS,), clock=course.looks_at_clock)
        self.length = self.parameters.length + self.buffers.length + self._tail.length
        self.pending = pending_of(spec, self.length, device)
        self.on_shard: Callable[[], None] = lambda: None
        """Called after each shard, or chunk of the test set, by the thread that computes it."""
        self._loss = Loss(spec, workload, self.model, device)
        self.rows = Rows(self.length, self.parameters, self._tail, self.coding)
        self.loaders = Loaders(workload, spec.workers.loaders, spec.workers.loaded_ahead)
        self.requests = Requests(spec.seed, draws=self.loaders.draws)
        self.arithmetic = Arithmetic()
        self.stream = stream_of(spec, self.parameters, needs_rows=course.needs_noise)
        self._needs_norm = course.measures or spec.optimizer.clipping is not None

    @property
    def plan(self) -> Plan:
        """The plan as decided so far."""
        return self.judgement.shortened(self.growth.course.plan)

    def twin(self, *, own_weights: bool = False) -> "Replica":
        """A replica for gradients, with a model and buffers of its own; it shares the weights, unless `own_weights`."""
        twin = copy(self)
        twin.model = deepcopy(self.model)
        twin.parameters = self.parameters.of_copy(twin.model, shared=not own_weights)
        twin.buffers = FlatBuffers(twin.model, self.device)
        twin._loss = Loss(self.spec, self.workload, twin.model, self.device)
        twin.rows = Rows(self.length, twin.parameters, self._tail, self.coding)
        return twin

    # --- one update -------------------------------------------------------------------------------------------

    def partials(
        self, step: Step, run: tuple[int, int], *, stop: bool = False, runs: Runs = none_known, give: Give | None = None
    ) -> list[Partial]:
        """The sums of the largest subtrees that together cover the shards [run[0], run[1]), in order.

        `runs` are those of the updates after this one; their examples are read ahead. `give` gets the buckets of
        `stream`; the gradients in the result are then not to be used.
        """
        ahead: Ahead = lambda shard: self.requests.coming(self.plan, step, range(shard, run[1]), runs)  # noqa: E731
        trees = subtrees(run[0], run[1], step.shards)
        self._loss.begin()
        with self.buffers.kept() as start:
            shard: Shard = partial(self._shard, step, start, ahead)
            sums = self.rows.sums if give is None or self.stream is None else partial(self.stream.sums, self.rows, give)
            nodes = sums(trees, shard)
        if stop and nodes:
            self._tail.request_stop(nodes[0].row)
        return nodes

    def sum_of(self, step: Step, run: tuple[int, int], ahead: Ahead) -> Partial:
        """The sum over the shards [run[0], run[1]) along a tree of their own, for an update that others do not see."""
        self._loss.begin()
        with self.buffers.kept() as start:
            return tree_sum(*run, partial(self._shard, step, start, ahead), self.rows.add)

    def commit(self, step: Step, total: Tensor) -> Committed:
        """Take the optimizer step with `total`, the sum over all shards, and advance the position; see `step`."""
        return self.advanced(step, *self.step(step, total, step.examples))

    def step(self, step: Step, total: Tensor, examples: int) -> tuple[Sums, float, float]:
        """Take the optimizer step with `total`, the sum over `examples` of the update's examples, shape (L,).

        The numbers that were added, the norm of the mean gradient and the learning rate. Leaves the position as it is.
        Raises WorkloadError if the loss or the gradient is not finite; the state is then unchanged.
        """
        weights = self.parameters.length
        gradient, rest = total.split_with_sizes([weights, self.length - weights])
        gradient.div_(examples)
        square = None if self._needs_norm else self._tail.read(rest, torch.dot(gradient, gradient))
        if square is not None and square.more[0] < SURELY_FINITE:  # takes less time, and no bits depend on the norm
            sums, size, learning_rate = self._checked(step, square, square.more[0] ** 0.5)
        else:
            sums, size, learning_rate = self.read(step, rest, norms_of(gradient, self.parameters.lengths))
        self.is_whole = False
        self.buffers.follow(rest, examples)
        self.move(step, gradient, size, learning_rate, self.optimizer, slice(0, weights))
        return sums, size, learning_rate

    def read(self, step: Step, rest: Tensor, norms: Tensor) -> tuple[Sums, float, float]:
        """What `step` returns and raises, of a total without the gradient and the norms of the mean gradients."""
        sums = self._tail.read(rest, norm_of_all(norms))
        return self._checked(step, sums, sums.more[0])

    def _checked(self, step: Step, sums: Sums, size: float) -> tuple[Sums, float, float]:
        learning_rate = self.growth.learning_rate(step)
        check_finite(step, learning_rate, sums.by_name[LOSS.name], size)
        return sums, size, learning_rate

    def move(
        self, step: Step, gradient: Tensor, size: float, learning_rate: float, optimizer: AnyOptimizer, place: slice
    ) -> None:
        """Move the parameters at `place`, those of `optimizer`, by their mean gradient; `size` is the norm of all."""
        clip(gradient, size, self.spec.optimizer.clipping)
        optimizer.step(gradient, learning_rate, step.position.update)
        if self.average is not None:
            self.average.follow(step.position.update, place)

    def advanced(self, step: Step, sums: Sums, size: float, learning_rate: float) -> Committed:
        """Advance the position past an update whose step was taken."""
        decision = self.growth.after(step, sums, size, largest_shard(step))
        self.position, self.is_whole = step.after, True
        return Committed(sums.by_name[LOSS.name] / step.examples, learning_rate, sums.stop, decision)

    def write_timing(self, row: Tensor, timing: Timing) -> None:
        """Write the timing of an earlier update into the row with shard 0, so that all members decide by one clock."""
        self._tail.write_timing(row, timing)

    def _shard(self, step: Step, start: Start, ahead: Ahead, shard: int, watched: Watched = unwatched) -> Partial:
        done = self.rows.blank(shard)
        request = self.requests.of(self.plan, step, shard)
        count = len(request.indices)
        if not count:
            return done
        self.parameters.collect_into(done.views)
        self.buffers.restore(start)
        with reported_as_workload_error(f"update {step.position.update + 1}, shard {shard}"):
            inputs, target = to_device(self.loaders.read(request, partial(ahead, shard)), self.device)
            seed_generators(shard_seed(self.spec.seed, step.position.update, shard))
            losses = self._loss(inputs, target, count)
            with watched(done):
                loss = self._loss.differentiate(losses)
        self._tail.write(done.places, loss, done.gradient, largest_shard(step) / count)
        if self.buffers.length:
            self.buffers.change_since(start, count, done.row[self.parameters.length : -self._tail.length])
        self.rows.round(done)
        self.on_shard()
        return done

    # --- the whole state --------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The state's live vectors, by name; `moved_to` follows a write into them."""
        outer = {} if self.outer is None else {"outer.momentum": self.outer.momentum}
        copies = {} if self.copies is None else self.copies.tensors()
        pending = {} if self.pending is None else self.pending.tensors()
        return self.of_one() | outer | copies | pending | self.growth.tensors() | self.judgement.tensors()

    def of_one(self) -> dict[str, Tensor]:
        """The vectors that a logical replica has for itself."""
        optimizer = {f"optimizer.{name}": v for name, v in self.optimizer.state.items()}
        average = {} if self.average is None else {"average": self.average.vector}
        return self.model_tensors() | optimizer | average

    def moved_to(self, position: Position) -> None:
        """Take on what was written into `tensors()`: the state at this position."""
        self.growth.synchronize()
        self.judgement.synchronize()
        self.position, self.is_whole = position, True

    def model_tensors(self) -> dict[str, Tensor]:
        """The vectors that the gradient depends on: `tensors()` without what is not the model's own."""
        buffers = {f"buffers.{str(dtype).removeprefix('torch.')}": v for dtype, v in self.buffers.vectors.items()}
        return {"parameters": self.parameters.vector.data, **buffers}

    def snapshot(self) -> Snapshot:
        """A copy of the state on the CPU. Raises RuntimeError if it is not whole."""
        if not self.is_whole:
            raise RuntimeError("a step of the optimizer failed, so the state is not whole")
        return from_replica_tensors(self.position, self.tensors())

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state. Raises CheckpointError if the snapshot comes from another model or optimizer."""
        mine = self.tensors()
        snapshot.check_fits(mine)
        for name, vector in mine.items():
            vector.copy_(snapshot.tensors[name]) if name in snapshot.tensors else vector.zero_()
        self.moved_to(snapshot.position)

    def as_evaluated(self) -> AbstractContextManager[None]:
        """The weights that are evaluated and exported in the model, for the block: their average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's own state dict on the CPU, for export; no two tensors share memory."""
        with self.as_evaluated():
            return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}


# --- A replica that goes back to where it was if what moves it fails ---


@contextmanager
def undone_by_errors(replica: Replica) -> Iterator[None]:
    """Go back to the state before the block if it raises."""
    start, position = {name: vector.clone() for name, vector in replica.tensors().items()}, replica.position
    try:
        yield
    except BaseException:
        replica.is_whole = False  # until all of it is back
        for name, vector in replica.tensors().items():
            vector.copy_(start[name])
        replica.moved_to(position)
        raise

"""One copy of the model: it computes shard gradients, adds them along the fixed tree, and takes the optimizer step.

Every worker holds a replica, as does a run in one process; an exchange only assigns shards to workers and combines
their partial sums.  Legend: L = length of a row, N = examples of a shard, S = shards of an update.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from functools import partial

import torch
from batchgrowth.plan import Plan, Position, Step
from batchgrowth.shards import subtrees, tree_sum
from batchgrowth.spec import JobSpec
from batchgrowth.timing import Timing
from torch import Tensor

from batchgrowth_trainer.blame import reported_as_workload_error
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.snapshot import Snapshot, from_replica_tensors
from batchgrowth_trainer.replica.averaging import average_of
from batchgrowth_trainer.replica.clipping import clip
from batchgrowth_trainer.replica.coding import coding_of
from batchgrowth_trainer.replica.copies import copies_of
from batchgrowth_trainer.replica.decay import spared
from batchgrowth_trainer.replica.devices import to_device
from batchgrowth_trainer.replica.draws import seed_generators, shard_seed
from batchgrowth_trainer.replica.flat import FlatBuffers, FlatParameters, Start
from batchgrowth_trainer.replica.growth import Growth
from batchgrowth_trainer.replica.judgement import Judgement
from batchgrowth_trainer.replica.loaders import Loaders
from batchgrowth_trainer.replica.loss import Loss
from batchgrowth_trainer.replica.norms import SURELY_FINITE, norm_of_all, norms_of
from batchgrowth_trainer.replica.optimizer import AnyOptimizer, optimizer_of
from batchgrowth_trainer.replica.outer import outer_of
from batchgrowth_trainer.replica.pending import pending_of
from batchgrowth_trainer.replica.quantities import LOSS, SHARD_SQUARES, Sums, Tail, check_finite
from batchgrowth_trainer.replica.requests import Ahead, Requests, Runs, none_known
from batchgrowth_trainer.replica.rows import Rows
from batchgrowth_trainer.replica.streaming import Give, Shard, Watched, stream_of, unwatched
from batchgrowth_trainer.replica.updates import Committed, Partial, largest_shard
from batchgrowth_trainer.workload import Workload


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

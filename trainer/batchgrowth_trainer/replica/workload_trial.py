"""Tries a workload before its first update: two shards in both orders, its reading, its loaders, its growth rule.

The other order stands for another division among workers: a shard that one worker computes after another shard, two
workers compute apart. (An exchange of another distribution has a trial of its own: exchange/strategy.py.)

An update may depend only on the weights, the buffers, the data and (seed, update, shard). So the first shard and the
smallest one are computed from one state in both orders, and compared bit for bit; the state that users' code has
changed meanwhile names the cause of a difference: see `python_state`.
"""

import hashlib
import logging
import platform
import sys
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from batchgrowth.choices.growth_measured import CustomRule
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth.looks import Look, Signals, Timings
from batchgrowth.plan import Plan, Step
from batchgrowth.position import Position
from batchgrowth.shards import shard_bounds
from torch import Tensor

from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.record.snapshot import pack
from batchgrowth_trainer.replica.beginning import differences, settings
from batchgrowth_trainer.replica.data import Request, Requests, is_indexed, read, to_device
from batchgrowth_trainer.replica.flat import named_parameters
from batchgrowth_trainer.replica.loaders import Loaders
from batchgrowth_trainer.replica.python_state import MISSING, Change, PythonState, is_alike
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed, seed_generators, untouched_randomness
from batchgrowth_trainer.replica.strays import Leaves, Parameters, check_hooks, check_leaves
from batchgrowth_trainer.user_errors import (
    FAULTS,
    DeviceFault,
    ReadFault,
    reported_as_device_fault,
    reported_as_workload_error,
    seen_at,
)
from batchgrowth_trainer.workload import predict

_LOG = logging.getLogger(__name__)


def try_out(replica: Replica) -> None:
    """Compute two shards twice and keep the first one's digest; the replica stays as it was.

    This loads kernels, and finds what would fail in an update or would silently give workers different weights: a model
    that changes its own parameters or makes itself a buffer, a result that depends on what was computed before or on a
    generator of the user's own, and examples that no seed repeats. Raises WorkloadError or DataError.
    `later.look_back` looks while training for faults that begin only after more calls.
    """
    with _process_unchanged():
        reading = _check_reading(replica)
        check_hooks(replica)
        leaves = Leaves(replica)
        with replica.watched_losses(leaves):
            computing = _check_shards(replica)
        check_leaves(replica, leaves)
        _check_rule(replica)
    states = [(computing, _is_new_variable)]
    if reading is not None and not replica.reader.processes:
        states.append((reading, _is_built))
    replica.beginning.remember(states, Parameters(replica))


def first_shard(replica: Replica) -> Arithmetic:
    """Compute the first shard with the replica's current weights; the replica stays unchanged.

    A replica that was just built has the first weights of its job, the same in every process. The digest is empty if
    the kernels need not be deterministic: it would differ from process to process.
    Raises what computing a shard raises.
    """
    return _arithmetic(replica, _row_of(replica, _Shard(replica.plan.step_at(Position()), 0)))


def _arithmetic(replica: Replica, row: Tensor) -> Arithmetic:
    digest = hashlib.sha256(pack(row).data.tobytes()).hexdigest()
    return Arithmetic(
        digest="" if replica.spec.deterministic is False else digest,
        device=_device(replica.device),
        processor=processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        torch=f"torch {torch.__version__}",
        threads=f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}",
    )


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


@cache
def processor() -> str:
    """Return the processor's model, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


# Two shards, in both orders.


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard of an update."""

    step: Step
    number: int
    most: int = sys.maxsize

    @property
    def examples(self) -> int:
        """Return the number of its examples, of which `most` are computed."""
        bounds = shard_bounds(self.step.examples, self.step.shards)
        return min(self.most, bounds[self.number + 1] - bounds[self.number])

    def place(self) -> tuple[int, int, int]:
        """Return the key by which shards are sorted: the smallest comes first, then the earliest."""
        return self.examples, self.step.position.update, self.number

    def __str__(self) -> str:
        """Return the shard as errors name it."""
        return f"update {self.step.position.update + 1}, shard {self.number}"


def _smallest(plan: Plan) -> _Shard:
    """Return the smallest shard of the plan that has an example, other than the first shard if there is another."""
    first = plan.step_at(Position())
    found = [_Shard(first, number) for number in range(first.shards)][1:]
    for stage in plan.stages:
        begin = stage.first_update
        end = begin + stage.updates - 1
        # Short batches are the last of their epoch: of the stage's first epoch, of a whole one, and of its last one.
        whole = -(-plan.examples_per_epoch // stage.batch_size)
        short = begin - 1 - (plan.position_at(begin).offset - plan.examples_per_epoch) // stage.batch_size
        for update in {begin, min(short, end), min(short + whole, end), end}:
            step = plan.step_at(plan.position_at(update))
            found += [_Shard(step, number) for number in range(step.shards) if update]
    return min((one for one in found if one.examples), key=_Shard.place, default=_Shard(first, 0))


def _check_shards(replica: Replica) -> PythonState:
    """Compute the first and the smallest shard, then both in the other order from the same state, and compare them.

    Return the Python state of the code that computes, put back as it was before.
    """
    workload = replica.workload
    # The code that runs for a shard once its examples are read, without the tensors that move or never change.
    places = {"model": replica.model, "loss": workload.loss, "step": workload.step, "augment": workload.augment}
    parameters = named_parameters(replica.modules).values()
    registered = [replica.parameters.vector, *replica.buffers.vectors.values(), *parameters]
    state = PythonState(places, registered, environment=True)
    first = _Shard(replica.plan.step_at(Position()), 0)
    smallest = _smallest(replica.plan)
    began = time.perf_counter()
    with _checked_tensors(replica):
        row = _row_of(replica, first)
    _check_whole_numbers(replica, row, first.examples)
    seconds = time.perf_counter() - began
    few = first.examples
    # On a GPU, or if the workload is compiled, most of that time does not depend on the number of examples.
    if not replica.spec.compile and replica.device.type == "cpu":
        few = max(_FEWEST, min(few, int(few * _MOST_SECONDS / (3 * seconds))))
    replica.arithmetic = _arithmetic(replica, row)
    is_slow = few < first.examples
    after_first = _values_of(state)
    tried = [(first, row)]
    if not is_slow or smallest.examples < first.examples:
        with _of_fewer_examples(smallest, first):
            tried.append(_shortened(replica, smallest, few))
    if is_slow:  # compare only a few of its examples, after what was computed so far and by themselves
        tried = [_shortened(replica, first, few)]
        after_first = _values_of(state)
    if replica.spec.deterministic is not False:
        changes = state.changes()
        # The other way round, so that neither can depend on the other one having been computed before.
        state.restore(_is_new_variable)
        again = [(shard, one, _row_of(replica, shard)) for shard, one in reversed(tried)]
        for shard, one, other in again:
            if not same_bits(one, other):
                raise WorkloadError(_Search(replica, state).sentence(shard, changes))
        _check_drawn(state, after_first)
    state.restore(_is_new_variable)
    return state


def _is_new_variable(change: Change) -> bool:
    """Return whether a variable of the environment is new: a library that was imported late may have set it."""
    return change.before is MISSING and change.path.startswith("os.environ[")


def _is_built(change: Change) -> bool:
    return change.is_built


_MOST_SECONDS = 0.2
"""Seconds that the compared shards should take together."""
_FEWEST = 2  # examples, so that batch norm has a variance


def _shortened(replica: Replica, shard: _Shard, few: int) -> tuple[_Shard, Tensor]:
    """Compute the first `few` examples of a shard, or all of them if the code cannot compute so few.

    Return what was computed, and its row. Raises what computing a shard raises.
    """
    if few < shard.examples:
        short = replace(shard, most=few)
        with suppress(WorkloadError):
            return short, _row_of(replica, short)
    return shard, _row_of(replica, shard)


class _FewRequests(Requests):
    """Requests for the first `most` examples of each shard."""

    def __init__(self, whole: Requests, most: int) -> None:
        self._whole = whole
        self._most = most

    def of(self, plan: Plan, step: Step, shard: int) -> Request:
        """Return the request for one shard of an update."""
        request = self._whole.of(plan, step, shard)
        return replace(request, indices=request.indices[: self._most])


@contextmanager
def _of_fewer_examples(shard: _Shard, first: _Shard) -> Iterator[None]:
    """Let an error in the block say that a larger shard was fine."""
    try:
        yield
    except WorkloadError as error:
        if type(error) is not WorkloadError or shard.examples >= first.examples:
            raise
        few = f"{shard.examples} example{'s' if shard.examples > 1 else ''}"
        raise WorkloadError(
            f"{error}. A shard of {first.examples} examples was fine, and this one has {few}, as the last of an epoch "
            "may: keep the axis of the examples, for instance by squeeze(1) in the place of squeeze()"
        ) from error


def _check_drawn(state: PythonState, after_first: dict[str, Any]) -> None:
    """Refuse a generator that goes on with each shard, though its numbers had no effect yet."""
    for change in state.changes():
        if not _goes_on(change, after_first):
            continue
        if change.is_generator:
            raise WorkloadError(generator_sentence(change))
        # No other state is tried with other values: code that counts may write a file, or end, at some count.
        _LOG.debug("%s changes when a shard is computed, without an effect on its bits", change.path)


def _values_of(state: PythonState) -> dict[str, Any]:
    """Return the present values of what has changed, by path; tensors and lists are copies."""
    values = {}
    for change in state.changes():
        value = change.now
        if isinstance(value, Tensor):
            value = value.detach().clone()
        elif isinstance(value, list):
            value = list(value)
        values[change.path] = value
    return values


def _goes_on(change: Change, after_first: dict[str, Any]) -> bool:
    """Return whether a value changed with the first shard, and again with the second one."""
    return change.path in after_first and not is_alike(after_first[change.path], change.now)


def _row_of(replica: Replica, shard: _Shard) -> Tensor:
    """Compute a shard, and return a copy of its row. Raises what computing a shard raises."""
    whole = replica.requests
    replica.requests = _FewRequests(whole, shard.most)
    try:
        with reported_as_device_fault(str(shard)):  # a GPU reports an error when results are copied
            partials = replica.partials(shard.step, (shard.number, shard.number + 1))
            row = partials[0].row.detach().clone()
    finally:
        replica.requests = whole
    replica.rows.release(partials)
    return row


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two float32 vectors have the same bits."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


# What is found, in a sentence.


def generator_sentence(change: Change) -> str:
    """Return the text of the error for a generator of the user's own from which a shard has drawn."""
    return (
        f"{change.path} is a generator of your own, and computing a shard draws from it, so the weights would depend "
        "on which worker computes what; draw from torch, numpy.random or random, which the trainer seeds for each "
        f"shard, or seed your generator from them in each call{change.seen_at()}"
    )


def shown(value: Any) -> str:
    """Return a value as errors show it."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


class _Search:
    """Finds out why a shard has other bits the second time."""

    def __init__(self, replica: Replica, state: PythonState) -> None:
        self._replica = replica
        self._state = state

    def sentence(self, shard: _Shard, changes: list[Change]) -> str:
        """Return a sentence that names the state on which the shard depends, or else where its bits first differ."""
        for change in changes:
            if change.is_generator:
                return generator_sentence(change)
        # If it differs from the same state too, no change of the state explains that.
        guilty = None
        if self._repeats(shard):
            guilty = next((one for one in changes if self._depends_on(shard, one)), None)
        if guilty is not None:
            return (
                f"{guilty.path} changes when a shard is computed, and {shard} comes out otherwise with {guilty.path} = "
                f"{shown(guilty.now)} than with {shown(guilty.before)}, so the weights would depend on which worker "
                "computes what; keep what changes in a buffer (register_buffer), which every worker gets, or compute "
                f"it from the inputs{guilty.seen_at()}"
            )
        where, function = self._first_difference(shard)
        return (
            f"{where}: {shard} comes out otherwise the second time, from the same weights, examples and seeds, so the "
            "weights would depend on which worker computes what; draw from torch, numpy.random or random, which the "
            "trainer seeds, and not from a generator of your own, the system or the clock, and keep what changes in a "
            f"buffer{seen_at(function)}"
        )

    def _repeats(self, shard: _Shard) -> bool:
        """Return whether the shard has the same bits from the same Python state."""
        self._state.restore()
        row = _row_of(self._replica, shard)
        self._state.restore()
        return same_bits(row, _row_of(self._replica, shard))

    def _depends_on(self, shard: _Shard, change: Change) -> bool:
        """Return whether the shard has other bits with this one change than without."""
        self._state.restore()
        row = _row_of(self._replica, shard)
        self._state.restore()
        change.write(change.now)
        changed = _row_of(self._replica, shard)
        self._state.restore()
        return not same_bits(row, changed)

    def _first_difference(self, shard: _Shard) -> tuple[str, Any]:
        """Return the place at which the results begin to differ, and its function."""
        both = []
        for _ in range(2):
            self._state.restore()
            with self._replica.buffers.kept():
                both.append(list(self._results(shard)))
        for (name, function, one), (_, _, other) in zip(*both, strict=True):
            if not is_alike(one, other, unknown=True):
                return name, function
        return "the backward pass", self._replica.model

    def _results(self, shard: _Shard) -> Iterator[tuple[str, Any, Any]]:
        """Yield what each place returns: its name, its function and the result."""
        replica = self._replica
        workload = replica.workload
        request = _FewRequests(replica.requests, shard.most).of(replica.plan, shard.step, shard.number)
        inputs, target = to_device(read(workload, request), replica.device)
        yield "workload.train", getattr(workload.train, "__getitem__", None), deepcopy((inputs, target))
        seed_generators(draw_seed(replica.spec.seed, "shard", shard.step.position.update, shard.number))
        inputs = workload.augmented(inputs)
        yield "augment", workload.augment, deepcopy(inputs)
        if workload.step is not None:
            yield "step", workload.step, workload.step(replica.model, inputs, target)
            return
        output = predict(replica.model, inputs)
        yield "model", replica.model, output
        yield "loss", workload.loss, workload.loss(output, target)


# The tensors that torch knows.


@contextmanager
def _checked_tensors(replica: Replica) -> Iterator[None]:
    """Refuse code in the block that changes, replaces, creates or unfreezes parameters, creates buffers, or changes
    extra state.
    """
    parameters = dict(replica.model.named_parameters())
    versions = {name: parameter._version for name, parameter in parameters.items() if not parameter.is_inference()}
    buffers = _buffers(replica)
    before = replica.parameters.vector.detach().clone()
    kept = Parameters(replica)
    others = _unregistered(replica)
    yield
    forward = seen_at(replica.model)
    for name, parameter in replica.model.named_parameters():
        if name not in parameters or parameter is not parameters[name]:
            how = "replaced" if name in parameters else "created"
            raise WorkloadError(
                f"the parameter model.{name} is {how} when the model is called, so it would not be trained; create it "
                f"in __init__{forward}"
            )
    # A version tells of a change in place, even by the same values; comparing finds a change by way of `.data`.
    changed = [f"model.{name}" for name, version in versions.items() if parameters[name]._version != version]
    for _, span in replica.parameters.members:
        if not torch.equal(span.of(before), span.of(replica.parameters.vector.data)):
            changed.append(f"model.{span.name}")
    changed.extend(kept.changed())
    if changed:
        raise WorkloadError(
            f"the parameter {changed[0]} is changed when the model is called, which only the optimizer may do; "
            f"{REMEDY_FOR_CHANGED}{forward}"
        )
    for name in kept.unfrozen():
        raise WorkloadError(f"{unfrozen_sentence(name)}{forward}")
    _check_buffers(replica, buffers.keys())
    for name, value in _unregistered(replica).items():
        if not is_alike(others.get(name), value):
            raise WorkloadError(
                f"model.state_dict() has {name}, which changes when the model is called and is in no buffer, so that "
                "checkpoints would lose it, and each worker would export another one; keep it in a buffer, by "
                f"register_buffer{forward}"
            )


def _unregistered(replica: Replica) -> dict[str, Tensor]:
    """Return copies of what the model's state dict has besides parameters and buffers, such as extra state."""
    registered = dict(replica.model.named_parameters(remove_duplicate=False)).keys() | _buffers(replica).keys()
    state = replica.model.state_dict()
    return {name: value.detach().clone() for name, value in state.items() if name not in registered}


REMEDY_FOR_CHANGED = (
    "give what the model changes itself a buffer, by register_buffer, and compute what is normalized or clamped from "
    "the parameter, in forward"
)


def unfrozen_sentence(name: str) -> str:
    """Return the text of the error for a parameter that was frozen when the workload was made, and is no longer."""
    return (
        f"the parameter {name} was frozen when the workload was made, and needs a gradient since a call of the model, "
        "so nothing would train it; let it need one from the start, and until it is to be trained use it under "
        "torch.no_grad(): the optimizer leaves a parameter alone that gets no gradient"
    )


def _buffers(replica: Replica) -> dict[str, Tensor]:
    """Return the buffers that are not None, by name; a shared buffer has several names."""
    return dict(replica.model.named_buffers(remove_duplicate=False))


def _check_buffers(replica: Replica, before: Set[str]) -> None:
    """Refuse a buffer that a call of the model has created.

    The flat vectors have no place for it, so its changes would not be averaged, and processes would diverge.
    """
    for name, buffer in _buffers(replica).items():
        if name not in before:
            owner = replica.model.get_submodule(name.rpartition(".")[0])
            raise WorkloadError(
                f"the buffer model.{name} is created when the model is called, so each worker would have its own; "
                f"register it in __init__ with its final shape, such as torch.zeros({tuple(buffer.shape)}, "
                f"dtype={buffer.dtype}){seen_at(owner)}"
            )


_EXACT = 2**24
"""The bound below which a row's float32 holds every whole number."""


def _check_whole_numbers(replica: Replica, row: Tensor, examples: int) -> None:
    """Refuse a buffer of whole numbers that changes by more than a row can carry, as a generator's state does.

    `row` is a shard's row; it has the changes, times the shard's examples.
    """
    at = replica.parameters.length
    for dtype, vector in replica.buffers.vectors.items():
        changes = row[at : at + vector.numel()]
        at += vector.numel()
        if dtype.is_floating_point or dtype.is_complex:
            continue
        for span in replica.buffers.spans[dtype]:
            change = float(span.of(changes).abs().amax()) if span.of(changes).numel() else 0.0
            if change >= _EXACT:
                raise WorkloadError(
                    f"the buffer model.{span.name} changes by {change / examples:,.0f} in a shard of {examples} "
                    "examples, more than the mean over shards keeps exactly; keep counts in it, or floats, and draw "
                    f"from torch, which the trainer seeds for each shard{seen_at(replica.buffers.owner_of(span.name))}"
                )


# Examples.

_READ_TWICE = 4  # examples


def _check_reading(replica: Replica) -> PythonState | None:
    """Read the first examples twice, as happens when a worker takes over a shard, and compare them.

    Return the Python state of the code that reads; None if no code of the user's does.
    """
    workload = replica.workload
    if is_indexed(workload, workload.train):
        return None
    whole = Requests(replica.spec.seed).of(replica.plan, replica.plan.step_at(replica.position), 0)
    request = Request(None, whole.indices[:_READ_TWICE], whole.seed)
    state = PythonState({"train": workload.train, "collate": workload.collate})
    with reported_as_workload_error("reading the first examples"):
        began = time.perf_counter()
        first = read(workload, request)
        seconds = time.perf_counter() - began
        after_first = _values_of(state)
        second = read(workload, request)
    drawn = [change for change in state.changes() if change.is_generator and _goes_on(change, after_first)]
    if drawn:
        raise WorkloadError(generator_sentence(drawn[0]))
    if not is_alike(first, second, unknown=True):
        at = seen_at(getattr(workload.train, "__getitem__", None)) or seen_at(workload.collate)
        raise WorkloadError(
            f"example {request.indices[0]} or one of the {len(request.indices) - 1} after it reads otherwise the "
            "second time, so workers would train on different data; draw from torch, numpy.random or random, which the "
            f"trainer seeds, and not from a generator of your own or of the system{at}"
        )
    if seconds < _QUICKLY_READ:
        _check_kept(replica, state, request)
    # What the data set has built when it was first read, such as an open file, stays; it may have taken long.
    state.restore(_is_built)
    if isinstance(replica.reader, Loaders) and replica.reader.processes > 1:
        _check_loaders(replica, replica.reader, request, first)
    return state


_QUICKLY_READ = 0.05
"""Seconds for the first examples, below which the data set may build again what it has built to read them."""


def _check_kept(replica: Replica, state: PythonState, request: Request) -> None:
    """Read the examples with another seed twice, after the earlier reads and as if for the first time, and compare.

    They differ if the data set keeps what it has drawn: each worker would keep its draws from the first time that it
    was asked for an example.
    """
    later = replace(request, seed=request.seed ^ 1)
    changes = [change for change in state.changes() if not (change.is_generator or change.is_opened)]
    if not changes:
        return
    with reported_as_workload_error("reading the first examples"):
        after_others = read(replica.workload, later)
        state.restore(keep=lambda change: change.is_opened)
        at_first = read(replica.workload, later)
    if not is_alike(after_others, at_first, unknown=True):
        raise WorkloadError(
            f"workload.train: example {request.indices[0]} or one of the {len(request.indices) - 1} after it reads "
            f"otherwise once {changes[0].path} has changed, which reading does, so the data would depend on what a "
            "worker has read before; keep nothing that depends on random numbers or on earlier examples"
            f"{changes[0].seen_at()}"
        )


def _check_loaders(replica: Replica, loaders: Loaders, request: Request, alone: Any) -> None:
    """Let all loaders read the same examples at once, and compare them with what one process reads `alone`."""
    at = seen_at(getattr(replica.workload.train, "__getitem__", None))
    remedy = (
        "open it when it is first read, as in __getitem__: if self.file is None: self.file = open(…), and not in "
        "__init__, so that each process has its own; or map it into memory (numpy.memmap), or leave workers.loaders out"
    )
    try:
        batches, moved = loaders.read_at_once(request)
    except DataError as error:
        if isinstance(error, ReadFault):
            raise
        raise DataError(
            f"{error}. One process alone has read this example, and {loaders.processes} at once have not: if "
            f"the data set keeps a file or a connection open, {remedy}"
        ) from error
    if moved:
        raise WorkloadError(
            f"workload.train: the processes of workers.loaders share the open file {moved[0]} and its position, so "
            f"that their reads mix; {remedy}{at}"
        )
    if not all(is_alike(alone, batch, unknown=True) for batch in batches):
        raise WorkloadError(
            f"workload.train: {loaders.processes} processes that read example {request.indices[0]} and the "
            "next ones at once do not all get what one process gets alone; if the data set keeps a file or a "
            f"connection open, {remedy}{at}"
        )


# The growth.

_START = Signals(loss=2.0, batch_square=4.0, square=1.0, trace=96.0)
_NOW = Signals(loss=1.0, batch_square=2.0, square=0.5, trace=96.0)


def _check_rule(replica: Replica) -> None:
    """Ask a growth rule of the user's own twice about one look, and compare its answers.

    The look's numbers are made up, so an error is ignored: training may measure others.
    """
    course = replica.growth.course
    rule = course.rule if course.is_measured else None
    if not isinstance(rule, CustomRule):
        return
    state = PythonState({"batch.growth.custom": rule.function})
    after_first: dict[str, Any] = {}
    values = []
    with untouched_randomness(), suppress(*FAULTS):
        for _ in range(2):
            batch = replica.spec.batch
            look = Look(
                position=replica.plan.step_at(Position()).after, start=_START, first=_START, now=_NOW,
                initial=batch.initial, wanted=batch.initial, largest=batch.maximum, shard=replica.spec.shard,
                workers=lambda _: 1, learning_rate=0.1, timings=Timings(),
                memory=[0.0] * batch.growth.settings.memory,
            )  # fmt: skip
            values.append((rule.value(look), look.memory))
            after_first = after_first or _values_of(state)
    changes = [change for change in state.changes() if _goes_on(change, after_first)]
    drawn = [change for change in changes if change.is_generator]
    state.restore()
    if drawn or not is_alike(*(values if len(values) > 1 else (0, 0))):
        named = [*drawn, *changes][:1]
        because = f"; it changes {named[0].path}" if named else ""
        raise WorkloadError(
            f"batch.growth.custom: {batch.growth.settings.entrypoint} answers otherwise when it is asked twice about "
            f"one look{because}, so that workers would decide differently; keep what it remembers in look.memory, and "
            f"draw no random numbers{named[0].seen_at() if named else seen_at(rule.function)}"
        )


# The process.


@contextmanager
def _process_unchanged() -> Iterator[None]:
    """Refuse code in the block that changes a setting of the process on which other code depends."""
    before = settings()
    try:
        yield
    except DeviceFault:  # it may pass, so it stays what it is
        raise
    except WorkloadError as error:
        for name, was, value in differences(before, settings()):
            raise WorkloadError(
                f"{error}; {name} was {was} before and {value} by then: set it back at the end of the call"
            ) from error
        raise
    for name, was, value in differences(before, settings()):
        raise WorkloadError(
            f"{name} was {was} and is {value} after a shard was computed, so later ones would be computed otherwise; "
            f"set it back at the end of the call, or set it when the workload is made{seen_at(None)}"
        )

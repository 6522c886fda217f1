"""The order of the examples of an epoch, which of them a shard has, and how they are read."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth.plan import Plan, Step
from batchgrowth.shards import shard_bounds, shard_runs
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_any, wait_exponential
from tenacity.stop import stop_base
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import TensorDataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from batchgrowth_trainer.record.storage import may_pass
from batchgrowth_trainer.replica.seeds import draw_seed, generator_states, reading_seed, seed_generators
from batchgrowth_trainer.user_errors import (
    ReadFault,
    advice_for,
    is_of_the_device,
    reason,
    reported_as_workload_error,
    seen_at,
)
from batchgrowth_trainer.workload import TARGET_KEYS, Collate, Dataset, Workload

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request for the examples at `indices`, int64, shape (N,), and the seed for reading them.

    They belong to the test set named `test`, or to the training set if that is None.
    """

    test: str | None
    indices: Tensor
    seed: int


Runs = Callable[[Step], tuple[int, int]]
"""An update -> the shards [lo, hi) of it that this process computes."""

Ahead = Callable[[int], Iterator[Request]]
"""A shard -> the requests for its examples, and for those that are read after them."""

Following = Callable[[], Iterator[Request]]
"""Returns the requests to come, the present one first."""

Batch = tuple[Any, Any]
"""The inputs and targets of a request."""


def run_of(rank: int, size: int, step: Step) -> tuple[int, int]:
    """Return the shards of an update that a member of a group computes; `Runs`, once `rank` and `size` are bound."""
    return shard_runs(step.shards, size)[rank]


def none_known(_: Step) -> tuple[int, int]:
    """Return no shards: nothing is read ahead of the present update."""
    return 0, 0


def example_order(seed: int, epoch: int, examples: int) -> Tensor:
    """Return the epoch's permutation of the training examples, shape (examples,), int64."""
    generator = torch.Generator().manual_seed(draw_seed(seed, "order", epoch))
    return torch.randperm(examples, generator=generator)


class Requests:
    """The requests for the training examples of a job; `draws` is whether reading them may draw random numbers."""

    def __init__(self, seed: int, *, draws: bool = True) -> None:
        self._seed = seed
        self._draws = draws
        self._orders: dict[int, Tensor] = {}

    def of(self, plan: Plan, step: Step, shard: int) -> Request:
        """Return the request for one shard of an update."""
        bounds = shard_bounds(step.examples, step.shards)
        first = step.position.offset
        order = self.order(step.position.epoch, plan.examples_per_epoch)
        indices = order[first + bounds[shard] : first + bounds[shard + 1]]
        return Request(None, indices, reading_seed(self._seed, step.position.update, shard) if self._draws else 0)

    def coming(self, plan: Plan, step: Step, shards: range, runs: Runs) -> Iterator[Request]:
        """Yield the requests for these shards of an update, then for the `runs` of later updates, to the plan's end.

        With `none_known` they end after these shards, because planning all later updates takes a second in a long job.
        """
        yield from (self.of(plan, step, shard) for shard in shards)
        while runs is not none_known and not plan.is_done(step.after):
            step = plan.step_at(step.after)
            yield from (self.of(plan, step, shard) for shard in range(*runs(step)))

    def order(self, epoch: int, examples: int) -> Tensor:
        """Return the epoch's permutation of the examples.

        The epoch before is kept too, since an update may still read it while later ones are read ahead.
        """
        if epoch not in self._orders:
            kept = {known: order for known, order in self._orders.items() if known == epoch - 1}
            self._orders = kept | {epoch: example_order(self._seed, epoch, examples)}
        return self._orders[epoch]


class Reader:
    """Reads the examples of a workload in this process; `loaders.Loaders` lets other processes read them ahead."""

    processes = 0
    """How many other processes read."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.draws = not is_indexed(workload, workload.train)
        """Whether reading training examples may draw random numbers."""
        self._reading = Lock()  # a data set may keep a file open, and reading seeds the generators of the process

    def read(self, request: Request, following: Following) -> Batch:  # noqa: ARG002
        """Return the inputs and targets of a request; nobody reads the `following` requests ahead.

        Raises DataError and WorkloadError.
        """
        if request.test is None and not self.draws:  # as `read` would, without waiting for the lock
            return fetch(self._workload.train, request.indices)
        with self._reading:
            return read(self._workload, request)

    def read_aside(self, request: Request) -> Batch:
        """Return the inputs and targets of a request that is no part of the training. Raises what `read` does."""
        return self.read(request, lambda: iter((request,)))

    def close(self) -> None:
        """Do nothing: no other process reads."""


MOST_TRIES = 10  # of one example
_RETRY_SECONDS = 30.0  # for one shard; half of the default of exchange.timeoutSeconds, after which peers give up
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 5.0


def read(workload: Workload, request: Request) -> tuple[Any, Any]:
    """Read a request as `fetch` does, and retry after a ReadFault.

    If reading may draw from the generators, they are seeded before, and not restored. Raises WorkloadError, and
    DataError: a ReadFault if the example might be read later or elsewhere.
    """
    dataset = workload.train
    name = "train"
    if request.test is not None:
        dataset = workload.test_sets[request.test]
        name = f"test[{request.test!r}]" if request.test else "test"
    if is_indexed(workload, dataset):
        return fetch(dataset, request.indices, name=name)
    seed_generators(request.seed)
    try:
        return fetch(dataset, request.indices, collate=workload.collate, name=name)
    except ReadFault as fault:
        _LOG.warning("%s; reading it again", fault)
    seed_generators(request.seed)  # the examples before it may have drawn
    return fetch(dataset, request.indices, _Retries(), workload.collate, name)


def is_indexed(workload: Workload, dataset: Dataset) -> bool:
    """Return whether reading only indexes tensors in memory, which takes no time, never fails and draws nothing."""
    return type(dataset) is TensorDataset and workload.collate is None


class _Retries:
    """The Attempt for the examples of one shard: it retries with the same random draws."""

    def __init__(self) -> None:
        self._retrying = Retrying(
            retry=retry_if_exception_type(ReadFault),
            stop=stop_any(stop_after_attempt(MOST_TRIES), _stop_at(time.monotonic() + _RETRY_SECONDS)),
            wait=wait_exponential(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS),  # jitter would draw from `random`
            reraise=True,
        )

    def __call__(self, read: Callable[[], Any]) -> Any:
        """Return the result of `read`. Raises the ReadFault of its last try."""
        restore = generator_states()

        def read_alike() -> Any:
            restore()
            return read()

        return self._retrying(read_alike)


class _stop_at(stop_base):  # noqa: N801
    """Stops retrying before a wait that would end after this time of the monotonic clock."""

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def __call__(self, state: RetryCallState) -> bool:
        """Return whether to give up."""
        return time.monotonic() + state.upcoming_sleep > self._ends


Attempt = Callable[[Callable[[], Any]], Any]
"""Calls a function that reads examples, perhaps more than once, and returns its result."""


def at_once(read: Callable[[], Any]) -> Any:
    """Read once, without retries: the default Attempt."""
    return read()


def fetch(
    dataset: Dataset,
    indices: Tensor,
    attempt: Attempt = at_once,
    collate: Collate | None = None,
    name: str = "train",
) -> tuple[Any, Any]:
    """Return the inputs and targets at `indices` (int64, shape (N,)), collated along a first axis of N.

    `name` is the data set's name in errors: its place in the workload.

    A `TensorDataset` is indexed once per tensor, another data set by `__getitems__` if it has it, else item by item.
    If an example has more than two parts, the last is the target and the others are the inputs, as a tuple. If it is a
    dictionary, the target is under one of TARGET_KEYS, and the inputs are the rest.
    Raises DataError if an item cannot be read, a ReadFault if that may pass, and WorkloadError if it has no target or
    the items cannot be collated.
    """
    if type(dataset) is TensorDataset and collate is None:
        return pair([_at(tensor, indices) for tensor in dataset.tensors], name)
    many = getattr(dataset, "__getitems__", None)
    numbers = indices.tolist()
    of = f"of {type(dataset).__name__}", name
    if many is not None:
        found = attempt(lambda: _read(many, numbers, of, numbers))
        items = list(found)
        if len(items) != len(numbers):
            raise WorkloadError(
                f"workload.{name}: __getitems__ returned a {type(found).__name__} of {len(items)} for {len(numbers)} "
                f"indices; return a list with one example for each, as __getitem__ returns it{seen_at(many)}"
            )
    elif attempt is at_once:  # spares a call for each example
        items = [_read(dataset.__getitem__, number, of, (number,)) for number in numbers]
    else:
        items = [attempt(partial(_read, dataset.__getitem__, number, of, (number,))) for number in numbers]
    source = collate or getattr(dataset, "__getitem__", None)
    return pair(_collated(items, collate, source), name, source)


def _at(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return `tensor[indices]`."""
    # index_select takes half of the time or less. But it needs the indices on the tensor's device, and its result has
    # the default memory format, and a convolution's bits may depend on the format.
    if tensor.is_cpu and _has_default_strides(tensor):
        return tensor.index_select(0, indices)
    return tensor[indices]


def _has_default_strides(tensor: Tensor) -> bool:
    """Return whether the strides are those of a new tensor of this shape.

    `is_contiguous` ignores axes of length 1, whose strides tell torch the memory format of a gray image.
    """
    elements = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != elements:
            return False
        elements *= length
    return True


def pair(columns: Any, name: str, source: Any = None) -> tuple[Any, Any]:
    """Split a batch or an example of the data set `name`, which the function `source` made, into inputs and target.

    Raises WorkloadError if it has no target.
    """
    if isinstance(columns, (list, tuple)) and len(columns) == 2:
        return columns[0], columns[1]
    if isinstance(columns, Mapping):
        at = next((key for key in TARGET_KEYS if key in columns), None)
        if at is None:
            raise WorkloadError(
                f"an example is a dictionary of {', '.join(map(str, columns))}; add its target under one of "
                f"{', '.join(TARGET_KEYS)}, or return an (input, target) pair{seen_at(source)}"
            )
        return {key: value for key, value in columns.items() if key != at}, columns[at]
    if not isinstance(columns, (list, tuple)):
        raise WorkloadError(
            f"a batch is a {type(columns).__name__}; let collate return (inputs, target){seen_at(source)}"
        )
    if len(columns) < 2:
        raise WorkloadError(
            f"workload.{name}: an example has {len(columns)} part; an (input, target) pair is needed "
            f"(without a target, give None){seen_at(source)}"
        )
    return tuple(columns[:-1]), columns[-1]


def _read(get: Callable[[Any], Any], key: Any, of: tuple[str, str], indices: Sequence[int]) -> Any:
    """Return `get(key)`, the examples at `indices`; `of` has the data set's kind and its name, for errors.

    Raises DataError, which is a ReadFault if the error may pass.
    """
    try:
        return get(key)
    except Exception as error:
        numbers = ", ".join(map(str, indices[:4])) + (" …" if len(indices) > 4 else "")
        kind, name = of
        which = f"example{'s' if len(indices) > 1 else ''} {numbers} {kind}"
        if name != "train":
            which += f", {name} of the workload"
        remedy = advice_for(error) or f"read it alone in Python to see the whole traceback: {name}[{indices[0]}]"
        text = f"{which}: {reason(error)}; {remedy}"
        if may_pass(error) or is_of_the_device(error):
            raise ReadFault(text, which) from error
        raise DataError(text) from error


def _collated(items: list[Any], own: Collate | None, source: Any) -> Any:
    if own is not None:
        with reported_as_workload_error(
            "collate", "call it with a list of examples in Python to see the whole traceback"
        ):
            return own(items)
    try:
        columns = collate(items, collate_fn_map=_COLLATED)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise WorkloadError(
            f"examples cannot be put into one batch: {type(error).__name__}: {error}; return tensors, numbers or "
            f"arrays of one shape, or give the workload a collate function{seen_at(source)}"
        ) from error
    if not isinstance(columns, (list, tuple, Mapping)):
        raise WorkloadError(
            f"an example is a {type(items[0]).__name__}; return an (input, target) pair{seen_at(source)}"
        )
    return columns


def _collated_none(items: list[Any], **_: Any) -> None:
    if any(item is not None for item in items):
        raise TypeError("None is mixed with values")


_COLLATED = {**default_collate_fn_map, type(None): _collated_none}


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with every tensor in it, also in tuples, lists and mappings, moved to `device`.

    A container keeps its type if it can be copied. Any other object that has a method `to`, as batches of graphs have,
    moves itself. A tensor is copied to a GPU from pinned memory, so the process does not wait for the copy.
    """
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        # Torch keeps pinned memory until the copy has ended.
        is_copied = device.type == "cuda" and value.device.type == "cpu" and value.layout is torch.strided
        if is_copied and not value.is_pinned():
            value = value.pin_memory()
        return value.to(device, non_blocking=True)
    if isinstance(value, PackedSequence):  # a tuple of which one part must stay on the CPU
        return value.to(device)  # type: ignore[arg-type]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(item, device) for item in value)
    if isinstance(value, Mapping):
        return _mapping_like(value, {key: to_device(item, device) for key, item in value.items()})
    move = getattr(value, "to", None)
    return move(device) if callable(move) else value


def _mapping_like(given: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return the items in a mapping of the type of `given`, or in a dictionary if `given` cannot be written to."""
    if type(given) is dict or not isinstance(given, MutableMapping):
        return items
    same = copy(given)
    same.update(items)
    return same

"""Reads the examples of a shard; an example that cannot be read is read again, with the same random draws."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_any, wait_exponential
from tenacity.stop import stop_base
from torch import Tensor
from torch.utils.data import TensorDataset

from batchgrowth_trainer.blame import ReadFault
from batchgrowth_trainer.replica.draws import generator_states, seed_generators
from batchgrowth_trainer.workload import Dataset, Workload, fetch

MOST_TRIES = 10  # of one example
_RETRY_SECONDS = 30.0  # for one shard; half of the default of exchange.timeoutSeconds, after which peers give up
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 5.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The examples at `indices`, int64, shape (N,), drawn with a seed that only they have.

    They are of the training set, or of the test set with that name.
    """

    test: str | None
    indices: Tensor
    seed: int


def read(workload: Workload, request: Request) -> tuple[Any, Any]:
    """What `fetch` returns for a request, also if an example is only read at the second try.

    The generators are seeded before, unless reading cannot draw from them, and are left as they then are.
    Raises DataError, which is a ReadFault if the example might be read later or elsewhere, and WorkloadError.
    """
    dataset = workload.train if request.test is None else workload.test_sets[request.test]
    if is_indexed(workload, dataset):
        return fetch(dataset, request.indices)
    seed_generators(request.seed)
    try:
        return fetch(dataset, request.indices, collate=workload.collate)
    except ReadFault as fault:
        _LOG.warning("%s; reading it again", fault)
    seed_generators(request.seed)  # the examples before it may have drawn
    return fetch(dataset, request.indices, _Retries(), workload.collate)


def is_indexed(workload: Workload, dataset: Dataset) -> bool:
    """Whether reading is only indexing tensors in memory: it takes no time, fails never and draws nothing."""
    return type(dataset) is TensorDataset and workload.collate is None


class _Retries:
    """The Attempt for every example of one shard: tries again, and draws the same each time."""

    def __init__(self) -> None:
        self._retrying = Retrying(
            retry=retry_if_exception_type(ReadFault),
            stop=stop_any(stop_after_attempt(MOST_TRIES), _stop_at(time.monotonic() + _RETRY_SECONDS)),
            wait=wait_exponential(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS),  # jitter would draw from `random`
            reraise=True,
        )

    def __call__(self, read: Callable[[], Any]) -> Any:
        """What `read` returns. Raises the ReadFault of its last try."""
        restore = generator_states()

        def read_alike() -> Any:
            restore()
            return read()

        return self._retrying(read_alike)


class _stop_at(stop_base):  # noqa: N801
    """Stops before the wait that would end after this time of the monotonic clock."""

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def __call__(self, state: RetryCallState) -> bool:
        """Whether to give up."""
        return time.monotonic() + state.upcoming_sleep > self._ends

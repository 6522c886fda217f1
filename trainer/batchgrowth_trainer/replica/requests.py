"""Which examples a shard has: the job's order of each epoch, cut into batches and shards. The same in every process."""

from collections.abc import Callable, Iterator

from batchgrowth.plan import Plan, Step
from batchgrowth.shards import shard_bounds
from torch import Tensor

from batchgrowth_trainer.replica.draws import example_order, reading_seed
from batchgrowth_trainer.replica.reading import Request

Runs = Callable[[Step], tuple[int, int]]
"""An update -> the shards [lo, hi) of it that this process computes."""

Ahead = Callable[[int], Iterator[Request]]
"""A shard -> the requests for its examples, and for those that are read after them."""


def none_known(_: Step) -> tuple[int, int]:
    """No shards: nothing is read ahead of the present update."""
    return 0, 0


class Requests:
    """The requests for the training examples of a job; `draws` is whether reading them may draw random numbers."""

    def __init__(self, seed: int, *, draws: bool = True) -> None:
        self._seed, self._draws = seed, draws
        self._orders: dict[int, Tensor] = {}

    def of(self, plan: Plan, step: Step, shard: int) -> Request:
        """The request for one shard of an update."""
        bounds, first = shard_bounds(step.examples, step.shards), step.position.offset
        order = self.order(step.position.epoch, plan.examples_per_epoch)
        indices = order[first + bounds[shard] : first + bounds[shard + 1]]
        return Request(None, indices, reading_seed(self._seed, step.position.update, shard) if self._draws else 0)

    def coming(self, plan: Plan, step: Step, shards: range, runs: Runs) -> Iterator[Request]:
        """The requests for these shards of an update, and for the `runs` of the later ones, to the end of the plan.

        With `none_known` they end after these shards: to plan each later update takes a second in a long job.
        """
        yield from (self.of(plan, step, shard) for shard in shards)
        while runs is not none_known and not plan.is_done(step.after):
            step = plan.step_at(step.after)
            yield from (self.of(plan, step, shard) for shard in range(*runs(step)))

    def order(self, epoch: int, examples: int) -> Tensor:
        """The epoch's permutation of the examples; that of the epoch before is kept, as reading ahead goes before."""
        if epoch not in self._orders:
            kept = {known: order for known, order in self._orders.items() if known == epoch - 1}
            self._orders = kept | {epoch: example_order(self._seed, epoch, examples)}
        return self._orders[epoch]

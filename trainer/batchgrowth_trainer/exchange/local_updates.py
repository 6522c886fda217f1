"""The updates that a logical replica makes by itself, with its part of each batch."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from batchgrowth.plan import Step
from batchgrowth.rounds import rounds_from
from batchgrowth.shards import shard_bounds
from torch import Tensor

from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.replica.quantities import LOSS
from batchgrowth_trainer.replica.reading import Request
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.tree import lay_out
from batchgrowth_trainer.replica.updates import Committed


class LocalUpdates:
    """Trains the replicas `run` of this member, one after another, for some updates each."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._replica = setting, setting.replica
        exchange = self._replica.spec.exchange
        self.replicas, self._every = exchange.replicas, exchange.settings.every_updates
        self.run = lay_out(self.replicas, setting.group.size).runs[setting.group.rank]

    def make(self, number: int, steps: Sequence[Step], losses: Tensor) -> int:
        """Make these updates with the model as it is, as replica `number`; the examples that it took.

        Writes the sum of the losses of each update's examples into `losses`. Raises PeerLost once the generation is
        over, and the errors of a replica.
        """
        seen = 0
        for index, step in enumerate(steps):
            run, examples = share_of(step, number, self.replicas)
            if examples:
                total = self._replica.sum_of(step, run, partial(self._ahead, number, index, steps))
                sums, _, _ = self._replica.step(step, total.row, examples)
                losses[index] = sums.by_name[LOSS.name]
                self._replica.rows.release([total])
                seen += examples
            self._setting.check()
        return seen

    def _ahead(self, number: int, index: int, steps: Sequence[Step], shard: int) -> Iterator[Request]:
        """The requests of this member from that shard on: it reads the updates of one replica after another's."""
        plan = self._replica.plan
        present = ((step, number) for step in steps[index:])
        others = ((step, later) for later in range(number + 1, self.run[1]) for step in steps)
        rounds = rounds_from(plan, steps[-1].after, self._every)
        future = ((step, each) for later in rounds for each in range(*self.run) for step in later)
        for step, replica in chain(present, others, future):
            run, examples = share_of(step, replica, self.replicas)
            for each in range(*run) if examples else ():
                if step is not steps[index] or replica != number or each >= shard:
                    yield self._replica.requests.of(plan, step, each)


def share_of(step: Step, number: int, replicas: int) -> tuple[tuple[int, int], int]:
    """The shards of an update that a logical replica computes, and how many examples they have."""
    each = step.shards // replicas
    run = number * each, (number + 1) * each
    bounds = shard_bounds(step.examples, step.shards)
    return run, bounds[run[1]] - bounds[run[0]]


def committed(
    replica: Replica, steps: Sequence[Step], losses: Sequence[float], *, stop: bool
) -> tuple[tuple[Step, Committed], ...]:
    """The updates of a round; `losses` are the sums over their examples, and may be followed by unused places."""
    return tuple(
        (step, Committed(loss / step.examples, replica.growth.learning_rate(step), stop))
        for step, loss in zip(steps, losses, strict=False)
    )

"""Decides at each look whether a measured batch grows, and keeps the decisions so far and the plan that follows.

The chain: the trainer's replica/decisions.py hands over what an update measured, `Course` here looks when a look is
due, the job's rule in choices/growth_measured.py says which batch it wants, and `Course.bounded` bounds that. The
batch is in force once the replica has taken over `Course.plan` (`Replica.adopt_decisions`, which `Replica.advance`
calls).

Everything here is pure and exact in the order of its operations, so all members of a group that see the same sums take
the same decisions. The memory of a course is a list of numbers, which the trainer keeps with the model's state:

    start | first | window | kept | timings | the rule's own | the gain's window | the gain's kept

`start`, `first` and `window` are six sums each: over the first update, over all updates until the first look, and over
those since the last look. `kept` are the sums that the last look saw, with a share of earlier ones. Timings are there
if the rule looks at a clock. A declared growth has only the gain's part, which is empty unless the learning rate
follows measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

from batchgrowth.learning_rate import NUM_NOISE, Gain
from batchgrowth.looks import LARGEST_BATCH, NOT_TIMED, Look, Looks, MeasuredRule, Signals, Timing, Timings
from batchgrowth.plan import MOST_DECISIONS, BatchDecision, Plan, Step, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec

__all__ = ["BatchDecision", "Course", "Measured"]

_NUM_SUMS = 6  # examples, loss, squared norms of batches; examples, |G|² and trace of updates with two shards or more
_SQUARE = 4
_START = slice(0, _NUM_SUMS)
_FIRST = slice(_NUM_SUMS, 2 * _NUM_SUMS)
_WINDOW = slice(2 * _NUM_SUMS, 3 * _NUM_SUMS)
_KEPT = slice(3 * _NUM_SUMS, 4 * _NUM_SUMS)
_NUM_TIMINGS = len(astuple(Timings()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one update. `loss` is summed over its examples.

    With n the examples of a shard and g their summed gradient, `shard_squares` is the sum of |g|² / n over the shards.
    `square` is the squared norm of the gradient summed over the batch. `timing` is an earlier update's, for a rule
    that looks at a clock.
    """

    examples: int
    shards: int
    loss: float
    shard_squares: float
    square: float
    timing: Timing = NOT_TIMED

    def sums(self) -> tuple[float, ...]:
        """Return the update's contribution to each sum of its window.

        Its noise is 0 if the update has a single shard, or if the noise is not finite.
        """
        seen = (float(self.examples), self.loss, self.square / self.examples)
        nothing = (0.0, 0.0, 0.0)
        if self.shards < 2:
            return seen + nothing
        trace = (self.shard_squares - self.square / self.examples) / (self.shards - 1)
        squares = self.square / self.examples - trace
        noise = (float(self.examples), squares, trace * self.examples)
        if not all(map(math.isfinite, noise)):
            return seen + nothing
        return seen + noise


class Course:
    """The growth of a batch: the decisions so far and the plan that follows; `after` decides at each look.

    A course never changes: an update that decides something gives a new one. `after` gets the course's memory and
    returns the new one, since the trainer keeps it in a tensor beside the weights.
    """

    def __init__(
        self,
        spec: JobSpec,
        decisions: Sequence[BatchDecision] = (),
        end: int | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Begin with the decisions that changed the wanted batch size, in their order.

        `end` is the epoch after which stopEarly ended the job; None if it has not. `plan` is the plan of the spec
        alone, if the caller has made it. Raises PlanError as `make_plan` does.
        """
        self.spec = spec
        self.decisions = tuple(decisions)
        if plan is None or self.decisions:
            plan = make_plan(spec, self.decisions)
        self.plan = plan
        if end is not None:
            self.plan = self.plan.until(end)
        self._entry = spec.batch.growth.entry
        self._gain = Gain(spec.learning_rate, spec.batch.initial)

        self._rule_begins = _KEPT.stop
        if self.looks_at_clock:
            self._rule_begins += _NUM_TIMINGS
        self._gain_begins = 0
        if self.is_measured:
            self._gain_begins = self._rule_begins + int(self._entry.memory(spec.batch.growth.settings))
        self.memory = self._gain_begins + self._gain.memory
        """How many numbers the course remembers."""

    @property
    def is_measured(self) -> bool:
        """Return True if a measured rule decides the batch size."""
        return bool(self._entry.quantity)

    @property
    def measures(self) -> bool:
        """Return True if measurements decide the batch size or the learning rate."""
        return self.is_measured or bool(self._gain.memory)

    @property
    def needs_noise(self) -> bool:
        """Return True if the gradient's noise is measured: the squared norms of the shards' gradients."""
        return bool(self._entry.needs_noise or self._gain.memory)

    @property
    def looks_at_clock(self) -> bool:
        """Return True if the duration of updates is measured, so that only a replay repeats a run."""
        return bool(self._entry.looks_at_clock)

    @property
    def quantity(self) -> str:
        """Return the name of the quantity that the growth measures; an empty text if it is declared."""
        return str(self._entry.quantity)

    @cached_property
    def rule(self) -> MeasuredRule:
        """Return the rule, which is loaded at its first use."""
        rule: MeasuredRule = self._entry.load()(self.spec.batch.growth.settings)
        return rule

    @cached_property
    def _looks(self) -> Looks:
        return self.spec.batch.growth.looks or Looks()

    @cached_property
    def _smoothing(self) -> float:
        return float(self._looks.smoothing)

    def learning_rate(self, step: Step, memory: Sequence[float]) -> float:
        """Return the learning rate of that update: the plan's rate, times the gain if one is measured."""
        return step.learning_rate * self._gain.at(step.batch_size, memory[self._gain_begins :])

    def is_due(self, position: Position) -> bool:
        """Return True if the growth or the gain has a look at this position; otherwise `after` only adds to sums."""
        return self.looks_at(position) or self._gain.is_due(position)

    def looks_at(self, position: Position) -> bool:
        """Return True if the growth has a look at this position."""
        return self.is_measured and self._looks.is_due(position)

    def after(
        self, step: Step, measured: Measured, memory: Sequence[float]
    ) -> tuple["Course", BatchDecision | None, list[float]]:
        """Return the course after that update, the outcome of a look or None if there was none, and the new memory.

        Raises ValueError if the rule changes the length of its own memory.
        """
        added = measured.sums()
        gained = self._gain.after(step.after, added[-NUM_NOISE:], memory[self._gain_begins :])
        if not self.is_measured:
            return self, None, gained
        remembered = [*memory[: self._gain_begins], *gained]
        if not remembered[0]:  # no examples yet: this is the first update
            remembered[_START] = added
        window = [a + b for a, b in zip(memory[_WINDOW], added, strict=True)]
        remembered[_WINDOW] = window
        timings = Timings()
        if self.looks_at_clock:
            timings = Timings(*memory[_KEPT.stop : self._rule_begins]).plus(measured.timing)
            remembered[_KEPT.stop : self._rule_begins] = astuple(timings)

        # The rule is not asked at the end, where nothing is left to decide, nor while it has no noise to look at.
        is_look = not self.plan.is_done(step.after) and self._looks.is_due(step.after)
        if not is_look or (self._entry.needs_noise and not window[3]):
            return self, None, remembered
        # At the first look, what was measured until then becomes the reference of all later ones.
        first = memory[_FIRST] if memory[_FIRST.start] else window
        if self._entry.compares_squares and memory[_FIRST.start] and first[_SQUARE] <= 0:
            first = [a + b for a, b in zip(first, window, strict=True)]
        kept = [self._smoothing * a + b for a, b in zip(memory[_KEPT], window, strict=True)]
        wanted = self.plan.stage_at(step.position.update).wanted
        most = math.floor(wanted * float(self._looks.most_change))
        look = Look(
            position=step.after,
            start=_signals(remembered[_START]),
            first=_signals(first),
            now=_signals(kept),
            initial=self.spec.batch.initial,
            wanted=wanted,
            largest=max(min(self.spec.batch.maximum, most), wanted),
            shard=self.spec.shard,
            workers=self.spec.workers.desired,
            learning_rate=self.learning_rate(step, memory),
            timings=timings,
            memory=remembered[self._rule_begins : self._gain_begins],
        )
        # The rule may be a user's function. It may change `look.memory`, a copy, which is taken over once checked.
        value = self.rule.value(look)
        asked = self.rule.wanted(look, value)
        decision = BatchDecision(step.after.update, self.bounded(asked, wanted), value, asked)

        rules_own = [float(number) for number in look.memory]
        if len(rules_own) != self._gain_begins - self._rule_begins:
            raise ValueError(
                f"the rule's memory has {len(rules_own)} numbers; keep {self._gain_begins - self._rule_begins}"
            )
        remembered[_FIRST] = first
        remembered[_WINDOW] = [0.0] * _NUM_SUMS  # the next window begins
        remembered[_KEPT] = kept
        remembered[self._rule_begins : self._gain_begins] = rules_own
        return self.joined_by(decision), decision, remembered

    def bounded(self, asked: float, wanted: int) -> int:
        """Return the batch size after `wanted` if the rule asks for `asked`: within every bound, and then the nearest
        number of whole shards, which may exceed mostChange by half a shard.

        If `asked` is infinite or NaN, the batch grows by mostChange, but not past batch.maximum: a missing measurement
        never lowers the learning rate.
        """
        batch = self.spec.batch
        shard = self.spec.shard
        least = float(self._looks.least_change)
        most = float(self._looks.most_change)
        ceiling = batch.maximum
        if self.spec.learning_rate.entry.falls_past_maximum:
            ceiling = LARGEST_BATCH  # past the maximum the learning rate falls instead, by as much as is wanted
        if not math.isfinite(asked):
            asked = wanted * most
            ceiling = max(batch.maximum, wanted)
        asked = min(asked, wanted * most)
        smallest = batch.initial
        if self._looks.may_shrink:
            asked = max(asked, wanted / most)
        else:
            smallest = wanted
            asked = max(asked, wanted)
        if asked == wanted or wanted / least < asked < wanted * least or len(self.decisions) == MOST_DECISIONS:
            return wanted
        # Not round(), which takes the even neighbour of a half and so would go down from 2.5 shards and up from 3.5.
        return min(max(math.floor(asked / shard + 0.5) * shard, smallest), ceiling)

    def joined_by(self, decision: BatchDecision) -> "Course":
        """Return the course with this decision; the same course if the decision is known or changes nothing."""
        known = self.decisions[-1].update if self.decisions else 0
        if decision.update <= known or decision.wanted == self.plan.stages[-1].wanted:
            return self
        return Course(self.spec, (*self.decisions, decision))

    def ended(self, epoch: int) -> "Course":
        """Return the course that stopEarly ends after this epoch."""
        return Course(self.spec, self.decisions, epoch)

    def next_look(self, update: int) -> int:
        """Return the update of the look that follows the look at `update`; it may lie past the end."""
        if self._looks.every_updates:
            return update + self._looks.every_updates
        return update + (self._looks.every_epochs or 1) * self.plan.stage_at(update).updates_per_epoch

    @cached_property
    def values(self) -> dict[int, float]:
        """Return the measured values that decided stages, by the index of the stage."""
        by_update = {one.update: one.value for one in self.decisions}
        return {one.index: by_update[one.first_update] for one in self.plan.stages if one.first_update in by_update}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as `batchgrowth plan --output json` prints it.

        The plan's own JSON has no warm-up and never changes, since the trainer checks the operator's plan by it. Here a
        stage's `learningRate` is the rate of its first update with the warm-up, `learningRateTo` the rate of its last
        if that differs, and `learningRateHighest` the highest rate between them if that is above both. `gainTo` is the
        largest gain that training may measure. A stage that was decided while training has its `measured` value if it
        is finite.
        """
        plan = self.plan.to_json()
        for stage, shown in zip(self.plan.stages, plan["stages"], strict=True):
            first, highest, last = self.plan.learning_rates(stage)
            shown["learningRate"] = first
            shown.pop("learningRateTo", None)
            if last != first:
                shown["learningRateTo"] = last
            if highest > max(first, last):
                shown["learningRateHighest"] = highest
            if self.largest_gain(stage.batch_size) > 1:
                shown["gainTo"] = self.largest_gain(stage.batch_size)
        for index, value in self.values.items():
            if math.isfinite(value):
                plan["stages"][index]["measured"] = value
        return plan

    def largest_gain(self, batch_size: int) -> float:
        """Return the largest factor by which a measured gain may raise the learning rate; 1 without a gain."""
        if not self._gain.memory:
            return 1.0
        return batch_size / self.spec.batch.initial


def _signals(sums: Sequence[float]) -> Signals:
    """Return the means that a rule sees; the noise is 0 if no update had two shards."""
    examples, loss, batch_square, measured, square, trace = sums
    if not measured:
        return Signals(loss=loss / examples, batch_square=batch_square / examples, square=0.0, trace=0.0)
    return Signals(
        loss=loss / examples,
        batch_square=batch_square / examples,
        square=square / measured,
        trace=trace / measured,
    )

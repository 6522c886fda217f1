"""The gain of a learning-rate rule that follows what training measures, beside a growth of any kind."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

from batchgrowth.measuring import LARGEST_BATCH, NOT_TIMED, Look, Looks, MeasuredRule, Signals, Timing, Timings
from batchgrowth.position import Position
from batchgrowth.schedule.plan import MOST_DECISIONS, BatchDecision, make_plan
from batchgrowth.schedule.stages import Step
from batchgrowth.spec import JobSpec, LearningRate

# --- The gain of a learning-rate rule that follows what training measures, beside a growth of any kind ---

_GAIN_SUMS = 3  # examples, |G|² and trace of updates with two shards or more
_GAIN_WINDOW, _GAIN_KEPT = slice(0, _GAIN_SUMS), slice(_GAIN_SUMS, 2 * _GAIN_SUMS)
"""Parts of the memory: the sums since the last look, and those that looks keep."""


class Gain:
    """The gain of one job's learning rate. `memory` counts the numbers that it remembers; 0 if none is measured."""

    def __init__(self, rate: LearningRate, initial: int) -> None:
        """`initial` is the first batch size, which gains nothing."""
        self._of, self._windows, self._initial = rate.entry.gain, rate.settings, initial
        self.memory = 2 * _GAIN_SUMS if self._of else 0
        self._smoothing = float(self._windows.smoothing) if self._of else 0.0

    def at(self, batch_size: int, memory: Sequence[float]) -> float:
        """The factor of the learning rate for a batch of that size: 1 without a rule that measures, or before its first
        look.
        """
        if self._of is None or not memory[_GAIN_KEPT.start]:
            return 1.0
        examples, square, trace = memory[_GAIN_KEPT]
        return float(self._of(_noise_signals(examples, square, trace), self._initial, batch_size))

    def is_due(self, position: Position) -> bool:
        """Whether a look is due at this position."""
        return self._of is not None and bool(self._windows.is_due(position))

    def after(self, position: Position, noise: Sequence[float], memory: Sequence[float]) -> list[float]:
        """The memory after the update that led to `position`; `noise` are its sums, 0 if it had a single shard."""
        if self._of is None:
            return []
        window = [a + b for a, b in zip(memory[_GAIN_WINDOW], noise, strict=True)]
        if not (window[0] and self.is_due(position)):
            return [*window, *memory[_GAIN_KEPT]]
        kept = [self._smoothing * a + b for a, b in zip(memory[_GAIN_KEPT], window, strict=True)]
        return [*[0.0] * _GAIN_SUMS, *kept]


def _noise_signals(examples: float, square: float, trace: float) -> Signals:
    return Signals(loss=0.0, batch_square=0.0, square=square / examples, trace=trace / examples)


# --- The course of a training: its plan as decided so far, and the decisions that measuring adds ---
# Everything here is pure and exact in the order of its operations, so all members of a group that see the same sums
# take the same decisions. The memory of a course is a list of numbers, which the trainer keeps with the model's
# state.

__all__ = ["BatchDecision", "Course", "Measured"]

_SUMS = 6  # examples, loss, squared norms of batches; examples, |G|² and trace of updates with two shards or more
_NOISE = 3  # the last of these
_START, _FIRST, _WINDOW, _KEPT = (slice(at, at + _SUMS) for at in range(0, 4 * _SUMS, _SUMS))
"""Parts of the memory: the sums of the first update, of all until the first look, since the last look, and smoothed."""
_ALL_SUMS = _KEPT.stop
_TIMINGS = len(astuple(Timings()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The sums of one update: of its losses, and of |g|² / n over its shards of n examples with summed gradient g.

    `square` is the squared norm of the gradient summed over the batch. `timing` is that of an earlier update, for a
    rule that looks at a clock.
    """

    examples: int
    shards: int
    loss: float
    shard_squares: float
    square: float
    timing: Timing = NOT_TIMED

    def sums(self) -> tuple[float, ...]:
        """What the update adds to the sums of its window; its noise is left out if it takes more shards to measure."""
        seen = (float(self.examples), self.loss, self.square / self.examples)
        if self.shards < 2:
            return (*seen, 0.0, 0.0, 0.0)
        trace = (self.shard_squares - self.square / self.examples) / (self.shards - 1)
        squares = self.square / self.examples - trace
        noise = (float(self.examples), squares, trace * self.examples)
        return (*seen, *(noise if all(map(math.isfinite, noise)) else (0.0, 0.0, 0.0)))


class Course:
    """The decisions of a training so far, its plan, and what a further update decides."""

    def __init__(self, spec: JobSpec, decisions: Sequence[BatchDecision] = (), end: int | None = None) -> None:
        """`decisions` are those that changed the wanted batch size, in their order.

        `end` is the epoch after which stopEarly ended the job; None if it has not.
        """
        self.spec, self.decisions = spec, tuple(decisions)
        plan = make_plan(spec, self.decisions)
        self.plan = plan if end is None else plan.until(end)
        self._entry = spec.batch.growth.entry
        self._gain = Gain(spec.learning_rate, spec.batch.initial)

    @property
    def is_measured(self) -> bool:
        """Whether the batch follows what is measured."""
        return bool(self._entry.quantity)

    @property
    def measures(self) -> bool:
        """Whether batch or learning rate follow what is measured."""
        return self.is_measured or bool(self._gain.memory)

    @property
    def needs_noise(self) -> bool:
        """Whether the gradient's noise is measured: the squared norms of the shards' gradients."""
        return bool(self._entry.needs_noise or self._gain.memory)

    @property
    def quantity(self) -> str:
        """What the growth measures; empty if it is declared."""
        return str(self._entry.quantity)

    @cached_property
    def values(self) -> dict[int, float]:
        """The measured values that decided stages, by the index of the stage."""
        by_update = {one.update: one.value for one in self.decisions}
        return {one.index: by_update[one.first_update] for one in self.plan.stages if one.first_update in by_update}

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, where a stage that was decided while training has its `measured` value if it is finite."""
        plan = self.plan.to_json()
        for index, value in self.values.items():
            if math.isfinite(value):
                plan["stages"][index]["measured"] = value
        return plan

    @property
    def looks_at_clock(self) -> bool:
        """Whether the duration of updates is measured, so that only a replay repeats a run."""
        return bool(self._entry.looks_at_clock)

    def joined_by(self, decision: BatchDecision) -> "Course":
        """The course with this decision; the same course if it is known or changes nothing."""
        known = self.decisions[-1].update if self.decisions else 0
        if decision.update <= known or decision.wanted == self.plan.stages[-1].wanted:
            return self
        return Course(self.spec, (*self.decisions, decision))

    def ended(self, epoch: int) -> "Course":
        """The course that stopEarly ends after this epoch."""
        return Course(self.spec, self.decisions, epoch)

    def after(
        self, step: Step, measured: Measured, memory: Sequence[float]
    ) -> tuple["Course", BatchDecision | None, list[float]]:
        """The course after that update, the outcome of a look, if one was due, and the new memory."""
        added, own = measured.sums(), self._own
        gained = self._gain.after(step.after, added[-_NOISE:], memory[own:])
        if not self.is_measured:
            return self, None, gained
        course, decision, remembered = self._grown(step, measured, added, memory)
        remembered[own:] = gained
        return course, decision, remembered

    def is_due(self, position: Position) -> bool:
        """Whether `after` may change more than sums at this position: a look of the growth or of the gain."""
        return (self.is_measured and self._looks.is_due(position)) or self._gain.is_due(position)

    def learning_rate(self, step: Step, memory: Sequence[float]) -> float:
        """The learning rate of that update: the step's, times the gain where one is measured."""
        return step.learning_rate * self._gain.at(step.batch_size, memory[self._own :])

    def _grown(
        self, step: Step, measured: Measured, added: Sequence[float], memory: Sequence[float]
    ) -> tuple["Course", BatchDecision | None, list[float]]:
        """As `after`, of a measured growth; the gain's memory is the old one."""
        remembered = list(memory)
        if not remembered[0]:
            remembered[_START] = added
        remembered[_WINDOW] = window = [a + b for a, b in zip(memory[_WINDOW], added, strict=True)]
        timings = self._timings(remembered, measured.timing)
        if not self._is_look(step.after) or (self._entry.needs_noise and not window[3]):
            return self, None, remembered
        start, first, kept = (remembered[part] for part in (_START, _FIRST, _KEPT))
        own = remembered[self._shared : self._own]
        first = first if first[0] else window
        kept = [self._smoothing * a + b for a, b in zip(kept, window, strict=True)]
        position, wanted = step.after, self.plan.stage_at(step.position.update).wanted
        look = Look(
            position=position, start=_signals(start), first=_signals(first), now=_signals(kept),
            initial=self.spec.batch.initial, wanted=wanted, largest=self._largest(wanted), shard=self.spec.shard,
            workers=self.spec.workers.wanted, learning_rate=self.learning_rate(step, memory), timings=timings,
            memory=own,
        )  # fmt: skip
        value = self.rule.value(look)
        asked = self.rule.wanted(look, value)
        decision = BatchDecision(position.update, self.bounded(asked, wanted), value, asked)
        own = [float(number) for number in look.memory]
        if len(own) != self._own - self._shared:
            raise ValueError(f"the rule's memory has {len(own)} numbers; keep {self._own - self._shared}")
        remembered[_FIRST], remembered[_WINDOW], remembered[_KEPT] = first, [0.0] * _SUMS, kept
        remembered[self._shared : self._own] = own
        return self.joined_by(decision), decision, remembered

    @property
    def memory(self) -> int:
        """How many numbers a course remembers: sums, those of its rule, and those of the learning rate's gain."""
        return self._own + self._gain.memory

    @cached_property
    def _own(self) -> int:
        """How many of these the growth remembers; those of the gain follow."""
        growth = self.spec.batch.growth
        return self._shared + int(self._entry.memory(growth.settings)) if self.is_measured else 0

    @cached_property
    def _shared(self) -> int:
        """How many of these are sums of the course, before those of the rule."""
        return _ALL_SUMS + (_TIMINGS if self.looks_at_clock else 0)

    @cached_property
    def rule(self) -> MeasuredRule:
        """The rule, loaded at its first use."""
        rule: MeasuredRule = self._entry.load()(self.spec.batch.growth.settings)
        return rule

    @cached_property
    def _looks(self) -> Looks:
        return self.spec.batch.growth.looks or Looks()

    @cached_property
    def _smoothing(self) -> float:
        return float(self._looks.smoothing)

    def _timings(self, remembered: list[float], timing: Timing) -> Timings:
        """The timings with one more, which `remembered` takes up; none of a rule that looks at no clock."""
        if self._shared == _ALL_SUMS:
            return Timings()
        timings = Timings(*remembered[_ALL_SUMS : self._shared]).plus(timing)
        remembered[_ALL_SUMS : self._shared] = astuple(timings)
        return timings

    def _is_look(self, position: Position) -> bool:
        """Whether the rule is asked at this position: never at the end, where nothing is left to decide."""
        return not self.plan.is_done(position) and self._looks.is_due(position)

    def _largest(self, wanted: int) -> int:
        """The largest batch size within batch.maximum that may follow `wanted`."""
        return max(min(self.spec.batch.maximum, math.floor(wanted * float(self._looks.most_change))), wanted)

    def next_look(self, update: int) -> int:
        """Updates done at the look that follows the one at `update`; they may lie past the end."""
        epochs = self._looks.every_epochs or 1
        return update + (self._looks.every_updates or epochs * self.plan.stage_at(update).updates_per_epoch)

    def bounded(self, asked: float, wanted: int) -> int:
        """The batch size that may follow `wanted` if `asked` is asked for: in whole shards, within every bound.

        A batch that cannot be measured, infinity or NaN, grows to batch.maximum only, so the learning rate never
        falls because a measurement is missing.
        """
        looks, batch, shard = self._looks, self.spec.batch, self.spec.shard
        least, most = float(looks.least_change), float(looks.most_change)
        ceiling = LARGEST_BATCH if self.spec.learning_rate.entry.falls_past_maximum else batch.maximum
        if not math.isfinite(asked):
            asked, ceiling = wanted * most, max(batch.maximum, wanted)
        asked = min(asked, wanted * most)
        asked = max(asked, wanted / most if looks.may_shrink else wanted)
        if wanted / least < asked < wanted * least or len(self.decisions) == MOST_DECISIONS:
            return wanted
        return min(max(math.floor(asked / shard + 0.5) * shard, batch.initial), ceiling)


def _signals(sums: Sequence[float]) -> Signals:
    examples, loss, batch_square, measured, square, trace = sums
    return Signals(
        loss=loss / examples,
        batch_square=batch_square / examples,
        square=square / measured if measured else 0.0,
        trace=trace / measured if measured else 0.0,
    )

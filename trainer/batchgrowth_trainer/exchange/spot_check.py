"""Spot checks: now and then all members compute one shard, from the state that all of them have, and compare the bits.

The answers of workers whose arithmetic is the same must be equal, bit for bit. So a difference shows a worker that
computes wrongly (silent data corruption), or code that depends on something else than its inputs and its seed;
`verdict_of` says which, unless two workers contradict each other: drivers/generations.py then asks a third, the arbiter
(`_wrong_by_arbiter`). It replaces the workers that are wrong, and training goes back. GatherScatter and SingleProcess
check in their own drivers. The members compare their states as well, which shows a wrong step of the optimizer. The
shards of an update are computed as ever, so no bit of the weights depends on a check.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.exchange.group import swap_with_all
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.later import look_back
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import draw_seed
from batchgrowth_trainer.user_errors import seen_at

# --- Who is wrong if answers differ ---

ANSWERS = 3
"""Number of times that each of several workers computes a shard if their first answers differ."""
ANSWERS_ALONE = 5
"""Number of times that a worker without peers computes a shard if its first two answers differ."""


@dataclass(frozen=True, slots=True)
class SpotCheckVerdict:
    """Who is wrong: the workers at the places `wrong`; or the code, which has more than one answer, if `is_code`.

    If `is_open`, workers contradict each other and no majority decides: one more worker must compute the shard.
    """

    wrong: tuple[int, ...] = ()
    is_code: bool = False
    is_open: bool = False

    @property
    def is_same(self) -> bool:
        """Return whether all answers were the same."""
        return not (self.wrong or self.is_code or self.is_open)


def verdict_of(answers: Sequence[Sequence[Hashable]]) -> SpotCheckVerdict:
    """Return who is wrong; `answers` has the answers of each worker to one question, all of the same number.

    A faulty worker stands alone. If two workers contradict themselves, or three steady workers give three answers, the
    code is at fault: it depends on something else than its inputs and its seed.
    """
    counts = Counter(answer for own in answers for answer in own)
    total = counts.total()
    if len(counts) == 1:
        return SpotCheckVerdict()
    [(commonest, times)] = counts.most_common(1)
    fickle = [place for place, own in enumerate(answers) if len(set(own)) > 1]
    steady = {own[0] for own in answers if len(set(own)) == 1}
    is_slip = len(answers) == 1 and times == total - 1  # a machine errs once, code that draws seldom repeats itself
    if len(fickle) > 1 or len(steady) > 2 or (len(answers) == 1 and not is_slip):
        return SpotCheckVerdict(is_code=True)
    if 2 * times > total:
        return SpotCheckVerdict(tuple(place for place, own in enumerate(answers) if set(own) != {commonest}))
    if fickle and len(steady) == 1:
        return SpotCheckVerdict(tuple(fickle))
    return SpotCheckVerdict(is_open=True)


# --- When a check is due, and what it compares ---

SHARDS_BETWEEN = 200
"""Shards that the busiest worker computes between two checks. A check costs it one more: half a percent of its time."""
THE_STATE = "the state"
"""`Finding.what` if members differ in their weights, their buffers or their optimizer's state."""
_WHOLE_WORDS = (4, 8)  # bytes of the elements that are summed as 32-bit words


Answer = tuple[int, ...]
"""The checksums of the parts of a shard's row: each parameter's gradient, the changes of the buffers, and the loss."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found after update `update`; all members of a group find the same.

    The members of the ranks `wrong` stand alone, or have states of which none is in the majority. If members contradict
    each other about a shard and no majority decides, `answers` has their answers by rank, and None for every other
    member. `what` names the part that differs. The member's newest earlier check that found nothing was after update
    `covered`, and the newest of these that compared it with others after update `compared`.
    """

    update: int
    step: Step
    shard: int
    what: str
    wrong: tuple[int, ...]
    answers: tuple[Answer | None, ...]
    covered: int = 0
    compared: int = 0


class Found(Exception):
    """A check found a member that computes wrongly; the state of every member is in doubt."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def is_checked(spec: JobSpec) -> bool:
    """Return whether the job's workers are checked: its exchange must be exact, and its kernels deterministic."""
    return spec.verify is not False and spec.promise == "Exact"


def is_check_due(first: Step, last: Step, every: int) -> bool:
    """Return whether a check, made once in `every` updates, is due after the updates from `first` to `last`.

    This follows from the positions alone, so all members of a group get the same answer.
    """
    return first.position.update // every < last.after.update // every


def checked_every(replica: Replica, batch_size: int, workers: int) -> int:
    """Return the number of updates from one check to the next while the batch and the number of workers stay."""
    settings = replica.spec.workers
    shards = replica.plan.parts(batch_size)
    return updates_between(shards, workers, read_ahead=settings.loaders * settings.loaded_ahead)


def updates_between(shards: int, workers: int, read_ahead: int = 0) -> int:
    """Return the number of updates from one check to the next.

    A worker without peers computes the shard twice in each check, so it checks half as often. `read_ahead` is the
    number of shards that its loaders read ahead: a check waits for their reading to reach its shard.
    """
    longest_run = -(-shards // workers)
    computed = 1 if workers > 1 else 2
    return -(-SHARDS_BETWEEN * computed * (1 + read_ahead) // longest_run)


def checked_shard(spec: JobSpec, step: Step) -> int:
    """Return the shard of an update that a check after it computes, drawn from the seed and the update."""
    return draw_seed(spec.seed, "spot check", step.position.update) % step.shards


def answers_of(replica: Replica, step: Step, shard: int, times: int) -> list[Answer]:
    """Return the answers to one shard, computed `times` times with the replica's present weights."""
    answers = []
    for _ in range(times):
        row = replica.computed_aside(step, shard)
        answers.append(_answer(replica, row.row))
        replica.rows.release((row,))
    return answers


def differing_part(replica: Replica, answers: Sequence[Answer]) -> str:
    """Return the name of the first part in which these answers differ."""
    gradients = [f"the gradient of model.{span.name}" for span in replica.parameters.spans]
    names = [*gradients, "the changes of the buffers", "the loss"]
    return next(name for name, parts in zip(names, zip(*answers, strict=True), strict=True) if len(set(parts)) > 1)


def accusation(wrong: Sequence[str], others: str, what: str, place: str) -> str:
    """Return the clause that the workers `wrong` differ from `others`: in `what`, at the `place` that was checked."""
    differ = "differ from" if len(wrong) > 1 else "differs from"
    return f"{' and '.join(wrong)} {differ} {others}: {what}{place}"


def replaced(cause: str, wrong: Sequence[str]) -> str:
    """Return the accusation `cause`, followed by the clause that the workers `wrong` are replaced."""
    return f"{cause}; {'it is' if len(wrong) == 1 else 'they are'} replaced"


def fickle_code(replica: Replica, step: Step, shard: int, what: str) -> WorkloadError:
    """Return the error of code that has more than one answer to a shard; `what` names the part that differs."""
    return WorkloadError(
        f"update {step.after.update}, shard {shard}: {what} has other bits when it is computed again from the same "
        "state, so the weights would depend on which worker computes what. The code or its data use something else "
        "than their inputs and the generators that the trainer seeds: a generator of their own, the time, a count of "
        "calls. Draw from torch, numpy.random or random, and keep what changes in buffers; verify: false trains "
        f"without this check{seen_at(replica.model)}"
    )


def checksum(vector: Tensor) -> int:
    """Return the sum of the vector's bits, read as whole numbers: one changed bit changes it, on any device."""
    bits = vector.detach().view(-1).view(torch.int32 if vector.element_size() in _WHOLE_WORDS else torch.uint8)
    return int(bits.sum(dtype=torch.int64))


# --- The checks of a group's members ---


class SpotCheck:
    """The checks of one member while its group lasts; all members of the group make the same checks."""

    def __init__(self, setting: Setting) -> None:
        self._replica = setting.replica
        self._group = setting.group
        self._watchdog = setting.watchdog
        self._is_on = is_checked(setting.replica.spec)
        self._every: dict[int, int] = {}  # by batch size
        # Only members of the same arithmetic can be compared: AVX2 adds in another order than AVX512.
        self._arithmetic = int(setting.replica.arithmetic.digest[:15] or "0", 16)

    def after(self, first: Step, last: Step, *, is_last: bool) -> bool:
        """Check the members if a check is due after the updates from `first` to `last`, or if the group ends; return
        whether it was made.

        Raises Found if a member computes wrongly, and WorkloadError if the code has several answers.
        """
        if not self._is_on:
            return False
        every = self._every.get(last.batch_size)
        if every is None:
            every = self._every[last.batch_size] = checked_every(self._replica, last.batch_size, self._group.size)
        if not is_last and not is_check_due(first, last, every):
            return False
        self._check(last, checked_shard(self._replica.spec, last))
        return True

    def _check(self, step: Step, shard: int) -> None:
        group = self._group
        with self._watchdog:
            look_back(self._replica, step, shard)
        state = sum(map(checksum, self._replica.tensors().values()))
        rows = [self._computed(step, shard)]
        if group.size == 1:
            rows.append(self._computed(step, shard))
        answers = [checksum(row.row) for row in rows]
        mine = torch.tensor([self._arithmetic, _wrapped(state), *answers])
        table = [row.tolist() for row in swap_with_all(group, mine)]
        crews = _crews([row[0] for row in table])
        wrong: list[int] = []
        for crew in crews:
            # One that stands alone with its state is wrong; without a majority, nobody knows, and all of them go.
            verdict = verdict_of([[table[rank][1]] for rank in crew])
            if verdict.wrong:
                wrong += [crew[place] for place in verdict.wrong]
            elif not verdict.is_same:
                wrong += crew
        if wrong:
            raise Found(Finding(step.after.update, step, shard, THE_STATE, tuple(wrong), (None,) * group.size))
        if any(len({answer for rank in crew for answer in table[rank][2:]}) > 1 for crew in crews):
            self._judge(step, shard, rows, crews)
        self._replica.rows.release(rows)

    def _judge(self, step: Step, shard: int, rows: list[Partial], crews: Sequence[Sequence[int]]) -> None:
        """Let every member compute the shard again, and raise what the answers of all show."""
        group = self._group
        replica = self._replica
        while len(rows) < (ANSWERS_ALONE if group.size == 1 else ANSWERS):
            rows.append(self._computed(step, shard))
        mine = torch.tensor([_answer(replica, row.row) for row in rows])
        answers = [[tuple(answer) for answer in theirs.tolist()] for theirs in swap_with_all(group, mine)]
        wrong: list[int] = []
        undecided: set[int] = set()
        what = ""
        for crew in crews:
            verdict = verdict_of([answers[rank] for rank in crew])
            if verdict.is_same:
                continue
            what = differing_part(replica, [answer for rank in crew for answer in answers[rank]])
            if verdict.is_code:
                raise fickle_code(replica, step, shard, what)
            wrong += [crew[place] for place in verdict.wrong]
            if verdict.is_open:
                undecided.update(crew)
        to_judge = tuple(theirs[0] if rank in undecided else None for rank, theirs in enumerate(answers))
        raise Found(Finding(step.after.update, step, shard, what, tuple(wrong), to_judge))

    def _computed(self, step: Step, shard: int) -> Partial:
        with self._watchdog:
            return self._replica.computed_aside(step, shard)


def _crews(arithmetics: Sequence[int]) -> list[list[int]]:
    """Return groups of ranks with the same arithmetic, which can be compared; a lone member is compared with itself."""
    crews = [[rank for rank, one in enumerate(arithmetics) if one == own] for own in dict.fromkeys(arithmetics)]
    return [crew for crew in crews if len(crew) > 1 or len(arithmetics) == 1]


def _wrapped(number: int) -> int:
    """Return the number as a signed number of 64 bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _answer(replica: Replica, row: Tensor) -> Answer:
    parameters = replica.parameters
    end = parameters.length + replica.buffers.length
    parts = [*(row[span.place] for span in parameters.spans), row[parameters.length : end], row[end:]]
    return tuple(map(checksum, parts))

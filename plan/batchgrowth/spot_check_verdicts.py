"""Who is wrong if the answers of a spot check differ.

The trainer's exchange/spot_check.py says when a check is due, computes the answers and compares them, and its drivers
replace the workers.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

ANSWERS = 3
"""How often each of several workers computes a shard if their first answers differ."""
ANSWERS_ALONE = 5
"""How often a worker without peers computes a shard if its first two answers differ."""


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

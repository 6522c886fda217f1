"""Which copy of a part counts, when a part is repeated and by which worker, and what becomes of those that are late."""

from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth_trainer.drivers.stragglers import (
    LONGEST_REST,
    SHORTEST_SECONDS,
    TIMES_THE_MEDIAN,
    Gathering,
    Stragglers,
)
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.pool.membership import Ended
from batchgrowth_trainer.user_errors import DeviceFault
from batchgrowth_trainer.worker.messages import Left

PATIENCE = 60.0


class Clock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Update(Gathering):
    """A gathering whose requests are named by worker and rank."""

    def __init__(self, clock: Clock, *sizes: int, usual_pace: float | None = None) -> None:
        super().__init__(1, sizes, usual_pace, clock)
        self.clock = clock

    def ask(self, rank: int, worker: str) -> None:
        key = f"{worker}{rank}"
        request: Any = SimpleNamespace(key=key, status="pending")
        self.add(rank, worker, request)

    def ended(self, rank: int, worker: str, error: BaseException | None = None, status: str = "") -> Ended:
        """The end of a request, which the gathering follows."""
        status = status or ("finished" if error is None else "error")
        future: Any = SimpleNamespace(key=f"{worker}{rank}", status=status, exception=lambda: error)
        event = Ended(worker, self.number, future)
        self.follow(event)
        return event

    def counted(self) -> list[str]:
        return [copy.worker for copy in self.first_copies()]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def update(clock: Clock) -> Update:
    """Three parts of two shards each, which a, b and c compute."""
    made = Update(clock, 2, 2, 2)
    for rank, worker in enumerate("abc"):
        made.ask(rank, worker)
    return made


# --- when a part is overdue -------------------------------------------------------------------------------------------


def test_nothing_is_overdue_before_half_of_the_parts_have_ended(update: Update) -> None:
    update.clock.now += 1
    update.ended(1, "b")
    update.clock.now += 9
    assert update.overdue() == []
    update.ended(0, "a")
    update.clock.now += 2  # more than twice the median of one and ten seconds
    assert update.overdue() == [2]


def test_a_part_is_overdue_after_twice_the_median(update: Update) -> None:
    for worker, seconds in (("a", 1.0), ("b", 2.0)):
        update.clock.now += seconds
        update.ended("abc".index(worker), worker)
    begun = update.clock.now - 3.0
    median = (1.0 + 3.0) / 2  # b ended three seconds after it began
    update.clock.now = begun + TIMES_THE_MEDIAN * median
    assert update.overdue() == []
    update.clock.now += 0.001
    assert update.overdue() == [2]


def test_a_quick_part_has_a_tenth_of_a_second(update: Update) -> None:
    update.clock.now += 0.001
    update.ended(0, "a")
    update.ended(1, "b")
    update.clock.now += SHORTEST_SECONDS - 0.002
    assert update.overdue() == []
    update.clock.now += 0.002
    assert update.overdue() == [2]


def test_a_longer_part_may_take_longer(clock: Clock) -> None:
    """Two shards on one worker and one on the other: twice the time is nothing unusual."""
    update = Update(clock, 2, 1)
    update.ask(0, "a")
    update.ask(1, "b")
    clock.now += 1
    update.ended(1, "b")
    clock.now += 2.5
    assert update.overdue() == []
    clock.now += 1
    assert update.overdue() == [0]


def test_an_empty_part_says_nothing_about_the_pace(clock: Clock) -> None:
    """A worker beyond the number of shards ends at once, but can repeat a part."""
    update = Update(clock, 1, 1, 0)
    for rank, worker in enumerate("abc"):
        update.ask(rank, worker)
    update.ended(2, "c")
    clock.now += 3600
    assert update.overdue() == []
    update.ended(0, "a")
    assert update.overdue() == [], "a took as long"
    clock.now += 3601
    assert update.overdue() == [1]
    assert update.idle() == ["c", "a"]


def test_a_part_has_two_copies_at_most(update: Update) -> None:
    update.clock.now += 1
    update.ended(0, "a")
    update.ended(1, "b")
    update.clock.now += 5
    update.ask(2, "a")
    assert update.overdue() == []
    assert update.idle() == ["b"]
    assert update.num_backups == 1
    update.follow(Left("a"))
    assert not update.is_lost
    assert update.overdue() == [2], "its backup is lost with a, so it may have another"


def test_before_half_of_the_parts_have_ended_the_pace_is_the_usual_one(clock: Clock) -> None:
    update = Update(clock, 2, 2, usual_pace=1.0)
    update.ask(0, "a")
    update.ask(1, "b")
    assert update.pace == 1.0
    clock.now += 2 * TIMES_THE_MEDIAN
    assert update.overdue() == []
    clock.now += 1
    assert update.overdue() == [0, 1]
    update.ended(0, "a")
    assert update.pace == 2.5
    assert update.overdue() == []


def test_a_worker_that_becomes_free_later_is_idle(update: Update) -> None:
    """One that was asked is not, until it has ended, and one that is lost never is."""
    update.ended(1, "b")
    update.ended(0, "a", status="lost")
    assert update.idle() == ["b"]
    assert update.idle(["a", "b", "c", "d"]) == ["b", "d"]
    update.ask(2, "d")
    assert update.idle(["a", "b", "c", "d"]) == ["b"]


# --- which copy counts ------------------------------------------------------------------------------------------------


def backed_up(update: Update) -> Update:
    """c is slow, and a repeats its part."""
    update.clock.now += 1
    update.ended(0, "a")
    update.ended(1, "b")
    update.clock.now += 5
    update.ask(2, "a")
    update.clock.now += 1
    return update


def test_the_first_copy_counts(update: Update) -> None:
    backed_up(update)
    assert not update.is_over
    update.ended(2, "a")
    assert update.is_over
    assert update.counted() == ["a", "b", "a"]
    assert [copy.delay for copy in update.first_copies()] == [0, 0, 6]
    assert [copy.worker for copy in update.under_way()] == ["c"]
    update.clock.now += 1
    update.ended(2, "c")
    assert update.counted() == ["a", "b", "a"]


def test_the_original_may_come_first(update: Update) -> None:
    backed_up(update).ended(2, "c")
    assert update.is_over
    assert update.counted() == ["a", "b", "c"]
    assert [(copy.worker, copy.is_backup) for copy in update.under_way()] == [("a", True)]


@pytest.mark.fault("C01", "C07")
@pytest.mark.parametrize(
    "loss", ["left", "lost", "fault"], ids=["its worker has left", "its connection is lost", "its worker has a fault"]
)
@pytest.mark.parametrize(("lost", "other"), [("c", "a"), ("a", "c")], ids=["the original", "the backup"])
def test_a_lost_copy_of_two_costs_nothing(update: Update, loss: str, lost: str, other: str) -> None:
    backed_up(update)
    if loss == "left":
        update.follow(Left(lost))
    elif loss == "lost":
        update.ended(2, lost, status="lost")
    else:
        update.ended(2, lost, DeviceFault("ECC"))
    assert not update.is_lost
    assert not update.is_over
    update.ended(2, other)
    assert update.is_over
    assert not update.is_lost
    assert ["a", "b", other] == update.counted()
    assert [lost] * (loss == "fault") == list(update.faults)
    assert (lost, loss) != ("a", "fault") or "a" not in update.idle()


@pytest.mark.parametrize("faulty", ["c", "ac"], ids=["one copy", "two copies"])
def test_a_part_without_a_copy_is_lost(update: Update, faulty: str) -> None:
    if "a" in faulty:
        backed_up(update).ended(2, "a", DeviceFault("ECC of a"))
        assert not update.is_over
    update.ended(2, "c", DeviceFault("ECC of c"))
    assert update.is_over
    assert update.is_lost
    assert set(faulty) == set(update.faults)


def test_what_a_worker_has_sent_counts_though_it_leaves(update: Update) -> None:
    update.ended(0, "a")
    update.follow(Left("a"))
    update.ended(1, "b")
    update.ended(2, "c")
    assert update.is_over
    assert not update.is_lost
    assert update.counted() == ["a", "b", "c"]


def test_a_worker_that_leaves_takes_what_it_still_computes_along(update: Update) -> None:
    update.follow(Left("a"))
    assert update.is_lost


def test_the_error_of_a_workload_ends_the_run(update: Update) -> None:
    with pytest.raises(ZeroDivisionError):
        update.ended(1, "b", ZeroDivisionError())


def test_the_end_of_another_request_changes_nothing(update: Update) -> None:
    update.ended(1, "c")
    assert [copy for copy in update.first_copies() if copy.has_ended] == []


# --- the late ---------------------------------------------------------------------------------------------------------


class WorkerPool:
    """What the driver asks of it."""

    def __init__(self) -> None:
        self.done = list[tuple[Any, ...]]()
        self.overdue = set[str]()

    def ask_whether_alive(self, addresses: Any) -> None:
        self.done.append(("ask", *addresses))

    def hung(self) -> set[str]:
        found, self.overdue = self.overdue, set()
        return found

    def restart(self, addresses: Any, _note: Any, why: str = "does not answer") -> None:
        self.done += [(why, address) for address in addresses]

    def leave_out(self, address: str, fault: Exception) -> None:
        self.done.append(("left out", address, str(fault)))


@pytest.fixture
def pool() -> WorkerPool:
    return WorkerPool()


@pytest.fixture
def late(update: Update, pool: WorkerPool) -> Stragglers:
    """c, whose part a has computed."""
    backed_up(update).ended(2, "a")
    some: Any = pool
    made = Stragglers(some, lambda _: None, PATIENCE, update.clock)
    made.after(update.under_way(), update.in_time())
    return made


def be_late(update: Update, late: Stragglers) -> None:
    """c has the only part of an update, which another repeats before it ends."""
    one = Update(update.clock, 1)
    one.ask(0, "c")
    one.ask(0, "a")
    one.ended(0, "a")
    late.after(one.under_way(), one.in_time())
    late.follow(one.ended(0, "c"))


def rested(late: Stragglers) -> int:
    """The updates that c rests for."""
    count = 0
    while late.rests("c"):
        late.after([], ["a", "b"])
        count += 1
    return count


def test_a_worker_that_is_late_again_and_again_rests(update: Update, late: Stragglers) -> None:
    """Not after the first time; it begins anew with one that was in time, or as another process."""
    late.follow(update.ended(2, "c"))
    assert rested(late) == 0
    found = []
    for _ in range(8):
        be_late(update, late)
        assert "c" not in late, "it can repeat the parts of others"
        found.append(rested(late))
    assert found == [4, 8, 16, 32, 64, 128, LONGEST_REST, LONGEST_REST]
    late.after([], ["c"])
    be_late(update, late)
    assert rested(late) == 0
    be_late(update, late)
    assert late.rests("c")
    late.follow(Left("c"))
    assert not late.rests("c")
    be_late(update, late)
    assert rested(late) == 0


def test_a_late_worker_is_late_until_it_ends(update: Update, late: Stragglers) -> None:
    assert "c" in late
    assert "a" not in late
    late.follow(update.ended(1, "c"))
    assert "c" in late, "that was another request"
    late.follow(update.ended(2, "c"))
    assert "c" not in late


def test_a_late_worker_that_has_left_is_forgotten(late: Stragglers, pool: WorkerPool) -> None:
    late.follow(Left("c"))
    late.watch()
    assert "c" not in late
    assert pool.done == []


@pytest.mark.fault("C01")
def test_a_late_worker_whose_connection_is_lost_is_late_until_it_has_left(update: Update, late: Stragglers) -> None:
    """The driver learns that before the scheduler, which has not removed it yet."""
    late.follow(update.ended(2, "c", status="lost"))
    assert "c" in late
    late.follow(Left("c"))
    assert "c" not in late


@pytest.mark.fault("C07")
def test_a_late_worker_with_a_fault_is_left_out(update: Update, late: Stragglers, pool: WorkerPool) -> None:
    late.follow(update.ended(2, "c", DeviceFault("ECC")))
    assert pool.done == [("left out", "c", "ECC")]
    assert "c" not in late


def late_error(update: Update) -> Ended:
    future: Any = SimpleNamespace(key="c2", status="error", exception=ZeroDivisionError)
    return Ended("c", update.number, future)


def test_another_error_of_a_late_worker_is_ignored(update: Update, late: Stragglers, pool: WorkerPool) -> None:
    late.follow(late_error(update))
    assert "c" not in late
    assert pool.done == []


@pytest.mark.fault("C09")
def test_a_late_worker_that_hangs_is_restarted(update: Update, late: Stragglers, pool: WorkerPool) -> None:
    """It is asked every now and then, without waiting for the answer; one that answers has a minute more."""
    late.watch()
    assert pool.done == []
    update.clock.now += PATIENCE + 1
    late.watch()
    late.watch()
    assert pool.done == [("ask", "c")]
    pool.overdue = {"c"}
    late.watch()
    assert pool.done[-1] == ("does not answer", "c")
    update.clock.now += membership.STUCK_SECONDS - 2
    late.watch()
    assert (membership.STUCK, "c") not in pool.done
    update.clock.now += 2
    late.watch()
    assert (membership.STUCK, "c") == pool.done[-1]

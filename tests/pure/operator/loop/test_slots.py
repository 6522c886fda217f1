"""Whose pass runs next: a change goes before what is only due."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.loop.queue import Passes, PassResult, Slots
from hypothesis import given
from hypothesis import strategies as st

A, B, C, D, E = (Key("default", name) for name in "abcde")


class Hall:
    """Passes that hold their slots until they are told to end; `running` are those with a slot, in order."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._ends: dict[Key, asyncio.Event] = {}
        self.running: list[Key] = []

    async def enter(self, key: Key, *, patient: bool = False) -> None:
        self._ends[key] = asyncio.Event()
        self._tasks[key] = asyncio.create_task(self._hold(key, patient))
        await settled()

    async def _hold(self, key: Key, patient: bool) -> None:
        async with self.slots.slot(key, patient=patient):
            self.running.append(key)
            try:
                await self._ends[key].wait()
            finally:
                self.running.remove(key)

    async def end(self, key: Key) -> None:
        self._ends[key].set()
        await self._tasks[key]
        await settled()

    async def cancel(self, *keys: Key) -> None:
        for key in keys:
            self._tasks[key].cancel()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def scene(play: Callable[[Hall], Coroutine[Any, Any, None]], most: int = 3, most_patient: int = 2) -> None:
    async def played() -> None:
        await asyncio.wait_for(play(Hall(Slots(most, most_patient))), 10)

    asyncio.run(played())


def test_changes_go_before_what_is_due() -> None:
    async def play(hall: Hall) -> None:
        for key in (A, B, C):
            await hall.enter(key, patient=True)
        assert hall.running == [A, B], "one slot is kept for changes"
        await hall.enter(D)
        await hall.enter(E)
        assert hall.running == [A, B, D]
        await hall.end(A)
        assert hall.running == [B, D, E], "the change goes first, though it came last"
        await hall.end(D)
        assert hall.running == [B, E, C]

    scene(play)


def test_one_slot_is_kept_for_what_is_due() -> None:
    async def play(hall: Hall) -> None:
        for key in (A, B, C):
            await hall.enter(key)
        assert hall.running == [A, B]
        await hall.enter(D, patient=True)
        await hall.enter(E, patient=True)
        assert hall.running == [A, B, D]
        await hall.end(D)
        assert hall.running == [A, B, E]
        await hall.end(A)
        assert hall.running == [B, E, C]

    scene(play)


def test_a_change_while_it_waits() -> None:
    async def play(hall: Hall) -> None:
        for key in (A, B, C):
            await hall.enter(key, patient=True)
        hall.slots.hurry(C)
        await settled()
        assert hall.running == [A, B, C]
        hall.slots.hurry(A)  # which runs already
        hall.slots.hurry(D)  # which does not wait
        await hall.end(C)
        assert hall.running == [A, B]
        await hall.enter(C, patient=True)
        assert hall.running == [A, B], "A and B are still patient"

    scene(play)


def test_cancelled_passes_take_no_slot() -> None:
    async def play(hall: Hall) -> None:
        for key in (A, B, C, D):
            await hall.enter(key)
        assert hall.running == [A, B]
        await hall.cancel(C)
        await hall.cancel(A)
        assert hall.running == [B, D]
        await hall.enter(E)
        await hall.cancel(B, E)
        await hall.enter(C)
        assert hall.running == [D, C]

    scene(play)


@given(
    most=st.integers(2, 4), most_patient=st.integers(1, 4),
    moves=st.lists(st.tuples(st.sampled_from((A, B, C, D, E)), st.sampled_from("upeh"))),
)  # fmt: skip
def test_slots_are_neither_lost_nor_lent_twice(most: int, most_patient: int, moves: list[tuple[Key, str]]) -> None:
    """Whatever comes, goes and hurries: no slot is free while a job waits that may have it."""

    async def play(hall: Hall) -> None:
        inside: dict[Key, bool] = {}
        for key, move in moves:
            if move in "up" and key not in inside:
                inside[key] = move == "p"
                await hall.enter(key, patient=inside[key])
            elif move == "e" and key in hall.running:
                await hall.end(key)
                del inside[key]
            elif move == "h" and key in inside:
                hall.slots.hurry(key)
                inside[key] = inside[key] and key in hall.running
                await settled()
            patient = sum(inside[each] for each in hall.running)
            urgent = len(hall.running) - patient
            waiting = {is_patient for each, is_patient in inside.items() if each not in hall.running}
            is_full = urgent + patient == most
            assert urgent + patient <= most
            assert urgent < most
            assert patient <= most_patient
            assert False not in waiting or is_full or urgent == most - 1
            assert True not in waiting or is_full or patient == most_patient
        await hall.cancel(*inside)

    scene(play, most, most_patient)


def test_milestones_are_not_behind_the_progress_of_others() -> None:
    """While every job's progress is due, and each pass for it takes long, a change is handled at once."""
    begun: list[Key] = []

    async def played() -> None:
        over = asyncio.Event()

        async def make_pass(key: Key, _: object) -> PassResult:
            begun.append(key)
            if len(begun) > len(jobs):
                await over.wait()
            return PassResult()

        jobs = [Key("default", f"job-{number}") for number in range(40)]
        queues = Passes(make_pass)
        for job in jobs:
            queues.wake(job)
        await asyncio.sleep(0.2)  # all have passed, and are no longer debounced
        begun_before = len(begun)
        for job in jobs:
            queues.wake(job, 0.01)
        await asyncio.sleep(0.2)
        patient = len(begun) - begun_before
        queues.wake(jobs[-1])
        await asyncio.sleep(0.1)
        over.set()
        await queues.stop()

        assert (len(jobs), 4) == (begun_before, patient)
        assert jobs[-1] == begun[begun_before + patient]

    asyncio.run(asyncio.wait_for(played(), 10))

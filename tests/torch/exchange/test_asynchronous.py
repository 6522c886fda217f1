"""Hogwild and Downpour, whose weights differ from run to run: what holds all the same."""

import csv
import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import Interrupted, WorkloadError
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.drivers import hogwild
from batchgrowth_trainer.exchange.downpour import BoundedStaleness
from batchgrowth_trainer.exchange.group import Group, LoneGroup, PeerLost
from batchgrowth_trainer.exchange.strategy import Round, Setting, strategy_of
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.training import Options, train
from hypothesis import given
from hypothesis import strategies as st
from threads import Fake, together

NET = "workload.entrypoint=small:net"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


# --- Hogwild ----------------------------------------------------------------------------------------------------------


def threads(number: int) -> str:
    return f"exchange={{type: Hogwild, hogwild: {{threads: {number}}}}}"


def is_a_thread() -> bool:
    """Whether this is one of Hogwild's."""
    return threading.current_thread().name.startswith("hogwild")


@pytest.mark.parametrize("optimizer", ["SGD", "{type: AdamW, averaging: {decay: '0.9'}}"])
def test_one_thread_is_a_single_process(small_job: Any, tmp_path: Path, optimizer: str) -> None:
    """Bit for bit, with dropout and batch norm."""
    changes = NET, "optimizer={type: SGD}" if optimizer == "SGD" else f"optimizer={optimizer}"
    alone = train(small_job(*changes), Options(output_dir=tmp_path / "alone"))
    one = train(small_job(*changes, threads(1)), Options(output_dir=tmp_path / "one"))
    assert alone["weightsSha256"] == one["weightsSha256"]
    assert alone["accuracy"] == one["accuracy"]


@pytest.fixture
def abreast(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """A function (threads) -> a list of the threads that computed; all of them compute their first update at once."""

    def met(number: int) -> list[int]:
        barrier, seen, partials = threading.Barrier(number), list[int](), Replica.partials

        def at_once(self: Replica, *given: Any, **named: Any) -> Any:
            own = threading.get_ident()
            if is_a_thread() and own not in seen:
                seen.append(own)
                barrier.wait(10)
            return partials(self, *given, **named)

        monkeypatch.setattr(Replica, "partials", at_once)
        return seen

    return met


@pytest.mark.parametrize("optimizer", ["{type: SGD}", "{type: Torch, torch: {optimizer: torch.optim:NAdam}}"])
def test_threads_share_the_weights_and_the_plan(
    small_job: Any, tmp_path: Path, abreast: Callable[[int], list[int]], optimizer: str
) -> None:
    """Each update of the plan is made once, by one of the threads, of which all compute."""
    job = small_job(
        "workload.entrypoint=small:plain", threads(3), f"optimizer={optimizer}", "epochs=15",
        "batch={initial: 10, maximum: 10, shard: 5, growth: {type: Constant}}",
    )  # fmt: skip
    seen = abreast(3)
    summary = train(job, Options(output_dir=tmp_path))
    assert len(set(seen)) == 3
    table = rows(tmp_path)
    assert list(range(1, make_plan(job.spec).updates + 1)) == [int(row["update"]) for row in table]
    seconds = [float(row["seconds"]) for row in table]
    assert seconds == sorted(seconds)
    assert summary["finalLoss"] < float(table[0]["loss"]) / 2


def test_threads_stop_and_go_on(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requested stop ends a round after the updates under way, and what is done is the beginning of the plan."""
    job = small_job(NET, threads(2))
    taken, partials, stopped = threading.Event(), Replica.partials, threading.Event()
    monkeypatch.setattr(hogwild, "_LOOK_SECONDS", 0.01)

    def slow(self: Replica, *given: Any, **named: Any) -> Any:
        if is_a_thread():
            taken.set()
            stopped.wait(10)
        return partials(self, *given, **named)

    def stop() -> bool:
        if taken.is_set() and not stopped.is_set():
            threading.Timer(0.1, stopped.set).start()
        return taken.is_set()

    with monkeypatch.context() as patched:
        patched.setattr(Replica, "partials", slow)
        with pytest.raises(Interrupted, match=r"stopped after update [12];"):
            train(job, Options(output_dir=tmp_path), stop_requested=stop)
    train(job, Options(output_dir=tmp_path, resume=True))
    assert list(range(1, make_plan(job.spec).updates + 1)) == [int(row["update"]) for row in rows(tmp_path)]


def test_the_error_of_a_thread_ends_the_run(small_job: Any, tmp_path: Path) -> None:
    job = small_job("workload.entrypoint=small:diverging", threads(3), "epochs=40")
    with pytest.raises(WorkloadError, match="is not finite"):
        train(job, Options(output_dir=tmp_path))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hogwild")]


def test_an_error_of_the_users_code_in_a_thread_has_its_line(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_late.py").write_text(
        "import small\n\ncalls = []\n\n\ndef net():\n    made = small.plain()\n    made.model[0].register_forward_hook"
        "(fail)\n    return made\n\n\ndef fail(*_):\n    calls.append(1)\n    assert len(calls) < 30, 'late'\n"
    )
    job = small_job("workload.entrypoint=failing_late:net", threads(2))
    with pytest.raises(WorkloadError, match=r"update \d+, shard \d.*AssertionError: late .*failing_late.py:14"):
        train(job, Options(output_dir=tmp_path / "run"))


def test_a_round_that_fails_leaves_the_state_before_it(small_job: Any, make_replica: Any) -> None:
    """So the weights are those of the position."""
    replica = make_replica(small_job(threads(2)), small.net())
    before = {name: vector.clone() for name, vector in replica.tensors().items()}
    calls: list[int] = []

    def fail_at_the_fifth() -> None:
        calls.append(1)
        if len(calls) == 9:
            raise WorkloadError("fifth")

    replica.on_shard = fail_at_the_fifth

    class NoStop:
        stop_requested = staticmethod(lambda: False)

    with hogwild._advance(replica) as advance, pytest.raises(WorkloadError, match="fifth"):
        advance(NoStop(), replica)  # type: ignore[arg-type]
    assert replica.position.update == 0
    assert all(torch.equal(before[name], vector) for name, vector in replica.tensors().items())


# --- Downpour ---------------------------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 60), st.integers(0, 6), st.integers(1, 6))
def test_no_gradient_is_staler_than_allowed(data: st.DataObject, updates: int, maximum: int, workers: int) -> None:
    """For any order in which workers push; each update is made once, and some worker can always go on."""
    bounded, idle, made = BoundedStaleness(updates, maximum), set(range(workers)), []
    while not bounded.is_over:
        while idle and bounded.may_begin():
            bounded.begin(idle.pop())
        assert bounded.under_way
        rank = data.draw(st.sampled_from(sorted(bounded.under_way)))
        made.append(bounded.end(rank))
        idle.add(rank)
    assert list(range(updates)) == sorted(made)
    assert max(bounded.staleness) <= min(maximum, updates - 1)


@pytest.mark.parametrize("maximum", [0, 1, 5, 20])
def test_a_slow_worker_holds_the_others_up_only_at_the_bound(maximum: int) -> None:
    """While it computes one gradient, the others make as many updates as its staleness may be, and no fewer."""
    bounded, idle = BoundedStaleness(100, maximum), {1, 2, 3}
    bounded.begin(0)
    while idle and bounded.may_begin():
        rank = idle.pop()
        bounded.begin(rank)
        bounded.end(rank)
        idle.add(rank)
    assert maximum == len(bounded.staleness)
    bounded.end(0)
    assert maximum == bounded.staleness[-1]
    assert bounded.may_begin()


def downpour(maximum: int = 16) -> str:
    return f"exchange={{type: Downpour, downpour: {{maximumStaleness: {maximum}}}}}"


def rounds(replica: Replica, group: Group, check: Callable[[], None] = lambda: None) -> list[Round]:
    """The rounds of a member, to the end of the plan."""
    strategy, done = strategy_of(Setting(replica, group, nullcontext(), check)), []
    while not replica.plan.is_done(replica.position):
        done.append(strategy.round(lambda: False))
    return done


@pytest.mark.parametrize("members", [1, 2, 3])
def test_workers_in_turn_are_a_single_process(small_job: Any, tmp_path: Path, members: int) -> None:
    """Bit for bit, with an average, dropout and batch norm: one worker, or several of which one computes at a time."""
    changes = "optimizer={type: AdamW, averaging: {decay: '0.9'}}", NET
    alone = train(small_job(*changes), Options(output_dir=tmp_path))
    job = small_job(*changes, downpour(16 if members == 1 else 0))

    def run(group: Group) -> Replica:
        replica = replicas.pop()
        assert all(one.figures.largest_staleness == 0 for one in rounds(replica, group))
        return replica

    replicas = [built(job) for _ in range(members)]
    for replica in [run(LoneGroup())] if members == 1 else together(members, run)[0]:
        assert alone["weightsSha256"] == weights_sha256(replica.state_dict())


def built(job: Any) -> Replica:
    return build_replica(job.spec)


def test_all_members_have_one_state_after_a_round(small_job: Any) -> None:
    """The weights, the buffers, and what the optimizer keeps; each update of the plan is made once."""
    job = small_job(downpour(4), "optimizer={type: Adagrad}", "epochs=6")

    def run(group: Group) -> tuple[list[Round], Replica]:
        replica = replicas.pop()
        return rounds(replica, group), replica

    replicas = [built(job) for _ in range(3)]
    results, members = together(3, run)
    (done, first), *others = results
    updates = [step.position.update for one in done for step, _ in one.done]
    assert list(range(make_plan(job.spec).updates)) == updates
    staleness = [(one.figures.mean_staleness, one.figures.largest_staleness) for one in done]
    assert all(mean is not None and largest is not None and 0 <= mean <= largest <= 4 for mean, largest in staleness)
    assert any(largest for _, largest in staleness)
    for theirs, replica in others:
        assert [one.done for one in done] == [one.done for one in theirs]
        assert all(torch.equal(value, replica.tensors()[name]) for name, value in first.tensors().items())

    # A worker pushes rows; the server sends each its update and the weights, and at a round's end the state to both.
    pushed = [divmod(member.bytes_sent, 4 * first.length) for member in members[1:]]
    assert [0, 0] == [rest for _, rest in pushed]
    ordered = sum(rows for rows, _ in pushed) * (16 + sum(v.nbytes for v in first.model_tensors().values()))
    ends = sum(16 + 8 * (3 + len(one.done)) + sum(v.nbytes for v in first.tensors().values()) for one in done)
    assert ordered + 2 * ends == members[0].bytes_sent


def tell_after(updates: int, server: Replica, enough: threading.Event) -> None:
    """Sets the event once the server has begun so many updates."""
    made, take_step = list[int](), server.take_step

    def counted(*given: Any) -> Any:
        made.append(1)
        if len(made) == updates:
            enough.set()
        return take_step(*given)

    server.take_step = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_member_is_waited_for_at_the_bound_alone(small_job: Any, slow: int) -> None:
    """It computes one gradient until no other can go on: as many updates later as allowed."""
    job, bound = small_job(downpour(5), "batch={initial: 3, maximum: 3, shard: 3, growth: {type: Constant}}"), 5
    replicas, enough = [built(job) for _ in range(3)], threading.Event()

    def run(group: Fake) -> Round:
        replica = replicas[group.rank]
        if group.rank == slow:
            replica.on_shard = lambda: bool(enough.wait(2)) and None
        if group.rank == 0:
            tell_after(bound, replica, enough)
        return strategy_of(Setting(replica, group, nullcontext(), lambda: None)).round(lambda: False)

    results, _ = together(3, run)
    assert enough.is_set()
    assert bound == results[0].figures.largest_staleness


def test_a_requested_stop_makes_the_round_short(small_job: Any) -> None:
    replicas = [built(small_job(downpour())) for _ in range(2)]

    def run(group: Fake) -> Round:
        replica = replicas[group.rank]
        strategy = strategy_of(Setting(replica, group, nullcontext(), lambda: None))
        return strategy.round(lambda: group.rank == 0)

    for done in together(2, run)[0]:
        assert done.stop
        assert len(done.done) == 2


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_member_leaves_the_state_before_the_round(small_job: Any, lost: int) -> None:
    """It dies while it computes a gradient, after the server has made two updates."""
    job = small_job(downpour(4), NET)
    replicas = [built(job) for _ in range(2)]
    before = [{name: vector.clone() for name, vector in replica.tensors().items()} for replica in replicas]
    enough, over = threading.Event(), threading.Event()

    def check() -> None:
        if over.is_set():
            raise PeerLost("the generation is over")

    def die() -> None:
        assert enough.wait(30)
        over.set()
        raise PeerLost("died")

    def run(group: Fake) -> None:
        replica = replicas[group.rank]
        if group.rank == lost:
            replica.on_shard = die
        if group.rank == 0:
            tell_after(2, replica, enough)
        with pytest.raises((PeerLost, queue.Empty)):
            strategy_of(Setting(replica, group, nullcontext(), check)).round(lambda: False)

    together(2, run)
    for replica, start in zip(replicas, before, strict=True):
        assert replica.position == Position()
        assert all(torch.equal(start[name], vector) for name, vector in replica.tensors().items())


def test_a_gradient_that_is_not_finite_ends_the_run(small_job: Any) -> None:
    replica = built(small_job("workload.entrypoint=small:diverging", downpour(), "epochs=40"))
    with pytest.raises(WorkloadError, match="is not finite"):
        rounds(replica, LoneGroup())

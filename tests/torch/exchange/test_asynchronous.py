"""Hogwild and Downpour, whose weights differ from run to run: what holds all the same."""

import csv
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import Interrupted, WorkloadError
from batchgrowth.plan import make_plan
from batchgrowth_trainer.drivers import hogwild
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.training import Options, train

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
        "workload.entrypoint=small:plain", threads(3), f"optimizer={optimizer}", "epochs=30",
        "batch={initial: 10, maximum: 10, shard: 5, growth: {type: Constant}}",
    )  # fmt: skip
    seen = abreast(3)
    summary = train(job, Options(output_dir=tmp_path))
    assert 3 == len(set(seen))
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
    import small

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
    assert 0 == replica.position.update
    assert all(torch.equal(before[name], vector) for name, vector in replica.tensors().items())

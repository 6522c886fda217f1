"""Processes that read ahead: the same batches in the same order, with the same draws, and an end."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth.plan import Plan, Step
from batchgrowth.position import Position
from batchgrowth_trainer.drivers.single_process import only_one
from batchgrowth_trainer.replica import loaders as module
from batchgrowth_trainer.replica.data import Reader, Request
from batchgrowth_trainer.replica.evaluation import evaluate
from batchgrowth_trainer.replica.loaders import Loaders, reader_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import ReadFault
from batchgrowth_trainer.workload import Workload
from small import FEATURES, data, net
from torch import Tensor


class Drawn:
    """Examples that draw from all three generators, and tell which process read them."""

    def __init__(self, bad: int = -1) -> None:
        self.inner, self.bad = data(300), bad

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.bad:
            raise FileNotFoundError("images/7.png")
        inputs, target = self.inner[index]
        noise = torch.rand(FEATURES) + np.random.rand() + random.random()
        return inputs + 0.1 * noise, target


class Whose(Drawn):
    """Gives the id of the process that reads as its input."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(float(os.getpid())), torch.tensor(index)


def workload(train: Any = None) -> Workload:
    torch.manual_seed(1)
    base, drawn = net(), Drawn()
    return Workload(
        model=base.model, loss=base.loss, train=train or drawn, test=drawn, metrics=base.metrics, augment=base.augment
    )


def requests(numbers: range) -> Iterator[Request]:
    return (Request(None, torch.arange(number, number + 3), number) for number in numbers)


@pytest.fixture
def loaders() -> Iterator[Any]:
    """A function: loaders of a workload with that training set."""
    made: list[Reader] = []

    def make(train: Any, processes: int, ahead: int = 2) -> Reader:
        made.append(reader_of(workload(train), processes, ahead))
        return made[-1]

    yield make
    for each in made:
        each.close()


def trained(replica: Replica, workers: int) -> dict[str, Tensor]:
    """The state after an epoch with evaluations, by a member that expects the first of so many runs, and has all."""
    for turn in range(11):
        step = replica.plan.step_at(replica.position)
        cut = max(1, step.shards // workers)
        ahead = {"runs": lambda later: (0, max(1, later.shards // workers))}
        parts = [replica.partials(step, run, **ahead) for run in ((0, cut), (cut, step.shards)) if run[0] < run[1]]
        rows = [part.row for some in parts for part in some]
        replica.commit(step, torch.stack(rows).sum(0))
        if turn % 4 == 3:
            evaluate(replica, 0, 1, only_one)
    replica.reader.close()
    return {name: tensor.clone() for name, tensor in replica.tensors().items()}


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_loaders_gives_the_same_weights(
    small_job: Any, make_replica: Any, processes: int, workers: int
) -> None:
    """Also where what is read ahead is not what comes: another member's shards, and evaluations in between."""
    alone, with_ = (
        trained(make_replica(small_job(f"workers.loaders={number}"), workload()), workers) for number in (0, processes)
    )
    assert all(torch.equal(alone[name], tensor) for name, tensor in with_.items())


LOOKS = "growth: {type: LossRatio, looks: {everyUpdates: 3, leastChange: '1.01'}}"
MEASURED = f"batch={{initial: 8, maximum: 32, shard: 16, {LOOKS}}}"


def test_a_measured_growth_drops_what_was_read_for_the_old_batch(small_job: Any, make_replica: Any) -> None:
    """The first shard of the next update keeps its seed, but gets more examples than were read ahead for it."""
    alone, with_ = (make_replica(small_job(f"workers.loaders={number}", MEASURED), workload()) for number in (0, 1))
    states = [trained(replica, 1) for replica in (alone, with_)]
    assert any(later.wanted > 8 for later in alone.growth.course.decisions), "this test would show nothing"
    assert all(torch.equal(states[0][name], tensor) for name, tensor in states[1].items())


def test_what_is_expected_is_read_ahead_by_all_of_them(loaders: Any) -> None:
    reading, seen = loaders(Whose(), 2), []
    for number in range(40):
        inputs, target = reading.read(*wanted(number))
        assert [number, number + 1, number + 2] == target.tolist()
        seen.append(int(inputs[0]))
    assert os.getpid() not in seen
    assert len(set(seen)) == 2


def test_an_update_with_unknown_followers_plans_none_of_them(
    small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Downpour, whose server says after each update which is the next."""
    replica = make_replica(small_job("workers.loaders=1"), workload())
    step, step_at, planned = replica.plan.step_at(replica.position), Plan.step_at, list[Position]()

    def counted(plan: Plan, at: Position) -> Step:
        planned.append(at)
        return step_at(plan, at)

    monkeypatch.setattr(Plan, "step_at", counted)
    replica.partials(step, (0, step.shards))
    replica.reader.close()
    assert planned == []


def wanted(number: int) -> tuple[Request, Any]:
    [request] = requests(range(number, number + 1))
    return request, lambda: requests(range(number, 80))


def test_what_was_read_ahead_counts_only_for_the_same_examples(loaders: Any) -> None:
    """As many of them with the same seed are not enough: a growth moves where a later shard begins."""
    reading = loaders(Whose(), 1)
    reading.read(*wanted(0))
    moved = Request(None, torch.arange(20, 23), 1)
    _, target = reading.read(moved, lambda: iter([moved]))
    assert target.tolist() == [20, 21, 22]


def test_nothing_is_read_by_others_where_tensors_are_indexed(loaders: Any) -> None:
    before = psutil.Process().children()
    loaders(data(), 2)
    assert before == psutil.Process().children()


def test_without_shared_memory_the_worker_reads_by_itself(
    loaders: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose /dev/shm has 64 MiB."""
    monkeypatch.setattr(module, "LEAST_SHARED_BYTES", 1 << 60)
    inputs, _ = loaders(Whose(), 2).read(*wanted(0))
    assert os.getpid() == int(inputs[0])
    assert "workers.loaders is ignored: /dev/shm has" in caplog.text


def test_an_error_of_the_data_set_is_that_of_its_example(loaders: Any) -> None:
    reading = loaders(Drawn(bad=4), 2)
    for number in range(2):
        reading.read(*wanted(number))
    with pytest.raises(DataError, match=r"example 4 of Drawn: FileNotFoundError: images/7\.png") as raised:
        reading.read(*wanted(2))
    assert not isinstance(raised.value, ReadFault)


@pytest.mark.fault("D04")
def test_one_that_dies_is_a_fault_of_the_worker(loaders: Any) -> None:
    others = psutil.Process().children()
    reading = loaders(Whose(), 2)
    reading.read(*wanted(0))
    for child in psutil.Process().children():
        if child not in others:
            child.send_signal(signal.SIGKILL)
    with pytest.raises(ReadFault, match="a process that reads examples has died, perhaps because memory ran out"):
        [reading.read(*wanted(number)) for number in range(1, 20)]


class Unsent:
    """Fails when it is pickled, as a tensor does."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> str:
        raise RuntimeError(self.error)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        ("unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)", True),
        ("Cowardly refusing to serialize non-leaf tensor which requires_grad", False),
    ],
)
def test_a_batch_that_cannot_be_sent_says_why(error: str, passes: bool) -> None:
    unsent = replace(workload(), collate=lambda examples: (Unsent(error), torch.zeros(len(examples))))
    with closing(Loaders(unsent, 1, 1)) as reading:
        for number in range(2):  # the process goes on after the first
            with pytest.raises(ReadFault if passes else WorkloadError, match=re.escape(error)) as raised:
                reading.read(*wanted(number))
            assert "sending a batch from a process of workers.loaders raised RuntimeError" in str(raised.value)


ORPHANS = """
import os, signal, psutil
from test_loaders import Loaders, Whose, wanted, workload
made = Loaders(workload(Whose()), 2, 2)
made.read(*wanted(0))
print(*(child.pid for child in psutil.Process().children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_they_end_when_their_parent_is_killed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False, env=environment)
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) == 2, done.stderr
    end = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.fault("G03")
def test_no_other_user_opens_the_memory_that_loaders_share() -> None:
    before = os.umask(0)
    try:
        storage = torch.empty(1 << 16).untyped_storage()  # a storage that is freed closes its descriptor
        shared, _ = storage._share_fd_cpu_()
        assert os.fstat(shared).st_mode & 0o077 == 0
    finally:
        os.umask(before)

"""Replicas and runs in this process, without Dask."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.exchange.strategy import prepare_exchange
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload

USER_CODE = Path(__file__).parent / "user_code"
sys.path.append(str(USER_CODE))  # so that an entrypoint can name small:net, and the tests can import it

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the whole tier as `smoke`: `make test` runs it beside a sample of others, which wait for processes."""
    for item in items:
        if "/tests/torch/" in item.path.as_posix():
            item.add_marker(pytest.mark.smoke)


@pytest.fixture(autouse=True)
def _one_thread(nothing_left_behind: None) -> Iterator[None]:
    """The number of threads belongs to the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def at_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is due at every update."""
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: True)


@pytest.fixture
def interrupted() -> Callable[[Path, int], Path]:
    """A function: a copy of a finished run's folder, named by the update, as if it had stopped there."""

    def copied(whole: Path, update: int) -> Path:
        folder = whole.with_name(f"from-{update}")
        shutil.copytree(whole, folder)
        (folder / "summary.json").unlink()
        for path in (folder / "checkpoints").iterdir():
            if int(path.name.split("-")[1]) > update:
                shutil.rmtree(path)
        return folder

    return copied


@pytest.fixture
def make_replica() -> MakeReplica:
    """A replica of a job and a workload, on the CPU, at the first update."""

    def made(job: BatchGrowthJob, workload: Workload) -> Replica:
        replica = Replica(job.spec, workload, torch.device("cpu"))
        prepare_exchange(replica)
        return replica

    return made

"""A trainer that was given up, because its node was lost, and that still works: its successor fences it off."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from batchgrowth.contract.progress import Progress
from batchgrowth.errors import Superseded

JOB = (
    "epochs=4",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers.maximum=1",
    "exchange.timeoutSeconds=20",
    "checkpoint.everySeconds=1",
)
LONGEST = 240  # seconds; on a quiet machine a run takes ten
SLOW = ("workload.entrypoint=slow_digits:workload", "workload.arguments={seconds: '0.05'}")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, "workload.arguments={hidden: '8'}")


class Trainers:
    """Starts of one job's trainer, on the scheduler and workers of `pods`."""

    def __init__(self, pods: Any, job: Any) -> None:
        self.pods = pods
        (pods.folder / "job.json").write_text(job.model_dump_json(by_alias=True, exclude_none=True))

    def start(self, number: int, folder: str = "out", on: int = 0) -> Any:
        return self.pods._start("numbered_start", str(number), self.pods.address, folder, on=on)

    def progress(self, number: int) -> Progress | None:
        try:
            return Progress.from_json((self.pods.folder / f"progress-{number}.json").read_text())
        except FileNotFoundError:
            return None

    def text(self) -> str:
        """The output of all starts."""
        return "\n".join(path.read_text() for path in self.pods.folder.glob("*numbered_start.txt"))

    def trains(self, number: int) -> bool:
        progress = self.progress(number)
        return progress is not None and progress.workers > 0 and bool(progress.checkpoint_update)


def check(trainers: Trainers, expected: str) -> None:
    """The same weights as of one process, and each update once in the history."""
    trainers.pods.check(expected)
    assert "Superseded: " in trainers.text()
    assert "Traceback" not in trainers.text()


@pytest.mark.fault("C25", "D13")
def test_one_that_cannot_be_reached_leaves_its_folder(pods: Any, digits_job: Any, expected: str) -> None:
    """The later start waits for the folder's lock, and claims the scheduler, where the earlier one reads it.

    One that comes to the scheduler after a later start gives no order at all.
    """
    pods.scheduler()
    pods.worker()
    trainers = Trainers(pods, digits_job(*JOB, *SLOW))
    first = trainers.start(1)
    pods.until(lambda: trainers.trains(1))
    first.send_signal(signal.SIGSTOP)  # so that it does not finish while the second one starts

    second = trainers.start(2)
    pods.until(lambda: 2 == pods.text().count("Run out-of-band function 'take'"))
    first.send_signal(signal.SIGCONT)

    assert Superseded.exit_code == first.wait(timeout=LONGEST)
    assert second.wait(timeout=LONGEST) == 0
    check(trainers, expected)
    assert Superseded.exit_code == trainers.start(1, "elsewhere").wait(timeout=LONGEST)
    assert "start 2 of the trainer drives the job; this one, start 1, ends" in trainers.text()


@pytest.mark.fault("C25", "D13")
@pytest.mark.sampled(1)
def test_one_that_comes_back_writes_nothing(pods: Any, digits_job: Any, expected: str, exchange: str) -> None:
    """The file server had released its lock, as a server does for a machine that it cannot reach."""
    pods.scheduler()
    pods.worker()
    trainers = Trainers(pods, digits_job(*JOB, *SLOW, f"exchange.type={exchange}"))
    first = trainers.start(1)
    pods.until(lambda: trainers.trains(1))
    first.send_signal(signal.SIGSTOP)
    (pods.output / ".lock").unlink()

    second = trainers.start(2)
    pods.until(lambda: trainers.trains(2))
    first.send_signal(signal.SIGCONT)

    assert Superseded.exit_code == first.wait(timeout=LONGEST)
    assert second.wait(timeout=LONGEST) == 0
    check(trainers, expected)


@pytest.mark.fault("C25", "D13")
def test_one_whose_host_was_cut_off_writes_nothing(pods_on_hosts: Any, digits_job: Any, expected: str) -> None:
    """It still waits for the scheduler when its host is back, and the file server has released its lock."""
    pods = pods_on_hosts
    pods.cut()
    pods.scheduler()
    pods.worker(on=2)
    trainers = Trainers(pods, digits_job(*JOB, *SLOW))
    first = trainers.start(1, on=1)
    pods.until(lambda: trainers.trains(1))
    pods.cut(1)
    (pods.output / ".lock").unlink()

    second = trainers.start(2, on=3)
    pods.until(lambda: trainers.trains(2))
    pods.cut()

    assert Superseded.exit_code == first.wait(timeout=LONGEST)
    assert second.wait(timeout=LONGEST) == 0
    check(trainers, expected)

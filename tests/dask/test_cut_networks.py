"""A host that the network cuts off: nothing arrives, no connection ends, and nothing says why.

Hosts are network namespaces, as in `bench.networks`; the scheduler, the trainer and two workers have one each.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = (
    "epochs=12",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers.maximum=1",
    "checkpoint.everySeconds=1",
)
SCHEDULER, TRAINER, WORKER, OTHER = range(4)
HOSTS = {"worker": OTHER, "trainer": TRAINER, "scheduler": SCHEDULER}
SOME_SECONDS, LONGEST = 3.0, 240.0


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of one undisturbed process."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, "workload.arguments={hidden: '8'}")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A file: the job trains too slowly to end before a test has removed it."""
    mark = tmp_path / "slow"
    mark.touch()
    return mark


def trained(pods: Any, digits_job: Any, slow: Path, *overrides: str) -> tuple[Any, dict[int, Any]]:
    """The trainer of a job that two workers train, once it has saved; and these, by host."""
    arguments = f"workload.arguments={{seconds: '0.5', mark: '{slow}'}}"
    job = digits_job(*JOB, "workload.entrypoint=slow_digits:workload", arguments, *overrides)
    pods.cut()
    pods.scheduler()
    workers = {host: pods.worker(on=host) for host in (WORKER, OTHER)}
    trainer = pods.trainer(job, on=TRAINER)
    pods.until(lambda: pods.is_trained_by(2) and pods.progress.checkpoint_update)
    return trainer, workers


@pytest.mark.fault("C12")
@pytest.mark.sampled(1)
def test_a_host_that_is_away_for_some_seconds_is_waited_for(
    pods_on_hosts: Any, digits_job: Any, slow: Path, expected: str, exchange: str
) -> None:
    """One after another, without any recovery."""
    pods = pods_on_hosts
    trainer, _ = trained(pods, digits_job, slow, f"exchange.type={exchange}", "exchange.timeoutSeconds=60")
    for host in HOSTS.values():
        pods.cut(host)
        time.sleep(SOME_SECONDS)
        pods.cut()
        before = pods.progress.update
        pods.until(lambda before=before: pods.progress.update > before)

    slow.unlink()
    assert trainer.wait(timeout=LONGEST) == 0
    assert pods.check(expected)["recoveries"] == 0


@pytest.mark.fault("C12")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_cut_off_for_long(
    pods_on_hosts: Any, digits_job: Any, slow: Path, expected: str, exchange: str, host: str
) -> None:
    """Until others give up their connections to it. Workers without a scheduler end, and are replaced, as pods are."""
    pods = pods_on_hosts
    trainer, workers = trained(pods, digits_job, slow, f"exchange.type={exchange}", "exchange.timeoutSeconds=10")
    pods.cut(HOSTS[host])
    pods.until(lambda: pods.is_trained_by(1) if host == "worker" else pods.waits_for("the Dask scheduler"))
    ending = {"worker": [OTHER], "trainer": [], "scheduler": [WORKER, OTHER]}[host]
    for number in ending:
        assert workers[number].wait(timeout=LONGEST) == 0
    pods.cut()
    for number in ending:
        pods.worker(on=number)

    pods.until(lambda: pods.is_trained_by(2))
    slow.unlink()
    assert trainer.wait(timeout=LONGEST) == 0
    pods.check(expected)

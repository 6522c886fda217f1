"""A worker whose device or data fails is replaced; what fails on every worker ends the run with its own code."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.pool import membership
from batchgrowth_trainer.sinks.events import Event, Recovered
from batchgrowth_trainer.training import Options, train

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)
JOB = (
    "epochs=4",
    "batch={initial: 64, maximum: 256, shard: 32, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 2}}}",
    "workers.maximum=4",
)


class Recoveries:
    """A sink that keeps why workers were replaced."""

    def __init__(self) -> None:
        self.causes: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Recovered):
            self.causes.append(event.cause)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of an undisturbed run."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, "workload.entrypoint=slow_digits:workload")


def trained(make_job: Any, folder: Path, fault: str, times: int, workers: int, *more: str) -> tuple[Any, list[str]]:
    arguments = f"workload.arguments={{fault: {fault}, folder: '{folder}', times: '{times}'}}"
    job = make_job(*JOB, "workload.entrypoint=passing:workload", arguments, *more)
    options = Options(output_dir=folder / "run", paths=(USER_CODE,), desired_workers=lambda _plan, _position: workers)
    sink = Recoveries()
    return train(job, options, [sink]), sink.causes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize(("fault", "text"), [("device", "uncorrectable ECC"), ("read", "example 1000 of _Unreadable")])
@pytest.mark.fault("C07")
def test_a_fault_of_one_worker_changes_nothing(
    digits_job: Any, tmp_path: Path, expected: str, exchange: str, fault: str, text: str, workers: int
) -> None:
    summary, causes = trained(digits_job, tmp_path, fault, 1, workers, f"exchange.type={exchange}")
    assert summary["weightsSha256"] == expected
    assert summary["recoveries"] >= 1
    assert any("was left out: " in cause and text in cause for cause in causes), causes


@pytest.mark.fault("C09")
def test_a_worker_whose_thread_hangs_is_replaced(
    digits_job: Any, tmp_path: Path, expected: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers whether it lives, since its event loop turns; but the others have long given up the update."""
    monkeypatch.setattr(membership, "STUCK_SECONDS", 1.0)
    summary, _ = trained(digits_job, tmp_path, "hang", 1, 2, f"exchange.type={exchange}", "exchange.timeoutSeconds=2")
    assert summary["weightsSha256"] == expected
    assert summary["recoveries"] >= 1


@pytest.mark.fault("C09")
def test_a_lone_worker_whose_thread_hangs_ends_itself(
    digits_job: Any, tmp_path: Path, expected: str, exchange: str
) -> None:
    """It answers, and no peer gives it up; only its own process knows that no shard has taken so long before."""
    more = f"exchange.type={exchange}", "exchange.timeoutSeconds=1"
    summary, causes = trained(digits_job, tmp_path, "hang alone", 1, 1, *more)
    assert summary["weightsSha256"] == expected
    assert causes[0] in ("1 of 1 workers were lost", "a worker was lost")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [("memory", WorkloadError, "CUDA out of memory"), ("read", DataError, "example 1000 of _Unreadable")],
)
def test_a_fault_of_every_worker_ends_the_run(
    digits_job: Any, tmp_path: Path, exchange: str, fault: str, kind: type[Exception], text: str, workers: int
) -> None:
    with pytest.raises(kind, match=text) as raised:
        trained(digits_job, tmp_path, fault, 1000, workers, f"exchange.type={exchange}")
    assert "\n" not in str(raised.value)

"""A worker that adds differently, as on another processor: its process has no vector instructions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

JOB = (
    "epochs=3",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers.maximum=2",
    "workload.entrypoint=slow_digits:workload",
    "workload.arguments={seconds: '0.1'}",
)
SHORT = (*JOB, "epochs=2", "exchange.type=SingleProcess")
OTHER = {"ATEN_CPU_CAPABILITY": "default"}


@pytest.fixture(autouse=True)
def _vector_instructions() -> None:
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        pytest.skip("this processor has no vector instructions that torch could do without")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of one undisturbed process like the first."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB[:2], "workload.arguments={hidden: '8'}")


@pytest.mark.fault("C19")
def test_it_is_reported_and_trains(pods: Any, digits_job: Any) -> None:
    """With its name and what differs: to the operator, in the output, in the journal and in the summary."""
    pods.scheduler()
    pods.worker()
    trainer = pods.trainer(digits_job(*JOB, "epochs=6"))  # it outlasts the start of a worker on a busy machine
    pods.until(lambda: pods.is_trained_by(1))
    assert pods.progress.differing == {}
    pods.worker(**OTHER)
    pods.until(lambda: pods.is_trained_by(2))
    pods.until(lambda: pods.progress.differing)
    ((name, why),) = pods.progress.differing.items()
    assert "DEFAULT rather than AVX" in why
    assert trainer.wait(timeout=120) == 0
    line = f"worker {name} on "
    assert line in pods.text()
    assert line in (pods.output / "journal.jsonl").read_text()
    arithmetic = pods.summary()["arithmetic"]
    assert [(name, "DEFAULT")] == [(one["worker"], one["instructions"]) for one in arithmetic["differing"]]
    assert len(arithmetic["shards"]["digest"]) == 64


@pytest.mark.fault("C19")
@pytest.mark.sampled(1)
@pytest.mark.timeout(600)
def test_it_is_refused(pods: Any, digits_job: Any, expected: str, exchange: str) -> None:
    """The others train on; when they are gone, training waits for one like them, and ends with their weights."""
    pods.scheduler()
    first = pods.worker()
    slow = pods.folder / "slow"
    slow.touch()
    arguments = f"workload.arguments={{seconds: '0.5', mark: {slow}}}"  # longer than a worker takes on a busy machine
    required = ("workers.sameArithmetic=Required", f"exchange.type={exchange}", arguments)
    trainer = pods.trainer(digits_job(*JOB, *required))
    pods.until(lambda: pods.is_trained_by(1))
    pods.worker(**OTHER)
    pods.until(lambda: pods.progress.differing)
    assert pods.terminated(first) == [0]
    pods.until(lambda: pods.waits_for("workers.sameArithmetic: Required refuses it"))
    slow.unlink()
    assert pods.progress.workers == 1
    pods.worker()
    assert trainer.wait(timeout=120) == 0
    assert pods.summary()["weightsSha256"] == expected


def test_a_resume_is_compared_with_the_checkpoint(pods: Any, digits_job: Any) -> None:
    """In one process, which is refused; without the setting it goes on and says so."""
    job = digits_job(*SHORT, "workers.sameArithmetic=Required")
    pods.scheduler()
    trainer = pods.trainer(job)
    pods.until(lambda: pods.updates())
    assert [0] != pods.terminated(trainer)
    refused = pods.trainer(job, **OTHER)
    assert refused.wait(timeout=120) == 75
    assert "DEFAULT rather than AVX" in pods.text()
    assert "set workers.sameArithmetic: Preferred" in pods.text()
    preferred = pods.trainer(digits_job(*SHORT), **OTHER)
    assert preferred.wait(timeout=120) == 0
    assert [one["worker"] for one in pods.summary()["arithmetic"]["differing"]] == ["trainer"]

"""A trainer that is killed, and another one in another pod that knows nothing but the object store.

What workers do with a checkpoint does not depend on where it is, so the trainer computes alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = ("epochs=3", "batch={initial: 128, maximum: 128, growth: {type: Constant}}", "exchange.type=SingleProcess")
SLOW = ("workload.entrypoint=slow_digits:workload", "workload.arguments={seconds: '0.1'}")


@pytest.mark.fault("C04", "D19")
def test_a_killed_trainer_is_continued_from_the_object_store(
    pods: Any, s3: Any, digits_job: Any, tmp_path: Path, digits_weights: Callable[..., str]
) -> None:
    job = digits_job(*JOB, *SLOW, "checkpoint.everySeconds=1")
    killed = pods.trainer(job, "--checkpoint-uri", "s3://runs/digits")
    pods.until(lambda: pods.progress and pods.progress.checkpoint_update)
    killed.kill()
    killed.wait()
    assert "s3://runs/digits" in pods.text()

    pods.output = pods.folder / "another-pod"
    trainer = pods.trainer(job, "--checkpoint-uri", "s3://runs/digits")
    assert trainer.wait(timeout=240) == 0
    summary = pods.summary()
    expected = digits_weights(tmp_path / "alone", *JOB, "workload.arguments={hidden: '8'}")
    assert summary["weightsSha256"] == expected
    assert list(range(1, summary["updates"] + 1)) == pods.updates()
    assert "digits/summary.json" in s3.names
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in pods.text()

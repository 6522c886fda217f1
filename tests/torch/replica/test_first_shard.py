"""The first shard of a job shows how a process adds, and leaves no trace."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from batchgrowth_trainer.building import build_replica, build_workload
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.workload_trial import first_shard

DIGEST = """
import sys
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_trainer.building import build_replica
print(build_replica(read_manifest(sys.stdin.read()).spec).arithmetic.digest)
"""


def trained(replica: Replica, updates: int) -> dict[str, torch.Tensor]:
    for _ in range(updates):
        step = replica.plan.step_at(replica.position)
        whole = replica.partials(step, (0, step.shards))
        replica.commit(step, whole[0].row)
        replica.rows.release(whole)
    return {name: tensor.clone() for name, tensor in replica.tensors().items()}


def test_it_leaves_no_trace(digits_job: Any) -> None:
    """Neither in the state of a replica that trains, nor in what it trains to: with dropout and batch norm."""
    spec = digits_job("optimizer={type: Adam, adam: {}}").spec
    plain, observed = (Replica(spec, build_workload(spec), torch.device("cpu")) for _ in range(2))
    first = first_shard(observed)
    assert len(first.digest) == 64
    trained(plain, 2)
    before = trained(observed, 2)
    later = first_shard(observed)
    assert first.digest != later.digest, "the weights are others now"
    after = observed.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert observed.position.update == 2
    ends = trained(plain, 2), trained(observed, 2)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in before)


def test_it_is_the_same_in_replicas_of_one_job_alone(digits_job: Any) -> None:
    spec = digits_job().spec
    alike = {build_replica(spec).arithmetic for _ in range(2)}
    assert len(alike) == 1
    assert alike != {build_replica(digits_job("seed=1").spec).arithmetic}


def test_other_instructions_add_differently(digits_job: Any) -> None:
    """A process without AVX, as on another processor."""
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        pytest.skip("this processor has no vector instructions that torch could do without")
    job, mine = digits_job(), build_replica(digits_job().spec).arithmetic
    text = job.model_dump_json(by_alias=True, exclude_none=True)
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    other = subprocess.run(
        [sys.executable, "-c", DIGEST], input=text, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert len(other) == 64
    assert mine.digest != other


def test_what_differs_is_named() -> None:
    one = Arithmetic("a", "CPU", "EPYC", "AVX512", "torch 2.15", "1 thread")
    assert (
        Arithmetic("b", "CPU", "EPYC", "AVX2", "torch 2.15", "2 threads").why_not(one)
        == "AVX2 rather than AVX512, 2 threads rather than 1 thread"
    )
    assert "other code or data" in Arithmetic("b", *list(one.to_json().values())[1:]).why_not(one)
    assert one == Arithmetic.from_json({**one.to_json(), "of a later version": 3})


def test_without_deterministic_kernels_there_is_none_to_compare(digits_job: Any) -> None:
    """Two GPUs of one kind would differ, and each would count as another kind of machine."""
    arithmetic = build_replica(digits_job("deterministic=false").spec).arithmetic
    assert arithmetic.digest == ""
    assert arithmetic.torch

"""compile: true: the same state and draws, an error without a compiler, and no fallback in silence."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.building import build_workload
from batchgrowth_trainer.replica import reproducible
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.reproducible import Compiled

BUILD = """
import sys
from batchgrowth.errors import WorkloadError
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_trainer.building import build_replica
try:
    build_replica(read_manifest(sys.stdin.read()).spec)
except WorkloadError as error:
    print(error)
"""


TRAIN = """
import sys
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.building import build_replica
replica = build_replica(read_manifest(sys.stdin.read()).spec)
for _ in range(3):
    step = replica.plan.step_at(replica.position)
    whole = replica.partials(step, (0, step.shards))
    replica.commit(step, whole[0].row)
    replica.rows.release(whole)
print(replica.arithmetic.digest, weights_sha256(replica.tensors()))
"""


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile traces is run by the interpreter, since to compile it takes a minute."""
    compile_ = torch.compile
    given = {"backend": "eager", "options": None}
    monkeypatch.setattr(torch, "compile", lambda *values, **named: compile_(*values, **(named | given)))


def test_without_a_compiler_the_job_ends_before_training(digits_job: Any) -> None:
    text = digits_job("compile=true", "workload.device=CPU").model_dump_json(by_alias=True, exclude_none=True)
    environment = os.environ | {"CXX": "no-such-compiler"}
    printed = subprocess.run(
        [sys.executable, "-c", BUILD], input=text, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith("compile: true needs a C++ compiler (g++; CXX names another)")
    assert "remove compile from the spec" in printed


def test_without_pythons_headers_too(small_job: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(WorkloadError, match=r"Python's headers \(python3-dev"):
        Compiled(torch.sin, small_job("compile=true").spec, torch.device("cpu"))


@pytest.mark.usefixtures("interpreted")
def test_each_size_is_traced_for_itself_and_too_many_are_an_error(
    small_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch falls back to the interpreter after eight, with other bits in workers that have seen other sizes."""
    monkeypatch.setattr(reproducible, "MOST_OTHER_REASONS", 8)
    spec = small_job("compile=true").spec
    assert spec.shard == 4
    call = Compiled(lambda given: given * 2, spec, torch.device("cpu"))
    for size in range(1, 13):
        assert [2.0] * size == call(torch.ones(size)).tolist()
    with pytest.raises(WorkloadError, match=r"compiled 12 times.*Pad to a few lengths"):
        call(torch.ones(13))
    assert call(torch.ones(3)).tolist() == [2.0] * 3, "a size that was compiled is still there"


@pytest.mark.usefixtures("interpreted")
def test_the_model_keeps_its_names_and_its_state(digits_job: Any) -> None:
    """With dropout and batch norm, also for a shard of one example, and in bfloat16."""
    spec = digits_job("compile=true", "precision=BFloat16").spec
    plain = digits_job("precision=BFloat16").spec
    both = [Replica(one, build_workload(one), torch.device("cpu")) for one in (spec, plain)]
    assert both[0].state_dict().keys() == both[1].state_dict().keys()
    for replica in both:
        for _ in range(2):
            step = replica.plan.step_at(replica.position)
            whole = replica.partials(step, (0, step.shards))
            replica.commit(step, whole[0].row)
            replica.rows.release(whole)
    states = [replica.tensors() for replica in both]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


@pytest.mark.long
def test_processes_that_compile_for_themselves_get_the_same_bits(digits_job: Any, tmp_path: Path) -> None:
    """Two at once in one empty cache, as in a pod with two workers, and one in a cache of its own, on another node."""
    text = digits_job("compile=true").model_dump_json(by_alias=True, exclude_none=True)

    def trained(cache: str) -> str:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / cache)}
        command = [sys.executable, "-c", TRAIN]
        return subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    with ThreadPoolExecutor() as pool:
        printed = list(pool.map(trained, ("one", "one", "another")))
    assert len(printed[0]) == 64 + 1 + 64
    assert len(set(printed)) == 1

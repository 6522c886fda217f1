"""The device that a manifest asks for, on machines with and without a GPU."""

import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from batchgrowth.contract.environment import worker_environment
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.replica import reproducible
from batchgrowth_trainer.replica.data import to_device
from batchgrowth_trainer.replica.reproducible import make_device, prepare_process
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir


@pytest.mark.fault("A22")
@pytest.mark.parametrize(("wanted", "has_gpu", "device"), [("Auto", False, "cpu"), ("Auto", True, "cuda"),
                                                           ("CPU", True, "cpu"), ("CUDA", True, "cuda")])  # fmt: skip
def test_a_device_that_is_there(
    small_job: Any, monkeypatch: pytest.MonkeyPatch, wanted: str, has_gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device == make_device(small_job(f"workload.device={wanted}").spec).type


@pytest.mark.fault("A22")
def test_a_gpu_that_is_not_there(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image or a node without one: nothing is computed elsewhere without the user's knowledge."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WorkloadError, match=r"workload\.device: CUDA was requested .* use Auto or CPU"):
        make_device(small_job("workload.device=CUDA").spec)


@pytest.fixture
def kernels() -> Iterator[None]:
    """Sets torch's switches for kernels back."""
    switches = (
        (torch.backends.cudnn, "benchmark"), (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_tf32"), (torch.utils.deterministic, "fill_uninitialized_memory"),
    )  # fmt: skip
    before = [getattr(*switch) for switch in switches]
    yield
    torch.use_deterministic_algorithms(mode=False)
    for switch, value in zip(switches, before, strict=True):
        setattr(*switch, value)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("given", "used"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_kernels_of_a_gpu_are_deterministic(
    small_job: Any, monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    """cuBLAS reads its workspace from the environment; one that the user has set stays."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given or "")
    if given is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    prepare_process(small_job().spec)

    assert used == os.environ["CUBLAS_WORKSPACE_CONFIG"]
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "attention would add in another order each time"
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.usefixtures("kernels")
def test_unless_the_job_says_otherwise(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    prepare_process(small_job("deterministic=false").spec)

    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("kernels")
def test_factors_are_rounded_to_tensor_float_32(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In convolutions and in matrix products, until a job of the same process wants float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for precision, rounded in (("TensorFloat32", True), ("Float32", False), ("BFloat16", False)):
        prepare_process(small_job(f"precision={precision}").spec)
        assert [rounded] * 2 == [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]


class Sequence(NamedTuple):
    tokens: Tensor
    name: str


BATCH = ([torch.ones(2), Sequence(torch.zeros(3), "a")], {"mask": torch.ones(1), "number": 4})


def test_a_batch_on_the_cpu_is_left_alone() -> None:
    assert to_device(BATCH, torch.device("cpu")) is BATCH


def test_every_tensor_of_a_batch_is_moved() -> None:
    """In lists, dictionaries and named tuples; what is no tensor stays."""
    (first, sequence), rest = to_device(BATCH, torch.device("meta"))

    assert isinstance(sequence, Sequence)
    assert [tensor.device.type for tensor in (first, sequence.tokens, rest["mask"])] == ["meta"] * 3
    assert (sequence.name, rest["number"]) == ("a", 4)


def test_a_gpu_gets_tensors_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are there, or are sparse, which cannot be pinned."""
    calls: list[str] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: calls.append("pin") or tensor)
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: len(tensor) == 3)
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking: calls.append(f"{device} {non_blocking}"))
    for tensor in (torch.ones(2), torch.ones(3), torch.eye(2).to_sparse()):
        to_device(tensor, torch.device("cuda"))

    assert calls == ["pin", *["cuda True"] * 3]


FAULTS_OF_UPDATES = """
import resource, statistics, sys, threading
import torch
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.replica.reproducible import prepare_process

prepare_process(JobSpec.model_validate_json(sys.argv[1]))

def faults_of_an_update():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    layers = [torch.empty(size << 18).fill_(1.0) for size in (4, 24, 32, 40, 64)]  # MiB of float32
    del layers
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

def count():
    faults = [faults_of_an_update() for _ in range(20)]
    print(statistics.median(faults[10:]))  # an update may yet grow the heap, since free memory lies in pieces

if sys.argv[2] == "its thread":
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
else:
    count()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have another allocator")
@pytest.mark.parametrize("who", ["one process", "its thread"])
def test_the_memory_of_an_update_serves_the_next(small_job: Any, who: str) -> None:
    """A page that was given back is a fault of the next update: up to 42,000 an update here, if none is kept."""
    spec = small_job().spec
    own = worker_environment(1) if who == "its thread" else {}  # a worker has threads before it knows its job
    counted = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_UPDATES, spec.model_dump_json(by_alias=True), who],
        env=os.environ | own, check=True, capture_output=True, text=True,
    )  # fmt: skip

    assert float(counted.stdout) < 100


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch's default folder for compiled code, which is not there yet."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Path(default_cache_dir())


@pytest.mark.fault("G03")
def test_compiled_code_is_kept_where_nobody_else_writes(cache: Path) -> None:
    reproducible._keep_cache_private()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    reproducible._keep_cache_private()


@pytest.mark.fault("G03")
@pytest.mark.parametrize("kind", ["a folder of others", "a link"])
def test_compiled_code_of_others_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "a link":
        cache.symlink_to(tmp_path)
    else:
        cache.mkdir()
        cache.chmod(0o777)
    with pytest.raises(WorkloadError, match=r"may write to it.* TORCHINDUCTOR_CACHE_DIR"):
        reproducible._keep_cache_private()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    reproducible._keep_cache_private()

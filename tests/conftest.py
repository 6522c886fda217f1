"""What the tests of the trainer share: small jobs, and the promise that nothing is left behind."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from batchgrowth.manifest import load_manifest, read_manifest
from batchgrowth.spec import BatchGrowthJob

ROOT = Path(__file__).parent.parent

SMALL = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {name: small}
spec:
  seed: 3
  workload: {entrypoint: "small:net", examples: 90}
  epochs: 4
  batch: {initial: 8, maximum: 32, shard: 4, growth: {type: Geometric, geometric: {factor: "2", everyEpochs: 1}}}
  learningRate: {initial: "0.05", rule: DecayPastMaximum}
  optimizer: {type: SGD, sgd: {momentum: "0.9", nesterov: true, weightDecay: "0.0005"}}
  exchange: {type: SingleProcess}
"""

MakeJob = Callable[..., BatchGrowthJob]


@pytest.fixture
def small_job() -> MakeJob:
    """A function: the small job (90 examples, batch 8 -> 32, 4 epochs) with `path=value` overrides."""
    return lambda *overrides: read_manifest(SMALL, overrides)


@pytest.fixture
def digits_job() -> MakeJob:
    """A function: examples/digits.yaml with `path=value` overrides."""
    return lambda *overrides: load_manifest(ROOT / "examples" / "digits.yaml", overrides)


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fails a test after which one of its processes still runs, or a temporary folder of a run is still there."""
    before, folders = set(_descendants()), set(_scratch())
    yield
    _, alive = psutil.wait_procs([p for p in _descendants() if p not in before], timeout=15)
    told = [f"{process.pid}: {_command(process)}" for process in alive]
    for process in alive:
        process.kill()
    assert [] == told
    assert set() == set(_scratch()) - folders


def _descendants() -> list[psutil.Process]:
    """Every process below this one, but for the two helpers that Python's multiprocessing keeps until the end."""
    own = psutil.Process()
    kept = {child.pid for child in own.children() if "multiprocessing." in _command(child)}
    return [process for process in own.children(recursive=True) if process.pid not in kept]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _scratch() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("batchgrowth-*"))

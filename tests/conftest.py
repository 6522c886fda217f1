"""Shared by the trainer's tests: small jobs, and a check that no process or folder is left behind."""

import logging
import multiprocessing.util
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from batchgrowth.choices import EXCHANGES, INEXACT
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.spec import BatchGrowthJob
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a machine may be busy with something else
settings.load_profile("untimed")

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))  # so that the tests can import object_store and its neighbours
sys.path.append(str(ROOT))  # and bench and docs

OF_TERMINALS = (
    *("CLICOLOR_FORCE", "FORCE_COLOR", "GITHUB_ACTIONS", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("COLUMNS", "LINES"),
)
"""Environment variables that change what commands print."""
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
    """A function: examples/digits.yaml in shards of 32, so that workers have several, with `path=value` overrides."""
    return lambda *overrides: load_manifest(ROOT / "examples" / "digits.yaml", ["batch.shard=32", *overrides])


@pytest.fixture(scope="session")
def example_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the data of the jobs in example_jobs.EXAMPLE_JOBS."""
    from example_jobs import make_example_data

    folder = tmp_path_factory.mktemp("data")
    make_example_data(folder)
    return folder


@dataclass(frozen=True)
class SmallDisk:
    """A file system of a few kilobytes."""

    path: Path

    def fill(self, leave: int = 0) -> Path:
        """Fills all but `leave` bytes with a file, which is returned."""
        stuffing, free = self.path / "stuffing", os.statvfs(self.path)
        stuffing.write_bytes(b"x" * (free.f_bavail * free.f_bsize - leave))
        return stuffing


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 256 KiB, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", str(folder)], check=True, timeout=10)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket on this machine, see object_store.S3, with its key and endpoint in the environment."""
    from object_store import s3

    with s3() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture(params=[name for name in EXCHANGES if name not in INEXACT])
def any_exchange(request: pytest.FixtureRequest) -> str:
    """Each registered exchange with the weights of one process."""
    return str(request.param)


@pytest.fixture(params=[name for name, entry in EXCHANGES.items() if entry.uses_workers and name not in INEXACT])
def exchange(request: pytest.FixtureRequest) -> str:
    """Each registered exchange that uses workers, and has the weights of one process."""
    return str(request.param)


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    """A command silences Dask for as long as its process lives."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    before = {logger: logger.level for logger in loggers}
    yield
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.setLevel(before.get(logger, logging.NOTSET))


def pytest_configure() -> None:
    """Behind a proxy, connections to the servers that tests start on this machine still go there directly."""
    if urllib.request.getproxies():
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(
            filter(None, [given, "127.0.0.1,::1,[::1],localhost"])
        )


@pytest.fixture(scope="session", autouse=True)
def _plain_output() -> Iterator[None]:
    """Commands print as into a file, whatever the shell says of terminals, as that of GitHub's CI does."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_TERMINALS:
            patch.delenv(name, raising=False)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """--largest-mesh 2 has the workers of the dask tier exchange in a grid, --family IPv6 a cluster without IPv4."""
    parser.addoption("--largest-mesh", type=int, help="The number of members up to which all are connected.")
    parser.addoption("--family", default="IPv4", help="IPv6: the pods of tests/cluster have addresses of that alone.")


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """The folder for temporary files of this test session and its processes, apart from those of other sessions.

    It has a short path: there are limits to those of sockets.
    """
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="bg")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield Path(folder)
    tempfile.tempdir = before[1]
    if before[0] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[0]
    # Python's multiprocessing has a folder in this one, which it removes when the interpreter exits.
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


@pytest.fixture
def nothing_left_behind(scratch: Path) -> Iterator[None]:
    """Fails a test that leaves one of its processes running, or a temporary folder of a run behind."""
    before, folders = set(_descendants()), {*scratch.glob("batchgrowth-*")}
    yield
    _, alive = psutil.wait_procs([p for p in _descendants() if p not in before], timeout=15)
    left = [f"{process.pid}: {_command(process)}" for process in alive]
    for process in alive:
        process.kill()
    assert left == []
    assert {*scratch.glob("batchgrowth-*")} - folders == set()


def _descendants() -> list[psutil.Process]:
    """Every descendant of this process, except the two helpers that Python's multiprocessing keeps until the end."""
    own = psutil.Process()
    kept = {child.pid for child in own.children() if "multiprocessing." in _command(child)}
    return [process for process in own.children(recursive=True) if process.pid not in kept]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what a `sampled` test has beyond its sample: by default, combinations without a new parameter."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for combinations in tests.values():
        limit = next(iter(combinations[0].get_closest_marker("sampled").args), None)
        for item in _beyond(combinations, limit):
            item.add_marker(pytest.mark.long)


def _beyond(combinations: list[pytest.Item], limit: int | None) -> list[pytest.Item]:
    """The combinations outside the sample, which shows every parameter with as few combinations as a greedy choice."""
    parameters = {item: {(name, repr(value)) for name, value in item.callspec.params.items()} for item in combinations}
    shown: set[tuple[str, str]] = set()
    sample: list[pytest.Item] = []
    for most_known in (0, 1, 2):  # those that show the most come first
        for item in combinations:
            found = parameters[item]
            if not found <= shown and len(found & shown) <= most_known:
                sample.append(item)
                shown |= found
    return [item for item in combinations if item not in sample[:limit]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """If CI=true, a skipped test is a failed one, except in the GPU tier and of earlier versions.

    The list of failures at the end gives the first line of each, so that a log that is cut still names them all.
    """
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.partition("\n")[0]
    expected = hasattr(report, "wasxfail") or "/tests/gpu/" in item.path.as_posix()
    expected = expected or item.get_closest_marker("history") is not None
    if report.skipped and os.environ.get("CI") == "true" and not expected:
        report.outcome = "failed"
        report.longrepr = f"skipped where CI=true: {report.longrepr}"
    return report

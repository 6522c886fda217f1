"""Runs on real Dask clusters of this machine, in this process or through the command line."""

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from batchgrowth.contract.progress import Progress
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_operator.certificates import renewed
from batchgrowth_operator.children.dask_cluster import RELOADS
from batchgrowth_trainer.exchange import connections
from batchgrowth_trainer.training import Options, train

from bench.emulator import Link
from bench.hosts import Hosts, why_not

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
USER_CODE = Path(__file__).parent / "user_code"
LONGEST = 480  # seconds; the timeout of a run, which takes seconds on a quiet machine


@pytest.fixture(autouse=True)
def _nothing_left(nothing_left_behind: None) -> None:
    """None of these tests may leave a process or a temporary folder."""


@pytest.fixture(autouse=True)
def _largest_mesh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drivers of this process connect all members of groups up to --largest-mesh."""
    if given := request.config.getoption("--largest-mesh"):
        monkeypatch.setattr(connections, "LARGEST_MESH", given)


@dataclass
class Run:
    """A `batchgrowth run` as a subprocess."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path
    others: list[psutil.Process] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(timeout=LONGEST)

    def until(self, seen: Callable[[], Any]) -> Any:
        """The first true value of `seen`; fails if the run ends before."""
        deadline = Deadline()
        while not (value := seen()):
            assert self.process.poll() is None, self.text
            deadline.tick()
        return value

    def updates(self) -> int:
        """The number of updates that the history has on disk."""
        return len(rows(self.folder))

    def says(self, text: str) -> bool:
        return text in self.text

    def workers(self) -> list[psutil.Process]:
        return workers_of(psutil.Process(self.process.pid))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the command's process alone; `others` keeps its workers, to check that they end too."""
        self.others = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)


class Deadline:
    """A timeout for polling another process; `tick` sleeps for a moment, and fails after the timeout."""

    def __init__(self, seconds: float = LONGEST) -> None:
        self._ends = time.monotonic() + seconds

    def tick(self) -> None:
        assert time.monotonic() < self._ends, "it did not happen in time"
        time.sleep(0.02)


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of history.csv, without a torn last line."""
    try:
        text = (folder / "history.csv").read_text()
    except FileNotFoundError:
        return []
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The Dask workers below a process: children of the server that forks them."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for server in process.children():
            found += [child for child in server.children() if child.status() != psutil.STATUS_ZOMBIE]
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """A function that starts `batchgrowth run`; a run that is left at the end of the test is killed."""
    runs: list[Run] = []

    def begin(manifest: Path, *arguments: str, folder: Path | None = None) -> Run:
        folder = folder or tmp_path / f"run-{len(runs)}"
        output = tmp_path / f"output-{len(runs)}.txt"
        command = [
            str(Path(sys.executable).with_name("batchgrowth")),
            "run",
            str(manifest),
            "--output-dir",
            str(folder),
            "--no-plots",
        ]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        runs.append(Run(process, folder, output))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.kill()
        run.process.wait(timeout=LONGEST)


@pytest.fixture(scope="session")
def digits_weights() -> Callable[..., str]:
    """A function: the weights that one process gets for the digits job with these overrides, in this folder."""

    def weights(folder: Path, *overrides: str) -> str:
        job = load_manifest(DIGITS, [*overrides, "exchange.type=SingleProcess"])
        return str(train(job, Options(output_dir=folder))["weightsSha256"])

    return weights


Process = subprocess.Popen[bytes]


class Pods:
    """Scheduler, workers and trainer as pods run them: processes that each write to a file of their own, and that have
    the job's certificate.

    All are on this machine, or each is `on` the host of that number, and the scheduler on the first of these.
    If their commands begin with others, `before`, they look for their addresses themselves, as they do in a cluster.
    """

    def __init__(self, folder: Path, hosts: Hosts | None = None, before: Sequence[str] = ()) -> None:
        self.folder, self.hosts, self.started = folder, hosts, list[Process]()
        self.before = before
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self._port, self.health_port = free.getsockname()[1], other.getsockname()[1]
        self.address = f"tls://{'scheduler' if before else self._host(0)}:{self._port}"
        self.output = folder / "out"
        self.issue()
        files = {"CERT": str(folder / "tls.crt"), "KEY": str(folder / "tls.key")}
        roles = ("SCHEDULER", "WORKER", "CLIENT")
        self._tls = {f"DASK_DISTRIBUTED__COMM__TLS__{role}__{name}": file for role in roles
                     for name, file in files.items()}  # fmt: skip
        self._tls["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] = str(folder / "ca.crt")
        self._tls["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] = "true"

    def issue(self) -> None:
        """Certificates as those of a job whose Secrets were deleted: of an authority that was not known before."""
        issued = renewed("digits", "default", datetime.now(UTC))
        assert issued is not None
        for name, text in issued.tls.items():
            (self.folder / name).write_text(text)

    def _host(self, number: int) -> str:
        return self.hosts.hosts[number].address if self.hosts else "127.0.0.1"

    def scheduler(self) -> Process:
        where = ["--host", self._host(0), "--dashboard-address", "127.0.0.1:0"]
        if self.before:
            where = ["--dashboard-address", f":{self.health_port}"]
        port = str(self._port)
        return self._start("distributed.cli.dask_scheduler", "--protocol", "tls", "--port", port, *where, *RELOADS)

    def worker(self, on: int = 0, **environment: str) -> Process:
        how = ["--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(self.folder)]
        how += ["--preload", "batchgrowth_trainer.worker_pod", "--no-dashboard"]
        how += [] if self.before else ["--host", self._host(on)]
        return self._start("distributed.cli.dask_worker", self.address, "--protocol", "tls", *how, on=on, **environment)

    def trainer(self, job: BatchGrowthJob, *more: str, on: int = 0, **environment: str) -> Process:
        (self.folder / "job.json").write_text(job.model_dump_json(by_alias=True, exclude_none=True))
        (self.folder / "plan.json").write_text(json.dumps(make_plan(job.spec).to_json()))
        files = ["--job", "job.json", "--plan", "plan.json", "--output-dir", str(self.output), "--metrics-port", "0"]
        return self._start("batchgrowth_trainer", *files, "--scheduler", self.address, *more, on=on, **environment)

    @property
    def progress(self) -> Progress | None:
        try:
            return Progress.from_json((self.output / "progress.json").read_text())
        except FileNotFoundError:
            return None

    def is_trained_by(self, workers: int) -> bool:
        return self.progress is not None and self.progress.workers == workers and not self.progress.waiting_for

    def waits_for(self, what: str) -> bool:
        return self.progress is not None and what in (self.progress.waiting_for or "")

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        return summary

    def text(self) -> str:
        """The output of all of them."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.txt")))

    def until(self, seen: Callable[[], Any]) -> None:
        """Returns once `seen` is true."""
        deadline = Deadline()
        while not seen():
            deadline.tick()

    @staticmethod
    def terminated(*processes: Process) -> list[int]:
        """Their exit codes after a SIGTERM to all of them at once."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=LONGEST) for process in processes]

    def updates(self) -> list[int]:
        """The updates of the history, in its order."""
        return [int(row["update"]) for row in rows(self.output)]

    def check(self, expected: str) -> dict[str, Any]:
        """The summary; fails unless it has these weights, and the history each update once."""
        summary = self.summary()
        assert summary["weightsSha256"] == expected
        assert list(range(1, summary["updates"] + 1)) == self.updates()
        return summary

    def cut(self, *numbers: int) -> None:
        """Cut the hosts with these numbers off, and connect all others."""
        assert self.hosts is not None
        self.hosts.connect([Link(cut=number in numbers) for number in range(self.hosts.count)])

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=LONGEST)

    def _start(self, module: str, *arguments: str, on: int = 0, **environment: str) -> Process:
        command = [*self.before, sys.executable, "-m", module, *arguments]
        paths = [str(USER_CODE), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = self._tls | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | environment
        with (self.folder / f"{len(self.started)}-{module}.txt").open("wb") as file:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            if self.hosts:
                process = self.hosts.hosts[on].start(command, own, cwd=self.folder, **how)
            else:
                process = subprocess.Popen(command, env=os.environ | own, cwd=self.folder, **how)
        self.started.append(process)
        return process


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """No process yet; those that a test starts are killed after it, and its output includes theirs."""
    yield from _until_the_end(Pods(tmp_path))


@pytest.fixture
def pods_on_hosts(tmp_path: Path) -> Iterator[Pods]:
    """The same, each on one of four hosts; skips the test if this machine cannot have them."""
    if reason := why_not():
        pytest.skip(reason)
    with Hosts(4) as hosts:
        yield from _until_the_end(Pods(tmp_path, hosts))


@pytest.fixture
def without_ipv4(tmp_path: Path) -> Iterator[list[str]]:
    """The beginning of commands that run the rest of them in one network namespace without any IPv4 address.

    There, the host `scheduler` is ::1, and this machine has the address fd00::7.
    """
    namespace = ["unshare", "--net", "sh", "-c"]
    commands = "ip link set lo up && ip -4 addr del 127.0.0.1/8 dev lo && ip addr add fd00::7/128 dev lo nodad"
    commands += " && echo made && exec sleep infinity"
    (tmp_path / "hosts").write_text(f"::1 localhost scheduler\nfd00::7 {socket.gethostname()}\n")
    named = ["unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path / "hosts"} /etc/hosts && exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("nsenter") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare, nsenter and ip")
    with subprocess.Popen([*namespace, commands], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
        assert keeper.stdout is not None
        try:
            if keeper.stdout.readline() != b"made\n":
                pytest.skip("needs root, and a kernel with network namespaces and IPv6")
            yield ["nsenter", f"--net=/proc/{keeper.pid}/ns/net", *named]
        finally:
            keeper.kill()


@pytest.fixture
def pods_without_ipv4(tmp_path: Path, without_ipv4: list[str]) -> Iterator[Pods]:
    """The same, all of them there."""
    yield from _until_the_end(Pods(tmp_path, before=without_ipv4))


def _until_the_end(started: Pods) -> Iterator[Pods]:
    yield started
    started.end()
    sys.stdout.write(started.text())

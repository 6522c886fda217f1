"""Each failure is one clear paragraph and a meaningful exit code, and the last checkpoint stays whole."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.cli import main
from batchgrowth.errors import CheckpointError, ClusterError, DataError, PortError, SpecError, WorkloadError

ROOT = Path(__file__).parents[2]
USER_CODE = Path(__file__).parent / "user_code"

Start = Callable[..., Any]


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[[str], Path]:
    """A function: a manifest of a workload in user_code, beside that code."""

    def write(entrypoint: str, **changes: Any) -> Path:
        job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
        job["spec"]["workload"]["entrypoint"] = entrypoint
        job["spec"] |= {"epochs": 3, "workers": {"minimum": 2, "maximum": 2, "waitSeconds": 30}} | changes
        folder = tmp_path / "job"
        if not folder.exists():
            folder.mkdir()
            for source in USER_CODE.glob("*.py"):
                (folder / source.name).write_text(source.read_text())
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        return path

    return write


@dataclass(frozen=True)
class Ended:
    """A `batchgrowth run` that has ended."""

    exit_code: int
    text: str

    def wait(self) -> int:
        return self.exit_code


@pytest.fixture
def here(tmp_path: Path, capfd: pytest.CaptureFixture[str], logs_as_before: None) -> Start:
    """A function as `start`, which runs the command in this process: another one loads torch first, for seconds."""

    def run(manifest: Path, *arguments: str, folder: Path | None = None) -> Ended:
        output = ["--output-dir", str(folder or tmp_path / "run"), "--no-plots"]
        with pytest.raises(SystemExit) as ended:
            main(["run", str(manifest), *output, *arguments])
        return Ended(int(str(ended.value.code)), "".join(capfd.readouterr()))

    return run


def refused(run: Any, kind: type[Exception], *texts: str) -> None:
    """Assert that the run ended with the exit code of this error, and with one paragraph that has all these texts."""
    assert kind.exit_code == run.wait(), run.text  # type: ignore[attr-defined]
    assert "Traceback" not in run.text
    assert "Warning" not in run.text
    paragraph = run.text.rstrip().splitlines()[-1]
    for text in texts:
        assert text in paragraph


def test_a_workload_that_raises_in_its_forward(start: Start, manifest: Any, any_exchange: str) -> None:
    """The user's file and line are named, and the rows up to the fault are kept."""
    run = start(manifest("faulty:forward"), "--exchange", any_exchange)
    line = 1 + (USER_CODE / "faulty.py").read_text().splitlines().index(
        '            raise ValueError("the images are too blue")  # line that the error must name'
    )
    refused(run, WorkloadError, "ValueError: the images are too blue", f"faulty.py:{line}, in forward")
    assert run.updates() >= 15


@pytest.mark.fault("D01")
@pytest.mark.sampled(1)
def test_a_workload_that_produces_nan(here: Start, manifest: Any, any_exchange: str) -> None:
    run = here(manifest("faulty:nan"), "--exchange", any_exchange)
    refused(run, WorkloadError, "is not finite: loss nan", "lower learningRate.initial")


@pytest.mark.fault("A18")
@pytest.mark.sampled(1)
def test_a_workload_that_returns_the_wrong_thing(here: Start, manifest: Any, any_exchange: str) -> None:
    refused(here(manifest("faulty:wrong"), "--exchange", any_exchange), WorkloadError, "returned a dict", "Workload(")


def test_a_loss_of_the_wrong_shape(here: Start, manifest: Any) -> None:
    refused(here(manifest("faulty:scalar")), WorkloadError, "returned one number for the whole shard")


@pytest.mark.fault("A17")
@pytest.mark.parametrize("exchange", ["AllReduce", "SingleProcess"])
def test_a_module_that_raises_when_it_is_imported(
    start: Start, manifest: Any, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    monkeypatch.setenv("FAULT_AT_IMPORT", "no luck")
    refused(start(manifest("faulty:nan"), "--exchange", exchange), WorkloadError, "import fails: no luck", "faulty.py:")


@pytest.mark.fault("A20")
@pytest.mark.parametrize("exchange", ["AllReduce", "SingleProcess"])
def test_missing_data(here: Start, manifest: Any, exchange: str) -> None:
    refused(here(manifest("faulty:missing"), "--exchange", exchange), DataError, "/no/such/data.bin")


@pytest.mark.fault("A17")
def test_a_module_that_is_not_there(here: Start, manifest: Any) -> None:
    refused(here(manifest("nowhere:net")), WorkloadError, "no module named 'nowhere'")


def test_an_unknown_field(here: Start, manifest: Any) -> None:
    refused(here(manifest("faulty:nan", bach={"initial": 3})), SpecError, "spec.bach")


@pytest.mark.fault("C22")
def test_a_taken_metrics_port(here: Start, manifest: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = here(manifest("faulty:nan"), "--metrics-port", str(port))
        refused(run, PortError, f"--metrics-port {port}", "or 0 for any free one")


def test_no_scheduler(here: Start, manifest: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = here(manifest("faulty:nan"), "--scheduler", f"tcp://127.0.0.1:{port}")
    refused(run, ClusterError, "no Dask scheduler answers there")


def test_an_output_folder_that_cannot_be_written(here: Start, manifest: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = here(manifest("faulty:nan"), folder=tmp_path / "file" / "run")
    refused(run, CheckpointError, "--output-dir", "give a folder that can be written")


def test_an_output_folder_without_permission(here: Start, manifest: Any, tmp_path: Path) -> None:
    """Root may write everywhere except into the kernel's own file system."""
    (tmp_path / "locked").mkdir(mode=0o500)
    folder = Path("/proc/self/fdinfo") if os.geteuid() == 0 else tmp_path / "locked"
    refused(here(manifest("faulty:nan"), folder=folder / "run"), CheckpointError, "give a folder that can be written")


@pytest.mark.fault("D10")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("exchange", ["AllReduce", "SingleProcess"])
def test_truncated_and_foreign_checkpoints(start: Start, manifest: Any, exchange: str) -> None:
    """Another job's checkpoint is refused and left whole; it is an error if none is whole."""
    good = manifest("slow_digits:workload", workload={"entrypoint": "slow_digits:workload", "examples": 1437})
    run = start(good, "--exchange", exchange)
    assert run.wait() == 0, run.text
    weights = json.loads((run.folder / "summary.json").read_text())["weightsSha256"]
    (run.folder / "summary.json").unlink()
    foreign = start(good, "--exchange", exchange, "--resume", "--seed", "7", folder=run.folder)
    refused(foreign, CheckpointError, "belongs to another job", "seed: 0 there, 7 here")
    again = start(good, "--exchange", exchange, "--resume", folder=run.folder)
    assert again.wait() == 0, again.text
    assert weights == json.loads((run.folder / "summary.json").read_text())["weightsSha256"]
    (run.folder / "summary.json").unlink()
    for state in (run.folder / "checkpoints").glob("update-*/state.safetensors"):
        state.write_bytes(state.read_bytes()[:50])
    refused(start(good, "--resume", folder=run.folder), CheckpointError, "no checkpoint is whole")

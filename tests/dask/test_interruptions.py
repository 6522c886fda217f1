"""A run that is stopped by Ctrl-C, twice, by Kubernetes or by kill -9 resumes from its checkpoint."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from batchgrowth.errors import Interrupted
from batchgrowth_trainer.record.output import JOURNAL_FILE
from processes import still_running

ROOT = Path(__file__).parents[2]
USER_CODE = Path(__file__).parent / "user_code"
sys.path.append(str(USER_CODE))

Start = Callable[..., Any]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The slow digits job: batch 128 -> 256, two workers, 24 updates of about 0.1 s."""
    job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    spec = job["spec"]
    spec["workload"] = {"entrypoint": "slow_digits:workload", "examples": 1437, "arguments": {"seconds": "0.05"}}
    spec |= {"epochs": 3, "workers": {"minimum": 2, "maximum": 2}, "checkpoint": {"everySeconds": 1}}
    spec["batch"] |= {"initial": 128, "maximum": 256, "growth": {"type": "Geometric",
                      "geometric": {"factor": "2", "everyEpochs": 2}}}  # fmt: skip
    (tmp_path / "slow_digits.py").write_text((USER_CODE / "slow_digits.py").read_text())
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


@pytest.fixture
def held(manifest: Path) -> Path:
    """That job with updates of about half a second until `quick`, so that it is stopped in time on a busy machine."""
    job = yaml.safe_load(manifest.read_text())
    job["spec"]["workload"]["arguments"] = {"seconds": "0.3", "mark": str(manifest.with_name("slow"))}
    manifest.with_name("slow").touch()
    manifest.write_text(yaml.safe_dump(job))
    return manifest


def quick(held: Path) -> None:
    """Let the job's shards take no longer than they must."""
    held.with_name("slow").unlink()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of an undisturbed run; they do not depend on the duration of the updates."""
    return digits_weights(
        tmp_path_factory.mktemp("alone"), "epochs=3", "workload.entrypoint=slow_digits:workload",
        "workload.arguments={seconds: '0'}",
        "batch={initial: 128, maximum: 256, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 2}}}",
    )  # fmt: skip


def weights(run: Any) -> str:
    assert run.wait() == 0, run.text
    return str(json.loads((run.folder / "summary.json").read_text())["weightsSha256"])


def gone(run: Any) -> None:
    """Every process of the run has ended."""
    assert [process.cmdline() for process in still_running(run.others, seconds=20)] == []


def saved(run: Any) -> list[Path]:
    return sorted((run.folder / "checkpoints").glob("update-*"))


@pytest.mark.fault("C23")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("exchange", "number"),
    [
        ("AllReduce", signal.SIGINT),
        ("GatherScatter", signal.SIGINT),
        ("SingleProcess", signal.SIGINT),
        ("AllReduce", signal.SIGTERM),
    ],
)
def test_one_signal_saves_and_stops_and_resume_finishes(
    start: Start, held: Path, expected: str, exchange: str, number: signal.Signals
) -> None:
    run = start(held, "--exchange", exchange)
    run.until(lambda: run.says("epoch 1 of 3"))
    run.kill(number)
    assert Interrupted.exit_code == run.wait(), run.text
    assert "Traceback" not in run.text
    assert "stopping after this update" in run.text
    stopped = int(saved(run)[-1].name.split("-")[1].split(".")[0])
    assert f"stopped after update {stopped}; the checkpoint is in" in " ".join(run.text.split())
    assert stopped == run.updates()
    gone(run)
    quick(held)
    assert weights(start(held, "--exchange", exchange, "--resume", folder=run.folder)) == expected


@pytest.mark.smoke
@pytest.mark.fault("C23")
def test_ctrl_c_of_a_terminal_reaches_every_process_and_does_no_harm(start: Start, held: Path, expected: str) -> None:
    """A terminal sends the signal to the workers too; they must go on until their update is done."""
    run = start(held)
    run.until(lambda: run.says("epoch 1 of 3"))
    run.others = psutil.Process(run.process.pid).children(recursive=True)
    os.killpg(run.process.pid, signal.SIGINT)
    assert Interrupted.exit_code == run.wait(), run.text
    assert "Traceback" not in run.text
    assert "worker" not in run.text.partition("stopping after this update")[2]
    gone(run)
    quick(held)
    assert weights(start(held, "--resume", folder=run.folder)) == expected


def to_all(run: Any, *numbers: signal.Signals) -> None:
    """Signal every process of the run, its workers too."""
    run.others = psutil.Process(run.process.pid).children(recursive=True)
    for number in numbers:
        os.killpg(run.process.pid, number)


@pytest.mark.fault("G01")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("exchange", ["AllReduce", "GatherScatter", "SingleProcess"])
@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM, signal.SIGHUP)],
    ids=["timeout", "lost connection", "service manager"],
)
def test_signals_to_every_process_save_and_stop(
    start: Start, held: Path, expected: str, exchange: str, numbers: tuple[signal.Signals, ...]
) -> None:
    run = start(held, "--exchange", exchange, "--set", "checkpoint.everySeconds=300")
    run.until(lambda: run.says("epoch 1 of 3"))
    to_all(run, *numbers)
    assert Interrupted.exit_code == run.wait(), run.text
    [stopped] = saved(run)
    assert f"stopped after update {run.updates()}; the checkpoint is in" in " ".join(run.text.split())
    assert stopped.name == f"update-{run.updates():010d}"
    gone(run)
    quick(held)
    assert weights(start(held, "--exchange", exchange, "--resume", folder=run.folder)) == expected


@pytest.mark.fault("G02")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("exchange", ["AllReduce", "SingleProcess"])
def test_a_closed_pipe_ends_nothing(manifest: Path, expected: str, tmp_path: Path, exchange: str) -> None:
    """The workload prints too, in the workers."""
    code = tmp_path / "slow_digits.py"
    code.write_text(code.read_text().replace("time.sleep(", "print('a shard', flush=True) or time.sleep("))
    command = [str(Path(sys.executable).with_name("batchgrowth")), "run", str(manifest), "--exchange", exchange]
    command += ["--output-dir", str(tmp_path / "run"), "--no-plots"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        for _ in range(3):
            run.stdout.readline()
        run.stdout.close()
        told = run.stderr.read()
        assert run.wait() == 0, told
    assert "stdout cannot be written any more (Broken pipe), and this run goes on without it" in told
    assert str(json.loads((tmp_path / "run" / "summary.json").read_text())["weightsSha256"]) == expected


WAYS: dict[str, tuple[signal.Signals, ...]] = {
    "Ctrl-C": (signal.SIGINT,), "timeout": (signal.SIGTERM, signal.SIGTERM), "lost connection": (signal.SIGHUP,),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.fault("G01")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(10))
def test_at_random_moments(start: Start, manifest: Path, expected: str, any_exchange: str, way: str, seed: int) -> None:
    """Also while workers start, while a group forms, and in an evaluation."""
    draw = random.Random(f"{seed} {way} {any_exchange}")
    run = start(manifest, "--exchange", any_exchange, "--set", "checkpoint.everySeconds=300")
    run.until(lambda: run.says("metrics at"))
    time.sleep(draw.uniform(0, 6))
    if run.process.poll() is None:
        to_all(run, *WAYS[way])
    code = run.wait()
    assert "Traceback" not in run.text
    if -code in WAYS[way]:  # it had written and printed everything, and was about to exit
        assert f"weights SHA-256 {expected}" in run.text
        return
    assert code in (0, Interrupted.exit_code), run.text
    if saved(run):
        assert run.updates() == int(saved(run)[-1].name.split("-")[1].split(".")[0])
    else:
        assert "stopped before the first update; there is nothing to resume" in " ".join(run.text.split())
    gone(run)
    assert weights(start(manifest, "--exchange", any_exchange, "--resume", folder=run.folder)) == expected


@pytest.mark.fault("C23")
@pytest.mark.sampled(2)
def test_two_signals_stop_at_once(start: Start, held: Path, any_exchange: str) -> None:
    run = start(held, "--exchange", any_exchange)
    run.until(lambda: run.says("epoch 1 of 3"))
    run.kill(signal.SIGINT)
    run.until(lambda: run.says("stopping after this update"))
    run.process.send_signal(signal.SIGINT)
    assert Interrupted.exit_code == run.process.wait(timeout=30), run.text
    assert "Traceback" not in run.text
    gone(run)


def test_a_signal_while_the_workers_start(start: Start, manifest: Path) -> None:
    run = start(manifest)
    run.until(lambda: run.says("metrics at"))
    run.kill(signal.SIGINT)
    assert Interrupted.exit_code == run.wait(), run.text
    assert "Traceback" not in run.text
    gone(run)


@pytest.mark.fault("C04", "C23")
@pytest.mark.sampled(1)
def test_kill_9_of_the_whole_run_and_resume_again_and_again(
    start: Start, held: Path, expected: str, exchange: str, scratch: Path
) -> None:
    """No orphan is left, and only updates after the last checkpoint are repeated."""
    folder, begins = None, list[int]()
    for _ in range(2):
        run = start(held, "--exchange", exchange, "--resume", "--set", "checkpoint.everySeconds=1", folder=folder)
        run.until(lambda run=run: newest(run) > sum(begins[-1:]))
        run.kill(signal.SIGKILL)
        run.wait()
        gone(run)
        folder = run.folder
        begins.append(newest(run))
    quick(held)
    run = start(held, "--exchange", exchange, "--resume", folder=folder)
    assert weights(run) == expected
    journal = [json.loads(line) for line in (run.folder / JOURNAL_FILE).read_text().splitlines()]
    assert [line["message"] for line in journal if line["event"] == "Started"] == [
        "started", *(f"resumed after update {update}" for update in begins)
    ]  # fmt: skip
    for left in scratch.glob("batchgrowth-*"):
        for path in sorted(left.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        left.rmdir()


def newest(run: Any) -> int:
    """The update of the newest checkpoint, 0 if there is none."""
    # `update-0000000012.2` is a second checkpoint after update 12.
    return max((int(path.name.removeprefix("update-").partition(".")[0]) for path in saved(run)), default=0)

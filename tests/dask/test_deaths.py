"""Workers that die or hang at any moment change the clock and nothing else."""

import csv
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.choices import GROWTH
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.exchange import connections
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.runs import declared_manifest
from batchgrowth_trainer.sinks.events import CheckpointSaved, Event, Note
from batchgrowth_trainer.training import Options, train
from dask_workers import workers
from hunting import Hunter

JOB = (
    "workload.entrypoint=slow_digits:workload",
    "epochs=6",
    "batch={initial: 64, maximum: 256, shard: 32, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 3}}}",
    "workers.maximum=4",
)


EXACT = sorted(
    (name for name, entry in GROWTH.items() if entry.quantity and not entry.looks_at_clock),
    key=lambda name: name != "NoiseScale",
)
"""The measured rules of growth whose decisions another run repeats."""

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of an undisturbed run."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB)


def options(folder: Path, workers: int) -> Options:
    return Options(output_dir=folder, paths=(USER_CODE,), desired_workers=lambda _plan, _position: workers)


def updates(folder: Path) -> list[int]:
    with (folder / "history.csv").open() as file:
        return [int(row["update"]) for row in csv.DictReader(file)]


def epochs_evaluated(folder: Path) -> list[float]:
    with (folder / "evaluations.csv").open() as file:
        return [float(row["epoch"]) for row in csv.DictReader(file)]


def check(folder: Path, job: BatchGrowthJob, summary: dict[str, Any], expected: str) -> None:
    """The same weights, and a history in which no update and no evaluation is missing."""
    assert summary["weightsSha256"] == expected
    assert list(range(1, make_plan(job.spec).updates + 1)) == updates(folder)
    assert epochs_evaluated(folder) == [1, 2, 3, 4, 5, 6]


@pytest.mark.smoke
@pytest.mark.fault("C01")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_9_of_any_worker_at_any_moment(
    digits_job: Any, tmp_path: Path, expected: str, exchange: str, seed: int
) -> None:
    """Whose loaders, which read single examples ahead, end with it."""
    reading = ("workload.entrypoint=slow_digits:by_item", "workers.loaders=1")
    job = digits_job(*JOB, *reading, f"exchange.type={exchange}", "checkpoint.everySeconds=1")
    hunter = Hunter(seed, most=8)
    with hunter.out():
        summary = train(job, options(tmp_path, 3))
    assert hunter.struck >= 2
    check(tmp_path, job, summary, expected)


@pytest.mark.fault("C01")
def test_kill_9_of_any_member_of_a_grid(
    digits_job: Any, tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five members in three rows, as more than LARGEST_MESH would be; with a member less, in two."""
    monkeypatch.setattr(connections, "LARGEST_MESH", 2)
    job, hunter = digits_job(*JOB, "exchange.type=AllReduce", "checkpoint.everySeconds=1"), Hunter(6, most=3)
    with hunter.out():
        summary = train(job, options(tmp_path, 5))
    assert hunter.struck >= 2
    check(tmp_path, job, summary, expected)


@pytest.mark.fault("C01")
@pytest.mark.parametrize("grows_first", [True, False])
def test_kill_9_of_the_only_worker_after_a_look_that_would_decide_otherwise_now(
    digits_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows_first: bool
) -> None:
    """As a look at a clock may: what the run has recorded is what is repeated."""
    mark, rule = tmp_path / "mark", f"grows_{'first' if grows_first else 'later'}"
    factor = f"1 + (pathlib.Path({str(mark)!r}).exists() is not {grows_first})"
    (tmp_path / f"{rule}.py").write_text(f"import pathlib\n\ndef wanted(look):\n    return look.wanted * ({factor})\n")
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: not run.saved_update)
    growth = f"growth: {{type: Custom, custom: {{entrypoint: '{rule}:wanted'}}, looks: {{everyUpdates: 40}}}}"
    job = digits_job(*JOB, "epochs=2", f"batch={{initial: 32, maximum: 64, shard: 16, {growth}}}")

    class Killer:
        """Kills the worker once it is past the first look."""

        def handle(self, event: Event) -> None:
            if isinstance(event, HistoryRow) and event.update > 40 and not mark.exists():
                mark.touch()
                [worker] = workers()
                worker.kill()

    given = replace(options(tmp_path / "run", 1), paths=(USER_CODE, str(tmp_path)))
    summary = train(job, given, [Killer()])
    assert summary["recoveries"] == 1
    assert [one["update"] for one in summary["decisions"]] == [40 if grows_first else 80]
    assert list(range(1, summary["updates"] + 1)) == updates(tmp_path / "run")
    declared = read_manifest(declared_manifest(tmp_path / "run"))
    again = train(declared, options(tmp_path / "declared", 1))
    assert summary["weightsSha256"] == again["weightsSha256"]


@pytest.mark.fault("C01")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", EXACT)
def test_kill_9_while_growth_is_measured(
    digits_job: Any, tmp_path: Path, digits_weights: Callable[..., str], exchange: str, rule: str
) -> None:
    """A decision survives those who took it, and is neither lost nor taken twice; nor is a gain of the learning rate.

    Every rule but those that look at a clock: the first in `make test-all`, all of them in `make test-long`.
    """
    custom = ", custom: {entrypoint: 'growing:by_least_loss', memory: 2}" if rule == "Custom" else ""
    looks = f"looks: {{everyUpdates: 7, leastChange: '1.05', mostChange: '1.5'}}{custom}"
    measured = (
        *JOB, f"batch={{initial: 32, maximum: 256, shard: 16, growth: {{type: {rule}, {looks}}}}}",
        "learningRate={initial: '0.05', rule: AdaScale, adaScale: {everyUpdates: 5, smoothing: '0.5'}}",
    )  # fmt: skip
    alone = digits_weights(tmp_path / "alone", *measured)
    job, hunter = digits_job(*measured, f"exchange.type={exchange}", "checkpoint.everySeconds=1"), Hunter(4, most=8)
    with hunter.out():
        summary = train(job, options(tmp_path / "hunted", 3))
    assert hunter.struck >= 2
    assert alone == summary["weightsSha256"]
    decided = [(tmp_path / folder / "growth.csv").read_text() for folder in ("alone", "hunted")]
    assert decided[0] == decided[1]
    assert decided[0].count("\n") > 5


@pytest.mark.fault("C01")
@pytest.mark.long
def test_kill_9_before_an_early_end(digits_job: Any, tmp_path: Path, exchange: str) -> None:
    """The end and the best weights survive those who evaluated: with a change that no loss makes, after two misses."""
    early = "stopEarly: {metric: loss, mode: Minimize, patience: 2, minimumChange: '9'}"
    judged = (*JOB, f"evaluation={{keepBest: {{metric: accuracy, mode: Maximize}}, {early}}}")
    alone = train(digits_job(*judged, "exchange.type=SingleProcess"), options(tmp_path / "alone", 1))
    job, hunter = digits_job(*judged, f"exchange.type={exchange}", "checkpoint.everySeconds=1"), Hunter(8, most=8)
    with hunter.out():
        summary = train(job, options(tmp_path / "hunted", 3))
    assert hunter.struck >= 2
    for key in ("updates", "weightsSha256", "best", "stoppedEarly"):
        assert alone[key] == summary[key], key
    assert epochs_evaluated(tmp_path / "hunted") == [1, 2, 3]
    assert list(range(1, alone["updates"] + 1)) == updates(tmp_path / "hunted")


@pytest.mark.fault("C02")
def test_kill_9_of_the_only_worker(digits_job: Any, tmp_path: Path, expected: str, exchange: str) -> None:
    """With all workers dead, training goes on from the last checkpoint, or from the beginning if there is none."""
    job, hunter = digits_job(*JOB, f"exchange.type={exchange}", "checkpoint.everySeconds=1"), Hunter(5, 3, pause=2.0)
    with hunter.out():
        summary = train(job, options(tmp_path, 1))
    assert hunter.struck >= 1
    check(tmp_path, job, summary, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [3, 1])
def test_unreported_updates_are_in_the_history(digits_job: Any, tmp_path: Path, expected: str, count: int) -> None:
    """The reporting member dies with its unreported rows; a checkpoint and every other member have them too."""
    silent = ("workload.entrypoint=silent_digits:workload", "exchange.type=AllReduce", "checkpoint.everySeconds=1")
    job, hunter = digits_job(*JOB, *silent), Hunter(7, most=5, pause=2.0)
    with hunter.out():
        summary = train(job, options(tmp_path, count))
    assert hunter.struck >= 1
    check(tmp_path, job, summary, expected)


@pytest.mark.fault("C12")
def test_a_worker_that_is_silent_for_a_moment_is_waited_for(digits_job: Any, tmp_path: Path, expected: str) -> None:
    """Shorter than exchange.timeoutSeconds: as behind a network that is away for some seconds."""
    job = digits_job(*JOB, "exchange.type=AllReduce", "exchange.timeoutSeconds=60", "workers.waitSeconds=60")
    stopped = list[int]()

    def desired_workers(_plan: Plan, position: Position) -> int:
        if position.update > 20 and not stopped:
            stopped.append(random.Random(3).choice(workers()).pid)
            os.kill(stopped[0], signal.SIGSTOP)
            threading.Timer(3.0, os.kill, (stopped[0], signal.SIGCONT)).start()
        return 2

    summary = train(job, Options(output_dir=tmp_path, paths=(USER_CODE,), desired_workers=desired_workers))
    assert stopped
    assert summary["recoveries"] == 0
    check(tmp_path, job, summary, expected)


@pytest.mark.fault("C09", "C12")
@pytest.mark.sampled(1)
def test_a_worker_that_hangs_is_restarted(digits_job: Any, tmp_path: Path, expected: str, exchange: str) -> None:
    """With AllReduce, where the workers alone have the state, once that is saved."""
    job = digits_job(*JOB, f"exchange.type={exchange}", "exchange.timeoutSeconds=10", "workers.waitSeconds=60")
    stopped, told = threading.Event(), list[str]()

    def handle(event: Event) -> None:
        if isinstance(event, HistoryRow) and event.update > 20 and not stopped.is_set():
            stopped.set()
            os.kill(random.Random(3).choice(workers()).pid, signal.SIGSTOP)
        elif isinstance(event, CheckpointSaved):
            told.append("saved")
        elif isinstance(event, Note) and "does not answer" in event.text:
            told.append("restarted")

    summary = train(job, options(tmp_path, 2), [SimpleNamespace(handle=handle)])
    assert stopped.is_set()
    if exchange == "AllReduce":
        assert told[:2] == ["saved", "restarted"]
    assert summary["recoveries"] >= 1
    check(tmp_path, job, summary, expected)

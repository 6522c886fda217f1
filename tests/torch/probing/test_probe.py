"""Branches of a run: the one with its batch is the run, and on a quadratic the critical batch is the known one."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import cli
from batchgrowth.errors import BatchGrowthError, CheckpointError, DataError, Interrupted, PlanError, SpecError
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.probe import batch_block
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.building import trained_replica
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.probing import Probe, probed
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.training import Options, train

CONSTANT = "batch={initial: 8, maximum: 32, shard: 4, growth: {type: Constant}}"
SMALL = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {name: small}
spec:
  seed: 3
  workload: {entrypoint: "small:net", examples: 90}
  epochs: 4
  batch: {initial: 8, maximum: 32, shard: 4, growth: {type: Constant}}
  learningRate: {initial: "0.05"}
  optimizer: {type: SGD, sgd: {momentum: "0.9", nesterov: true, weightDecay: "0.0005"}}
  exchange: {type: SingleProcess}
  checkpoint: {keep: 100}
"""
"""Batch norm, dropout and noise; twelve updates an epoch."""


def job_of(*overrides: str) -> BatchGrowthJob:
    return read_manifest(SMALL, overrides)


class Stop:
    """A sink, and a request to stop after so many updates."""

    def __init__(self, update: int) -> None:
        self._update = update
        self._seen = 0

    def handle(self, event: Any) -> None:
        if isinstance(event, HistoryRow):
            self._seen = event.update

    def requested(self) -> bool:
        return self._seen >= self._update


def stopped(folder: Path, job: BatchGrowthJob, update: int) -> Path:
    """The folder of a run that was stopped after an update."""
    stop = Stop(update)
    with pytest.raises(Interrupted):
        train(job, Options(output_dir=folder), [stop], stop.requested)
    return folder


def probe_of(folder: Path, *overrides: str, examples: int | None = None, orders: int = 1) -> Probe:
    return probed(folder, overrides, examples=examples, orders=orders, tolerance=0.02, say=lambda _line: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run, with a checkpoint of each update."""
    folder = tmp_path_factory.mktemp("probed") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunState, "checkpoint_due", lambda run: True)
        train(job_of(), Options(output_dir=folder))
    return folder


@pytest.fixture
def at_17(whole: Path, interrupted: Callable[[Path, int], Path]) -> Iterator[Path]:
    """The run as if it had stopped after update 17, in the middle of the second epoch."""
    folder = interrupted(whole, 17)
    yield folder
    shutil.rmtree(folder)


def test_the_branch_with_the_batch_of_the_run_is_the_run(whole: Path, at_17: Path) -> None:
    """Until its end, bit for bit, although branches with other batches and other orders were made before; the folder
    stays as it was.
    """
    before = {path: path.stat().st_mtime_ns for path in at_17.rglob("*")}
    probe = probe_of(at_17, orders=2)

    assert probe.run_sha256 == json.loads((whole / "summary.json").read_text())["weightsSha256"]
    assert [(branch.batch_size, branch.updates) for branch in probe.branches][:5] == [
        (2, 115), (4, 59), (8, 31), (16, 16), (32, 8),
    ]  # fmt: skip
    assert all(len(set(branch.losses)) == 2 for branch in probe.branches)
    assert before == {path: path.stat().st_mtime_ns for path in at_17.rglob("*")}


def test_so_is_one_of_a_measured_growth_until_a_look_changes_the_batch(tmp_path: Path) -> None:
    """Its memory of the gradients decides the learning rate, by AdaScale."""
    overrides = (
        "batch.growth={type: NoiseScale, looks: {everyEpochs: 2}}",
        "learningRate={initial: '0.05', rule: AdaScale, adaScale: {everyUpdates: 5}}",
    )
    probe = probe_of(stopped(tmp_path / "run", job_of(*overrides), 17), examples=50)
    later = trained_replica(stopped(tmp_path / "later", job_of(*overrides), 24))

    assert probe.stretch.examples == 50
    assert probe.run_sha256 == weights_sha256(later.state_dict())


def test_a_run_goes_on_with_the_block(at_17: Path) -> None:
    """What is done is the same with it, so the run resumes; from the probe on it has the other batch."""
    start = probe_of(at_17).start
    block = batch_block(start.job.spec, start.plan, start.snapshot.position, 32)
    job = job_of(f"batch={json.dumps(block)}")
    summary = train(job, Options(output_dir=at_17, resume=True))
    rows = (at_17 / "history.csv").read_text().splitlines()[1:]

    assert [int(row.split(",")[3]) for row in rows] == [8] * 17 + [32] * (summary["updates"] - 17)


# --- The known critical batch of a quadratic ---

TOLERANCE = 0.02
QUADRATIC = (
    "workload={entrypoint: 'quadratic:workload', examples: 4096}",
    "batch={initial: 8, maximum: 32, shard: 2, growth: {type: Constant}}",
    "epochs=2",
)


def expected_loss(batch: float, rate: float, distance: float, examples: int) -> float:
    """The expected loss after so many examples, from a square distance to the optimum: the variance of the data, what
    is left of the distance, and the noise of the gradients, whose covariance is that of the data.
    """
    updates = examples / batch
    kept = (1 - rate) ** (2 * updates)
    variance = 8.0
    noise = rate**2 * variance / batch * (1 - kept) / (1 - (1 - rate) ** 2)
    return (variance + kept * distance + noise) / 2


def known_critical(rate: float, distance: float, examples: int) -> float:
    """The batch whose expected loss is above the least of smaller ones by the tolerance."""
    batch = best = 2.0
    least = math.inf
    while batch < 64:
        loss = expected_loss(batch, rate, distance, examples)
        if loss > (1 + TOLERANCE) * least:
            return best
        least = min(least, loss)
        best = batch
        batch *= 1.01
    return math.inf


@pytest.mark.parametrize("rate", [0.02, 0.04, 0.08])
def test_the_critical_batch_of_a_quadratic_with_known_noise(rate: float, tmp_path: Path) -> None:
    """Within a factor of 1.5, by branches of 576 examples from a square distance of some ten."""
    folder = stopped(tmp_path / "run", job_of(*QUADRATIC, f"learningRate.initial={rate}", "optimizer={type: SGD}"), 1)
    probe = probe_of(folder, examples=576, orders=2)
    place = probe.start.snapshot.tensors["parameters"].double()
    known = known_critical(rate, float(place.square().sum()), 576)
    found = probe.critical(TOLERANCE)

    assert found.beyond is not None
    assert 1 / 1.5 < found.value / known < 1.5
    for branch in probe.branches:
        expected = expected_loss(branch.batch_size, rate, float(place.square().sum()), 576)
        assert branch.loss == pytest.approx(expected, rel=0.02)


# --- The command ---

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function: exit code, output and errors of `batchgrowth probe`."""
    command = EntryPoint("probe", "batchgrowth_trainer.commands:probe", cli.COMMANDS)
    monkeypatch.setattr(cli, "entry_points", lambda group: [command])
    monkeypatch.setenv("COLUMNS", "200")

    def ran(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["probe", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return ran


def test_what_the_command_prints(run: Run, at_17: Path) -> None:
    code, out, err = run(at_17, "--orders", 1)
    lines = out.splitlines()
    block = yaml.safe_load("\n".join(lines[lines.index("batch:") :]))

    assert code == 0
    assert lines[0] == (
        "from update 17, epoch 1.444, where the run has a batch of 8; each branch takes 230 examples, in one order"
    )
    assert lines[1].split() == ["batch", "learning", "rate", "updates", "loss", "above", "the", "best", "smaller"]
    assert lines[2].split()[:3] == ["2", "0.05", "115"]
    assert any(line.startswith("critical batch: ") for line in lines)
    assert block["batch"]["initial"] == 8
    assert "batch 32: loss " in err


def test_what_it_prints_for_programs(run: Run, at_17: Path) -> None:
    code, out, _ = run(at_17, "--orders", 1, "--json")
    found = json.loads(out)

    assert code == 0
    assert (found["update"], found["batchSize"], found["examples"], found["orders"]) == (17, 8, 230, 1)
    assert [row["batchSize"] for row in found["branches"]] == sorted(row["batchSize"] for row in found["branches"])
    assert found["critical"]["within"] in [row["batchSize"] for row in found["branches"]]
    assert found["batch"]["initial"] == 8


def refused(folder: Path, *overrides: str, kind: type[BatchGrowthError], **options: Any) -> str:
    with pytest.raises(kind) as error:
        probe_of(folder, *overrides, **options)
    return str(error.value).replace(str(folder), "RUN")


def test_a_folder_without_a_run_or_a_checkpoint(tmp_path: Path, at_17: Path) -> None:
    shutil.rmtree(at_17 / "checkpoints")

    assert refused(tmp_path, kind=DataError) == "RUN: there is no job.yaml here; name the --output-dir of a run"
    assert refused(at_17, kind=DataError) == (
        "RUN: there is no whole checkpoint in checkpoints; train for longer, or stop the run by Ctrl-C, which "
        "writes one"
    )


def test_a_run_that_has_ended_and_one_that_would_go_on(whole: Path) -> None:
    assert refused(whole, kind=DataError) == (
        "RUN: the run has ended after epoch 4, so no update is left to branch from; probe a run that goes on, or one "
        "that would, with --set epochs=8"
    )
    longer = probe_of(whole, "epochs=5")
    assert longer.stretch.examples == 90
    assert longer.notes == [
        "the largest batch makes 3 updates, which say little; give more --examples, or probe where the run keeps its "
        "batch for longer"
    ]


def test_settings_that_would_have_changed_what_is_done(at_17: Path) -> None:
    assert refused(at_17, "learningRate.initial=0.1", kind=CheckpointError) == (
        "--set: the updates that are done would have been others (update 1 has learning rate 0.05 there, 0.1 here); "
        "undo the change"
    )


def test_an_exchange_that_one_process_cannot_repeat(tmp_path: Path, at_17: Path) -> None:
    text = (at_17 / "job.yaml").read_text().replace("type: SingleProcess", "type: Downpour")
    (at_17 / "job.yaml").write_text(text)

    assert refused(at_17, kind=SpecError) == (
        "spec.exchange.type: Downpour; probe a run whose weights are those of one process: exchange AllReduce, "
        "GatherScatter, ParameterServer, SingleProcess"
    )


def test_a_warm_up_and_a_stretch_that_is_too_short(tmp_path: Path, at_17: Path) -> None:
    warm = stopped(tmp_path / "warm", job_of("learningRate.warmup={updates: 20, initial: '0.01'}"), 2)

    assert refused(warm, kind=PlanError) == (
        "spec.learningRate.warmup.updates: 20, and the checkpoint is of update 2; probe after the warm-up, during "
        "which the learning rate follows the updates"
    )
    assert refused(at_17, examples=20, kind=PlanError) == (
        "--examples: 20; give 50 or more, after which all branches end an update"
    )


def test_a_larger_batch_that_fails_is_beyond_the_critical_one(tmp_path: Path) -> None:
    """By a learning rate of 2 and more, with which a quadratic diverges."""
    overrides = (*QUADRATIC, "learningRate={initial: '1.9', rule: Linear}", "optimizer={type: SGD}")
    probe = probe_of(stopped(tmp_path / "run", job_of(*overrides), 1), examples=1920)

    assert [branch.batch_size for branch in probe.branches if math.isinf(branch.loss)] == [16, 32]
    assert probe.critical(TOLERANCE).within < 16
    assert probe.notes[0].startswith("a batch of 16 fails: update ")

"""Growth that is measured: the same decisions and weights after every interruption, and when they are declared."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from batchgrowth.choices import GROWTH
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth.looks import Timing
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import MOST_DECISIONS, BatchDecision, make_plan
from batchgrowth.position import Position
from batchgrowth.shards import lay_out
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.exchange.all_reduce import add_up
from batchgrowth_trainer.record.decided import decisions_in
from batchgrowth_trainer.record.runs import decisions_of, declared_manifest, recorded_course
from batchgrowth_trainer.replica.data import example_order
from batchgrowth_trainer.replica.decisions import GrowthState, Stopwatch
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.training import Options, train
from safetensors.torch import load_file

MEASURED = [name for name, entry in GROWTH.items() if entry.quantity]
EXACT = [name for name in MEASURED if not GROWTH[name].looks_at_clock]
"""The rules that decide the same in every run."""


def growth(name: str, looks: str = "everyUpdates: 5, leastChange: '1.01'", function: str = "small:by_loss") -> str:
    custom = f", custom: {{entrypoint: '{function}', memory: 2}}" if name == "Custom" else ""
    return f"batch.growth={{type: {name}, looks: {{{looks}}}{custom}}}"


@pytest.fixture
def measured_job(small_job: Any) -> Any:
    """A function: the small job with that rule, 90 examples in batches of 8 to 32 and shards of 4, with overrides."""
    rates = {"Cabs": ("learningRate.initial=1",)}  # its batch is proportional to the learning rate
    return lambda name, *more: small_job("workload.entrypoint=small:net", growth(name), *rates.get(name, ()), *more)


def train_in(folder: Path, job: BatchGrowthJob) -> Path:
    train(job, Options(output_dir=folder))
    return folder


def looks(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "growth.csv").open() as file:
        return [tuple(row) for row in csv.reader(file)]


@pytest.fixture
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which each update takes a second, whatever its examples."""
    lap = Stopwatch.lap
    monkeypatch.setattr(Stopwatch, "lap", lambda watch, step, workers, _seconds: lap(watch, step, workers, 1.0))


@pytest.mark.fault("D15")
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.usefixtures("at_every_update")
def test_from_every_checkpoint_the_same_decisions_and_weights_follow(
    measured_job: Any, tmp_path: Path, interrupted: Callable[[Path, int], Path], name: str
) -> None:
    job = measured_job(name, "checkpoint.keep=100")
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    assert decisions_of(tmp_path / "whole", job), "the batch never grew, so this test would show nothing"
    for update in range(2, whole["updates"], 6):
        folder = interrupted(tmp_path / "whole", update)
        again = train(job, Options(output_dir=folder, resume=True))
        assert whole["weightsSha256"] == again["weightsSha256"]
        assert looks(tmp_path / "whole") == looks(folder)


@pytest.mark.fault("D15")
@pytest.mark.parametrize(
    "growth", ["{type: Geometric, geometric: {factor: '2', everyEpochs: 1}}", "{type: NoiseScale}"]
)
@pytest.mark.usefixtures("at_every_update")
def test_the_gain_of_the_learning_rate_moves_with_the_state(
    small_job: Any, tmp_path: Path, interrupted: Callable[[Path, int], Path], growth: str
) -> None:
    """From every checkpoint AdaScale's rates and weights follow, and so they do when the growth is declared."""
    job = small_job(
        "workload.entrypoint=small:net", f"batch.growth={growth}", "checkpoint.keep=100",
        "learningRate={initial: '0.05', rule: AdaScale, adaScale: {everyUpdates: 5, smoothing: '0.5'}}",
    )  # fmt: skip
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    expected = learning_rates(tmp_path / "whole")
    assert len(set(expected)) > 2, "nothing was gained, so this test would show nothing"
    for update in range(2, whole["updates"], 5):
        folder = interrupted(tmp_path / "whole", update)
        again = train(job, Options(output_dir=folder, resume=True))
        assert whole["weightsSha256"] == again["weightsSha256"]
        assert learning_rates(folder) == expected
    declared = train(read_manifest(declared_manifest(tmp_path / "whole")), Options(output_dir=tmp_path / "declared"))
    assert whole["weightsSha256"] == declared["weightsSha256"]


def learning_rates(folder: Path) -> list[str]:
    with (folder / "history.csv").open() as file:
        return [row["learningRate"] for row in csv.DictReader(file)]


@pytest.mark.usefixtures("at_every_update", "by_number")
def test_goodput_resumes_with_its_memory_and_is_repeated_by_replay(
    measured_job: Any, tmp_path: Path, interrupted: Callable[[Path, int], Path]
) -> None:
    """The update before the interruption and the first one after it are not timed, so later looks may differ."""
    job = measured_job("Goodput", "checkpoint.keep=100")
    whole, decided = tmp_path / "whole", looks(train_in(tmp_path / "whole", job))
    folder = interrupted(whole, 17)
    resumed = train(job, Options(output_dir=folder, resume=True))

    assert [row[-1] for row in decided[2:4]] == ["8", "16"], "the batch did not grow, so this test shows nothing"
    assert decided[:4] == looks(folder)[:4]
    state = load_file(folder / "checkpoints" / f"update-{resumed['updates']:010d}" / "state.safetensors")
    timed = state["growth.course"][-5]
    assert resumed["updates"] - 4 == timed, "the first and the last update of each part are not in the sums"

    again = train(read_manifest(declared_manifest(folder)), Options(output_dir=tmp_path / "declared"))
    assert resumed["weightsSha256"] == again["weightsSha256"]


def test_the_row_carries_the_clock_of_one_member(measured_job: Any, make_replica: Any) -> None:
    """Members whose clocks differ commit the same total, so they decide the same."""
    job = measured_job("Goodput")
    members = [make_replica(job, small.net()) for _ in range(2)]
    for update in range(12):
        step = members[0].plan.step_at(members[0].position)
        layout = lay_out(step.shards, 2)
        partials = [member.partials(step, run) for member, run in zip(members, layout.runs, strict=True)]
        members[0].tail.write_timing(partials[0][0].row, Timing(0.5 + update, 4.0 + update))
        total = add_up([partial.row.clone() for some in partials for partial in some], layout)
        decided = [member.commit(step, total.clone()).decision for member in members]
        assert decided[0] == decided[1]
    vectors = [member.growth.tensors()["growth.course"] for member in members]
    assert torch.equal(vectors[0], vectors[1])
    sums = [sum(numbers) for numbers in ([1.0] * 12, range(4, 16), (0.5 + update for update in range(12)))]
    assert sums == pytest.approx(vectors[0][-5:-2].tolist())


@pytest.mark.fault("C01")
def test_updates_that_are_made_again_are_decided_as_before(measured_job: Any, make_replica: Any) -> None:
    """Whatever the clock says now, until the last update that the run has recorded."""

    def trained(seconds: Callable[[float], float], recorded: Sequence[BatchDecision] = (), until: int = 0) -> Any:
        replica = make_replica(measured_job("Goodput"), small.net())
        replica.growth.repeat(recorded, until)
        while replica.position.update < 16:
            step = replica.plan.step_at(replica.position)
            [total] = replica.partials(step, (0, step.shards))
            load = float(step.examples + replica.position.update % 2)
            replica.tail.write_timing(total.row, Timing(seconds(load), load))
            replica.commit(step, total.row)
        return replica.growth.course.decisions

    grown = trained(lambda _: 1.0)
    steady = trained(lambda load: load)
    assert [one.update for one in grown] == [5, 10]
    assert steady == ()
    assert trained(lambda load: load, grown, 16) == grown
    assert trained(lambda load: load, grown, 7) == grown[:1]
    assert trained(lambda _: 1.0, steady, 16) == steady


def test_a_stopwatch_leaves_the_first_update_out(measured_job: Any, make_replica: Any) -> None:
    step, watch = make_replica(measured_job("Goodput"), small.net()).plan.step_at(Position()), Stopwatch()
    assert Timing() == watch.timing
    watch.lap(step, 1, 9.0)
    assert Timing() == watch.timing
    watch.lap(step, 1, 0.5)
    assert Timing(0.5, 8.0) == watch.timing
    watch.lap(step, 2, 0.5)
    assert Timing(0.5, 4.0) == watch.timing


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.usefixtures("by_number")
def test_the_declared_manifest_of_a_run_repeats_it(measured_job: Any, tmp_path: Path, name: str) -> None:
    job = measured_job(name)
    first = train(job, Options(output_dir=tmp_path / "measured"))
    declared = read_manifest(declared_manifest(tmp_path / "measured"))
    again = train(declared, Options(output_dir=tmp_path / "declared"))

    assert declared.spec.batch.growth.type == "Milestones"
    assert first["weightsSha256"] == again["weightsSha256"]
    assert first["updates"] == again["updates"] < 48  # 4 epochs of 12 updates of 8
    assert declared == read_manifest(declared_manifest(tmp_path / "declared"))
    assert make_plan(declared.spec) == recorded_course(tmp_path / "measured").plan


def test_a_run_that_decided_nothing_is_constant(measured_job: Any, tmp_path: Path) -> None:
    never = growth("LossRatio", "everyUpdates: 11, leastChange: '2', mostChange: '2'")
    train(measured_job("LossRatio", never, "epochs=1"), Options(output_dir=tmp_path))
    assert read_manifest(declared_manifest(tmp_path)).spec.batch.growth.type == "Constant"


def test_a_folder_without_a_run_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no job\.yaml here"):
        declared_manifest(tmp_path)


@pytest.mark.parametrize(("batch", "cuts"), [(8, (4, 4)), (10, (3, 3, 4))])
def test_the_sums_of_a_row_are_those_of_plain_gradients(
    measured_job: Any, make_replica: Any, batch: int, cuts: tuple[int, ...]
) -> None:
    """The last numbers of the row: sum of |g|² / n over the shards, times the largest n; the loss; the stop flag."""
    replica: Replica = make_replica(measured_job("NoiseScale", f"batch.initial={batch}"), small.plain())
    reference, step = small.plain(), replica.plan.step_at(replica.position)
    order = example_order(replica.spec.seed, 0, replica.plan.examples_per_epoch)[: step.examples]
    squares = losses = 0.0
    for shard in order.split(cuts):
        reference.model.zero_grad()
        inputs, target = reference.train[shard.tolist()]
        loss = reference.loss(reference.model(inputs), target).sum()
        loss.backward()
        squares += sum(float(p.grad.square().sum()) for p in reference.model.parameters()) / len(shard)
        losses += loss.item()
    rows = [p.row for run in lay_out(step.shards, 2).runs for p in replica.partials(step, run, stop=True)]
    total = add_up(rows, lay_out(step.shards, 2))
    assert [squares * 4, losses] == pytest.approx(total[-3:-1].tolist(), rel=1e-5)
    assert total[-1] > 0


def test_the_course_moves_with_the_state(measured_job: Any, make_replica: Any) -> None:
    """Written into another replica's vectors, the state brings its decisions."""
    job: BatchGrowthJob = measured_job("NoiseScale")
    replica, newcomer = make_replica(job, small.net()), make_replica(job, small.net())
    while not replica.growth.course.decisions:
        step = replica.plan.step_at(replica.position)
        replica.commit(step, replica.partials(step, (0, step.shards))[0].row)
    newcomer.restore(replica.snapshot())

    assert replica.growth.course.decisions == newcomer.growth.course.decisions
    assert replica.plan == newcomer.plan
    assert replica.growth.course.decisions == decisions_in(replica.snapshot().tensors)
    assert decisions_in({"parameters": torch.zeros(3)}) == ()


def test_a_declared_job_carries_no_course(small_job: Any, make_replica: Any) -> None:
    """Its state is the one that earlier checkpoints hold."""
    assert GrowthState(small_job().spec, torch.device("cpu")).tensors() == {}
    assert make_replica(small_job(), small.plain()).tensors().keys() == {"parameters", "optimizer.momentum_buffer"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("small:by_los", r"batch\.growth\.custom\.entrypoint: small has no 'by_los'; did you mean by_loss\?"),
        ("absent:rule", r"batch\.growth\.custom\.entrypoint: no module named 'absent'"),
        ("small:EXAMPLES", r"batch\.growth\.custom\.entrypoint: small:EXAMPLES is a int; name a function"),
        (
            "small:failing_growth",
            r"on made-up measurements, before the first update, raised KeyError: 'loss' \(.*small\.py:\d+, in failing_",
        ),
        ("small:forgetful_growth", r"before the first update, raised ValueError: the rule's memory has 0 numbers"),
        ("small:silent_growth", r"before the first update, raised TypeError: float\(\) argument must be"),
    ],
)
def test_a_faulty_rule_is_named_with_its_line(measured_job: Any, tmp_path: Path, function: str, message: str) -> None:
    job = measured_job("Custom", growth("Custom", function=function))
    with pytest.raises(WorkloadError, match=message):
        train(job, Options(output_dir=tmp_path))


def test_the_vector_has_room_for_every_decision(measured_job: Any) -> None:
    vector = GrowthState(measured_job("LossRatio").spec, torch.device("cpu")).tensors()["growth.course"]
    assert len(vector) >= 3 * MOST_DECISIONS + 1

"""Constants fitted to updates: of a known step time, and of what a run observed of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from batchgrowth.errors import DataError, SpecError
from batchgrowth.forecast.course_time import plan_seconds, remaining_plan, run_time
from batchgrowth.forecast.step_time import StepTime
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.shards import shard_count, shard_runs
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.forecasting.fitting import Cell, between_updates, cells_of, constants_of, examples_of, fitted
from batchgrowth_trainer.record.history import HISTORY_HEADER, HistoryRow
from scipy.optimize import minimize

EXAMPLES = Path(__file__).parents[3] / "examples"
NETS = {
    "small": StepTime(per_update=0.001, per_shard=0.0005, per_example=0.00001),
    "wide": StepTime(per_update=0.004, per_example=0.0004),
    "deep": StepTime(per_update=0.02, per_shard=0.004, per_example=0.002),
}
EXCHANGES = {
    "fast": {"per_group": 0.0003, "per_doubling": 0.0002},
    "slow": {"per_group": 0.002, "per_doubling": 0.004},
    "central": {"per_group": 0.001, "per_worker": 0.002},
}
GROWTH = "batch.growth={type: Geometric, geometric: {factor: '2', everyEpochs: 5}}"


def job_of(growth: str) -> BatchGrowthJob:
    return load_manifest(EXAMPLES / "digits.yaml", [growth])


def history(plan: Plan, step: StepTime, share: float, seed: int) -> list[HistoryRow]:
    """The updates of the first part of a run whose pace is noisy, drifts, and stalls now and then."""
    random = np.random.default_rng(seed)
    rows: list[HistoryRow] = []
    position = plan.position_at(0)
    passed = 0.0
    drift = 0.0
    while len(rows) < share * plan.updates:
        update = plan.step_at(position)
        workers = min(update.workers, plan.parts(update.batch_size))
        drift = 0.99 * drift + 0.003 * random.standard_normal()
        noise = np.exp(drift + 0.08 * random.standard_normal()) * (1 + 2 * (random.uniform() < 0.01))
        seconds = step.seconds(update.examples, update.shards, workers) * noise
        exchange = step.exchange(workers) * noise
        runs = [hi - lo for lo, hi in shard_runs(update.shards, workers)]
        own = min(runs) if step.lone_exchange else runs[0]  # as the drivers take the time for computing
        each = step.per_shard + step.per_example * update.examples / update.shards
        compute = (step.per_update + own * each) * noise
        passed += seconds
        position = update.after
        rows.append(
            HistoryRow(
                update=position.update, epoch=position.epoch + position.offset / plan.examples_per_epoch,
                stage=update.stage, batch_size=update.batch_size, learning_rate=0.1, loss=1.0, workers=workers,
                compute_seconds=compute, exchange_seconds=exchange, wait_seconds=seconds - exchange - compute,
                seconds=passed,
                examples=update.examples, shards=update.shards,
            )
        )  # fmt: skip
    return rows


NEAR_ZERO = 1e-8


def adaptdl(cells: Sequence[Cell]) -> Callable[[float, int], float]:
    """AdaptDL's step time (Qiao et al. 2021, section 3.2), fitted as its authors do: the seconds of an update by a
    worker's examples and the workers, T = (Tgrad^g + Tnet^g)^(1/g).

    Five of its seven constants: a worker is a node, so the pair within a node has no data and is not there. What was
    not observed is pinned as AdaptDL pins it: without several workers the exchange takes no time, and without more than
    two it does not grow with them.
    """
    batches = np.array([cell.columns[2] for cell in cells])
    workers = np.array([cell.workers for cell in cells], dtype=float)
    seconds = np.array([cell.seconds for cell in cells])
    most = workers.max()

    def times(p: np.ndarray, each: np.ndarray, count: np.ndarray) -> np.ndarray:
        grad = p[0] + p[1] * each
        net = np.where(count > 1, p[2] + p[3] * np.maximum(count - 2, 0), NEAR_ZERO)
        return np.asarray((grad ** p[4] + net ** p[4]) ** (1 / p[4]))

    def loss(p: np.ndarray) -> float:
        error = np.log(times(p, batches, workers)) - np.log(seconds)
        return float(np.sqrt(np.mean(error**2)) + 1e-3 * (p[4] - 1) ** 2 + 1e-2 * (p[3] / p[2]) ** 2)

    free = (NEAR_ZERO, None)
    pinned = (NEAR_ZERO, NEAR_ZERO)
    bounds = [free, free, free if most > 1 else pinned, free if most > 2 else pinned, (1, 10)]
    exchange = [NEAR_ZERO if one == pinned else 1e-3 for one in bounds[2:4]]
    start = [seconds.mean() / 2, seconds.mean() / 2 / batches.mean(), *exchange, 1.1]
    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    return lambda each, count: float(times(found, np.array([each]), np.array([float(count)]))[0])


def by_adaptdl(cells: Sequence[Cell], plan: Plan) -> float:
    """The seconds of a plan by that model."""
    model = adaptdl(cells)
    total = 0.0
    position = plan.position_at(plan.stages[0].first_update)
    while not plan.is_done(position):
        step = plan.step_at(position)
        workers = min(step.workers, plan.parts(step.batch_size))
        shards = shard_count(step.examples, plan.shard, plan.replicas)
        total += model(Cell(step.examples, shards, workers, 0.0).columns[2], workers)
        position = step.after
    return total


def test_constants_that_every_update_shows_are_found() -> None:
    plan = make_plan(job_of(GROWTH).spec)
    step = replace(NETS["wide"], **EXCHANGES["slow"])
    found = constants_of(cells_of(history(plan, step, 1.0, seed=1), plan), 0.0, "here")

    assert sum(plan_seconds(plan, found.step)) == pytest.approx(sum(plan_seconds(plan, step)), rel=0.05)
    assert found.step.seconds(512, 4, 4) == pytest.approx(step.seconds(512, 4, 4), rel=0.1)
    assert (found.notes, found.exchange_note) == ((), "")


def test_the_rest_of_a_run_is_known_after_a_tenth_of_it() -> None:
    """Nine runs, three nets with three exchanges, which until then had one worker and one batch: within 15 % in the
    median, nearer than AdaptDL's constants, and in the interval for 8 of 10.
    """
    plan = make_plan(job_of(GROWTH).spec)
    errors = []
    theirs = []
    covered = []
    for number, (net, exchange) in enumerate((net, exchange) for net in NETS for exchange in EXCHANGES):
        rows = history(plan, replace(NETS[net], **EXCHANGES[exchange]), 1.0, seed=number)
        seen = rows[: len(rows) // 10]
        cells = cells_of(seen, plan)
        rest = remaining_plan(plan, len(seen))
        made = run_time(rest, constants_of(cells, 0.0, "here")).seconds
        actual = rows[-1].seconds - seen[-1].seconds
        errors.append(abs(made.value / actual - 1))
        theirs.append(abs(by_adaptdl(cells, rest) / actual - 1))
        covered.append(made.low <= actual <= made.high)

    assert float(np.median(errors)) < min(0.15, float(np.median(theirs)))
    assert sum(covered) >= 0.8 * len(covered)


@pytest.mark.parametrize("lone_exchange", [False, True])
def test_the_rest_of_a_run_that_shrinks(*, lone_exchange: bool) -> None:
    """Until then it had four workers. What one worker exchanges is a guess, which the interval covers."""
    steps = "[{update: 1, batchSize: 128}, {update: 100, batchSize: 64}, {update: 250, batchSize: 32}]"
    workers = "workers={minimum: 1, maximum: 4, examplesPerWorker: 32}"
    job = load_manifest(
        EXAMPLES / "digits.yaml", [f"batch.growth={{type: Milestones, milestones: {{steps: {steps}}}}}", workers]
    )
    plan = make_plan(job.spec)
    covered = []
    for seed in range(3):
        central = StepTime(per_shard=0.02, per_group=0.004, per_worker=0.004, lone_exchange=lone_exchange)
        rows = history(plan, central, 1.0, seed=seed)
        seen = [row for row in rows if row.batch_size == 128][: len(rows) // 10]
        cells = cells_of(seen, plan, lone_exchange=lone_exchange)
        constants = constants_of(cells, 0.0, "here", lone_exchange=lone_exchange)
        made = run_time(remaining_plan(plan, seen[-1].update), constants).seconds
        actual = rows[-1].seconds - seen[-1].seconds
        assert made.value == pytest.approx(actual, rel=0.15)
        covered.append(made.low <= actual <= made.high)

    assert all(covered)


@pytest.mark.parametrize("lone_exchange", [False, True])
def test_one_worker_instead_of_several_that_had_unequal_runs(*, lone_exchange: bool) -> None:
    """Three shards on two workers and six on four: the worker that ends first has one of them, the busiest two."""
    growth = "growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 4}}"
    job = load_manifest(
        EXAMPLES / "digits.yaml",
        [
            f"batch={{initial: 24, maximum: 96, shard: 16, {growth}}}",
            "workers={minimum: 1, maximum: 4, examplesPerWorker: 24}",
            "epochs=12",
        ],
    )
    plan = make_plan(job.spec)
    step = StepTime(per_example=0.0014, per_group=0.025, per_doubling=0.005, lone_exchange=lone_exchange)
    cells = cells_of(history(plan, step, 1.0, seed=4), plan, lone_exchange=lone_exchange)
    assert {(cell.shards, cell.workers) for cell in cells} >= {(2, 1), (3, 2), (6, 4)}

    found = constants_of(cells, 0.0, "here", lone_exchange=lone_exchange).step
    assert found.seconds(96, 6, 1) == pytest.approx(step.seconds(96, 6, 1), rel=0.15)


def test_what_was_not_observed_is_said_and_widens_the_interval() -> None:
    plan = make_plan(job_of("workers.maximum=1").spec)
    found = constants_of(cells_of(history(plan, NETS["wide"], 0.2, seed=2), plan), 0.0, "here")
    stages = run_time(make_plan(job_of("workers.minimum=1").spec), found).stages

    assert [note.partition(",")[0] for note in (*found.notes, found.exchange_note)] == [
        "all updates had the same batch",
        "no run had more than one worker",
    ]
    first, *_, last = [stage.seconds.high / stage.seconds.value - 1 for stage in stages]
    assert first < 0.1 < 0.2 < last


def test_the_last_update_of_an_epoch_has_the_rest_of_its_examples() -> None:
    plan = make_plan(job_of("epochs=30").spec)
    rows = history(plan, NETS["wide"], 0.1, seed=3)

    assert [examples_of(row, plan) for row in rows[43:46]] == [32, 1437 % 32, 32]

    steps = "batch.growth={type: Milestones, milestones: {steps: [{update: 1, batchSize: 128}]}}"
    grown = make_plan(job_of(steps).spec)
    rows = history(grown, NETS["wide"], 0.1, seed=3)
    assert [examples_of(row, grown) for row in rows[:13]] == [32, *[128] * 10, 1437 - 32 - 1280, 128]


def test_the_time_between_updates_is_that_of_an_epoch() -> None:
    plan = make_plan(job_of("epochs=30").spec)
    rows = [replace(row, seconds=row.seconds + 2 * row.epoch) for row in history(plan, NETS["wide"], 0.2, seed=4)]

    assert between_updates(rows) == pytest.approx([2.0])
    assert between_updates(rows[:20]) == []


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """A function: the folder of a run of this job with these rows."""

    def written(job: BatchGrowthJob, rows: list[HistoryRow]) -> Path:
        from batchgrowth_trainer.record.runs import JOB_FILE, manifest_text

        (tmp_path / JOB_FILE).write_text(manifest_text(job))
        lines = [",".join(HISTORY_HEADER)]
        for row in rows:
            cells = (
                row.update, row.epoch, row.stage, row.batch_size, row.learning_rate, row.loss, row.workers,
                row.compute_seconds, row.exchange_seconds, row.wait_seconds, row.seconds, "",
            )  # fmt: skip
            lines.append(",".join(map(str, cells)))
        (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
        return tmp_path

    return written


def test_a_run_is_read_and_fitted(recorded: Callable[..., Path]) -> None:
    job = job_of(GROWTH)
    plan = make_plan(job.spec)
    folder = recorded(job, history(plan, NETS["deep"], 1.0, seed=5))
    found = fitted([folder], job)

    assert found.source == f"fitted to {folder}"
    assert sum(plan_seconds(plan, found.step)) == pytest.approx(sum(plan_seconds(plan, NETS["deep"])), rel=0.06)


def test_a_run_of_another_job_is_refused(recorded: Callable[..., Path]) -> None:
    job = job_of(GROWTH)
    folder = recorded(job, history(make_plan(job.spec), NETS["small"], 0.1, seed=6))
    other = load_manifest(EXAMPLES / "digits.yaml", ["workload.entrypoint=other:workload", "precision=BFloat16"])

    with pytest.raises(SpecError) as refused:
        fitted([folder], other)
    assert str(refused.value).splitlines() == [
        f"--fit {folder}: its workload.entrypoint is batchgrowth_trainer.workloads.digits:workload, and that of the "
        "job other:workload; give a run of the same work",
        f"--fit {folder}: its precision is the default, and that of the job BFloat16; give a run of the same work",
    ]


def test_an_empty_history_and_an_empty_folder(recorded: Callable[..., Path], tmp_path: Path) -> None:
    job = job_of(GROWTH)
    with pytest.raises(DataError, match=r"there is no job\.yaml here"):
        fitted([tmp_path], job)
    with pytest.raises(DataError, match="no update is recorded yet"):
        fitted([recorded(job, [])], job)


def test_nothing_is_left_after_the_last_update() -> None:
    plan = make_plan(job_of("epochs=30").spec)

    assert sum(plan_seconds(remaining_plan(plan, plan.updates - 1), StepTime(per_update=1))) == 1
    with pytest.raises(ValueError, match="nothing is left after 460"):
        remaining_plan(plan, 460)

"""The knee, deadlines, budgets, reclaimed machines and the laws of scalability."""

import math
from pathlib import Path

import pytest
from batchgrowth.forecast.answers import Candidates, cheapest, laws, reclaimed_seconds, with_reclaims
from batchgrowth.forecast.course_time import plan_seconds, remaining_plan, run_time
from batchgrowth.forecast.networks import named
from batchgrowth.forecast.sentences import sentence_of
from batchgrowth.forecast.step_time import Constants, StepTime
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import constant_plan, make_plan
from batchgrowth.spec import JobSpec

EXAMPLES = Path(__file__).parents[4] / "examples"
(MODERATE,) = named("moderate")


def spec_of(name: str, *changes: str) -> JobSpec:
    return load_manifest(EXAMPLES / name, changes).spec


def candidates_of(spec: JobSpec, step: StepTime = MODERATE.step) -> Candidates:
    return Candidates(spec, make_plan(spec), step)


def test_the_curve_is_what_the_manifest_would_take() -> None:
    spec = spec_of("table1/5120.yaml")
    found = candidates_of(spec)

    assert list(found.seconds) == list(range(1, 41))
    for maximum in (1, 7, 40):
        plan = make_plan(spec_of("table1/5120.yaml", f"workers.maximum={maximum}"))
        assert found.seconds[maximum] == pytest.approx(sum(plan_seconds(plan, MODERATE.step)))
        assert found.worker_hours(maximum) == pytest.approx(run_time(plan, MODERATE).worker_hours.value)


def test_many_workers_are_tried_in_steps_of_a_twentieth() -> None:
    assert list(candidates_of(spec_of("table1/16000.yaml")).maxima())[-4:] == [110, 116, 122, 125]
    assert list(candidates_of(spec_of("digits.yaml", "workers.minimum=4")).maxima()) == [4]


@pytest.mark.parametrize(
    ("exchange", "most"),
    [
        ("{type: AllReduce}", 160),
        ("{type: ParameterServer}", 64),
        ("{type: LocalSGD, localSGD: {replicas: 8}}", 8),
        ("{type: Downpour}", 17),
    ],
)
def test_no_more_workers_are_tried_than_the_exchange_allows(exchange: str, most: int) -> None:
    changes = ("workers={examplesPerWorker: 32, maximum: 4}", f"exchange={exchange}")
    assert list(candidates_of(spec_of("table1/5120.yaml", *changes)).maxima())[-1] == most
    spec_of("table1/5120.yaml", *changes, f"workers.maximum={most}")


@pytest.mark.parametrize("exchange", ["SingleProcess", "Hogwild"])
def test_workers_bring_nothing_to_an_exchange_without_them(exchange: str) -> None:
    found = candidates_of(spec_of("table1/5120.yaml", f"exchange.type={exchange}"))
    alone = sum(plan_seconds(make_plan(spec_of("table1/5120.yaml", "workers.maximum=1")), MODERATE.step))

    assert list(found.seconds.values()) == pytest.approx([alone] * 40)
    assert found.knee() == 1
    assert [stage.workers for stage in run_time(found.plan, MODERATE).stages] == [1, 1, 1, 1]


def test_the_knee_is_found_across_numbers_that_bring_nothing() -> None:
    """Ten shards: six to nine workers take as long as five, and ten take half of it."""
    spec = spec_of(
        "digits.yaml", "batch={initial: 1280, maximum: 1280, growth: {type: Constant}}", "workers.maximum=10"
    )
    found = candidates_of(spec, StepTime(per_example=1.0))

    assert found.seconds[5] == found.seconds[9] > 1.5 * found.seconds[10]
    assert found.knee(0.02) == 10
    assert found.knee(0.5) == 2


def test_a_deadline_takes_the_fewest_worker_hours() -> None:
    found = candidates_of(spec_of("table1/5120.yaml"))
    half_an_hour = cheapest(found, MODERATE, None, 1800.0, None)

    assert half_an_hour.kept
    assert half_an_hour.made.seconds.high <= 1800
    kept = [one for one in found.seconds if run_time(found.plan_with(one), MODERATE).seconds.high <= 1800]
    assert half_an_hour.maximum == min(kept, key=found.worker_hours)


def test_a_budget_takes_the_quickest() -> None:
    found = candidates_of(spec_of("table1/5120.yaml"))

    assert cheapest(found, MODERATE, 1.0, None, 100.0).maximum == 40
    tight = cheapest(found, MODERATE, 1.0, None, 2.2)
    assert tight.kept
    assert tight.made.money is not None
    assert tight.made.money.high <= 2.2


def test_the_nearest_is_named_if_nothing_keeps_it() -> None:
    found = candidates_of(spec_of("table1/5120.yaml"))
    deadline = cheapest(found, MODERATE, None, 60.0, None)
    budget = cheapest(found, MODERATE, 1.0, None, 0.01)
    both = cheapest(found, MODERATE, 1.0, 2400.0, 0.01)
    neither = cheapest(found, MODERATE, 1.0, 60.0, 0.01)

    assert (deadline.maximum, deadline.kept) == (40, False)
    assert (budget.maximum, budget.kept) == (1, False)
    assert not both.kept
    assert both.made.seconds.high <= 2400
    assert (neither.maximum, neither.kept) == (40, False)


def test_the_nearest_is_nearest_by_the_end_that_counts() -> None:
    """Four workers are quicker, but two have run before, so their time is surer."""
    found = candidates_of(spec_of("digits.yaml"))
    constants = Constants(
        label="x", step=StepTime(per_example=0.001, per_worker=0.04), error=0.05, seen_workers=frozenset({1, 2})
    )
    found = Candidates(found.spec, found.plan, constants.step)
    nearest = cheapest(found, constants, None, 1.0, None)
    ends = {maximum: run_time(found.plan_with(maximum), constants).seconds.high for maximum in found.seconds}

    assert nearest.maximum == min(ends, key=lambda maximum: ends[maximum])
    assert nearest.maximum != min(found.seconds, key=lambda maximum: found.seconds[maximum])


def test_a_constant_batch_takes_the_updates_that_plan_prints() -> None:
    assert constant_plan(spec_of("digits.yaml")).updates == 1350


def test_a_reclaimed_worker_leaves_the_others_at_work() -> None:
    spec = spec_of("table1/5120.yaml")
    plan = make_plan(spec)
    step = StepTime(per_example=0.001)
    longer = reclaimed_seconds(spec, plan, step, 3 * 3600.0, 120.0)
    seconds = plan_seconds(plan, step)

    # 2 workers: alone, the other takes twice as long for 2 minutes, and loses half of them.
    assert longer[0] == pytest.approx(2 * seconds[0] / 10_800 * (60 + 1), rel=0.01)
    assert with_reclaims(spec, plan, Constants(label="x", step=step), 10_800.0, 120.0).value == pytest.approx(
        sum(seconds) + sum(longer)
    )
    alone = reclaimed_seconds(spec_of("table1/128.yaml"), make_plan(spec_of("table1/128.yaml")), step, 1e4, 120.0)
    assert sum(alone) == pytest.approx(391 * 200 * 0.128 / 1e4 * (120 + 150 + 1), rel=0.01)


def test_what_remains_of_a_plan() -> None:
    plan = make_plan(spec_of("digits.yaml"))
    step = StepTime(per_example=1.0, per_update=0.1)
    whole = sum(plan_seconds(plan, step))
    first = sum(step.seconds(min(32, 1437 - 32 * place), 1, 1) for place in range(45))

    assert sum(plan_seconds(remaining_plan(plan, 45), step)) == pytest.approx(whole - first)
    assert sum(plan_seconds(remaining_plan(plan, 10), step)) == pytest.approx(whole - 10 * 32.1)
    with pytest.raises(ValueError, match="nothing is left after 460"):
        remaining_plan(plan, 460)


@pytest.mark.parametrize(("sigma", "kappa"), [(0.1, 0.002), (0.3, 0.0), (0.0, 0.01)])
def test_a_law_is_found_in_its_own_curve(sigma: float, kappa: float) -> None:
    curve = {n: 100 * (1 + sigma * (n - 1) + kappa * n * (n - 1)) / n for n in (1, 2, 3, 5, 8, 13, 21)}
    amdahl, gunther = laws(curve)

    assert (gunther.contention.value, gunther.coherency.value) == pytest.approx((sigma, kappa), abs=1e-9)
    assert gunther.misfit < 1e-9
    assert gunther.single_seconds == pytest.approx(100)
    assert amdahl.coherency.value == 0
    assert gunther.speedup(8) == pytest.approx(curve[1] / curve[8])
    assert gunther.efficiency(8) == pytest.approx(curve[1] / curve[8] / 8)
    if kappa:
        assert gunther.peak == pytest.approx(math.sqrt((1 - sigma) / kappa), rel=1e-6)
        assert gunther.limit == pytest.approx(gunther.speedup(gunther.peak))
    else:
        assert amdahl.limit == pytest.approx(1 / sigma, rel=1e-6)
    assert amdahl.to_json()["peak"] == {"value": None, "low": None, "high": None}


def test_the_interval_of_a_law_has_its_parameters() -> None:
    """Of a curve with noise of 2 %."""
    sigma, kappa = 0.1, 0.002
    noise = (1.02, 0.98, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01)
    curve = {
        n: 100 * factor * (1 + sigma * (n - 1) + kappa * n * (n - 1)) / n
        for n, factor in zip((1, 2, 3, 5, 8, 13, 21, 34), noise, strict=True)
    }
    _, gunther = laws(curve)

    assert gunther.contention.low <= sigma <= gunther.contention.high
    assert gunther.coherency.low <= kappa <= gunther.coherency.high
    peak = math.sqrt((1 - sigma) / kappa)
    low, high = gunther.peaks()
    assert low <= peak <= high
    low, high = gunther.limits()
    assert low <= peak / (1 + sigma * (peak - 1) + kappa * peak * (peak - 1)) <= high
    efficiency = gunther.efficiencies(8)
    assert efficiency.low <= 1 / (1 + sigma * 7 + kappa * 56) <= efficiency.high
    assert efficiency.value == gunther.efficiency(8)
    assert 0.005 < gunther.misfit < 0.02


def test_workers_that_are_worth_more_than_one_each_have_no_limit() -> None:
    _, gunther = laws({1: 100.0, 2: 45.0, 4: 20.0, 8: 9.0})

    assert gunther.contention.value == gunther.coherency.value == 0
    assert math.isinf(gunther.limit)
    assert gunther.limits() == (math.inf, math.inf)
    assert gunther.to_json()["limit"] == {"value": None, "low": None, "high": None}
    assert "; without bound, " in sentence_of(gunther, 8)


def test_too_few_points_have_no_law() -> None:
    assert laws({1: 3.0, 2: 2.0, 3: 1.8}) == ()

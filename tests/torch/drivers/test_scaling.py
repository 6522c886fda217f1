"""How many workers train: the plan's number, or all that are ready if the cluster is scaled externally."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.plan import Position, make_plan
from batchgrowth_trainer.drivers.scaling import Scaling, shards_of

PLAN = (
    "batch={initial: 8, maximum: 32, shard: 4, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 1}}}",
)


class Crew:
    """Workers by name: ready, preparing, leaving."""

    def __init__(self) -> None:
        self.ready: dict[str, None] = {}
        self.leaving: set[str] = set()
        self.registered: set[str] = set()
        self.trouble = ""
        self.is_preparing = False

    def in_order(self, _updates: Any) -> list[str]:
        return list(self.ready)

    def check_connected(self) -> None:
        """The scheduler answers."""

    def release_leaving(self, _busy: Any) -> None:
        """None is leaving."""


@pytest.fixture
def run(small_job: Any) -> Any:
    job = small_job(*PLAN, "workers.maximum=1")
    plan = make_plan(job.spec)
    waits: list[str] = []
    return SimpleNamespace(
        spec=job.spec, plan=plan, position=Position(), wanted=partial(shards_of, plan), stop_requested=lambda: False,
        publish=lambda event: None, wait_for=waits.append, waits=waits,
    )  # fmt: skip


def joined(crew: Crew, *names: str) -> None:
    crew.ready |= dict.fromkeys(names)


def test_ready_workers_train_up_to_the_number_of_shards(run: Any) -> None:
    crew = Crew()
    scaling = Scaling(run, crew, None, 60)  # type: ignore[arg-type]
    joined(crew, "a", "b", "c")
    assert ["a", "b"] == scaling.gather(lambda _: None, {})  # 8 examples, 4 a shard
    run.position = run.plan.position_at(run.plan.stages[1].first_update)
    assert ["a", "b", "c"] == scaling.gather(lambda _: None, {})


def test_a_group_ends_before_the_stage_that_can_use_more(run: Any) -> None:
    crew = Crew()
    scaling = Scaling(run, crew, None, 60)  # type: ignore[arg-type]
    joined(crew, "a", "b")
    assert run.plan.updates == scaling.ends_at(2)
    joined(crew, "c")
    assert run.plan.stages[1].first_update == scaling.ends_at(2)


def test_newcomers_join_together(run: Any) -> None:
    crew = Crew()
    scaling = Scaling(run, crew, None, 60)  # type: ignore[arg-type]
    run.position = run.plan.position_at(run.plan.stages[-1].first_update)
    joined(crew, "a", "b")
    assert not scaling.regroup_due(["a", "b"])
    joined(crew, "c")
    crew.is_preparing = True
    assert not scaling.regroup_due(["a", "b"])
    crew.is_preparing = False
    assert scaling.regroup_due(["a", "b"])
    crew.is_preparing = True
    deadline = time.monotonic() + 10
    while not scaling.regroup_due(["a", "b"]):  # a slow newcomer does not hold up the others
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_leaving_worker_ends_its_group(run: Any) -> None:
    crew = Crew()
    scaling = Scaling(run, crew, None, 60)  # type: ignore[arg-type]
    joined(crew, "a")
    assert not scaling.regroup_due(["a", "b"][:1])
    crew.leaving.add("b")
    assert not scaling.regroup_due(["a"])
    assert scaling.regroup_due(["a", "b"])


def test_a_stage_waits_once(small_job: Any, run: Any) -> None:
    """workers.waitSeconds applies once per stage: a group that loses a worker later goes on with the others."""
    run.spec = small_job(*PLAN, "workers={maximum: 2, examplesPerWorker: 4, waitSeconds: 30}").spec
    run.plan = make_plan(run.spec)
    crew = Crew()
    scaling = Scaling(run, crew, None, 60)  # type: ignore[arg-type]
    joined(crew, "a")
    assert ["a", "b"] == scaling.gather(lambda _: joined(crew, "b"), {})
    del crew.ready["a"]
    assert ["b"] == scaling.gather(lambda _: pytest.fail("it waited"), {})

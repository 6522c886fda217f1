"""Logical replicas in the plan: how they share a batch, when they hear of each other, and of whom."""

import json
from itertools import pairwise
from typing import Any

import pytest
from batchgrowth.choices import EXCHANGES, INEXACT
from batchgrowth.choices.exchanges import circles
from batchgrowth.plan import make_plan, round_at, rounds_from
from batchgrowth.position import Position
from batchgrowth.shards import shard_bounds, shard_count
from batchgrowth.spec import differences, mathematics
from hypothesis import given
from hypothesis import strategies as st

GRAPHS = ("Exponential", "Ring", "Hypercube", "Random", "Complete")


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 40))
def test_replicas_have_equally_many_shards_and_even_parts(examples: int, shard: int, replicas: int) -> None:
    count = shard_count(examples, shard, replicas)
    bounds = shard_bounds(examples, count)
    assert count % replicas == 0
    assert not count or max(b - a for a, b in pairwise(bounds)) <= shard
    parts = [b - a for a, b in pairwise(bounds[:: count // replicas or 1])]
    assert not count or (replicas == len(parts) and max(parts) - min(parts) <= 1)


def test_workers_share_replicas_in_place_of_shards(small_job: Any) -> None:
    for exchange, parts in (("{type: AllReduce}", 8), ("{type: Gossip, gossip: {replicas: 3}}", 3)):
        plan = make_plan(small_job("batch.shard=4", f"exchange={exchange}").spec)
        assert parts == plan.parts(32)


@pytest.mark.parametrize("updates", [1, 2, 3, 100])
def test_rounds_end_with_the_epoch(small_job: Any, updates: int) -> None:
    """And together they are the plan."""
    plan = make_plan(small_job().spec)
    rounds = list(rounds_from(plan, Position(), updates))
    steps = [step for each in rounds for step in each]
    assert list(range(plan.updates)) == [step.position.update for step in steps]
    assert all(len(each) <= updates for each in rounds)
    for each in rounds:
        assert all(step.after.offset for step in each[:-1])
        assert len(each) == updates or not each[-1].after.offset
        assert each == round_at(plan, each[0].position, updates)


@given(st.sampled_from(GRAPHS), st.integers(2, 64), st.integers(0, 200), st.integers(0, 9))
def test_each_replica_gives_as_much_of_itself_as_it_takes(graph: str, replicas: int, turn: int, seed: int) -> None:
    """The matrix of the means is doubly stochastic, so the mean of all weights stays as it is."""
    if graph == "Hypercube":
        replicas = 1 << replicas.bit_length() - 1
        assert replicas > 1
    asked = circles(graph, replicas, turn, seed)
    given_away = [0.0] * replicas
    for one, circle in enumerate(asked):
        assert one in circle
        assert list(circle) == sorted(set(circle))
        for other in circle:
            given_away[other] += 1 / len(circle)
    assert [pytest.approx(1)] * replicas == given_away


def test_the_graphs_are_those_of_their_names() -> None:
    assert circles("Ring", 4, 0, 0) == ((0, 1, 3), (0, 1, 2), (1, 2, 3), (0, 2, 3))
    assert circles("Exponential", 4, 0, 0) == ((0, 3), (0, 1), (1, 2), (2, 3))
    assert circles("Exponential", 4, 1, 0) == ((0, 2), (1, 3), (0, 2), (1, 3))
    assert circles("Hypercube", 4, 3, 0) == ((0, 2), (1, 3), (0, 2), (1, 3))
    assert circles("Complete", 4, 0, 0) == ((0, 1, 2, 3),) * 4
    assert circles("Random", 8, 0, 1) == circles("Random", 8, 0, 1)
    assert len({circles("Random", 8, turn, seed) for turn in range(3) for seed in range(3)}) == 9


@pytest.mark.parametrize("name", INEXACT)
def test_the_exchange_belongs_to_the_mathematics_if_the_weights_depend_on_it(small_job: Any, name: str) -> None:
    of_all_reduce = mathematics(small_job().spec)
    assert "exchange" not in of_all_reduce
    for exact in ("{type: GatherScatter}", "{type: ParameterServer, parameterServer: {servers: 3}}"):
        assert of_all_reduce == mathematics(small_job(f"exchange={exact}").spec)
    part = mathematics(small_job(f"exchange.type={name}").spec)
    assert {"type": name} == {key: value for key, value in part["exchange"].items() if key == "type"}
    assert part == mathematics(small_job(f"exchange={json.dumps({'type': name, 'timeoutSeconds': 5})}").spec)
    entry = EXCHANGES[name]
    assert entry.example
    other = mathematics(small_job(f"exchange={json.dumps({'type': name, entry.block_name: entry.example})}").spec)
    assert f"exchange.{entry.block_name}" in differences(part, other)


def test_patience_grows_with_the_round(small_job: Any) -> None:
    """A worker hears nothing of the others for a whole round."""
    assert small_job().spec.exchange.patience_seconds == 60
    local = small_job("exchange={type: LocalSGD, timeoutSeconds: 20, localSGD: {everyUpdates: 50}}").spec.exchange
    assert local.patience_seconds == 1000


@pytest.mark.parametrize(("density", "parameters", "count"), [("0.01", 1000, 10), ("0.015", 1000, 15), ("0.001", 3, 1)])
def test_a_density_is_a_number_of_changes(small_job: Any, density: str, parameters: int, count: int) -> None:
    spec = small_job(f"exchange={{type: TopK, topK: {{density: '{density}'}}}}").spec
    assert count == spec.exchange.settings.count(parameters)

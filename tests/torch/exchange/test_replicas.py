"""The exchanges with logical replicas against textbook loops of torch, and what each promises besides."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import small
import torch
from batchgrowth.choices import EXCHANGES, REPEATABLE
from batchgrowth.choices.exchanges import circles
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Step
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.exchange import logical_replicas, top_k
from batchgrowth_trainer.exchange.group import Group, LoneGroup, PeerLost
from batchgrowth_trainer.exchange.logical_replicas import LogicalReplicas
from batchgrowth_trainer.exchange.strategy import Round, Setting, strategy_of
from batchgrowth_trainer.exchange.top_k import TopK, largest
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.replica.optimizers import FlatOptimizer
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from threads import together
from torch import Tensor, nn

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]

# 90 examples in batches of 27: each epoch has two updates of 27 and 27, 27, 9 examples, which no number of replicas
# divides evenly.
JOB = {
    "epochs": 3,
    "batch": {"initial": 27, "maximum": 27, "shard": 5, "growth": {"type": "Constant"}},
    "learningRate": {"initial": "0.05", "rule": "Constant"},
    "optimizer": {"type": "SGD"},
}


SMALL_BATCH = {"initial": 9, "maximum": 9, "shard": 5, "growth": {"type": "Constant"}}
"""With which an epoch has ten updates."""


def setting(replica: Replica, group: Group | None = None) -> Setting:
    return Setting(replica, group or LoneGroup(), nullcontext(), lambda: None)


def train(replica: Replica, group: Group | None = None) -> list[Round]:
    """The rounds of a member, to the end of the plan."""
    strategy, rounds = strategy_of(setting(replica, group)), []
    while not replica.plan.is_done(replica.position):
        rounds.append(strategy.round(lambda: False))
    return rounds


def weights(replica: Replica) -> Tensor:
    return replica.parameters.vector.detach().clone()


@pytest.fixture
def replica_of(small_job: Any, make_replica: MakeReplica) -> Callable[..., Replica]:
    """A function (exchange, net, what else differs from JOB) -> a replica at the first update."""

    def made(exchange: dict[str, Any], net: Workload | None = None, **changes: Any) -> Replica:
        fields = JOB | {"exchange": exchange} | changes
        job = small_job(*(f"{name}={json.dumps(value)}" for name, value in fields.items()))
        return make_replica(job, net or small.plain())

    return made


class Textbook:
    """Independent models, each with torch's own optimizer; `part` of a batch for each, as the job cuts it."""

    def __init__(self, replica: Replica, replicas: int, momentum: float = 0.0, rate: float = 0.05) -> None:
        self.replica, self.workload = replica, small.plain()
        self.models = [small.plain().model for _ in range(replicas)]
        self.optimizers = [torch.optim.SGD(model.parameters(), rate, momentum) for model in self.models]

    def vector(self, model: nn.Module) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def vectors(self) -> Tensor:
        return torch.stack([self.vector(model) for model in self.models])

    def write(self, vectors: Tensor | Sequence[Tensor]) -> None:
        for model, vector in zip(self.models, vectors, strict=True):
            nn.utils.vector_to_parameters(vector.clone(), model.parameters())

    def steps(self) -> Iterator[Step]:
        plan, position = self.replica.plan, self.replica.position
        while not plan.is_done(position):
            step = plan.step_at(position)
            yield step
            position = step.after

    def batch(self, step: Step) -> Tensor:
        order = self.replica.requests.order(step.position.epoch, small.EXAMPLES)
        return order[step.position.offset : step.position.offset + step.examples]

    def step(self, step: Step) -> list[int]:
        """One local step of each model; the examples of each."""
        batch, counts = self.batch(step), []
        for number, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            lo, hi = (step.examples * place // len(self.models) for place in (number, number + 1))
            inputs, targets = self.workload.train[batch[lo:hi]]
            optimizer.zero_grad()
            self.workload.loss(model(inputs), targets).mean().backward()
            optimizer.step()
            counts.append(hi - lo)
        return counts

    def same(self, trained: Tensor, expected: Tensor) -> None:
        packed = torch.cat([span.of(trained).reshape(-1) for span in self.replica.parameters.spans])
        torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("outer", [None, {"learningRate": "0.7", "momentum": "0.9", "nesterov": True}])
def test_local_sgd_is_the_mean_of_local_steps(replica_of: Any, outer: dict[str, Any] | None) -> None:
    settings = {"replicas": 4, "everyUpdates": 3} | ({} if outer is None else {"outer": outer})
    replica = replica_of(
        {"type": "LocalSGD", "localSGD": settings}, optimizer={"type": "SGD", "sgd": {"momentum": "0.9"}}
    )
    book = Textbook(replica, 4, momentum=0.9)
    centre = nn.Parameter(book.vector(book.models[0]))
    above = torch.optim.SGD([centre], 0.7, 0.9, nesterov=True) if outer else torch.optim.SGD([centre], 1.0)
    seen = torch.zeros(4)
    for step in book.steps():
        seen += torch.tensor(book.step(step))
        if step.after.offset and (step.position.update % 4 + 1) % 3:
            continue
        share = (seen / seen.sum()).unsqueeze(1)
        centre.grad = centre.detach() - (book.vectors() * share).sum(dim=0)
        above.step()
        book.write([centre.detach()] * 4)
        for of_one in zip(*(o.state.values() for o in book.optimizers), strict=True):
            mean = sum(part * one["momentum_buffer"] for part, one in zip(share.flatten(), of_one, strict=True))
            for one in of_one:
                one["momentum_buffer"] = mean.clone()
        seen.zero_()
    rounds = train(replica)
    assert [len(each.done) for each in rounds] == [3, 1] * 3
    assert all(each.figures.replica_distance is not None and each.figures.replica_distance > 0 for each in rounds)
    book.same(weights(replica), centre.detach())


@pytest.mark.parametrize(
    "exchange",
    [
        {"type": "LocalSGD", "localSGD": {"everyUpdates": 1}},
        {"type": "LocalSGD", "localSGD": {"everyUpdates": 5, "afterUpdates": 1000}},
        {"type": "Gossip", "gossip": {"graph": "Complete"}},
        {"type": "TopK", "topK": {"density": "1"}},
    ],
)
def test_limits_that_are_all_reduce(replica_of: Any, exchange: dict[str, Any]) -> None:
    """To rounding, since the order of the additions differs; with plain SGD and batches that four replicas share."""
    batch = {"initial": 28, "maximum": 28, "shard": 7, "growth": {"type": "Constant"}}
    workload = {"entrypoint": "small:plain", "examples": 84}
    ours = replica_of(exchange, small.of(small.plain().model, 84), batch=batch, workload=workload)
    theirs = replica_of({"type": "AllReduce"}, small.of(small.plain().model, 84), batch=batch, workload=workload)
    losses = [[done.loss for each in train(one) for _, done in each.done] for one in (ours, theirs)]
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert pytest.approx(losses[1], rel=1e-4) == losses[0]


@pytest.mark.parametrize("elasticity", ["0", "0.8"])
def test_elastic_averaging_is_the_papers(replica_of: Any, elasticity: str) -> None:
    """Zhang et al., 2015, equations 2 and 3; without elasticity the replicas are on their own and the centre rests."""
    replica = replica_of(
        {"type": "ElasticAveraging", "elasticAveraging": {"replicas": 3, "everyUpdates": 2, "elasticity": elasticity}}
    )
    book, part = Textbook(replica, 3), float(elasticity) / 3
    centre = book.vector(book.models[0])
    for step in book.steps():
        book.step(step)
        if step.position.update % 2:
            ways = book.vectors() - centre
            book.write(book.vectors() - part * ways)
            centre = centre + part * ways.sum(dim=0)
    train(replica)
    book.same(weights(replica), centre)
    for number, vector in enumerate(book.vectors()):
        book.same(replica.registered["replicas.parameters"][number], vector)


@pytest.mark.parametrize("graph", ["Ring", "Exponential", "Hypercube", "Random", "Complete"])
def test_gossip_averages_with_the_neighbours(replica_of: Any, graph: str) -> None:
    replica = replica_of({"type": "Gossip", "gossip": {"replicas": 4, "everyUpdates": 2, "graph": graph}})
    book = Textbook(replica, 4)
    for step in book.steps():
        book.step(step)
        if step.position.update % 2:
            before = book.vectors()
            asked = circles(graph, 4, step.position.update // 2, replica.spec.seed)
            book.write([before[list(circle)].mean(dim=0) for circle in asked])
    train(replica)
    book.same(weights(replica), book.vectors().mean(dim=0))


@pytest.mark.parametrize(("graph", "replicas"), [("Ring", 8), ("Ring", 5), ("Exponential", 8), ("Hypercube", 16)])
def test_gossip_keeps_the_mean_and_agrees_at_the_graphs_rate(replica_of: Any, graph: str, replicas: int) -> None:
    """A ring by the second largest eigenvalue of its matrix; the others agree after one turn along each dimension."""
    replica = replica_of({"type": "Gossip", "gossip": {"replicas": replicas, "graph": graph}})
    strategy = strategy_of(setting(replica))
    assert isinstance(strategy, LogicalReplicas)
    draw = torch.Generator().manual_seed(3)
    states = {
        number: {"parameters": torch.randn(replica.parameters.length, generator=draw)} for number in range(replicas)
    }

    def table() -> Tensor:
        return torch.stack([state["parameters"] for state in states.values()]).double()

    def spread() -> float:
        return float((table() - table().mean(dim=0)).norm())

    mean, spreads = table().mean(dim=0), [spread()]
    for turn in range(40):
        strategy.mix(states, turn)
        spreads.append(spread())
    torch.testing.assert_close(table().mean(dim=0), mean, rtol=0, atol=1e-6)
    if graph != "Ring":
        assert spreads[(replicas - 1).bit_length()] < 1e-5 * spreads[0]
        return
    matrix = torch.zeros(replicas, replicas, dtype=torch.float64)
    for one, circle in enumerate(circles(graph, replicas, 0, 0)):
        matrix[one, list(circle)] = 1 / len(circle)
    rate = torch.linalg.eigvalsh(matrix).abs().sort().values[-2].item()
    assert all(after <= rate * before * 1.0001 + 1e-6 for before, after in pairwise(spreads))
    assert pytest.approx(rate, rel=0.05) == spreads[12] / spreads[11]


def test_top_k_is_the_papers(replica_of: Any) -> None:
    """Basu et al., 2019, algorithm 1, with a replica's share of the examples in place of 1 / R."""
    settings = {"replicas": 4, "everyUpdates": 3, "density": "0.1"}
    replica = replica_of({"type": "TopK", "topK": settings}, optimizer={"type": "SGD", "sgd": {"momentum": "0.9"}})
    book = Textbook(replica, 4, momentum=0.9)
    centre, count = book.vector(book.models[0]), replica.spec.exchange.settings.count(replica.parameters.length)
    unsent, seen, numbers = torch.zeros(4, len(centre)), torch.zeros(4), []
    for step in book.steps():
        seen += torch.tensor(book.step(step))
        if step.after.offset and (step.position.update % 4 + 1) % 3:
            continue
        unsent += (book.vectors() - centre) * (seen / seen.sum()).unsqueeze(1)
        numbers.append(float(unsent.norm()))
        for of_one in unsent:
            sent = of_one.abs().argsort(descending=True)[:count]
            centre[sent] += of_one[sent]
            of_one[sent] = 0
        numbers[-1] = float(unsent.norm()) / numbers[-1]
        book.write([centre] * 4)
        seen.zero_()
    rounds = train(replica)
    assert [len(each.done) for each in rounds] == [4] * 3
    book.same(weights(replica), centre)
    for number, of_one in enumerate(unsent):
        book.same(replica.registered["replicas.residual"][number], of_one)
    errors = [each.figures.compression_error for each in rounds]
    assert errors == [pytest.approx(error, rel=1e-4) for error in numbers[1::2]]
    assert all(each.figures.replica_distance is None for each in rounds)


def test_top_k_loses_nothing(replica_of: Any) -> None:
    """What was not sent is kept; of the squares at least the part that was sent goes (a k-contraction)."""
    replica = replica_of({"type": "TopK", "topK": {"replicas": 3, "density": "0.25"}})
    strategy = strategy_of(setting(replica))
    assert isinstance(strategy, TopK)
    draw = torch.Generator().manual_seed(3)
    states = {number: {"residual": torch.randn(replica.parameters.length, generator=draw)} for number in range(3)}

    def all_of_it() -> Tensor:
        return strategy.centre + torch.stack([state["residual"] for state in states.values()]).sum(dim=0)

    before = all_of_it()
    for turn in range(4):
        sizes = [state["residual"].square().sum() for state in states.values()]
        assert not strategy.mix(states, turn)
        assert strategy.mix(states, turn, stop=True)
        for size, state in zip(sizes, states.values(), strict=True):
            assert state["residual"].square().sum() <= 0.75 * size
    torch.testing.assert_close(all_of_it(), before)
    assert all(not state["residual"].any() for state in states.values())
    assert not strategy.mix(states, 4)


def test_top_k_refuses_a_model_whose_places_cannot_be_sent(replica_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = replica_of({"type": "TopK"})
    monkeypatch.setattr(top_k, "MOST_PARAMETERS", replica.parameters.length - 1)
    with pytest.raises(WorkloadError, match=r"exchange\.type: TopK"):
        strategy_of(setting(replica))


@pytest.mark.parametrize("name", ["ElasticAveraging", "TopK"])
def test_a_round_ends_once_it_has_many_updates(replica_of: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With the exchange after which it has them, since a member keeps the rows of a few thousand alone."""
    monkeypatch.setattr(logical_replicas, "_ENOUGH_UPDATES", 3)
    replica = replica_of({"type": name, EXCHANGES[name].block_name: {"everyUpdates": 2}}, batch=SMALL_BATCH)
    assert len(strategy_of(setting(replica)).round(lambda: False).done) == 4


@pytest.mark.parametrize(
    ("numbers", "count", "places"),
    [
        ([1.0, -3.0, 2.0, 0.5], 2, {1, 2}),
        ([1.0, -1.0, 2.0, 1.0, -1.0], 3, {2, 0, 1}),
        ([0.0, 0.0, 0.0], 2, {0, 1}),
        ([float("nan"), 1.0, float("-inf"), float("nan")], 2, {0, 2}),
    ],
)
def test_the_largest_are_the_same_ones_everywhere(numbers: list[float], count: int, places: set[int]) -> None:
    found = largest(torch.tensor(numbers), count).tolist()
    assert count == len(found)
    assert places == set(found)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_delayed_uses_gradients_of_earlier_weights(replica_of: Any, delay: int) -> None:
    momentum = {"type": "SGD", "sgd": {"momentum": "0.9"}}
    replica = replica_of({"type": "Delayed", "delayed": {"updates": delay}}, optimizer=momentum)
    book = Textbook(replica, 1, momentum=0.9)
    [model], [optimizer] = book.models, book.optimizers
    history = [book.vector(model)]
    for number, step in enumerate(book.steps()):
        book.write([history[max(number - delay, 0)]])
        inputs, targets = book.workload.train[book.batch(step)]
        optimizer.zero_grad()
        book.workload.loss(model(inputs), targets).mean().backward()
        book.write([history[-1]])
        optimizer.step()
        history.append(book.vector(model))
    train(replica)
    book.same(weights(replica), history[-1])


SETTINGS = {
    "LocalSGD": {"replicas": 5, "everyUpdates": 3, "afterUpdates": 1},
    "ElasticAveraging": {"replicas": 5, "everyUpdates": 2},
    "Gossip": {"replicas": 5, "graph": "Ring"},
    "Delayed": {"updates": 2},
    "TopK": {"replicas": 5, "density": "0.2"},
}


def exchange_of(name: str) -> dict[str, Any]:
    return {"type": name, EXCHANGES[name].block_name: SETTINGS[name]}


@pytest.mark.parametrize("name", REPEATABLE)
@pytest.mark.parametrize("members", [2, 3, 5, 6])
def test_the_bits_do_not_depend_on_the_members(replica_of: Any, name: str, members: int) -> None:
    """Batch norm, AdamW and an average of the weights too; one of six members has nothing to do."""
    more = {"optimizer": {"type": "AdamW", "adamW": {}, "averaging": {"decay": "0.9"}}}

    def normed() -> Workload:
        torch.manual_seed(2)
        return small.of(nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))

    def still() -> Workload:
        made = normed()
        return Workload(model=made.model, loss=made.loss, train=made.train, test=made.test)

    def run(group: Group) -> dict[str, Tensor]:
        replica = replicas.pop()
        train(replica, group)
        return {key: value.clone() for key, value in replica.tensors().items()}

    replicas = [replica_of(exchange_of(name), still(), **more)]
    alone = run(LoneGroup())
    replicas = [replica_of(exchange_of(name), still(), **more) for _ in range(members)]
    for theirs in together(members, run)[0]:
        assert alone.keys() == theirs.keys()
        assert all(torch.equal(alone[key], theirs[key]) for key in alone)


def test_lbfgs_has_the_bits_of_one_member_with_all_reduce(replica_of: Any) -> None:
    """The whole state too, pairs and the coordinator's numbers, of whole batches in shards that members share."""
    whole = {"initial": 90, "maximum": 90, "shard": 7, "growth": {"type": "Constant"}}
    lbfgs = {"type": "LBFGS", "lbfgs": {"history": 3, "weightDecay": "0.001"}, "withoutDecay": {"belowDimensions": 2}}

    def made() -> Replica:
        return replica_of({"type": "AllReduce"}, optimizer=lbfgs, batch=whole, epochs=8)

    def run(group: Group) -> dict[str, Tensor]:
        replica = replicas.pop()
        train(replica, group)
        return {key: value.clone() for key, value in replica.tensors().items()}

    replicas = [made()]
    alone = run(LoneGroup())
    assert alone["optimizer.numbers"][0] > 3
    for members in (2, 3):
        replicas = [made() for _ in range(members)]
        for theirs in together(members, run)[0]:
            assert all(torch.equal(alone[key], theirs[key]) for key in alone)


class Breaking(LoneGroup):
    """The group of one that is over after some more updates, as if a peer were lost."""

    left = 1_000_000

    def check(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise PeerLost("gone")


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_round_that_breaks_leaves_the_state_before_it(replica_of: Any, name: str) -> None:
    """So it can be repeated, with the same bits."""
    whole, broken = (replica_of(exchange_of(name), small.plain()) for _ in range(2))
    group = Breaking()
    strategy = strategy_of(Setting(broken, group, nullcontext(), group.check))
    strategy.round(lambda: False)
    before = broken.snapshot()
    group.left = 4
    with pytest.raises(PeerLost):
        strategy.round(lambda: False)
    assert is_same(before, broken.snapshot())
    train(whole)
    train(broken)
    assert torch.equal(weights(whole), weights(broken))


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_step_that_breaks_midway_is_undone_with_its_round(
    replica_of: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = replica_of(exchange_of(name), small.plain())
    strategy = strategy_of(setting(replica))
    strategy.round(lambda: False)
    before, steps, step = replica.snapshot(), [0], FlatOptimizer.step

    def breaking(optimizer: FlatOptimizer, *arguments: Any) -> None:
        step(optimizer, *arguments)
        steps[0] += 1
        if steps[0] == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(FlatOptimizer, "step", breaking)
    with pytest.raises(torch.OutOfMemoryError):
        strategy.round(lambda: False)
    assert is_same(before, replica.snapshot())


def is_same(one: Snapshot, other: Snapshot) -> bool:
    same = all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    return same and one.position == other.position


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_requested_stop_ends_a_round(replica_of: Any, name: str) -> None:
    replica = replica_of({"type": name})
    strategy = strategy_of(setting(replica))
    assert not strategy.round(lambda: False).stop
    assert strategy.round(lambda: True).stop


def test_top_k_ends_its_round_with_the_exchange_in_which_a_member_is_asked_to_stop(replica_of: Any) -> None:
    """A round is long, and each message tells of a stop."""
    replicas = [replica_of({"type": "TopK"}, epochs=9) for _ in range(2)]

    def run(group: Group) -> Round:
        asked = iter((False, False, group.rank == 1, group.rank == 1))
        with lock:
            replica = replicas.pop()
        return strategy_of(setting(replica, group)).round(lambda: next(asked))

    lock = threading.Lock()
    for done in together(2, run)[0]:
        assert done.stop
        assert len(done.done) == 3

"""AllReduce in buckets, while the backward pass goes on: the bits of whole rows, whatever the model's backward does."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.shards import subtrees
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.exchange import streaming
from batchgrowth_trainer.exchange.all_reduce import AllReduce
from batchgrowth_trainer.exchange.group import Group, LoneGroup, PeerLost
from batchgrowth_trainer.exchange.strategy import Setting, strategy_of
from batchgrowth_trainer.exchange.streaming import Stream, buckets, stream_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from threads import Fake, bytes_by_member, together
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]
SMALL = 40  # elements of a bucket, so that a small net has several

# Each epoch has updates of 27, 27, 27 and 9 examples in 7 and 3 shards: runs of one shard and of several.
JOB = {
    "epochs": 2,
    "exchange": {"type": "AllReduce"},
    "batch": {"initial": 27, "maximum": 27, "shard": 4, "growth": {"type": "Constant"}},
    "optimizer": {"type": "AdamW", "adamW": {}, "withoutDecay": {"belowDimensions": 2}},
}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BUCKET", SMALL)


@pytest.fixture
def replica_of(small_job: Any, make_replica: MakeReplica) -> Callable[..., Replica]:
    """A function (workload, what differs from JOB) -> a replica at the first update."""

    def made(workload: Workload, **changes: Any) -> Replica:
        job = small_job(*(f"{name}={json.dumps(value)}" for name, value in (JOB | changes).items()))
        return make_replica(job, workload)

    return made


def strategy_in(replica: Replica, group: Group) -> AllReduce:
    strategy = strategy_of(Setting(replica, group, nullcontext(), lambda: None))
    assert isinstance(strategy, AllReduce)
    return strategy


def train(replica: Replica, group: Group | None = None, *, again: bool = False) -> dict[str, Tensor]:
    """The whole state at the end of the plan; `again` repeats updates whose gradients were sent too early."""
    return end_of(strategy_in(replica, group or LoneGroup()), replica, again=again)


def end_of(strategy: AllReduce, replica: Replica, *, again: bool = False) -> dict[str, Tensor]:
    repeated = 0
    while not replica.plan.is_done(replica.position):
        try:
            strategy.round(lambda: False)
        except PeerLost:
            assert again
            repeated += 1
    assert repeated == int(again)
    return {key: value.clone() for key, value in replica.tensors().items()}


def quiet(model: nn.Module) -> Workload:
    """Nothing random: members are threads, which share the generators."""
    return replace(small.of(model), augment=None)


def normed() -> Workload:
    torch.manual_seed(2)
    return quiet(nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)))


class Odd(nn.Module):
    """Layers used in another order than they are made, one twice, and one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.last, self.first = nn.Linear(12, 3), nn.Linear(6, 12)
        self.twice, self.never = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        return self.last(self.twice(self.twice(hidden).tanh()))


class Backward:
    """A step that makes gradients of its own first, and changes them, as adversarial and auxiliary losses do."""

    def __call__(self, model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        hidden = model[0](inputs)
        hidden.square().sum().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        return nn.functional.cross_entropy(model[1:](hidden.detach()), target, reduction="none")


class Freezing:
    """A step that freezes the first layer, now and then."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        for parameter in model[0].parameters():
            parameter.requires_grad_(self.calls % 3 != 0)
        return nn.functional.cross_entropy(model(inputs), target, reduction="none")


class Reentrant(nn.Module):
    """A net with a layer that is used twice, and from a training shard on in checkpoints with a backward each."""

    def __init__(self, after: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left = after
        self.first, self.twice, self.last = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        self.left -= 1
        hidden = self.first(inputs)
        for _ in range(2):
            layer = partial(checkpoint, self.twice, use_reentrant=True) if self.left < 0 else self.twice
            hidden = layer(hidden).tanh()
        return self.last(hidden)


@pytest.mark.parametrize("make", [normed, lambda: quiet(Odd())], ids=["normed", "odd"])
@pytest.mark.parametrize(("members", "rows"), [(2, 1), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_the_bits_of_one_member(
    replica_of: Callable[..., Replica], make: Callable[[], Workload], members: int, rows: int
) -> None:
    """Some of nine have nothing to do."""
    alone = train(replica_of(make()))
    replicas = [replica_of(make()) for _ in range(members)]

    def run(group: Fake) -> dict[str, Tensor]:
        strategy = strategy_in(replicas[group.rank], group)
        state = end_of(strategy, replicas[group.rank])
        assert strategy.stream is not None
        assert strategy.stream.is_early or group.rank > 0
        return state

    for theirs in together(members, run, rows)[0]:
        assert alone.keys() == theirs.keys()
        assert all(torch.equal(alone[key], theirs[key]) for key in alone)


def test_buckets_cost_the_bytes_of_their_parts_of_a_row(replica_of: Callable[..., Replica]) -> None:
    replicas = [replica_of(normed()) for _ in range(3)]
    parameters, length = replicas[0].parameters, replicas[0].length

    def one_round(group: Fake) -> int:
        return strategy_in(replicas[group.rank], group).round(bool).done[0][0].shards

    [shards, *_], members = together(3, one_round)
    parts = [*(place.stop - place.start for place in buckets(parameters)), length - parameters.length]
    sent = [sum(each) for each in zip(*(bytes_by_member(shards, 3, part) for part in parts), strict=True)]
    assert sent == [member.bytes_sent for member in members]


def in_run(stream: Stream, replica: Replica, layer: nn.Module, shards: int) -> Iterator[str]:
    """What happens while the first shards of an update are computed: buckets given, and the gradient of that layer."""
    step = replica.plan.step_at(replica.position)
    happened: list[str] = []
    hook = layer.register_full_backward_hook(lambda *_: happened.append("second layer"))

    def give(_place: slice, rows: list[Tensor]) -> None:
        happened.append(f"bucket of {len(rows)}")

    replica.rows.release(
        replica.partials(step, (0, shards), sum_nodes=lambda nodes, compute: stream.sums(nodes, compute, give))
    )
    hook.remove()
    yield from happened


@pytest.mark.parametrize("shards", [1, 4, 7])
def test_a_bucket_is_given_before_the_backward_pass_is_over(replica_of: Callable[..., Replica], shards: int) -> None:
    """But not in the first run, which shows that each gradient is computed once."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(7)), nn.Linear(6, 3))
    replica = replica_of(quiet(model))
    nodes = len(subtrees(0, shards, 7))
    stream = stream_of(replica)
    assert stream is not None
    looked, early = (list(in_run(stream, replica, model[1], shards)) for _ in range(2))
    given = [f"bucket of {nodes}"] * len(buckets(replica.parameters))
    assert ["second layer"] * shards + given == looked
    assert ["second layer"] * (shards - 1) == early[: shards - 1]
    assert f"bucket of {nodes}" == early[shards - 1]
    assert sorted(looked) == sorted(early)


class Sometimes(nn.Module):
    """A net whose last layer is used from a training shard on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.left = after
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))
        self.late = nn.Linear(3, 20)

    def forward(self, inputs: Tensor) -> Tensor:
        self.left -= 1
        hidden = self.net(inputs)
        return hidden + self.late(hidden)[:, :3] if self.left < 0 else hidden


def test_a_layer_that_is_used_later(replica_of: Callable[..., Replica]) -> None:
    """No bucket waits for it before; the first update with it is repeated."""
    batch = JOB["batch"] | {"initial": 30, "maximum": 30, "shard": 15}  # a shard for each of two members
    replicas = [replica_of(quiet(Sometimes(after=4)), batch=batch) for _ in range(2)]
    theirs = together(2, lambda group: train(replicas[group.rank], group, again=True))[0]
    alone = train(replica_of(quiet(Sometimes(after=8)), batch=batch))
    assert all(torch.equal(alone[key], state[key]) for state in theirs for key in alone)


@pytest.mark.parametrize("after", [0, 4], ids=["always", "from the third update on"])
def test_a_model_that_computes_gradients_twice(replica_of: Callable[..., Replica], after: int) -> None:
    """Its buckets are given late from then on. If one was given too early, no member takes the step."""
    batch = JOB["batch"] | {"initial": 30, "maximum": 30, "shard": 15}  # a shard for each of two members
    alone = train(replica_of(quiet(Reentrant(2 * after)), batch=batch))
    replicas = [replica_of(quiet(Reentrant(after)), batch=batch) for _ in range(2)]

    def run(group: Fake) -> dict[str, Tensor]:
        strategy = strategy_in(replicas[group.rank], group)
        state = end_of(strategy, replicas[group.rank], again=after > 0)
        assert strategy.stream is not None
        assert not strategy.stream.is_early
        return state

    for theirs in together(2, run)[0]:
        assert all(torch.equal(alone[key], theirs[key]) for key in alone)


def test_a_gradient_that_came_too_late_is_remembered(replica_of: Callable[..., Replica]) -> None:
    """The update is repeated in a new generation, which has a stream of its own."""
    model = Sometimes(after=1)
    replica = replica_of(quiet(model), batch=JOB["batch"] | {"initial": 15, "maximum": 15, "shard": 15})
    streams = [stream_of(replica), stream_of(replica)]
    for stream in (streams[0], streams[0], streams[1], streams[1]):
        assert stream is not None
        list(in_run(stream, replica, model.late, 1))

    assert [stream and (stream.is_wrong, stream.is_early) for stream in streams] == [(True, False), (False, False)]


@pytest.mark.parametrize("step", [Backward, Freezing])
def test_a_step_with_gradients_of_its_own(replica_of: Callable[..., Replica], step: Callable[[], Any]) -> None:
    """What it did before the last backward pass is done when the buckets are given."""
    batch = JOB["batch"] | {"initial": 30, "maximum": 30, "shard": 5}  # three shards for each of two members

    def made() -> Replica:
        return replica_of(replace(small.plain(), step=step()), batch=batch)

    alone, replicas = train(made()), [made() for _ in range(2)]

    def run(group: Fake) -> dict[str, Tensor]:
        strategy = strategy_in(replicas[group.rank], group)
        state = end_of(strategy, replicas[group.rank])
        assert strategy.stream is not None
        assert strategy.stream.is_early
        return state

    for theirs in together(2, run)[0]:
        assert all(torch.equal(alone[key], theirs[key]) for key in alone)


def test_a_member_that_was_wrong_may_have_no_shard_next(replica_of: Callable[..., Replica]) -> None:
    replica = replica_of(normed())
    stream = stream_of(replica)
    assert stream is not None
    stream.is_wrong = True
    step = replica.plan.step_at(replica.position)
    nothing = replica.partials(
        step, (0, 0), sum_nodes=lambda nodes, compute: stream.sums(nodes, compute, lambda *_: None)
    )
    assert nothing == []
    assert not stream.is_wrong


class Refused(Exception):
    """A user's."""


class Failing(nn.Module):
    """The identity, whose gradient fails after some shards."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.left = shards
        self.register_full_backward_hook(self.fail)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 1

    def fail(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            raise Refused("no gradient")


def test_an_error_after_buckets_were_sent(replica_of: Callable[..., Replica]) -> None:
    """It is told as any other, nothing is left running, and the state is that before the update."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 12), Failing(8), nn.Tanh(), nn.Linear(12, 3))
    replica = replica_of(quiet(model), batch=JOB["batch"] | {"shard": 27})  # a shard for each update, so one member's
    before = {}
    threads = threading.active_count()

    class Silent(Fake):
        """A peer that has no shard, and always answers."""

        def swap(self, outgoing: Any, incoming: Any) -> None:
            self.bytes_sent += sum(tensor.nbytes for tensor in outgoing.values())
            for tensor in incoming.values():
                tensor.zero_()

    group = Silent(0, {}, 2)
    strategy = strategy_of(Setting(replica, group, nullcontext(), lambda: None))
    for _ in range(7):
        group.bytes_sent = 0
        strategy.round(bool)
        before = {key: value.clone() for key, value in replica.tensors().items()}
    whole, group.bytes_sent = group.bytes_sent, 0
    with pytest.raises(WorkloadError, match="no gradient"):
        strategy.round(bool)
    assert 0 < group.bytes_sent < whole
    assert threads == threading.active_count()
    assert all(torch.equal(value, replica.tensors()[key]) for key, value in before.items())


def test_a_peer_that_is_lost_between_two_buckets(replica_of: Callable[..., Replica]) -> None:
    """No later bucket waits for it as well."""
    replica, swaps = replica_of(normed()), []

    class Lost(Fake):
        def swap(self, outgoing: Any, incoming: Any) -> None:
            swaps.append(threading.current_thread().name)
            if len(swaps) == 2:
                raise PeerLost("gone")

    strategy = strategy_of(Setting(replica, Lost(0, {}, 2), nullcontext(), lambda: None))
    with pytest.raises(PeerLost, match="gone"):
        strategy.round(bool)
    assert len(swaps) == 2
    assert len(buckets(replica.parameters)) > 2
    assert all(name.startswith("exchange") for name in swaps)
    assert replica.position.update == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": {"type": "AllReduce", "compression": "Int8"}},
        {"exchange": {"type": "GatherScatter"}},
        {"batch": JOB["batch"] | {"maximum": 54, "growth": {"type": "NoiseScale"}}},
        {"compile": True},
    ],
)
def test_jobs_that_need_whole_rows_have_no_buckets(replica_of: Callable[..., Replica], changes: dict[str, Any]) -> None:
    assert stream_of(replica_of(normed(), **changes)) is None


def test_a_small_model_has_none(replica_of: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert stream_of(replica_of(normed())) is None


def test_the_buckets_are_whole_parameters_from_the_last_layer_on(replica_of: Callable[..., Replica]) -> None:
    """Those without decay, which belong to all layers, come at the end; together they are the whole gradient."""
    parameters = replica_of(normed()).parameters
    places = buckets(parameters)
    starts = {span.start for span in parameters.spans}
    assert all(place.start in starts for place in places)
    assert all(place.stop - place.start >= SMALL for place in places if place.start not in (0, parameters.last_from))
    decayed = [place for place in places if place.start < parameters.last_from]
    assert decayed == sorted(decayed, key=lambda place: -place.start) == places[: len(decayed)]
    assert list(range(parameters.length)) == sorted(at for place in places for at in range(place.start, place.stop))

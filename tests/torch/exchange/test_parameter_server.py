"""ParameterServer against AllReduce of one process: the same state, for any members and servers."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.shards import lay_out
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.exchange.group import Group, LoneGroup, PeerLost
from batchgrowth_trainer.exchange.parameter_server import ParameterServer
from batchgrowth_trainer.exchange.strategy import Round, Setting, strategy_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from threads import Counting, together
from torch import Tensor, nn

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]
Make = Callable[..., Replica]

JOBS: dict[str, dict[str, Any]] = {
    "clipped by norm": {
        "optimizer": {
            "type": "SGD",
            "sgd": {"momentum": "0.9", "nesterov": True, "weightDecay": "0.01"},
            "clipping": {"norm": "0.5"},
            "withoutDecay": {"belowDimensions": 2},
        }
    },
    "averaged": {"optimizer": {"type": "AdamW", "averaging": {"decay": "0.9"}}},
    "by layers": {"optimizer": {"type": "LAMB", "withoutDecay": {"names": ["0.*"]}}},
    "measured": {
        "batch": {"initial": 8, "maximum": 32, "shard": 4, "growth": {"type": "NoiseScale"}},
        "learningRate": {"initial": "0.05", "rule": "AdaScale"},
    },
}


def settings(servers: int | None) -> dict[str, Any]:
    given = {} if servers is None else {"parameterServer": {"servers": servers}}
    return {"exchange": {"type": "ParameterServer", **given}}


def normed() -> Workload:
    """With batch norm, and nothing random: the members are threads, which share torch's generator."""
    torch.manual_seed(2)
    made = small.of(nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))
    return Workload(model=made.model, loss=made.loss, train=made.train, test=made.test)


@pytest.fixture
def replica_of(small_job: Any, make_replica: MakeReplica) -> Make:
    """A function (part of a spec, …) -> a replica of the small job at its first update."""

    def made(*parts: dict[str, Any]) -> Replica:
        fields = {name: value for part in parts for name, value in part.items()}
        return make_replica(small_job(*(f"{name}={json.dumps(value)}" for name, value in fields.items())), normed())

    return made


def train(replica: Replica, group: Group | None = None) -> list[Round]:
    """The rounds of a member, to the end of the plan."""
    strategy = strategy_of(Setting(replica, group or LoneGroup(), nullcontext(), lambda: None))
    rounds = []
    while not replica.plan.is_done(replica.position):
        rounds.append(strategy.round(lambda: False))
    return rounds


def state(replica: Replica) -> dict[str, Tensor]:
    return {name: vector.clone() for name, vector in replica.tensors().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("members", "servers"), [(1, 2), (2, None), (2, 1), (3, 2), (3, 4), (5, 4), (5, None)])
def test_the_state_of_all_reduce(replica_of: Make, job: str, members: int, servers: int | None) -> None:
    """After each round of every member: four parameters, so a member may have none."""
    alone = replica_of(JOBS[job], {"exchange": {"type": "AllReduce"}})
    updates = [update for each in train(alone) for update in each.done]

    def run(group: Group) -> tuple[dict[str, Tensor], list[Round]]:
        replica = replicas.pop()
        rounds = train(replica, group)
        return state(replica), rounds

    replicas = [replica_of(JOBS[job], settings(servers)) for _ in range(members)]
    results, threads = together(members, run)
    for theirs, rounds in results:
        assert updates == [update for each in rounds for update in each.done]
        assert same(state(alone), theirs)

    # Of each update, all send their sums to the servers, these the weights to all, and all what follows the gradient
    # and the norms to all; of each round, the servers send their part of the optimizer's state and the average to all.
    weights, replica = alone.parameters.length, replica_of(JOBS[job], settings(servers))
    strategy = strategy_of(Setting(replica, Counting(0, members), nullcontext(), lambda: None))
    assert isinstance(strategy, ParameterServer)
    owned = [place.stop - place.start for place in strategy.places]
    numbers = 0
    for step, _ in updates:
        nodes = [len(each) for each in lay_out(step.shards, members).nodes]
        numbers += sum(count * (weights - own) for count, own in zip(nodes, owned, strict=True))
        numbers += (members - 1) * (weights + sum(nodes) * (alone.length - weights) + len(alone.parameters.spans))
    average = [] if alone.average is None else [alone.average.vector]
    kept = sum(vector.nbytes for vector in (*alone.optimizer.state.values(), *average))
    sent = 4 * numbers + len(results[0][1]) * (members - 1) * kept
    assert sent == sum(member.bytes_sent for member in threads)


def test_a_torch_class_has_one_server(replica_of: Make) -> None:
    """It may look at all parameters at once: the whole of it is on the first of three members."""
    job = {"optimizer": {"type": "Torch", "torch": {"optimizer": "torch.optim:NAdam"}}}
    alone = replica_of(job, {"exchange": {"type": "AllReduce"}})
    train(alone)

    def run(group: Group) -> dict[str, Tensor]:
        replica = replicas.pop()
        train(replica, group)
        return state(replica)

    replicas = [replica_of(job, settings(None)) for _ in range(3)]
    assert all(same(state(alone), theirs) for theirs in together(3, run)[0])


def test_a_whole_optimizer_of_another_kind_has_one_server(replica_of: Make) -> None:
    replica = replica_of(settings(2))
    replica.optimizer = type("Theirs", (), {"state": {}, "step": None})()
    with pytest.raises(WorkloadError, match=r"exchange\.parameterServer\.servers: give 1 with optimizer SGD"):
        train(replica)


class Breaking(LoneGroup):
    """The group of one that loses a peer in a swap."""

    left = 1_000_000

    def swap(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise PeerLost("gone")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("swaps", [4, 18])
def test_a_round_that_breaks_leaves_the_state_before_it(replica_of: Make, job: str, swaps: int) -> None:
    """In its second update, or after its last one. So it can be repeated, with the same bits."""
    whole, broken = (replica_of(JOBS[job], settings(1)) for _ in range(2))
    group = Breaking()
    strategy = strategy_of(Setting(broken, group, nullcontext(), lambda: None))
    strategy.round(lambda: False)
    position, before = broken.position, state(broken)
    group.left = swaps
    with pytest.raises(PeerLost):
        strategy.round(lambda: False)
    assert position == broken.position
    assert same(before, state(broken))
    assert broken.is_whole
    train(whole)
    train(broken)
    assert same(state(whole), state(broken))


def test_a_loss_that_is_not_finite_leaves_the_state_before_the_round(small_job: Any, make_replica: MakeReplica) -> None:
    replica = make_replica(small_job("exchange={type: ParameterServer}"), small.diverging())
    before = state(replica)
    with pytest.raises(WorkloadError, match=r"update ([2-9]|1[0-6]) .* is not finite"):
        train(replica)
    assert replica.position.update == 0
    assert same(before, state(replica))


def test_a_requested_stop_ends_a_round_after_the_update(replica_of: Make) -> None:
    answers = iter([False, False, True])
    replica = replica_of(settings(2))
    done = strategy_of(Setting(replica, LoneGroup(), nullcontext(), lambda: None)).round(lambda: next(answers))
    assert (len(done.done), done.stop) == (3, True)
    assert replica.position.update == 3


def test_slices_are_of_whole_parameters_and_about_the_same_length(replica_of: Make) -> None:
    parameters = replica_of(settings(2)).parameters  # of 48, 8, 8, 24 and 3 elements, which take 48, 16, 16, 32 and 16
    assert parameters.lengths == [48, 16, 16, 32, 16]
    for servers, lengths in ((1, [128]), (2, [64, 64]), (3, [48, 32, 48]), (4, [48, 16, 16, 48])):
        places = parameters.places(parameters.cuts(servers))
        assert lengths == [place.stop - place.start for place in places]
    assert sum(place.stop - place.start for place in parameters.places(parameters.cuts(50))) == 128

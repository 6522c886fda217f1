"""What users' code begins to do after the trial: found while training, by name, if results depend on it."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.exchange import spot_check
from batchgrowth_trainer.exchange.group import LoneGroup
from batchgrowth_trainer.exchange.spot_check import SpotCheck
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.replica import beginning
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload
from small import FEATURES, data, net, plain
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

UPDATES = 12
LATE = 12
"""The calls after which code changes its mind: the trial makes four, and each update two or more."""

Trained = Callable[..., Replica]


@pytest.fixture
def trained(tried: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch) -> Trained:
    """A function: the replica of a workload, tried out and trained, with a check after every second update or so."""
    monkeypatch.setattr(spot_check, "SHARDS_BETWEEN", 2)
    monkeypatch.setattr(beginning, "TIMES_LONGER", 0)

    def made(workload: Workload, *overrides: str) -> Replica:
        replica = tried(workload, *overrides)
        check = SpotCheck(Setting(replica, LoneGroup(), nullcontext(), lambda: None))
        for _ in range(UPDATES):
            step = replica.plan.step_at(replica.position)
            [whole] = replica.partials(step, (0, step.shards))
            replica.commit(step, whole.row)
            replica.rows.release([whole])
            check.after(step, step, is_last=False)
        return replica

    return made


class Net(nn.Module):
    """A linear model that halves its output once it has been called often; a subclass says how it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, 3)
        self.calls = 0
        self.pace = 1.0
        self.seen: list[int] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        return self.net(rows) * (0.5 if self.calls > LATE else 1.0)


class Switching(Net):
    """Changes an attribute that never changed before."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(self.seen) < LATE:
            self.seen.append(1)
        elif self.pace == 1.0:
            self.pace = 0.5
        return self.net(rows) * self.pace


CALLS = 0


def by_a_global(output: Tensor, target: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return F.cross_entropy(output, target, reduction="none") / max(1, CALLS - LATE)


def in_a_closure() -> Callable[[Tensor, Tensor], Tensor]:
    calls = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(output, target, reduction="none") / max(1, calls - LATE)

    return loss


class DrawingLater:
    """An augmentation that draws from its own generator once it is warm."""

    def __init__(self) -> None:
        self.calls = 0
        self.draws = random.Random(1)

    def __call__(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs * self.draws.random() if self.calls > LATE else inputs


class ByTheEnvironment:
    """An augmentation that counts in a variable of the environment."""

    def __call__(self, inputs: Tensor) -> Tensor:
        os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
        return inputs / max(1, int(os.environ["CALLS"]) - LATE)


class Harder(Dataset[tuple[Tensor, Tensor]]):
    """A data set that gives noisier examples the more it has been read."""

    def __init__(self) -> None:
        self._rows = data()
        self.reads = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        inputs, target = self._rows[index]
        return inputs * (2 if self.reads > 60 else 1), target


@pytest.mark.fault("T01")
@pytest.mark.parametrize(
    ("workload", "named"),
    [
        (
            lambda: replace(plain(), model=Net()),
            r"model\.calls has changed.*model\.calls = \d+ than with 0.*in forward",
        ),
        (lambda: replace(plain(), model=Switching()), r"model\.pace has changed.*= 0\.5 than with 1\.0.*in forward"),
        (lambda: replace(plain(), loss=by_a_global), r"CALLS has changed.*test_later\.py:\d+, in by_a_global"),
        (lambda: replace(plain(), loss=in_a_closure()), r"calls has changed.*test_later\.py:\d+, in loss"),
        (lambda: replace(plain(), augment=ByTheEnvironment()), r"os\.environ\['CALLS'\] has changed.*= '\d+' than"),
        (lambda: replace(plain(), train=Harder()), r"train\.reads has changed since training began.*in __getitem__"),
        (lambda: replace(plain(), augment=DrawingLater()), r"augment\.draws is a generator of your own.*in __call__"),
    ],
)
def test_what_begins_to_matter_after_the_trial_is_named(
    trained: Trained, workload: Callable[[], Workload], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS", "0")
    with pytest.raises(WorkloadError, match=named):
        trained(workload())


@pytest.fixture
def _settings_back() -> Iterator[None]:
    folder = Path.cwd()
    yield
    os.chdir(folder)
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_settings_back")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: torch.set_default_dtype(torch.float64), r"torch's default dtype was torch\.float32 when training"),
        (lambda: torch.set_num_threads(2), r"torch's number of threads was 1 when training began and is 2 after"),
        (lambda: torch.set_flush_denormal(True), r"torch's flushing of denormal numbers was False"),
        (lambda: os.chdir("/"), r"the current folder was .* when training began and is / after update \d+"),
    ],
)
def test_a_setting_that_is_changed_after_the_trial_is_named(
    trained: Trained, change: Callable[[], object], named: str
) -> None:
    calls = itertools.count()

    def augment(inputs: Tensor) -> Tensor:
        if next(calls) == LATE:
            change()
        return inputs

    with pytest.raises(WorkloadError, match=named):
        trained(replace(plain(), augment=augment))


class Following(Net):
    """A frozen copy follows the trained layer once that is warm; only evaluations use it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(FEATURES, 3).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > LATE:
            self.slow.weight.data.mul_(0.9).add_(self.net.weight.data, alpha=0.1)
        return self.net(rows) if self.training else self.slow(rows)


class Moving(Net):
    """Gives its weights other memory, with the same values."""

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > LATE:
            self.net.weight.data = self.net.weight.data.clone()
        return self.net(rows)


class Thawing(Net):
    """Trains its first layer after some calls, as a callback of other trainers does after some epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES).requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        self.first.requires_grad_(self.calls > LATE)
        return self.net(self.first(rows))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            Following,
            r"a call of the model has changed the parameter model\.slow\.weight by update \d+.*buffer.*in forward",
        ),
        (Moving, r"a call of the model has changed the parameter model\.net\.weight by update \d+.*in forward"),
        (Thawing, r"update \d+: the parameter model\.first\.weight was frozen when.*torch\.no_grad\(\).*in forward"),
    ],
)
def test_a_parameter_that_a_call_changes_after_the_trial_is_named(
    trained: Trained, model: type[nn.Module], named: str
) -> None:
    with pytest.raises(WorkloadError, match=named):
        trained(replace(plain(), model=model()))


def test_a_frozen_parameter_that_shares_the_memory_of_a_trained_one_may_change_with_it(trained: Trained) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 3))
    model[1].requires_grad_(False)
    model[1].weight.data = model[0].weight.data
    replica = trained(replace(plain(), model=model))
    assert torch.equal(replica.model[1].weight, replica.model[0].weight)


class Recording(Net):
    """Keeps values that nothing reads, ever more of them."""

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.last = rows.detach().mean()
        return self.net(rows)


def test_looks_change_no_bit(trained: Trained) -> None:
    """Neither of a model that records, nor of one with batch norm, dropout and noise; and records stay whole."""
    for model in (Recording, lambda: net().model):
        ends = []
        for verify in ("verify=true", "verify=false"):
            torch.manual_seed(1)
            replica = trained(replace(net(), model=model()), verify)
            ends.append(replica.tensors())
            if isinstance(replica.model, Recording):
                assert replica.model.seen == sorted(set(replica.model.seen))
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


class Images(Harder):
    """A data set that keeps its examples in an array."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = np.zeros(100)


def test_a_state_that_would_take_much_memory_is_not_remembered(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "MOST_BYTES", 799)
    trained(replace(plain(), train=Images()))


def test_a_look_waits_until_it_is_worth_its_time_but_not_at_the_end(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "TIMES_LONGER", 1e9)
    looks: list[int] = []
    monkeypatch.setattr(beginning.Beginning, "other_settings", lambda _: looks.append(1) or iter(()))
    replica = trained(plain())
    assert looks == [1]
    assert not replica.beginning.is_due
    last = replica.plan.step_at(replica.plan.position_at(replica.plan.updates - 1))
    check = SpotCheck(Setting(replica, LoneGroup(), nullcontext(), lambda: None))
    check.after(last, last, is_last=True)
    assert looks == [1, 1]

"""The trial of a workload: what breaks its promise is named, and the replica stays as it was."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.looks import Look
from batchgrowth_trainer.replica import workload_trial as trial
from batchgrowth_trainer.replica.python_state import PythonState, is_alike
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.workload_trial import try_out
from batchgrowth_trainer.workload import Workload
from small import FEATURES, data, net, plain
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

Tried = Callable[..., Replica]


class Net(nn.Module):
    """A linear model that tests subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.net(rows)


class Annealed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        return self.net(rows) / max(0.2, 0.98**self.calls)


class CountingInAList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen = [0]

    def forward(self, rows: Tensor) -> Tensor:
        self.seen[0] += 1
        return self.net(rows) / self.seen[0]


class Nested(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(self.net, Annealed.__new__(Annealed))
        Annealed.__init__(self.net[1])
        self.net[1].net = nn.Linear(3, 3)


class OfTheClass(Net):
    calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        OfTheClass.calls += 1
        return self.net(rows) / OfTheClass.calls


class Averaged(Net):
    """Keeps a running mean in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(FEATURES)

    def forward(self, rows: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * rows.detach().mean(dim=0)
        return self.net(rows - self.mean)


class AveragedInPlace(Averaged):
    def forward(self, rows: Tensor) -> Tensor:
        self.mean.lerp_(rows.detach().mean(dim=0), 0.1)
        return self.net(rows - self.mean)


class DecidedByTheFirst(Net):
    """Normalizes by the first shard that it sees: each worker sees another one first."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = rows.detach().mean(dim=0)
        return self.net(rows - self.mean)


class KeepingAGraph(DecidedByTheFirst):
    """Goes on from the hidden state of the shard before, with its graph."""

    def forward(self, rows: Tensor) -> Tensor:
        before = 0.0 if self.mean is None else self.mean
        output: Tensor = self.net(rows)
        self.mean = output.mean(dim=0)
        return output + before


CALLS = itertools.count(1)
TIMES = 0


def by_a_global(output: Tensor, target: Tensor) -> Tensor:
    global TIMES
    TIMES += 1
    return F.cross_entropy(output, target, reduction="none") / TIMES


def by_an_iterator(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none") / next(CALLS)


def counted(output: Tensor, target: Tensor) -> Tensor:
    counted.calls += 1  # type: ignore[attr-defined]
    return F.cross_entropy(output, target, reduction="none") / counted.calls  # type: ignore[attr-defined]


counted.calls = 0  # type: ignore[attr-defined]


def in_a_closure() -> Callable[[Tensor, Tensor], Tensor]:
    calls = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(output, target, reduction="none") / calls

    return loss


@pytest.mark.fault("T01")
@pytest.mark.parametrize(
    ("workload", "named"),
    [
        (lambda: replace(plain(), model=Annealed()), r"model\.calls .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=CountingInAList()), r"model\.seen .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=Nested()), r"model\.net\.1\.calls "),
        (lambda: replace(plain(), model=OfTheClass()), r"OfTheClass\.calls .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=Averaged()), r"model\.mean .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=AveragedInPlace()), r"model\.mean .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=DecidedByTheFirst()), r"model\.mean .*test_workload_trial\.py:\d+, in forward"),
        (lambda: replace(plain(), model=KeepingAGraph()), r"a second time.*nothing but what detach\(\) returns"),
        (lambda: replace(plain(), loss=by_a_global), r"TIMES .*test_workload_trial\.py:\d+, in by_a_global"),
        (
            lambda: replace(plain(), loss=by_an_iterator),
            r"loss: update \d+, .*test_workload_trial\.py:\d+, in by_an_iterator",
        ),
        (lambda: replace(plain(), loss=counted), r"loss\.calls .*test_workload_trial\.py:\d+, in counted"),
        (lambda: replace(plain(), loss=in_a_closure()), r"calls .*test_workload_trial\.py:\d+, in loss"),
    ],
)
def test_what_depends_on_earlier_calls_is_refused(tried: Tried, workload: Callable[[], Workload], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        tried(workload())


class WithGenerator(Net):
    """Keeps a generator's state in a buffer, as `drawn` says, and a count of calls in another."""

    def __init__(self, modulus: int) -> None:
        super().__init__()
        self.modulus = modulus
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("state", torch.ones((), dtype=torch.int64))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.state = (self.state * 1103515245 + 12345) % self.modulus
        return super().forward(rows)


def test_a_generator_in_a_buffer_is_refused(tried: Tried) -> None:
    """Its state is no number of which there is a mean; a small one is a count like another."""
    tried(replace(plain(), model=WithGenerator(100)))
    with pytest.raises(WorkloadError, match=r"the buffer model\.state changes by 1,.* than the mean over shards keeps"):
        tried(replace(plain(), model=WithGenerator(2**31)))


class WithExtraState(Net):
    """A count that is exported, and that nothing else reads."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.calls, self._counts = 0, counts

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += self._counts
        return super().forward(rows)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: Tensor) -> None:
        self.calls = int(state)


def test_extra_state_that_changes_is_refused(tried: Tried) -> None:
    tried(replace(plain(), model=WithExtraState(counts=False)))
    with pytest.raises(WorkloadError, match=r"model\.state_dict\(\) has _extra_state, which changes.*in forward"):
        tried(replace(plain(), model=WithExtraState(counts=True)))


def test_a_buffer_may_be_empty(tried: Tried) -> None:
    model = Net()
    model.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
    tried(replace(plain(), model=model))


OWN = {
    "numpy": np.random.default_rng(0),
    "older numpy": np.random.RandomState(0),
    "python": random.Random(0),
    "torch": torch.Generator().manual_seed(0),
}


def by_numpy(inputs: Tensor) -> Tensor:
    return inputs + torch.from_numpy(OWN["numpy"].normal(size=inputs.shape).astype("float32"))


def by_older_numpy(inputs: Tensor) -> Tensor:
    return inputs + torch.from_numpy(OWN["older numpy"].normal(size=inputs.shape).astype("float32"))


def by_python(inputs: Tensor) -> Tensor:
    return inputs if OWN["python"].random() < 0.999 else inputs.flip(1)


def by_torch(inputs: Tensor) -> Tensor:
    return inputs + torch.randn(inputs.shape, generator=OWN["torch"])


def by_the_system(inputs: Tensor) -> Tensor:
    return inputs * random.SystemRandom().random()


class Flips:
    """An augmentation as a class, with a generator in an attribute."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(1)

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs * float(self.draws.normal())


@pytest.mark.fault("T02")
@pytest.mark.parametrize(
    ("augment", "named"),
    [
        (by_numpy, r"OWN\['numpy'\] is a generator of your own.*in by_numpy"),
        (by_older_numpy, r"OWN\['older numpy'\] is a generator of your own"),
        (by_python, r"OWN\['python'\] is a generator of your own"),
        (by_torch, r"OWN\['torch'\] is a generator of your own"),
        (by_the_system, r"augment: update \d+, .*not from a generator of your own, the system.*in by_the_system"),
        (Flips(), r"augment\.draws is a generator of your own.*in __call__"),
    ],
)
def test_a_generator_of_ones_own_is_refused(tried: Tried, augment: Callable[[Tensor], Tensor], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        tried(replace(plain(), augment=augment))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """A data set that rarely draws from a generator of its own, so that four examples read alike."""

    def __init__(self) -> None:
        self._draws = random.Random(3)
        self._rows = data()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self._rows[index]
        return (inputs if self._draws.random() < 0.999 else -inputs), target


@pytest.mark.fault("T02")
def test_a_data_sets_own_generator_is_refused_though_it_had_no_effect_yet(tried: Tried) -> None:
    with pytest.raises(WorkloadError, match=r"train\._draws is a generator of your own.*in __getitem__"):
        tried(replace(plain(), train=Rows()))


class Keeping(Rows):
    """Keeps its examples, with the noise that it has drawn for them or without."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self._kept: dict[int, Tensor] = {}
        self._noise = noise

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self._rows[index]
        if index not in self._kept:
            self._kept[index] = inputs + self._noise * torch.randn(FEATURES)
        return self._kept[index], target


@pytest.mark.fault("T02")
def test_a_data_set_that_keeps_what_it_has_drawn_is_refused(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_QUICKLY_READ", math.inf)
    tried(replace(plain(), train=Keeping(0.0)))
    with pytest.raises(WorkloadError, match=r"otherwise once train\._kept\[\d+\] has changed.*in __getitem__"):
        tried(replace(plain(), train=Keeping(1.0)))


class Recording(Net):
    """Keeps values that nothing reads, and builds tables when they are first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.losses: list[float] = []
        self.last: Tensor | None = None
        self.mask: Tensor | None = None
        self.draws = torch.Generator()

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.mask is None:
            self.mask = torch.arange(FEATURES) < 4
        self.last = self.net(rows * self.mask)
        self.losses.append(float(self.last.detach().sum()))
        self.draws.manual_seed(int(torch.randint(1 << 30, ())))
        return self.last + 0.01 * torch.randn(self.last.shape, generator=self.draws) + table(FEATURES).mean()


@lru_cache
def table(length: int) -> Tensor:
    return torch.arange(length) / length


@pytest.mark.fault("T01")
def test_what_has_no_effect_is_left_alone_and_put_back(tried: Tried) -> None:
    """Records, lazily built tables, what lru_cache keeps, and a generator that is seeded in each call."""
    model = Recording()
    tried(replace(net(), model=model))
    assert (model.calls, model.losses, model.last, model.mask) == (0, [], None, None)


def test_values_are_compared_by_what_they_hold() -> None:
    rows = [np.array([np.array([1.0]), "name", None], dtype=object) for _ in range(2)]
    assert is_alike(*rows)
    rows[1][0][0] = 2
    assert not is_alike(*rows)
    assert not is_alike(np.zeros(1), -np.zeros(1))
    assert is_alike(torch.tensor([0.0, math.nan]), torch.tensor([-0.0, math.nan]))
    for unknown in (False, True):  # a tensor without contents
        assert is_alike(torch.ones(2), torch.ones(2, device="meta"), unknown=unknown) is unknown


def test_a_setting_of_the_process_that_a_call_changes_is_refused(tried: Tried) -> None:
    def augment(inputs: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return inputs

    try:
        with pytest.raises(WorkloadError, match=r"torch's default dtype was torch\.float32 and is torch\.float64"):
            tried(replace(plain(), augment=augment))
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_error_after_a_setting_was_changed_names_the_setting_too(tried: Tried) -> None:
    def augment(inputs: Tensor) -> Tensor:
        if torch.get_default_dtype() == torch.float64:
            raise ValueError("doubles")
        torch.set_default_dtype(torch.float64)
        return inputs

    try:
        with pytest.raises(WorkloadError, match=r"doubles.*; torch's default dtype was torch\.float32 before and"):
            tried(replace(plain(), augment=augment))
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_replica_stays_as_it_was(small_job: Any, make_replica: Callable[..., Replica]) -> None:
    """With batch norm, dropout and noise."""
    one, other = (make_replica(small_job(), net()) for _ in range(2))
    for each in (one, other):
        for tensor, same in zip(each.tensors().values(), one.tensors().values(), strict=True):
            tensor.copy_(same)
    try_out(other)
    for each in (one, other):
        step = each.plan.step_at(each.position)
        [whole] = each.partials(step, (0, step.shards))
        each.commit(step, whole.row)
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name])


@pytest.mark.fault("T01")
def test_of_a_slow_shard_a_few_examples_are_compared(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first shard, which is computed whole: its digest is the job's."""
    seen: list[int] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(len(target))
        return F.cross_entropy(output, target, reduction="none")

    digest = tried(replace(plain(), loss=loss)).arithmetic.digest
    monkeypatch.setattr(trial, "_MOST_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(PythonState, "restore", lambda *_, **__: None)  # which would forget what was seen
        assert tried(replace(plain(), loss=loss)).arithmetic.digest == digest
    assert seen == [4, 2, 2, 2]
    with pytest.raises(WorkloadError, match=r"model\.calls "):
        tried(replace(plain(), model=Annealed()))


def test_code_that_needs_more_examples_than_a_few_gets_them(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loss that compares examples with each other: the plan has no shard as small as what is compared."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none") + output.topk(3, dim=0).values.sum(0).mean()

    monkeypatch.setattr(trial, "_MOST_SECONDS", 0.0)
    tried(replace(plain(), loss=loss, train=data(96)), "workload.examples=96")


class Squeezing(Net):
    def forward(self, rows: Tensor) -> Tensor:
        return self.net(rows)[:, 0].unsqueeze(1).squeeze()


def of_output(output: Tensor, _target: Tensor) -> Tensor:
    return output.square()


@pytest.mark.fault("T16")
@pytest.mark.parametrize("loss", [of_output, nn.BCEWithLogitsLoss(reduction="none")])
def test_the_smallest_shard_of_the_plan_is_tried(tried: Tried, loss: Any) -> None:
    """Of 89 examples in batches of 8, the last update of an epoch has one."""
    workload = replace(plain(), model=Squeezing(), loss=loss, train=Binary(89))
    with pytest.raises(WorkloadError, match=r"one example|Target size.*this one has 1 example.*squeeze\(1\)"):
        tried(workload, "workload.examples=89", "batch={initial: 8, maximum: 8, shard: 4}")


class Binary(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, examples: int) -> None:
        self._rows = data(examples)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self._rows[index]
        return inputs, (target > 0).float()


class InAFile(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a file, which is opened at once or when it is first read."""

    def __init__(self, path: Path, *, early: bool, buffering: int) -> None:
        self._path = path
        self._buffering = buffering
        self._file = path.open("rb", buffering=buffering) if early else None
        self._targets = data().tensors[1]

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self._file is None:
            self._file = self._path.open("rb", buffering=self._buffering)
        self._file.seek(4 * FEATURES * index)
        row = self._file.read(4 * FEATURES).ljust(4 * FEATURES, b"\0")  # another process may have moved to the end
        return torch.frombuffer(bytearray(row), dtype=torch.float32), self._targets[index]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@pytest.mark.fault("T18")
@pytest.mark.parametrize("buffering", [0, 4096])
def test_a_file_that_loaders_share_is_refused(
    small_job: Any, make_replica: Callable[..., Replica], tmp_path: Path, buffering: int
) -> None:
    """And one that each of them opens is not, as the error advises."""
    path = tmp_path / "rows.bin"
    path.write_bytes(data().tensors[0].numpy().tobytes())
    for early in (True, False):
        rows = InAFile(path, early=early, buffering=buffering)
        replica = make_replica(small_job("workers.loaders=2"), replace(plain(), train=rows))
        try:
            if early:
                with pytest.raises(WorkloadError, match=rf"share the open file {path} .*in __getitem__: if self\.file"):
                    try_out(replica)
            else:
                try_out(replica)
        finally:
            replica.reader.close()
            rows.close()


ASKED = [0]


def by_asking(look: Look) -> float:
    ASKED[0] += 1
    return float(look.initial * ASKED[0])


def by_chance(look: Look) -> float:
    return look.initial * random.random()


def recording(look: Look) -> float:
    ASKED.append(1)
    look.memory[0] += 1
    return look.initial * look.memory[0]


@pytest.mark.fault("T02")
@pytest.mark.parametrize(("rule", "names"), [(by_asking, r"ASKED"), (by_chance, "in by_chance"), (recording, "")])
def test_a_growth_rule_is_asked_twice(tried: Tried, rule: Any, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "by_loss", rule)
    growth = "growth: {type: Custom, custom: {entrypoint: 'small:by_loss', memory: 2}}"
    job = f"batch={{initial: 8, maximum: 32, shard: 4, {growth}}}"
    if names:
        with pytest.raises(WorkloadError, match=rf"batch\.growth\.custom: small:by_loss answers otherwise.*{names}"):
            tried(plain(), job)
    else:
        tried(plain(), job)
    assert ASKED == [0]

"""L-BFGS against torch.optim.LBFGS, and what its coordinator promises."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import pytest
import torch
from batchgrowth.choices.optimizers import LBFGSBlock
from batchgrowth_trainer.replica.flat import FlatParameters, Span
from batchgrowth_trainer.replica.lbfgs import Coordinator, HeldSlices, Table, total
from batchgrowth_trainer.replica.optimizers import optimizer_of
from torch import Tensor, nn

PLAIN = {"max_iter": 1, "history_size": 4, "tolerance_grad": 0, "tolerance_change": 0}
Loss = Callable[[nn.Module], Tensor]
HISTORY = 4


def override(**settings: Any) -> str:
    block = ", ".join(f"{name}: {value!r}" for name, value in settings.items())
    return f"optimizer={{type: LBFGS, lbfgs: {{{block}}}}}"


def quadratic() -> tuple[nn.Module, Loss]:
    """A quadratic in 12 weights with curvatures from 0.5 to 20, and its least value at a point that is not 0."""
    draw = torch.Generator().manual_seed(4)
    turned = torch.linalg.qr(torch.randn(12, 12, generator=draw)).Q
    curved = turned @ torch.diag(torch.linspace(0.5, 20, 12)) @ turned.T
    lowest, model = torch.randn(12, generator=draw), nn.Linear(4, 3, bias=False)
    nn.init.ones_(model.weight)

    def loss(model: nn.Module) -> Tensor:
        away = torch.cat([p.reshape(-1) for p in model.parameters()])
        away = away - lowest.to(away)
        return away @ curved.to(away) @ away / 2

    return model, loss


def logistic() -> tuple[nn.Module, Loss]:
    """Logistic regression with a penalty on all parameters, so that there is one optimum."""
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(200, 6, generator=draw) * torch.linspace(0.3, 3, 6)
    labels = (inputs @ torch.randn(6, 3, generator=draw) + torch.randn(200, 3, generator=draw)).argmax(dim=1)
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)

    def loss(model: nn.Module) -> Tensor:
        penalty = sum(p.square().sum() for p in model.parameters())
        return nn.functional.cross_entropy(model(inputs.to(model.weight)), labels) + 0.005 * penalty

    return model, loss


class Trained:
    """A model that takes steps of our optimizer by the gradient of a loss."""

    def __init__(
        self, small_job: Any, made: tuple[nn.Module, Loss], spares: Any = lambda *_: False, **settings: Any
    ) -> None:
        self.model, self.loss = made
        self.flat = FlatParameters(self.model, torch.device("cpu"), spares)
        self.optimizer = optimizer_of(small_job(override(**settings)).spec, self.flat)
        self.done = 0

    def gradient(self) -> Tensor:
        row = torch.zeros(self.flat.length)
        self.flat.collect_into(self.flat.gradient_views(row))
        self.loss(self.model).backward()
        return row

    def steps(self, count: int, rate: float) -> None:
        for _ in range(count):
            self.optimizer.step(self.gradient(), rate, self.done)
            self.done += 1


def torchs(made: tuple[nn.Module, Loss], rate: float, **settings: Any) -> tuple[nn.Module, Callable[[], None]]:
    """A model, and a function that takes one of torch's own steps with it."""
    model, loss = made
    optimizer = torch.optim.LBFGS(model.parameters(), rate, **PLAIN | settings)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    return model, lambda: optimizer.step(closure)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(("problem", "rate"), [(quadratic, 1.0), (quadratic, 0.6), (logistic, 1.0), (logistic, 0.7)])
def test_each_step_is_torchs(small_job: Any, problem: Callable[[], tuple[nn.Module, Loss]], rate: float) -> None:
    """To rounding, which each step enlarges: torch adds in float32, and we in float64."""
    ours = Trained(small_job, problem(), history=HISTORY)
    theirs, step = torchs(problem(), rate)
    path = []
    for _ in range(4 * HISTORY):
        ours.steps(1, rate)
        step()
        path.append(((vector(ours.model) - vector(theirs)).norm() / vector(theirs).norm()).item())
    assert max(path[:HISTORY]) < 1e-5
    assert max(path) < 1e-3


@pytest.mark.parametrize("problem", [quadratic, logistic])
def test_it_reaches_torchs_optimum(small_job: Any, problem: Callable[[], tuple[nn.Module, Loss]]) -> None:
    """Torch's in float64, with a line search."""
    model, loss = problem()
    ours = Trained(small_job, (model, loss), history=HISTORY)
    theirs, step = torchs((deepcopy(model).double(), loss), 1.0, line_search_fn="strong_wolfe", max_iter=500)
    step()
    ours.steps(60, 1.0)
    torch.testing.assert_close(vector(ours.model).double(), vector(theirs), rtol=1e-4, atol=2e-4)


def test_the_weight_decay_is_a_penalty_on_what_it_does_not_spare(small_job: Any) -> None:
    def regression() -> tuple[nn.Module, Loss]:
        model, penalised = logistic()
        return model, lambda model: penalised(model) - 0.005 * sum(p.square().sum() for p in model.parameters())

    def without_bias(model: nn.Module) -> Tensor:
        return penalised(model) - 0.005 * model.bias.square().sum()

    _, penalised = logistic()
    theirs, step = torchs((logistic()[0], without_bias), 1.0)
    ours = Trained(small_job, regression(), spares=lambda _, p: p.ndim < 2, history=HISTORY, weightDecay="0.01")
    for _ in range(2 * HISTORY):
        step()
    ours.steps(2 * HISTORY, 1.0)
    torch.testing.assert_close(vector(ours.model), vector(theirs), rtol=1e-3, atol=1e-5)


def test_a_state_of_another_process_goes_on_with_the_same_bits(small_job: Any) -> None:
    """At each update: before, while and after the history fills."""
    whole = Trained(small_job, logistic(), history=HISTORY)
    for _ in range(2 * HISTORY):
        carried = Trained(small_job, logistic(), history=HISTORY)
        carried.flat.vector.data.copy_(whole.flat.vector.data)
        for name, kept in whole.optimizer.state.items():
            carried.optimizer.state[name].copy_(kept)
        carried.done = whole.done
        whole.steps(1, 0.8)
        carried.steps(1, 0.8)
        assert torch.equal(whole.flat.vector, carried.flat.vector)
        assert all(torch.equal(kept, carried.optimizer.state[name]) for name, kept in whole.optimizer.state.items())


def test_a_pair_without_curvature_is_left_out(small_job: Any) -> None:
    """Along a concave loss H stays 1, so the steps are those of gradient descent after the first."""

    def concave() -> tuple[nn.Module, Loss]:
        model, _ = quadratic()
        return model, lambda model: -sum(p.square().sum() for p in model.parameters()) / 2

    ours = Trained(small_job, concave())
    ours.steps(1, 0.1)
    before = vector(ours.model)
    ours.steps(2, 0.1)
    torch.testing.assert_close(vector(ours.model), before * 1.1**2)
    assert ours.optimizer.state["numbers"].count_nonzero() == 0


def test_the_least_curvature_bounds_the_pairs(small_job: Any) -> None:
    """A loss in small units needs another bound than the default."""

    def taken(**settings: Any) -> float:
        model, loss = logistic()
        ours = Trained(small_job, (model, lambda model: 1e-4 * loss(model)), **settings)
        ours.steps(3, 1.0)
        return ours.optimizer.state["numbers"][0].item()

    assert taken() == 0
    assert taken(leastCurvature="0.000000000001") == 2


class TwoServers:
    """Slices that two processes hold; their answers come in any order."""

    def __init__(self, *servers: HeldSlices) -> None:
        self.servers = servers

    def products(self, rows: Sequence[str], columns: Sequence[str]) -> Iterable[Table]:
        return chain(*(server.products(rows, columns) for server in reversed(self.servers)))

    def absolute_sums(self, name: str) -> Iterable[float]:
        return chain(*(server.absolute_sums(name) for server in reversed(self.servers)))

    def assign(self, name: str, terms: Mapping[str, float]) -> None:
        for server in self.servers:
            server.assign(name, terms)


def test_the_bits_do_not_depend_on_where_the_slices_are() -> None:
    """The coordinator orders; who holds which parameters, and answers first, makes no difference."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(300, 250), nn.Linear(250, 7))  # the first is longer than a slice
    flat, settings = FlatParameters(model, torch.device("cpu")), LBFGSBlock(history=2)

    def ended(cut: int) -> Tensor:
        names = [f"{kind}.{place}" for kind in ("step", "change") for place in range(2)]
        names += ["step", "change", "slope", "gradient"]
        vectors = {name: torch.zeros(flat.length) for name in names} | {"weights": flat.vector.detach().clone()}
        parts = [flat.spans[:cut], flat.spans[cut:]]
        servers = TwoServers(*(HeldSlices(part, vectors) for part in parts))
        coordinator = Coordinator(settings)
        for update in range(5):
            vectors["slope"].copy_(vectors["weights"].sin() * torch.linspace(0.1, 2, flat.length))
            coordinator.step(servers, 1.0, first=update == 0)
        assert coordinator.numbers[0] > 2
        return vectors["weights"]

    first, *others = (ended(cut) for cut in range(len(flat.spans) + 1))
    assert all(torch.equal(first, other) for other in others)


def test_a_direction_that_rounding_has_turned_uphill_is_not_taken() -> None:
    """The pairs are forgotten, and the next step goes along the gradient."""
    one = [torch.zeros(1) for _ in range(6)]
    vectors = dict(zip(["step.0", "change.0", "step", "change", "gradient", "slope"], one, strict=True))
    vectors |= {"weights": torch.ones(1)}
    for name in ("step.0", "change.0", "slope", "gradient"):
        vectors[name].fill_(2)
    coordinator = Coordinator(LBFGSBlock(history=1), [1.0, -4.0, 4.0])  # one pair, whose curvature is below 0
    coordinator.step(HeldSlices([Span("weight", (1,), 0)], vectors), 0.25, first=False)
    assert coordinator.numbers[0] == 0
    assert vectors["weights"].item() == 0.5


def test_sums_that_are_not_finite() -> None:
    """The loss of the next update then ends the job with an error that names the learning rate."""
    assert total([1e30, 1e-30, -1e30]) == 1e-30
    assert all(torch.tensor(total([1.0, bad, -bad])).isnan() for bad in (float("inf"), float("nan")))

"""A step over one flat vector is torch's own step over each tensor."""

import json
import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from batchgrowth.choices import OPTIMIZERS
from batchgrowth_trainer.replica import optimizers
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.optimizers import FlatOptimizer, optimizer_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

SGD_PLAIN = ("optimizer={type: SGD, sgd: {momentum: '0', nesterov: false, weightDecay: '0'}}",)
SGD_MOMENTUM = ("optimizer={type: SGD, sgd: {momentum: '0.9', nesterov: false, weightDecay: '0.01'}}",)
SGD_NESTEROV = ("optimizer={type: SGD, sgd: {momentum: '0.8', nesterov: true, weightDecay: '0'}}",)
ADAM = ("optimizer={type: Adam, adam: {beta1: '0.8', beta2: '0.95', epsilon: '0.00001', weightDecay: '0.01'}}",)
ADAMW = ("optimizer={type: AdamW, adamW: {beta1: '0.9', beta2: '0.99', weightDecay: '0.1'}}",)
ADAGRAD = ("optimizer={type: Adagrad, adagrad: {weightDecay: '0.01'}}",)
RMSPROP = ("optimizer={type: RMSprop, rmsprop: {alpha: '0.9', weightDecay: '0.01'}}",)
RMSPROP_WHOLE = ("optimizer={type: RMSprop, rmsprop: {momentum: '0.8', centered: true}}",)

CASES = [
    pytest.param(SGD_PLAIN, lambda p: torch.optim.SGD(p, lr=0.0), id="sgd"),
    pytest.param(SGD_MOMENTUM, lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9, weight_decay=0.01), id="momentum"),
    pytest.param(SGD_NESTEROV, lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.8, nesterov=True), id="nesterov"),
    pytest.param(
        ADAM, lambda p: torch.optim.Adam(p, lr=0.0, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.01), id="adam"
    ),
    pytest.param(ADAGRAD, lambda p: torch.optim.Adagrad(p, lr=0.0, weight_decay=0.01), id="adagrad"),
    pytest.param(RMSPROP, lambda p: torch.optim.RMSprop(p, lr=0.0, alpha=0.9, weight_decay=0.01), id="rmsprop"),
    pytest.param(
        RMSPROP_WHOLE, lambda p: torch.optim.RMSprop(p, lr=0.0, momentum=0.8, centered=True), id="rmsprop, centred"
    ),
    pytest.param(ADAMW, lambda p: torch.optim.AdamW(p, lr=0.0, betas=(0.9, 0.99), weight_decay=0.1), id="adamw"),
]

FLAT = [name for name in OPTIMIZERS if name not in ("Torch", "LBFGS")]
"""Those that step on flat vectors."""


def example(name: str) -> tuple[str, ...]:
    """An override for the registered optimizer with its example settings."""
    entry = OPTIMIZERS[name]
    block = f", {entry.block_name}: {json.dumps(entry.example)}" if entry.block else ""
    return (f"optimizer={{type: {name}{block}}}",)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def two_of_a_wide_model() -> tuple[FlatParameters, FlatParameters]:
    """The parameters of a model of 32,000, and of its copy."""
    made = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 31), nn.Linear(31, 1000))
    return FlatParameters(deepcopy(made), torch.device("cpu")), FlatParameters(made, torch.device("cpu"))


def gradients(draw: torch.Generator, flat: FlatParameters) -> torch.Tensor:
    row = torch.zeros(flat.length)
    for view in flat.gradient_views(row):
        view.copy_(torch.randn(view.shape, generator=draw))
    return row


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("cuts", [(0, 2, 6), (0, 1, 3, 5, 6), (0, 0, 4, 6)])
def test_servers_of_slices_take_the_steps_of_the_whole(small_job: Any, name: str, cuts: tuple[int, ...]) -> None:
    """Bit for bit, also where the vector has to be cut at other places than where processors take several elements."""
    (whole, sliced), spec = two_of_a_wide_model(), small_job(*example(name)).spec
    all_at_once, served = optimizer_of(spec, whole), optimizer_of(spec, sliced)
    assert isinstance(served, FlatOptimizer)
    draw = torch.Generator().manual_seed(0)
    servers = [(place, served.within(place)) for place in sliced.places(cuts)]
    for update in range(5):
        row = gradients(draw, whole)
        for place, server in servers:
            server.step(row[place].clone(), 0.01, update)
        all_at_once.step(row, 0.01, update)
    assert torch.equal(whole.vector, sliced.vector)
    assert all_at_once.state.keys() == served.state.keys()
    assert all(torch.equal(vector, served.state[key]) for key, vector in all_at_once.state.items())


@pytest.mark.parametrize("name", FLAT)
def test_steps_on_blocks_are_those_on_the_whole(small_job: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit; a block of an optimizer that looks at whole parameters is one of these."""
    (whole, cut), spec = two_of_a_wide_model(), small_job(*example(name)).spec
    at_once = optimizer_of(spec, whole)
    monkeypatch.setattr(optimizers, "BLOCK", 1 << 10)
    in_blocks = optimizer_of(spec, cut)
    draw = torch.Generator().manual_seed(0)
    for update in range(5):
        row = gradients(draw, whole)
        in_blocks.step(row.clone(), 0.01, update)
        at_once.step(row, 0.01, update)
    assert torch.equal(whole.vector, cut.vector)
    assert at_once.state.keys() == in_blocks.state.keys()
    assert all(torch.equal(vector, in_blocks.state[key]) for key, vector in at_once.state.items())


@pytest.mark.parametrize(("overrides", "make_theirs"), CASES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rates=st.lists(st.sampled_from([0.1, 0.05, 0.01, 0.0004]), min_size=1, max_size=8))
def test_steps_equal_torchs_per_tensor_steps(
    small_job: Any, overrides: tuple[str, ...], make_theirs: Any, rates: list[float]
) -> None:
    mine, theirs, draw = model(), model(), torch.Generator().manual_seed(0)
    flat = FlatParameters(mine, torch.device("cpu"))
    optimizer, reference = optimizer_of(small_job(*overrides).spec, flat), make_theirs(theirs.parameters())
    for update, rate in enumerate(rates):
        row = gradients(draw, flat)
        for parameter, view in zip(theirs.parameters(), flat.gradient_views(row), strict=True):
            parameter.grad = view.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        optimizer.step(row, rate, update)
    for expected, actual in zip(theirs.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.fault("T14")
@pytest.mark.parametrize(("overrides", "make_theirs"), CASES)
def test_parameters_without_a_gradient_are_left_alone(
    small_job: Any, overrides: tuple[str, ...], make_theirs: Any
) -> None:
    """As torch does, whether one process moves all parameters or each server its own."""
    mine, theirs, shared = model(), model(), model()
    flat, sliced = (FlatParameters(each, torch.device("cpu")) for each in (mine, shared))
    spec = small_job(*overrides).spec
    optimizer, served, reference = (
        optimizer_of(spec, flat),
        optimizer_of(spec, sliced),
        make_theirs(theirs.parameters()),
    )
    assert isinstance(optimizer, FlatOptimizer)
    assert isinstance(served, FlatOptimizer)
    servers = [(place, served.within(place)) for place in sliced.places((0, 1, 4))]
    draw = torch.Generator().manual_seed(0)
    reference.param_groups[0]["lr"] = 0.05
    for update, unreached in enumerate(([0, 1], [], [1], [1, 2, 3], [])):
        row = gradients(draw, flat)
        for index, (parameter, view) in enumerate(zip(theirs.parameters(), flat.gradient_views(row), strict=True)):
            parameter.grad = None if index in unreached else view.clone()
            view.mul_(index not in unreached)
        reference.step()
        for place, server in servers:
            server.step(row[place].clone(), 0.05, update, unreached)
        optimizer.step(row, 0.05, update, unreached)
        for each in (optimizer, served):
            if each.missed is not None:
                each.missed[unreached] += 1
    for expected, actual in zip(theirs.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(flat.vector, sliced.vector)


@pytest.mark.parametrize("overrides", [example(name) for name in OPTIMIZERS], ids=list(OPTIMIZERS))
def test_the_state_carried_to_another_process_goes_on_with_the_same_bits(
    small_job: Any, overrides: tuple[str, ...]
) -> None:
    draw, spec = torch.Generator().manual_seed(0), small_job(*overrides).spec
    first = FlatParameters(model(), torch.device("cpu"))
    rows = [gradients(draw, first) for _ in range(6)]
    whole = optimizer_of(spec, first)
    for update, row in enumerate(rows[:3]):
        whole.step(row, 0.1, update)
    second = FlatParameters(model(), torch.device("cpu"))
    carried = optimizer_of(spec, second)
    second.vector.data.copy_(first.vector.data)
    for name, vector in whole.state.items():
        carried.state[name].copy_(vector)
    for update, row in enumerate(rows[3:], 3):
        whole.step(row, 0.1, update)
        carried.step(row, 0.1, update)
    assert torch.equal(first.vector, second.vector)
    assert all(torch.equal(vector, carried.state[name]) for name, vector in whole.state.items())


def test_the_state_is_made_of_what_the_rule_needs_and_never_grows(small_job: Any) -> None:
    flat = FlatParameters(model(), torch.device("cpu"))
    for overrides, names in (
        (SGD_PLAIN, set()),
        (SGD_MOMENTUM, {"momentum_buffer"}),
        (ADAM, {"exp_avg", "exp_avg_sq"}),
    ):
        optimizer = optimizer_of(small_job(*overrides).spec, flat)
        for update in range(5):
            optimizer.step(torch.ones(flat.length), 0.01, update)
        assert names == set(optimizer.state)
        assert all(flat.length == vector.numel() for vector in optimizer.state.values())


def test_no_update_loads_torchs_compiler_or_sympy(digits_job: Any) -> None:
    """They take a second and a hundred megabytes, in every worker, before its first update."""
    names = [name for name in OPTIMIZERS if name != "Torch"]  # whose classes load the compiler themselves
    jobs = [digits_job(*example(name)).model_dump_json(by_alias=True) for name in names]
    code = f"""
import sys
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_trainer.building import build_replica
for job in {jobs!r}:
    replica = build_replica(read_manifest(job).spec)
    step = replica.plan.step_at(replica.position)
    replica.commit(step, replica.partials(step, (0, 1))[0].row)
print({{"sympy", "torch._dynamo"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def test_the_vector_keeps_no_gradient_after_a_step(small_job: Any) -> None:
    flat = FlatParameters(model(), torch.device("cpu"))
    optimizer_of(small_job().spec, flat).step(torch.ones(flat.length), 0.01, 0)
    assert flat.vector.grad is None

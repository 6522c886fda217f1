"""Any class of torch's form takes its own steps, and goes on in another process with the same bits."""

import json
from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.optimizers import AnyOptimizer, optimizer_of
from batchgrowth_trainer.replica.torch_optimizer import TorchOptimizer
from torch import Tensor, nn

RATES = [0.1, 0.05, 0.02, 0.02, 0.01]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Adadelta": ("torch.optim:Adadelta", {"rho": 0.8}),
    "Adafactor": ("torch.optim:Adafactor", {}),
    "Adagrad, which begins with a state": ("torch.optim:Adagrad", {"initial_accumulator_value": 0.1}),
    "Adamax": ("torch.optim:Adamax", {"weight_decay": 0.01}),
    "AMSGrad": ("torch.optim:AdamW", {"amsgrad": True, "betas": [0.8, 0.95]}),
    "ASGD": ("torch.optim:ASGD", {"t0": 2}),
    "NAdam": ("torch.optim:NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": ("torch.optim:RAdam", {}),
    "Rprop": ("torch.optim:Rprop", {"etas": [0.4, 1.3]}),
    "SGD, which keeps nothing": ("torch.optim:SGD", {}),
    "of one's own": ("optimizers_of_ones_own:Counting", {"weight_decay": 0.1}),
    "that replaces data": ("optimizers_of_ones_own:Replacing", {}),
    "with attributes": ("optimizers_of_ones_own:Warm", {}),
    "that begins to change later": ("optimizers_of_ones_own:Annealed", {}),
}


def override(optimizer: str, arguments: dict[str, Any], more: str = "") -> str:
    texts = {name: json.dumps(value) for name, value in arguments.items()}
    return f"optimizer={{type: Torch, torch: {{optimizer: '{optimizer}', arguments: {json.dumps(texts)}}}{more}}}"


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def gradient(flat: FlatParameters, update: int) -> Tensor:
    draw, row = torch.Generator().manual_seed(update), torch.zeros(flat.length)
    for view in flat.gradient_views(row):
        view.copy_(torch.randn(view.shape, generator=draw))
    return row


def optimizer(job: Any, flat: FlatParameters, text: str) -> AnyOptimizer:
    return optimizer_of(job(text).spec, flat)


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_classs_own(small_job: Any, case: str) -> None:
    entrypoint, arguments = CASES[case]
    module, name = entrypoint.split(":")
    flat, theirs = FlatParameters(model(), torch.device("cpu")), model()
    mine = optimizer(small_job, flat, override(entrypoint, arguments))
    kind = getattr(__import__(module, fromlist=[name]), name)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    reference = kind(theirs.parameters(), lr=float(small_job().spec.learning_rate.initial), **given)
    for update, rate in enumerate(RATES):
        row = gradient(flat, update)
        mine.step(row, rate, update)
        reference.param_groups[0]["lr"] = rate
        for parameter, view in zip(theirs.parameters(), flat.gradient_views(row), strict=True):
            parameter.grad = view.clone()
        reference.step()
    for expected, (actual, _) in zip(theirs.parameters(), flat.members, strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.fault("T06")
@pytest.mark.parametrize("case", CASES)
def test_another_process_goes_on_with_the_same_bits(small_job: Any, case: str) -> None:
    flats = [FlatParameters(model(), torch.device("cpu")) for _ in range(2)]
    whole, carried = (optimizer(small_job, flat, override(*CASES[case])) for flat in flats)
    rows = [gradient(flats[0], update) for update in range(len(RATES))]
    for update in range(3):
        whole.step(rows[update].clone(), RATES[update], update)
    flats[1].vector.data.copy_(flats[0].vector.data)
    assert whole.state.keys() == carried.state.keys()
    for name, vector in whole.state.items():
        carried.state[name].copy_(vector)
    for update in range(3, len(RATES)):
        for each in (whole, carried):
            each.step(rows[update].clone(), RATES[update], update)
    assert torch.equal(flats[0].vector, flats[1].vector)


def test_what_some_replicas_have_stepped_keeps_its_state(small_job: Any) -> None:
    """Logical replicas share the mean of their marks, and the means of what their optimizers keep."""
    flats = [FlatParameters(model(), torch.device("cpu")) for _ in range(2)]
    known, mixed = (optimizer(small_job, flat, override(*CASES["AMSGrad"])) for flat in flats)
    for each, flat in zip((known, mixed), flats, strict=True):
        for update in range(3):
            each.step(gradient(flat, update), RATES[update], update)
    mixed.state["unstepped"][0] = 1 / 3
    for each, flat in zip((known, mixed), flats, strict=True):
        each.step(gradient(flat, 3), RATES[3], 3)
    assert torch.equal(flats[0].vector, flats[1].vector)


def test_beginning_again_forgets_what_was_kept(small_job: Any) -> None:
    flat = FlatParameters(model(), torch.device("cpu"))
    mine, start = optimizer(small_job, flat, override(*CASES["of one's own"])), flat.vector.data.clone()
    ends = []
    for _ in range(2):
        flat.vector.data.copy_(start)
        for update in range(3):
            mine.step(gradient(flat, update), 0.1, update)
        ends.append(flat.vector.data.clone())
    assert torch.equal(*ends)


def test_what_withoutDecay_names_has_a_group_without_decay(small_job: Any) -> None:
    theirs = model()
    parameters = list(theirs.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0},
    ]
    reference = torch.optim.Adamax(groups, lr=0.1, weight_decay=0.5)
    flat = FlatParameters(model(), torch.device("cpu"), lambda _, parameter: parameter.ndim < 2)
    text = override("torch.optim:Adamax", {"weight_decay": 0.5}, ", withoutDecay: {belowDimensions: 2}")
    mine = optimizer(small_job, flat, text)
    for update in range(3):
        row = gradient(flat, update)
        mine.step(row, 0.1, update)
        for _, span in flat.members:
            theirs.get_parameter(span.name).grad = span.of(row).clone()
        reference.step()
    for actual, span in flat.members:
        assert torch.equal(theirs.get_parameter(span.name), actual)


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "more", "error"),
    [
        ("torch.optim:Adame", {}, "", r"optimizer\.torch\.optimizer: torch\.optim has no 'Adame'; did you mean Adam"),
        ("torch.nn:Linear", {}, "", r"torch\.nn:Linear is no subclass of torch\.optim\.Optimizer; name one"),
        ("torch.optim:Adamax", {"beta": 1}, "", r"torch\.optim:Adamax raised TypeError: .*'beta'"),
        ("torch.optim:LBFGS", {}, "", r"torch\.optim:LBFGS raised TypeError: .*closure"),
        ("optimizers_of_ones_own:Hoarding", {}, "", r"keeps a list in 'seen', which cannot move to another worker"),
        ("optimizers_of_ones_own:Growing", {}, "", r"keeps something else in 'seen' than at first"),
        ("optimizers_of_ones_own:Listing", {}, "", r"changes self\.seen with each step.*ones_own\.py:\d+, in step"),
        ("optimizers_of_ones_own:Named", {}, "", r"changes self\.phase with each step.*ones_own\.py:\d+, in step"),
        ("optimizers_of_ones_own:Shared", {}, "", r"changes Shared\.steps with each step.*ones_own\.py:\d+, in step"),
        ("optimizers_of_ones_own:Keyed", {}, "", r"changes self\.state\.done.* with each step, and later steps depend"),
        ("optimizers_of_ones_own:Drawing", {}, "", r"draws from self\.draws, a generator of its own.*in step"),
        (
            "optimizers_of_ones_own:Plain", {}, ", withoutDecay: {belowDimensions: 2}",
            r"optimizer\.withoutDecay: optimizers_of_ones_own:Plain has no weight_decay, so leave withoutDecay out",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    small_job: Any, entrypoint: str, arguments: dict[str, Any], more: str, error: str
) -> None:
    flat = FlatParameters(model(), torch.device("cpu"), lambda _, parameter: bool(more) and parameter.ndim < 2)
    with pytest.raises(WorkloadError, match=error):
        optimizer(small_job, flat, override(entrypoint, arguments, more)).step(gradient(flat, 0), 0.1, 0)


@pytest.mark.fault("T06")
@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Later", None),
        ("LaterListing", r"self\.seen by update \d, .*first steps did not.*ones_own\.py:\d+, in step"),
        ("LaterNamed", r"self\.phase by update \d, .*ones_own\.py:\d+, in factor"),
        ("LaterShared", r"LaterShared\.count by update \d, .*ones_own\.py:\d+, in factor"),
        ("LaterKeeping", r"self\.state\[0\.weight\]\.times by update \d.*keep .* from the first step on"),
        ("LaterDrawing", r"draws from self\.draws, a generator of its own"),
    ],
)
def test_what_begins_to_change_later_is_found_by_a_look(small_job: Any, name: str, named: str | None) -> None:
    """And a look changes nothing."""
    flats = [FlatParameters(model(), torch.device("cpu")) for _ in range(2 if named is None else 1)]
    optimizers = [optimizer(small_job, flat, override(f"optimizers_of_ones_own:{name}", {})) for flat in flats]
    assert isinstance(optimizers[0], TorchOptimizer)

    def steps() -> None:
        for update in range(8):
            for each, flat in zip(optimizers, flats, strict=True):
                each.step(gradient(flat, update), 0.1, update)
            optimizers[0].look_back(update + 1)

    if named is None:
        steps()
        assert torch.equal(flats[0].vector, flats[1].vector)
    else:
        with pytest.raises(WorkloadError, match=named):
            steps()

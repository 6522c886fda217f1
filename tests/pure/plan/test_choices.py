"""Registries: what an entry must be, and where its name appears."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth import PlanError, extend, make_plan, registry
from batchgrowth.choices import CHOICES, EXCHANGES, GROWTH, OPTIMIZERS, choices_help, growth_declared, growth_measured
from batchgrowth.extend import GrowthEntry, OptimizerEntry, RateEntry, nothing_coarser
from batchgrowth.manifest.crd import openapi_schema
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.registry import Registry

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("registry", CHOICES, ids=lambda registry: registry.field_path)
def test_the_schema_lists_each_entry(registry: Registry[Any]) -> None:
    """The choosing field allows each name, and there is a block for each entry with settings."""
    schema = openapi_schema()["properties"]["spec"]
    *parents, chooser = registry.field_path.split(".")
    for parent in parents:
        schema = schema["properties"][parent]

    assert list(registry) == schema["properties"][chooser]["enum"]
    assert registry.default == schema["properties"][chooser]["default"] == next(iter(registry))
    assert {entry.block_name for entry in registry.values() if entry.block} <= schema["properties"].keys()


@pytest.mark.parametrize("registry", CHOICES, ids=lambda registry: registry.field_path)
def test_every_entry_is_documented_and_its_example_is_valid(registry: Registry[Any]) -> None:
    for entry in registry.values():
        assert entry.name in choices_help()
        assert not entry.summary.endswith(".")
        if entry.block is not None:
            entry.block.model_validate(entry.example)


def test_what_entries_may_import_is_in_one_place() -> None:
    assert all(hasattr(extend, name) for name in extend.__all__)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("SGD", "sgd"),
        ("AdamW", "adamW"),
        ("AllReduce", "allReduce"),
        ("LBFGS", "lbfgs"),
        ("Constant", "constant"),
        ("RMSprop", "rmsprop"),
    ],
)
def test_block_names(name: str, block: str) -> None:
    assert block == GrowthEntry(name=name, summary="", implementation=None).block_name


def test_an_implementation_may_be_named() -> None:
    """Names are resolved when they are first used, so plan/ imports no heavy library."""
    entry = GrowthEntry(name="A", summary="", implementation="json:dumps")

    assert json.dumps is entry.load()
    assert all(isinstance(entry.implementation, str) for entry in (*OPTIMIZERS.values(), *EXCHANGES.values()))


@pytest.mark.parametrize(
    "entry",
    [
        GrowthEntry(name="Linear", summary="a name that is taken", implementation=None),
        GrowthEntry(name="lower", summary="a name in lower case", implementation=None),
        OptimizerEntry(name="Other", summary="an entry of another registry", implementation=None),
        None,
    ],
    ids=lambda entry: entry.summary if entry else "none",
)
def test_a_bad_entry_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, entry: object) -> None:
    point = SimpleNamespace(load=lambda: entry, value="their_package.their_module:ENTRY")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == GROWTH.group else [])

    with pytest.raises(TypeError, match=r"their_package\.their_module:ENTRY: .*; give a GrowthEntry with a CamelCase"):
        Registry("batch.growth.type", "Constant", GrowthEntry, growth_declared, growth_measured)


def test_a_rule_with_a_gain_says_when_it_looks() -> None:
    with pytest.raises(TypeError, match="Mine: a rule with a gain needs a block that derives from Windows"):
        RateEntry(name="Mine", summary="measures", implementation=None, gain=lambda *_: 1.0)


def test_too_many_stages_by_a_rule_that_names_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry need not say which of its settings makes a plan coarser."""
    monkeypatch.setitem(GROWTH._entries, "Linear", replace(GROWTH["Linear"], coarser=nothing_coarser))
    overrides = ["batch.growth={type: Linear, linear: {examplesPerUpdate: '1'}}", "batch.maximum=2000000"]
    spec = load_manifest(ROOT / "examples" / "digits.yaml", [*overrides, "epochs=1000"]).spec

    with pytest.raises(PlanError, match=r"spec\.batch\.growth: Linear makes a plan of more than 1000 stages; give set"):
        make_plan(spec)


def test_the_arguments_of_an_optimizer_class_are_json_or_text() -> None:
    """A list is a tuple, as torch's classes take it."""
    texts = {"betas": "[0.9, 0.95]", "nesterov": "true", "eps": "1e-8", "mode": "match_rms"}
    settings = OPTIMIZERS["Torch"].block.model_validate({"optimizer": "torch.optim:NAdam", "arguments": texts})
    assert settings.values == {"betas": (0.9, 0.95), "nesterov": True, "eps": 1e-8, "mode": "match_rms"}

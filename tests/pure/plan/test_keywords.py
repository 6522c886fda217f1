"""The spec as keyword arguments of Python."""

from collections.abc import Iterator
from typing import Any

import pytest
from batchgrowth.errors import SpecError
from batchgrowth.manifest.documents import job_schema
from batchgrowth.manifest.keywords import _as_manifest, job_of
from batchgrowth.manifest.reading import read_manifest
from pydantic.alias_generators import to_snake

MANIFEST = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {name: digits}
spec:
  workload: {entrypoint: "a.b:c", examples: 1437, arguments: {hidden_size: "64", widthTwo: "8"}}
  epochs: 30
  batch: {initial: 32, maximum: 512, growth: {type: Milestones, milestones: {steps: [{epoch: 5, batchSize: 64}]}}}
  learningRate: {initial: "0.05", warmup: {updates: 10, initial: "0.00001"}}
  optimizer: {type: SGD, withoutDecay: {belowDimensions: 2, names: ["*.bias"]}}
  workers: {examplesPerWorker: 64, maximum: 4, template: {spec: {nodeSelector: {some_pool: gpu}}}}
"""


def keywords(**changes: Any) -> dict[str, Any]:
    """The spec of MANIFEST, with changes."""
    return {
        "workload": {
            "entrypoint": "a.b:c", "examples": 1437, "arguments": {"hidden_size": "64", "widthTwo": "8"},
        },
        "epochs": 30,
        "batch": {
            "initial": 32, "maximum": 512,
            "growth": {"type": "Milestones", "milestones": {"steps": ({"epoch": 5, "batch_size": 64},)}},
        },
        "learning_rate": {"initial": 0.05, "warmup": {"updates": 10, "initial": 1e-05}},
        "optimizer": {"type": "SGD", "without_decay": {"below_dimensions": 2, "names": ["*.bias"]}},
        "workers": {
            "examples_per_worker": 64, "maximum": 4, "template": {"spec": {"nodeSelector": {"some_pool": "gpu"}}},
        },
    } | changes  # fmt: skip


def test_keywords_are_a_manifest_in_snake_case() -> None:
    """Names of the user's own, in arguments and pods, stay as they are; numbers are decimals, digit for digit."""
    assert read_manifest(MANIFEST) == job_of("digits", keywords())


@pytest.mark.parametrize(
    ("number", "text"), [(0.1, "0.1"), (2, "2"), (2.0, "2"), (100, "100"), (1e-7, "0.0000001"), ("0.10", "0.10")]
)
def test_a_decimal_may_be_a_number(number: float | str, text: str) -> None:
    assert text == job_of("digits", keywords(learning_rate={"initial": number})).spec.learning_rate.initial


def test_keywords_change_a_manifest() -> None:
    """A block is merged with that of the manifest; what the manifest leaves to its defaults stays so."""
    base = read_manifest(MANIFEST)
    given: dict[str, Any] = {"epochs": 6, "batch": {"maximum": 128}, "optimizer": {"type": "AdamW"}}
    changed = job_of("short", given, base)

    overrides = ["epochs=6", "batch.maximum=128", "optimizer.type=AdamW"]
    assert read_manifest(MANIFEST, overrides).spec == changed.spec
    assert changed.metadata.name == "short"


def test_keywords_change_other_keywords() -> None:
    """A type that they choose replaces the other type with its settings; both may be spelled in either case."""
    base = keywords(optimizer={"type": "SGD", "sgd": {"momentum": 0.9}})
    changed = job_of("short", {"workers": {"examplesPerWorker": 32}, "optimizer": {"type": "AdamW"}}, base)

    workers = keywords()["workers"] | {"examples_per_worker": 32}
    assert changed == job_of("short", keywords(workers=workers, optimizer={"type": "AdamW"}))


def test_every_fault_names_its_keyword() -> None:
    wrong = keywords(
        epoch=2,
        batch={"initial": 64, "maximum": 32},
        learning_rate={"initial": True, "warm_up": 3},
        workers={"minimum": 5, "examples_per_worker": "64"},
    )
    del wrong["epochs"]
    with pytest.raises(SpecError) as caught:
        job_of("Digits", wrong)

    assert str(caught.value).splitlines() == [
        'name: "Digits"; did you mean digits?',
        "epochs: missing; give a whole number from 1 to 1000000",
        "batch.initial: 64; give a number no larger than batch.maximum",
        'learning_rate.initial: True; give a decimal number in quotes, such as "0.05", without a sign, at most 20 '
        "digits after the point",
        "learning_rate.warm_up: no such field; did you mean warmup?",
        'workers.examples_per_worker: "64"; give 64, without quotes',
        "epoch: no such field; did you mean epochs?",
    ]


def test_a_remedy_names_keywords_too() -> None:
    with pytest.raises(SpecError, match=r"give a decimal no larger than learning_rate\.initial"):
        job_of("digits", keywords(learning_rate={"initial": 0.05, "warmup": {"updates": 10, "initial": 0.5}}))


def test_a_notebook_shows_an_error_as_its_text() -> None:
    """IPython asks an exception for what it shows in place of a traceback."""
    with pytest.raises(SpecError) as caught:
        job_of("digits", keywords(epochs=0))

    assert caught.value._render_traceback_() == ["SpecError: epochs: 0; give a whole number from 1 to 1000000"]


def fields_below(schema: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The path of every field that the schema knows."""
    for name, part in schema.get("properties", {}).items():
        yield (*path, name)
        yield from fields_below(part, (*path, name))
    if "items" in schema:
        yield from fields_below(schema["items"], (*path, 0))


def test_every_field_is_a_keyword_in_snake_case() -> None:
    """Also localSGD, as local_sgd; what Python spells otherwise, such as beta_1, is taken too."""
    fields = list(fields_below(job_schema()["properties"]["spec"], ("spec",)))
    assert ("spec", "exchange", "localSGD", "everyUpdates") in fields
    for *parents, name in fields:
        assert {name: None} == _as_manifest({to_snake(str(name)): None}, tuple(parents))


def test_a_block_of_capitals() -> None:
    job = job_of("digits", keywords(exchange={"type": "LocalSGD", "local_sgd": {"every_updates": 3}}))
    assert job.spec.exchange.settings.every_updates == 3

"""Choosing another type replaces the block of the type before, by an override and by a keyword, and says so."""

from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import CHOICES
from batchgrowth.errors import SpecError
from batchgrowth.manifest.keywords import job_of
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.spec import BatchGrowthJob

ROOT = Path(__file__).parents[3]
DIGITS = (ROOT / "examples" / "digits.yaml").read_text()
LOOKS = DIGITS.replace(
    'type: Geometric, geometric: {factor: "2", everyEpochs: 5}', "type: NoiseScale, looks: {everyEpochs: 2}"
).replace("maximum: 512", "maximum: 512\n    shard: 8")


def overridden(text: str, *overrides: str) -> tuple[BatchGrowthJob, list[str]]:
    said: list[str] = []
    return read_manifest(text, overrides, say=said.append), said


@pytest.mark.fault("N11")
@pytest.mark.parametrize(
    ("text", "override", "gone", "said"),
    [
        (DIGITS, "optimizer.type=Adam", "optimizer.sgd",
         "optimizer.sgd of the manifest is left out: optimizer.type is now Adam"),
        (DIGITS, "batch.growth.type=Constant", "batch.growth.geometric",
         "batch.growth.geometric of the manifest is left out: batch.growth.type is now Constant"),
        (LOOKS, "batch.growth.type=Constant", "batch.growth.looks",
         "batch.growth.looks of the manifest is left out: batch.growth.type is now Constant"),
    ],
)  # fmt: skip
def test_the_choice_replaces_the_block(text: str, override: str, gone: str, said: str) -> None:
    job, lines = overridden(text, override)
    assert (job.spec.value_at(gone), lines) == (None, [f"note: {said}"])


@pytest.mark.fault("N11")
@pytest.mark.parametrize("registry", CHOICES, ids=lambda registry: registry.field_path)
def test_every_entry_can_follow_every_other(registry: Any) -> None:
    """Only rules about other fields may stand in the way, never the block of the entry before."""
    *parents, chooser = registry.field_path.split(".")
    path = ".".join(parents)
    blocks = {entry.block_name for entry in registry.values() if entry.block is not None}
    for before in registry.values():
        for after in registry.values():
            given = [f"{path}={_block(chooser, before)}", f"{registry.field_path}={after.name}"]
            if after.block is not None:
                given.append(f"{path}.{after.block_name}={_flow(after.example)}")
            faulty = {path_.removeprefix(f"spec.{path}.") for path_ in _faulty(given)}
            assert faulty & (blocks - {after.block_name}) == set(), (before.name, after.name)


def _faulty(overrides: list[str]) -> list[str]:
    try:
        read_manifest(DIGITS, overrides)
    except SpecError as error:
        return [fault.path for fault in error.faults]
    return []


def _block(chooser: str, entry: Any) -> str:
    block = f", {entry.block_name}: {_flow(entry.example)}" if entry.block is not None else ""
    initial = ', initial: "0.05"' if chooser == "rule" else ""
    return f"{{{chooser}: {entry.name}{block}{initial}}}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'" if isinstance(value, str) else str(value)


@pytest.mark.fault("N11")
def test_a_contradiction_that_is_typed_stays_one() -> None:
    for given in (
        ["optimizer.type=Adam", "optimizer.sgd.momentum=0.5"],
        ["optimizer.sgd.momentum=0.5", "optimizer.type=Adam"],
    ):
        with pytest.raises(SpecError, match="give the block sgd with type SGD only"):
            read_manifest(DIGITS, given)


def test_a_name_that_is_none_replaces_nothing() -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, ["optimizer.type=Adm"])
    assert str(caught.value).startswith('spec.optimizer.type: "Adm"; did you mean Adam? Give one of SGD')


def test_an_empty_block_goes_without_a_word() -> None:
    text = DIGITS.replace('sgd: {momentum: "0.9", nesterov: true, weightDecay: "0.0005"}', "sgd: {}")
    job, said = overridden(text, "optimizer.type=Adam")
    assert (job.spec.optimizer.type, said) == ("Adam", [])


@pytest.mark.fault("N11")
def test_a_keyword_replaces_the_block_too() -> None:
    said: list[str] = []
    base = read_manifest(LOOKS.replace("everyEpochs: 2", "everyUpdates: 9"))
    given = {"optimizer": {"type": "AdamW"}, "batch": {"growth": {"type": "Constant"}}}
    job = job_of("digits", given, base, said.append)
    assert (job.spec.optimizer.type, job.spec.batch.growth.type) == ("AdamW", "Constant")
    assert said == [
        "note: batch.growth.looks of the manifest is left out: batch.growth.type is now Constant",
        "note: optimizer.sgd of the manifest is left out: optimizer.type is now AdamW",
    ]

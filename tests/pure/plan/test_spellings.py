"""Numbers, switches and nothing, as people and Kubernetes write them, in YAML and in Python."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from batchgrowth.errors import SpecError
from batchgrowth.manifest.documents import as_yaml, read_document
from batchgrowth.manifest.keywords import job_of
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import make_plan
from batchgrowth.spec import differences, mathematics

ROOT = Path(__file__).parents[3]
DIGITS = (ROOT / "examples" / "digits.yaml").read_text()


@pytest.mark.fault("N10")
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("y", True),
        ("N", False),
        ("089", 89),
        ("0o17", 15),
        ("0X1F", 31),
        ("-0b11", -3),
        ("017", 15),
        ("1e3", 1000),
        ("1e-3", 0.001),
        ("+12", 12),
        ("32.0", 32),
        ("-0.0", 0),
        (".5", 0.5),
        ("5.", 5),
        ("1e999", "1e999"),
        ("+", "+"),
        ("1_000.5", 1000.5),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("18446744073709551615", float(2**64 - 1)),
        ("18446744073709551616", float(2**64)),
        ("0x10000000000000000", "0x10000000000000000"),
        ("1" * 400, "1" * 400),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
        ("1e30", 1e30),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("!!float 5", 5),
        ("!!timestamp 2026-01-01", "2026-01-01"),
        ("<<", "<<"),
    ],
)
def test_scalars_are_what_kubernetes_reads(written: str, value: Any) -> None:
    document = read_document(f"a: {written}")
    if written == "<<":
        assert [str(fault) for fault in document.faults] == [
            "a: the YAML tag tag:yaml.org,2002:merge; leave the tag out"
        ]
        return
    assert (document.tree, type(document.tree["a"])) == ({"a": value}, type(value))


@pytest.mark.fault("N10")
@pytest.mark.parametrize("text", ["1e-3", "5E-2", "y", "N", "089", "0o17", "on", "1_0", "2026-01-01", "~", "<<", "½ a"])
def test_texts_that_kubernetes_would_read_otherwise_are_written_in_quotes(text: str) -> None:
    tree = {"a": text, "b": {text: [text, 1, 0.5, 1e-9, True, None]}}
    assert read_document(as_yaml(tree)).tree == tree


@pytest.mark.parametrize("written", [".inf", "-.INF", ".NaN"])
def test_special_floats(written: str) -> None:
    assert not math.isfinite(read_document(f"a: {written}").tree["a"])


def test_json_may_escape_every_character() -> None:
    """Python's `json.dumps` writes a character past U+FFFF as two."""
    tree = {"größe": "🌱 a", "🌱": ["½", "𝒙"]}
    assert read_document(json.dumps(tree)).tree == tree
    with pytest.raises(SpecError, match=r'arguments.hidden: "\\ud83c"; give a string'):
        read_manifest(DIGITS, ['workload.arguments={hidden: "\\ud83c"}'])  # half a character is none


def test_tabs_between_values_are_spaces() -> None:
    tree = yaml.safe_load(DIGITS)
    assert read_document(json.dumps(tree, indent="\t")).tree == tree
    assert read_document("a:\t1\t# one\nb: [1,\t2]\t\n").tree == {"a": 1, "b": [1, 2]}
    with pytest.raises(SpecError, match=r"manifest line 2: not YAML .*t' that cannot start any token"):
        read_document("a:\n\tb: 1")


def test_a_tag_that_does_not_fit_is_a_fault() -> None:
    document = read_document("a: !!int five")
    assert [str(fault) for fault in document.faults] == ['a: "five" is not what its YAML tag says; leave the tag out']


@pytest.mark.fault("N10")
@pytest.mark.parametrize(
    ("field", "text", "same"),
    [
        ("learningRate.initial", "1e-3", "0.001"),
        ("learningRate.initial", "5E-2", "0.05"),
        ("learningRate.initial", "0.30000000000000004", "0.30000000000000004"),
        ("optimizer.sgd.weightDecay", "5e-4", "0.0005"),
        ("optimizer.sgd.momentum", "9e-1", "0.9"),
        ("batch.growth.geometric.factor", "2e+0", "2"),
        ("batch.growth.geometric.factor", "15e-1", "1.5"),
    ],
)
def test_an_exponent_is_the_same_mathematics_and_the_same_plan(field: str, text: str, same: str) -> None:
    one, other = (read_manifest(DIGITS, [f"{field}={spelling}"]).spec for spelling in (text, same))
    assert make_plan(one).stages == make_plan(other).stages
    assert differences(mathematics(one), mathematics(other)) == ""


def test_texts_that_look_like_decimals_are_compared_as_texts() -> None:
    """The entrypoint converts them, so that nobody here knows what they mean."""
    one, other = (
        mathematics(read_manifest(DIGITS, [f"workload.arguments.rate={text}"]).spec) for text in ("1e-3", "0.001")
    )
    assert differences(one, other).startswith("workload.arguments.rate: ")


def test_entries_of_lists_are_compared_too() -> None:
    text = (ROOT / "tests" / "corpus" / "good" / "milestones.yaml").read_text()
    there = mathematics(read_manifest(text).spec)
    here = mathematics(read_manifest(text, ["batch.growth.milestones.steps.2.epoch=29"]).spec)
    assert differences(there, there) == ""
    assert differences(there, here).startswith("batch.growth.milestones.steps: ")


def test_a_damaged_decimal_is_another_one() -> None:
    there = mathematics(read_manifest(DIGITS).spec)
    here = mathematics(read_manifest(DIGITS).spec)
    there["learningRate"] = {"initial": "five"}
    assert differences(there, here).startswith('learningRate.initial: "five" there, "0.05" here')


@pytest.mark.fault("G10")
@pytest.mark.parametrize("digits", ["0x" + "f" * 5000, "9" * 5000, "0b" + "1" * 5000, "1_" * 2500 + "0"])
@pytest.mark.parametrize("field", ["epochs", "seed", "batch.initial", "workers.maximum"])
def test_thousands_of_digits_are_refused_by_name(field: str, digits: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, [f"{field}={digits}"])
    [line] = str(caught.value).splitlines()
    assert line.startswith(f'spec.{field}: "{digits[:50]}')
    assert "give a whole number from" in line
    assert len(line) < 200


@pytest.mark.fault("G10")
def test_a_keyword_of_thousands_of_digits_is_refused_by_name() -> None:
    with pytest.raises(SpecError) as caught:
        job_of("digits", keywords(epochs=10**5000, learning_rate={"initial": 10**5000}))
    assert [line.partition(";")[0][:60] for line in str(caught.value).splitlines()] == [
        "epochs: a number with thousands of digits",
        'learning_rate.initial: "1e+5000"',
    ]


def test_infinity_in_a_pod_is_refused() -> None:
    """No schema knows these fields, and JSON has no infinity."""
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, ["workers.template={spec: {tolerations: [{tolerationSeconds: .inf}]}}"])
    assert str(caught.value) == (
        "spec.workers.template.spec.tolerations[0].tolerationSeconds: .inf; give a finite number, or put it in quotes"
    )


def keywords(**changes: Any) -> dict[str, Any]:
    """Keywords of a small job, with changes."""
    return {
        "workload": {"entrypoint": "a.b:c", "examples": 1437},
        "epochs": 30,
        "batch": {"initial": 32, "maximum": 512},
        "learning_rate": {"initial": 0.05},
    } | changes


class Tensor:
    """Has what a tensor of torch has: tolist."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


@pytest.mark.fault("G08")
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (np.float64(0.1), "0.1"),
        (np.float32(0.5), "0.5"),
        (np.logspace(-3, -1, 3)[0], "0.001"),
        (np.array(0.25), "0.25"),
        (np.int64(2), "2"),
        (Tensor(0.125), "0.125"),
        (Fraction(1, 8), "0.125"),
        (Decimal("0.10"), "0.1"),
        (Decimal("1e-30"), "1e-30"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-7, "0.0000001"),
        (1.2345678901234567e-12, "1.2345678901234567e-12"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_decimal_keyword_is_any_real_number(number: Any, text: str) -> None:
    job = job_of("digits", keywords(learning_rate={"initial": number}))
    assert (text, Fraction(text)) == (job.spec.learning_rate.initial, Fraction(job.spec.learning_rate.initial))


@pytest.mark.fault("G08")
@pytest.mark.parametrize(
    "number",
    [2, np.int64(2), np.uint8(2), np.array(2), Tensor(2), 2.0, np.float64(2.0), Fraction(2)],
    ids=lambda number: type(number).__name__,
)
def test_a_whole_keyword_is_any_whole_number(number: Any) -> None:
    assert job_of("digits", keywords(epochs=number)).spec.epochs == 2


@pytest.mark.fault("G08")
def test_numbers_within_lists_too() -> None:
    steps = [{"epoch": np.int64(5), "batch_size": np.float64(64)}]
    growth = {"type": "Milestones", "milestones": {"steps": steps}}
    job = job_of("digits", keywords(batch={"initial": np.int32(32), "maximum": 512, "growth": growth}))
    assert job.spec.batch.growth.milestones.steps[0].batch_size == 64  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 2.5}, "epochs: 2.5; give a whole number from 1 to 1000000"),
        ({"epochs": True}, "epochs: True; give a whole number from 1 to 1000000"),
        ({"epochs": np.bool_(True)}, "epochs: True; give a whole number from 1 to 1000000"),
        ({"learning_rate": {"initial": math.nan}}, 'learning_rate.initial: nan; give a decimal number'),
        ({"learning_rate": {"initial": -0.5}}, 'learning_rate.initial: "-0.5"; give a decimal number'),
        ({"batch": {"initial": 32, "maximum": 64, "maxmum": 3}}, "batch.maxmum: no such field; did you mean maximum?"),
        ({"active_deadline_seconds": 5, "activeDeadlineSeconds": 6}, "active_deadline_seconds: given twice"),
    ],
)  # fmt: skip
def test_other_keywords_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        job_of("digits", keywords(**changes))
    assert str(caught.value).startswith(expected)


GIVEN = " It is given already, so leave this one out"


@pytest.mark.fault("N06")
@pytest.mark.parametrize(
    ("written", "instead", "field", "meant"),
    [
        ("examplesPerWorker", "examples_per_worker", "spec.workers.examples_per_worker", "examplesPerWorker?"),
        ("apiVersion", "api_version", "api_version", "apiVersion?"),
        ("learningRate", "learning_rate", "spec.learning_rate", "learningRate?"),
        ("everyEpochs", "every_epochs", "spec.batch.growth.geometric.every_epochs", "everyEpochs?"),
        ("weightDecay", "weight_decay", "spec.optimizer.sgd.weight_decay", "weightDecay?"),
        (
            "workers: {",
            "workers: {examples_per_worker: 3, ",
            "spec.workers.examples_per_worker",
            f"examplesPerWorker?{GIVEN}",
        ),
        ("type: SGD, sgd: {momentum", "type: AdamW, adam_w: {beta1", "spec.optimizer.adam_w", "adamW?"),
        ("type: SGD, sgd: {", "type: AdamW, adam_w: null, adamW: {", "spec.optimizer.adam_w", f"adamW?{GIVEN}"),
    ],
)
def test_a_file_is_in_camel_case(written: str, instead: str, field: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS.replace(written, instead, 1))
    assert f"{field}: no such field; did you mean {meant}" in str(caught.value).splitlines()


@pytest.mark.fault("N06")
def test_null_is_an_absent_field_and_a_whole_float_a_whole_number() -> None:
    text = DIGITS.replace("seed: 0", "seed: null").replace("initial: 32", "initial: 32.0")
    text = text.replace("exchange: {type: AllReduce}", "exchange: {type: ~, compression: null}")
    assert read_manifest(DIGITS).spec == read_manifest(text).spec


def test_null_in_a_list_is_no_entry() -> None:
    with pytest.raises(SpecError, match=r"spec\.trackers\[0\]: nothing; give one of TensorBoard"):
        read_manifest(DIGITS, ["trackers=[null]"])


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("labels: {team: computer vision}", 'metadata.labels.team: "computer vision"; give letters, digits'),
        ("labels: {my team: vision}", "metadata.labels: a map of 1; give keys of at most 63 letters"),
        ("annotations: {a/b/c: x}", "metadata.annotations: a map of 1; give keys of at most 63 letters"),
    ],
)
def test_labels_are_those_of_kubernetes(metadata: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS.replace("metadata:", "metadata:\n  " + metadata))
    assert str(caught.value).startswith(expected)


@pytest.mark.fault("G11")
@pytest.mark.parametrize("exchange", ["LocalSGD", "ElasticAveraging", "Gossip", "TopK"])
def test_fewer_examples_than_replicas_are_refused(exchange: str) -> None:
    overrides = [f"exchange.type={exchange}", "workload.examples=3"]
    with pytest.raises(SpecError, match=r"give at most workload\.examples replicas: each takes a part of every batch"):
        read_manifest(DIGITS, overrides)
    make_plan(read_manifest(DIGITS, [*overrides[:1], "workload.examples=4"]).spec)

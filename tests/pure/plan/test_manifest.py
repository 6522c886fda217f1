"""Reading manifests: overrides, YAML's traps, and all faults at once. The corpus holds the many single ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import Fault, SpecError, load_manifest, mathematics, read_manifest
from batchgrowth.choices.optimizers import AdamBlock, AdamWBlock, SGDBlock
from batchgrowth.manifest.documents import read_document
from batchgrowth.spec import Batch, Optimizer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

ROOT = Path(__file__).parents[3]
DIGITS = (ROOT / "examples" / "digits.yaml").read_text()
MILESTONES = (ROOT / "tests" / "corpus" / "good" / "milestones.yaml").read_text()


def faults(text: str | bytes, *overrides: str) -> list[str]:
    """The lines of what is wrong."""
    with pytest.raises(SpecError) as caught:
        read_manifest(text, overrides)
    assert [str(fault) for fault in caught.value.faults] == str(caught.value).splitlines()
    return str(caught.value).splitlines()


@pytest.mark.fault("A10")
def test_all_faults_at_once() -> None:
    text = DIGITS.replace("seed: 0", "seed: -1").replace("epochs: 30", "epochs: 1e7").replace('"2"', "2.5")
    text = text.replace("minimum: 1", "minimum: 9").replace("maximum: 512", "maxmum: 512")
    assert faults(text) == [
        "spec.seed: -1; give a whole number from 0 to 4294967295",
        "spec.epochs: 1e7; give a whole number from 1 to 1000000",
        "spec.batch.maximum: missing; give a whole number from 1 to 16777216",
        'spec.batch.growth.geometric.factor: 2.5; put it in quotes, "2.5", so that YAML keeps it as written',
        "spec.batch.maxmum: no such field; did you mean maximum?",
        "spec.workers.minimum: 9; give a number no larger than workers.maximum",
    ]


@pytest.mark.fault("O10")
@pytest.mark.parametrize(("metadata", "name"), [
    ({"generateName": "sweep-"}, "sweep"),
    ({"generateName": "sweep-", "name": None}, "sweep"),
    ({"generateName": "sweep-", "name": "digits"}, "digits"),
])  # fmt: skip
def test_a_job_may_have_a_generated_name(metadata: dict[str, Any], name: str) -> None:
    """Here it is what the name begins with; a name that is given goes before, as for an API server."""
    tree = yaml.safe_load(DIGITS) | {"metadata": metadata}
    assert name == read_manifest(yaml.safe_dump(tree)).metadata.name


@pytest.mark.fault("O10")
@pytest.mark.parametrize("start", ["Sweep_", "-sweep", "9", "s" * 40, 7])
def test_a_generated_name_that_cannot_be_is_one_fault(start: Any) -> None:
    [fault] = faults(yaml.safe_dump(yaml.safe_load(DIGITS) | {"metadata": {"generateName": start}}))
    assert fault.startswith("metadata.generateName: ")


def test_a_broken_rule_quotes_the_value_of_a_field_with_a_digit_in_its_name() -> None:
    override = 'optimizer={type: Adam, adam: {beta2: "1.0"}}'
    assert faults(DIGITS, override) == ['spec.optimizer.adam.beta2: "1.0"; give a decimal below 1']


@pytest.mark.parametrize(
    ("text", "override", "path", "value"),
    [
        (DIGITS, "batch.maximum=640", "batch.maximum", 640),
        (DIGITS, "learningRate.initial=0.1", "learningRate.initial", "0.1"),
        (DIGITS, "batch.growth.geometric.factor=3", "batch.growth.geometric.factor", "3"),
        (DIGITS, "workload.arguments.hidden=64", "workload.arguments", {"hidden": "64"}),
        (DIGITS, "workload.arguments.dropout=no", "workload.arguments", {"dropout": "no"}),
        (DIGITS, "workload.arguments.empty=", "workload.arguments", {"empty": ""}),
        (DIGITS, "workers.template={spec: {a: [1, x]}}", "workers.template", {"spec": {"a": [1, "x"]}}),
        (DIGITS, "learningRate.warmup={updates: 5}", "learningRate.warmup.updates", 5),
        (DIGITS, "suspend=true", "suspend", True),
        (DIGITS, "workload.arguments.filter=a=b", "workload.arguments", {"filter": "a=b"}),
        (MILESTONES, "batch.growth.milestones.steps.2.epoch=29", "batch.growth.milestones.steps", None),
    ],
)
def test_override(text: str, override: str, path: str, value: object) -> None:
    found = read_manifest(text, [override]).spec.value_at(path)
    assert (found[2].epoch == 29) if value is None else (value == found)


@pytest.mark.parametrize(
    "text",
    [
        "run #1",
        " lead",
        "*.csv",
        "@home",
        "%d",
        "[x",
        '"',
        "it's: x",
        "{epoch}",
        "[a, b]",
        "!!str 5",
        "'a' or 'b'",
        "~",
    ],
)
def test_an_override_of_text_is_the_text_itself(text: str) -> None:
    for written in (text, f"""'{text.replace("'", "''")}'"""):
        arguments = read_manifest(DIGITS, [f"workload.arguments.title={written}"]).spec.workload.arguments
        assert arguments["title"] == text


def test_an_override_of_text_with_a_control_character_is_refused() -> None:
    [fault] = faults(DIGITS, "workload.arguments.title=a\x1b[2J")
    assert fault.endswith(
        "a value that is not YAML; give path=value with the path below spec, such as batch.maximum=640"
    )


def test_overrides_replace_what_was_written() -> None:
    """A message quotes the override and not the file; a new union needs no more than one override."""
    assert faults(DIGITS, "batch.initial=1e9") == ["spec.batch.initial: 1e9; give a whole number from 1 to 16777216"]
    job = read_manifest(DIGITS, ["batch.growth={type: Linear, linear: {examplesPerUpdate: '2'}}"])
    assert job.spec.batch.growth.type == "Linear"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("batch.maximum", "--set batch.maximum: no path and value"),
        ("=3", "--set =3: no path and value"),
        ("batch..maximum=3", "--set batch..maximum=3: no path and value"),
        ("batch.maximum=[", "--set batch.maximum=[: a value that is not YAML"),
        ("seed.value=3", "--set seed.value=3: no block at seed"),
        ("batch.0=3", "--set batch.0=3: no block at batch"),
        ("0=3", "--set 0=3: no block at spec"),
        ("batch.growth.milestones.steps.9.epoch=3", "--set batch.growth.milestones.steps.9.epoch=3: no block at"),
        ("batch.growth.milestones.steps.first=3", "--set batch.growth.milestones.steps.first=3: no block at"),
        ("batch.maxmum=3", "spec.batch.maxmum: no such field; did you mean maximum?"),
        ("zzz=3", "spec.zzz: no such field; give one of activeDeadlineSeconds, batch"),
        ("batch={initial: 1, initial: 2}", "initial: given twice"),
        ("workers.template={a: &a [*a]}", "--set workers.template={a: &a [*a]}: a value that is not YAML"),
    ],
)
def test_bad_override(override: str, expected: str) -> None:
    lines = faults(MILESTONES, override)
    assert any(line.startswith(expected) for line in lines), lines


def test_overrides_make_missing_blocks() -> None:
    text = DIGITS.replace("exchange: {type: AllReduce}", "exchange:")
    assert read_manifest(text, ["exchange.timeoutSeconds=5"]).spec.exchange.timeout_seconds == 5


@pytest.mark.fault("A31")
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0x10", 16),
        ("010", 8),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("1_000.5e1", 10005.0),
        ("'1e3'", "1e3"),
        ("~", None),
        ("2026-13-45", "2026-13-45"),
        ("off", False),
    ],
)
def test_scalars(written: str, value: object) -> None:
    document = read_document(f"a: {written}")
    assert {"a": value} == document.tree
    assert written.strip("'") == document.written["a",]


@pytest.mark.fault("A13")
def test_files(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + DIGITS.encode())  # as some editors write UTF-8
    assert load_manifest(path) == read_manifest(DIGITS)
    path.write_text(DIGITS + "#" * 1_048_576)
    with pytest.raises(SpecError, match="more than 1048576 bytes; give a file of at most 1 MiB"):
        load_manifest(path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_manifest(tmp_path)


@pytest.mark.fault("E04")
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    """Never anything but SpecError."""
    faults(text)


@pytest.mark.fault("A31")
@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(DIGITS) - 1), st.characters())
def test_any_slip_of_the_finger_is_read_or_refused(at: int, letter: str) -> None:
    faults: tuple[Fault, ...] = ()
    try:
        read_manifest(DIGITS[:at] + letter + DIGITS[at + 1 :])
    except SpecError as error:
        faults = error.faults
    assert all(fault.path and fault.given and fault.remedy for fault in faults)


def test_a_model_built_in_python_says_which_rule_it_breaks() -> None:
    with pytest.raises(ValidationError, match=r"initial: give a number no larger than batch\.maximum"):
        Batch(initial=8, maximum=4)


def test_the_optimizers_block_is_always_there() -> None:
    assert SGDBlock() == Optimizer().settings == Optimizer(type="SGD").sgd
    assert AdamBlock() == Optimizer(type="Adam").settings
    assert AdamWBlock(beta1="0.5") == Optimizer(type="AdamW", adam_w=AdamWBlock(beta1="0.5")).settings
    assert Optimizer.model_validate({"type": "AdamW"}).settings.weight_decay == "0.01"
    with pytest.raises(ValidationError):
        Optimizer.model_validate("SGD")


@pytest.mark.fault("A27")
def test_mathematics_is_what_determines_the_weights() -> None:
    plain = mathematics(read_manifest(DIGITS).spec)
    assert sorted(plain) == ["batch", "epochs", "learningRate", "optimizer", "seed", "workers", "workload"]
    assert plain["workers"] == {"threads": 1}
    for override in (
        "workers.maximum=9",
        "exchange.type=GatherScatter",
        "suspend=true",
        "checkpoint.keep=9",
        "precision=Float32",
        "compile=false",
        "deterministic=true",
        "trackers=[MLflow]",
        "workers.sameArithmetic=Required",
    ):
        assert plain == mathematics(read_manifest(DIGITS, [override]).spec)
    for override in (
        "seed=1",
        "batch.shard=16",
        "workers.threads=2",
        "workload.arguments.a=b",
        "epochs=31",
        "precision=BFloat16",
        "compile=true",
        "deterministic=false",
        "optimizer.clipping.norm=1",
    ):
        assert plain != mathematics(read_manifest(DIGITS, [override]).spec)


def test_peers_wait_longer_for_one_that_compiles() -> None:
    waits = [
        read_manifest(DIGITS, [f"exchange.timeoutSeconds={seconds}", f"compile={compiles}"]).spec.patience_seconds
        for seconds, compiles in ((60, "false"), (60, "true"), (1800, "true"))
    ]
    assert waits == [60, 900, 1800]

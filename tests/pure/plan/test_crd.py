"""The generated CRD validates the corpus as an API server does: nulls, defaults, schema, list types, CEL rules."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from batchgrowth.errors import SpecError
from batchgrowth.manifest.crd import crd, crd_yaml, openapi_schema
from batchgrowth.manifest.documents import read_document
from batchgrowth.spec import MATHEMATICS
from batchgrowth.spec.all_pods import AFFINITIES
from batchgrowth.spec.pods import SHARED_SOURCES, VALUE_SOURCES
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus"
EXPECTED = yaml.safe_load((CORPUS / "expected.yaml").read_text())
GOOD = sorted([*(CORPUS / "good").iterdir(), *ROOT.glob("examples/*.yaml"), *ROOT.glob("examples/table1/*.yaml")])

Schema = dict[str, Any]


def is_sorted(values: list[Any]) -> bool:
    """`isSorted` of Kubernetes' list library, which the CEL package lacks."""
    return values == sorted(values)


def refusals(schema: Schema, given: Any) -> list[str]:
    """Why an API server with strict field validation would refuse the object; empty if it would accept it.

    As there, the rules are asked only where the schema is content.
    """
    value = prepared(schema, given)
    errors = [
        f"{error.json_path}: {error.message}" for error in Draft202012Validator(closed(schema)).iter_errors(value)
    ]
    return errors or list(broken_rules(schema, value)) + list(doubles(schema, value))


def prepared(schema: Schema, value: Any) -> Any:
    """The value without nulls and with defaults filled in."""
    if isinstance(value, list):
        return [prepared(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    other = schema.get("additionalProperties", {})
    kept = {name: item for name, item in value.items() if item is not None}
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field and name not in kept}
    return {name: prepared(fields.get(name, other), item) for name, item in (kept | defaults).items()}


def closed(schema: Schema) -> Schema:
    """The schema with unknown fields refused except where it preserves them."""
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "default"}
    if "pattern" in schema:  # Go's $ matches only the end, Python's also before a final line break
        result["pattern"] = schema["pattern"].removesuffix("$") + r"\Z"
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if "properties" in schema:
        result["properties"] = {name: closed(field) for name, field in schema["properties"].items()}
        # Of metadata a CRD may describe only the name; the API server knows the rest.
        is_metadata = set(schema["properties"]) == {"name"} and "required" not in schema
        result["additionalProperties"] = is_metadata or schema.get("x-kubernetes-preserve-unknown-fields", False)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = closed(schema[key])
    return result


def nodes(schema: Schema, value: Any) -> Iterator[tuple[Schema, Any]]:
    """Every value of the object with the schema that describes it."""
    yield schema, value
    if isinstance(value, list):
        for item in value:
            yield from nodes(schema.get("items", {}), item)
    if isinstance(value, dict):
        for name, item in value.items():
            yield from nodes(schema.get("properties", {}).get(name, {}), item)


def broken_rules(schema: Schema, value: Any, old: Any = None) -> Iterator[str]:
    """The messages of the rules that do not hold; transition rules are evaluated only if `old` is given."""
    for node, part in nodes(schema, value):
        for rule in node.get("x-kubernetes-validations", ()):
            if "oldSelf" in rule["rule"] and old is None:
                continue
            context = cel.Context({"self": part, "oldSelf": old})
            context.add_function("isSorted", is_sorted)
            if cel.evaluate(rule["rule"], context) is not True:
                yield rule["message"]


def doubles(schema: Schema, value: Any) -> Iterator[str]:
    """Duplicate entries of keyed lists and of sets."""
    for node, part in nodes(schema, value):
        if node.get("x-kubernetes-list-type") == "map":
            keys = [tuple(item[key] for key in node["x-kubernetes-list-map-keys"]) for item in part]
            if len(set(keys)) < len(keys):
                yield f"duplicate keys: {keys}"
        elif node.get("x-kubernetes-list-type") == "set" and len(set(part)) < len(part):
            yield f"duplicates: {part}"


@pytest.fixture(scope="module")
def schema() -> Schema:
    """The schema of the generated CRD."""
    return openapi_schema()


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected["schema"] == "sees"])
def test_refuses_what_a_schema_can_see(schema: Schema, name: str) -> None:
    assert refusals(schema, read_document((CORPUS / "bad" / f"{name}.yaml").read_bytes()).tree)


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected["schema"] == "blind"])
def test_blind_means_blind(schema: Schema, name: str) -> None:
    """No rule is written for Python alone by mistake."""
    try:
        tree = read_document((CORPUS / "bad" / f"{name}.yaml").read_bytes()).tree
    except SpecError:
        return  # it never becomes JSON, so no API server receives it
    assert refusals(schema, tree) == []


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_accepts_every_good_manifest(schema: Schema, path: Path) -> None:
    assert refusals(schema, read_document(path.read_bytes()).tree) == []


CHANGES = {
    "seed": 1,
    "workload.entrypoint": "other:workload",
    "workload.arguments": {"hidden": "32"},
    "workload.examples": 1438,
    "epochs": 1,
    "batch": {"initial": 32, "maximum": 64},
    "learningRate": {"initial": "0.1"},
    "optimizer": {"type": "Adam"},
    "precision": "BFloat16",
    "compile": True,
    "deterministic": False,
    "trackers": ["MLflow"],
    "workers.threads": 2,
    "evaluation.stopEarly": {"metric": "loss", "mode": "Minimize", "patience": 3},
    "initialWeights": {"path": "/data/weights.safetensors"},
    "evaluation.keepBest": {"metric": "loss", "mode": "Minimize"},
    "evaluation.everyEpochs": 2,
    "workers.maximum": 8,
    "workload.source": {"configMap": "digits-code-9876543210"},
    "volumes": [{"name": "data", "emptyDir": {}}],
    "suspend": True,
    "checkpoint.keep": 9,
}
KEPT = {*MATHEMATICS, "workload.source"}


def changed(path: str, started: bool) -> tuple[Any, Any]:
    """A job with a status, and the same job with one field of its spec changed."""
    old = read_document((CORPUS / "good" / "geometric.yaml").read_bytes()).tree
    old["status"] = {"startTime": "2026-11-20T10:00:00Z"} if started else {}
    new = copy.deepcopy(old)
    *parents, name = path.split(".")
    target = new["spec"]
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = CHANGES[path]
    return old, new


@pytest.mark.fault("A25", "A27")
@pytest.mark.parametrize("started", [True, False], ids=["started", "not started"])
@pytest.mark.parametrize("path", CHANGES)
def test_mathematics_and_code_are_immutable_once_started(schema: Schema, path: str, started: bool) -> None:
    old, new = (prepared(schema, job) for job in changed(path, started))
    broken = list(broken_rules({**schema, "properties": {}}, new, old))
    assert (started and path in KEPT) == bool(broken)


@pytest.mark.fault("N05")
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(("epochs", "grows"), [(99, True), (1, False)])
def test_epochs_may_grow_until_the_job_has_ended(schema: Schema, epochs: int, grows: bool, ended: bool) -> None:
    old, new = changed("epochs", started=True)
    new["spec"]["epochs"] = epochs
    if ended:
        old["status"]["completionTime"] = "2026-11-20T11:00:00Z"
    broken = list(broken_rules({**schema, "properties": {}}, prepared(schema, new), prepared(schema, old)))
    assert (grows and not ended) != bool(broken)


@pytest.mark.fault("N05")
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("phase", ["Training", "Rejected"])
def test_epochs_that_the_operator_refuses_may_be_taken_back(schema: Schema, phase: str, ended: bool) -> None:
    old, new = changed("epochs", started=True)
    old["status"] |= {"phase": phase} | ({"completionTime": "2026-11-20T11:00:00Z"} if ended else {})
    broken = list(broken_rules({**schema, "properties": {}}, prepared(schema, new), prepared(schema, old)))
    assert (phase == "Rejected" and not ended) != bool(broken)


@pytest.mark.fault("B15")
def test_a_default_that_is_not_written_may_be_written_later(schema: Schema) -> None:
    """No stored job has it before a user writes it, since an operator and a trainer of an earlier version refuse it."""
    old, new = changed("precision", started=True)
    stored = prepared(schema, old)["spec"]
    assert not {"precision", "compile", "deterministic", "trackers", "sameArithmetic"} & (
        stored.keys() | stored["workers"].keys()
    )
    for value, refused in (("Float32", False), ("TensorFloat32", True), ("BFloat16", True)):
        new["spec"]["precision"] = value
        broken = list(broken_rules({**schema, "properties": {}}, prepared(schema, new), prepared(schema, old)))
        assert refused == bool(broken)


@pytest.mark.fault("A25")
def test_an_early_end_neither_changes_nor_goes_nor_do_its_evaluations(schema: Schema) -> None:
    _, stops = changed("evaluation.stopEarly", started=True)
    others = [copy.deepcopy(stops) for _ in range(3)]
    others[0]["spec"]["evaluation"]["stopEarly"]["patience"] = 4
    del others[1]["spec"]["evaluation"]["stopEarly"]
    others[2]["spec"]["evaluation"]["everyEpochs"] = 2
    root, old = {**schema, "properties": {}}, prepared(schema, stops)
    assert list(broken_rules(root, old, old)) == []
    for new in others:
        assert list(broken_rules(root, prepared(schema, new), old))


def test_another_config_map_and_none_are_other_code(schema: Schema) -> None:
    old, new = (prepared(schema, job) for job in changed("workload.source", started=True))
    other = copy.deepcopy(new)
    other["spec"]["workload"]["source"]["configMap"] = "another"
    root = {**schema, "properties": {}}
    assert [
        list(broken_rules(root, new, new)), *(bool(list(broken_rules(root, job, new))) for job in (other, old))
    ] == [[], True, True]  # fmt: skip


def fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field below a schema, with its path."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield f"{path}[]", schema[key]
            yield from fields(schema[key], f"{path}[]")


def bounded(field: Schema) -> bool:
    """Whether the size of a value is bounded on both sides, so that the cost of its rules is bounded too."""
    match field.get("type"):
        case "integer":
            return "minimum" in field and "maximum" in field and "format" in field
        case "string":
            return "maxLength" in field or "enum" in field
        case "array":
            return "maxItems" in field and "x-kubernetes-list-type" in field
        case "object":
            return "properties" in field or "maxProperties" in field
        case None:
            return "maxLength" in field and "x-kubernetes-int-or-string" in field
        case kind:
            return kind == "boolean"


def test_every_field_is_described_and_bounded(schema: Schema) -> None:
    found = [(path, field) for part in ("spec", "status") for path, field in fields(schema["properties"][part], part)]
    assert len(found) > 100
    assert [path for path, field in found if not field.get("description") and not path.endswith("[]")] == []
    assert [path for path, field in found if not bounded(field)] == []


def test_only_parts_of_pods_keep_unknown_fields(schema: Schema) -> None:
    found = fields(schema["properties"]["spec"], "spec")
    kept = [path for path, field in found if field.get("x-kubernetes-preserve-unknown-fields")]
    sources = [f"spec.env[].valueFrom.{name}" for name in VALUE_SOURCES]
    shared = [f"spec.pods.env[].valueFrom.{name}" for name in SHARED_SOURCES]
    shared += [f"spec.pods.affinity.{name}" for name in AFFINITIES]
    shared += ["spec.pods.topologySpreadConstraints[].labelSelector", "spec.pods.volumes[]"]
    of_workers = ["spec.workers.template.metadata", "spec.workers.template.spec"]
    assert sorted(kept) == sorted([*sources, *shared, "spec.volumes[]", *of_workers])


def test_the_schema_is_structural(schema: Schema) -> None:
    text = json.dumps(schema)
    assert [word for word in ("$ref", "anyOf", "oneOf", '"title"', "exclusiveM", '"const"') if word in text] == []


def test_rules_name_fields_that_exist(schema: Schema) -> None:
    for node in (field for _, field in [("", schema), *fields(schema, "")]):
        for rule in node.get("x-kubernetes-validations", ()):
            target = node
            for name in rule["fieldPath"].removeprefix(".").split("."):
                target = target["properties"][name]


def test_the_committed_crd_is_the_generated_one() -> None:
    assert (ROOT / "crds" / "batchgrowthjobs.yaml").read_text() == crd_yaml()


def test_plain_kubectl_apply_can_carry_it() -> None:
    """`kubectl apply` keeps the whole object in an annotation; the CRD leaves a quarter of its limit free."""
    assert len(json.dumps(crd())) <= 0.75 * 262_144


def test_scale_and_columns_point_at_fields_that_exist(schema: Schema) -> None:
    version = crd()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    paths = [*scale.values(), *(column["jsonPath"] for column in version["additionalPrinterColumns"][:-1])]
    for path in paths:
        node = schema
        for name in path.removeprefix(".").split("."):
            node = node["properties"][name]
    expected = ["STATUS", "BATCH", "WORKERS", "EPOCH", "LOSS", "PROGRESS", "ETA(S)", "AGE"]
    assert [column["name"].upper() for column in version["additionalPrinterColumns"]] == expected

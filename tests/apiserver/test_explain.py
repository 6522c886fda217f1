"""`kubectl explain bgj.…` reads like documentation."""

from collections.abc import Iterator
from typing import Any

import pytest
from batchgrowth.manifest.crd import openapi_schema

from cluster.apiserver import ApiServer


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every field below: its path, its description, its own schema."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field["description"], field
        yield from described(field.get("items", field), f"{path}.{name}")


SPEC = openapi_schema()["properties"]["spec"]
NESTED = ("batch.growth.geometric.factor", "learningRate.warmup.updates", "workers.template", "imagePullSecrets.name")


def test_the_spec_in_one_page(apiserver: ApiServer) -> None:
    """Each field with its sentence, the required ones marked."""
    page = apiserver.kubectl("explain", "bgj.spec").stdout
    assert SPEC["description"] in page
    for name, field in SPEC["properties"].items():
        assert field["description"] in words(page), name
    assert len(SPEC["required"]) == page.count("-required-")


def test_every_field_with_its_path(apiserver: ApiServer) -> None:
    """The tree of all fields is the tree of the models."""
    tree = apiserver.kubectl("explain", "bgj.spec", "--recursive").stdout
    for path, _, _ in described(SPEC, ""):
        assert f" {path.rpartition('.')[2]}\t<" in tree, path


@pytest.mark.parametrize("path", NESTED)
def test_a_nested_field(apiserver: ApiServer, path: str) -> None:
    sentences = {f"bgj.spec{found}": text for found, text, _ in described(SPEC, "")}
    page = apiserver.kubectl("explain", f"bgj.spec.{path}").stdout
    assert sentences[f"bgj.spec.{path}"] in words(page)


def test_no_field_is_without_a_sentence(apiserver: ApiServer) -> None:
    """Status included."""
    for part in ("spec", "status"):
        page = apiserver.kubectl("explain", f"bgj.{part}").stdout
        assert "<no description>" not in page

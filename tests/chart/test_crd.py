"""The CRD of the chart is that of crds/."""

from collections.abc import Callable
from typing import Any

import yaml

from charts.folders import ROOT

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
PLAIN = yaml.safe_load((ROOT / "crds" / "batchgrowthjobs.yaml").read_text())


def crds(objects: Objects) -> Objects:
    """The CRDs among the objects."""
    return [body for body in objects if body["kind"] == "CustomResourceDefinition"]


def test_it_is_the_same(render: Render) -> None:
    """Apart from the chart's labels and the annotation that keeps it."""
    [found] = crds(render())
    labels = found["metadata"].pop("labels")

    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert labels["app.kubernetes.io/part-of"] == "batchgrowth"
    assert found == PLAIN


def test_it_goes_with_the_release_if_not_kept(render: Render) -> None:
    """crds.keep=false removes the annotation."""
    [found] = crds(render("--set", "crds.keep=false"))

    assert "annotations" not in found["metadata"]


def test_it_can_be_disabled(render: Render) -> None:
    """crds.enabled=false."""
    assert crds(render("--set", "crds.enabled=false")) == []

"""values.yaml documents every key, and values.schema.json refuses other keys."""

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from charts.folders import CHART
from charts.values import ValuesError, read_values

Helm = Callable[..., subprocess.CompletedProcess[str]]
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OPEN = {"dashboard.labels", "dask-kubernetes-operator.podSecurityContext"}
"""Keys that accept anything below them: the user's labels and values of other charts."""

NO_SECTION = ("resources",)
DASK = ("dask-kubernetes-operator",)

BAD = {
    "image.pullPolicy=Sometimes": "image.pullPolicy",
    "image.digest=sha256:12": "image.digest",
    "trainer.image.digest=latest": "trainer.image.digest",
    "dask-kubernetes-operator.image.tag=2026.3.0@sha256:12": "dask-kubernetes-operator.image.tag",
    "logLevel=trace": "logLevel",
    "logFormat=xml": "logFormat",
    "replicaCount=two": "replicaCount",
    "replicaCount=-1": "replicaCount",
    "jobs.podSecurity=privileged": "jobs.podSecurity",
    "jobs.serviceAccounts[0]=Reader": "jobs.serviceAccounts",
    "jobs.pods.tolerationz[0].key=a": "jobs.pods",
    "jobs.pods.securityContext.runAsUser=me": "jobs.pods.securityContext.runAsUser",
    "jobs.checkpointSize=10": "jobs.checkpointSize",
    "crds.enabled=yes": "crds.enabled",
    "watch.namespaces=team-a": "watch.namespaces",
    "watch.namespaces[0]=Team_A": "watch.namespaces",
    "monitors.interval=15": "monitors.interval",
    "nodeSelector.pool=true": "nodeSelector.pool",
    "resources.limits.memory=lots": "resources.limits.memory",
    "resources.limit.memory=1Gi": "resources",
    "tolerations[0].efect=NoSchedule": "tolerations",
    "affinity.nodeAfinity.x=1": "affinity",
    "imagePullSecrets[0]=registry": "imagePullSecrets",
    "dask-kubernetes-operator.image.tga=1": "dask-kubernetes-operator.image",
    "dask-kubernetes-operator.enable=true": "dask-kubernetes-operator",
    "terminationGracePeriodSeconds=0": "terminationGracePeriodSeconds",
    "fullnameOverride=Big": "fullnameOverride",
    "fullnameOverride=2nd": "fullnameOverride",
}


def faults(values: Any) -> list[str]:
    """Returns the paths of the schema's errors."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    return [".".join(map(str, error.absolute_path)) for error in validator.iter_errors(values)]


def closed_paths(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every mapping of the defaults that has keys of its own."""
    if isinstance(values, dict) and ".".join(path) not in OPEN and (values or not path):
        yield path
        for key, value in values.items():
            yield from closed_paths(value, (*path, key))


@pytest.mark.smoke
def test_the_schema_is_one() -> None:
    """It is valid under its own draft."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.smoke
def test_the_defaults_are_good() -> None:
    """As Helm checks them: with an empty `global`."""
    assert faults(DEFAULTS | {"global": {}}) == []


@pytest.mark.smoke
@pytest.mark.parametrize("path", list(closed_paths(DEFAULTS)), ids=lambda path: ".".join(path) or "top")
def test_a_typo_is_refused_at_every_level(path: tuple[str, ...]) -> None:
    """Every level refuses an unknown key."""
    values = copy.deepcopy(DEFAULTS)
    place = values
    for key in path:
        place = place[key]
    place["tpyo"] = {} if path in {("resources", "requests"), ("resources", "limits")} else "1"

    assert [".".join(path)] == [found.removesuffix(".tpyo") for found in faults(values)]


@pytest.mark.smoke
@pytest.mark.parametrize("path", [path for path in closed_paths(DEFAULTS) if path[:1] not in {(), NO_SECTION, DASK}])
def test_an_empty_section_is_missing(path: tuple[str, ...]) -> None:
    """Helm drops a section that is empty in a user's file, with its defaults; templates would fail at its keys."""
    values = copy.deepcopy(DEFAULTS)
    place = values
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]

    assert [".".join(path[:-1])] == faults(values)


def test_helm_names_an_empty_section(helm: Helm, chart: Path) -> None:
    result = helm("template", "batchgrowth", chart, "--set", "jobs=null")

    assert result.returncode != 0
    assert "missing property 'jobs'" in result.stderr


@pytest.mark.parametrize("setting", BAD)
def test_helm_refuses(setting: str, helm: Helm, chart: Path) -> None:
    """Helm's error names the key."""
    result = helm("template", "batchgrowth", chart, "--set", setting)

    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr
    assert BAD[setting].split("[")[0].replace(".", "/") in result.stderr


def test_a_key_without_a_sentence_is_refused() -> None:
    """So that every key is documented."""
    with pytest.raises(ValuesError, match=r"^watch\.names: no sentence above it"):
        read_values("# Where.\nwatch:\n  names: x\n")


def test_an_empty_default_without_a_type_is_refused() -> None:
    """Otherwise the schema would accept anything."""
    with pytest.raises(ValuesError, match=r"^watch: \[\] has no type"):
        read_values("# Where.\nwatch: []\n")

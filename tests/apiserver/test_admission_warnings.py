"""A real API server warns of what can never act in a job, in the words of `batchgrowth check`, and of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import BatchGrowthJob
from batchgrowth.admission_warnings import admission_warnings
from batchgrowth.choices import CHOICES
from batchgrowth_operator.api.client import JOBS
from kubernetes import config
from operator_account import POLICIES, rendered
from operator_field import until
from remarks import CASES, chosen, idle_jobs, read, remarked

from cluster.apiserver import ApiServer

Warned = Callable[[dict[str, Any]], list[str]]
BOUNDS = ("spec.workers.maximum", "spec.batch.maximum")
"""Fields whose best number only the plan knows; the warning gives a bound."""
PLANNED = {"exchange.type LocalSGD, idle"}
"""Jobs of which only the plan tells that a choice never acts, by the number of its updates."""
AT_ONCE = 8


@pytest.fixture(scope="module")
def warned(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Warned:
    """A function that returns the API server's warnings about a manifest, once the chart's policy is in force."""
    objects = rendered(tmp_path_factory.mktemp("chart"))
    policy = [body for body in objects if body["kind"] in POLICIES and body["metadata"]["name"].endswith("-warnings")]
    applied = apiserver.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(policy))
    assert applied.returncode == 0, applied.stderr
    client = config.new_client_from_config(str(apiserver.kubeconfig))
    [kind] = JOBS.values()
    url = f"{client.configuration.host}{kind.path('default')}?dryRun=All&fieldValidation=Strict"
    pool = client.rest_client.pool_manager

    def ask(manifest: dict[str, Any]) -> list[str]:
        body = json.dumps(manifest).encode()
        answer = pool.request("POST", url, body=body, headers={"Content-Type": "application/json"})
        assert answer.status == 201, answer.data
        texts = re.findall(r'299 - "((?:[^"\\]|\\.)*)"', answer.headers.get("Warning", ""))
        return [text.partition("': ")[2] for text in texts]

    late = manifest_of(read(evaluation={"everyEpochs": 13}))
    until(lambda: ask(late) != [], seconds=60)
    return ask


def manifest_of(job: BatchGrowthJob) -> dict[str, Any]:
    return job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


def plain(text: str) -> str:
    """The text without thousands separators; of a bound, only the field."""
    field = text.partition(": ")[0]
    if field in BOUNDS:
        return field
    return re.sub(r"(?<=\d),(?=\d{3})", "", text)


def jobs() -> dict[str, BatchGrowthJob]:
    """Every job of remarks.py by its name: as it is given, as its remark mends it, and each entry with its example."""
    made = {}
    for name, given, _, mended in CASES:
        made[name] = read(**given)
        made[f"{name}, mended"] = read(**{**given, **mended})
    for registry in CHOICES:
        for name in registry:
            made[f"{registry.field_path} {name}"] = chosen(registry, name)
    return made | idle_jobs()


@pytest.mark.fault("N15")
def test_a_warning_is_a_remark_of_check(warned: Warned) -> None:
    corpus = jobs()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        told = dict(zip(corpus, threads.map(warned, map(manifest_of, corpus.values())), strict=True))

    surplus = {name: {*map(plain, texts)} - {*map(plain, remarked(corpus[name]))} for name, texts in told.items()}
    assert {name: texts for name, texts in surplus.items() if texts} == {}
    fields = {field_of(text) for texts in told.values() for text in texts}
    assert {re.sub(r"\{.*?\}", "1", f"spec.{warning.field}") for warning in admission_warnings()} == fields
    assert {name for name, texts in told.items() if name.endswith(", idle") and not texts} == PLANNED


def field_of(text: str) -> str:
    return text.partition(": ")[0]


@pytest.mark.fault("N15")
def test_kubectl_prints_a_warning_and_creates_the_job(
    warned: Warned, kubectl: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest_of(read(evaluation={"everyEpochs": 13}))))
    created = kubectl("apply", "-f", path)
    assert created.returncode == 0
    assert "spec.evaluation.everyEpochs: 13, so the model is evaluated only after the last epoch, 12" in created.stderr
    again = kubectl("label", "-f", path, "team=research")
    assert (again.returncode, "everyEpochs" in again.stderr) == (0, False), "the spec has not changed"

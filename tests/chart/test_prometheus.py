"""The configuration for a Prometheus without the Prometheus operator."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.seen.observed import TRAINER, WORKER

from charts.folders import ROOT

Objects = list[dict[str, Any]]
TARGET = dict[str, str]


def relabelled(target: TARGET) -> TARGET | None:
    """Returns the labels under which Prometheus would scrape a pod; None if it would not."""
    [job] = yaml.safe_load((ROOT / "charts" / "prometheus.yaml").read_text())["scrape_configs"]
    labels = dict(target)
    for rule in job["relabel_configs"]:
        text = rule.get("separator", ";").join(labels.get(label, "") for label in rule["source_labels"])
        found = re.fullmatch(rule.get("regex", "(.*)"), text)
        if rule["action"] == "replace":
            if found is not None:
                labels[rule["target_label"]] = found.expand(rule.get("replacement", "$1").replace("$", "\\"))
        elif (found is not None) is not (rule["action"] == "keep"):
            return None
    return {label: value for label, value in labels.items() if not label.startswith("__meta")}


def discovered(labels: dict[str, str], annotations: dict[str, str], phase: str = "Running") -> TARGET:
    """A pod as Prometheus discovers it."""

    def meta(kind: str, labels: dict[str, str]) -> TARGET:
        return {f"__meta_kubernetes_pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', k)}": v for k, v in labels.items()}

    own = {"ip": "10.0.0.7", "name": "pod", "phase": phase}
    place = {"__meta_kubernetes_namespace": "team-a", "__address__": "10.0.0.7:1"}
    return (
        place
        | {f"__meta_kubernetes_pod_{k}": v for k, v in own.items()}
        | meta("label", labels)
        | meta("annotation", annotations)
    )


SCRAPED = {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"}


def test_a_trainer_is_scraped_under_its_job() -> None:
    """With the labels of the dashboard."""
    labels = relabelled(discovered(names.labels("digits", TRAINER), SCRAPED))

    assert labels == {
        "__address__": "10.0.0.7:9090",
        "namespace": "team-a",
        "pod": "pod",
        "batchgrowth_dev_job": "digits",
    }


def test_a_trainer_with_labels_of_its_own_is_scraped() -> None:
    """Such as those that a company wants on every pod (spec.pods)."""
    own = names.labels("digits", TRAINER) | {"app.kubernetes.io/part-of": "research"}

    assert relabelled(discovered(own, SCRAPED)) is not None


def test_the_operator_is_scraped(render: Callable[..., Objects]) -> None:
    """By the annotations that the chart gives it."""
    [pod] = [
        b["spec"]["template"]["metadata"]
        for b in render()
        if (b["kind"], b["metadata"]["name"]) == ("Deployment", "batchgrowth")
    ]
    labels = relabelled(discovered(pod["labels"], pod["annotations"]))

    assert labels is not None
    assert (labels["__address__"], labels["batchgrowth_dev_job"]) == ("10.0.0.7:9090", "")


def test_no_other_pod_is_scraped() -> None:
    """Neither pods of other applications, nor one without the annotations."""
    assert relabelled(discovered({"app.kubernetes.io/part-of": "other"}, SCRAPED)) is None
    assert relabelled(discovered(names.labels("digits", TRAINER), {})) is None


@pytest.mark.parametrize("role", [WORKER, "scheduler"])
def test_roles_without_metrics_are_not_scraped(role: str) -> None:
    assert relabelled(discovered(names.labels("digits", role), SCRAPED)) is None


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_trainer_that_does_not_run_is_not_scraped(phase: str) -> None:
    assert relabelled(discovered(names.labels("digits", TRAINER), SCRAPED, phase)) is None

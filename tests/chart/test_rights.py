"""Roles grant no more than needed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batchgrowth_operator.api.client import EVENTS, JOBS, READ_ONLY, UNWATCHED, WATCHED, Kind

from charts.folders import CHART

pytestmark = pytest.mark.smoke

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
Grant = tuple[str, str, str]
"""Group, resource, verb."""

NAMESPACED = ("-f", str(CHART / "ci" / "namespaced-values.yaml"))
REPLICAS = ("-f", str(CHART / "ci" / "replicas-values.yaml"))
READ_CRDS = {("apiextensions.k8s.io", "customresourcedefinitions", verb) for verb in ("list", "watch")}
RELEASED = {"daskclusters", "deployments", "jobs", "batchgrowthjobs"}
"""Kinds that the operator deletes; garbage collection deletes the others."""


def grants(role: dict[str, Any]) -> set[Grant]:
    """Returns everything that a role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def roles_of(objects: Objects, account: str) -> Iterator[dict[str, Any]]:
    """The roles that are bound to an account of the release's namespace."""
    roles = {(b["kind"], b["metadata"].get("namespace"), b["metadata"]["name"]): b for b in objects if "rules" in b}
    for body in objects:
        if any((s["name"], s["namespace"]) == (account, "operators") for s in body.get("subjects", ())):
            kind = body["roleRef"]["kind"]
            place = None if kind == "ClusterRole" else body["metadata"]["namespace"]
            yield roles[kind, place, body["roleRef"]["name"]]


def needed() -> set[Grant]:
    """The rights for the calls that the operator makes, from its own table of kinds."""
    read, written = {"list", "watch"}, {"get", "create", "patch"}

    def each(kinds: dict[str, Kind], verbs: set[str]) -> set[Grant]:
        return {(kind.group, kind.plural, verb) for kind in kinds.values() for verb in verbs}

    children = {name: kind for name, kind in WATCHED.items() if name not in READ_ONLY}
    released = {name: kind for name, kind in (JOBS | children).items() if kind.plural in RELEASED}
    [job] = JOBS.values()
    rules = {(job.group, f"{job.plural}/status", "patch")}
    rules |= {(EVENTS.group, EVENTS.plural, verb) for verb in ("create", "list", "patch")}
    return each(JOBS | WATCHED, read) | each(children | UNWATCHED, written) | each(released, {"delete"}) | rules


def test_no_rule_says_everything(rendered: Objects) -> None:
    """In our own roles; the Dask operator's chart has its own."""
    ours = [b for b in rendered if "rules" in b and "dask-kubernetes-operator" not in b["metadata"]["name"]]

    assert ours
    assert [grant for role in ours for grant in grants(role) if "*" in grant] == []


def test_the_operator_may_do_what_it_does(render: Render) -> None:
    """The rights are exactly those of the calls in its table."""
    [role] = roles_of(render(), "batchgrowth")

    assert needed() | READ_CRDS == grants(role)


def test_namespaces_bound_the_operator(render: Render) -> None:
    """The same rights in each namespace, and cluster-wide only the right to read CRDs."""
    roles = {role["metadata"].get("namespace"): grants(role) for role in roles_of(render(*NAMESPACED), "batchgrowth")}

    assert {None: READ_CRDS, "team-a": needed(), "team-b": needed()} == roles


def test_secrets_are_read_by_name_alone(rendered: Objects) -> None:
    """Listing Secrets would reveal all of them."""
    verbs = {verb for role in rendered if "rules" in role for _, what, verb in grants(role) if what == "secrets"}

    assert verbs <= {"get", "create", "patch"}


def test_replicas_write_one_lease(render: Render) -> None:
    """It cannot write other Leases."""
    [role] = [
        role for role in roles_of(render(*REPLICAS), "batchgrowth") if role["metadata"]["name"].endswith("-lease")
    ]
    changing = [rule for rule in role["rules"] if rule["verbs"] != ["create"]]

    assert {resource for _, resource, _ in grants(role)} == {"leases"}
    assert [rule["resourceNames"] for rule in changing] == [["batchgrowth"]]


def test_the_trainer_s_right_can_be_given(render: Render) -> None:
    """Kubernetes refuses to let a user grant rights that it lacks."""
    [role] = roles_of(render(), "batchgrowth")

    assert {("", "configmaps", "get"), ("", "configmaps", "patch")} <= grants(role)


def test_users(render: Render) -> None:
    """The cluster's view, edit and admin aggregate the roles; only admin writes the status."""
    roles = {
        label.removeprefix("rbac.authorization.k8s.io/aggregate-to-"): body
        for body in render()
        for label, value in body["metadata"].get("labels", {}).items()
        if label.startswith("rbac.authorization.k8s.io/aggregate-to-") and value == "true"
    }
    view, edit, admin = (grants(roles[name]) for name in ("view", "edit", "admin"))

    assert {verb for _, _, verb in view} == {"get", "list", "watch"}
    assert {verb for _, _, verb in edit} == {"create", "update", "patch", "delete", "deletecollection"}
    assert {resource for _, resource, _ in edit} == {"batchgrowthjobs", "batchgrowthjobs/scale"}
    assert {resource for _, resource, _ in admin} == {"batchgrowthjobs/status"}
    assert {group for group, _, _ in view | edit | admin} == {"batchgrowth.dev"}


def test_rights_can_be_left_to_somebody_else(render: Render) -> None:
    """rbac.create=false binds the operator to no role."""
    assert list(roles_of(render("--set", "rbac.create=false"), "batchgrowth")) == []

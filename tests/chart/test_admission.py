"""The admission policies name what the operator's code names; tests/apiserver shows what they refuse."""

import json
import re
from collections.abc import Callable
from typing import Any

from batchgrowth import names
from batchgrowth.manifest.pod_limits import CAPABILITIES
from batchgrowth_operator.api.client import EVENTS, JOBS, LEASES, READ_ONLY, UNWATCHED, WATCHED

from charts.folders import CHART

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def policies(objects: Objects) -> dict[str, dict[str, Any]]:
    """The specs of the policies that deny, by the end of their names."""
    return {name: spec for name, spec in by_name(objects, POLICY).items() if name != "warnings"}


def by_name(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    """The specs of the objects of a kind, by the end of their names."""
    return {b["metadata"]["name"].rpartition("-")[2]: b["spec"] for b in objects if b["kind"] == kind}


def matched(policy: dict[str, Any]) -> set[tuple[str, str]]:
    """The groups and resources of a policy."""
    rules = policy["matchConstraints"]["resourceRules"]
    return {(group, kind) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]}


def expression(policy: dict[str, Any], name: str) -> str:
    """The expression of a variable."""
    [found] = [each["expression"] for each in policy["variables"] if each["name"] == name]
    return str(found)


def test_every_kind_that_the_operator_writes_is_bound(render: Render) -> None:
    """Children by the one policy, all else by the other; a new kind without a rule would be free."""
    children = {(kind.group, kind.plural) for name, kind in (WATCHED | UNWATCHED).items() if name not in READ_ONLY}
    [job] = JOBS.values()

    found = policies(render())

    assert children == matched(found["children"])
    assert {(kind.group, kind.plural) for kind in (EVENTS, LEASES, job)} == matched(found["others"])
    rules = [rule for policy in found.values() for rule in policy["matchConstraints"]["resourceRules"]]
    assert all(["CREATE", "UPDATE", "DELETE"] == rule["operations"] for rule in rules)


def test_the_names_are_those_of_the_children(render: Render) -> None:
    suffixes = {
        "configmaps": [names.of("").plan, names.of("").progress],
        "secrets": [names.of("").tls, names.of("").authority],
        "serviceaccounts": [names.of("").trainer],
        "persistentvolumeclaims": [names.of("").checkpoints],
        "deployments": [names.of("").workers],
        "jobs": [names.of("").trainer],
        "networkpolicies": [names.of("").network_policy],
        "roles": [names.of("").progress],
        "rolebindings": [names.of("").progress],
        "daskclusters": [names.of("").cluster],
    }
    text = expression(policies(render())["children"], "names")

    assert suffixes == json.loads(text.partition("[variables.kind]")[0].replace("'", '"'))
    assert names.of("").scheduler == "-scheduler"


def test_labels_and_capabilities_are_those_of_the_code(render: Render) -> None:
    policy = policies(render())["children"]
    texts = [expression(policy, "job"), *(each["expression"] for each in policy["validations"])]
    [pods] = [text for text in texts if "capabilities" in text]

    assert names.JOB_LABEL in texts[0]
    assert any(f"managed-by'].orValue('') == '{names.MANAGER}'" in text for text in texts)
    assert set(re.findall("'([A-Z_]+)'", pods)) == set(CAPABILITIES)


def test_they_bind_the_operator_s_account(rendered: Objects) -> None:
    """And no other; each policy has its binding, which denies."""
    [operator] = [b for b in rendered if b["kind"] == "Deployment" and "dask" not in b["metadata"]["name"]]
    name = operator["spec"]["template"]["spec"]["serviceAccountName"]
    who = f"request.userInfo.username == 'system:serviceaccount:operators:{name}'"
    limits = [body for body in rendered if not body["metadata"]["name"].endswith("-warnings")]
    bindings = [body["spec"] for body in limits if body["kind"] == BINDING]
    bodies = [body for body in limits if body["kind"] == POLICY]

    if not any(body["kind"] == "ClusterRole" for body in rendered):
        assert bodies == [], "a release with rights in one namespace has none"
        return
    assert len(bodies) == 2
    assert all([{"name": "operator", "expression": who}] == body["spec"]["matchConditions"] for body in bodies)
    assert all("Fail" == body["spec"]["failurePolicy"] for body in bodies)
    assert [body["metadata"]["name"] for body in bodies] == [spec["policyName"] for spec in bindings]
    assert all(["Deny"] == spec["validationActions"] for spec in bindings)


def test_the_accounts_are_those_that_jobs_may_name(render: Render) -> None:
    found = policies(render("--set", "jobs.serviceAccounts={reader,writer}"))["children"]
    assert '["reader","writer"]' in expression(found, "accounts")


def test_a_value_leaves_them_out(render: Render) -> None:
    """For a cluster whose administrator has other policies."""
    assert policies(render("--set", "admissionPolicy.enabled=false")) == {}


def test_a_policy_warns_of_the_jobs_that_the_operator_serves(render: Render) -> None:
    """tests/apiserver shows of what."""
    served = ("--set", "watch.namespaces={research,speech}", "--set", "operatorClass=gpu")
    objects = render(*served)
    policy, binding = by_name(objects, POLICY)["warnings"], by_name(objects, BINDING)["warnings"]
    [job] = JOBS.values()
    assert matched(policy) == {(job.group, job.plural)}
    assert (policy["failurePolicy"], binding["validationActions"]) == ("Ignore", ["Warn"])
    assert policy["matchConditions"][0]["expression"] == "object.spec.?operatorClass.orValue('') == 'gpu'"
    [namespaces] = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert namespaces["values"] == ["research", "speech"]
    assert "matchResources" not in by_name(render(), BINDING)["warnings"]
    for without in (("--set", "admissionPolicy.warnings=false"), ("-f", str(CHART / "ci" / "restricted-values.yaml"))):
        assert "warnings" not in by_name(render(*without), POLICY)

"""Run by `helm test`: is the operator up, are the CRDs installed, does the API server reject bad jobs only?"""

import http.client
import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
NAMESPACE = (ACCOUNT / "namespace").read_text()
JOBS = f"/apis/batchgrowth.dev/v1alpha1/namespaces/{NAMESPACE}/batchgrowthjobs?dryRun=All"


def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return the HTTP status and the object of the API server's response."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    trust = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    connection = http.client.HTTPSConnection(host, port, timeout=10, context=trust)
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.load(answer)
    finally:
        connection.close()


def unknown(group: str, resource: str, advice: str) -> str | None:
    """Return advice if the API server lacks a resource, else None."""
    code, answer = ask("GET", f"/apis/{group}")
    if code == 200 and resource in {entry["name"] for entry in answer["resources"]}:
        return None
    return f"{resource} of {group} is not known; {advice}"


def operator_down() -> str | None:
    """Return advice if no replica of the operator is available, else None."""
    name = os.environ["DEPLOYMENT"]
    code, answer = ask("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}")
    if code == 200 and answer.get("status", {}).get("availableReplicas", 0):
        return None
    return f"no replica of the Deployment {name} is available; look at: kubectl logs -n {NAMESPACE} deployment/{name}"


def example() -> Any:
    """Return the example job, without its name, which a job of the user's may have."""
    return json.loads(os.environ["EXAMPLE"]) | {"metadata": {"generateName": "helm-test-"}}


def example_refused() -> str | None:
    """Return the API server's message if it refuses the example, else None."""
    code, answer = ask("POST", JOBS, example())
    return None if code == 201 else f"the API server says {code}: {answer.get('message')}"


def nonsense_taken() -> str | None:
    """Return advice if the API server accepts a batch of 0 examples, else None."""
    job = example()
    job["spec"]["batch"]["initial"] = 0
    code, _ = ask("POST", JOBS, job)
    return None if code == 422 else f"the API server says {code} and not 422; is the CRD of this release?"


CHECKS = {
    "the operator is up": operator_down,
    "BatchGrowthJob is known": lambda: unknown("batchgrowth.dev/v1alpha1", "batchgrowthjobs", "set crds.enabled=true"),
    "DaskCluster is known": lambda: unknown("kubernetes.dask.org/v1", "daskclusters", "install the Dask operator"),
    "the example job is good": example_refused,
    "a bad job is refused": nonsense_taken,
}

faults = {name: fault for name, check in CHECKS.items() if (fault := check())}
for name in CHECKS:
    sys.stdout.write(f"FAIL  {name}: {faults[name]}\n" if name in faults else f"ok    {name}\n")
sys.exit(1 if faults else 0)

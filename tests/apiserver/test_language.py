"""A real API server answers the corpus of tests/language.py as `batchgrowth check` does, with strict validation."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from batchgrowth_operator.api.client import JOBS
from kubernetes import config
from language import accepted, language

from cluster.apiserver import ApiServer

AT_ONCE = 8
"""Requests that are under way at the same time."""
CREATED = 201
REFUSED = {400, 422}


@pytest.mark.fault("N06")
def test_check_and_the_api_server_answer_alike(apiserver: ApiServer) -> None:
    """Each manifest is sent as it is written, so that the server's own YAML reads it, as kubectl's would."""
    client = config.new_client_from_config(str(apiserver.kubeconfig))
    [kind] = JOBS.values()
    url = f"{client.configuration.host}{kind.path('default')}?dryRun=All&fieldValidation=Strict"
    pool = client.rest_client.pool_manager

    def status_of(manifest: str) -> int:
        headers = {"Content-Type": "application/yaml", "Accept": "application/json"}
        return int(pool.request("POST", url, body=manifest.encode(), headers=headers).status)

    corpus = language()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = dict(zip(corpus, threads.map(status_of, corpus.values()), strict=True))

    assert {name: status for name, status in answers.items() if status not in {CREATED, *REFUSED}} == {}
    created = {name for name, status in answers.items() if status == CREATED}
    assert (created - accepted(), accepted() - created) == (set(), set())

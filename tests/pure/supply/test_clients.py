"""The programs that speak to a cluster speak to that one alone."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cluster import release
from cluster.prometheus import Prometheus
from cluster.users import UsersCluster


def test_helm_takes_no_other_cluster_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` would install the chart on the cluster of HELM_KUBEAPISERVER, whatever the kubeconfig says."""
    program = tmp_path / "helm"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    monkeypatch.setattr(release, "tool", lambda group, name: program)
    for name in ("APISERVER", "CONTEXT", "TOKEN", "CAFILE", "INSECURE_SKIP_TLS_VERIFY", "ASUSER"):
        monkeypatch.setenv(f"HELM_KUBE{name}", "production")

    seen = release.helm(UsersCluster(tmp_path / "kubeconfig"), "list")

    assert "production" in os.environ["HELM_KUBETOKEN"]
    assert "production" not in seen


class Api(BaseHTTPRequestHandler):
    """The answer of a Prometheus without targets."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"activeTargets": []}}).encode())

    def log_message(self, *args: object) -> None:
        pass


def test_prometheus_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The company's has no way to a server of this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server: Prometheus = object.__new__(Prometheus)
    with HTTPServer(("127.0.0.1", 0), Api) as api:
        api.timeout = 5
        thread = Thread(target=api.handle_request)
        thread.start()
        server.url = f"http://127.0.0.1:{api.server_port}"
        try:
            assert server.targets() == []
        finally:
            thread.join()

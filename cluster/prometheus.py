"""A real Prometheus on this machine, which discovers the pods of a cluster as one inside it would."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from charts.folders import ROOT
from cluster.build import Say, built, silence
from cluster.ports import LOOPBACK, Endpoint, free_ports
from cluster.processes import Argument, until
from cluster.recipe import PROMETHEUS
from cluster.servers import Served

CONFIGURATION = ROOT / "charts" / "prometheus.yaml"
TIMEOUT_SECONDS = 10
Series = dict[str, Any]


class Prometheus(Served):
    """A Prometheus with the configuration of charts/prometheus.yaml, for the length of a `with` block.

    It discovers pods through the API server of the kubeconfig and scrapes them at their own addresses, which the
    machine of `make cluster` can reach; without a kubeconfig it scrapes nothing. `url` is its address.
    Raises HarnessError with its log if it does not start.
    """

    url: str

    def __init__(self, kubeconfig: Path | None = None, *, port: int | None = None, say: Say = silence) -> None:
        self._program = built(PROMETHEUS, say) / "prometheus"
        self._kubeconfig = kubeconfig
        self._port = free_ports(1)[0] if port is None else port

    def parsed(self, query: str) -> Series:
        """Return the syntax tree of a query. Raises HTTPError if Prometheus cannot parse it."""
        return self._get("parse_query", {"query": query})

    def over(self, query: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """Return the series of a range query, in seconds since 1970. Raises HTTPError if Prometheus refuses it."""
        asked = {"query": query, "start": str(start), "end": str(end), "step": str(step)}
        found: list[Series] = self._get("query_range", asked)["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Return the active targets with their health."""
        found: list[dict[str, Any]] = self._get("targets", {"state": "active"})["activeTargets"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules that it evaluates, each with its health and state."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def _start(self) -> None:
        configuration = self._servers.folder / "prometheus.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration()))
        command: list[Argument] = [
            self._program,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={self._servers.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
            "--log.level=warn",
        ]
        server = self._servers.start("prometheus", command)
        endpoint = Endpoint(self._port)
        until("Prometheus is ready", lambda: endpoint.answers("/-/ready"), server)
        self.url = f"http://{LOOPBACK}:{self._port}"

    def _configuration(self) -> dict[str, Any]:
        """Return the users' configuration, changed to discover pods from outside the cluster."""
        configuration: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
        for job in configuration["scrape_configs"]:
            for discovery in job["kubernetes_sd_configs"]:
                discovery["kubeconfig_file"] = str(self._kubeconfig)
        configuration["rule_files"] = [str(CONFIGURATION.parent / path) for path in configuration["rule_files"]]
        return configuration if self._kubeconfig else {}

    def _get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(address, timeout=TIMEOUT_SECONDS) as answer:
            data: dict[str, Any] = json.loads(answer.read())["data"]
        return data

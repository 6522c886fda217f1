"""A real Prometheus on this machine, which finds the pods of a cluster as one inside it would."""

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
    """A Prometheus with the configuration of charts/prometheus.yaml, for as long as the `with` block.

    It reads the pods of the API server that the kubeconfig names, and has to reach their addresses: so it does on the
    machine of `make cluster`. `url` is its address. Raises ClusterError with its log if it does not come up.
    """

    url: str

    def __init__(self, kubeconfig: Path, *, port: int | None = None, say: Say = silence) -> None:
        self._program = built(PROMETHEUS, say) / "prometheus"
        self._kubeconfig = kubeconfig
        self._port = free_ports(1)[0] if port is None else port

    def instant(self, query: str, time: float | None = None) -> list[Series]:
        """The series of an instant query, at a time in seconds since 1970 or now; HTTPError where it is refused."""
        at = {} if time is None else {"time": f"{time:.3f}"}
        return self._result("query", {"query": query, **at})

    def over(self, query: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """The series of a query over a time, as a panel draws it; HTTPError where it is refused."""
        return self._result("query_range", {"query": query, "start": str(start), "end": str(end), "step": str(step)})

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped now, and how that goes."""
        found: list[dict[str, Any]] = self._get("targets", {"state": "active"})["activeTargets"]
        return found

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
        """The user's own configuration, but that this one is outside the cluster."""
        told: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
        for job in told["scrape_configs"]:
            for discovery in job["kubernetes_sd_configs"]:
                discovery["kubeconfig_file"] = str(self._kubeconfig)
        return told

    def _result(self, path: str, query: dict[str, str]) -> list[Series]:
        found: list[Series] = self._get(path, query)["result"]
        return found

    def _get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  (always http)
            data: dict[str, Any] = json.loads(answer.read())["data"]
        return data

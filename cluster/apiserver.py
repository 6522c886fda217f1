"""A real API server for tests: etcd, kube-apiserver and optionally kube-controller-manager. No node, no root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster.build import Say, programs_of_the_api_server, silence
from cluster.certificates import Authority
from cluster.control_plane import MASTERS, ControlPlane, Ports
from cluster.errors import HarnessError
from cluster.ports import Endpoint, free_ports
from cluster.processes import Server, run, until
from cluster.servers import Served


class ApiServer(Served):
    """An API server on a free loopback port, for the length of a `with` block.

    `kubeconfig` is an administrator's file and `url` the server's address.
    Without a controller manager, pods need no service account and nothing collects garbage.
    Raises HarnessError with the server's log if it does not start.
    """

    kubeconfig: Path
    url: str

    def __init__(self, *, controller_manager: bool = False, say: Say = silence) -> None:
        self._programs = programs_of_the_api_server(say)
        self._with_controllers = controller_manager
        if controller_manager and not (self._programs / "kube-controller-manager").is_file():
            raise HarnessError(
                f"{self._programs} has no kube-controller-manager; unset KUBEBUILDER_ASSETS to build one"
            )

    def kubectl(self, *arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with `given` on its standard input; return its output, whatever its exit code."""
        words = [self._programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        return run(words, given=given, environment={"KUBECACHEDIR": str(self._servers.folder / "kubectl")})

    def client(self, name: str, user: str) -> Path:
        """Write a kubeconfig for another user, whose rights are those that RBAC grants."""
        return self._plane.kubeconfig(name, user)

    def stop_serving(self) -> None:
        """Stop the API server; etcd keeps running with its data."""
        self._servers.stop(self._apiserver)

    def serve_again(self) -> None:
        """Restarts the API server on the same port; returns when it is ready."""
        self._apiserver = self._serve()

    def _start(self) -> None:
        self._plane = ControlPlane(self._servers.folder, Ports(*free_ports(3)), Authority())
        self._plane.write()
        self.kubeconfig, self.url = self._plane.kubeconfig("admin", "admin", MASTERS), self._plane.url
        etcd = self._servers.start("etcd", self._plane.etcd(self._programs / "etcd"))
        until("etcd is healthy", lambda: Endpoint(self._plane.ports.etcd).answers("/health"), etcd)
        self._apiserver = self._serve()
        if self._with_controllers:
            self._start_controllers()

    def _serve(self) -> Server:
        # The reconciler publishes an address for pods: there are none, and it refuses a loopback address.
        more = ["--endpoint-reconciler-type=none"]
        if not self._with_controllers:
            more.append("--disable-admission-plugins=ServiceAccount")
        server = self._servers.start("kube-apiserver", self._plane.apiserver(self._programs / "kube-apiserver", *more))
        endpoint = self._plane.endpoint()
        until("the API server is ready", lambda: endpoint.answers("/readyz"), server)
        until("the default namespace exists", lambda: endpoint.answers("/api/v1/namespaces/default"), server)
        return server

    def _start_controllers(self) -> None:
        [port] = free_ports(1)
        command = self._plane.controller_manager(self._programs / "kube-controller-manager", f"--secure-port={port}")
        server = self._servers.start("kube-controller-manager", command)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        endpoint = self._plane.endpoint()
        until("the controllers run", lambda: endpoint.answers(account), server)

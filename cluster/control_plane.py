"""The flags and files of etcd, the API server, the controller manager and the scheduler."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cluster.certificates import Authority
from cluster.kubeconfig import write_kubeconfig
from cluster.network import IPV4, Network
from cluster.ports import LOOPBACK, Endpoint, bracketed
from cluster.processes import Argument

MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the control plane; etcd listens on the loopback address."""

    etcd: int
    etcd_peer: int
    apiserver: int


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Files and command lines of one control plane; starting it is the caller's part.

    `address` is the API server's; pods cannot reach it on the loopback address. `network` has the services' range.
    """

    folder: Path
    ports: Ports
    authority: Authority
    address: str = LOOPBACK
    network: Network = IPV4

    @property
    def url(self) -> str:
        """The API server's address for clients on this machine."""
        return f"https://{bracketed(self.address)}:{self.ports.apiserver}"

    def write(self) -> None:
        """Write the certificates and keys."""
        names = (
            LOOPBACK,
            self.network.first_service,
            self.address,
            "localhost",
            "kubernetes",
            "kubernetes.default.svc",
        )
        self.authority.pair.write(self.folder, "ca")
        self.authority.server("kube-apiserver", *dict.fromkeys(names)).write(self.folder, "apiserver")
        self.authority.client("admin", MASTERS).write(self.folder, "admin")
        self.authority.client("service-accounts").write(self.folder, "accounts")

    def kubeconfig(self, name: str, user: str, group: str | None = None) -> Path:
        """Write a kubeconfig with a new certificate for one user."""
        pair = self.authority.client(user, group)
        path = self.folder / f"{name}.kubeconfig"
        return write_kubeconfig(path, self.url, self.authority.pair.certificate, pair)

    def etcd(self, program: Path) -> list[Argument]:
        """Etcd on loopback ports, without fsync: its data need not survive a power cut."""
        client, peer = f"http://{LOOPBACK}:{self.ports.etcd}", f"http://{LOOPBACK}:{self.ports.etcd_peer}"
        return [
            program,
            *("--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
        ]

    def apiserver(self, program: Path, *more: str) -> list[Argument]:
        """kube-apiserver with RBAC, TLS and the admission plug-ins of a real cluster."""
        return [
            program,
            f"--etcd-servers=http://{LOOPBACK}:{self.ports.etcd}",
            f"--secure-port={self.ports.apiserver}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={self.folder / 'apiserver.crt'}",
            f"--tls-private-key-file={self.folder / 'apiserver.key'}",
            f"--client-ca-file={self.folder / 'ca.crt'}",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self.network.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            *more,
        ]

    def controller_manager(self, program: Path, *more: str) -> list[Argument]:
        """kube-controller-manager without leader election, as the only replica."""
        user = "system:kube-controller-manager"
        return [
            program,
            f"--kubeconfig={self.kubeconfig('controller-manager', user)}",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            f"--cluster-signing-cert-file={self.folder / 'ca.crt'}",
            f"--cluster-signing-key-file={self.folder / 'ca.key'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--bind-address={LOOPBACK}",
            *more,
        ]

    def scheduler(self, program: Path, *more: str) -> list[Argument]:
        """kube-scheduler, also without leader election."""
        kubeconfig = self.kubeconfig("scheduler", "system:kube-scheduler")
        return [program, f"--kubeconfig={kubeconfig}", "--leader-elect=false", f"--bind-address={LOOPBACK}", *more]

    def endpoint(self) -> Endpoint:
        """Return the API server, queried as administrator."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        return Endpoint(self.ports.apiserver, context, self.address)

"""The cluster on this machine: its files, its processes and its clients."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.build import folder_of
from cluster.daemons import Daemons
from cluster.folders import cache, state
from cluster.network import BY_FAMILY, Network
from cluster.node import POLICIES
from cluster.processes import Argument, output, run
from cluster.recipe import ALL

NODE_PROCESS = "node"
ALWAYS_IN_THE_NODE = ("containerd", "kubelet", "kube-proxy", "coredns")
IN_THE_NODE = (*ALWAYS_IN_THE_NODE, POLICIES)
ON_THE_MACHINE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The user's one cluster, whether it is up or not."""

    folder: Path
    images: Path

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    @property
    def network(self) -> Network:
        """The addresses of the node, its pods and its services."""
        return BY_FAMILY[(self.folder / "family").read_text()]

    @property
    def daemons(self) -> Daemons:
        """The servers on the machine, and the node's init process."""
        return Daemons(self.folder)

    def exists(self) -> bool:
        """Whether its folder exists, be it up or half stopped."""
        return self.folder.is_dir()

    def is_up(self) -> bool:
        """Whether every server runs and the API server is ready."""
        there = all(map(self.process, (*ON_THE_MACHINE, *ALWAYS_IN_THE_NODE)))
        return there and self.kubectl("get", "--raw", "/readyz").returncode == 0

    def enforces_policies(self) -> bool:
        """Whether the node enforces NetworkPolicies, which some kernels cannot do."""
        return self.process(POLICIES) is not None

    def make_mount_point(self, path: Path) -> None:
        """Create a folder and record which folders were created for it."""
        missing = [each for each in (path, *path.parents) if not each.exists()]
        with (self.folder / "mount-points").open("a") as note:
            note.writelines(f"{each}\n" for each in missing)
        path.mkdir(parents=True, exist_ok=True)

    def made_mount_points(self) -> list[Path]:
        """Return the folders that `make_mount_point` created, the inner ones first."""
        note = self.folder / "mount-points"
        return [Path(line) for line in note.read_text().splitlines()] if note.exists() else []

    def process(self, name: str) -> psutil.Process | None:
        """Return the process of a server on the machine or in the node, for tests to stop or kill; None if it ended."""
        if name not in IN_THE_NODE:
            return self.daemons.process(name)
        first = self.first_process()
        try:
            return next((child for child in first.children() if child.name() == name), None) if first else None
        except psutil.NoSuchProcess:
            return None

    def first_process(self) -> psutil.Process | None:
        """Return the node's init process (1 in its namespaces), the ancestor of every container's processes."""
        outside = self.daemons.process(NODE_PROCESS)
        return next(iter(outside.children()), None) if outside else None

    def kubectl(self, *arguments: Argument, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with `given` on its standard input; return its output, whatever its exit code."""
        words = [programs()["kubectl"], "--kubeconfig", self.kubeconfig, *arguments]
        return run(words, given=given, environment={"KUBECACHEDIR": str(self.folder / "kubectl")})

    def ctr(self, *arguments: Argument) -> str:
        """Run containerd's client on the pods' containers and images. Raises HarnessError if it fails."""
        socket = self.folder / "containerd.sock"
        return output([programs()["ctr"], "--address", socket, "--namespace", "k8s.io", *arguments])


def local_cluster() -> LocalCluster:
    """Return the user's cluster; its images are cached across clusters."""
    return LocalCluster(state(), cache() / "containerd")


def programs() -> dict[str, Path]:
    """Return the path of every program, built or not."""
    return {name: folder_of(group) / name for group in ALL for name in group.programs}

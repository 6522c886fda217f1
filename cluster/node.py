"""The servers of the node, which run inside its namespaces: their files and command lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster import network
from cluster.cgroups import ROOT_CGROUP, is_version_1
from cluster.control_plane import MASTERS, ControlPlane
from cluster.debian import program
from cluster.network import Network

NODE = "real"
# Fixed paths that the kubelet and the CNI plug-ins write to; the node mounts its own.
PRIVATE_FOLDERS = ("/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
POLICIES, SETTLED = "policies", "settled"
"""The server that decides on connections, and the file that it waits for: containerd, which tells it the addresses of
new pods, is not restarted any more once that exists."""
PAUSE_IMAGE = "localhost/batchgrowth-pause:dev"


@dataclass(frozen=True, slots=True)
class Node:
    """The node's folders and programs; `images` outlives the cluster."""

    folder: Path
    images: Path
    programs: dict[str, Path]
    plane: ControlPlane

    @property
    def socket(self) -> Path:
        """Containerd's socket."""
        return self.folder / "containerd.sock"

    @property
    def _network(self) -> Network:
        return self.plane.network

    def write(self) -> Path:
        """Write every file of the node; return the path of node_init's."""
        for name in ("cni", "kubelet", "pod-logs"):
            (self.folder / name).mkdir()
        self.images.mkdir(parents=True, exist_ok=True)
        self._write_yaml("kubelet.yaml", self._kubelet())
        self._write_yaml("kube-proxy.yaml", self._kube_proxy())
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        (self.folder / "Corefile").write_text(self._coredns())
        config = {
            "private_folders": PRIVATE_FOLDERS,
            "link": network.NODE_LINK,
            "network": self._network.in_the_node(),
            "settings": self._network.kernel_settings,
            "queued": self._network.queued(),
            "bridged": self._network.bridged,
            "policies": POLICIES,
            "logs": str(self.folder),
            "servers": self._servers(),
            "after": {"kubelet": str(self.socket), POLICIES: str(self.folder / SETTLED)},
        }
        path = self.folder / "node.json"
        path.write_text(json.dumps(config, indent=1))
        return path

    def _servers(self) -> dict[str, list[str]]:
        node = self.plane.kubeconfig("kubelet", f"system:node:{NODE}", "system:nodes")
        kubelet = [
            f"--kubeconfig={node}",
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--hostname-override={NODE}",
            f"--node-ip={self._network.node}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-certificates'}",
        ]
        return {
            "containerd": [str(self.programs["containerd"]), "--config", str(self.folder / "containerd.toml")],
            "kubelet": [str(self.programs["kubelet"]), *kubelet],
            "kube-proxy": [str(self.programs["kube-proxy"]), f"--config={self.folder / 'kube-proxy.yaml'}"],
            "coredns": [str(self.programs["coredns"]), "-conf", str(self.folder / "Corefile")],
            POLICIES: [str(self.programs[POLICIES]), *self._policies()],
        }

    def _policies(self) -> list[str]:
        kubeconfig = self.plane.kubeconfig(POLICIES, POLICIES, MASTERS)
        return [f"--kubeconfig={kubeconfig}", f"--node={NODE}", f"--queue={network.QUEUE}"]

    def _kubelet(self) -> dict[str, Any]:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.folder / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{ROOT_CGROUP}",
            "address": self._network.any_address,
            "clusterDNS": [self._network.gateway],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "100Mi"},
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.folder / "pod-logs"),
            "resolvConf": "",
            "shutdownGracePeriod": "0s",
        }
        return config | ({"failCgroupV1": False} if is_version_1() else {})

    def _kube_proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig("kube-proxy", "system:kube-proxy"))},
            "clusterCIDR": self._network.pods,
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "hostnameOverride": NODE,
            "mode": "iptables",
        }

    def _pod_network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self._network.pods}]],
            "routes": [{"dst": self._network.everything}],
        }
        bridge = {"type": "bridge", "bridge": network.BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": addresses}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}

    def _coredns(self) -> str:
        kubeconfig = self.plane.kubeconfig("coredns", "coredns", MASTERS)
        return (
            f".:53 {{\n  bind {self._network.gateway}\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {kubeconfig}\n    ttl 1\n  }}\n  errors\n}}\n"
        )

    def _containerd(self) -> str:
        return f"""version = 3
root = "{self.images}"
state = "/run/containerd"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{self.programs["bridge"].parent}"]
    conf_dir = "{self.folder / "cni"}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{program("runc")}"
      SystemdCgroup = false
"""

    def _write_yaml(self, name: str, content: dict[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump(content, sort_keys=False))

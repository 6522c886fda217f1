"""The programs of each Go module, and the keys of their builds in the cache."""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True, slots=True)
class Group:
    """Programs built together (name -> package), their build flags, and files copied from modules (name -> source)."""

    name: str
    module: str
    programs: dict[str, str]
    flags: tuple[str, ...] = ()
    files: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the go.mod."""
        return MODULES / self.module

    def key(self) -> str:
        """Sixteen hexadecimal digits of a digest of everything that determines the build."""
        digest = hashlib.sha256(repr((asdict(self), platform.system(), platform.machine())).encode())
        for path in sorted(path for path in self.folder.iterdir() if path.is_file()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


def _kubernetes_version() -> str:
    found = re.search(
        r"^(?:require|\t)\s*k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes" / "go.mod").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


def _stamped(version: str) -> tuple[str, ...]:
    """Linker flags that stamp a version: an unstamped build calls itself v0.0.0 in `kubectl version` and discovery."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())


KUBERNETES = _kubernetes_version()
_STAMP = ("-ldflags", " ".join(["-s -w", *_stamped(KUBERNETES)]))
_SMALL = ("-ldflags", "-s -w")
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_STAGES = "kustomize/stage"

APISERVER = Group(
    name="apiserver",
    module="kubernetes",
    programs={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    },
    flags=_STAMP,
)

NODE = Group(
    name="node",
    module="kubernetes",
    programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-scheduler", "kube-proxy", "kubelet")},
    flags=_STAMP,
)

CONTAINERD = Group(
    name="containerd",
    module="containerd",
    programs={
        "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
        "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
        "bridge": f"{_PLUGINS}/main/bridge",
        "host-local": f"{_PLUGINS}/ipam/host-local",
        "loopback": f"{_PLUGINS}/main/loopback",
        "portmap": f"{_PLUGINS}/meta/portmap",
    },
    flags=("-tags", "no_btrfs no_devmapper no_zfs", *_SMALL),
)

PAUSE = Group(name="pause", module="pause", programs={"pause": "."}, flags=_SMALL)

POLICIES = Group(name="policies", module="policies", programs={"policies": "."}, flags=_SMALL)

COREDNS = Group(name="coredns", module="coredns", programs={"coredns": "github.com/coredns/coredns"}, flags=_SMALL)

TOOLS = Group(
    name="tools",
    module="tools",
    programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok", "helm": "helm.sh/helm/v3/cmd/helm"},
    flags=_SMALL,
    # Without pod-complete, which ends the pods of every Job at once.
    files={
        "node-initialize.yaml": ("sigs.k8s.io/kwok", f"{_STAGES}/node/fast/node-initialize.yaml"),
        "node-heartbeat.yaml": (
            "sigs.k8s.io/kwok",
            f"{_STAGES}/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        ),
        "pod-ready.yaml": ("sigs.k8s.io/kwok", f"{_STAGES}/pod/fast/pod-ready.yaml"),
        "pod-delete.yaml": ("sigs.k8s.io/kwok", f"{_STAGES}/pod/fast/pod-delete.yaml"),
    },
)

# Of the service discoveries only the Kubernetes one: the others bring a client for every cloud.
PROMETHEUS = Group(
    name="prometheus",
    module="prometheus",
    programs={name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
    flags=("-tags", "remove_all_sd enable_kubernetes_sd", *_SMALL),
)

# What Flux and kpt make of an object's status.
KSTATUS = Group(name="kstatus", module="kstatus", programs={"kstatus": "."}, flags=_SMALL)

GROUPS = (APISERVER, NODE, CONTAINERD, PAUSE, COREDNS, POLICIES, TOOLS)
"""The groups that a cluster needs."""
ALL = (*GROUPS, PROMETHEUS, KSTATUS)

"""Starting the cluster: one real node, and fake ones with GPUs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from time import monotonic

from cluster import cgroups, fake_nodes, network, node_init
from cluster.build import Say, built
from cluster.certificates import Authority
from cluster.control_plane import MASTERS, ControlPlane, Ports
from cluster.debian import NODE as NODE_PACKAGES
from cluster.debian import namespaces_required, program, require, root_required
from cluster.errors import HarnessError
from cluster.folders import cache
from cluster.images import load, pause_archive
from cluster.local import NODE_PROCESS, LocalCluster, programs
from cluster.network import Network
from cluster.node import NODE, PRIVATE_FOLDERS, SETTLED, Node
from cluster.ports import Endpoint, free_ports
from cluster.processes import Server, output, until
from cluster.recipe import GROUPS
from cluster.stopping import forget_containers, stop


def start(cluster: LocalCluster, *, num_fake: int, gpus: int, say: Say, addresses: Network | None = None) -> None:
    """Return when the real node is Ready, and has addresses of that network; of IPv4 without one.

    Raises HarnessError with the end of the failing server's log, or if a cluster with other addresses is up.
    """
    root_required("a node")
    require(NODE_PACKAGES)
    namespaces_required()
    for group in GROUPS:
        built(group, say)
    if cluster.is_up():
        if addresses not in (None, cluster.network):
            raise HarnessError(f"the cluster that is up has {cluster.network.family}; take it down first")
        say("already up")
        return
    stop(cluster)
    began = monotonic()
    cluster.folder.mkdir(parents=True, mode=0o700)
    (cluster.folder / "family").write_text((addresses or network.IPV4).family)
    try:
        _start(cluster, num_fake, gpus)
    except (HarnessError, OSError) as error:
        logs = _save_logs(cluster)
        stop(cluster)
        raise HarnessError(f"{error}\n{logs}") from error
    except BaseException:
        stop(cluster)
        raise
    say(f"up in {monotonic() - began:.1f} s: one real node and {num_fake} fake ones with {gpus} GPUs each")


def _start(cluster: LocalCluster, num_fake: int, gpus: int) -> None:
    etcd, etcd_peer = free_ports(2)
    plane = ControlPlane(
        cluster.folder, Ports(etcd, etcd_peer, network.API_PORT), Authority(), cluster.network.host, cluster.network
    )
    plane.write()
    plane.kubeconfig("admin", "admin", MASTERS)
    first = _start_node(cluster, plane)
    _start_control_plane(cluster, plane)
    _start_kwok(cluster, num_fake, gpus)
    _load_pause(cluster, first)
    kubelet = Server("kubelet", first.process, cluster.folder / "kubelet.log")
    until("the node is ready", lambda: _is_ready(cluster), kubelet)
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    until("the controllers run", lambda: plane.endpoint().answers(account), first)


def _start_node(cluster: LocalCluster, plane: ControlPlane) -> Server:
    """Start the node's init process and joins its network to the machine's; its servers start on their own."""
    config = Node(cluster.folder, cluster.images, programs(), plane).write()
    cgroups.make()
    for folder in PRIVATE_FOLDERS:
        cluster.make_mount_point(Path(folder))
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net"]
    first = cluster.daemons.start(NODE_PROCESS, [*unshare, sys.executable, "-I", node_init.__file__, config])
    until("the node has namespaces", lambda: cluster.first_process() is not None, first)
    inside = cluster.first_process()
    assert inside is not None
    for command in cluster.network.on_the_machine(inside.pid):
        output([program(command[0]), *command[1:]])
    return first


def _start_control_plane(cluster: LocalCluster, plane: ControlPlane) -> None:
    where = programs()
    etcd = cluster.daemons.start("etcd", plane.etcd(where["etcd"]))
    until("etcd is healthy", lambda: Endpoint(plane.ports.etcd).answers("/health"), etcd)
    kubelet = (
        f"--kubelet-client-certificate={cluster.folder / 'admin.crt'}",
        f"--kubelet-client-key={cluster.folder / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
    )
    server = cluster.daemons.start("kube-apiserver", plane.apiserver(where["kube-apiserver"], *kubelet))
    endpoint = plane.endpoint()
    until("the API server is ready", lambda: endpoint.answers("/readyz"), server)
    ports = free_ports(2)
    manager = plane.controller_manager(where["kube-controller-manager"], f"--secure-port={ports[0]}")
    cluster.daemons.start("kube-controller-manager", manager)
    cluster.daemons.start("kube-scheduler", plane.scheduler(where["kube-scheduler"], f"--secure-port={ports[1]}"))


def _start_kwok(cluster: LocalCluster, num_fake: int, gpus: int) -> None:
    if num_fake:
        applied = cluster.kubectl("create", "-f", "-", given=fake_nodes.manifests(num_fake, gpus))
        if applied.returncode:
            raise HarnessError(f"the API server refused the fake nodes: {applied.stderr}")
    cluster.daemons.start("kwok", fake_nodes.kwok(programs()["kwok"], cluster.kubeconfig, cluster.network))


def _load_pause(cluster: LocalCluster, first: Server) -> None:
    until("containerd listens", (cluster.folder / "containerd.sock").is_socket, first)
    if forget_containers(cluster):  # left by a cluster that died without `down`
        before = cluster.process("containerd")
        if before:
            before.kill()
            until("containerd restarts", lambda: cluster.process("containerd") not in (None, before), first)
            until("containerd listens", (cluster.folder / "containerd.sock").is_socket, first)
    load(cluster, [pause_archive()])
    (cluster.folder / SETTLED).touch()


def _is_ready(cluster: LocalCluster) -> bool:
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return cluster.kubectl("get", "node", NODE, "-o", path).stdout == "True"


def _save_logs(cluster: LocalCluster) -> str:
    """Copy the logs to a folder that outlives the cluster; return where they are, or why they are nowhere."""
    target = cache() / "logs-of-the-last-failure"
    shutil.rmtree(target, ignore_errors=True)
    try:
        target.mkdir(parents=True)
        for log in cluster.folder.glob("*.log"):
            shutil.copyfile(log, target / log.name)
    except OSError as error:
        return f"The logs could not be saved: {error}"
    return f"All logs are in {target}"

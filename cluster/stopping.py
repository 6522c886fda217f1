"""Taking the cluster down; only cached programs and images remain."""

from __future__ import annotations

import shutil
from time import monotonic, sleep

import psutil

from cluster import cgroups, network
from cluster.debian import program
from cluster.errors import HarnessError
from cluster.local import NODE_PROCESS, LocalCluster
from cluster.processes import run

PATIENCE_SECONDS = 10


def stop(cluster: LocalCluster) -> None:
    """Kills every process and removes every file, mount, interface and control group. Idempotent."""
    if not cluster.exists():
        return
    _forget_containers(cluster)
    _kill(cluster)
    run([program("ip"), "link", "delete", network.HOST_LINK])  # it disappears with its namespace, but not at once
    _remove_cgroups()
    for path in cluster.made_mount_points():
        if path.is_dir():
            path.rmdir()
    shutil.rmtree(cluster.folder)


def forget_containers(cluster: LocalCluster) -> int:
    """Delete containerd's containers and return their number; images stay."""
    containers = cluster.ctr("containers", "list", "--quiet").split()
    tasks = cluster.ctr("tasks", "list", "--quiet").split()
    if tasks:
        cluster.ctr("tasks", "delete", "--force", *tasks)
    if containers:
        cluster.ctr("containers", "delete", *containers)
    return len(containers)


def _forget_containers(cluster: LocalCluster) -> None:
    """Delete the containers with the kubelet suspended, which would restart them."""
    kubelet = cluster.process("kubelet")
    if kubelet is None or cluster.process("containerd") is None:
        return
    kubelet.suspend()
    try:
        forget_containers(cluster)
    except HarnessError:
        return  # a broken containerd must not block `down`; `up` deletes leftover containers


def _kill(cluster: LocalCluster) -> None:
    """Kills all servers; killing the node's init process ends everything in its namespaces."""
    node = cluster.first_process()
    inside = [node, *node.children(recursive=True)] if node else []
    named = [process for name in cluster.daemons.names() if (process := cluster.daemons.process(name))]
    named.sort(key=lambda process: process.name() == NODE_PROCESS)
    for process in [*named, *inside[:1]]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs([*named, *inside], timeout=PATIENCE_SECONDS)
    left = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    if left:
        raise HarnessError(f"still running after SIGKILL: {', '.join(f'{p.name()} ({p.pid})' for p in left)}")


def _remove_cgroups() -> None:
    """Retries: the kernel releases a group shortly after its last process ends."""
    end = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return cgroups.remove()
        except OSError as error:
            if monotonic() > end:
                raise HarnessError(f"control groups are still in use: {error}") from error
            sleep(0.05)

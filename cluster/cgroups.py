"""The control group above those of the node's pods."""

from __future__ import annotations

from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
ROOT_CGROUP = "batchgrowth"
PODS_SHARE = 4
"""The pods together get the processor time of so many of the machine's other processes, when all of them compute.

By default they get that of one. Beside tests of other tiers, probes would time out and the kubelet would restart pods.
"""


def is_version_1() -> bool:
    """Whether the machine has one hierarchy per controller, which the kubelet accepts only if configured."""
    return not (MOUNT / "cgroup.controllers").exists()


def make() -> None:
    """Create the group in every hierarchy."""
    for hierarchy in _hierarchies():
        (hierarchy / ROOT_CGROUP).mkdir(exist_ok=True)
    if is_version_1():
        (MOUNT / "cpu" / ROOT_CGROUP / "cpu.shares").write_text(str(PODS_SHARE * 1024))
        return
    every = (MOUNT / "cgroup.controllers").read_text().split()
    (MOUNT / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in every))
    (MOUNT / ROOT_CGROUP / "cpu.weight").write_text(str(PODS_SHARE * 100))


def remove() -> None:
    """Remove the group and all groups below it, whose processes have ended."""
    for hierarchy in _hierarchies():
        top = hierarchy / ROOT_CGROUP
        if top.is_dir():
            below = (path for path in top.rglob("*") if path.is_dir())
            for group in sorted(below, key=lambda path: len(path.parts), reverse=True):
                group.rmdir()
            top.rmdir()


def _hierarchies() -> list[Path]:
    if not is_version_1():
        return [MOUNT]
    # Some names are links, as cpu is to cpu,cpuacct. Version 2 may be mounted too, as "unified".
    return [path for path in MOUNT.iterdir() if path.is_dir() and not path.is_symlink()]

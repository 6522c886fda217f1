"""What a node and the building of images need of the machine: programs of Debian and Ubuntu packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import HarnessError
from cluster.processes import Argument, logged

# Programs that lie in the sbin folders are not on everybody's PATH.
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")

NODE = {
    "runc": "runc",  # with libseccomp: a runc without it refuses every sandbox
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ip": "iproute2",
    "mount": "mount",
}
IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


def program(name: str) -> Path:
    """Where a program of the machine is; HarnessError naming the step that installs it."""
    found = _found(name)
    if found is None:
        raise HarnessError(f"{name} is missing; `python -m cluster packages` installs it on Debian and Ubuntu")
    return Path(found)


def require(programs: Iterable[str]) -> None:
    """Nothing where all are there; HarnessError naming those that are missing, and what would do."""
    missing = [name for name in programs if _found(name) is None]
    if missing:
        raise HarnessError(
            f"{', '.join(missing)}: missing; `python -m cluster packages` installs what is missing on Debian and Ubuntu"
        )


def install(log: Path) -> list[str]:
    """The packages that were installed now, none where all were there; HarnessError without root or without apt."""
    packages = [package for name, package in (NODE | IMAGES).items() if _found(name) is None]
    if not packages:
        return []
    if os.geteuid() != 0:
        raise HarnessError(f"only root can install packages; have {' '.join(packages)} installed")
    command: list[Argument] = [program("apt-get"), "install", "--yes", "--no-install-recommends", *packages]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    logged([program("apt-get"), "update"], log, folder=Path("/"), environment=quiet)
    logged(command, log, folder=Path("/"), environment=quiet)
    return packages


def root_required(what: str) -> None:
    """Nothing for root; HarnessError for everybody else."""
    if os.geteuid() != 0:
        raise HarnessError(f"{what} needs root: it makes network namespaces and mounts")


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))

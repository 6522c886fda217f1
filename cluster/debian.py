"""Programs of Debian and Ubuntu packages that a node and image builds need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import HarnessError
from cluster.processes import SBIN, Argument, logged, run

NODE = {
    "runc": "runc",  # Debian's has libseccomp; a runc without it refuses every sandbox
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ip": "iproute2",
    "mount": "mount",
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The keys by which mmdebstrap checks Debian's packages; on Ubuntu no package that it needs brings them."""
IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", KEYRING: "debian-archive-keyring"}
LOCKED_SECONDS = 600
"""How long to wait for another program that installs packages."""


def program(name: str) -> Path:
    """Return the path of a program. Raises HarnessError with the command that installs it."""
    found = _found(name)
    if found is None:
        raise HarnessError(f"{name} is missing; `python -m cluster packages` installs it on Debian and Ubuntu")
    return Path(found)


def require(programs: Iterable[str]) -> None:
    """Raise HarnessError if programs are missing, with the command that installs them."""
    missing = [name for name in programs if _found(name) is None]
    if missing:
        raise HarnessError(
            f"{', '.join(missing)}: missing; `python -m cluster packages` installs what is missing on Debian and Ubuntu"
        )


def install(log: Path) -> list[str]:
    """Installs the missing packages and returns their names. Raises HarnessError without root or apt."""
    packages = [package for name, package in (NODE | IMAGES).items() if _found(name) is None]
    if not packages:
        return []
    if os.geteuid() != 0:
        raise HarnessError(f"only root can install packages; ask an administrator to install {' '.join(packages)}")
    # A machine that has just started often updates itself, and meanwhile dpkg is locked.
    options = ["--yes", "--no-install-recommends", f"--option=DPkg::Lock::Timeout={LOCKED_SECONDS}"]
    command: list[Argument] = [program("apt-get"), "install", *options, *packages]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    logged([program("apt-get"), "update"], log, folder=Path("/"), environment=quiet)
    logged(command, log, folder=Path("/"), environment=quiet)
    return packages


def root_required(what: str) -> None:
    """Raise HarnessError unless the user is root."""
    if os.geteuid() != 0:
        raise HarnessError(f"{what} needs root: it creates network namespaces and mounts")


def namespaces_required() -> None:
    """Raise HarnessError unless root may make the namespaces of a node, which most containers are refused."""
    tried = run(["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--net", "true"])
    if tried.returncode:
        raise HarnessError(
            f"a node needs namespaces of its own, which this machine refuses: {tried.stderr.strip()}; if it is a "
            "container, run it privileged"
        )


def _found(name: str) -> str | None:
    """Return the path of a program, or of a file that is named by its path; None if it is missing."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))

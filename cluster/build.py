"""Cached builds of programs from Go modules."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cluster.errors import HarnessError
from cluster.folders import cache
from cluster.locks import alone
from cluster.processes import logged, output, run
from cluster.recipe import APISERVER, Group

Say = Callable[[str], None]
ASSETS = "KUBEBUILDER_ASSETS"
OLDEST_GO = 21
"""Of Go 1."""


def silence(text: str) -> None:
    """Discards a progress message."""


def folder_of(group: Group) -> Path:
    """Return the folder of the group's programs, which may not be built yet."""
    return cache() / "bin" / f"{group.name}-{group.key()}"


def built(group: Group, say: Say) -> Path:
    """Return the folder of the group's programs; build them unless cached. Raises HarnessError if that fails."""
    target = folder_of(group)
    if target.is_dir():
        return target
    if why := _why_no_go():
        raise HarnessError(f"{', '.join(group.programs)}: not built yet, and {why}")
    with alone(f"bin-{group.name}"):
        if not target.is_dir():  # another process may have built it while this one waited for the lock
            _build(group, target, say)
    return target


def tool(group: Group, name: str) -> Path:
    """Return one program of the group: our build if there is one, else the one on PATH, else a new build."""
    found = None if folder_of(group).is_dir() else shutil.which(name)
    return Path(found) if found else built(group, silence) / name


def programs_of_the_api_server(say: Say) -> Path:
    """Return the folder of etcd, kube-apiserver and kubectl: KUBEBUILDER_ASSETS if set, otherwise our own build."""
    named = os.environ.get(ASSETS)
    if not named:
        return built(APISERVER, say)
    missing = [name for name in ("etcd", "kube-apiserver", "kubectl") if not (Path(named) / name).is_file()]
    if missing:
        raise HarnessError(f"{ASSETS}: {named} has no {', '.join(missing)}; name a folder that has, or unset it")
    return Path(named)


def why_no_api_server() -> str | None:
    """Why the programs of the API server are unavailable on this machine; None if they are available."""
    if os.environ.get(ASSETS) or folder_of(APISERVER).is_dir() or shutil.which("go"):
        return None
    return f"needs Go, or {ASSETS}"


def _why_no_go() -> str:
    """Return why there is no Go that can build; empty if there is one. Since 1.21 it fetches a newer one if need be."""
    if shutil.which("go") is None:
        return "Go is not on PATH, of which sudo has its own; install Go 1.21 or newer"
    version = run(["go", "env", "GOVERSION"]).stdout.strip()
    known = re.match(r"go1\.(\d+)", version)
    return f"{version} is too old; install Go 1.21 or newer" if known and int(known[1]) < OLDEST_GO else ""


def _build(group: Group, target: Path, say: Say) -> None:
    say(f"building {', '.join(group.programs)} from Go modules (minutes the first time) …")
    began = monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(f".{group.name}-*"):  # left by a build that was killed
        shutil.rmtree(stale)
    log = target.parent / f"{group.name}.log"  # not in the folder, which is removed if a build fails
    log.unlink(missing_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{group.name}-", dir=target.parent))
    try:
        for name, package in group.programs.items():
            command = ["nice", "-n", "19", "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", *group.flags]
            logged([*command, "-o", work / name, package], log, folder=group.folder, environment=_PLAIN)
        for name, (module, path) in group.files.items():
            shutil.copyfile(_module_folder(group, module) / path, work / name)
        work.chmod(0o755)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work)
        raise
    say(f"built {', '.join(group.programs)} in {monotonic() - began:.0f} s: {target}")


_PLAIN = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def _module_folder(group: Group, module: str) -> Path:
    command = ("go", "-C", group.folder, "list", "-m", "-f", "{{.Dir}}", module)
    return Path(output(command, environment=_PLAIN).strip())

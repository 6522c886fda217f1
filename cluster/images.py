"""Container images without a registry: built by buildah, kept as archives, loaded into containerd."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from cluster.build import Say, built, silence
from cluster.debian import IMAGES, require, root_required
from cluster.folders import cache
from cluster.local import LocalCluster
from cluster.node import PAUSE_IMAGE
from cluster.processes import logged, output, run
from cluster.recipe import PAUSE

PROJECT = Path(__file__).parents[1]
TARGETS = ("operator", "trainer")
# Debian's own Python, so that the base needs no registry either.
SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
# What the machine knows about certificates and package indexes, a build on it may know too; it stays out of the image.
OF_THE_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")

BUD = ("buildah", "bud", "--isolation", "chroot")


def name_of(target: str) -> str:
    """The name under which pods find the image."""
    return f"localhost/batchgrowth-{target}:dev"


def archive_of(target: str, say: Say) -> Path:
    """The archive of the image of this working tree, which is built now if it is not there."""
    path = cache() / "images" / f"{target}-{_key(_sources())}.tar"
    if not path.exists():
        root_required("building an image")
        require(IMAGES)
        _build(target, path, say)
    return path


def pause_archive() -> Path:
    """The archive of the image that holds a pod's namespaces."""
    folder = built(PAUSE, silence)
    path = cache() / "images" / f"{folder.name}.tar"
    if not path.exists():
        lines = 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
        with tempfile.TemporaryDirectory() as empty:
            recipe = Path(empty) / "Dockerfile"
            recipe.write_text(lines)
            output([*BUD, "-t", PAUSE_IMAGE, "-f", recipe, folder])
        _push(PAUSE_IMAGE, path, cache() / "images" / "pause.log")
    return path


def load(cluster: LocalCluster, archive: Path) -> bool:
    """Whether the archive had to be imported: containerd keeps what it has from one cluster to the next."""
    mark = cluster.images / f"{archive.stem}.loaded"
    if mark.exists():
        return False
    cluster.ctr("images", "import", archive)
    for older in cluster.images.glob(f"{archive.stem.rpartition('-')[0]}-*.loaded"):
        older.unlink()
    mark.touch()
    return True


def _build(target: str, path: Path, say: Say) -> None:
    base = _base(say)
    say(f"building the image {name_of(target)} (the trainer's first takes minutes and some gigabytes) …")
    began = monotonic()
    log = cache() / "images" / f"{target}.log"
    log.unlink(missing_ok=True)
    mounts = [word for name in OF_THE_MACHINE if Path(name).exists() for word in ("--volume", f"{name}:{name}:ro")]
    what = ["--build-arg", f"BASE={base}", "--target", target, "--tag", name_of(target)]
    logged([*BUD, "--layers", *mounts, *what, "."], log, folder=PROJECT)
    _push(name_of(target), path, log)
    for older in path.parent.glob(f"{target}-*.tar"):
        if older != path:
            older.unlink()
    say(f"built {name_of(target)} in {monotonic() - began:.0f} s: {path}")


def _base(say: Say) -> str:
    """The name of the base image, which is made now if it is not there."""
    name = f"localhost/batchgrowth-base:{_key_of([SUITE, *BASE_PACKAGES, platform.machine()])}"
    if run(["buildah", "inspect", "--type", "image", name]).returncode == 0:
        return name
    say(f"making the base image from Debian {SUITE} …")
    log = cache() / "images" / "base.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="batchgrowth-base-") as work:
        packages = f"--include={','.join(BASE_PACKAGES)}"
        command = ("mmdebstrap", "--variant=minbase", packages, SUITE, "base.tar")
        logged(command, log, folder=Path(work))
        (Path(work) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        logged([*BUD, "-t", name, "."], log, folder=Path(work))
    return name


def _push(name: str, path: Path, log: Path) -> None:
    """The image as an archive, whole or not at all; uncompressed, for it goes no further than this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    push = ("buildah", "push", "--disable-compression", name, f"oci-archive:{partial}:{name}")
    logged(push, log, folder=path.parent)
    partial.rename(path)


def _sources() -> Iterable[Path]:
    """Every file that decides what is in the images."""
    yield from (
        PROJECT / name for name in ("Dockerfile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
    )
    for room in ("plan", "operator", "trainer"):
        yield from sorted(path for path in (PROJECT / room).rglob("*.py"))


def _key(files: Iterable[Path]) -> str:
    return _key_of([SUITE, *(f"{path.relative_to(PROJECT)}\0{_digest(path)}" for path in files)])


def _key_of(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

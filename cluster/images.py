"""Container images without a registry: built by buildah, kept as archives, loaded into containerd."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from cluster.build import Say, built, silence
from cluster.debian import IMAGES, KEYRING, require, root_required
from cluster.errors import HarnessError
from cluster.folders import cache
from cluster.layers import digest, swap_last_layer, with_another_layer
from cluster.local import LocalCluster
from cluster.node import PAUSE_IMAGE
from cluster.processes import logged, output, run
from cluster.recipe import PAUSE

PROJECT = Path(__file__).parents[1]
TARGETS = ("operator", "trainer")
# Debian's own Python, so that the base needs no registry either.
SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
# The machine's certificates and package indexes, mounted during builds and absent from the image.
OF_THE_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")

INSTALLED = "/opt/batchgrowth"
BUD = ("buildah", "bud", "--isolation", "chroot")


def name_of(target: str) -> str:
    """Return the image's name in pod specs."""
    return f"localhost/batchgrowth-{target}:dev"


def archives_of(target: str, say: Say) -> list[Path]:
    """Return the archives of this working tree's image in import order; build them unless cached.

    The first is the whole image as of the last change of dependencies; a second one has the current project layer.
    """
    whole, now = whole_archive(target, say), _key_of_now()
    if whole.with_suffix(".holds").read_text() == now:
        return [whole]
    project = archive_upon(whole, target, now)
    if not project.exists():
        _ready_to_build()
        _build_project(target, whole, project, say)
    return [whole, project]


def whole_archive(target: str, say: Say) -> Path:
    """Return the archive with every layer as of the last change of dependencies; build it unless cached."""
    path = cache() / "images" / f"whole-{target}-{_key_of(_of_dependencies())}.tar"
    if not path.exists():
        _ready_to_build()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Before the archive: an archive without it could never be used.
        path.with_suffix(".holds").write_text(_key_of_now())
        _build(target, path, say)
    return path


def archive_upon(whole: Path, kind: str, content: str) -> Path:
    """Return the path of an archive that refers to the layers of a whole image without containing them.

    A whole image built twice from the same files has other layers each time, so its digest is part of the name.
    """
    return cache() / "images" / f"{kind}-{_key_of([digest(whole), content])}.tar"


def pause_archive() -> Path:
    """Return the archive of the pause image, which holds a pod's namespaces."""
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


def load(cluster: LocalCluster, archives: list[Path]) -> bool:
    """Import one image from its archives in order; return False if containerd had it already.

    containerd keeps images from one cluster to the next.
    """
    mark = cluster.images / f"{archives[-1].stem}.loaded"
    built = archives[-1].stat()
    which = f"{built.st_size} {built.st_mtime_ns}"  # the code in an archive of this name may have changed
    if mark.exists() and mark.read_text() == which:
        return False
    try:
        cluster.ctr("images", "import", archives[-1])
    except HarnessError:
        if len(archives) == 1:
            raise
        for archive in archives:  # the last one refers to layers that it does not contain
            cluster.ctr("images", "import", archive)
    kind = archives[-1].stem.rpartition("-")[0].removeprefix("whole-")
    for older in (*cluster.images.glob(f"{kind}-*.loaded"), *cluster.images.glob(f"whole-{kind}-*.loaded")):
        older.unlink()
    mark.write_text(which)
    return True


def load_with(cluster: LocalCluster, target: str, files: Path, place: str, name: str, **environment: str) -> None:
    """Load an image FROM that of the target, which is loaded already, with a folder of files copied to a place."""
    _ready_to_build()
    with tempfile.TemporaryDirectory(prefix="batchgrowth-from-") as work:
        layer, whole, log = Path(work) / "layer.tar", Path(work) / "whole.tar", Path(work) / "log"
        (Path(work) / "Dockerfile").write_text(f"FROM scratch\nCOPY . {place}\n")
        logged([*BUD, "-t", f"{name}-layer", "-f", Path(work) / "Dockerfile", files], log, folder=Path(work))
        _push(f"{name}-layer", layer, log)
        with_another_layer(archives_of(target, silence)[-1], layer, whole, name, environment)
        cluster.ctr("images", "import", whole)


def _ready_to_build() -> None:
    root_required("building an image")
    require(IMAGES)


def _build(target: str, path: Path, say: Say) -> None:
    """Build the whole image from the Dockerfile."""
    say(f"building the image {name_of(target)} (the trainer's takes minutes and some gigabytes) …")
    began = monotonic()
    log = _bud(target, name_of(target), say)
    _push(name_of(target), path, log)
    only(path, f"whole-{target}-*")
    say(f"built {name_of(target)} in {monotonic() - began:.0f} s: {path}")


def _build_project(target: str, whole: Path, path: Path, say: Say) -> None:
    """Build the project's layer from the Dockerfile and swap it for the whole image's last layer."""
    began = monotonic()
    name, layer = "localhost/batchgrowth-project:dev", path.with_suffix(".layer")
    log = _bud("project", name, say)
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "Dockerfile").write_text(f"FROM scratch\nCOPY --from={name} {INSTALLED} {INSTALLED}\n")
        logged([*BUD, "-t", f"{name}-layer", empty], log, folder=PROJECT)
    _push(f"{name}-layer", layer, log)
    partial = path.with_suffix(".partial")
    swap_last_layer(whole, layer, partial)
    layer.unlink()
    partial.rename(path)
    only(path, f"{target}-*.tar")
    say(f"built the project's layer of {name_of(target)} in {monotonic() - began:.0f} s: {path}")


def _bud(target: str, name: str, say: Say) -> Path:
    """Build a stage of the Dockerfile under a name; return the path of the log."""
    base = _base(say)
    log = cache() / "images" / f"{target}.log"
    log.unlink(missing_ok=True)
    mounts = [word for name in OF_THE_MACHINE if Path(name).exists() for word in ("--volume", f"{name}:{name}:ro")]
    what = ["--build-arg", f"BASE={base}", "--target", target, "--tag", name]
    logged([*BUD, "--layers", *mounts, *what, "."], log, folder=PROJECT)
    return log


def only(path: Path, pattern: str) -> None:
    """Delete older archives of one kind and the files beside them."""
    for older in path.parent.glob(pattern):
        if older.stem != path.stem:
            older.unlink()


def _base(say: Say) -> str:
    """Return the name of the base image; make it unless cached."""
    name = f"localhost/batchgrowth-base:{_key_of([SUITE, *BASE_PACKAGES, platform.machine()])}"
    if run(["buildah", "inspect", "--type", "image", name]).returncode == 0:
        return name
    say(f"making the base image from Debian {SUITE} …")
    log = cache() / "images" / "base.log"
    with tempfile.TemporaryDirectory(prefix="batchgrowth-base-") as work:
        packages = f"--include={','.join(BASE_PACKAGES)}"
        command = ("mmdebstrap", "--variant=minbase", f"--keyring={KEYRING}", packages, SUITE, "base.tar")
        logged(command, log, folder=Path(work))
        (Path(work) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        logged([*BUD, "-t", name, "."], log, folder=Path(work))
    return name


def _push(name: str, path: Path, log: Path) -> None:
    """Export the image to an archive atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    logged(["buildah", "push", name, f"oci-archive:{partial}:{name}"], log, folder=path.parent)
    partial.rename(path)


def _of_dependencies() -> list[str]:
    """Everything that determines the layers below the project's; of pyproject.toml only the requirements."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [project["dependencies"], project["optional-dependencies"]]
    return [SUITE, *_digests([PROJECT / "Dockerfile", PROJECT / "requirements.lock"]), json.dumps(wanted)]


def _key_of_now() -> str:
    return _key_of([*_of_dependencies(), *_digests(_of_the_project())])


def _of_the_project() -> list[Path]:
    """Return the files that determine the project's layer."""
    rooms = (PROJECT / room for room in ("plan", "operator", "trainer"))
    files = [path for room in rooms for path in sorted(room.rglob("*")) if path.is_file()]
    return [
        *(PROJECT / name for name in ("pyproject.toml", "README.md", "LICENSE")),
        *(path for path in files if "__pycache__" not in path.parts),
    ]


def _digests(files: Iterable[Path]) -> list[str]:
    return [f"{path.relative_to(PROJECT)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]


def _key_of(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]

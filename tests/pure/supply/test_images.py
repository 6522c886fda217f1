"""Which images are imported into containerd, which keeps them from one cluster to the next."""

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import images
from cluster.errors import HarnessError


class Containerd:
    """A cluster that notes what is imported; `lacks` are archives that refer to layers which it does not have."""

    def __init__(self, folder: Path, lacks: tuple[str, ...] = ()) -> None:
        self.images = folder
        self.imported: list[str] = []
        self._lacks = list(lacks)

    def ctr(self, *words: Any) -> None:
        name = Path(words[-1]).name
        if name in self._lacks:
            self._lacks.remove(name)
            raise HarnessError("content digest not found")
        self.imported.append(name)


@pytest.fixture
def archives(tmp_path: Path) -> SimpleNamespace:
    """An archive of a whole image, and one that has another last layer."""
    whole = tmp_path / "whole-trainer-1.tar"
    code = tmp_path / "trainer-2.tar"
    whole.write_bytes(b"layers")
    code.write_bytes(b"layer")
    return SimpleNamespace(whole=whole, code=code)


def test_an_image_is_imported_once(archives: Any, tmp_path: Path) -> None:
    cluster: Any = Containerd(tmp_path)
    assert images.load(cluster, [archives.whole])
    assert not images.load(cluster, [archives.whole])
    assert cluster.imported == ["whole-trainer-1.tar"]


def test_an_archive_of_the_same_name_with_other_code_is_imported_again(archives: Any, tmp_path: Path) -> None:
    """It was removed and built again: its name is that of the packages in it."""
    cluster: Any = Containerd(tmp_path)
    images.load(cluster, [archives.whole])
    archives.whole.write_bytes(b"layers with other code")
    assert images.load(cluster, [archives.whole])
    assert len(cluster.imported) == 2


def test_layers_that_containerd_lacks_are_imported_first(archives: Any, tmp_path: Path) -> None:
    cluster: Any = Containerd(tmp_path, lacks=("trainer-2.tar",))
    assert images.load(cluster, [archives.whole, archives.code])
    assert cluster.imported == ["whole-trainer-1.tar", "trainer-2.tar"]
    assert not images.load(cluster, [archives.whole, archives.code])
    assert images.load(cluster, [archives.whole]), "the earlier code replaced this image"


def test_an_archive_belongs_to_the_build_whose_layers_it_refers_to(tmp_path: Path) -> None:
    """A whole image has one name for the same packages, and other layers each time it is built."""
    whole = tmp_path / "whole-operator-1.tar"
    builds = []
    for build in ("sha256:1", "sha256:2", "sha256:1"):
        index = json.dumps({"manifests": [{"digest": build}]}).encode()
        with tarfile.open(whole, "w") as archive:
            entry = tarfile.TarInfo("index.json")
            entry.size = len(index)
            archive.addfile(entry, io.BytesIO(index))
        builds.append(images.archive_upon(whole, "operator", "code").name)
    assert builds[0] == builds[2] != builds[1]


def test_a_build_that_a_full_disk_ends_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No archive is left of which it is unknown which code it holds; such a one could neither be used nor built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(images, "_ready_to_build", lambda: None)
    monkeypatch.setattr(images, "_build", lambda target, path, say: path.write_bytes(b"layers"))
    written = Path.write_text

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        images.archives_of("operator", print)
    monkeypatch.setattr(Path, "write_text", written)

    [archive] = images.archives_of("operator", print)

    assert archive.read_bytes() == b"layers"

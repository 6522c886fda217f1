"""Swapping the last layer of an OCI archive, so that a change of the project ships without gigabytes below it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

Descriptor = dict[str, Any]
INDEX = "index.json"
REFERENCE = "org.opencontainers.image.ref.name"


def digest(image: Path) -> str:
    """Return the digest of an archive's manifest, which is that of the same layers and run settings alone."""
    with tarfile.open(image) as archive:
        return str(json.loads(_read(archive, INDEX))["manifests"][0]["digest"])


def swap_last_layer(image: Path, layer: Path, target: Path) -> None:
    """Write an OCI archive of the image with its last layer replaced by the only layer of another archive.

    It refers to the other layers without containing them: import `image` first.
    """
    with tarfile.open(image) as whole, tarfile.open(layer) as single, tarfile.open(target, "w") as out:
        index, manifest, config = _parts(whole)
        _, other, other_config = _parts(single)
        [manifest["layers"][-1]] = other["layers"]
        [config["rootfs"]["diff_ids"][-1]] = other_config["rootfs"]["diff_ids"]
        manifest["config"] |= _add(out, json.dumps(config).encode())
        index["manifests"][0] |= _add(out, json.dumps(manifest).encode())
        _add(out, _blob(single, other["layers"][0]))
        _close(out, index)


def without_last_layer(image: Path, target: Path, name: str, config: Descriptor) -> None:
    """Write an OCI archive of the image under another name, without its last layer, with `config` as run settings.

    It refers to its layers without containing them, as in `swap_last_layer`.
    """
    with tarfile.open(image) as whole, tarfile.open(target, "w") as out:
        index, manifest, known = _parts(whole)
        manifest["layers"].pop()
        known["rootfs"]["diff_ids"].pop()
        known["history"].pop(_last_of_a_layer(known["history"]))
        known["config"] |= config
        manifest["config"] |= _add(out, json.dumps(known).encode())
        index["manifests"][0] |= _add(out, json.dumps(manifest).encode())
        index["manifests"][0]["annotations"] = {REFERENCE: name}
        _close(out, index)


def with_another_layer(image: Path, layer: Path, target: Path, name: str, environment: dict[str, str]) -> None:
    """Write an OCI archive of the image under another name, with the only layer of another archive on top.

    It is what FROM, COPY and ENV make, and refers to the layers below without containing them, as in `swap_last_layer`.
    """
    with tarfile.open(image) as below, tarfile.open(layer) as single, tarfile.open(target, "w") as out:
        index, manifest, config = _parts(below)
        _, other, other_config = _parts(single)
        manifest["layers"] += other["layers"]
        config["rootfs"]["diff_ids"] += other_config["rootfs"]["diff_ids"]
        config["history"].append({"created_by": "COPY"})
        config["config"]["Env"] += [f"{variable}={value}" for variable, value in environment.items()]
        manifest["config"] |= _add(out, json.dumps(config).encode())
        index["manifests"][0] |= _add(out, json.dumps(manifest).encode())
        index["manifests"][0]["annotations"] = {REFERENCE: name}
        _add(out, _blob(single, other["layers"][0]))
        _close(out, index)


def _last_of_a_layer(history: list[Descriptor]) -> int:
    """Return the index of the last step that made a layer; other steps only set how the image runs."""
    return max(place for place, step in enumerate(history) if not step.get("empty_layer"))


def _close(out: tarfile.TarFile, index: Descriptor) -> None:
    """Add the index and layout files that make the blobs an OCI archive."""
    _write(out, INDEX, json.dumps(index).encode())
    _write(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _parts(archive: tarfile.TarFile) -> tuple[Descriptor, Descriptor, Descriptor]:
    """Return index, manifest and configuration."""
    index = json.loads(_read(archive, INDEX))
    manifest = json.loads(_blob(archive, index["manifests"][0]))
    return index, manifest, json.loads(_blob(archive, manifest["config"]))


def _add(out: tarfile.TarFile, content: bytes) -> Descriptor:
    """Add the content as a blob; return its digest and size."""
    digest = hashlib.sha256(content).hexdigest()
    _write(out, f"blobs/sha256/{digest}", content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def _blob(archive: tarfile.TarFile, descriptor: Descriptor) -> bytes:
    return _read(archive, f"blobs/{descriptor['digest'].replace(':', '/')}")


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None
    return member.read()


def _write(out: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    out.addfile(entry, io.BytesIO(content))

"""`batchgrowth submit`: writes a folder of code and a job to a cluster with the rights of a user."""

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from batchgrowth import names
from batchgrowth.errors import BatchGrowthError, ClusterError, Fault, SpecError
from batchgrowth.manifest.documents import ManifestDumper
from batchgrowth.schema import FILE_PATH
from batchgrowth.spec import API_VERSION, KIND, BatchGrowthJob
from batchgrowth.spec.job import GENERATED_CHARACTERS
from batchgrowth.spec.training import MOST_FILES

from batchgrowth_operator.api.client import KINDS, Api, Refused
from batchgrowth_operator.seen.observed import Object, Ref

LARGEST_CODE_BYTES = 1_000_000
"""Most bytes of code; a ConfigMap holds 1 MiB."""
LONGEST_KEY = 240
"""Longest key of the ConfigMap that is not shortened, in characters."""
SKIPPED = ("__pycache__", "*.egg-info", "*.pyc", "*.pyo", "runs")
"""Files and folders that are not code, like those that begin with a dot; `batchgrowth run` writes to `runs`."""
OPTION = "--code"
"""The option that names the folder."""
_GENERATED = "bcdfghjklmnpqrstvwxz2456789"  # an API server generates names from these: they spell no word
MANAGER = "batchgrowth-submit"
"""Name under which fields are applied."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""kubectl's annotation, which a job read from a cluster may have."""


@dataclass(frozen=True, slots=True)
class Code:
    """A ConfigMap with code, and the `workload.source` that mounts each key at its file's path."""

    config_map: dict[str, Any]
    source: dict[str, Any]
    num_files: int
    num_bytes: int


def read_folder(folder: Path, exclude: Sequence[str] = (), manifest: Path | None = None) -> dict[str, bytes]:
    """Return the files below a folder by their relative path, except names that SKIPPED, `exclude` or a leading dot
    rules out.

    Patterns match a file's or folder's name, or its path below `folder`. `manifest` is left out: a job with more
    workers has the same code. Raises SpecError if the folder cannot be packed.
    """
    if not folder.is_dir():
        raise _fault(str(folder), "give a folder with the modules of the workload")
    try:
        found = {path.relative_to(folder).as_posix(): path for path in _files(folder, folder, (*SKIPPED, *exclude))}
        if manifest is not None:
            found = {name: path for name, path in found.items() if path.resolve() != manifest.resolve()}
        _check(folder, {name: path.stat().st_size for name, path in found.items()})
        return {name: path.read_bytes() for name, path in sorted(found.items())}
    except OSError as error:
        raise _fault(
            f"{error.filename or folder} cannot be read ({(error.strerror or 'unreadable').lower()})",
            "give a folder that can be read, or leave it out with --exclude",
        ) from error


def named(job: BatchGrowthJob) -> BatchGrowthJob:
    """Complete the name of a job with a generateName, as an API server would; return any other job as it is."""
    start = job.metadata.generate_name
    if start is None:
        return job
    name = start + "".join(secrets.choice(_GENERATED) for _ in range(GENERATED_CHARACTERS))
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name, "generate_name": None})})


def packed(job: str, files: Mapping[str, bytes]) -> Code:
    """Pack the files as the code of a job of that name, into an immutable ConfigMap named after their digest."""
    keys = _keys(files)
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for path, content in files.items():
        try:
            texts[keys[path]] = content.decode()
        except UnicodeDecodeError:
            others[keys[path]] = base64.b64encode(content).decode()
    name = names.code(job, _digest(files))
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {names.CODE_LABEL: job}},
        "immutable": True,
        **({"data": texts} if texts else {}),
        **({"binaryData": others} if others else {}),
    }
    source: dict[str, Any] = {"configMap": name}
    if any(key != path for path, key in keys.items()):
        source["items"] = [{"key": key, "path": path} for path, key in keys.items()]
    return Code(config_map, source, len(files), sum(map(len, files.values())))


def has_module(files: Mapping[str, bytes], entrypoint: str) -> bool:
    """Return whether the files have the module of an entrypoint "package.module:function", or else its package."""
    module = entrypoint.partition(":")[0].replace(".", "/")
    package = module.partition("/")[0]
    return any(f"{name}{end}" in files for name in (module, package) for end in (".py", "/__init__.py"))


def _files(root: Path, folder: Path, skipped: Sequence[str], above: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the files below the folder; links are followed, except those to a folder that contains the link.

    Virtual environments are left out. `above` are the folders through which the walk came, without links.
    """
    through = (*above, folder.resolve())
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        below = path.relative_to(root).as_posix()
        if entry.name.startswith(".") or any(fnmatch(text, p) for p in skipped for text in (entry.name, below)):
            continue
        if entry.is_dir():
            is_loop = any(each.is_relative_to(path.resolve()) for each in through)
            if not is_loop and not (path / "pyvenv.cfg").exists():
                yield from _files(root, path, skipped, through)
        elif entry.is_file():
            yield path


def _check(folder: Path, sizes: Mapping[str, int]) -> None:
    """Raise SpecError if there are no files, odd paths, or more files or bytes than a job and its ConfigMap hold."""
    odd = next((name for name in sizes if not re.match(FILE_PATH, name) or len(name) > 255), None)
    if odd is not None:
        raise _fault(
            f"{folder / odd!s}",
            "rename it with letters, digits, dashes, underscores and dots, or leave it out with --exclude",
        )
    if not sizes:
        raise _fault(f"{folder} has no files", "give a folder with the modules of the workload")
    elsewhere = "leave out what is not code with --exclude, or build an image from ours: docs/own-code.md"
    if len(sizes) > MOST_FILES:
        raise _fault(f"{folder} has {len(sizes)} files, more than {MOST_FILES}", elsewhere)
    total = sum(sizes.values())
    if total > LARGEST_CODE_BYTES:
        largest = ", ".join(f"{name} ({sizes[name]:,})" for name in sorted(sizes, key=lambda n: -sizes[n])[:3])
        given = f"{folder} has {total:,} bytes, more than {LARGEST_CODE_BYTES:,}; the largest are {largest}"
        raise _fault(given, elsewhere)


def _keys(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return a unique key of the ConfigMap for each path.

    A key cannot contain a slash, so dots replace slashes. A key that is too long, or that another path has too, is cut
    and gets a digest of its path.
    """
    plain = {path: re.sub(r"[^A-Za-z0-9._-]", "_", path.replace("/", ".")) for path in files}
    asked = list(plain.values())
    return {
        path: key if asked.count(key) == 1 and len(key) <= LONGEST_KEY else f"{key[-200:]}-{_digest({path: b''})}"
        for path, key in plain.items()
    }


def _digest(files: Mapping[str, bytes]) -> str:
    """Return ten hexadecimal digits that change with every path and every byte."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        for part in (path.encode(), content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:10]


def _fault(given: str, remedy: str) -> SpecError:
    return SpecError([Fault(OPTION, given, remedy)])


def manifest_of(job: BatchGrowthJob, code: Code | None) -> Object:
    """Return the job as in its file, without defaults, and with the code as its source.

    Raises SpecError if there is code and the file names a source too.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    metadata = job.metadata.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"name", "namespace", "labels", "annotations"}
    )
    kept = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED}
    metadata = {key: value for key, value in (metadata | {"annotations": kept}).items() if value}
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    if code is not None:
        if job.spec.workload.source is not None:
            name = job.spec.workload.source.config_map
            raise SpecError([Fault("spec.workload.source", f'"{name}"', f"remove it, or leave out {OPTION}")])
        spec["workload"]["source"] = code.source
    return manifest


class _Blocks(ManifestDumper):
    """Writes text of several lines as a literal block."""


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _as_block)


def as_yaml(*manifests: Object) -> str:
    """Return the manifests as one YAML file."""
    text: str = yaml.dump_all(manifests, Dumper=_Blocks, sort_keys=False, allow_unicode=True)
    return text


def namespace_for(job: BatchGrowthJob, asked: str | None, usual: str) -> str:
    """Return the namespace of the option, or else the manifest, or else the context.

    Raises SpecError if those of option and manifest differ.
    """
    written = job.metadata.namespace
    if asked is not None and written not in (None, asked):
        raise SpecError([Fault("metadata.namespace", f'"{written}"', f"remove it, or leave out --namespace {asked}")])
    return asked or written or usual


def submit(api: Api, namespace: str, job: Object, code: Code | None, *, force: bool = False) -> Object:
    """Write the job with its code, and return it as the API server accepted it.

    A dry run of the job comes first, so that a refused job leaves no code behind. Then the code is written, so that no
    pod waits for it, and then the job, which becomes the code's owner. Raises ClusterError if no server answers, and
    BatchGrowthError with the server's reason if it refuses.
    """
    job = placed(job, namespace)
    try:
        known = api.get(Ref(KIND, job["metadata"]["name"]), namespace)
        _apply(api, job, force=force, dry_run=True)
        if code is not None:
            _apply(api, _owned(placed(code.config_map, namespace), known), force=True)
        accepted = _apply(api, job, force=force)
        # Again, because the owner reference needs the job's uid, which a new job has only now.
        if code is not None:
            _apply(api, _owned(placed(code.config_map, namespace), accepted), force=True)
    except Refused as refused:  # when the job was read
        raise _explained(refused, job) from refused
    except OSError as error:
        raise ClusterError(f"the API server does not answer: {error}") from error
    return accepted


def _apply(api: Api, manifest: Object, *, force: bool, dry_run: bool = False) -> Object:
    try:
        return api.apply(manifest, manager=MANAGER, force=force, dry_run=dry_run)
    except Refused as refused:
        raise _explained(refused, manifest) from refused


def placed(manifest: Object, namespace: str) -> Object:
    """Return the manifest with that namespace, or unchanged if there is none."""
    if not namespace:
        return manifest
    return {**manifest, "metadata": manifest["metadata"] | {"namespace": namespace}}


def _owned(config_map: Object, job: Object | None) -> Object:
    """Return the ConfigMap with the job as its owner, with which it is deleted; unchanged without a job."""
    if job is None:
        return config_map
    metadata = job["metadata"]
    owner: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}
    return {**config_map, "metadata": config_map["metadata"] | {"ownerReferences": [owner]}}


def _explained(refused: Refused, manifest: Object) -> BatchGrowthError:
    kind = manifest["kind"]
    metadata = manifest["metadata"]
    text = f"the API server refuses {kind} {metadata['name']} in namespace {metadata['namespace']}: {refused}"
    if refused.code == HTTPStatus.CONFLICT:
        return BatchGrowthError(f"{text}; --force-conflicts takes these fields over")
    if refused.code == HTTPStatus.NOT_FOUND and "namespace" not in str(refused).lower():
        resource = f"{KINDS[kind].plural}.{KINDS[kind].group}"
        return BatchGrowthError(f"{text}; is the chart installed? It brings the kind {resource}")
    return BatchGrowthError(text)

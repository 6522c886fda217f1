"""A bucket of an object store, and what its errors mean for a run: see `record.storage`.

The texts of a store's errors may quote keys, so messages hold only its status and error code.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import obstore
from batchgrowth.errors import CheckpointError, StorageError
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore, ObjectStore, from_url

_PIECE_BYTES = 1 << 24
"""What one request carries: few enough bytes for its timeout on a slow line."""
_CLIENT = {"timeout": "60s", "connect_timeout": "5s"}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "notFound"}
_PASSING_CODES = {"RequestTimeout", "ExpiredToken", "RequestTimeTooSkewed", "SlowDown", "TooManyRequests"}
_PASSING_STATUS = {408, 409, 425, 429}
_STATUS, _CODE = re.compile(r"status code: (\d{3})"), re.compile(r"<Code>(\w{1,64})</Code>|\"reason\": ?\"(\w{1,64})\"")
_LASTING = ("must be specified", "redirect without LOCATION", "InvalidConfig", "Unknown configuration", "Unable to")
_OF_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "/token", "Credential")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a bucket lists of an object; `modified` is by the store's clock."""

    size: int
    modified: datetime


class Bucket:
    """The objects below a prefix, which names of objects leave out.

    Its methods raise CheckpointError, or StorageError if a retry may help.
    """

    def __init__(self, store: ObjectStore | MemoryStore, uri: str) -> None:
        self._store: Any = store
        self.uri = uri.rstrip("/")

    @classmethod
    def at(cls, uri: str) -> Self:
        """The bucket of a URI; the environment has credentials and endpoint, or else the account of the process."""
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: Any = _CLIENT | {"allow_http": plain}
        with _told(uri, "cannot be used"):
            return cls(from_url(uri.rstrip("/"), client_options=options, retry_config=_RETRIES), uri)

    def entries(self, *folders: str) -> dict[str, Entry]:
        """The objects in these folders by name."""
        with _told(self.uri, "cannot be listed"):
            found = (meta for folder in folders for page in obstore.list(self._store, folder) for meta in page)
            return {meta["path"]: Entry(meta["size"], meta["last_modified"]) for meta in found}

    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all."""
        with _told(self.uri, f"{name} cannot be written"):
            obstore.put(self._store, name, data, chunk_size=_PIECE_BYTES)

    def get(self, name: str) -> bytes | None:
        """The content of an object; None if it is missing."""
        with _told(self.uri, f"{name} cannot be read"):
            try:
                size = obstore.head(self._store, name)["size"]
                begins = range(0, size, _PIECE_BYTES)
                pieces = (
                    obstore.get_range(self._store, name, start=b, end=min(b + _PIECE_BYTES, size)) for b in begins
                )
                return b"".join(map(bytes, pieces))
            except FileNotFoundError as error:
                if _code(str(error)) in _NO_BUCKET:
                    raise
                return None

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are missing are no error."""
        with _told(self.uri, "old checkpoints cannot be deleted"):
            if names:
                obstore.delete(self._store, list(names))

    def rename(self, name: str, other: str) -> None:
        """Give an object another name; one that is missing is no error."""
        with _told(self.uri, f"{name} cannot be renamed"), suppress(FileNotFoundError):
            obstore.rename(self._store, name, other)


@contextmanager
def _told(uri: str, what: str) -> Iterator[None]:
    """Turn an error of the store that is raised inside the block into a CheckpointError that quotes no credential."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        kind, why = _meaning(error)
        raise kind(f"{uri}: {what}: {why}.") from None


def _meaning(error: Exception) -> tuple[type[CheckpointError], str]:
    """Whether the error may pass, what it is, and what would do."""
    text = str(error).partition("\n\nDebug source")[0]
    status, code = int((_STATUS.search(text) or ["", "0"])[1]), _code(text)
    said = " ".join(filter(None, (f"HTTP {status}" if status else "", code)))
    if code in _NO_BUCKET or isinstance(error, FileNotFoundError):
        return CheckpointError, f"there is no such bucket ({said}); create it, or give another spec.checkpoint.uri"
    if code in _PASSING_CODES or status in _PASSING_STATUS or status >= 500:
        return StorageError, f"the store fails for now ({said})"
    if status in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        rights = "to list, get, put and delete objects there"
        to = "the credentials of spec.checkpoint.secretName, or the service account of the trainer,"
        return CheckpointError, f"access is denied ({said}); give {to} the right {rights}"
    if status or isinstance(error, ValueError) or any(words in text for words in _LASTING):
        hint = "check spec.checkpoint.uri, and region, endpoint and account in the Secret spec.checkpoint.secretName"
        return CheckpointError, f"the store refuses the request ({said or type(error).__name__}); {hint}"
    if any(words in text for words in _OF_CREDENTIALS):
        hint = "name a Secret with them in spec.checkpoint.secretName, or give the trainer's service account access"
        return StorageError, f"no credentials were found; {hint}"
    return StorageError, "the store does not answer"


def _code(text: str) -> str:
    """The store's own code for its error; empty if it gave none."""
    found = _CODE.search(text)
    return (found[1] or found[2]) if found else ""

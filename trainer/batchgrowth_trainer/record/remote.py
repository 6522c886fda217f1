"""A run's checkpoints, rows and results in an object store, without a lock: a checkpoint's objects never change."""

import os
import re
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import obstore
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth.manifest.files import open_regular, read_regular
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore, ObjectStore, from_url

from batchgrowth_trainer.record import checkpoint, storage
from batchgrowth_trainer.record.checkpoint import ContinuingJob, Damaged, Foreign, Manifest, Saved
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE, RowFile
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE
from batchgrowth_trainer.record.runs import JOB_FILE
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.summary import SUMMARY_FILE
from batchgrowth_trainer.record.workload_source import ORIGIN_FILE

# --- A bucket of an object store, and what its errors mean for a run: see `record.storage` ---
# The texts of a store's errors may quote keys, so messages hold only its status and error code.

_PIECE_BYTES = 1 << 24
"""The most bytes that one request carries: few enough for its timeout on a slow line."""
_CLIENT = {"timeout": "60s", "connect_timeout": "5s"}
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "notFound"}
_PASSING_CODES = {"RequestTimeout", "ExpiredToken", "RequestTimeTooSkewed", "SlowDown", "TooManyRequests"}
_PASSING_STATUS = {408, 409, 425, 429}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"reason\": ?\"(\w{1,64})\"")
_LASTING = ("must be specified", "redirect without LOCATION", "InvalidConfig", "Unknown configuration", "Unable to")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_NOT_OF_ITS_HOST = (
    CheckpointError,
    "its certificate is of another host; give the host that the certificate names in the endpoint, such as "
    "AWS_ENDPOINT_URL in the Secret spec.checkpoint.secretName",
)
_NOT_NOW = StorageError, "its certificate has expired or is not valid yet; renew it, or set the node's clock"
_OF_CERTIFICATES: dict[str, tuple[type[CheckpointError], str]] = {
    "UnknownIssuer": (
        CheckpointError,
        "its certificate is of a CA that the trainer does not trust; name a ConfigMap with the CA's certificate in "
        "spec.checkpoint.caConfigMap",
    ),
    "NotValidForName": _NOT_OF_ITS_HOST,
    "NotValidForNameContext": _NOT_OF_ITS_HOST,
    "Expired": _NOT_NOW,
    "ExpiredContext": _NOT_NOW,
    "NotValidYet": _NOT_NOW,
    "NotValidYetContext": _NOT_NOW,
}
"""The error and its text, by the name of a certificate's fault in the errors of a store's client."""
_OF_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "/token", "Credential")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a bucket lists it; `modified` is by the store's clock."""

    size: int
    modified: datetime


class Bucket:
    """The objects below a prefix; their names do not include the prefix.

    Its methods raise CheckpointError, or StorageError if a retry may help.
    """

    def __init__(self, store: ObjectStore | MemoryStore, uri: str) -> None:
        self._store: Any = store
        self.uri = uri.rstrip("/")

    @classmethod
    def at(cls, uri: str, authorities: Path | None = None) -> Self:
        """Open the bucket of a URI, with the environment's credentials and endpoint or the process's account.

        `authorities` is a PEM file with certificates of CAs that are trusted for it, besides the machine's.
        """
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: Any = _CLIENT | {"allow_http": plain}
        with _told(uri, "cannot be used"), _trusting(authorities, uri):
            return cls(from_url(uri.rstrip("/"), client_options=options, retry_config=_RETRIES), uri)

    def entries(self, *folders: str) -> dict[str, StoredObject]:
        """List the objects in these folders by name."""
        with _told(self.uri, "cannot be listed"):
            found = (meta for folder in folders for page in obstore.list(self._store, folder) for meta in page)
            return {meta["path"]: StoredObject(meta["size"], meta["last_modified"]) for meta in found}

    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all."""
        with _told(self.uri, f"{name} cannot be written"):
            obstore.put(self._store, name, data, chunk_size=_PIECE_BYTES)

    def get(self, name: str) -> bytes | None:
        """Return the content of an object; None if it is missing."""
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
        """Delete objects; a missing object is not an error."""
        with _told(self.uri, "old checkpoints cannot be deleted"):
            try:
                if names:
                    obstore.delete(self._store, list(names))
            except FileNotFoundError as error:  # S3 alone takes a missing object for deleted
                if _code(str(error)) in _NO_BUCKET:
                    raise
                for name in names:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._store, name)

    def rename(self, name: str, other: str) -> None:
        """Rename an object; a missing object is not an error."""
        with _told(self.uri, f"{name} cannot be renamed"), suppress(FileNotFoundError):
            obstore.rename(self._store, name, other)


@contextmanager
def _trusting(authorities: Path | None, uri: str) -> Iterator[None]:
    """Trust the CAs in the file, besides the machine's, for stores that are opened inside the block.

    The store's client reads SSL_CERT_FILE and SSL_CERT_DIR once, and has no option for more than one of the two.
    """
    if authorities is None:
        yield
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authorities)
    except OSError as error:  # as ssl.SSLError is
        why = f"{authorities.name} holds no certificate that can be read: {error}"
        hint = "give a ConfigMap whose entry ca.crt has certificates as PEM in spec.checkpoint.caConfigMap"
        raise CheckpointError(f"{uri}: cannot be used: {why}; {hint}.") from None
    usual = ssl.get_default_verify_paths()
    trusted = {"SSL_CERT_FILE": str(authorities), "SSL_CERT_DIR": usual.capath or usual.openssl_capath}
    before = {name: os.environ.get(name) for name in trusted}
    os.environ.update(trusted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _told(uri: str, what: str) -> Iterator[None]:
    """Turn the store's errors inside the block into CheckpointErrors that quote no credential."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        kind, why = _meaning(error)
        raise kind(f"{uri}: {what}: {why}.") from None


def _meaning(error: Exception) -> tuple[type[CheckpointError], str]:
    """Return the kind of error, and a text that explains it and names a remedy."""
    text, _, detail = str(error).partition("\n\nDebug source")
    status = int((_STATUS.search(text) or ["", "0"])[1])
    code = _code(text)
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
    refused = _CERTIFICATE.search(detail)
    if refused is not None:
        return _OF_CERTIFICATES.get(refused[1], (CheckpointError, f"its certificate is refused ({refused[1]})"))
    if "InvalidContentType" in detail:
        return CheckpointError, "the store does not speak TLS; begin its endpoint with http:// in the Secret"
    return StorageError, "the store does not answer"


def _code(text: str) -> str:
    """Return the store's own code for its error; "" if it gave none."""
    found = _CODE.search(text)
    return (found[1] or found[2]) if found else ""


# --- The row files of a run, such as history.csv, as pieces that an object store can keep, which cannot append ---
# A piece is a range of a file's bytes and never changes. Small neighbours are merged as the file grows, like the digits
# of a binary number, so that a file of n bytes is in O(log n) pieces, and a byte is uploaded O(log n) times.

LARGEST_BYTES = 1 << 25
"""The most bytes of a piece."""
FILES = (HISTORY_FILE, EVALUATIONS_FILE, GROWTH_FILE)


class Piece(NamedTuple):
    """A range of a file's bytes; `name` ends with the first digits of their SHA-256."""

    begin: int
    end: int
    name: str


class Pieces:
    """The pieces of the row files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[str, list[Piece]] = {name: [] for name in FILES}

    def current(self) -> dict[str, list[Piece]]:
        """Return each file's current pieces. Raises OSError."""
        for name, old in self._of.items():
            path = self._folder / name
            size = path.stat().st_size if path.exists() else 0
            known = {(p.begin, p.end): p for p in old}
            ends = grown([piece.end for piece in old], size)
            ranges = zip([0, *ends], ends, strict=False)
            self._of[name] = [known.get(between) or self._made(name, *between) for between in ranges]
        return self._of

    def read(self, file: str, piece: Piece) -> bytes:
        """Return the bytes of a piece. Raises OSError."""
        with open_regular(self._folder / file) as opened:
            opened.seek(piece.begin)
            return opened.read(piece.end - piece.begin)

    def restore(
        self, pieces: Mapping[str, Sequence[checkpoint.Piece]], update: int, fetch: Callable[[str], bytes]
    ) -> None:
        """Write the files from these pieces, up to the row of that update.

        Raises OSError, and Damaged if a piece has changed since it was written.
        """
        for file in FILES:
            path = self._folder / file
            self._of[file] = [Piece(*piece) for piece in pieces[file]]
            path.unlink(missing_ok=True)
            for piece in self._of[file]:
                data = fetch(piece.name)
                if piece.name != _name(file, piece.begin, piece.end, data):
                    text = f"{piece.name} is not what was written ({len(data)} bytes, other digest)"
                    raise checkpoint.Damaged(text, piece.name)
                with os.fdopen(storage.open_own(path, storage.APPEND), "ab") as opened:
                    opened.write(data)
            RowFile(path).truncate(update)
            size = path.stat().st_size if path.exists() else 0
            self._of[file] = [piece for piece in self._of[file] if piece.end <= size]

    def _made(self, file: str, begin: int, end: int) -> Piece:
        data = self.read(file, Piece(begin, end, ""))
        return Piece(begin, end, _name(file, begin, end, data))


def _name(file: str, begin: int, end: int, data: bytes) -> str:
    return f"rows/{file}/{begin:015d}-{end:015d}-{checkpoint.sha256(data)[:16]}"


def grown(ends: Sequence[int], size: int) -> list[int]:
    """Return the ends of a file's pieces after the file has grown to `size` bytes; `ends` are the present ones."""
    kept = list(ends)
    begin = kept[-1] if kept else 0
    if size <= begin:
        return kept
    while kept:
        before = kept[-2] if len(kept) > 1 else 0
        if begin - before > size - begin or size - before > LARGEST_BYTES:
            break
        begin = before
        kept.pop()
    return [*kept, *range(begin + LARGEST_BYTES, size, LARGEST_BYTES), size]


# The objects of a run:
#     checkpoints/update-N-DIGEST.json   a checkpoint's manifest, written last: with it the checkpoint is whole
#     states/update-N-DIGEST             the state after update N, the same bytes from any trainer
#     rows/FILE/BEGIN-END-DIGEST         a piece of history.csv, evaluations.csv or growth.csv
#     summary.json, model.safetensors, … the results of a finished run
# A resume lists the manifests and takes the newest that is whole. So a trainer that is late can only add an older state
# beside the newer one, and never replaces it.

_MANIFESTS = "checkpoints/"
_STATES = "states/"
_ROWS = "rows/"
_DAMAGED = "damaged/"
_ABOUT = "README.txt"
_ABOUT_TEXT = b"The checkpoints and results of one BatchGrowthJob: docs/checkpoints.md.\n"
_MANIFEST = re.compile(rf"{_MANIFESTS}update-\d{{10}}-[0-9a-f]{{16}}\.json")
_ORPHANED = timedelta(hours=1)
"""The age from which an object without a manifest is deleted: no trainer can still be about to write the manifest."""

_T = TypeVar("_T")


class RemoteCheckpoints:
    """The checkpoints of one run, with the row files and results of the run, which are in `folder`."""

    def __init__(
        self, bucket: Bucket, folder: Path, mathematics: Mapping[str, Any], keep: int, job: ContinuingJob | None = None
    ) -> None:
        self._bucket = bucket
        self._folder = folder
        self._mathematics = mathematics
        self._keep = keep
        self._job = job
        self._pieces = Pieces(folder)
        self._update = 0
        self._parts: dict[str, frozenset[str]] = {}
        """The objects that a manifest needs, by the manifest's name."""
        self.place = bucket.uri

    def prepare(self) -> None:
        """Prove that objects can be written, and delete objects that a killed trainer left without a manifest.

        Raises CheckpointError, or StorageError after READ_SECONDS of trouble that may pass.
        """
        _patiently(lambda: self._bucket.put(_ABOUT, _ABOUT_TEXT))
        entries = _patiently(self._entries)
        needed = self._needed_by(_manifests(entries))
        if needed is not None and entries:
            # By the store's clock, as their times are: this machine's may be off by more than an hour.
            last = max(entry.modified for entry in entries.values())
            parts = {name: entry for name, entry in entries.items() if name.startswith((_STATES, _ROWS))}
            orphans = [n for n, entry in parts.items() if n not in needed and last - entry.modified > _ORPHANED]
            _patiently(lambda: self._bucket.delete(orphans))

    def try_out(self, size: int) -> None:
        """Do nothing: `prepare` has written an object, and a store has room."""

    def resume(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint, and put the run's rows and summary, if any, into the folder.

        Raises CheckpointError if a checkpoint belongs to another job or none is whole, StorageError if trouble lasts.
        """
        saved = self._newest(note, with_rows=True)
        with storage.reported_as_checkpoint_error():
            summary = _patiently(lambda: self._bucket.get(SUMMARY_FILE)) if saved else None
            # One that another run left in this folder would mark this run as finished.
            (self._folder / SUMMARY_FILE).unlink(missing_ok=True)
            if summary is not None:
                storage.write_file(self._folder / SUMMARY_FILE, summary, durable=False)
        return saved

    def load_latest(self, note: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint; None if there is none.

        Raises StorageError also if another trainer has written a newer one, because this trainer lacks its history.
        """
        saved = self._newest(note, with_rows=False)
        if saved is not None and saved.snapshot.position.update > self._update:
            raise StorageError(
                f"{self.place}: another trainer of this job has saved update {saved.snapshot.position.update}, beyond "
                f"update {self._update} of this one, which ends; when it is restarted, it continues from there"
            )
        return saved

    def save(self, snapshot: Snapshot, story: Mapping[str, Any]) -> int:
        """Write a checkpoint, delete the oldest beyond `keep`, and return the number of bytes of its state.

        Raises StorageError if a retry may succeed, otherwise CheckpointError.
        """
        state = checkpoint.state_bytes(snapshot)
        entries = self._entries()
        name = f"update-{snapshot.position.update:010d}"
        state_name = f"{_STATES}{name}-{checkpoint.sha256(state)[:16]}"
        if not _is_there(entries, state_name, len(state)):
            self._bucket.put(state_name, state)
        with storage.reported_as_checkpoint_error():
            rows = self._pieces.current()
            for file, pieces in rows.items():
                for piece in pieces:
                    if not _is_there(entries, piece.name, piece.end - piece.begin):
                        self._bucket.put(piece.name, self._pieces.read(file, piece))
        manifest = checkpoint.manifest_bytes(
            snapshot.position, state, self._mathematics, story, object=state_name, rows=rows
        )
        name = f"{_MANIFESTS}{name}-{checkpoint.sha256(manifest)[:16]}.json"
        self._update = snapshot.position.update  # before the manifest, which the store may get without answering
        self._bucket.put(name, manifest)
        self._parts[name] = _parts(state_name, rows)
        self._drop_old({*_manifests(entries), name}, name, checkpoint.covered_in(story))
        return len(state)

    def drop_after(self, update: int) -> None:
        """Delete the manifests of later updates, without which their objects count for nothing. Raises CheckpointError,
        StorageError.
        """
        names = sorted(_manifests(_patiently(self._entries)), key=_update_of, reverse=True)
        _patiently(lambda: self._bucket.delete([name for name in names if _update_of(name) > update]))
        self._pieces = Pieces(self._folder)  # the rows of these updates are about to be cut, and made again

    def keep_results(self) -> None:
        """Upload the files of a finished run, the summary last. Raises CheckpointError, StorageError."""
        for name in (JOB_FILE, ORIGIN_FILE, *FILES, WEIGHTS_FILE, BEST_FILE, SUMMARY_FILE):
            with storage.reported_as_checkpoint_error():
                data = read_regular(self._folder / name) if (self._folder / name).exists() else None
            if data is not None:
                self._bucket.put(name, data)

    def _entries(self) -> dict[str, StoredObject]:
        return self._bucket.entries(_MANIFESTS, _STATES, _ROWS)

    def _newest(self, note: Callable[[str], None], *, with_rows: bool) -> Saved | None:
        entries = _patiently(self._entries)
        damage = list[str]()
        aside = list[str]()
        names = sorted(_manifests(entries), key=lambda name: (_update_of(name), entries[name].modified), reverse=True)
        for name in names:
            try:
                saved = self._read(name, with_rows)
            except Damaged as error:
                damage.append(f"{name.removeprefix(_MANIFESTS)}: {error}")
                aside += filter(None, (name, error.part))  # or the next writer of a part would take it for written
                note(f"checkpoint {damage[-1]}; trying the one before it")
            else:
                for one in aside:
                    self._bucket.rename(one, f"{_DAMAGED}{one}")
                return saved
        if not names:
            return None
        raise CheckpointError(
            f"{self.place}: no checkpoint is whole ({'; '.join(damage)}). "
            "Restore one from a copy, or start over in another spec.checkpoint.uri."
        )

    def _read(self, name: str, with_rows: bool) -> Saved:
        manifest = self._manifest(name)
        self._parts[name] = _parts(manifest.object, manifest.rows)
        try:
            saved = checkpoint.read_state(manifest, self._object(manifest.object))
        except Damaged as error:
            raise Damaged(str(error), manifest.object) from error
        try:
            saved = checkpoint.foreign_refused(manifest, saved, self._mathematics, self._job)
        except Foreign as foreign:
            raise foreign.told(f"{self.place}/{name}", "spec.checkpoint.uri") from None
        if with_rows:
            self._update = saved.snapshot.position.update
            with storage.reported_as_checkpoint_error():
                self._pieces.restore(manifest.rows, self._update, self._object)
        return saved

    def _manifest(self, name: str) -> Manifest:
        manifest = checkpoint.read_manifest(self._object(name), name.removeprefix(_MANIFESTS))
        if not manifest.object.startswith(_STATES) or not manifest.rows.keys() >= set(FILES):
            raise Damaged(f"{checkpoint.MANIFEST} does not name the objects of a checkpoint")
        return manifest

    def _object(self, name: str) -> bytes:
        data = _patiently(lambda: self._bucket.get(name))
        if data is None:
            raise Damaged(f"{name} is missing")
        return data

    def _drop_old(self, manifests: Collection[str], mine: str, covered: Collection[int]) -> None:
        """Delete the manifests beyond the newest `keep`, and the objects that only these manifests needed.

        Keep the newest up to each update in `covered`, and this trainer's newest manifest in any case. A later
        save, or `prepare`, deletes what cannot be deleted now.
        """
        by_update = sorted(manifests, key=_update_of, reverse=True)
        newest = sorted({_update_of(name) for name in by_update}, reverse=True)[: self._keep]
        for update in covered:
            newest += [_update_of(name) for name in by_update if _update_of(name) <= update][:1]
        old = [name for name in by_update if _update_of(name) not in newest and name != mine]
        try:
            needed = self._needed_by(set(by_update).difference(old)) if old else None
            if needed is not None:
                parts = frozenset[str]().union(*(self._needed_by([name]) or () for name in old))
                # In this order: without its manifest an object is only left over, without its objects a checkpoint is
                # damaged.
                self._bucket.delete(old)
                self._bucket.delete([*parts - needed])
        except CheckpointError:
            return
        for name in old:
            self._parts.pop(name, None)

    def _needed_by(self, manifests: Collection[str]) -> frozenset[str] | None:
        """Return the objects that any of these manifests needs; None if a manifest cannot be read."""
        for name in manifests:
            if name not in self._parts:
                try:
                    manifest = self._manifest(name)
                except Damaged:
                    return None
                self._parts[name] = _parts(manifest.object, manifest.rows)
        return frozenset[str]().union(*(self._parts[name] for name in manifests))


def _patiently(act: Callable[[], _T]) -> _T:
    """Return the result of `act`; for READ_SECONDS, retry while `act` raises StorageError."""
    return storage.retried(act, storage.READ_SECONDS)


def _manifests(entries: Iterable[str]) -> list[str]:
    return [name for name in entries if _MANIFEST.fullmatch(name)]


def _update_of(manifest: str) -> int:
    return int(manifest.split("-")[1])


def _parts(state: str, rows: Mapping[str, Iterable[Any]]) -> frozenset[str]:
    return frozenset({state, *(piece[2] for pieces in rows.values() for piece in pieces)})


def _is_there(entries: Mapping[str, StoredObject], name: str, size: int) -> bool:
    return name in entries and entries[name].size == size

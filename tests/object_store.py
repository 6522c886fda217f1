"""An object store of this process that speaks as much of S3's protocol as the trainer uses, and fails on request."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from batchgrowth_trainer.worker.addresses import bracketed

BUCKET, KEY, SECRET = "runs", "AKIAEXAMPLEEXAMPLE00", "a-very-secret-access-key"


@dataclass
class S3:
    """The bucket `runs`, which only the user with KEY may use; `failure` is the answer to every request."""

    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    failure: tuple[int, str] | None = None
    requests: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What the Secret of a job holds."""
        endpoint = f"{self.scheme}://{bracketed(self.host)}:{self.port}"
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint}

    @property
    def names(self) -> list[str]:
        return sorted(self.objects)


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def server_of(host: str) -> type[ThreadingHTTPServer]:
    """The class of a server on that address, which may be one of IPv6."""
    return _Server6 if ":" in host else ThreadingHTTPServer


@contextmanager
def s3(certificate: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[S3]:
    """A store that listens on this machine until the end of the block, by TLS if it is given a certificate."""
    store = S3(scheme="https" if certificate else "http", host=host)

    class Handler(_Handler):
        s3 = store

    with server_of(host)((host, 0), Handler) as server:
        store.port = server.server_address[1]
        if certificate is not None:
            server.socket = certificate.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3: S3

    def handle_one_request(self) -> None:
        self.connection.settimeout(30)
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if self._refused():
            return
        if "list-type" in self.query:
            self._list()
            return
        found = self.s3.objects.get(self.name)
        if found is None:
            self._fail(404, "NoSuchKey")
            return
        data, modified = found
        headers = {"ETag": _tag(data), "Last-Modified": modified.strftime("%a, %d %b %Y %H:%M:%S GMT")}
        asked, status = self.headers.get("Range"), 200
        if asked:
            begin, end = (int(word) for word in asked.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {begin}-{min(end, len(data) - 1)}/{len(data)}"
            data, status = data[begin : end + 1], 206
        self._answer(status, data, headers)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        if self._refused():
            return
        source = self.headers.get("x-amz-copy-source")
        if source and unquote(source).lstrip("/").partition("/")[2] not in self.s3.objects:
            self._fail(404, "NoSuchKey")
            return
        data = self.s3.objects[unquote(source).lstrip("/").partition("/")[2]][0] if source else self.body
        self.s3.objects[self.name] = data, datetime.now(UTC)
        answer = f"<CopyObjectResult><ETag>{_tag(data)}</ETag></CopyObjectResult>".encode() if source else b""
        self._answer(200, answer, {"ETag": _tag(data)})

    def do_DELETE(self) -> None:
        if not self._refused():
            self.s3.objects.pop(self.name, None)
            self._answer(204, b"")

    def do_POST(self) -> None:
        if self._refused():
            return
        keys = [node.text or "" for node in ElementTree.fromstring(self.body).iter() if node.tag.endswith("Key")]
        for key in keys:
            self.s3.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self) -> None:
        prefix = self.query.get("prefix", "")
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{_tag(data)}</ETag><Size>{len(data)}</Size></Contents>"
            for name, (data, modified) in sorted(self.s3.objects.items())
            if name.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())

    def _refused(self) -> bool:
        """Whether the request was answered by an error; reads its address and body."""
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        address = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        bucket, _, self.name = unquote(address.path).lstrip("/").partition("/")
        self.s3.requests.append(f"{self.command} {self.name}")
        if self.s3.failure:
            self._fail(*self.s3.failure)
        elif f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            self._fail(403, "InvalidAccessKeyId")
        elif bucket != BUCKET:
            self._fail(404, "NoSuchBucket")
        else:
            return False
        return True

    def _fail(self, status: int, code: str) -> None:
        """As S3 does, an error quotes the user's key."""
        said = self.headers.get("Authorization", "")
        self._answer(status, f"<Error><Code>{code}</Code><AWSAccessKeyId>{said}</AWSAccessKeyId></Error>".encode())

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _tag(data: bytes) -> str:
    return f'"{md5(data).hexdigest()}"'

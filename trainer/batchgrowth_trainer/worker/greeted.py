"""Dask's transport inside a run's own cluster: TLS proves who is at both ends, then the connection is plain TCP.

Only root can read or change what travels inside one machine, so there TLS need not encrypt each gradient, which would
take a quarter of a short update of GatherScatter. Importing this module makes the scheme known to Dask.

The cluster's certificate is made when the cluster starts, and never written to a file of the run. This module imports
no torch: a bench and tests make certificates too.
"""

import ssl
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import FatalCommClosedError
from distributed.comm.registry import backends
from distributed.comm.tcp import TCP, BaseTCPBackend, TCPConnector, TCPListener
from distributed.security import Security
from tornado.iostream import IOStream

SCHEME = "greeted"

_HEADER = struct.Struct("!BHH")
"""The header of a TLS record: its type, its version, and the length of the rest (RFC 8446, 5.1)."""
_TYPES = range(20, 24)
_PORT = struct.Struct("!H")
_YES = b"y"

T = TypeVar("T")


class _Greeting:
    """One end of a TLS connection over a stream, which is used for the greeting only.

    It reads record by record, so every byte that the other end sends after the greeting stays in the stream.
    """

    def __init__(self, stream: IOStream, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._stream = stream
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=is_server)

    async def _done(self, act: Callable[[], T]) -> T:
        """Call `act` until it needs no more bytes from the other end, and return its result."""
        while True:
            try:
                result = act()
            except ssl.SSLWantReadError:
                # Before reading: the other end has nothing to say until it gets this.
                await self._flush()
                self._received.write(await self._record())
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._to_send.pending:
            await self._stream.write(self._to_send.read())

    async def _record(self) -> bytes:
        header: bytes = await self._stream.read_bytes(_HEADER.size)
        kind, _, length = _HEADER.unpack(header)
        if kind not in _TYPES:
            raise ConnectionError("what was sent is not TLS")
        rest: bytes = await self._stream.read_bytes(length)
        return header + rest

    async def greet(self, port: int) -> None:
        """Prove to the process that listens at `port` who this is, and that this port was dialled.

        Raises OSError, as `answer` does.
        """
        await self._done(self._tls.do_handshake)
        await self._done(lambda: self._tls.write(_PORT.pack(port)))
        if await self._done(lambda: self._tls.read(len(_YES))) != _YES:
            raise ConnectionError("the greeting was not answered")

    async def answer(self, port: int) -> None:
        """Let the process that dials this `port` prove who it is.

        A process that listens at the port of a dead one, and relays the greeting to another, stays outside.
        """
        await self._done(self._tls.do_handshake)
        dialled = await self._done(lambda: self._tls.read(_PORT.size))
        if dialled != _PORT.pack(port):
            raise ConnectionError("another port was dialled")
        await self._done(lambda: self._tls.write(_YES))


class _Connector(TCPConnector):  # type: ignore[misc]  # Dask has no types
    prefix = f"{SCHEME}://"
    encrypted = True  # Security.require_encryption asks this: a stranger can read nothing

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> TCP:
        comm = await super().connect(address, deserialize, **arguments)
        try:
            _, port = parse_host_port(address)
            await _Greeting(comm.stream, arguments["ssl_context"], is_server=False).greet(port)
        except ssl.SSLError as error:
            comm.abort()
            raise FatalCommClosedError(f"{self.prefix}{address}: another cluster's process answers there") from error
        except BaseException:
            comm.abort()
            raise
        return comm


class _GreetingListener(TCPListener):  # type: ignore[misc]
    prefix = f"{SCHEME}://"
    encrypted = True

    def _get_server_args(self, **arguments: Any) -> dict[str, Any]:
        # Not given to the server, which would wrap the whole connection in TLS.
        self._context = arguments["ssl_context"]
        self._context.num_tickets = 0  # a ticket would come after the greeting
        return {}

    async def _prepare_stream(self, stream: IOStream, _address: str) -> IOStream | None:
        try:
            await _Greeting(stream, self._context, is_server=True).answer(self.get_host_port()[1])
        except OSError:
            stream.close()
            return None
        return stream


class _Backend(BaseTCPBackend):  # type: ignore[misc]
    _connector_class = _Connector
    _listener_class = _GreetingListener


backends[SCHEME] = _Backend()


# --- The certificate of a run's own cluster ---

# The key lives in the memory of one run's processes, so the certificate needs no end: a clock that jumps must not end
# the run. The last date means "no end" (RFC 5280, 4.1.2.5).
_BEGINS = datetime(1970, 1, 2, tzinfo=UTC)
_ENDS = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class OwnCertificate(Security):  # type: ignore[misc]
    """The TLS settings of a cluster whose processes all run on this machine, as one user.

    A class of its own, so that a worker recognizes them. A process that has one can speak `protocol`.
    """

    protocol = SCHEME


def own_certificate() -> OwnCertificate:
    """Make a key and a certificate: every process of one cluster shows this certificate and accepts no other."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "batchgrowth")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
    form = serialization.PrivateFormat.PKCS8
    kept = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    roles = ("scheduler", "worker", "client")
    pairs = {f"tls_{role}_cert": shown for role in roles} | {f"tls_{role}_key": kept for role in roles}
    return OwnCertificate(require_encryption=True, tls_ca_file=shown, **pairs)

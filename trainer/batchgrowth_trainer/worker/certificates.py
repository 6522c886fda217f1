"""Certificates that change while a process runs: a preload of Dask's scheduler, worker and client that reloads them.

Dask reads its files once. The kubelet replaces a pod's files when the job's Secret changes. From then on, new
connections use the new files, and existing connections stay. The operator makes and renews the certificates, in its
certificates.py. Imports no torch: the scheduler loads this too.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from distributed import Client, Scheduler

from batchgrowth_trainer.worker import addresses

CHECK_SECONDS = 5.0
"""Time between two looks at the files."""

log = logging.getLogger(f"distributed.{__name__}")  # below Dask's, the only logger that a scheduler shows

_watches: dict[int, asyncio.Task[None]] = {}


class Reloader:
    """The files of a scheduler, worker or client, and the TLS contexts in which it accepts and dials."""

    def __init__(self, node: Any) -> None:
        role = "worker"
        if isinstance(node, Client):
            role = "client"
        elif isinstance(node, Scheduler):
            role = "scheduler"
        given = node.security.get_tls_config_for_role(role)
        names = [given["ca_file"], given["cert"], given["key"] or given["cert"]]
        self._files = [Path(name) for name in names if name and "\n" not in name]  # Dask takes the text of files too
        self._node = node
        self._loaded: list[bytes] = []
        self._refused: list[bytes] = []

    @property
    def is_needed(self) -> bool:
        """Return whether the node speaks TLS, with all of its certificates in files."""
        return len(self._files) == 3 and bool(contexts_of(self._node))

    def check(self) -> bool:
        """Load the files if they have changed, and return whether it did.

        If the files do not fit each other, log this and change nothing.
        """
        found: list[bytes] = []
        try:
            found = [file.read_bytes() for file in self._files]
            if found == self._loaded:
                return False
            _load(found, contexts_of(self._node))
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            # Files that do not fit are reported once, and tried again at each look: they may be half replaced.
            if not found or found != self._refused:
                log.warning("the certificates in %s stay as they were: %s", self._files[0].parent, error)
            self._refused = found
            return False
        if self._loaded:
            log.info("the certificates in %s have changed and are used from now on", self._files[0].parent)
        self._loaded = found
        return True


def contexts_of(node: Any) -> list[ssl.SSLContext]:
    """Return the TLS contexts of a node: the context with which it connects, and its listeners' contexts."""
    found = [node.connection_args.get("ssl_context")]
    found += [getattr(listener, "server_args", {}).get("ssl_options") for listener in getattr(node, "listeners", ())]
    return [context for context in found if context is not None]


async def dask_setup(node: Any) -> None:
    """Watch the certificates of a scheduler, worker or client, which Dask has started.

    A scheduler preloads nothing else, so this also makes it answer probes on IPv6.
    """
    addresses.answer_on_ipv6_too(node)
    reloader = Reloader(node)
    if reloader.is_needed:
        _watches[id(node)] = asyncio.create_task(_watch(reloader))


async def dask_teardown(node: Any) -> None:
    """Stop watching; Dask closes the node."""
    watch = _watches.pop(id(node), None)
    if watch is not None:
        watch.cancel()


async def _watch(reloader: Reloader) -> None:
    """Check on the node's own event loop, which also makes its handshakes: a context must not change during one."""
    while True:
        reloader.check()
        await asyncio.sleep(CHECK_SECONDS)


def _load(files: list[bytes], contexts: list[ssl.SSLContext]) -> None:
    """Add the authorities to the contexts and replace their certificate, unless a fresh context refuses them.

    A context keeps the authorities that it had. Raises OSError or ValueError.
    """
    authorities, certificate, key = files
    with NamedTemporaryFile() as pair:  # one file, so that no change of the files comes between the two
        pair.write(certificate + b"\n" + key)
        pair.flush()
        # The fresh context is first: if it refuses the pair, the contexts in use have taken nothing of it.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *contexts):
            context.load_verify_locations(cadata=authorities.decode("ascii"))
            context.load_cert_chain(pair.name, password="")

"""A certificate authority for one cluster, and the certificates it issues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.crt and NAME.key, readable by their owner only."""
        write_file(folder / f"{name}.crt", self.certificate)
        write_file(folder / f"{name}.key", self.key)


class Authority:
    """A certificate authority; its key is kept in memory until `pair` is written."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self.pair = Pair(self._authority.cert_pem.bytes(), self._authority.private_key_pem.bytes())

    def client(self, user: str, group: str | None = None) -> Pair:
        """Return a client certificate, from whose names Kubernetes takes the user and the group."""
        # Without a host name trustme's certificate has an empty critical extension, which Go refuses.
        return self.server(user, "localhost", group=group)

    def server(self, name: str, *identities: str, group: str | None = None) -> Pair:
        """Return a certificate for a server with these host names and IP addresses."""
        issued = self._authority.issue_cert(*identities, common_name=name, organization_name=group)
        [certificate] = issued.cert_chain_pems
        return Pair(certificate.bytes(), issued.private_key_pem.bytes())


def write_file(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path

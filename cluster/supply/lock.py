"""requirements.lock: each distribution with its version, its marker and the digests of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cluster.errors import HarnessError

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Locked:
    """One distribution; `marker` says on which platforms and Pythons this version is installed, None on all."""

    name: str
    version: str
    marker: Marker | None = None
    digests: tuple[str, ...] = field(default=(), repr=False)

    def applies(self, environment: Mapping[str, str]) -> bool:
        """Whether this version is the one for the environment, in the terms of PEP 508."""
        return self.marker is None or self.marker.evaluate(dict(environment))


def read_lock(text: str) -> tuple[Locked, ...]:
    """Returns the distributions in the order of the file.

    Raises HarnessError with the number of a line that names no version or no digest, and says what would do.
    """
    return tuple(_locked(line, words) for line, words in _entries(text))


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each entry; a backslash continues it on the next line."""
    begin, parts = 1, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        begin = begin if parts else number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            words = " ".join(parts).partition(" #")[0]
            parts = []
            if words and not words.startswith("#"):
                yield begin, words


def _locked(line: int, words: str) -> Locked:
    named, *hashes = re.split(r"\s+(?=--hash=)", words)
    digests = tuple(found[1] for each in hashes if (found := HASH.fullmatch(each.strip())))
    if not digests or len(digests) != len(hashes):
        raise HarnessError(f"requirements.lock:{line}: {named} has no digest; `make lock` writes --hash=sha256:…")
    try:
        requirement = Requirement(named)
    except InvalidRequirement as error:
        raise HarnessError(f"requirements.lock:{line}: {error}") from error
    pins = [one.version for one in requirement.specifier if one.operator == "==" and "*" not in one.version]
    if len(pins) != 1 or len(requirement.specifier) != 1:
        raise HarnessError(f"requirements.lock:{line}: {named} is not pinned; write NAME==VERSION")
    return Locked(canonicalize_name(requirement.name), pins[0], requirement.marker, digests)

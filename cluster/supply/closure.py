"""What an image needs: the locked distributions that an extra of the project leads to, on one platform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster.errors import HarnessError
from cluster.supply.lock import Locked


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution in its locked version, and the names of those that it needs there."""

    locked: Locked
    requires: tuple[str, ...]


def closure(
    requirements: Sequence[str], locked: Iterable[Locked], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, Needed]]:
    """Returns the names of the requirements, and everything that they lead to by name, both sorted.

    Follows the metadata of what is installed here, which must be the locked version.
    Raises HarnessError naming a distribution that is not locked, or not installed in its locked version.
    """
    pinned = {each.name: each for each in locked if each.applies(environment)}
    roots, found = _required(requirements, environment, frozenset()), dict[str, Needed]()
    extras: dict[str, frozenset[str]] = {}
    waiting = list(roots.items())
    while waiting:
        name, wanted = waiting.pop()
        if name in found and wanted <= extras[name]:
            continue
        extras[name] = extras.get(name, frozenset()) | wanted
        if name not in pinned:
            raise HarnessError(f"{name}: needed, and not in requirements.lock; run `make lock`")
        required = _required(_installed(pinned[name]).requires or (), environment, extras[name])
        found[name] = Needed(pinned[name], tuple(sorted(required)))
        waiting += required.items()
    return tuple(sorted(roots)), dict(sorted(found.items()))


def _required(
    requirements: Iterable[str], environment: Mapping[str, str], extras: frozenset[str]
) -> dict[str, frozenset[str]]:
    """The names that apply in the environment with these extras, each with the extras that it is asked for."""
    found: dict[str, frozenset[str]] = {}
    environments = [dict(environment) | {"extra": extra} for extra in ("", *extras)]
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            name = canonicalize_name(requirement.name)
            found[name] = found.get(name, frozenset()) | requirement.extras
    return found


def _installed(locked: Locked) -> Distribution:
    try:
        found = distribution(locked.name)
    except PackageNotFoundError:
        raise HarnessError(f"{locked.name}: not installed here; run `make install`") from None
    if found.version != locked.version:
        raise HarnessError(
            f"{locked.name}: installed is {found.version}, locked is {locked.version}; run `make install`"
        )
    return found

"""The licence of each locked distribution, held against the allowed ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from license_expression import AND, OR, Licensing, get_spdx_licensing
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from cluster.errors import HarnessError
from cluster.supply.lock import Locked
from cluster.supply.settings import Licences

Metadata = Callable[[str], Message | None]

CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "LicenseRef-BSD",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
"""Classifier -> SPDX identifier; the one for BSD does not say which of them, and has a reference of its own."""
SAYS_NOTHING = {"License :: OSI Approved", "License :: DFSG approved"}

WAY_OUT = "read its licence, and state it with your reason in tool.batchgrowth.licences.stated of pyproject.toml"


@dataclass(frozen=True, slots=True)
class LicenceReport:
    """Names by licence, a line for each licence that a person read, and a sentence for each fault."""

    by_licence: dict[str, list[str]]
    notes: list[str]
    faults: list[str]


def installed_metadata(name: str) -> Message | None:
    """The metadata of the installed distribution; None if it is not installed."""
    try:
        return distribution(name).metadata  # type: ignore[return-value]
    except PackageNotFoundError:
        return None


def declared(metadata: Message) -> str | None:
    """The licence in a distribution's metadata as an SPDX expression; None if it names none that SPDX knows.

    By precedence: License-Expression of PEP 639, License if it is one line of SPDX, and all classifiers together.
    """
    for key in ("License-Expression", "License"):
        text = str(metadata[key] or "")
        expression = _spdx(text) if "\n" not in text else None
        if expression:
            return expression
    classifiers = {each for each in metadata.get_all("Classifier", []) if each.startswith("License ::")} - SAYS_NOTHING
    known = [CLASSIFIERS.get(each) for each in sorted(classifiers)]
    return " AND ".join(filter(None, known)) if known and all(known) else None


def licence_of(name: str, metadata: Metadata, rules: Licences) -> str | None:
    """The licence of a distribution: what a person read, else what its metadata names."""
    if name in rules.stated:
        return rules.stated[name].licence
    found = metadata(name)
    return None if found is None else declared(found)


def refused_in(expression: str, allowed: Iterable[str]) -> set[str]:
    """The licences of an SPDX expression that stand in the way: of alternatives one has to be allowed, else all."""
    return _refused(_licensing().parse(expression), set(allowed))


def licence_report(locked: Iterable[Locked], rules: Licences, metadata: Metadata = installed_metadata) -> LicenceReport:
    """Judges each distribution once, by what is installed here under its name."""
    names = sorted({each.name for each in locked})
    faults = [*_faults_of_the_rules(rules, set(names), metadata)]
    by_licence: dict[str, list[str]] = defaultdict(list)
    for name in names:
        licence = licence_of(name, metadata, rules)
        by_licence[licence or "unknown"].append(name)
        if licence is None:
            faults.append(f"{name}: {_why_unknown(metadata(name))}; {WAY_OUT}")
        elif refused := refused_in(licence, rules.allowed):
            faults.append(
                f"{name}: {licence}; {', '.join(sorted(refused))} is not in tool.batchgrowth.licences.allowed"
            )
    notes = [f"{name}: {each.licence}, as a person read it: {each.reason}" for name, each in rules.stated.items()]
    return LicenceReport(dict(by_licence), notes, faults)


def _faults_of_the_rules(rules: Licences, names: set[str], metadata: Metadata) -> Iterator[str]:
    where = "tool.batchgrowth.licences"
    for identifier in sorted(rules.allowed):
        if _spdx(identifier) != identifier:
            yield f"{where}.allowed: {identifier} is no identifier of SPDX; write one, or LicenseRef-…"
    for name, stated in rules.stated.items():
        found = metadata(name)
        if name not in names:
            yield f"{where}.stated.{name}: not in requirements.lock; remove it"
        elif _spdx(stated.licence) is None:
            yield f"{where}.stated.{name}: {stated.licence!r} is no expression of SPDX; write one, or LicenseRef-…"
        elif found is not None and (now := declared(found)):
            yield f"{where}.stated.{name}: its metadata names {now} by now; remove it"


def _why_unknown(found: Message | None) -> str:
    if found is None:
        return "not installed here, so its metadata is unknown"
    named = [str(found["License"] or "").strip().partition("\n")[0][:60]]
    named += [each for each in found.get_all("Classifier", []) if each.startswith("License ::")]
    words = ", ".join(filter(None, named))
    return f"its metadata says only {words}, which is no licence of SPDX" if words else "its metadata names no licence"


@cache
def _licensing() -> Licensing:
    return get_spdx_licensing()


@cache
def _spdx(text: str) -> str | None:
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return None


def _refused(node: object, allowed: set[str]) -> set[str]:
    if isinstance(node, AND | OR):
        parts = [_refused(each, allowed) for each in node.args]
        return set() if isinstance(node, OR) and set() in parts else set().union(*parts)
    if node is None:
        raise HarnessError("a licence expression is empty")
    return {str(node)} - allowed

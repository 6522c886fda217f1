"""Licences of what is locked."""

from email.message import Message
from pathlib import Path

import pytest

from cluster.errors import HarnessError
from cluster.supply.licences import declared, licence_report, refused_in
from cluster.supply.lock import Locked, read_lock
from cluster.supply.settings import Licences, Settings, Stated, read_settings

ROOT = Path(__file__).parents[3]
OSI = "License :: OSI Approved :: "
RULES = Licences(allowed=frozenset({"MIT", "Apache-2.0"}))


def metadata(expression: str = "", licence: str = "", *classifiers: str) -> Message:
    """Metadata of a distribution."""
    message = Message()
    for key, value in {"License-Expression": expression, "License": licence}.items():
        if value:
            message[key] = value
    for classifier in classifiers:
        message["Classifier"] = classifier
    return message


def test_every_locked_distribution_has_an_allowed_licence() -> None:
    """As `make check` says, and one line for each that a person read."""
    rules = read_settings((ROOT / "pyproject.toml").read_text()).licences
    locked = read_lock((ROOT / "requirements.lock").read_text())

    report = licence_report(locked, rules)

    assert [] == report.faults
    assert len({each.name for each in locked}) == sum(map(len, report.by_licence.values()))
    assert len(rules.stated) == len(report.notes)


@pytest.mark.parametrize(
    ("found", "licence"),
    [
        (metadata("MIT OR Apache-2.0", "BSD"), "MIT OR Apache-2.0"),
        (metadata("", "BSD-3-Clause", f"{OSI}MIT License"), "BSD-3-Clause"),
        (metadata("", "BSD", f"{OSI}BSD License"), "LicenseRef-BSD"),
        (metadata("", "The MIT License\n\nPermission is", f"{OSI}MIT License"), "MIT"),
        (metadata("", "", f"{OSI}MIT License", f"{OSI}Apache Software License"), "Apache-2.0 AND MIT"),
        (metadata("", "", "License :: OSI Approved", f"{OSI}MIT License"), "MIT"),
        (metadata("", "Apache", f"{OSI}Apache Software License", "License :: Other/Proprietary License"), None),
        (metadata("", "", "License :: OSI Approved"), None),
        (metadata("", "BSD"), None),
        (metadata(), None),
    ],
)
def test_what_metadata_names(found: Message, licence: str | None) -> None:
    """An expression of SPDX, else all classifiers together: one that is unknown may take rights away."""
    assert licence == declared(found)


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ("MIT", set()),
        ("GPL-3.0-only", {"GPL-3.0-only"}),
        ("MIT OR GPL-3.0-only", set()),
        ("MIT AND GPL-3.0-only", {"GPL-3.0-only"}),
        ("MIT AND (ISC OR Apache-2.0)", set()),
        ("ISC OR GPL-3.0-only", {"ISC", "GPL-3.0-only"}),
        ("Apache-2.0 WITH LLVM-exception", {"Apache-2.0 WITH LLVM-exception"}),
        ("LicenseRef-Mine", {"LicenseRef-Mine"}),
    ],
)
def test_expressions(expression: str, refused: set[str]) -> None:
    assert refused == refused_in(expression, RULES.allowed)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (metadata("GPL-3.0-only"), "new: GPL-3.0-only; GPL-3.0-only is not in tool.batchgrowth.licences.allowed"),
        (metadata("", "Mine"), "new: its metadata says only Mine, which is no licence of SPDX; read its licence"),
        (metadata(), "new: its metadata names no licence; read its licence, and state it with your reason in"),
        (None, "new: not installed here, so its metadata is unknown; read its licence"),
    ],
)
def test_a_new_dependency_is_refused(found: Message | None, words: str) -> None:
    """With its name and the way out."""
    [fault] = licence_report([Locked("new", "1")], RULES, {"new": found}.get).faults

    assert words in fault


def test_what_a_person_read_counts_while_it_is_needed() -> None:
    stated = {"new": Stated(licence="MIT", reason="its LICENSE"), "gone": Stated(licence="MIT", reason="its LICENSE")}
    rules = RULES.model_copy(update={"stated": stated})

    unknown = licence_report([Locked("new", "1")], rules, {"new": metadata("", "Mine")}.get)
    known = licence_report([Locked("new", "1")], rules, {"new": metadata("MIT")}.get)

    assert ["tool.batchgrowth.licences.stated.gone: not in requirements.lock; remove it"] == unknown.faults
    assert "new: MIT, as a person read it: its LICENSE" in unknown.notes
    assert "tool.batchgrowth.licences.stated.new: its metadata names MIT by now; remove it" in known.faults


def test_words_that_spdx_does_not_know_are_refused() -> None:
    stated = {"new": Stated(licence="BSD like", reason="its LICENSE")}
    rules = Licences(allowed=frozenset({"Apache"}), stated=stated)

    faults = licence_report([Locked("new", "1")], rules, {"new": None}.get).faults

    assert "tool.batchgrowth.licences.allowed: Apache is no identifier of SPDX; write one, or LicenseRef-…" in faults
    assert any("stated.new: 'BSD like' is no expression of SPDX" in fault for fault in faults)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "tool.batchgrowth.licences: field required"),
        ("[tool.batchgrowth.licences]\nallow = ['MIT']", "tool.batchgrowth.licences.allow: extra"),
        ("[tool.batchgrowth.licences]\nallowed = ['MIT']\nstated.a.licence = 'MIT'", "licences.stated.a.reason: field"),
        (
            "[tool.batchgrowth]\nlicences.allowed = ['MIT']\nadvisories = [{id = 'A', reason = 'B'}]",
            "tool.batchgrowth.advisories.0.until: field required",
        ),
    ],
)
def test_wrong_settings_are_named(table: str, words: str) -> None:
    with pytest.raises(HarnessError, match=f"^pyproject.toml: .*{words}"):
        read_settings(table)


def test_the_settings_of_the_project() -> None:
    assert isinstance(read_settings((ROOT / "pyproject.toml").read_text()), Settings)

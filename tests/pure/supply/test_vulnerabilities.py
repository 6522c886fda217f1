"""Known vulnerabilities of what is locked: pip-audit against a server of our own that speaks OSV's API."""

import json
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from packaging.markers import Marker

from cluster.errors import HarnessError
from cluster.supply.audit import (
    Unchecked,
    Vulnerability,
    _failed,
    _without_duplicates,
    read_report,
    verdict,
    vulnerabilities,
)
from cluster.supply.lock import Locked
from cluster.supply.settings import Accepted

NOWHERE = Marker("sys_platform == 'none'")
TODAY = date(2026, 11, 23)
FIXED = Vulnerability("a", "1", ("CVE-1", "GHSA-1"), ("2",), "Reads anything.")
OPEN = Vulnerability("b", "1", ("GHSA-2",), (), "Hangs.")
ADVISORY = {
    "id": "GHSA-1",
    "aliases": ["CVE-1"],
    "summary": "Reads\nanything.",
    "modified": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "a", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2"}]}],
        }
    ],
}


class Database(BaseHTTPRequestHandler):
    """An advisory for `a` 1, none for other versions, and an error for `broken`."""

    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        query: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = query["package"]["name"], query["version"]
        self.asked.append((name, version))
        self.send_response(503 if name == "broken" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulns": [ADVISORY]} if (name, version) == ("a", "1") else {}).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a database, and what it was asked."""
    handler = type("Handler", (Database,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query", handler.asked
        server.shutdown()
        thread.join()


def test_every_locked_version_is_looked_up(database: tuple[str, list[tuple[str, str]]]) -> None:
    """Whatever its platform."""
    address, asked = database

    assert [FIXED] == vulnerabilities([Locked("a", "1"), Locked("b", "1", NOWHERE)], database=address)
    assert {("a", "1"), ("b", "1")} == set(asked)


def test_both_versions_of_a_name_are_looked_up() -> None:
    """pip-audit refuses them together."""
    first, second, other = Locked("a", "1", NOWHERE), Locked("a", "2"), Locked("b", "1")

    assert [[first, other], [second]] == list(_without_duplicates([first, second, other]))


def test_a_database_in_trouble_stops_no_change(database: tuple[str, list[tuple[str, str]]]) -> None:
    """It says that nothing was checked."""
    with pytest.raises(Unchecked, match="Error"):
        vulnerabilities([Locked("broken", "1")], database=database[0])


@pytest.mark.parametrize(
    ("last", "unchecked"),
    [
        ("requests.exceptions.ConnectionError: x (Caused by NameResolutionError('no such host'))", True),
        ("ERROR:pip_audit._cli:Tip: your network may be blocking this service. Try another service", True),
        ("requests.exceptions.JSONDecodeError: Expecting value", True),
        ("ERROR:pip_audit._cli:package a has duplicate requirements: a==2", False),
        ("pip-audit: error: unrecognized arguments: --no", False),
        ("", False),
    ],
)
def test_what_stops_pip_audit(last: str, unchecked: bool) -> None:
    """Only trouble with the database is forgiven."""
    assert unchecked is isinstance(_failed(1, f"Traceback\n{last}" if last else ""), Unchecked)


def test_one_that_a_version_fixes_stops_a_change() -> None:
    """One without a cure is only reported: nothing can be done about it."""
    judged = verdict([OPEN, FIXED], (), TODAY)

    assert ["b 1: GHSA-2 (Hangs.); no version fixes it yet"] == judged.notes
    [fault] = judged.faults
    assert fault.startswith("a 1: CVE-1 (Reads anything.); fixed in 2; `make lock`, or accept it in tool.batchgrowth")


@pytest.mark.parametrize("name", ["GHSA-1", "CVE-1"])
def test_it_can_be_accepted_until_a_day(name: str) -> None:
    """By any of its names, with a reason."""
    accepted = (Accepted(id=name, reason="never called", until=TODAY),)

    assert [] == verdict([FIXED], accepted, TODAY).faults
    assert verdict([FIXED], accepted, TODAY).notes[0].endswith("accepted until 2026-11-23: never called")
    [fault] = verdict([FIXED], accepted, date(2026, 11, 24)).faults
    assert "fixed in 2 (accepted until 2026-11-23); " in fault


def test_what_is_accepted_for_nothing_is_named() -> None:
    accepted = (Accepted(id="GHSA-9", reason="never called", until=TODAY),)

    assert ["tool.batchgrowth.advisories: GHSA-9 is of no locked version; remove it"] == verdict(
        [], accepted, TODAY
    ).notes


def test_a_distribution_that_pip_audit_leaves_out_is_a_fault() -> None:
    """Else an index without advisories would look like one that knows of none."""
    report = {"dependencies": [{"name": "a", "skip_reason": "not found"}], "fixes": []}

    with pytest.raises(HarnessError, match="pip-audit left out a: not found"):
        read_report(json.dumps(report))

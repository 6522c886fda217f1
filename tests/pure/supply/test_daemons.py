"""Servers that outlive the command that started them are found again, and no other process is taken for one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.daemons import Daemons
from cluster.processes import Server

WAITS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def daemons(tmp_path: Path) -> Daemons:
    return Daemons(tmp_path)


@pytest.fixture
def etcd(daemons: Daemons) -> Iterator[Server]:
    """A server that runs."""
    server = daemons.start("etcd", WAITS)
    yield server
    server.process.kill()
    server.process.wait()


def test_a_server_is_found_after_the_clock_was_set(
    daemons: Daemons, etcd: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a virtual machine goes on after a pause: the kernel's time of the start moves with the clock."""
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil.boot_time", lambda: boot + 3600)
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: boot + 3600)

    found = daemons.process("etcd")

    assert found is not None
    assert found.pid == etcd.process.pid


def test_another_process_with_its_number_is_not_the_server(daemons: Daemons, etcd: Server) -> None:
    note = daemons.folder / "etcd.pid"
    number, _, begun = note.read_text().partition(" ")
    note.write_text(f"{number} {float(begun) - 1:.2f}")

    assert daemons.process("etcd") is None


def test_a_server_of_which_nothing_was_noted_is_none(daemons: Daemons) -> None:
    """The note of a machine that lost its power may be empty; the cluster can be taken down all the same."""
    (daemons.folder / "etcd.pid").touch()

    assert daemons.names() == ["etcd"]
    assert daemons.process("etcd") is None


def test_a_server_that_cannot_be_noted_is_stopped(daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk it would run on, unknown to `down`."""

    def full(path: Path, _text: str) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    before = psutil.Process().children()

    with pytest.raises(OSError, match="No space left"):
        daemons.start("etcd", WAITS)

    assert daemons.names() == []
    assert [child for child in psutil.Process().children() if child not in before] == []

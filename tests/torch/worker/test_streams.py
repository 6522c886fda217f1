"""Output that nobody takes ends nothing: a closed pipe, a full disk, a closed terminal."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from batchgrowth_trainer.worker.streams import lasting_output

FULL = Path("/dev/full")  # each write to it fails as on a full disk
PRINTS = """
import sys
from batchgrowth_trainer.worker.streams import lasting_output
with lasting_output() as output:
    for number in range(100_000):
        print(number)
print("after it", file=sys.stderr)
"""


def stream_to(descriptor: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(os.fdopen(descriptor, "wb"), line_buffering=True)


@pytest.fixture(params=["closed pipe", "full disk", "closed terminal"])
def lost(request: pytest.FixtureRequest) -> Iterator[tuple[io.TextIOWrapper, str]]:
    """A stream that cannot be written, and the reason."""
    if request.param == "full disk":
        descriptor, reason = os.open(FULL, os.O_WRONLY), "No space left on device"
    elif request.param == "closed pipe":
        read, descriptor = os.pipe()
        os.close(read)
        reason = "Broken pipe"
    else:
        terminal, descriptor = os.openpty()
        os.close(terminal)
        reason = "Input/output error"
    stream = stream_to(descriptor)
    yield stream, reason
    stream.close()


@pytest.mark.fault("G02")
def test_prints_go_on(lost: tuple[io.TextIOWrapper, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    stream, reason = lost
    monkeypatch.setattr(sys, "stdout", stream)
    with lasting_output() as output:
        output.tell_by(lines.append)
        for _ in range(3):
            sys.stdout.write("an update\n")
            sys.stdout.flush()
    assert sys.stdout is stream
    assert [f"stdout cannot be written any more ({reason})" in line for line in lines] == [True]


@pytest.mark.fault("G02")
def test_what_was_lost_before_anybody_listens_is_told_later(
    lost: tuple[io.TextIOWrapper, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(sys, "stdout", lost[0])
    with lasting_output() as output:
        sys.stdout.write("loading torch\n")
        output.tell_by(lines.append)
    assert len(lines) == 1


@pytest.mark.fault("G02")
def test_a_process_exits_as_if_it_had_printed() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS], stdout=full, stderr=subprocess.PIPE, text=True, check=True
        )
    told, after = done.stderr.splitlines()
    assert "history.csv" in told
    assert after == "after it"


def test_what_can_be_written_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    read, descriptor = os.pipe()
    with stream_to(descriptor) as stream, os.fdopen(read) as reader:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting_output():
            sys.stdout.write("naïve")
        stream.close()
        assert reader.read() == "naïve"


def test_a_process_without_the_stream_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with lasting_output():
        pass
    assert sys.stdout is None


def test_a_stream_without_a_descriptor_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with lasting_output():
        assert sys.stdout is stream

"""A command and its terminal: characters, narrow terminals, closed pipes, full disks, Ctrl-C while libraries load."""

import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import batchgrowth
import pytest
from batchgrowth import cli, terminal
from batchgrowth.errors import PlanError
from batchgrowth.plan import make_plan

ROOT = Path(__file__).parents[3]
DIGITS = str(ROOT / "examples" / "digits.yaml")


def ended(*arguments: str) -> int | str | None:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return end.value.code


@pytest.mark.fault("G09")
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("command", [["plan", DIGITS], ["check", DIGITS], ["plan", "--help"], ["plan"], ["crd"]])
def test_a_terminal_that_lacks_our_signs_gets_the_nearest(
    monkeypatch: pytest.MonkeyPatch, encoding: str, command: list[str]
) -> None:
    written = [io.BytesIO(), io.BytesIO()]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written[0], encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written[1], encoding=encoding))

    assert ended(*command) in (0, 2)
    sys.stderr.flush()
    text = written[0].getvalue().decode(encoding) + written[1].getvalue().decode(encoding)
    assert "?" not in text or command == ["crd"]
    if command == ["plan", DIGITS]:
        assert text.splitlines()[1].split() == ["1", "0", "-", "5", "32", "0.05", "1", "225", "16.7%"]


@pytest.mark.fault("G09")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_whoever_started_it_closed_its_streams(closed: str, tmp_path: Path) -> None:
    """As some daemons do. What is printed leads nowhere, and above all not into a file that the command opens."""
    command = f'exec "$@" {closed}'
    check = [sys.executable, "-m", "batchgrowth", "check"]
    ends = [
        subprocess.run(["sh", "-c", command, "sh", *check, file], capture_output=True, text=True, check=False)
        for file in (DIGITS, str(tmp_path / "none.yaml"))
    ]

    assert [end.returncode for end in ends] == [0, 2]
    assert "Traceback" not in ends[0].stderr + ends[1].stderr
    assert "cannot be read" not in ends[1].stdout


def test_a_closed_stream_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[tuple[str, int]] = []

    def fstat(number: int) -> None:
        if number == 2:
            raise OSError("closed")

    system = SimpleNamespace(
        fstat=fstat, open=lambda *given: opened.append(given), devnull="none", O_RDWR=2, fdopen=os.fdopen,
        set_inheritable=lambda *_: None,
    )  # fmt: skip
    monkeypatch.setattr(terminal, "os", system)
    monkeypatch.setattr(sys, "stdin", None)
    before = sys.stdout
    terminal.open_what_is_closed()

    assert opened == [("none", 2)]
    assert sys.stdin is not None
    assert sys.stdout is before


def test_programs_that_a_process_starts_have_the_opened_stream_too() -> None:
    """A descriptor of Python is its process's own, so a program would give the number to its first file."""
    code = (
        "import os, subprocess, sys; from batchgrowth.terminal import open_what_is_closed; open_what_is_closed(); "
        "sys.exit(subprocess.call([sys.executable, '-c', 'import os; os.fstat(1)']))"
    )
    ended = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, code], capture_output=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_stands_for_a_sign() -> None:
    text = "0.1 → 0.01 … 3 × 4 … Ω"
    assert text.encode("ascii", terminal._REPLACE) == b"0.1 > 0.01 ... 3 x 4 ... ?"
    with pytest.raises(UnicodeDecodeError):
        terminal.plainly(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no sign"))


@pytest.mark.fault("G09")
@pytest.mark.parametrize("columns", [20, 40])
def test_a_narrow_terminal_gets_a_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert ended("plan", DIGITS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "stage         1",
        "epochs        0 – 5",
        "batch         32",
        "learning rate 0.05",
        "workers       1",
        "updates       225",
        "examples      16.7%",
        "",
    ]
    assert max(map(len, lines)) <= columns


def test_a_long_list_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    growth = "batch.growth={type: Linear, linear: {examplesPerUpdate: '1', everyUpdates: 3}}"
    assert ended("plan", DIGITS, "--set", growth) == 0
    assert [line[-6:] for line in capsys.readouterr().out.splitlines() if line.startswith("…")] == ["stages"]


@pytest.mark.fault("G09")
@pytest.mark.parametrize(
    "command", [["plan", DIGITS], ["check", DIGITS], ["crd"], ["plan", DIGITS, "--output", "json"]]
)
def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert ended(*command) == 1
    assert capsys.readouterr().err == (
        "the output cannot be written (no space left on device); give it a place with space\n"
    )


def test_a_full_disk_for_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as out, open("/dev/full", "w", encoding="utf-8") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert ended("plan", DIGITS) == 1
        terminal._give_up(err)


@pytest.mark.fault("G09")
@pytest.mark.parametrize("command", [["plan", DIGITS], ["check", DIGITS], ["crd"]])
def test_a_closed_pipe_ends_a_command_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """By `head`, which has read what it wants; crd writes more than a buffer, so it meets the pipe while it prints."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert ended(*command) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["plan", DIGITS], ["plan", "--help"]])
def test_a_terminal_that_does_not_know_its_size_is_shown_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Some set COLUMNS and LINES to 0."""
    outputs = []
    for size in ("80", "0"):
        monkeypatch.setenv("COLUMNS", size)
        monkeypatch.setenv("LINES", size)
        assert ended(*command) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_output_that_no_file_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, which replaces standard output."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert ended("--version") == 0
    assert sys.stdout.getvalue().startswith("batchgrowth ")


def test_another_error_of_the_system_is_not_taken_for_the_output() -> None:
    def command() -> None:
        raise OSError(5, "a disk that has nothing to do with it")

    with pytest.raises(OSError, match="nothing to do with it"):
        terminal.run_command(command)


def test_an_interrupt_in_a_command_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        terminal.run_command(command)
    assert (end.value.code, capsys.readouterr().err) == (130, "stopped\n")


@pytest.mark.fault("N13")
@pytest.mark.parametrize("library", ["typer", "torch"])
def test_an_interrupt_while_libraries_load_is_a_line(tmp_path: Path, library: str) -> None:
    """A library that swallows every exception, as some do while they look for optional parts of theirs."""
    swallowing = "import os, signal\nos.write(1, b'loading\\n')\ntry: signal.pause()\nexcept BaseException: pass\n"
    (tmp_path / f"{library}.py").write_text(swallowing)
    command = [sys.executable, "-m", "batchgrowth", "run", DIGITS, "--output-dir", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert "loading\n" in iter(lambda: process.stdout.readline().decode(), "")  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err.decode()) == (130, "stopped\n")
    assert not (tmp_path / "run").exists()


def test_the_command_minds_an_interrupt_before_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append((number, handler)))
    monkeypatch.setattr(cli, "main", lambda: handlers.append("main"))
    runpy.run_module("batchgrowth", run_name="__main__")
    importlib.import_module("batchgrowth.__main__").main()  # as the script `batchgrowth` calls it
    assert handlers == 2 * [(signal.SIGINT, terminal._stop_at_once), "main"]


@pytest.mark.parametrize("printing", [False, True])
def test_an_early_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch, printing: bool) -> None:
    """Even if it comes while the output is being written, which then cannot be flushed."""
    ends: list[object] = []

    def flush() -> None:
        if printing:
            raise RuntimeError("reentrant call")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=flush))
    monkeypatch.setattr(os, "write", lambda number, text: ends.append((number, text)))
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as end:
        terminal._stop_at_once(signal.SIGINT, None)
    ends.append(end.value.code)
    assert ends == [(2, b"stopped\n"), 130]


def test_only_what_is_there_can_be_imported_from_the_package() -> None:
    assert all(getattr(batchgrowth, name) for name in batchgrowth.__all__)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from batchgrowth import nothing  # type: ignore[attr-defined]  # noqa: F401
    for name in batchgrowth.__all__:
        vars(batchgrowth).pop(name, None)
    assert batchgrowth.PlanError is PlanError
    assert batchgrowth.make_plan is make_plan

"""The commands of `make check`: what they print, and their exit codes."""

from datetime import date
from pathlib import Path

import pytest

from cluster.supply import __main__ as commands
from cluster.supply.audit import Unchecked, Vulnerability
from cluster.supply.lock import Locked

LOCK = f"pyyaml==6.0 --hash=sha256:{64 * '0'}\n"
VULNERABLE = Vulnerability("pyyaml", "6.0", ("GHSA-1",), ("7",), "Reads anything.")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one dependency, under the MIT licence."""
    (tmp_path / "requirements.lock").write_text(LOCK)
    (tmp_path / "pyproject.toml").write_text("[tool.batchgrowth]\nlicences.allowed = ['MIT']\n")
    monkeypatch.setattr(commands, "PROJECT", tmp_path)
    return tmp_path


def code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["cluster.supply", *words])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    return int(ended.value.code or 0)


def test_licences(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good = code(monkeypatch, "licences")
    (project / "pyproject.toml").write_text("[tool.batchgrowth]\nlicences.allowed = ['ISC']\n")
    bad = code(monkeypatch, "licences")
    printed = capsys.readouterr()

    assert (0, 1) == (good, bad)
    assert "   1 MIT: pyyaml\nlicences: every locked distribution has an allowed licence\n" in printed.out
    assert "cluster.supply: licences:\npyyaml: MIT; MIT is not in tool.batchgrowth.licences.allowed\n" == printed.err


@pytest.mark.parametrize(
    ("found", "ends", "words"),
    [
        (Unchecked("no such host"), 1, "NOT CHECKED: no such host\n"),
        ([], 0, "vulnerabilities: 1 locked versions, none with a known fix\n"),
        ([VULNERABLE], 1, "pyyaml 6.0: GHSA-1 (Reads anything.); fixed in 7; `make lock`, or accept it"),
    ],
)
def test_vulnerabilities(
    found: Unchecked | list[Vulnerability],
    ends: int,
    words: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def asked(locked: tuple[Locked, ...]) -> list[Vulnerability]:
        if isinstance(found, Unchecked):
            raise found
        return found

    monkeypatch.setattr(commands, "vulnerabilities", asked)

    assert 0 == code(monkeypatch, "vulnerable")
    assert words in capsys.readouterr().out
    assert ends == code(monkeypatch, "vulnerable", "--strict")
    printed = capsys.readouterr()
    assert words in printed.out + printed.err


def test_an_accepted_vulnerability(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the form that pyproject.toml has."""
    row = f"{{id = 'GHSA-1', reason = 'never called', until = {date.max}}}"
    (project / "pyproject.toml").write_text(f"[tool.batchgrowth]\nlicences.allowed = ['MIT']\nadvisories = [{row}]\n")
    monkeypatch.setattr(commands, "vulnerabilities", lambda locked: [VULNERABLE])

    assert 0 == code(monkeypatch, "vulnerable", "--strict")
    assert "accepted until 9999-12-31: never called" in capsys.readouterr().out


def test_the_sboms_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each image."""
    monkeypatch.setattr(commands, "sbom", lambda project, target: target)

    assert 0 == code(monkeypatch, "sboms", str(tmp_path / "new"))
    assert {"operator.cdx.json": "operator", "trainer.cdx.json": "trainer"} == {
        path.name: path.read_text() for path in (tmp_path / "new").iterdir()
    }

"""Every bad manifest is refused with a line that names the field and a valid value; every good one passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from batchgrowth import cli

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus"
EXPECTED = yaml.safe_load((CORPUS / "expected.yaml").read_text())
GOOD = sorted([*(CORPUS / "good").iterdir(), *ROOT.glob("examples/**/*.yaml")])


def check(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of `batchgrowth check`."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", *map(str, paths)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize("name", EXPECTED)
def test_bad(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = CORPUS / "bad" / f"{name}.yaml"
    code, out, err = check(capsys, path)
    lines = err.splitlines()
    field = EXPECTED[name]["names"].replace("FILE", str(path))
    named = [line for line in lines if line.startswith((f"{field}: ", f"{field} "))]
    assert (code, out) == (2, "")
    assert named, err
    assert all("; " in line and line.isprintable() and len(line) < 600 for line in lines), err


@pytest.mark.fault("A06", "A08")
@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: good; ")


def test_the_corpus_is_whole() -> None:
    """Each file has its expectation, and there are at least sixty."""
    assert sorted(path.stem for path in (CORPUS / "bad").iterdir()) == sorted(EXPECTED)
    assert len(EXPECTED) >= 60


def test_several_files_are_all_judged(capsys: pytest.CaptureFixture[str]) -> None:
    bad = [CORPUS / "bad" / f"{name}.yaml" for name in ("epochs-zero", "seed-negative")]
    code, out, err = check(capsys, bad[0], GOOD[0], bad[1])
    assert code == 2
    assert [f"{bad[0]}: spec.epochs", f"{bad[1]}: spec.seed"] == [line.rpartition(": ")[0] for line in err.splitlines()]
    assert out.startswith(f"{GOOD[0]}: good")
